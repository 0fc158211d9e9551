"""Which disks of a worker are nearly full, what that costs, and what to do about each."""

from collections.abc import Iterator
from dataclasses import dataclass

from rhinoctl import limits
from rhinoctl.ids import DiskId, WorkerId
from rhinoctl.protocol.disks import FIRST, NO_DISK, DiskReport, DiskState
from rhinoctl.protocol.messages import WorkerReport


@dataclass(frozen=True, slots=True, kw_only=True)
class LowRoom:
    """A file system of a worker with little room left. `disk` is the one of its disks that matters
    most, empty if the worker has no other; `has_log` if that is the first; `vnodes` are on it, and
    `others_have_room` if they may go to another disk of the worker."""

    worker: WorkerId
    disk: DiskId
    path: str
    free_bytes: int
    has_log: bool
    vnodes: int
    others_have_room: bool

    @property
    def matters(self) -> bool:
        """Whether a batch waits for it once it is full; an empty one gets no vnode any more."""
        return self.has_log or self.vnodes > 0

    @property
    def full(self) -> bool:
        """Whether what it has to take has no room already."""
        return self.matters and self.free_bytes < limits.DISK_FULL_BYTES

    @property
    def name(self) -> str:
        """The disk, for people."""
        return f"disk {self.disk}" if self.disk else "the disk"


def low_rooms(report: WorkerReport) -> Iterator[LowRoom]:
    """Those of a worker, each file system once."""
    volumes: dict[DiskId, list[DiskReport]] = {}
    for disk in report.disks:
        if disk.state is DiskState.IN_USE:
            volumes.setdefault(disk.shares, []).append(disk)
    low = {name for name, (first, *_) in volumes.items() if _is_low(first.free_bytes)}
    if not volumes and _is_low(report.free_bytes):
        yield _only(report)
    for name in sorted(low):
        there = volumes[name]
        has_log = any(disk.disk == FIRST for disk in there)
        most = there[0] if has_log else max(there, key=lambda disk: disk.vnodes)
        yield LowRoom(
            worker=report.worker,
            disk=most.disk if len(report.disks) > 1 else NO_DISK,
            path=most.path,
            free_bytes=most.free_bytes,
            has_log=has_log,
            vnodes=sum(disk.vnodes for disk in there),
            others_have_room=len(volumes) > len(low),
        )


def _is_low(free_bytes: int) -> bool:
    return free_bytes < limits.ROOM_LOW_BYTES


def _only(report: WorkerReport) -> LowRoom:
    return LowRoom(
        worker=report.worker,
        disk=NO_DISK,
        path="",
        free_bytes=report.free_bytes,
        has_log=True,
        vnodes=0,
        others_have_room=False,
    )


def make_room(low: LowRoom) -> str:
    """What to do about it: a drain needs batches, and so some room; to retire a disk does not."""
    retire = f"`rhinoctl disk retire {low.worker}:{low.disk}`"
    if not low.matters:
        return (
            f"nothing needs it: take it off the worker, {retire}, or make room on its file system"
        )
    if not low.has_log and low.others_have_room:
        return (
            "make room on its file system, or have all that is on it moved to the worker's other"
            f" disks: {retire}; batches go on by themselves"
        )
    if low.free_bytes < limits.DISK_FULL_BYTES:
        return (
            "make room on its file system: batches go on by themselves; if it cannot be made, let"
            f" copies take over: `rhinoctl failover {low.worker}`"
        )
    return (
        f"make room on its file system, or empty it: `rhinoctl drain {low.worker}`; it goes on by"
        " itself"
    )


def give_up_lost(worker: WorkerId, disk: DiskId) -> str:
    """What to do about a disk that is lost."""
    return (
        "bring it back, then start the agent again; if it does not come back, give it up, by which"
        f" what only it has is gone: `rhinoctl disk retire {worker}:{disk} --lost`"
    )
