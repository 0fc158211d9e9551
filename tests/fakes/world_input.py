"""What a world's job is fed, and what must come out of it: plain Python, none of our own code."""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache
from math import inf

import pyarrow as pa

from rhinoctl.ids import KEY_GROUPS, BatchTime, Vnode
from rhinoctl.operators import RunningAggregate
from rhinoctl.operators.base import KEY_GROUP, BoundOperator
from rhinoctl.operators.hashing import key_group_of
from rhinoctl.protocol.jobs import OperatorSpec
from rhinoctl.state.hashing import content_hash

Row = tuple[str, int]
Totals = dict[str, tuple[int, int]]
"""Per key: how many rows, and their sum."""

FRAME = pa.schema([("k", pa.string()), ("v", pa.int64())])


def operator() -> BoundOperator:
    """The job's stateful step."""
    declared = RunningAggregate(keys=["k"], aggregates={"n": "count", "total": ("sum", "v")})
    return declared.bind(FRAME)


@dataclass(kw_only=True)
class Workload:
    """Rows by offset: row `i` is the same whoever asks, so that a batch is its two offsets.

    `rows_max` bounds a batch; only the first `vnodes` of those that the job has (`of`) ever get a
    row, and between two offsets, `quiet`, only the upper half of those. From `poison` on values
    are so large that a sum soon leaves the range of long.
    """

    keys: int = 40
    rows_max: int = 24
    vnodes: int = 8
    of: int = 8
    quiet: tuple[float, float] = (inf, inf)
    poison: float = inf

    def key_names(self, lowest: int = 0) -> list[str]:
        """The keys of the vnodes that get rows."""
        names = [f"k{n}" for n in range(self.keys)]
        return [name for name in names if lowest <= vnode_of(name, self.of) < self.vnodes]

    def rows(self, start: int, end: int) -> list[Row]:
        """The rows in [start, end)."""
        names, upper = self.key_names(), self.key_names(self.vnodes // 2)
        found = []
        for offset in range(start, end):
            among = upper if self.quiet[0] <= offset < self.quiet[1] else names
            key = among[(offset * 7919 + offset // 97) % len(among)]
            found.append((key, offset % 1000 - 300 if offset < self.poison else 2**59))
        return found

    def bound(self) -> BoundOperator:
        """The stateful step."""
        return operator()

    def spec(self) -> OperatorSpec:
        """The step as the driver registers it."""
        text = json.dumps(self.bound().to_json(), sort_keys=True)
        return OperatorSpec(name="a step", spec=text, digest=content_hash(text.encode())[:16])

    def frame(self, rows: Iterable[Row]) -> pa.RecordBatch:
        """Rows as a Spark task sees them."""
        return frame_of(rows)

    def totals(self, table: pa.Table | pa.RecordBatch) -> Totals:
        """Rows of a result, or of the state."""
        return totals_of(table)

    def expected(self) -> "Expected":
        """What must come out, before anything is in."""
        return Expected()

    def size(self, batch: int) -> int:
        """How many rows Spark finds for a batch; now and then none."""
        return (batch * 13 + 7) % (self.rows_max + 1) if batch % 9 != 4 else 0


def frame_of(rows: Iterable[Row]) -> pa.RecordBatch:
    """Rows as a Spark task sees them, with the key group that the JVM has added."""
    listed = list(rows)
    columns = [
        pa.array([group_of(key) for key, _ in listed], pa.int32()),
        pa.array([key for key, _ in listed], pa.string()),
        pa.array([value for _, value in listed], pa.int64()),
    ]
    return pa.RecordBatch.from_arrays(columns, names=[KEY_GROUP, "k", "v"])


@dataclass
class Expected:
    """The state and the outputs after some batches, each taken once and in order."""

    totals: Totals = field(default_factory=dict)
    outputs: dict[BatchTime, Totals] = field(default_factory=dict)

    def take(self, time: BatchTime, rows: Iterable[Row]) -> None:
        """Process one batch."""
        touched = {}
        for key, value in rows:
            count, total = self.totals.get(key, (0, 0))
            self.totals[key] = touched[key] = (count + 1, total + value)
        self.outputs[time] = touched


def totals_of(table: pa.Table | pa.RecordBatch) -> Totals:
    """Result rows as totals; a key that occurs twice is an error."""
    columns = (table.column(name).to_pylist() for name in ("k", "n", "total"))
    found: Totals = {}
    for key, count, total in zip(*columns, strict=True):
        assert key not in found, f"key {key} occurs twice in an output"
        found[key] = (count, total)
    return found


@cache
def group_of(key: str) -> int:
    """The key group of a key."""
    return key_group_of([key], [pa.string()])


def vnode_of(key: str, of: int) -> Vnode:
    """Where a key lives."""
    return Vnode(group_of(key) // (KEY_GROUPS // of))
