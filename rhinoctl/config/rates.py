"""How fast the networks of workers are: measured once, kept where the cluster is deployed from, and
taken for the placement of copies. docs/operations/check.md says it for people.

Invariants:

1. A deployment takes what is kept, and measures nothing: to deploy twice changes nothing.
2. What the inventory says of a worker comes before what was measured.
3. A rate is of a worker at an address: at another one, it is not known.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from rhinoctl.config.inventory import Inventory, Worker

ALIKE: Final = 2.0
"""Rates that are less than this factor apart are one: a measurement of half a second, in a ring in
which each is as fast as its neighbours let it be, tells networks of other kinds apart, and no more.
"""

DAY_S: Final = 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """Bytes a second of a worker, at the address by which the others reach it."""

    address: str
    bytes_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """A measurement, in seconds of the epoch, of the workers that it could be made of, by name."""

    measured_at: float
    workers: Mapping[str, Rate]

    def days_old(self, now: float) -> int:
        """How many days ago it was made."""
        return max(0, round((now - self.measured_at) / DAY_S))


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """A worker whose copies are placed for other bytes a second than it has now. None: for as many
    as the fastest has, since none are known of it. What is kept is so many `days` old."""

    worker: str
    kept: float | None
    days: int
    now: float


def bandwidths(
    inventory: Inventory, rates: Rates | None, stay: Collection[str] = ()
) -> dict[str, float]:
    """Bytes a second by worker, for the placement of copies; those of which nothing is known are
    left out. Of what was measured, all that is about as fast as the fastest is as fast. Workers
    that `stay` where they are have their rates, whatever address the inventory says."""
    measured = _measured(inventory, rates, stay)
    fastest = max(measured.values(), default=0.0)
    found = {}
    for worker in inventory.workers:
        if worker.bandwidth_mb_s is not None:
            found[worker.id] = float(worker.bandwidth_mb_s << 20)
        elif worker.id in measured:
            rate = measured[worker.id]
            found[worker.id] = float(round(fastest if rate * ALIKE > fastest else rate))
    return found


def drifts(inventory: Inventory, kept: Rates | None, now: Rates) -> tuple[Drift, ...]:
    """The workers that `now` is about and for which it would make a difference, beside the fastest
    worker of each measurement: only that counts, and all are slower while jobs run."""
    days = 0 if kept is None else kept.days_old(now.measured_at)
    before, after = _shares(inventory, kept), _shares(inventory, now)
    old, new = _measured(inventory, kept), _measured(inventory, now)
    return tuple(
        Drift(worker=worker, kept=old.get(worker), days=days, now=new[worker])
        for worker, share in after.items()
        if not 1 / ALIKE < share / before.get(worker, 1.0) < ALIKE
    )


def whole(inventory: Inventory, rates: Rates) -> bool:
    """Whether a measurement is of all workers of which the inventory does not say a rate: one that
    is not cannot replace another, for rates of two days are not compared with each other."""
    known = _measured(inventory, rates)
    return all(worker.id in known for worker in _unsaid(inventory))


def ago(days: int) -> str:
    """When something was measured, for people."""
    return f"{days} day{'' if days == 1 else 's'} ago" if days else "today"


def _unsaid(inventory: Inventory) -> list[Worker]:
    return [worker for worker in inventory.workers if worker.bandwidth_mb_s is None]


def _measured(
    inventory: Inventory, rates: Rates | None, stay: Collection[str] = ()
) -> dict[str, float]:
    known = {} if rates is None else rates.workers
    return {
        worker.id: rate.bytes_s
        for worker in _unsaid(inventory)
        if (rate := known.get(worker.id)) is not None
        if (rate.address == worker.peer_address or worker.id in stay) and rate.bytes_s > 0
    }


def _shares(inventory: Inventory, rates: Rates | None) -> dict[str, float]:
    """Of the fastest worker's rate."""
    measured = _measured(inventory, rates)
    fastest = max(measured.values(), default=1.0)
    return {worker: rate / fastest for worker, rate in measured.items()}
