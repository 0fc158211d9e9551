"""`WindowJoin` equals plain Python, however rows are cut into batches, tasks and slices."""

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from rhinoctl.ids import BASE, Vnode
from rhinoctl.operators import BatchContext, BoundOperator, WindowJoin, bound_from_json
from rhinoctl.protocol import watermarks
from rhinoctl.protocol.records import NO_WATERMARKS, Watermarks
from tests.unit.operators.driving import Instance, routed
from tests.unit.operators.joining import Oracle, Row, at, frame, listed

KEYS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "long": (pa.int64(), [0, 1]),
    "text": (pa.string(), ["", "a", "a\0"]),
    "money": (pa.decimal128(20, 2), [Decimal("-0.01"), Decimal("1.00")]),
    "double": (pa.float64(), [0.0, -0.0, math.nan]),
    "flag": (pa.bool_(), [True, False]),
}
VALUES: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "name": (pa.string(), st.sampled_from(["", "é", "\U0001f600", "x" * 300])),
    "price": (pa.decimal128(9, 2), st.sampled_from([Decimal("-0.01"), Decimal("1.00")])),
    "score": (pa.float32(), st.sampled_from([0.5, math.nan, -math.inf])),
    "count": (pa.int16(), st.integers(-1, 1)),
    "hot": (pa.bool_(), st.booleans()),
}
LEFT, RIGHT = ["name", "price", "hot"], ["score", "count", "memo"]
TYPES = {name: held for name, (held, _) in VALUES.items()} | {"memo": pa.string()}

FINE = st.sampled_from([0, 9.999999, 10]) | st.integers(-25, 60) | st.floats(-25, 60)
COARSE = st.integers(-5, 12).map(lambda fives: 5 * fives)
"""With these the watermark often stands at the very end of a window."""


@dataclass
class Case:
    keys: list[str]
    batches: list[list[list[Row]]]
    """Batches of channels of rows."""
    vnodes: int
    slice_rows: int
    delays_s: tuple[int, int]
    instant: pa.DataType
    moved: list[bool]
    """Whether the state is opened anew after each batch."""

    @property
    def schema(self) -> pa.Schema:
        columns = [
            (f"{side}.{key}", KEYS[key][0]) for side in ("left", "right") for key in self.keys
        ]
        values = [(f"left.{name}", TYPES[name]) for name in LEFT]
        values += [(f"right.{name}", TYPES[name]) for name in RIGHT]
        times = [("left.time", self.instant), ("right.at", self.instant)]
        return pa.schema([*columns, *values, *times])

    @property
    def join(self) -> WindowJoin:
        left, right = self.delays_s
        return WindowJoin(
            keys=self.keys,
            time={"left": "time", "right": "at"},
            window="10 s",
            watermark={"left": f"{left} s", "right": f"{right} s"},
            select={"left": [self.keys[0], *LEFT], "right": RIGHT},
        )


def rows(keys: list[str], seconds: st.SearchStrategy[float]) -> st.SearchStrategy[Row]:
    of_keys = {key: st.sampled_from(KEYS[key][1]) | st.none() for key in keys}
    time = st.none() | seconds.map(at)
    left = {name: st.none() | VALUES[name][1] for name in LEFT}
    right = {name: st.none() | VALUES[name][1] for name in RIGHT[:2]}
    right |= {"memo": VALUES["name"][1]}
    return st.one_of(
        st.tuples(st.just(0), st.fixed_dictionaries({**of_keys, **left, "time": time})),
        st.tuples(st.just(1), st.fixed_dictionaries({**of_keys, **right, "at": time})),
    )


@st.composite
def cases(draw: st.DrawFn) -> Case:
    keys = draw(st.lists(st.sampled_from(list(KEYS)), min_size=1, max_size=2, unique=True))
    seconds = draw(st.sampled_from([FINE, COARSE]))
    channels = st.lists(st.lists(rows(keys, seconds), max_size=9), max_size=3)
    batches = draw(st.lists(channels, min_size=1, max_size=5))
    return Case(
        keys=keys,
        batches=batches,
        vnodes=draw(st.sampled_from([1, 2, 16])),
        slice_rows=draw(st.integers(1, 5)),
        delays_s=draw(st.tuples(*2 * [st.sampled_from([0, 5, 10, 30])])),
        instant=draw(st.sampled_from([pa.timestamp("us", "UTC"), pa.timestamp("us")])),
        moved=draw(st.lists(st.booleans(), min_size=len(batches), max_size=len(batches))),
    )


def slices(case: Case, bound: BoundOperator, frames: list[pa.Table]) -> Iterator[Any]:
    for channel in frames:
        for vnode, batch in routed(bound.pre_aggregate(channel), case.vnodes):
            for start in range(0, batch.num_rows, case.slice_rows):
                yield vnode, batch.slice(start, case.slice_rows)


def greatest(bound: BoundOperator, frames: list[pa.Table]) -> tuple[int | None, ...]:
    found: tuple[int | None, ...] = ()
    for each in frames:
        found = watermarks.greatest(found, bound.event_times(each))
    return found


def reopened(instance: Instance) -> None:
    """As after a move: another state on the same stores."""
    instance.held = instance.bound.state()
    for vnode, store in instance.stores.items():
        instance.held.attach(vnode, store)


def state_rows(instance: Instance) -> Counter[tuple[int, int]]:
    """How many rows of each side and window the stores have."""
    found: Counter[tuple[int, int]] = Counter()
    for store in instance.stores.values():
        for batch in instance.bound.scan(store):
            start, side = batch["__window"].to_pylist(), batch["__side"].to_pylist()
            found.update(zip(side, start, strict=True))
    return found


@given(cases())
@settings(deadline=None, max_examples=80)
def test_equals_plain_python(case: Case) -> None:
    join, schema = case.join, case.schema
    bound = join.bind(schema)
    eager = Instance(bound_from_json(bound.to_json()), case.vnodes)
    lazy = Instance(bound, case.vnodes)
    vnodes = frozenset(map(Vnode, range(case.vnodes)))
    oracle, marks = Oracle(join), NO_WATERMARKS
    for channels, moved in zip(case.batches, case.moved, strict=True):
        frames = [frame(join, schema, channel) for channel in channels]
        marks = watermarks.of_batch(marks, bound.delays_ms, greatest(bound, frames))
        sliced = list(slices(case, bound, frames))
        applied = eager.apply(sliced, marks)
        if moved:
            reopened(eager)
        context = BatchContext(time=BASE, vnodes=vnodes, watermarks=marks)
        unspilled = bound.apply(sliced, lazy.held, context)
        assert listed(unspilled.output) == listed(applied.output)
        given_rows = [row for channel in channels for row in channel]
        expected = oracle.batch(given_rows, marks.late_ms, marks.evict_ms)
        assert Counter(listed(applied.output)) == expected
        assert applied.output.schema == bound.result_schema
        assert sum(applied.output_vnodes.values()) == applied.output.num_rows
        kept = Counter((side, end - join.window_us) for side, end, _, _ in oracle.kept)
        assert state_rows(eager) == kept
    lazy.spill()
    for vnode, store in eager.stores.items():
        assert list(store.scan()) == list(lazy.stores[vnode].scan())
    end = Watermarks(late_ms=marks.evict_ms, evict_ms=marks.evict_ms + 100_000)
    for instance in (eager, lazy):
        instance.apply([], end)
        assert [entry for store in instance.stores.values() for entry in store.scan()] == []
