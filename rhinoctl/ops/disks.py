"""Workers' disks by hand: listed, added, retired, read through (docs/operations/disks.md)."""

import os
import time
from collections.abc import Callable, Iterable
from dataclasses import replace

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
from rhinoctl.protocol.phrases import workers as named
from rhinoctl.protocol.rooms import give_up_lost
from rhinoctl.protocol.starting import start_again

LOOK_S = 0.5
"""Between two looks at disks that are being emptied or read."""

LONGEST_S = 7 * 24 * 3600.0
"""Terabytes at the rate of the scrub take a day or two."""

STALL_S = 300.0
"""Nothing has changed for so long: a report comes every second."""

BEHIND_S = 15.0
"""Reports of a worker that answers are behind what it has answered for no longer than that."""

Show = Callable[[DiskList], None]

Over = Callable[[DiskList, DiskList], bool]
"""Whether what was asked is over: by the disks as they were answered, and as they are seen now."""


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

    def over(_: DiskList, found: DiskList) -> bool:
        return all(view.disk.state is not DiskState.RETIRING for view in found.disks)

    return _asked(cluster, request, over if wait else _at_once, show)


def scrub(cluster: str | None, target: str, *, wait: bool, show: Show) -> DiskList:
    """Have all that is on a worker's disks read, or on one of them, and wait until it is. Raises
    UnknownWorker, UnknownDisk, DiskRefused and UsageError."""
    worker, disk = parse_target(target)
    request = DiskRequest(action=DiskAction.SCRUB, worker=worker, disk=disk)

    def over(asked: DiskList, found: DiskList) -> bool:
        return all(
            now.disk.scrub.over or not _not_before(before, now)
            for before, now in zip(asked.disks, found.disks, strict=True)
        )

    return _asked(cluster, request, over if wait else _at_once, show)


def parse_target(target: str) -> tuple[WorkerId, DiskId]:
    """A worker, and the disk that is named after a colon. Raises UsageError."""
    worker, colon, disk = target.partition(":")
    if not worker or (colon and not disk) or ":" in disk:
        raise UsageError(
            f"{target!r} names no worker's disk", remedy="give WORKER:DISK, such as w1:d2"
        )
    return WorkerId(worker), DiskId(disk) if disk else NO_DISK


def _at_once(_: DiskList, __: DiskList) -> bool:
    return True


def _asked(cluster: str | None, request: DiskRequest, over: Over, show: Show) -> DiskList:
    """Ask it of the worker, and look at its disks until it is over, or nothing changes any more."""
    with connect(cluster) as client:
        asked = found = client.change_disks(request)
        if over(asked, found):
            return found
        show(found)
        asked_at = changed_at = time.monotonic()
        current = False
        for every in looks(client.disks, deadline_s=LONGEST_S, every_s=LOOK_S):
            now = time.monotonic()
            seen = _seen(found, every, request.worker)
            if seen.disks:
                waited = now - asked_at >= BEHIND_S and all(view.live for view in seen.disks)
                current = current or waited or _follows(request, asked, seen)
                if current and seen != found:
                    found, changed_at = seen, now
            if over(asked, found) or now - changed_at >= STALL_S:
                break
            show(found)
    return found


def _seen(before: DiskList, every: DiskList, worker: WorkerId) -> DiskList:
    """The disks that were asked about in a look at all; none if their worker has told nothing yet.
    One that it does not tell of any more was empty, and is gone."""
    mine = {view.disk.disk: view for view in every.disks if view.worker == worker}
    return DiskList(
        disks=tuple(mine.get(view.disk.disk) or _gone(view) for view in before.disks if mine)
    )


def _gone(view: DiskView) -> DiskView:
    scrub = replace(view.disk.scrub, over=True)
    disk = replace(view.disk, state=DiskState.EMPTY, vnodes=0, bytes=0, fault="", scrub=scrub)
    return replace(view, disk=disk)


def _follows(request: DiskRequest, asked: DiskList, seen: DiskList) -> bool:
    """Whether a look is not older than the answer, which reports follow a moment later. Looks after
    that are newer, whatever they say: an agent that is started again counts its scrubs anew."""
    if request.action is DiskAction.SCRUB:
        return all(map(_not_before, asked.disks, seen.disks))
    older = DiskState.LOST if request.action is DiskAction.GIVE_UP else DiskState.IN_USE
    return all(view.disk.state is not older for view in seen.disks)


def _not_before(asked: DiskView, seen: DiskView) -> bool:
    return seen.disk.scrub.number >= asked.disk.scrub.number


# --- how it ended --------------------------------------------------------------------------------


def error_of_list(found: DiskList) -> RhinoError | None:
    """What is wrong with a disk; None if nothing is."""
    silent = sorted({view.worker for view in found.disks if not view.live})
    lost = [view for view in found.disks if view.disk.state is DiskState.LOST]
    if lost:
        return Degraded(
            f"{_names(lost)} {'is' if len(lost) == 1 else 'are'} lost",
            remedy="what was on it is fetched from other workers by itself; "
            + give_up_lost(lost[0].worker, lost[0].disk.disk),
        )
    if silent:
        return WorkerUnreachable(
            f"{named(silent, 'does', 'do')} not answer: disks there are as they were last seen",
            remedy=f"bring back what is silent: {start_again(silent)}",
        )
    return None


def error_of_retirement(found: DiskList, *, waited: bool) -> RhinoError | None:
    """What to say of a disk that is not empty though it was waited for."""
    left = [view for view in found.disks if view.disk.state is not DiskState.EMPTY]
    if not left or not waited:
        return None
    (view,) = left
    silent = "" if view.live else f"worker {view.worker} does not answer"
    why = silent or view.disk.fault or f"nothing has left it for {STALL_S:.0f} s"
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
    there = [view for view in found.disks if view.disk.state is not DiskState.LOST]
    forgot = [view for view in there if not view.disk.scrub.number]
    if waited and forgot:
        worker = forgot[0].worker
        return DeadlineExceeded(
            f"the agent of worker {worker} was started again, and has forgotten the scrub of"
            f" {_names(forgot)}",
            remedy=f"begin it again: `rhinoctl disk scrub {worker}`",
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
