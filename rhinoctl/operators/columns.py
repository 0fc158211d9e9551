"""Rows of state in numpy columns, and which vnode each is of.

A row has a number, which it keeps until it is dropped; numbers of dropped rows are given again.
"""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from rhinoctl.operators.arrow_types import array_of, nulls_of, values_of
from rhinoctl.operators.row_index import SLOTS_A_ROW, grown
from rhinoctl.operators.values import ValueCodec

NOBODY = -1
"""The vnode of a number that no row has."""

ROWS_MIN = 1024
GROWTH = 1.5

OBJECT_BYTES = 33
"""Of a bytes object besides its bytes; objects are aligned to 16."""


class Columns:
    """`values` has the types of the slots. The columns are read and written by the caller:

    `vnodes`, `times`, `keys` (encoded), `sizes` (memory of a row, see `row_bytes`), `present`
    (whether there is a row of slots), `dirty` (whether it differs from the store), `used` (a tick).
    """

    def __init__(self, values: ValueCodec) -> None:
        self._codec = values
        self._names = ["vnodes", "times", "keys", "sizes", "present", "dirty", "used"]
        self.vnodes = np.zeros(0, np.int16)
        self.times = np.zeros(0, np.int64)
        self.keys = np.zeros(0, object)
        self.sizes = np.zeros(0, np.int32)
        self.present = np.zeros(0, bool)
        self.dirty = np.zeros(0, bool)
        self.used = np.zeros(0, np.int64)
        self._values = [values_of(pa.array([], held)).copy() for held in values.types]
        self._nulls = [np.zeros(0, bool) for _ in values.types]
        self._free = np.zeros(0, np.int64)
        self._high = 0
        self._by_vnode: tuple[np.ndarray, np.ndarray] | None = None
        columns = [*(getattr(self, name) for name in self._names), *self._values, *self._nulls]
        hashes = 16
        self._fixed_bytes = hashes + 4 * SLOTS_A_ROW + 8  # 8: a number of the free ones
        self._fixed_bytes += sum(column.dtype.itemsize * _width(column) for column in columns)
        self._grow(ROWS_MIN)

    @property
    def capacity(self) -> int:
        """All row numbers are less."""
        return len(self.vnodes)

    def row_bytes(self, keys: Sequence[bytes]) -> np.ndarray:
        """Memory of rows with these keys, in all columns, the index and the keys themselves."""
        lengths = np.fromiter(map(len, keys), np.int32, len(keys))
        return (lengths + OBJECT_BYTES + 15) // 16 * 16 + self._fixed_bytes

    def allocate(self, vnodes: np.ndarray) -> np.ndarray:
        """Numbers for new rows of these vnodes; the caller writes everything else."""
        wanted = len(vnodes)
        again, self._free = self._free[:wanted], self._free[wanted:]
        fresh = wanted - len(again)
        if self._high + fresh > self.capacity:
            self._grow(max(int(GROWTH * self.capacity), self._high + fresh))
        rows = np.concatenate([again, np.arange(self._high, self._high + fresh)])
        self._high += fresh
        self.vnodes[rows] = vnodes
        self._by_vnode = None
        return rows

    def drop(self, rows: np.ndarray) -> None:
        """Give numbers back."""
        self.vnodes[rows] = NOBODY
        self.keys[rows] = None
        self.dirty[rows] = False
        self._free = np.concatenate([rows, self._free])

    def of_vnode(self, vnode: int) -> np.ndarray:
        """The rows of a vnode, ascending."""
        if self._by_vnode is None:
            order = np.argsort(self.vnodes[: self._high], kind="stable")  # 16 bits: a radix sort
            self._by_vnode = order, self.vnodes[order]
        order, vnodes = self._by_vnode
        start = np.searchsorted(vnodes, np.int16(vnode), "left")
        end = np.searchsorted(vnodes, np.int16(vnode), "right")
        rows = order[start:end]
        return rows[self.vnodes[rows] == vnode]  # some may have been dropped since the sort

    def every(self) -> np.ndarray:
        """All rows."""
        return np.flatnonzero(self.vnodes[: self._high] != NOBODY)

    def slots(self, rows: np.ndarray) -> list[pa.Array]:
        """The slots of rows, all null where a row is not present, or is −1."""
        absent = (rows < 0) | ~self.present[rows]
        return [
            array_of(values[rows], nulls[rows] | absent, held)
            for values, nulls, held in zip(
                self._values, self._nulls, self._codec.types, strict=True
            )
        ]

    def set_slots(self, rows: np.ndarray, slots: Sequence[pa.Array]) -> None:
        """The inverse of `slots`, for rows that are present."""
        for at, slot in enumerate(slots):
            nulls = nulls_of(slot)
            self._values[at][rows] = values_of(slot)
            self._nulls[at][rows] = False if nulls is None else nulls

    def _grow(self, rows: int) -> None:
        for name in self._names:
            setattr(self, name, grown(getattr(self, name), rows))
        self._values = [grown(column, rows) for column in self._values]
        self._nulls = [grown(column, rows) for column in self._nulls]


def _width(column: np.ndarray) -> int:
    return int(np.prod(column.shape[1:], dtype=np.int64))
