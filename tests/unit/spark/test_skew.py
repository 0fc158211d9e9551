"""Zipf's law in whole numbers, against exact fractions."""

from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rhinoctl.spark.skew import EXACT, WEIGHT_BITS, hot_buckets, zipf_buckets, zipf_weight


@given(st.integers(1, 10**9), st.integers(1, 500))
def test_a_weight_is_the_law_rounded_down(place: int, exponent: int) -> None:
    """w <= 2^48 / place^(e/100) < w + 1, both sides to the power of 100."""
    weight = zipf_weight(place, exponent)
    law = Fraction(2 ** (100 * WEIGHT_BITS), place**exponent)
    assert weight**100 <= law < (weight + 1) ** 100


@pytest.mark.parametrize("keys", [1, 2, EXACT, EXACT + 1, 10_000, 999_999_000])
def test_buckets_cut_all_ranks_once(keys: int) -> None:
    buckets = zipf_buckets(keys, 100)
    assert buckets.low[0] == 0
    assert all(
        low + width == after
        for low, width, after in zip(buckets.low, buckets.width, buckets.low[1:], strict=False)
    )
    assert buckets.low[-1] + buckets.width[-1] == keys
    assert (buckets.width[:EXACT] == 1).all()
    assert len(buckets.low) < 1_300
    assert all(a <= b for a, b in pairwise(buckets.bounds.tolist()))


def test_a_word_falls_where_the_bounds_say() -> None:
    buckets = hot_buckets(10, 2, 25)
    quarter = 2**62
    words = np.array([0, quarter - 1, quarter, 2**64 - 1], np.uint64)
    assert buckets.find(words).tolist() == [0, 0, 1, 1]
