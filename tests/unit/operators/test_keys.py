"""Store keys: they come back, they sort as Spark sorts, and none begins another."""

import math
from datetime import date, timedelta
from decimal import Decimal
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rhinoctl.errors import CorruptFile
from rhinoctl.ids import KEY_GROUPS
from rhinoctl.operators.keys import RESERVED, KeyCodec

KEYS: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.bool_(): st.booleans(),
    pa.int8(): st.integers(-(2**7), 2**7 - 1),
    pa.int16(): st.integers(-(2**15), 2**15 - 1),
    pa.int32(): st.integers(-(2**31), 2**31 - 1),
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.float32(): st.floats(width=32),
    pa.float64(): st.floats(),
    pa.string(): st.text("a\0\xffé\u0301\uffff\U0001f600", max_size=6),
    pa.binary(): st.binary(max_size=6) | st.lists(st.sampled_from([0, 1, 255])).map(bytes),
    pa.date32(): st.dates(date(1, 1, 1), date(9999, 12, 31)),
    pa.timestamp("us"): st.datetimes(),
    pa.timestamp("us", "UTC"): st.integers(-(2**63), 2**63 - 1),
    pa.duration("us"): st.timedeltas(timedelta(-10_000), timedelta(10_000)),
    pa.time64("ns"): st.times(),
    pa.decimal128(12, 2): st.decimals(-(10**9), 10**9, places=2),
    pa.decimal128(38, 0): st.integers(-(10**38) + 1, 10**38 - 1).map(Decimal),
}


@st.composite
def key_tables(draw: st.DrawFn) -> tuple[np.ndarray, list[pa.Array]]:
    types = draw(st.lists(st.sampled_from(list(KEYS)), min_size=1, max_size=3))
    row = st.tuples(*(st.none() | KEYS[held] for held in types))
    rows = draw(st.lists(row, max_size=12))
    groups = draw(
        st.lists(st.integers(0, KEY_GROUPS - 1), min_size=len(rows), max_size=len(rows))
        | st.just([7] * len(rows))
    )
    columns = [pa.array([row[at] for row in rows], held) for at, held in enumerate(types)]
    return np.array(groups, np.int32), columns


def rank(value: Any, held: pa.DataType) -> tuple[Any, ...]:
    """Where Spark's ascending order puts a value: nulls first, NaN last, −0.0 as 0.0."""
    if value is None:
        return (0,)
    if pa.types.is_floating(held):
        return (1, math.isnan(value), 0.0 if math.isnan(value) else value)
    if pa.types.is_string(held):
        return (1, value.encode())
    if pa.types.is_temporal(held):
        return (
            1,
            pa.scalar(value, held).cast(pa.int32() if held == pa.date32() else pa.int64()).as_py(),
        )
    return (1, value)


def ranks(groups: np.ndarray, columns: list[pa.Array]) -> list[tuple[Any, ...]]:
    plain = [
        column.cast(pa.int64()) if column.type == pa.timestamp("us", "UTC") else column
        for column in columns
    ]
    rows = zip(*(column.to_pylist() for column in plain), strict=True)
    types = [column.type for column in plain]
    return [
        (group, *map(rank, row, types)) for group, row in zip(groups.tolist(), rows, strict=True)
    ]


@given(key_tables())
@settings(deadline=None)
def test_keys_come_back(table: tuple[np.ndarray, list[pa.Array]]) -> None:
    groups, columns = table
    codec = KeyCodec([column.type for column in columns])
    decoded_groups, decoded, _ = codec.decode(codec.encode(groups, columns))
    decoded = [
        one.cast(pa.binary()).view(other.type) if one.type == pa.large_binary() else one
        for one, other in zip(decoded, columns, strict=True)
    ]
    for column in decoded:
        column.validate(full=True)
    assert ranks(decoded_groups, decoded) == ranks(groups, columns)


@given(key_tables())
@settings(max_examples=200, deadline=None)
def test_keys_sort_as_spark_sorts_and_none_begins_another(
    table: tuple[np.ndarray, list[pa.Array]],
) -> None:
    groups, columns = table
    keys = KeyCodec([column.type for column in columns]).encode(groups, columns)
    places = ranks(groups, columns)
    pairs = sorted(zip(keys, places, strict=True))
    assert [place for _, place in pairs] == sorted(places)
    for (first, here), (second, there) in pairwise(pairs):
        assert (first == second) == (here == there)
        assert first == second or not second.startswith(first)


def test_no_key_is_in_the_range_of_the_runtime() -> None:
    largest = KeyCodec([pa.binary()]).encode(np.array([KEY_GROUPS - 1]), [pa.array([b"\xff" * 9])])
    assert largest[0] < RESERVED
    for outside in (-1, KEY_GROUPS, 0xFFFF):
        with pytest.raises(ValueError, match="key groups"):
            KeyCodec([pa.int64()]).encode(np.array([outside]), [pa.array([1])])


def test_layout() -> None:
    """The bytes are a format on disk: a release that changes them cannot read the state."""
    group = np.array([0x0102, 0x0102], np.int32)
    longs = pa.array([-2, None], pa.int64())
    assert KeyCodec([pa.int64()]).encode(group, [longs]) == [
        bytes.fromhex("0102 01 7ffffffffffffffe"),
        bytes.fromhex("0102 00 0000000000000000"),
    ]
    words = pa.array(["a\0b", None])
    assert KeyCodec([pa.string(), pa.bool_()]).encode(group, [words, pa.array([True, False])]) == [
        bytes.fromhex("0102 01 6100ff62 0000 01 01"),
        bytes.fromhex("0102 00 0000 01 00"),
    ]


def test_slices_of_arrays_encode_as_their_rows() -> None:
    whole = [
        pa.array(["x", "", "\0", None, "é"]),
        pa.array(
            [Decimal("1.5"), None, Decimal("-2.5"), Decimal(0), Decimal(7)], pa.decimal128(9, 1)
        ),
        pa.array([True, False, None, True, True]),
        pa.array([1.5, -0.0, math.nan, None, 2.5]),
    ]
    codec = KeyCodec([column.type for column in whole])
    groups = np.arange(5, dtype=np.int32)
    every = codec.encode(groups, whole)
    assert codec.encode(groups[1:4], [column.slice(1, 3) for column in whole]) == every[1:4]


@pytest.mark.parametrize("types", [[pa.int32()], [pa.string()], [pa.string(), pa.int32()]])
@pytest.mark.parametrize(
    "garbage", [b"", b"\0", b"\0\1\1abc", b"\0\1\1" + b"a" * 40, b"\0\1\7" + b"\0" * 4]
)
def test_foreign_bytes_are_named(types: list[pa.DataType], garbage: bytes) -> None:
    codec = KeyCodec(types)
    sound = codec.encode(np.array([1]), [pa.array([None], held) for held in types])
    codec.decode(sound)
    with pytest.raises(CorruptFile):
        codec.decode([*sound, garbage])
