"""Chunks: several rows of fixed column types as one value.

::

    chunk := format:u1 count:u4 end:u4 × count, rows      little-endian; count > 0

`end` is where a row ends, counted from the first row's start; a row is a value of `ValueCodec`.
Chunks are packed and unpacked many at once: the cost is a few vector operations for all of them,
and one bytes object a chunk, however many rows there are.
"""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from rhinoctl.errors import CorruptFile, NeedsRepair
from rhinoctl.operators.arrow_types import offsets_and_data
from rhinoctl.operators.byte_rows import Rows, joined
from rhinoctl.operators.values import ValueCodec

FORMAT = 1
_HEAD = np.dtype([("format", "u1"), ("count", "<u4")])
_END = np.dtype("<u4")


class ChunkCodec:
    """Packs and unpacks rows of fixed column types, those of `ValueCodec`."""

    def __init__(self, types: Sequence[pa.DataType]) -> None:
        self._rows = ValueCodec(types)

    def pack(self, columns: Sequence[pa.Array], counts: np.ndarray) -> list[bytes]:
        """The first `counts[0]` rows as one chunk, the next `counts[1]` as another, and so on."""
        offsets, data = offsets_and_data(self._rows.encode_rows(columns))
        edges = np.append(0, np.cumsum(counts))
        ends = offsets[1:] - np.repeat(offsets[edges[:-1]], counts)
        if len(ends) and ends.max() >= 2**32:
            raise ValueError("rows of one key in one batch have more than 4 GiB")
        heads = np.zeros(len(counts), _HEAD)
        heads["format"] = FORMAT
        heads["count"] = counts
        packed_ends = _binary(edges * _END.itemsize, pa.py_buffer(ends.astype(_END)))
        return joined([heads, packed_ends, _binary(offsets[edges], data)])

    def nothing(self) -> list[pa.Array]:
        """The columns of no rows."""
        return [pa.array([], held) for held in self._rows.types]

    def unpack(self, chunks: Sequence[bytes]) -> tuple[np.ndarray, list[pa.Array]]:
        """The number of rows of each chunk, and the rows of all of them in order.

        Raises NeedsRepair for an unknown format, CorruptFile for bytes that `pack` cannot have
        made.
        """
        read = Rows(pa.array(chunks, pa.large_binary()))
        _check(read.holds(_HEAD.itemsize))
        heads = read.records(_HEAD)
        _check_format(heads["format"])
        counts = heads["count"].astype(np.int64)
        ends_width = counts * _END.itemsize
        rows_width = read.widths - _HEAD.itemsize - ends_width
        _check(bool((counts > 0).all() and (rows_width > 0).all()))
        ends_part, rows_part = read.skip(ends_width), read.skip(rows_width)
        every = np.arange(len(chunks))
        ends_at, ends = offsets_and_data(read.part(ends_part, rows=every, nulls=None))
        starts, data = offsets_and_data(read.part(rows_part, rows=every, nulls=None))
        ends = np.frombuffer(ends, np.uint8)[ends_at[0] : ends_at[-1]].view(_END)
        offsets = np.append(starts[:1], np.repeat(starts[:-1], counts) + ends)
        _check(bool((np.diff(offsets) > 0).all()))
        _check(bool((offsets[np.cumsum(counts)] == starts[1:]).all()))
        return counts, self._rows.decode_rows(_binary(offsets, data))


def _binary(offsets: np.ndarray, data: pa.Buffer) -> pa.Array:
    """A large_binary array over `data`."""
    buffers = [None, pa.py_buffer(np.ascontiguousarray(offsets, np.int64)), data]
    return pa.Array.from_buffers(pa.large_binary(), len(offsets) - 1, buffers)


def _check_format(formats: np.ndarray) -> None:
    unknown = formats[formats != FORMAT]
    if len(unknown):
        raise NeedsRepair(
            f"chunks of rows were written in format {unknown[0]}, this release reads {FORMAT}",
            remedy="install the release that wrote them on this worker",
        )


def _check(sound: bool) -> None:
    if not sound:
        raise CorruptFile(
            "a chunk of rows in the state is not one of this operator's",
            remedy="rhinoctl verify names the copies that are whole; the vnode is rebuilt from one",
        )
