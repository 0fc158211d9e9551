"""Key groups without Spark: the very numbers of Spark SQL's ``pmod(xxhash64(keys), 32768)``.

In production Spark's JVM hashes the rows; this is for tools that ask where a key lives, and for
tests. A golden table made by Spark holds both together (scenario T16).

XXH64 with seed 42, chained: the hash of a column seeds the next, and a null leaves the seed as it
is. Booleans, bytes, shorts, ints, dates and floats are hashed as 4 bytes, longs, times and doubles
as 8 (one zero, one NaN), decimals of up to 18 digits as the unscaled long, larger ones as the
shortest big-endian two's complement, text and bytes as they are.
"""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from rhinoctl.ids import KEY_GROUPS
from rhinoctl.operators.arrow_types import (
    Column,
    canonical,
    is_bytes,
    normalised,
    nulls_of,
    offsets_and_data,
    solid,
    values_of,
)

SEED = 42
P1 = np.uint64(0x9E3779B185EBCA87)
P2 = np.uint64(0xC2B2AE3D27D4EB4F)
P3 = np.uint64(0x165667B19E3779F9)
P4 = np.uint64(0x85EBCA77C2B2AE63)
P5 = np.uint64(0x27D4EB2F165667C5)
LONG_DIGITS = 18


def key_groups(columns: Sequence[Column]) -> np.ndarray:
    """The int32 key group of each row of the key columns."""
    return (xxhash64(columns) % KEY_GROUPS).astype(np.int32)  # numpy's % is never negative


def key_group_of(values: Sequence[object], types: Sequence[pa.DataType]) -> int:
    """The key group of one key."""
    columns = [pa.array([value], held) for value, held in zip(values, types, strict=True)]
    return int(key_groups(columns)[0])


def xxhash64(columns: Sequence[Column]) -> np.ndarray:
    """Spark SQL's ``xxhash64(columns…)`` of each row, as int64.

    Raises ValueError for a type that cannot be a key.
    """
    hashes = np.full(len(columns[0]), SEED, np.uint64)
    for column in columns:
        if canonical(column.type) is None:
            raise ValueError(f"a column of type {column.type} cannot be a key")
        array = normalised(solid(column))
        hashed = _column(array, hashes)
        nulls = nulls_of(array)
        hashes = hashed if nulls is None else np.where(nulls, hashes, hashed)
    return hashes.view(np.int64)


def _column(array: pa.Array, seeds: np.ndarray) -> np.ndarray:
    held = array.type
    if is_bytes(held):
        offsets, data = offsets_and_data(array)
        return _bytes(np.frombuffer(data, np.uint8), offsets[:-1], np.diff(offsets), seeds)
    values = values_of(array)
    if pa.types.is_decimal128(held):
        if held.precision > LONG_DIGITS:
            return _wide_decimals(values, seeds)
        return _eight_bytes(np.ascontiguousarray(values[:, :8]).view(np.uint64)[:, 0], seeds)
    if values.itemsize == 8:
        return _eight_bytes(values.view(np.uint64), seeds)
    bits = values.view(np.int32) if values.dtype.kind == "f" else values.astype(np.int32)
    return _four_bytes(bits.view(np.uint32).astype(np.uint64), seeds)


def _wide_decimals(values: np.ndarray, seeds: np.ndarray) -> np.ndarray:
    """Of 16 little-endian bytes, what Java's ``BigInteger.toByteArray`` gives."""
    big = values[:, ::-1]
    sign = np.where(big[:, :1] >= 0x80, np.uint8(0xFF), np.uint8(0))
    # A leading byte is dropped when it repeats the sign and the next one still shows it.
    spare = (big[:, :-1] == sign) & ((big[:, 1:] ^ sign) < 0x80)
    dropped = np.logical_and.accumulate(spare, axis=1).sum(axis=1)
    starts = np.arange(len(big)) * 16 + dropped
    return _bytes(np.ascontiguousarray(big).reshape(-1), starts, 16 - dropped, seeds)


def _rotated(words: np.ndarray, bits: int) -> np.ndarray:
    return (words << np.uint64(bits)) | (words >> np.uint64(64 - bits))


def _round(lane: np.ndarray, words: np.ndarray) -> np.ndarray:
    return _rotated(lane + words * P2, 31) * P1


def _add_eight(hashes: np.ndarray, words: np.ndarray) -> np.ndarray:
    return _rotated(hashes ^ _round(np.zeros_like(words), words), 27) * P1 + P4


def _add_four(hashes: np.ndarray, words: np.ndarray) -> np.ndarray:
    return _rotated(hashes ^ (words * P1), 23) * P2 + P3


def _add_one(hashes: np.ndarray, words: np.ndarray) -> np.ndarray:
    return _rotated(hashes ^ (words * P5), 11) * P1


def _finished(hashes: np.ndarray) -> np.ndarray:
    hashes = (hashes ^ (hashes >> np.uint64(33))) * P2
    hashes = (hashes ^ (hashes >> np.uint64(29))) * P3
    return hashes ^ (hashes >> np.uint64(32))


def _eight_bytes(words: np.ndarray, seeds: np.ndarray) -> np.ndarray:
    return _finished(_add_eight(seeds + P5 + np.uint64(8), words))


def _four_bytes(words: np.ndarray, seeds: np.ndarray) -> np.ndarray:
    return _finished(_add_four(seeds + P5 + np.uint64(4), words))


def _bytes(
    data: np.ndarray, starts: np.ndarray, lengths: np.ndarray, seeds: np.ndarray
) -> np.ndarray:
    """XXH64 of ``data[start : start + length]`` of each row; rows that are through sit out."""
    hashes = seeds + P5
    at = starts.copy()
    left = lengths.copy()
    longer = np.flatnonzero(left >= 32)
    if len(longer):
        hashes[longer] = _stripes(data, at[longer], left[longer], seeds[longer])
        at[longer] += left[longer] // 32 * 32
        left[longer] %= 32
    hashes += lengths.astype(np.uint64)
    for width, add in ((8, _add_eight), (4, _add_four), (1, _add_one)):
        while len(rows := np.flatnonzero(left >= width)):
            hashes[rows] = add(hashes[rows], _words(data, at[rows], width))
            at[rows] += width
            left[rows] -= width
    return _finished(hashes)


def _stripes(
    data: np.ndarray, starts: np.ndarray, lengths: np.ndarray, seeds: np.ndarray
) -> np.ndarray:
    """The part of XXH64 that takes 32 bytes a step in four lanes."""
    lanes = [seeds + P1 + P2, seeds + P2, seeds.copy(), seeds - P1]
    for stripe in range(int(lengths.max()) // 32):
        rows = np.flatnonzero(lengths >= 32 * (stripe + 1))
        for number, lane in enumerate(lanes):
            words = _words(data, starts[rows] + 32 * stripe + 8 * number, 8)
            lane[rows] = _round(lane[rows], words)
    hashes = _rotated(lanes[0], 1)
    for lane, bits in zip(lanes[1:], (7, 12, 18), strict=True):
        hashes += _rotated(lane, bits)
    for lane in lanes:
        hashes = (hashes ^ _round(np.zeros_like(lane), lane)) * P1 + P4
    return hashes


def _words(data: np.ndarray, at: np.ndarray, width: int) -> np.ndarray:
    """Little-endian words of `width` bytes, widened to 64 bits."""
    block = np.ascontiguousarray(data[at[:, None] + np.arange(width)])
    return block.view(f"<u{width}")[:, 0].astype(np.uint64)
