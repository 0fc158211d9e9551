"""Workers' disks by hand: listed, added, retired, read through (docs/operations/disks.md)."""

import os
import time
from collections.abc import Callable, Iterable

from rhinoctl.errors import (
    DeadlineExceeded,
    Degraded,
    RhinoError,
    UnknownWorker,
    UsageError,
    WorkerUnreachable,
)
from rhinoctl.ids import DiskId, WorkerId
from rhinoctl.ops.cluster import connect
from rhinoctl.ops.looks import looks
from rhinoctl.protocol.disks import (
    NO_DISK,
    DiskAction,
    DiskList,
    DiskReport,
    DiskRequest,
    DiskState,
    DiskView,
)
from rhinoctl.protocol.starting import start_again

LOOK_S = 0.5
"""Between two looks at disks that are being emptied or read."""

LONGEST_S = 7 * 24 * 3600.0
"""Terabytes at the rate of the scrub take a day or two."""

STALL_S = 300.0
"""Nothing has changed for so long: a report comes every second."""

Show = Callable[[DiskList], None]


def list_disks(cluster: str | None, worker: str | None) -> DiskList:
    """All disks, or those of a worker. Raises UnknownWorker for one that has told of none."""
    with connect(cluster) as client:
        found = client.disks()
    if worker is None:
        return found
    mine = tuple(view for view in found.disks if view.worker == worker)
    if not mine:
        known = ", ".join(sorted({view.worker for view in found.disks})) or "none"
        raise UnknownWorker(
            f"no worker {worker} has told of its disks; those that have: {known}",
            remedy="see `rhinoctl status`",
        )
    return DiskList(disks=mine)


def add(cluster: str | None, worker: str, path: str) -> DiskList:
    """Give a worker another directory; the new disk. Raises UnknownWorker, DiskRefused and
    UnwritableDirectory; UsageError for a path that is not absolute, since it is the worker's."""
    if not os.path.isabs(path):
        raise UsageError(
            f"{path} is not an absolute path, and where it begins is not the worker's affair",
            remedy=f"give it from the root on, such as /data2/{os.path.basename(path) or 'rhino'}",
        )
    where = os.path.normpath(path)
    with connect(cluster) as client:
        request = DiskRequest(action=DiskAction.ADD, worker=WorkerId(worker), path=where)
        return client.change_disks(request)


def retire(
    cluster: str | None, target: str, *, wait: bool, show: Show, lost: bool = False
) -> DiskList:
    """Have a disk emptied, and wait until it is; one that is `lost` is given up. Raises
    UnknownWorker, UnknownDisk, DiskRefused, DiskFull and UsageError."""
    worker, disk = parse_target(target)
    if not disk:
        raise UsageError(f"{target} names no disk", remedy="give WORKER:DISK, such as w1:d2")
    action = DiskAction.GIVE_UP if lost else DiskAction.RETIRE
    request = DiskRequest(action=action, worker=worker, disk=disk)

    def over(found: DiskList) -> bool:
        return all(view.disk.state is not DiskState.RETIRING for view in found.disks)

    return _asked(cluster, request, over if wait else _at_once, show)


def scrub(cluster: str | None, target: str, *, wait: bool, show: Show) -> DiskList:
    """Have all that is on a worker's disks read, or on one of them, and wait until it is. Raises
    UnknownWorker, UnknownDisk, DiskRefused and UsageError."""
    worker, disk = parse_target(target)
    request = DiskRequest(action=DiskAction.SCRUB, worker=worker, disk=disk)

    def over(found: DiskList) -> bool:
        return all(view.disk.scrub.over for view in found.disks)

    return _asked(cluster, request, over if wait else _at_once, show)


def parse_target(target: str) -> tuple[WorkerId, DiskId]:
    """A worker, and the disk that is named after a colon. Raises UsageError."""
    worker, colon, disk = target.partition(":")
    if not worker or (colon and not disk) or ":" in disk:
        raise UsageError(
            f"{target!r} names no worker's disk", remedy="give WORKER:DISK, such as w1:d2"
        )
    return WorkerId(worker), DiskId(disk) if disk else NO_DISK


def _at_once(_: DiskList) -> bool:
    return True


def _asked(
    cluster: str | None, request: DiskRequest, over: Callable[[DiskList], bool], show: Show
) -> DiskList:
    with connect(cluster) as client:
        found = client.change_disks(request)
        names = {view.disk.disk for view in found.disks}

        def look() -> DiskList:
            every = client.disks().disks
            mine = (v for v in every if v.worker == request.worker and v.disk.disk in names)
            return DiskList(disks=tuple(mine))

        changed_at = time.monotonic()
        if over(found):
            return found
        show(found)
        for seen in looks(look, deadline_s=LONGEST_S, every_s=LOOK_S):
            if not _follows(found, seen):
                continue
            if seen != found:
                changed_at = time.monotonic()
            found = seen
            if over(found) or time.monotonic() - changed_at >= STALL_S:
                break
            show(found)
    return found


def _follows(before: DiskList, after: DiskList) -> bool:
    """Whether a look is not older than what is known: reports come a moment after an answer."""
    numbers = {view.disk.disk: view.disk.scrub.number for view in after.disks}
    states = {view.disk.disk: view.disk.state for view in after.disks}
    return bool(after.disks) and all(
        numbers.get(view.disk.disk, 0) >= view.disk.scrub.number
        and not (
            view.disk.state is DiskState.RETIRING and states.get(view.disk.disk) is DiskState.IN_USE
        )
        for view in before.disks
    )


# --- how it ended --------------------------------------------------------------------------------


def error_of_list(found: DiskList) -> RhinoError | None:
    """What is wrong with a disk; None if nothing is."""
    silent = sorted({view.worker for view in found.disks if not view.live})
    lost = [view for view in found.disks if view.disk.state is DiskState.LOST]
    if lost:
        return Degraded(
            f"{_names(lost)} {'is' if len(lost) == 1 else 'are'} lost",
            remedy="what was on it is fetched from other workers by itself; to have it back, mount"
            " it and start the agent of its worker again",
        )
    if silent:
        return WorkerUnreachable(
            f"worker {', '.join(silent)} does not answer: its disks are as they were last seen",
            remedy=f"bring it back: {start_again(silent)}",
        )
    return None


def error_of_retirement(found: DiskList, *, waited: bool) -> RhinoError | None:
    """What to say of a disk that is not empty though it was waited for."""
    left = [view for view in found.disks if view.disk.state is not DiskState.EMPTY]
    if not left or not waited:
        return None
    (view,) = left
    why = view.disk.fault or f"nothing has left it for {STALL_S:.0f} s"
    return DeadlineExceeded(
        f"{_name(view)} is not empty: {view.disk.vnodes} vnodes are on it; {why}",
        remedy="it goes on by itself; see `rhinoctl disk list` and `rhinoctl status`",
    )


def error_of_scrub(found: DiskList, *, waited: bool) -> RhinoError | None:
    """What a scrub has found, or that it has not come to its end."""
    bad = [line for view in found.disks for line in view.disk.scrub.bad]
    if bad:
        more = f"; and {len(bad) - 1} more" if len(bad) > 1 else ""
        where = _names(view for view in found.disks if view.disk.scrub.bad)
        return Degraded(
            f"{where}: {bad[0]}{more}",
            remedy="it serves nobody any more, and a good copy comes in its place by itself; if"
            " there are more, replace the disk: `rhinoctl disk retire`, or, for d1, which has the"
            " worker's log, `rhinoctl drain`",
        )
    if waited and not all(view.disk.scrub.over for view in found.disks):
        return DeadlineExceeded(
            f"the scrub of {_names(found.disks)} has read nothing for {STALL_S:.0f} s",
            remedy="look at the disk and at `rhinoctl status`; the scrub goes on by itself",
        )
    return None


def _name(view: DiskView) -> str:
    return f"disk {view.disk.disk} of worker {view.worker}"


def _names(found: Iterable[DiskView]) -> str:
    return ", ".join(map(_name, found))


def left(found: DiskList) -> list[DiskReport]:
    """The disks that are not empty yet."""
    return [view.disk for view in found.disks if view.disk.state is DiskState.RETIRING]
