"""`RunningAggregate` equals plain Python, however rows are cut into batches, tasks and slices."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from rhinoctl.operators import RunningAggregate, bound_from_json
from tests.unit.operators.driving import Instance, routed, with_key_group

Row = dict[str, Any]

NAN, INF = math.nan, math.inf
TEXTS = ["", "a", "a\0", "b", "é", "e\u0301", "\uffff", "\U0001f600"]  # the last two: UTF-8 order
# Sums of these, and of the longs below, are exact in any order.
DOUBLES = st.sampled_from([0.0, -0.0, 0.5, -1.25, 2.0**40, INF, -INF, NAN])
TIMES = st.sampled_from(
    [datetime(1900, 1, 1, tzinfo=UTC), datetime(2024, 2, 29, 12, 30, 0, 1, tzinfo=UTC)]
)

KEYS: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "long": (pa.int64(), st.integers(-1, 1) | st.sampled_from([2**63 - 1, -(2**63)])),
    "short": (pa.int16(), st.integers(-1, 1)),
    "flag": (pa.bool_(), st.booleans()),
    "text": (pa.string(), st.sampled_from(TEXTS)),
    "bytes": (pa.binary(), st.sampled_from([b"", b"\0", b"\0\xff", b"\xff"])),
    "double": (pa.float64(), st.sampled_from([0.0, -0.0, NAN, 1.5, -INF])),
    "float": (pa.float32(), st.sampled_from([0.0, -0.0, NAN, 1.5, -INF])),
    "day": (pa.date32(), st.sampled_from([date(1969, 12, 31), date(2024, 2, 29)])),
    "time": (pa.timestamp("us", "UTC"), TIMES),
    "money": (pa.decimal128(20, 2), st.sampled_from([Decimal("-0.01"), Decimal("1.00")])),
}
VALUES: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "v_long": (pa.int64(), st.integers(-(2**20), 2**20).map(lambda high: high << 35)),
    "v_byte": (pa.int8(), st.integers(-128, 127)),
    "v_double": (pa.float64(), DOUBLES),
    "v_float": (pa.float32(), DOUBLES),
    "v_any": (pa.float64(), st.floats()),
    "v_text": (pa.string(), st.sampled_from(TEXTS)),
    "v_bytes": (pa.binary(), st.binary(max_size=2)),
    "v_flag": (pa.bool_(), st.booleans()),
    "v_day": (pa.date32(), st.dates(date(1, 1, 1), date(9999, 12, 31))),
    "v_time": (pa.timestamp("us", "UTC"), TIMES),
    "v_money": (pa.decimal128(20, 2), st.decimals(-(10**9), 10**9, places=2)),
}
SUMMED = ("v_long", "v_byte", "v_double", "v_float")
AGGREGATES: dict[str, str | tuple[str, str]] = {
    "n": "count",
    **{f"count_{column}": ("count", column) for column in VALUES},
    **{f"sum_{column}": ("sum", column) for column in SUMMED},
    **{f"avg_{column}": ("avg", column) for column in SUMMED},
    **{f"{pick}_{column}": (pick, column) for pick in ("min", "max") for column in VALUES},
}


# ---------------------------------------------------------------------------- the oracle


def plain(value: Any) -> Any:
    """A value that is equal to another exactly when Spark says so."""
    return "NaN" if isinstance(value, float) and math.isnan(value) else value


def place(value: Any) -> Any:
    """Where Spark's order puts a value that is not null."""
    if isinstance(value, float):
        return (math.isnan(value), 0.0 if math.isnan(value) else value)
    return value.encode() if isinstance(value, str) else value


def aggregated(form: str | tuple[str, str], rows: list[Row]) -> Any:
    if form == "count":
        return len(rows)
    function, column = form
    values = [row[column] for row in rows if row[column] is not None]
    if function == "count":
        return len(values)
    if not values:
        return None
    if function in ("min", "max"):
        return (min if function == "min" else max)(values, key=place)
    if function == "sum":
        return sum(values)
    return sum(map(float, values)) / len(values)


def oracle(keys: list[str], rows: list[Row]) -> dict[tuple[Any, ...], tuple[Any, ...]]:
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(plain(row[key]) for key in keys), []).append(row)
    return {
        key: tuple(plain(aggregated(form, group)) for form in AGGREGATES.values())
        for key, group in groups.items()
    }


def said(keys: list[str], table: pa.Table) -> dict[tuple[Any, ...], tuple[Any, ...]]:
    """The same of a result; a key may occur only once."""
    found = {}
    for row in table.to_pylist():
        values = tuple(map(plain, row.values()))
        assert values[: len(keys)] not in found
        found[values[: len(keys)]] = values[len(keys) :]
    return found


# ---------------------------------------------------------------------------- the cases


@dataclass
class Case:
    keys: list[str]
    batches: list[list[list[Row]]]
    """Batches of channels of rows."""
    vnodes: int
    slice_rows: int

    @property
    def schema(self) -> pa.Schema:
        columns = {key: KEYS[key] for key in self.keys} | VALUES
        return pa.schema([(name, held) for name, (held, _) in columns.items()])


@st.composite
def cases(draw: st.DrawFn) -> Case:
    keys = draw(st.lists(st.sampled_from(list(KEYS)), min_size=1, max_size=3, unique=True))
    columns = {key: KEYS[key] for key in keys} | VALUES
    row = st.fixed_dictionaries({name: st.none() | of for name, (_, of) in columns.items()})
    channels = st.lists(st.lists(row, max_size=6), max_size=3)
    return Case(
        keys=keys,
        batches=draw(st.lists(channels, min_size=1, max_size=3)),
        vnodes=draw(st.sampled_from([1, 2, 64])),
        slice_rows=draw(st.integers(1, 4)),
    )


def slices(case: Case, instance: Instance, channels: list[list[Row]]) -> Iterator[Any]:
    for channel in channels:
        table = pa.Table.from_pylist(channel, case.schema)
        wire = instance.bound.pre_aggregate(with_key_group(table, case.keys))
        for vnode, batch in routed(wire, case.vnodes):
            for at in range(0, batch.num_rows, case.slice_rows):
                yield vnode, batch.slice(at, case.slice_rows)


@given(cases())
@settings(deadline=None, max_examples=120)
def test_equals_plain_python(case: Case) -> None:
    declared = RunningAggregate(case.keys, AGGREGATES)
    bound = declared.bind(case.schema)
    instance = Instance(bound_from_json(bound.to_json()), case.vnodes)
    seen: list[Row] = []
    for channels in case.batches:
        batch = [row for channel in channels for row in channel]
        seen += batch
        expected = oracle(case.keys, seen)
        applied = instance.apply(list(slices(case, instance, channels)))
        applied.output.validate(full=True)
        touched = oracle(case.keys, batch)
        assert said(case.keys, applied.output) == {key: expected[key] for key in touched}
        assert sum(applied.output_vnodes.values()) == applied.output.num_rows
        assert said(case.keys, instance.state()) == expected


@given(cases())
@settings(deadline=None, max_examples=30)
def test_the_same_slices_give_the_same_bytes(case: Case) -> None:
    """A batch that is applied again after a crash must not tell another story (invariant 14)."""
    bound = RunningAggregate(case.keys, AGGREGATES).bind(case.schema)
    one, other = Instance(bound, case.vnodes), Instance(bound, case.vnodes)
    for channels in case.batches:
        taken = list(slices(case, one, channels))
        first, second = one.apply(taken), other.apply(taken)
        assert one.written == other.written
        assert list(first.output_vnodes.items()) == list(second.output_vnodes.items())
        assert list(map(repr, first.output.to_pylist())) == list(
            map(repr, second.output.to_pylist())
        )
