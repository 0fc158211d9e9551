"""The Arrow types that operators hold, and their two plain forms.

*Canonical*: what a job's column is called in a spec, whatever the session's settings: one time zone
(UTC), no large variants. *Comparable*: a form in which Arrow's and numpy's ``<`` is Spark's order:
integers for floats (NaN last, −0.0 before 0.0), dates and times, uint8 for booleans, large_binary
for text and bytes (UTF-8 byte order is Spark's ``UTF8_BINARY``).
"""

import re
from typing import TypeAlias

import numpy as np
import pyarrow as pa

Array: TypeAlias = pa.Array
Column: TypeAlias = pa.Array | pa.ChunkedArray

_HELD = (
    pa.bool_(),
    pa.int8(),
    pa.int16(),
    pa.int32(),
    pa.int64(),
    pa.float32(),
    pa.float64(),
    pa.string(),
    pa.binary(),
    pa.date32(),
    pa.timestamp("us"),
    pa.timestamp("us", "UTC"),
    pa.duration("us"),
    pa.time64("ns"),
)
_BY_NAME = {str(held): held for held in _HELD} | {"any": pa.null()}
_DECIMAL = re.compile(r"decimal128\((\d+), (-?\d+)\)")


def canonical(held: pa.DataType) -> pa.DataType | None:
    """The canonical form of a type, or None when operators do not hold it."""
    if pa.types.is_large_string(held):
        return pa.string()
    if pa.types.is_large_binary(held):
        return pa.binary()
    if pa.types.is_timestamp(held) and held.unit == "us" and held.tz is not None:
        return pa.timestamp("us", "UTC")
    if held in _HELD or pa.types.is_decimal128(held):
        return held
    return None


def type_name(held: pa.DataType) -> str:
    """The name of a canonical type in JSON; ``any`` for a column of which only nulls matter."""
    return "any" if pa.types.is_null(held) else str(held)


def type_of_name(name: str) -> pa.DataType:
    """The inverse of `type_name`; raises KeyError."""
    decimal = _DECIMAL.fullmatch(name)
    if decimal:
        return pa.decimal128(int(decimal[1]), int(decimal[2]))
    return _BY_NAME[name]


def is_bytes(held: pa.DataType) -> bool:
    """Text or bytes: the types without a fixed width."""
    return (
        pa.types.is_string(held)
        or pa.types.is_binary(held)
        or pa.types.is_large_string(held)
        or pa.types.is_large_binary(held)
    )


def is_counted_in_integers(held: pa.DataType) -> bool:
    """Dates, times and durations: integers with a unit."""
    return pa.types.is_temporal(held)


def solid(column: Column) -> Array:
    """One array of a column. Text and bytes come as large_binary, unchecked, so that more than
    2 GiB of them fit in one array."""
    if is_bytes(column.type):
        plain = pa.binary() if pa.types.is_string(column.type) else pa.large_binary()
        column = column.cast(plain).cast(pa.large_binary())
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def nulls_of(array: Array) -> np.ndarray | None:
    """True where null; None when nothing is."""
    return array.is_null().to_numpy(zero_copy_only=False) if array.null_count else None


def values_of(array: Array) -> np.ndarray:
    """The values of a fixed-width array, zero under nulls: integers for booleans, dates and times,
    rows of 16 little-endian bytes for decimals."""
    held = array.type
    if pa.types.is_decimal128(held):
        return _decimal_bytes(array)
    if pa.types.is_boolean(held):
        array = array.cast(pa.uint8())
    elif is_counted_in_integers(held):
        array = array.view(pa.int32() if held.bit_width == 32 else pa.int64())
    if array.null_count:
        array = array.fill_null(0)
    return array.to_numpy(zero_copy_only=False)


def _decimal_bytes(array: Array) -> np.ndarray:
    if not len(array):
        return np.zeros((0, 16), np.uint8)
    rows = np.frombuffer(array.buffers()[1], np.uint8).reshape(-1, 16)
    rows = rows[array.offset : array.offset + len(array)]
    nulls = nulls_of(array)
    return rows if nulls is None else np.where(nulls[:, None], np.uint8(0), rows)


def array_of(values: np.ndarray, nulls: np.ndarray | None, held: pa.DataType) -> Array:
    """The inverse of `values_of` and `nulls_of`."""
    rows = len(values)
    if pa.types.is_boolean(held):
        values = np.packbits(values, bitorder="little")
    validity = None
    if nulls is not None and nulls.any():
        validity = pa.py_buffer(np.packbits(~nulls, bitorder="little"))
    data = pa.py_buffer(np.ascontiguousarray(values))
    return pa.Array.from_buffers(held, rows, [validity, data])


def normalised(array: Array) -> Array:
    """Floats with one zero and one NaN, as Spark groups and hashes them; others unchanged."""
    if not pa.types.is_floating(array.type):
        return array
    values = _with_one_nan(values_of(array))
    values += 0.0  # −0.0 + 0.0 is 0.0
    return array_of(values, nulls_of(array), array.type)


def _with_one_nan(floats: np.ndarray) -> np.ndarray:
    """A copy in which any NaN is the quiet one: arithmetic with a signalling NaN is an error."""
    return np.where(np.isnan(floats), floats.dtype.type(np.nan), floats)


def ordered_of(floats: np.ndarray) -> np.ndarray:
    """Signed integers of the floats' width in the floats' order; any NaN is the largest."""
    return _flip_below_zero(_with_one_nan(floats).view(f"i{floats.itemsize}"))


def floats_of(ordered: np.ndarray) -> np.ndarray:
    """The inverse of `ordered_of`."""
    return _flip_below_zero(ordered).view(f"f{ordered.itemsize}")


def _flip_below_zero(bits: np.ndarray) -> np.ndarray:
    """Turn the order of negative floats' bit patterns round; its own inverse."""
    width = 8 * bits.itemsize - 1
    return bits ^ ((bits >> width) & bits.dtype.type(2**width - 1))


def comparable_type(held: pa.DataType) -> pa.DataType:
    """The type of `to_comparable` of a canonical type."""
    if is_bytes(held):
        return pa.large_binary()
    if pa.types.is_boolean(held):
        return pa.uint8()
    if pa.types.is_floating(held) or is_counted_in_integers(held):
        return pa.int32() if held.bit_width == 32 else pa.int64()
    return held


def to_comparable(column: Column) -> Array:
    """A column in comparable form (see the module)."""
    array = solid(column)
    held = comparable_type(array.type)
    if held == array.type or is_bytes(held):
        return array
    values = values_of(array)
    if pa.types.is_floating(array.type):
        values = ordered_of(values)
    return array_of(values, nulls_of(array), held)


def from_comparable(array: Array, held: pa.DataType) -> Column:
    """The inverse of `to_comparable`; text and bytes come in chunks of less than 2 GiB."""
    if is_bytes(held):
        return text_of(array, held)
    if held == array.type:
        return array
    values = values_of(array)
    if pa.types.is_floating(held):
        values = floats_of(values)
    return array_of(values, nulls_of(array), held)


def text_of(column: Column, held: pa.DataType, *, chunk_bytes_max: int = 2**31 - 1) -> Column:
    """large_binary as text or bytes with 32-bit offsets, in chunks that such offsets can reach and
    without a look at the bytes; columns of other types as they are.

    Not Arrow's cast: it compares the absolute offset of a slice's end with the limit.
    """
    if not is_bytes(held):
        return column
    array = solid(column)
    offsets, data = offsets_and_data(array)
    chunks = []
    start = 0
    while start < len(array):
        end = int(np.searchsorted(offsets, offsets[start] + chunk_bytes_max, side="right")) - 1
        lo, hi = int(offsets[start]), int(offsets[end])
        nulls = nulls_of(array.slice(start, end - start))
        validity = None
        if nulls is not None:
            validity = pa.py_buffer(np.packbits(~nulls, bitorder="little"))
        narrow = pa.py_buffer((offsets[start : end + 1] - lo).astype(np.int32))
        chunk = [validity, narrow, data.slice(lo, hi - lo)]
        chunks.append(pa.Array.from_buffers(held, end - start, chunk))
        start = end
    return pa.chunked_array(chunks, held)


def offsets_and_data(array: Array) -> tuple[np.ndarray, pa.Buffer]:
    """The int64 offsets (one more than rows) and the bytes of a large_binary array."""
    _, offsets, data = array.buffers()
    rows = len(array)
    if offsets is None or data is None:
        return np.zeros(rows + 1, np.int64), pa.py_buffer(b"")
    return np.frombuffer(offsets, np.int64)[array.offset : array.offset + rows + 1], data
