"""`WindowAggregate` equals a plain model of Spark's, however rows are cut and however late."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from rhinoctl.operators import WindowAggregate, bound_from_json
from rhinoctl.operators.base import BoundOperator
from rhinoctl.protocol import watermarks
from rhinoctl.protocol.records import NO_WATERMARKS, Watermarks
from tests.unit.operators.driving import Instance, routed, with_key_group

TIME = pa.timestamp("us", "UTC")
FRAME = pa.schema([("user", pa.string()), ("at", TIME), ("price", pa.int64())])
SECOND = 1_000_000

Row = tuple[str | None, int | None, int | None]
Window = tuple[int, str | None]


@dataclass
class Model:
    """Spark's semantics, row by row: a window is a cell; late and evicted by its end."""

    window: int
    slide: int
    output: str
    bounded: bool
    cells: dict[Window, list[int]] = field(default_factory=lambda: defaultdict(lambda: [0, 0]))

    def windows(self, time: int) -> Iterator[int]:
        start = time // self.slide * self.slide
        while start + self.window > time:
            yield start
            start -= self.slide

    def apply(self, rows: list[Row], marks: Watermarks) -> dict[Window, tuple[int, int]]:
        touched = set()
        for user, time, price in rows:
            for start in self.windows(time) if time is not None else ():
                if self.bounded and start + self.window <= marks.late_ms * 1000:
                    continue
                cell = self.cells[start, user]
                cell[0] += 1
                cell[1] += price or 0
                touched.add((start, user))
        gone = {
            key
            for key in self.cells
            if self.bounded and key[0] + self.window <= marks.evict_ms * 1000
        }
        shown = gone if self.output == "append" else touched
        result = {key: (self.cells[key][0], self.cells[key][1]) for key in shown}
        for key in gone:
            del self.cells[key]
        return result


@dataclass(frozen=True)
class Case:
    window: int
    slide: int
    delay: int | None
    output: str
    batches: list[list[list[Row]]]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    slide = draw(st.sampled_from([1, 2, 3, 5]))
    window = slide * draw(st.integers(1, 4)) + draw(st.integers(0, slide - 1))
    output = draw(st.sampled_from(["update", "append"]))
    delay = draw(st.integers(0, 6)) if output == "append" or draw(st.booleans()) else None
    origin = draw(st.sampled_from([0, -20, 1_700_000_000]))
    pace = draw(st.integers(0, 4))
    batches = []
    for number in range(draw(st.integers(1, 6))):
        times = st.integers(-8, 8).map(lambda t, n=number: origin + n * pace + t)
        row = st.tuples(
            st.sampled_from(["a", "b", "c", None]),
            st.none()
            | times.flatmap(lambda s: st.integers(0, 999_999).map(lambda u: s * SECOND + u)),
            st.none() | st.integers(-5, 5),
        )
        batches.append(draw(st.lists(st.lists(row, max_size=8), min_size=1, max_size=3)))
    return Case(window, slide, delay, output, batches)


def bound(case: Case) -> BoundOperator:
    operator = WindowAggregate(
        ["user"],
        {"n": "count", "total": ("sum", "price")},
        time="at",
        window=f"{case.window} s",
        slide=f"{case.slide} s",
        watermark=None if case.delay is None else f"{case.delay} s",
        output=case.output,
    )
    made = operator.bind(FRAME)
    again = bound_from_json(made.to_json())
    assert again.to_json() == made.to_json()
    return again


def frame(rows: list[Row]) -> pa.Table:
    columns = [pa.array([row[at] for row in rows], FRAME.field(at).type) for at in range(3)]
    return with_key_group(pa.table(columns, schema=FRAME), ["user"])


def shown(output: pa.Table) -> dict[Window, tuple[int, int]]:
    starts = [w["start"] for w in output["window"].to_pylist()]
    micros = [round(s.timestamp()) * SECOND for s in starts]
    rows = zip(
        micros,
        output["user"].to_pylist(),
        output["n"].to_pylist(),
        output["total"].to_pylist(),
        strict=True,
    )
    found = {(start, user): (n, total or 0) for start, user, n, total in rows}
    assert len(found) == output.num_rows, "a window came twice"
    return found


@settings(deadline=None)
@given(cases())
def test_equal_to_the_model(case: Case) -> None:
    operator = bound(case)
    instance = Instance(operator, vnodes=4)
    model = Model(case.window * SECOND, case.slide * SECOND, case.output, case.delay is not None)
    marks = NO_WATERMARKS
    for batch in case.batches:
        tables = [frame(rows) for rows in batch]
        seen: tuple[Any, ...] = ()
        slices = []
        for table in tables:
            seen = watermarks.greatest(seen, operator.event_times(table))
            slices += routed(operator.pre_aggregate(table), 4)
        marks = watermarks.of_batch(marks, operator.delays_ms, seen)
        applied = instance.apply(slices, marks)
        expected = model.apply([row for rows in batch for row in rows], marks)
        assert shown(applied.output) == expected
        assert sum(applied.output_vnodes.values()) == applied.output.num_rows
    last = Watermarks(late_ms=marks.evict_ms, evict_ms=2**50)
    if case.delay is not None:
        applied = instance.apply([], last)
        assert shown(applied.output) == model.apply([], last)
        assert instance.state().num_rows == 0, "state of windows that are over"
