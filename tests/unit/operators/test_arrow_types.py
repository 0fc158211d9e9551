"""Comparable forms keep Spark's order; text goes back to 32-bit offsets in chunks."""

import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rhinoctl.operators.arrow_types import (
    canonical,
    comparable_type,
    from_comparable,
    normalised,
    text_of,
    to_comparable,
    type_name,
    type_of_name,
)


@given(st.lists(st.floats(width=32)))
@settings(deadline=None)
@pytest.mark.parametrize("held", [pa.float32(), pa.float64()])
def test_integers_of_floats_sort_as_spark_sorts(held: pa.DataType, floats: list[float]) -> None:
    ordered = to_comparable(pa.array(floats, held)).to_pylist()
    pairs = sorted(zip(ordered, floats, strict=True), key=lambda pair: pair[0])
    places = [(math.isnan(value), 0.0 if math.isnan(value) else value) for _, value in pairs]
    assert places == sorted(places)


def test_zeros_are_apart_for_extremes_and_one_for_keys() -> None:
    zeros = pa.array([-0.0, 0.0])
    least, greatest = to_comparable(zeros).to_pylist()
    assert least < greatest
    assert np.signbit(normalised(zeros).to_numpy()).tolist() == [False, False]


def test_every_nan_is_one() -> None:
    quiet = np.array([0x7FF8000000000000, 0xFFF8000000000001, 0x7FF0000000000001], np.uint64)
    nans = pa.array(quiet.view(np.float64))
    assert len(set(to_comparable(nans).to_pylist())) == 1
    assert len(set(normalised(nans).to_numpy().view(np.uint64).tolist())) == 1


@pytest.mark.parametrize(
    ("held", "values"),
    [
        (pa.bool_(), [True, None, False]),
        (pa.int8(), [-1, None, 3]),
        (pa.float32(), [-1.5, None, 2.5]),
        (pa.float64(), [-1.5, None, 2.5]),
        (pa.date32(), [-1, None, 3]),
        (pa.timestamp("us", "UTC"), [-1, None, 3]),
        (pa.time64("ns"), [1, None, 3]),
        (pa.duration("us"), [-1, None, 3]),
        (pa.string(), ["é", None, ""]),
        (pa.binary(), [b"\xff", None, b""]),
        (pa.decimal128(4, 1), [1, None, -1]),
    ],
)
def test_comparable_and_back(held: pa.DataType, values: list[Any]) -> None:
    array = pa.array(values, held)
    for part in (array, array.slice(1), array.slice(0, 0)):
        comparable = to_comparable(part)
        assert comparable.type == comparable_type(held)
        back = from_comparable(comparable, held)
        back.validate(full=True)
        assert back.to_pylist() == part.to_pylist()
        assert back.type == held


def test_text_goes_back_in_chunks_that_offsets_can_reach() -> None:
    words = pa.array([None, "aaaa", "", "bbb", "cccccc", None], pa.large_string())
    binary = words.cast(pa.large_binary())
    for start in range(len(words)):
        chunked = text_of(binary.slice(start), pa.string(), chunk_bytes_max=7)
        chunked.validate(full=True)
        assert chunked.to_pylist() == words.slice(start).to_pylist()
        assert all(chunk.type == pa.string() for chunk in chunked.chunks)
    assert text_of(binary, pa.string(), chunk_bytes_max=7).num_chunks == 2


def test_bytes_that_are_no_utf8_pass() -> None:
    """Spark's strings may hold them; Arrow's casts would refuse."""
    odd = pa.Array.from_buffers(
        pa.string(), 1, [None, pa.py_buffer(np.array([0, 1], np.int32)), pa.py_buffer(b"\xff")]
    )
    back = from_comparable(to_comparable(odd), pa.string())
    assert back.chunk(0).buffers()[2].to_pybytes() == b"\xff"


@pytest.mark.parametrize(
    ("given_type", "held"),
    [
        (pa.large_string(), pa.string()),
        (pa.large_binary(), pa.binary()),
        (pa.timestamp("us", "Europe/Berlin"), pa.timestamp("us", "UTC")),
        (pa.timestamp("us"), pa.timestamp("us")),
        (pa.decimal128(10, -2), pa.decimal128(10, -2)),
        (pa.map_(pa.string(), pa.int64()), None),
        (pa.struct([("a", pa.int64())]), None),
        (pa.list_(pa.int64()), None),
        (pa.null(), None),
        (pa.month_day_nano_interval(), None),
        (pa.timestamp("ns"), None),
    ],
)
def test_canonical_types_have_names(given_type: pa.DataType, held: pa.DataType | None) -> None:
    assert canonical(given_type) == held
    if held is not None:
        assert type_of_name(type_name(held)) == held
