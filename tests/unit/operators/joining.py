"""Frames of two tagged inputs, and plain Python's word on what a window join of them says."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from rhinoctl.operators import KEY_GROUP, WindowJoin
from rhinoctl.operators.hashing import key_groups

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
US = timedelta(microseconds=1)

Row = tuple[int, dict[str, Any]]
"""0 for left, 1 for right; the columns of that side, absent ones null."""


def at(seconds: float) -> datetime:
    """A time in seconds since 1970."""
    return EPOCH + timedelta(seconds=seconds)


def frame(join: WindowJoin, schema: pa.Schema, rows: Iterable[Row]) -> pa.Table:
    """The flat frame that Spark's JVM hands over, with key groups."""
    names = [side.name for side in join.sides]
    flat = [{f"{names[side]}.{name}": of for name, of in row.items()} for side, row in rows]
    table = pa.Table.from_pylist(flat, schema)
    is_left = table[f"left.{join.sides[0].time}"].is_valid()
    keys = [pc.if_else(is_left, table[left], table[right]) for left, right in join.key_columns()]
    return table.append_column(KEY_GROUP, pa.array(key_groups(keys), pa.int32()))


def plain(value: Any) -> Any:
    """A value that is equal to another exactly when Spark says so."""
    return "NaN" if isinstance(value, float) and value != value else value


def listed(output: pa.Table) -> list[tuple[Any, ...]]:
    """The rows of a result, the window in microseconds."""
    window = output["window"].combine_chunks()
    limits = [window.field(name).cast(pa.int64()).to_pylist() for name in ("start", "end")]
    columns = [output.column(place).to_pylist() for place in range(1, output.num_columns)]
    rows = zip(*limits, *columns, strict=True)
    return [tuple(map(plain, row)) for row in rows]


@dataclass
class Oracle:
    """A window join, a row at a time."""

    join: WindowJoin
    kept: list[tuple[int, int, tuple[Any, ...], dict[str, Any]]] = field(default_factory=list)
    """Side, end of the window, key, columns."""

    def batch(self, rows: Iterable[Row], late_ms: int, evict_ms: int) -> Counter[tuple[Any, ...]]:
        """What a batch says; afterwards `kept` is what the state has."""
        old = len(self.kept)
        for side, row in rows:
            declared = self.join.sides[side]
            time = row.get(declared.time)
            key = tuple(plain(row.get(name)) for name in declared.keys)
            if time is None or None in key:
                continue
            end = ((time - EPOCH) // US // self.join.window_us + 1) * self.join.window_us
            if end > late_ms * 1000:
                self.kept.append((side, end, key, row))
        output = self._pairs(old)
        self.kept = [row for row in self.kept if row[1] > evict_ms * 1000]
        return output

    def _pairs(self, old: int) -> Counter[tuple[Any, ...]]:
        output: Counter[tuple[Any, ...]] = Counter()
        for one, (side, end, key, left) in enumerate(self.kept):
            for other, (other_side, other_end, other_key, right) in enumerate(self.kept):
                if (side, other_side) != (0, 1) or max(one, other) < old:
                    continue
                if (end, key) == (other_end, other_key):
                    columns = (*self._selected(0, left), *self._selected(1, right))
                    output[(end - self.join.window_us, end, *columns)] += 1
        return output

    def _selected(self, side: int, row: dict[str, Any]) -> Sequence[Any]:
        return [plain(row.get(name)) for name in self.join.sides[side].select]
