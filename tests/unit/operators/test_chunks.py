"""Chunks of rows: what is packed is unpacked, and what is no chunk is refused."""

from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rhinoctl.errors import CorruptFile, NeedsRepair
from rhinoctl.operators.chunks import ChunkCodec

TYPES = [pa.int64(), pa.large_binary(), pa.decimal128(9, 2), pa.large_binary()]
ROW = st.tuples(
    st.none() | st.integers(-(2**63), 2**63 - 1),
    st.none() | st.binary(max_size=5),
    st.none() | st.decimals(-9999, 9999, places=2),
    st.none() | st.binary(max_size=300),
)
Chunks = list[list[tuple[Any, ...]]]


def packed(chunks: Chunks) -> list[bytes]:
    rows = [row for chunk in chunks for row in chunk]
    columns = [pa.array([row[at] for row in rows], held) for at, held in enumerate(TYPES)]
    return ChunkCodec(TYPES).pack(columns, np.array(list(map(len, chunks)), np.int64))


@given(st.lists(st.lists(ROW, min_size=1, max_size=4), max_size=5))
@settings(deadline=None)
def test_what_is_packed_is_unpacked(chunks: Chunks) -> None:
    values = packed(chunks)
    assert len(values) == len(chunks)
    counts, columns = ChunkCodec(TYPES).unpack(values)
    assert counts.tolist() == list(map(len, chunks))
    rows = list(zip(*(column.to_pylist() for column in columns), strict=True))
    assert rows == [row for chunk in chunks for row in chunk]
    one_by_one = [packed([chunk])[0] for chunk in chunks]
    assert one_by_one == values


@given(st.data())
@settings(deadline=None)
def test_a_chunk_that_is_cut_or_longer_is_refused(data: st.DataObject) -> None:
    row = (1, b"text", Decimal("1.00"), None)
    (whole,) = packed([[row, row]])
    wrong = whole[: data.draw(st.integers(0, len(whole) - 1))]
    for value in (wrong, whole + b"\0"):
        with pytest.raises(CorruptFile):
            ChunkCodec(TYPES).unpack([whole, value])


def test_a_chunk_of_a_later_format_is_refused() -> None:
    (whole,) = packed([[(1, None, None, None)]])
    with pytest.raises(NeedsRepair, match="format 9"):
        ChunkCodec(TYPES).unpack([b"\x09" + whole[1:]])


def test_a_chunk_without_rows_is_refused() -> None:
    with pytest.raises(CorruptFile):
        ChunkCodec(TYPES).unpack([b"\x01\0\0\0\0"])
