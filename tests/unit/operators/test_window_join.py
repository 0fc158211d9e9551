"""What a window join may declare, and what it says and keeps, case by case."""

import json
import math
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest

from rhinoctl.errors import (
    IdentityChanged,
    MissingColumn,
    UnknownVnode,
    UnsupportedOperator,
    UsageError,
)
from rhinoctl.ids import BASE, Vnode
from rhinoctl.operators import BatchContext, WindowJoin, bound_from_json, from_spec
from rhinoctl.operators.join import BoundWindowJoin
from rhinoctl.operators.windows import Panes
from rhinoctl.protocol.records import Watermarks
from tests.unit.operators.driving import Instance, routed
from tests.unit.operators.joining import Row, at, frame, listed

Q8: dict[str, Any] = {
    "keys": {"left": ["id"], "right": ["seller"]},
    "time": "time",
    "window": "10 s",
    "watermark": {"left": "5 s", "right": "1 minute"},
    "select": {"left": ["id", "name"], "right": ["reserve"]},
}
JOIN = WindowJoin(**Q8)
UTC = pa.timestamp("us", "UTC")
FIELDS = {
    "left.id": pa.int64(),
    "right.seller": pa.int64(),
    "left.time": pa.timestamp("us", "Europe/Berlin"),
    "right.time": UTC,
    "left.name": pa.string(),
    "right.reserve": pa.decimal128(9, 2),
}
SCHEMA = pa.schema(list(FIELDS.items()))
S = 1_000_000


def person(key: float | None, seconds: float | None, name: str | None = "p") -> Row:
    time = None if seconds is None else at(seconds)
    return 0, {"id": key, "time": time, "name": name}


def auction(key: float | None, seconds: float | None) -> Row:
    return 1, {"seller": key, "time": None if seconds is None else at(seconds)}


@pytest.fixture
def bound() -> BoundWindowJoin:
    return JOIN.bind(SCHEMA)


def slices_of(bound: BoundWindowJoin, rows: Sequence[Row], vnodes: int) -> list[Any]:
    return routed(bound.pre_aggregate(frame(JOIN, SCHEMA, rows)), vnodes)


class Driven(Instance):
    """An instance that is given rows; says the window's start in seconds, key and name."""

    def batch(self, *rows: Row, late_s: int = 0, evict_s: int = 0) -> list[tuple[Any, ...]]:
        marks = Watermarks(late_ms=1000 * late_s, evict_ms=1000 * evict_s)
        applied = self.apply(slices_of(self.bound, rows, self.vnodes), marks)
        return [(start / S, *row[:2]) for start, _, *row in listed(applied.output)]

    def entries(self) -> int:
        return sum(len(list(store.scan())) for store in self.stores.values())


# ---------------------------------------------------------------------------- declarations


def test_a_declaration_is_its_spec() -> None:
    spec = json.loads(json.dumps(JOIN.spec()))
    assert from_spec(spec) == JOIN
    assert hash(from_spec(spec)) == hash(JOIN)
    assert WindowJoin(**Q8 | {"window": "10000 ms"}) == JOIN
    assert WindowJoin(**Q8 | {"window": "11 s"}) != JOIN
    assert WindowJoin(**Q8 | {"watermark": "5 s"}) != JOIN


def test_names_of_columns() -> None:
    names = ["left.id", "right.seller", "left.time", "right.time", "left.name", "right.reserve"]
    assert JOIN.columns() == tuple(names)
    assert JOIN.key_columns() == (("left.id", "right.seller"),)
    assert JOIN.keys == ("id = seller",)
    same = WindowJoin(**Q8 | {"keys": ["id", "day"]})
    assert same.key_columns() == (("left.id", "right.id"), ("left.day", "right.day"))
    assert same.keys == ("id", "day")


def test_a_bound_operator_is_its_json(bound: BoundWindowJoin) -> None:
    data = json.loads(json.dumps(bound.to_json()))
    again = bound_from_json(data)
    assert again.to_json() == data
    assert again.wire_schema == bound.wire_schema
    assert again.result_schema == bound.result_schema
    assert again.delays_ms == (5_000, 60_000)
    assert data["columns"]["left.time"] == "timestamp[us, tz=UTC]"


@pytest.mark.parametrize("instant", [UTC, pa.timestamp("us")], ids=str)
def test_schemas(instant: pa.DataType) -> None:
    times = {"left.time": instant, "right.time": instant}
    bound = JOIN.bind(pa.schema(list((FIELDS | times).items())))
    window = pa.struct([("start", instant), ("end", instant)])
    columns = [("id", pa.int64()), ("name", pa.string()), ("reserve", pa.decimal128(9, 2))]
    assert bound.result_schema == pa.schema([("window", window), *columns])
    assert bound.wire_schema.names[:4] == ["__kg", "__window", "__side", "__k0"]


@pytest.mark.parametrize(
    ("change", "names"),
    [
        ({"keys": []}, "key"),
        ({"keys": {"left": ["id"], "right": []}}, "key"),
        ({"keys": {"left": ["id", "day"], "right": ["seller"]}}, "'day'.*'seller'"),
        ({"keys": {"left": ["id"]}}, "keys.*left and right"),
        ({"keys": ["__kg"]}, "'__kg'"),
        ({"time": {"left": "time", "rigth": "time"}}, "time.*left and right"),
        ({"time": ""}, "time"),
        ({"time": None}, "time"),
        ({"time": "__t"}, "'__t'"),
        ({"window": "0 s"}, "window '0 s'"),
        ({"window": "-1 s"}, "window '-1 s'"),
        ({"window": "1 month"}, "window '1 month'"),
        ({"window": "soon"}, "window 'soon'"),
        ({"watermark": "-1 s"}, "watermark '-1 s'"),
        ({"watermark": {"left": "1 s", "right": "-1 s"}}, "watermark '-1 s'"),
        ({"select": ["id"]}, "select"),
        ({"select": {"left": ["id"]}}, "select.*left and right"),
        ({"select": {"left": ["id"], "right": []}}, "select"),
        ({"select": {"left": ["__id"], "right": ["reserve"]}}, "'__id'"),
        ({"select": {"left": ["id"], "right": ["id"]}}, "'id' of the right side and 'id' of the"),
        ({"select": {"left": ["id", "id"], "right": ["b"]}}, "'id' of the left side"),
        ({"select": {"left": ["id"], "right": ["window"]}}, "'window' of the right side"),
    ],
)
def test_a_wrong_declaration_names_the_object(change: dict[str, Any], names: str) -> None:
    with pytest.raises(UsageError, match=names) as error:
        WindowJoin(**Q8 | change)
    assert error.value.remedy


@pytest.mark.parametrize("column", FIELDS)
def test_a_missing_column_is_named(column: str) -> None:
    with pytest.raises(MissingColumn, match=f"'{column}'"):
        JOIN.bind(pa.schema([field for field in SCHEMA if field.name != column]))


@pytest.mark.parametrize(
    ("types", "names"),
    [
        ({"left.time": pa.int64()}, "time column 'left.time' is int64"),
        ({"right.time": pa.string()}, "time column 'right.time' is string"),
        ({"right.time": pa.date32()}, "time column 'right.time' is date32"),
        ({"left.time": pa.timestamp("us")}, "'left.time' is .*'right.time' is"),
        ({"left.id": pa.int32()}, "'left.id' is int32, 'right.seller' is int64"),
        ({"right.seller": pa.list_(pa.int64())}, "key column 'right.seller'"),
        ({"left.name": pa.map_(pa.string(), pa.int64())}, "column 'left.name'"),
    ],
)
def test_a_wrong_type_names_the_column(types: dict[str, pa.DataType], names: str) -> None:
    with pytest.raises(UnsupportedOperator, match=names) as error:
        JOIN.bind(pa.schema(list((FIELDS | types).items())))
    assert error.value.remedy


# ---------------------------------------------------------------------------- Spark's side


def test_rows_that_can_match_cross_the_wire(bound: BoundWindowJoin) -> None:
    rows = [person(1, 12), person(None, 3), auction(2, -0.5), auction(None, 1), auction(3, None)]
    wire = bound.pre_aggregate(frame(JOIN, SCHEMA, rows))
    assert wire.schema == bound.wire_schema
    assert wire.select(["__window", "__side", "__k0"]).to_pylist() == [
        {"__window": 10 * S, "__side": 0, "__k0": 1},
        {"__window": -10 * S, "__side": 1, "__k0": 2},
    ]


def test_the_greatest_event_times_are_of_rows_that_may_match(bound: BoundWindowJoin) -> None:
    rows = [person(1, 1.0009), person(None, 1.0019), person(1, None), auction(1, -0.0001)]
    assert bound.event_times(frame(JOIN, SCHEMA, rows)) == (1000, -1)
    assert bound.event_times(frame(JOIN, SCHEMA, [person(1, None)])) == (None, None)
    assert bound.event_times(frame(JOIN, SCHEMA, [])) == (None, None)


def test_a_frame_of_other_types_is_refused(bound: BoundWindowJoin) -> None:
    other = pa.schema(list((FIELDS | {"left.name": pa.int64()}).items()))
    with pytest.raises(IdentityChanged, match=r"'left\.name' was string .* int64 now"):
        bound.pre_aggregate(frame(JOIN, other, []))


# ---------------------------------------------------------------------------- the instance's side


def test_a_pair_comes_with_the_batch_that_completes_it(bound: BoundWindowJoin) -> None:
    instance = Driven(bound, vnodes=4)
    assert instance.batch(person(1, 1, "a")) == []
    assert instance.batch(auction(1, 2), auction(2, 2)) == [(0, 1, "a")]
    assert instance.batch(person(1, 3, "b")) == [(0, 1, "b")]
    assert instance.batch(person(1, 4, "c"), auction(1, 4)) == [
        *[(0, 1, "a"), (0, 1, "b")],  # old with new
        *[(0, 1, "c"), (0, 1, "c")],  # new with old, and with new
    ]
    assert instance.batch() == []


def test_windows_and_keys_are_apart(bound: BoundWindowJoin) -> None:
    instance = Driven(bound, vnodes=4)
    rows = [person(1, 9.999999), auction(1, 10), auction(2, 9), auction(1, 0)]
    assert instance.batch(*rows) == [(0, 1, "p")]


def test_windows_before_1970(bound: BoundWindowJoin) -> None:
    """The watermark stands at 0 before the first rows, so they are late, as in Spark."""
    instance = Driven(bound, vnodes=1)
    assert instance.batch(person(1, -0.000001), auction(1, -10)) == []
    marks = Watermarks(late_ms=-20_000, evict_ms=-20_000)
    applied = instance.apply(
        slices_of(bound, [person(1, -0.000001), auction(1, -10), auction(1, 0)], 1), marks
    )
    assert [row[:3] for row in listed(applied.output)] == [(-10 * S, 0, 1)]


def test_nulls_match_nothing(bound: BoundWindowJoin) -> None:
    instance = Driven(bound, vnodes=2)
    rows = [person(None, 1), auction(None, 1), person(1, None), auction(1, 1)]
    assert instance.batch(*rows) == []
    assert instance.batch(person(1, 1, None)) == [(0, 1, None)]
    assert instance.entries() == 3  # a header, and a chunk of each side


def test_keys_that_spark_calls_equal_match() -> None:
    """One zero and one NaN; also of rows that come in one batch."""
    doubles = {"left.id": pa.float64(), "right.seller": pa.float64()}
    schema = pa.schema(list((FIELDS | doubles).items()))
    bound = JOIN.bind(schema)
    instance = Instance(bound, vnodes=2)
    rows = [person(0.0, 1, "a"), person(-0.0, 1, "b"), auction(-0.0, 1), person(math.nan, 1, "c")]
    for batch in (rows, [auction(0.0, 1), auction(math.nan, 1)]):
        wire = bound.pre_aggregate(frame(JOIN, schema, batch))
        applied = instance.apply(routed(wire, 2))
        names = sorted(row[3] for row in listed(applied.output))
        assert names == (["a", "b"] if batch is rows else ["a", "b", "c"])


def test_late_is_by_the_window_s_end(bound: BoundWindowJoin) -> None:
    instance = Driven(bound, vnodes=2)
    assert instance.batch(person(1, 1), late_s=9, evict_s=9) == []
    assert instance.batch(auction(1, 1), late_s=9, evict_s=9) == [(0, 1, "p")]
    assert instance.batch(auction(1, 1), auction(1, 9.9), late_s=10, evict_s=10) == []
    one_ms_before = Watermarks(late_ms=9_999, evict_ms=9_999)
    applied = instance.apply(slices_of(bound, [auction(1, 1)], 2), one_ms_before)
    assert applied.output.num_rows == 1


def test_a_window_is_there_for_the_batch_that_closes_it(bound: BoundWindowJoin) -> None:
    """Not late by W(b−1), and evicted by W(b): the rows still meet old ones and each other."""
    instance = Driven(bound, vnodes=2)
    assert instance.batch(person(1, 1, "old")) == []
    said = instance.batch(person(1, 2, "new"), auction(1, 3), late_s=0, evict_s=10)
    assert said == [(0, 1, "old"), (0, 1, "new")]
    assert instance.entries() == 0


def test_windows_go_once_the_watermark_has_reached_their_end(bound: BoundWindowJoin) -> None:
    instance = Driven(bound, vnodes=4)
    rows = [person(key, 1) for key in range(9)] + [person(1, 11), auction(1, 21)]
    assert instance.batch(*rows) == []
    assert instance.entries() == 22
    assert (instance.batch(late_s=0, evict_s=9), instance.written) == ([], {})
    instance.batch(late_s=9, evict_s=10)
    assert instance.entries() == 4
    assert set(instance.written) == set(instance.stores)
    assert (instance.batch(late_s=10, evict_s=19), instance.written) == ([], {})
    instance.batch(late_s=19, evict_s=35)
    assert instance.entries() == 0


def test_what_is_not_spilled_goes_too(bound: BoundWindowJoin) -> None:
    instance = Driven(bound, vnodes=1)
    context = BatchContext(time=BASE, vnodes=frozenset({Vnode(0)}))
    bound.apply(slices_of(bound, [person(1, 1), person(1, 11)], 1), instance.held, context)
    assert list(instance.stores[Vnode(0)].scan()) == []
    assert instance.held.dirty_bytes(Vnode(0)) > 0
    instance.batch(late_s=0, evict_s=12)
    assert instance.entries() == 2
    assert instance.held.dirty_bytes(Vnode(0)) == 0


def test_a_store_gets_a_batch_whole_or_not_at_all(bound: BoundWindowJoin) -> None:
    """Headers never come to the store without their chunks, even if they are looked up again."""
    instance = Driven(bound, vnodes=1)
    context = BatchContext(time=BASE, vnodes=frozenset({Vnode(0)}))
    for row in (person(1, 1), auction(1, 1), person(1, 2)):
        bound.apply(slices_of(bound, [row], 1), instance.held, context)
        assert list(instance.stores[Vnode(0)].scan()) == []
    instance.spill()
    assert instance.entries() == 4


def test_only_the_batch_s_vnodes_are_touched(bound: BoundWindowJoin) -> None:
    instance = Driven(bound, vnodes=4)
    instance.batch(*(person(key, 1) for key in range(40)))
    marks = Watermarks(late_ms=0, evict_ms=10_000)
    context = BatchContext(time=BASE, vnodes=frozenset({Vnode(2)}), watermarks=marks)
    bound.apply([], instance.held, context)
    instance.spill()
    assert set(instance.written) == {2}
    wire = slices_of(bound, [person(key, 1) for key in range(40)], 4)
    with pytest.raises(UnknownVnode):
        bound.apply(wire, instance.held, context)
    with pytest.raises(IdentityChanged):
        bound.apply([(Vnode(2), wire[0][1].drop_columns(["__side"]))], instance.held, context)
    instance.spill()
    assert instance.written == {}


def test_output_is_by_vnode_with_counts(bound: BoundWindowJoin) -> None:
    instance = Driven(bound, vnodes=8)
    rows = [row for key in range(50) for row in (auction(key, 1), person(key, 2), auction(key, 3))]
    slices = slices_of(bound, rows, 8)
    late = [(Vnode(7), slices_of(bound, [person(1, -99)], 1)[0][1])]
    applied = instance.apply([*reversed(slices), *late])
    assert applied.touched == {vnode for vnode, _ in slices} | {7}
    assert list(applied.output_vnodes) == sorted(vnode for vnode, _ in slices)
    start = 0
    for vnode, batch in slices:
        count = applied.output_vnodes[vnode]
        ids = applied.output["id"].slice(start, count).to_pylist()
        assert sorted(ids) == sorted(2 * list(dict.fromkeys(batch["__k0"].to_pylist())))
        start += count
    assert start == applied.output.num_rows == 100


def test_the_state_can_be_looked_at(bound: BoundWindowJoin) -> None:
    instance = Driven(bound, vnodes=1)
    instance.batch(person(1, 11, "a"), auction(1, 1))
    instance.batch(auction(1, 11), person(1, 12, "b"), person(1, 13, "c"))
    table = pa.Table.from_batches(bound.scan(instance.stores[Vnode(0)]), bound.wire_schema)
    shown = table.select(["__window", "__side", "__k0", "left.name"]).to_pydict().values()
    assert list(zip(*shown, strict=True)) == [
        (0, 1, 1, None),
        *[(10 * S, 0, 1, name) for name in (b"a", b"b", b"c")],
        (10 * S, 1, 1, None),
    ]


def test_a_detached_vnode_leaves_nothing(bound: BoundWindowJoin) -> None:
    instance = Driven(bound, vnodes=1)
    context = BatchContext(time=BASE, vnodes=frozenset({Vnode(0)}))
    bound.apply(slices_of(bound, [person(1, 1)], 1), instance.held, context)
    instance.held.detach(Vnode(0))
    assert instance.held.vnodes == frozenset()
    instance.held.attach(Vnode(0), instance.stores[Vnode(0)])
    assert instance.batch(auction(1, 1)) == []


@pytest.mark.parametrize("side", [0, 1])
def test_a_time_that_no_state_holds_is_refused_where_it_is_staged(
    bound: BoundWindowJoin, side: int
) -> None:
    def table(time_us: int, key: int | None) -> pa.Table:
        rows = frame(JOIN, SCHEMA, [(person, auction)[side](key, 0)])
        name = ("left.time", "right.time")[side]
        times = pa.array([time_us], pa.int64()).cast(SCHEMA.field(name).type)
        return rows.set_column(rows.column_names.index(name), name, times)

    far = 9_223_372_036_850_000_000
    with pytest.raises(UnsupportedOperator, match=f"'{('left', 'right')[side]}.time'"):
        bound.pre_aggregate(table(far, 1))
    assert bound.pre_aggregate(table(far, None)).num_rows == 0, "it matches nothing"
    last = Panes(JOIN.window_us, JOIN.window_us).bounds().greatest
    Instance(bound, 2).run([table(last, 1)])
    with pytest.raises(UnsupportedOperator):
        bound.pre_aggregate(table(last + 1, 1))
