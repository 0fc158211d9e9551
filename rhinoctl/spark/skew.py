"""Skewed choices among keys, by whole numbers only: the same on every CPU.

A key is chosen by its *rank*, 0 for the one that is chosen most. Ranks come from random 64-bit
words, by comparing them with bounds that are made of Python's exact integers: no float, whose last
bit may differ between two machines, decides a key.

Zipf's law gives rank r the weight 1 / (r + 1) ** s. It holds exactly (to 2^-48) for the first
`EXACT` ranks; after them ranks are put into buckets that grow by `GROWTH`, and within a bucket all
have the weight of its middle, which is off by less than a percent for s = 1. So any number of keys
takes a table of a thousand entries.
"""

from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from itertools import pairwise
from math import gcd
from typing import Final

import numpy as np
from numpy.typing import NDArray

EXPONENT_MAX: Final = 500
"""In hundredths: with s = 5 the second key gets 3 % of what the first gets."""

EXPONENT_UNIT: Final = 100
"""An exponent is given in hundredths, as a whole number."""

EXACT: Final = 256
"""So many ranks have a weight of their own."""

GROWTH: Final = 64
"""A later bucket takes one 64th of all ranks before it."""

WEIGHT_BITS: Final = 48
WORD: Final = 2**64


class Skew(Enum):
    """How keys are drawn; also the value of the generator's option ``skew``."""

    UNIFORM = "uniform"
    ZIPF = "zipf"
    HOT = "hot"


@dataclass(frozen=True, slots=True)
class Buckets:
    """Ranks cut into contiguous buckets, in order.

    A random word w falls into the bucket whose number is how many `bounds` are <= w. Bucket i has
    the `width[i]` ranks from `low[i]` on, all alike.
    """

    bounds: NDArray[np.uint64]
    low: NDArray[np.int64]
    width: NDArray[np.int64]

    def find(self, words: NDArray[np.uint64]) -> NDArray[np.intp]:
        """The number of each word's bucket."""
        return np.searchsorted(self.bounds, words, side="right")


@lru_cache(maxsize=8)
def zipf_buckets(keys: int, exponent: int) -> Buckets:
    """The buckets of Zipf's law with s = exponent / 100 over so many keys; made once in a process.

    It takes half a second at most, whatever the numbers.
    """
    edges = [0]
    while edges[-1] < keys:
        ranks = 1 if edges[-1] < EXACT else edges[-1] // GROWTH
        edges.append(min(edges[-1] + ranks, keys))
    low, width, weights = [], [], []
    for start, end in pairwise(edges):
        low.append(start)
        width.append(end - start)
        weights.append((end - start) * zipf_weight((start + end + 1) // 2, exponent))
    return Buckets(_bounds(weights), np.array(low, np.int64), np.array(width, np.int64))


@lru_cache(maxsize=8)
def hot_buckets(keys: int, hot_keys: int, hot_percent: int) -> Buckets:
    """Two buckets: the first `hot_keys` ranks get `hot_percent` of all, the others the rest."""
    return Buckets(
        _bounds([hot_percent, 100 - hot_percent]),
        np.array([0, hot_keys], np.int64),
        np.array([hot_keys, keys - hot_keys], np.int64),
    )


def zipf_weight(place: int, exponent: int) -> int:
    """2^48 / place ** (exponent / 100), rounded down, exactly; place counts from 1.

    With exponent / 100 = p / q it is the largest w such that w^q * place^p <= 2^(48 q).
    """
    common = gcd(exponent, EXPONENT_UNIT)
    p, q = exponent // common, EXPONENT_UNIT // common
    limit = (1 << (WEIGHT_BITS * q)) // place**p
    weight = 0
    for bit in range(limit.bit_length() // q, -1, -1):
        more = weight | (1 << bit)
        if more**q <= limit:
            weight = more
    return weight


def _bounds(weights: list[int]) -> NDArray[np.uint64]:
    """Where each bucket but the last ends, of 2^64 words."""
    total, before, bounds = sum(weights), 0, []
    for weight in weights[:-1]:
        before += weight
        bounds.append(min(before * WORD // total, WORD - 1))
    return np.array(bounds, np.uint64)
