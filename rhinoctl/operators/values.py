"""State values: one row of partial aggregates as bytes.

::

    0        1               1+⌈m/8⌉                          w
    ┌────────┬───────────────┬────────────────────────────────┬───────────────────────┐
    │ format │ null bitmap   │ m fields, little-endian        │ tails, in field order │
    └────────┴───────────────┴────────────────────────────────┴───────────────────────┘
      1 byte   bit j: field j   integers and floats: the value    the bytes themselves
               is null          decimals: 16 bytes
                                bytes: their length, 4 bytes

Nulls are zeros. Everything up to `w` has the same width in every value, so fixed fields are read
and written as one numpy view; `FORMAT` is the first byte, so a later layout can tell.
"""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from rhinoctl.errors import CorruptFile, NeedsRepair
from rhinoctl.operators.arrow_types import (
    array_of,
    is_bytes,
    nulls_of,
    offsets_and_data,
    values_of,
)
from rhinoctl.operators.byte_rows import Rows, joined, joined_rows

FORMAT = 1


class ValueCodec:
    """Encodes and decodes rows of fixed column types: those of `comparable_type`, and float64."""

    def __init__(self, types: Sequence[pa.DataType]) -> None:
        self.types = tuple(types)
        self._tails = [index for index, held in enumerate(self.types) if is_bytes(held)]
        bitmap = -(-len(self.types) // 8)
        fields: list[tuple] = [("format", "u1"), ("nulls", "u1", (bitmap,))]
        for index, held in enumerate(self.types):
            fields.append((f"value{index}", *_field(held)))
        self._dtype = np.dtype(fields)

    def encode(self, columns: Sequence[pa.Array]) -> list[bytes]:
        """One value a row; `columns` are of `types`."""
        return joined(self._parts(columns))

    def encode_rows(self, columns: Sequence[pa.Array]) -> pa.Array:
        """The same as a large_binary array."""
        return joined_rows(self._parts(columns))

    def _parts(self, columns: Sequence[pa.Array]) -> list[np.ndarray | pa.Array]:
        records = np.zeros(len(columns[0]), self._dtype)
        records["format"] = FORMAT
        parts: list[np.ndarray | pa.Array] = [records]
        for index, column in enumerate(columns):
            nulls = nulls_of(column)
            if nulls is not None:
                records["nulls"][:, index // 8] |= nulls.astype(np.uint8) << (index % 8)
            if index in self._tails:
                tail = column if nulls is None else column.fill_null(b"")
                records[f"value{index}"] = np.diff(offsets_and_data(tail)[0])
                parts.append(tail)
            else:
                records[f"value{index}"] = values_of(column)
        return parts

    def decode(self, values: Sequence[bytes | None]) -> list[pa.Array]:
        """Columns of `types`, one row a value; all null where the value is None.

        Raises NeedsRepair for a format that this release does not know, CorruptFile for bytes that
        `encode` cannot have made.
        """
        return self.decode_rows(pa.array(values, pa.large_binary()))

    def decode_rows(self, every: pa.Array) -> list[pa.Array]:
        """The same of a large_binary array."""
        absent = nulls_of(every)
        rows = Rows(every.drop_null())
        _check(rows.holds(1))
        _check_format(rows.data[rows.at])
        _check(rows.holds(self._dtype.itemsize))
        records = rows.records(self._dtype)
        tails = [rows.skip(records[f"value{index}"].astype(np.int64)) for index in self._tails]
        _check(rows.at_end())
        place = np.arange(len(records))
        if absent is not None:  # one row of zeros more stands for all of them
            place = np.where(absent, len(records), np.cumsum(~absent) - 1)
            records = np.append(records, np.zeros(1, self._dtype))[place]
        columns = []
        for index, held in enumerate(self.types):
            bits = records["nulls"][:, index // 8] >> (index % 8) & 1
            nulls = bits != 0 if absent is None else (bits != 0) | absent
            if index in self._tails:
                part = tails[self._tails.index(index)]
                columns.append(rows.part(part, rows=place, nulls=nulls))
            else:
                columns.append(array_of(records[f"value{index}"], nulls, held))
        return columns


def _field(held: pa.DataType) -> tuple:
    if is_bytes(held):
        return ("<u4",)
    if pa.types.is_decimal128(held):
        return "u1", (16,)
    return (np.dtype(held.to_pandas_dtype()).newbyteorder("<"),)


def _check_format(formats: np.ndarray) -> None:
    unknown = formats[formats != FORMAT]
    if len(unknown):
        raise NeedsRepair(
            f"the state was written in format {unknown[0]}, this release reads format {FORMAT}",
            remedy="install the release that wrote it on this worker",
        )


def _check(sound: bool) -> None:
    if not sound:
        raise CorruptFile(
            "a value in the state is not one of this operator's",
            remedy="rhinoctl verify names the copies that are whole; the vnode is rebuilt from one",
        )
