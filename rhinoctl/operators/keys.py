"""Store keys: two bytes of key group, then the key columns, in the order of Spark's ``ORDER BY``.

::

    key     := time? group:u2 column*    big-endian; group < 32768, so no key begins with 0xff 0xff
    time    := microseconds since 1970, 8 bytes, sign flipped: only where state goes by time
    column  := 0x00 (null) or 0x01, then
               fixed:  big-endian, sign flipped (zeros when null)
               bytes:  0x00 written as 0x00 0xff, then 0x00 0x00 (empty when null)

Fixed widths: integers and dates and times their own; booleans one byte; floats the bits of
`ordered_of` after one zero and one NaN; decimals 16 bytes, the scale being the column type's.

Text is *escaped*, not given a length: a length would sort "b" before "aa". The terminator
0x00 0x00 cannot occur in escaped text (each 0x00 there is followed by 0xff) and sorts before
anything that may follow a shared prefix, so that columns compare one by one, and no key is a
prefix of another: range deletes by a prefix of columns hit whole keys only. FoundationDB's tuples
end with a single 0x00, which is one byte shorter but leaves "a" a prefix of "a\\0".

Time comes first, before the group, so that all of a vnode that is older than the watermark is one
range (docs/adr/0006-time-first.md).

Keys from 0xff 0xff on are the runtime's (`last_batch`).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rhinoctl.errors import CorruptFile
from rhinoctl.ids import KEY_GROUPS
from rhinoctl.operators.arrow_types import (
    array_of,
    floats_of,
    is_bytes,
    normalised,
    nulls_of,
    ordered_of,
    solid,
    values_of,
)
from rhinoctl.operators.byte_rows import Rows, joined, joined_rows

RESERVED = b"\xff\xff"
"""The first key of the runtime's own range."""


@dataclass(frozen=True, slots=True)
class _Stretch:
    """A run of fixed-width bytes, and the text column that follows it (None after the last)."""

    dtype: np.dtype
    columns: tuple[int, ...]
    tail: int | None


TIME_MAX = 2**63 - 2**48 - 1
"""Keys of later times (the year 294,000) would reach into the runtime's range."""


def time_bound(time_us: int) -> bytes:
    """The first key of a time, for ranges; times beyond what keys hold are brought to the end."""
    held = min(max(time_us, -(2**63)), TIME_MAX + 1)
    return (held + 2**63).to_bytes(8, "big")


class KeyCodec:
    """Encodes and decodes keys of fixed column types. `types` are canonical; `timed` keys begin
    with a time."""

    def __init__(self, types: Sequence[pa.DataType], *, timed: bool = False) -> None:
        self.types = tuple(types)
        self.timed = timed
        self._stretches = _stretches(self.types, timed=timed)

    def encode(
        self,
        key_groups: np.ndarray,
        columns: Sequence[pa.Array],
        times: np.ndarray | None = None,
    ) -> list[bytes]:
        """One key a row. `columns` are of `types`; text and bytes may be large_binary. `times` are
        int64 microseconds, for timed keys."""
        return joined(self._parts(key_groups, columns, times))

    def encode_rows(
        self,
        key_groups: np.ndarray,
        columns: Sequence[pa.Array],
        times: np.ndarray | None = None,
    ) -> pa.Array:
        """The same as a large_binary array."""
        return joined_rows(self._parts(key_groups, columns, times))

    def check(self, key_groups: np.ndarray, times: np.ndarray | None) -> None:
        """Raise ValueError for keys that cannot be encoded."""
        if len(key_groups) and not 0 <= key_groups.min() <= key_groups.max() < KEY_GROUPS:
            raise ValueError(f"key groups must be in [0, {KEY_GROUPS})")
        if (times is not None) != self.timed:
            raise ValueError("times are given for keys without, or missing for timed keys")
        if times is not None and len(times) and times.max() > TIME_MAX:
            raise ValueError(f"the time {times.max()} is later than keys can hold")

    def _parts(
        self,
        key_groups: np.ndarray,
        columns: Sequence[pa.Array],
        times: np.ndarray | None,
    ) -> list[np.ndarray | pa.Array]:
        self.check(key_groups, times)
        parts: list[np.ndarray | pa.Array] = []
        for stretch in self._stretches:
            records = np.zeros(len(key_groups), stretch.dtype)
            if not parts:
                records["group"] = key_groups
                if times is not None:
                    records["time"] = _sign_flipped(times)
            for index in stretch.columns:
                _write_fixed(records, index, columns[index])
            parts.append(records)
            if stretch.tail is not None:
                column = columns[stretch.tail]
                nulls = nulls_of(column)
                records[f"flag{stretch.tail}"] = 1 if nulls is None else ~nulls
                parts.append(_escaped(column))
        return parts

    def decode(self, keys: Sequence[bytes]) -> tuple[np.ndarray, list[pa.Array], np.ndarray | None]:
        """Key groups (int32), key columns of `types` (large_binary for text and bytes), and the
        times of timed keys.

        Raises CorruptFile for bytes that `encode` cannot have made.
        """
        rows = Rows(pa.array(keys, pa.large_binary()))
        zeros = rows.data == 0
        ends = np.flatnonzero(zeros[:-1] & zeros[1:])
        records: list[np.ndarray] = []
        tails: dict[int, tuple[int, np.ndarray]] = {}
        for stretch in self._stretches:
            _check(rows.holds(stretch.dtype.itemsize))
            records.append(rows.records(stretch.dtype))
            if stretch.tail is not None:
                found = np.searchsorted(ends, rows.at)
                _check(bool((found < len(ends)).all()))
                flag = records[-1][f"flag{stretch.tail}"]
                tails[stretch.tail] = (rows.skip(ends[found] - rows.at), flag)
        _check(rows.at_end())
        columns: list[pa.Array] = [None] * len(self.types)
        for stretch, record in zip(self._stretches, records, strict=True):
            for index in stretch.columns:
                columns[index] = _read_fixed(record, index, self.types[index])
        for index, (part, flag) in tails.items():
            text = rows.part(part, rows=np.arange(len(keys)), nulls=flag == 0)
            columns[index] = pc.replace_substring(text, pattern=b"\0\xff", replacement=b"\0")
        times = None
        if self.timed:
            times = _sign_flipped(records[0]["time"].astype(np.uint64))
        return records[0]["group"].astype(np.int32), columns, times


def _stretches(types: tuple[pa.DataType, ...], *, timed: bool) -> tuple[_Stretch, ...]:
    stretches: list[_Stretch] = []
    fields: list[tuple] = [("time", ">u8")] if timed else []
    fields.append(("group", ">u2"))
    columns: list[int] = []
    for index, held in enumerate(types):
        fields.append((f"flag{index}", "u1"))
        if not is_bytes(held):
            columns.append(index)
            fields.append((f"value{index}", *_fixed_field(held)))
            continue
        stretches.append(_Stretch(np.dtype(fields), tuple(columns), index))
        fields, columns = [("end", "u1", (2,))], []
    stretches.append(_Stretch(np.dtype(fields), tuple(columns), None))
    return tuple(stretches)


def _fixed_field(held: pa.DataType) -> tuple:
    if pa.types.is_decimal128(held):
        return "u1", (16,)
    if pa.types.is_boolean(held):
        return ("u1",)
    return (f">u{held.bit_width // 8}",)


def _write_fixed(records: np.ndarray, index: int, column: pa.Array) -> None:
    """Flag and value of one fixed column, in place."""
    nulls = nulls_of(column)
    records[f"flag{index}"] = 1 if nulls is None else ~nulls
    values = values_of(normalised(column))
    if pa.types.is_decimal128(column.type):
        values = values[:, ::-1].copy()
        values[:, 0] ^= 0x80
    elif not pa.types.is_boolean(column.type):
        signed = ordered_of(values) if values.dtype.kind == "f" else values
        values = _sign_flipped(signed)
    if nulls is not None:
        values = np.where(nulls.reshape(-1, *[1] * (values.ndim - 1)), 0, values)
    records[f"value{index}"] = values


def _read_fixed(records: np.ndarray, index: int, held: pa.DataType) -> pa.Array:
    flag, stored = records[f"flag{index}"], records[f"value{index}"]
    _check(bool((flag <= 1).all()))
    if pa.types.is_decimal128(held):
        values = stored[:, ::-1].copy()
        values[:, -1] ^= 0x80
    elif pa.types.is_boolean(held):
        values = stored.copy()
    else:
        unsigned = stored.astype(stored.dtype.newbyteorder("="))
        values = _sign_flipped(unsigned)
        if pa.types.is_floating(held):
            values = floats_of(values)
    return array_of(values, flag == 0, held)


def _sign_flipped(integers: np.ndarray) -> np.ndarray:
    """Signed to unsigned in the same order, or back; always a copy."""
    other = "u" if integers.dtype.kind == "i" else "i"
    bits = integers.view(f"u{integers.itemsize}")
    top = bits.dtype.type(1 << (8 * integers.itemsize - 1))
    return (bits ^ top).view(f"{other}{integers.itemsize}")


def _escaped(column: pa.Array) -> pa.Array:
    text = solid(column)
    if text.null_count:
        text = text.fill_null(b"")
    return pc.replace_substring(text, pattern=b"\0", replacement=b"\0\xff")


def _check(sound: bool) -> None:
    if not sound:
        raise CorruptFile(
            "a key in the state is not one of this operator's key columns",
            remedy="rhinoctl verify names the copies that are whole; the vnode is rebuilt from one",
        )
