"""A worker's disks: what is told of each, and what may be asked of one (docs/operations/disks.md).

The first disk has everything but checkpoints and live databases: it cannot be retired, and a worker
does not live without it.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from rhinoctl.ids import DiskId, WorkerId

FIRST = DiskId("d1")
"""The disk that a worker starts with."""

NO_DISK = DiskId("")
"""Stands for all, or for one that is not there yet."""


class DiskState(Enum):
    """Whether vnodes may be on a disk. One that is retired leaves by itself once it is empty."""

    IN_USE = "in use"
    RETIRING = "retiring"
    EMPTY = "empty"
    LOST = "lost"


class DiskAction(Enum):
    """What a person may ask of a worker's disks."""

    ADD = "add"
    RETIRE = "retire"
    GIVE_UP = "give-up"
    SCRUB = "scrub"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScrubView:
    """A scrub that was asked for: how far it is, and what was not as it should be, a line each.
    `number` is 0 if none was asked for since the agent started."""

    number: int = 0
    done_bytes: int = 0
    total_bytes: int = 0
    files: int = 0
    over: bool = False
    bad: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskReport:
    """One disk as its agent sees it. On it are `vnodes`, whose newest checkpoints have `bytes`;
    `shares` names the first disk on the same file system, which has the same room. `fault` says why
    it is lost, why it cannot be written to, or why what is on it does not leave."""

    disk: DiskId
    path: str
    state: DiskState
    free_bytes: int
    vnodes: int
    bytes: int
    shares: DiskId
    fault: str = ""
    scrub: ScrubView = ScrubView()

    @property
    def counts(self) -> bool:
        """Whether its room is room for vnodes, and no other disk's already."""
        return self.state is DiskState.IN_USE and self.shares == self.disk

    @property
    def refuses(self) -> bool:
        """Whether it is in use and cannot be written to."""
        return self.state is DiskState.IN_USE and bool(self.fault)


def no_log(disks: Iterable[DiskReport]) -> bool:
    """Whether a worker cannot write its log, which is on the first of its disks."""
    return any(disk.disk == FIRST and disk.refuses for disk in disks)


def cost_of_refusal(disk: DiskReport) -> str:
    """What it costs while a disk cannot be written to."""
    if disk.disk == FIRST:
        return "the log is on it: the worker takes part in no batch, as if it were lost"
    return "batches and copies of its vnodes wait; if it lasts, it counts as lost"


def remedy_for_refusal(worker: WorkerId, disk: DiskReport) -> str:
    """What to do about a disk that cannot be written to."""
    writable = "see the kernel's log; once it can be written to, all goes on by itself"
    if disk.disk == FIRST:
        return f"{writable}; unless a failover comes by itself, `rhinoctl failover {worker}`"
    return writable


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskView:
    """A disk of a worker as the controller last saw it; `live` if that was just now."""

    worker: WorkerId
    live: bool
    disk: DiskReport


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskList:
    """Disks, by worker and name."""

    disks: tuple[DiskView, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskRequest:
    """Ask something of a worker's disks: `path` is of the directory to add, `disk` empty for all to
    be scrubbed."""

    action: DiskAction
    worker: WorkerId
    path: str = ""
    disk: DiskId = NO_DISK
