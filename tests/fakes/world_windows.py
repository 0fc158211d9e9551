"""A world's job over windows of event time: what it is fed, and what must come out of it.

Plain Python, row by row, by Spark's rules; none of our own code.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache

import pyarrow as pa

from rhinoctl.ids import BatchTime
from rhinoctl.operators import WindowAggregate
from rhinoctl.operators.base import KEY_GROUP, BoundOperator
from tests.fakes.world_input import Expected, Row, Totals, Workload, group_of

TIME = pa.timestamp("us", "UTC")
WINDOW_MS, SLIDE_MS, DELAY_MS = 2000, 1000, 300
PACE_MS = 40
"""Event time goes on by so much from row to row: a window is about four batches."""


@cache
def operator() -> BoundOperator:
    """The job's stateful step."""
    declared = WindowAggregate(
        keys=["k"],
        time="t",
        window=f"{WINDOW_MS} milliseconds",
        slide=f"{SLIDE_MS} milliseconds",
        watermark=f"{DELAY_MS} milliseconds",
        aggregates={"n": "count", "total": ("sum", "v")},
        output="append",
    )
    return declared.bind(pa.schema([("k", pa.string()), ("t", TIME), ("v", pa.int64())]))


class WindowedWorkload(Workload):
    """Rows whose value is their event time in milliseconds: most in order, some far too late."""

    def rows(self, start: int, end: int) -> list[Row]:
        found = []
        for offset, (key, _) in zip(range(start, end), super().rows(start, end), strict=True):
            back = (offset * 31 % 17) * 30 + (4000 if offset % 23 == 5 else 0)
            found.append((key, 1_000_000 + offset * PACE_MS - back))
        return found

    def bound(self) -> BoundOperator:
        return operator()

    def frame(self, rows: Iterable[Row]) -> pa.RecordBatch:
        listed = list(rows)
        columns = [
            pa.array([group_of(key) for key, _ in listed], pa.int32()),
            pa.array([key for key, _ in listed], pa.string()),
            pa.array([time * 1000 for _, time in listed], TIME),
            pa.array([time % 1000 for _, time in listed], pa.int64()),
        ]
        return pa.RecordBatch.from_arrays(columns, names=[KEY_GROUP, "k", "t", "v"])

    def totals(self, table: pa.Table | pa.RecordBatch) -> Totals:
        found: Totals = {}
        for row in table.to_pylist():
            name = cell(round(row["window"]["start"].timestamp() * 1000), row["k"])
            assert name not in found, f"{name} occurs twice in an output"
            found[name] = (row["n"], row["total"])
        return found

    def expected(self) -> Expected:
        return ExpectedWindows()


def cell(start_ms: int, key: str) -> str:
    """A key in a window or pane."""
    return f"{start_ms}/{key}"


@dataclass
class ExpectedWindows(Expected):
    """Outputs are windows that are over; the totals are those of the panes that are kept."""

    windows: dict[tuple[int, str], tuple[int, int]] = field(default_factory=dict)
    watermark: int = 0
    greatest: int = 0

    def take(self, time: BatchTime, rows: Iterable[Row]) -> None:
        late, listed = self.watermark, list(rows)
        self.watermark = max(late, self.greatest - DELAY_MS)
        for key, at in listed:
            pane = at // SLIDE_MS * SLIDE_MS
            for start in range(pane - WINDOW_MS + SLIDE_MS, pane + 1, SLIDE_MS):
                if start + WINDOW_MS > late:
                    self.windows[start, key] = _plus(self.windows.get((start, key)), at % 1000)
            if pane + WINDOW_MS > late:
                name = cell(pane, key)
                self.totals[name] = _plus(self.totals.get(name), at % 1000)
            self.greatest = max(self.greatest, at)
        over = [at for at in self.windows if at[0] + WINDOW_MS <= self.watermark]
        self.outputs[time] = {cell(*at): self.windows.pop(at) for at in over}
        gone = [n for n in self.totals if int(n.split("/")[0]) + WINDOW_MS <= self.watermark]
        for name in gone:
            del self.totals[name]


def _plus(held: tuple[int, int] | None, value: int) -> tuple[int, int]:
    count, total = held or (0, 0)
    return count + 1, total + value
