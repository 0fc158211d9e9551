"""Which file a scrub reads next (docs/protocol/verification.md). Pure: times are arguments.

Invariants:

1. A file that was not read for a period is due; of those that are, the one that was not read for
   longest is first.
2. Nothing has to be remembered over a restart. Of a file of which it is not known when it was read
   last, it is assumed that it was at its time of the period, which follows from its name: so no
   start makes everything due at once, and none puts a file off for more than a period.
"""

from collections.abc import Mapping
from hashlib import blake2b
from typing import TypeVar

K = TypeVar("K")


def assumed(name: str, now: float, period_s: float) -> float:
    """When a file was read last, for all that is known: within the period before `now`."""
    drawn = int.from_bytes(blake2b(name.encode(), digest_size=8).digest()) / 2**64
    return now - (now - drawn * period_s) % period_s


def due(read_at: Mapping[K, float], now: float, period_s: float) -> list[K]:
    """The files to be read, the first of them first. A time to come, of a clock that was put back,
    counts as now."""
    ages = {key: now - min(at, now) for key, at in read_at.items()}
    return sorted((key for key, age in ages.items() if age >= period_s), key=lambda k: -ages[k])
