"""Two 64-bit hashes of each key, with chance seeds of the process: together they stand for the key.

They never leave the process, so they need not be those of anybody else (as `hashing`'s are), only
fast and independent of each other. Every step mixes with the seed's own state: keys that collide
under one seed do not for that reason collide under another.
"""

import secrets
from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from rhinoctl.operators.arrow_types import is_bytes, nulls_of, offsets_and_data, solid, values_of

M1 = np.uint64(0xBF58476D1CE4E5B9)
M2 = np.uint64(0x94D049BB133111EB)

Hashes = tuple[np.ndarray, np.ndarray]
"""One uint64 a row, twice."""

_KEPT = np.array([(1 << 8 * count) - 1 for count in range(9)], np.uint64)
"""Masks of the first bytes of a little-endian word."""


class RowHasher:
    """Hashes keys that have a place (vnode and key group), perhaps a time, and columns."""

    def __init__(self) -> None:
        self._seeds = [np.uint64(secrets.randbits(64)) for _ in range(2)]

    def __call__(
        self, places: np.ndarray, times: np.ndarray | None, columns: Sequence[pa.Array]
    ) -> Hashes:
        """`places` and `times` are integers of 64 bits; `columns` are `normalised`."""
        words = [places, *([] if times is None else [times])]
        first, second = (np.full(len(places), seed) for seed in self._seeds)
        for word in words:
            bits = word.view(np.uint64)
            first, second = _mixed(first ^ bits), _mixed(second ^ bits)
        for column in columns:
            first, second = _with_column(first, second, column)
        return first, second


def _mixed(words: np.ndarray) -> np.ndarray:
    """The finish of splitmix64, in place: one to one, and every bit depends on every bit."""
    words ^= words >> np.uint64(30)
    words *= M1
    words ^= words >> np.uint64(27)
    words *= M2
    words ^= words >> np.uint64(31)
    return words


def _with_column(first: np.ndarray, second: np.ndarray, column: pa.Array) -> Hashes:
    nulls = nulls_of(column)
    if is_bytes(column.type):
        hashes = _with_bytes(first, second, solid(column))
    else:
        hashes = first, second
        for word in _words(column):
            hashes = _mixed(hashes[0] ^ word), _mixed(hashes[1] ^ word)
    if nulls is None:
        return hashes
    # Mixed twice, turned over in between: no value has this hash whatever the seed.
    return (
        np.where(nulls, _mixed(~_mixed(first.copy())), hashes[0]),
        np.where(nulls, _mixed(~_mixed(second.copy())), hashes[1]),
    )


def _words(column: pa.Array) -> list[np.ndarray]:
    """The values of a fixed-width column as words of 64 bits."""
    values = values_of(column)
    if pa.types.is_decimal128(column.type):
        halves = np.ascontiguousarray(values).view(np.uint64)
        return [halves[:, 0], halves[:, 1]]
    if values.dtype.kind == "f":
        values = values.view(f"i{values.itemsize}")
    return [values.astype(np.int64, copy=False).view(np.uint64)]


def _with_bytes(first: np.ndarray, second: np.ndarray, column: pa.Array) -> Hashes:
    """Length and then eight bytes a step; rows that are through sit out."""
    if column.null_count:
        column = column.fill_null(b"")
    offsets, buffer = offsets_and_data(column)
    data = np.frombuffer(buffer, np.uint8)[offsets[0] : offsets[-1]]
    padded = np.concatenate([data, np.zeros(8, np.uint8)])
    words = np.ndarray((len(data) + 1,), "<u8", padded, strides=(1,))
    at, left = offsets[:-1] - offsets[0], np.diff(offsets)
    lengths = left.view(np.uint64)
    first, second = _mixed(first ^ lengths), _mixed(second ^ lengths)
    rows = np.flatnonzero(left)
    at, left = at[rows], left[rows]
    while len(rows):
        word = words[at] & _KEPT[np.minimum(left, 8)]
        first[rows] = _mixed(first[rows] ^ word)
        second[rows] = _mixed(second[rows] ^ word)
        more = left > 8
        rows, at, left = rows[more], at[more] + 8, left[more] - 8
    return first, second
