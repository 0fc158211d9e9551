"""State values: rows come back, also the absent ones, and a foreign format is named."""

from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rhinoctl.errors import CorruptFile, NeedsRepair
from rhinoctl.operators.values import FORMAT, ValueCodec

FIELDS: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.uint8(): st.integers(0, 1),
    pa.int8(): st.integers(-128, 127),
    pa.int32(): st.integers(-(2**31), 2**31 - 1),
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.float64(): st.floats(allow_nan=False),
    pa.decimal128(38, 2): st.decimals(-(10**20), 10**20, places=2),
    pa.large_binary(): st.binary(max_size=9),
}


@st.composite
def value_tables(draw: st.DrawFn) -> tuple[list[pa.DataType], list[tuple[Any, ...] | None]]:
    types = draw(st.lists(st.sampled_from(list(FIELDS)), min_size=1, max_size=10))
    row = st.tuples(*(st.none() | FIELDS[held] for held in types))
    return types, draw(st.lists(st.none() | row, max_size=9))


@given(value_tables())
@settings(deadline=None)
def test_values_come_back(table: tuple[list[pa.DataType], list[tuple[Any, ...] | None]]) -> None:
    types, rows = table
    codec = ValueCodec(types)
    present = [row for row in rows if row is not None]
    columns = [pa.array([row[at] for row in present], held) for at, held in enumerate(types)]
    encoded = iter(codec.encode(columns))
    stored = [None if row is None else next(encoded) for row in rows]
    decoded = codec.decode(stored)
    for column, held in zip(decoded, types, strict=True):
        column.validate(full=True)
        assert column.type == held
    nothing = (None,) * len(types)
    again = list(zip(*(column.to_pylist() for column in decoded), strict=True))
    assert again == [nothing if row is None else row for row in rows]


def test_layout() -> None:
    codec = ValueCodec([pa.int64(), pa.large_binary(), pa.float64()])
    columns = [
        pa.array([1, None]),
        pa.array([b"xyz", b""], pa.large_binary()),
        pa.array([None, 1.0]),
    ]
    assert codec.encode(columns) == [
        bytes.fromhex("01 04 0100000000000000 03000000 0000000000000000") + b"xyz",
        bytes.fromhex("01 01 0000000000000000 00000000 000000000000f03f"),
    ]


def test_a_format_of_another_release_is_named() -> None:
    codec = ValueCodec([pa.int64()])
    later = bytes([FORMAT + 1]) + codec.encode([pa.array([1])])[0][1:]
    with pytest.raises(NeedsRepair, match=f"format {FORMAT + 1}"):
        codec.decode([later, b"\2"])


@pytest.mark.parametrize(
    "types", [[pa.int64()], [pa.int64(), pa.large_binary()], [pa.decimal128(5, 1)]]
)
@pytest.mark.parametrize("change", [b"longer", b"", None])
def test_a_value_of_the_wrong_length_is_corrupt(
    types: list[pa.DataType], change: bytes | None
) -> None:
    codec = ValueCodec(types)
    row = [pa.array([Decimal(1) if pa.types.is_decimal(t) else None], t) for t in types]
    sound = codec.encode(row)[0]
    wrong = sound[:-1] if change is None else sound + change if change else b""
    with pytest.raises(CorruptFile):
        codec.decode([sound, wrong])
