"""Rows of bytes, all at once: fixed records and variable columns joined to one ``bytes`` a row.

A row is ``record₀ tail₀ record₁ tail₁ … recordₙ``; records have one width each, tails have none.
Both ways cost a few vector operations a part, however many rows there are: the boundaries of the
parts, interleaved, are the offsets of an Arrow array over the very same bytes.
"""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rhinoctl.operators.arrow_types import offsets_and_data

Records = np.ndarray
"""One-dimensional, of a packed structured dtype."""


def joined(parts: Sequence[Records | pa.Array]) -> list[bytes]:
    """One bytes object a row; a part is records or a large_binary array without nulls."""
    first = parts[0]
    if len(parts) == 1 and isinstance(first, np.ndarray):
        return first.view(np.dtype((np.void, first.dtype.itemsize))).tolist()
    return joined_rows(parts).to_numpy(zero_copy_only=False).tolist()


def joined_rows(parts: Sequence[Records | pa.Array]) -> pa.Array:
    """The same as a large_binary array."""
    arrays = [_as_binary(part) if isinstance(part, np.ndarray) else part for part in parts]
    if len(arrays) == 1:
        return arrays[0]
    return pc.binary_join_element_wise(*arrays, pa.scalar(b"", pa.large_binary()))


def _as_binary(records: Records) -> pa.Array:
    offsets = np.arange(len(records) + 1, dtype=np.int64) * records.dtype.itemsize
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(records)]
    return pa.Array.from_buffers(pa.large_binary(), len(records), buffers)


class Rows:
    """Read rows of bytes part by part, from the left.

    `at` is the position in `data` that each row has been read to.
    """

    def __init__(self, rows: pa.Array) -> None:
        self._offsets, self._buffer = offsets_and_data(rows)
        self.data = np.frombuffer(self._buffer, np.uint8)
        self.at = self._offsets[:-1].copy()
        self._edges = [self.at]

    @property
    def widths(self) -> np.ndarray:
        """Bytes of each row."""
        return np.diff(self._offsets)

    def holds(self, width: int) -> bool:
        """Whether every row has `width` bytes still to be read."""
        return bool((self.at + width <= self._offsets[1:]).all())

    def records(self, dtype: np.dtype) -> Records:
        """Read one record of every row."""
        width = dtype.itemsize
        evenly = len(self.at) and (self.widths == width).all()
        if evenly and len(self._edges) == 1:
            block = self.data[self._offsets[0] : self._offsets[-1]]
        else:
            block = self.data[self.at[:, None] + np.arange(width)].reshape(-1)
        self.skip(np.int64(width))
        return block.view(dtype)

    def skip(self, widths: np.ndarray | np.int64) -> int:
        """Step over one part of `widths` bytes a row; returns the part's number for `part`."""
        self.at = self.at + widths
        self._edges.append(self.at)
        return len(self._edges) - 2

    def at_end(self) -> bool:
        """Whether every row has been read whole."""
        return bool((self.at == self._offsets[1:]).all())

    def part(self, number: int, *, rows: np.ndarray, nulls: np.ndarray | None) -> pa.Array:
        """The bytes of one part that was stepped over, as large_binary: of the given rows, null
        where `nulls` (which may be out of range there). Only after `at_end`."""
        parts = len(self._edges) - 1
        edges = np.empty((len(self.at), parts + 1), np.int64)
        for column, edge in enumerate(self._edges):
            edges[:, column] = edge
        offsets = np.append(edges[:, :-1].reshape(-1), edges[-1:, -1])
        every = pa.Array.from_buffers(
            pa.large_binary(), len(self.at) * parts, [None, pa.py_buffer(offsets), self._buffer]
        )
        return every.take(pa.array(rows * parts + number, mask=nulls))
