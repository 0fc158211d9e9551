"""Failover, switchover and drain: what is done to a worker or an instance as a whole.

Each is one operation for every job that has a part in it. The plans are the controller's; here the
operations are begun and followed, and a drain is waited for until the worker holds nothing.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from rhinoctl import limits
from rhinoctl.control.client import ControlClient
from rhinoctl.errors import Busy, DeadlineExceeded, Degraded, Exit, UsageError
from rhinoctl.ids import JobName, WorkerId
from rhinoctl.ops.cluster import connect
from rhinoctl.ops.groups import is_over, is_settled
from rhinoctl.ops.looks import looks
from rhinoctl.ops.operations import Show, any_change, error_of_all, follow_all
from rhinoctl.protocol.handover import ENDED, Kind
from rhinoctl.protocol.views import (
    DrainRequest,
    FailoverRequest,
    GroupsRequest,
    GroupsView,
    OperationList,
    OperationView,
    SwitchoverRequest,
)

Operations = OperationList
"""Operations that began together, as the functions here return them."""

DRAIN_DEADLINE_S = limits.HANDOVER_DEADLINE_S
"""Copies go to other workers over the network: it takes as long as the state is large."""

DRAIN_LOOK_S = 0.5
"""Between two looks at all chains of all jobs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drain:
    """A drain as far as it is, or its undoing, with `undo`; `draining` then says that there was one
    to undo. `held` are the vnodes that the worker owns or has copies of, by job; `settled` says
    that this does not change by itself any more, and `reasons` why; it does with the next batch of
    the jobs `waiting`, of which no query runs."""

    worker: WorkerId
    operations: tuple[OperationView, ...]
    held: Mapping[JobName, int]
    settled: bool
    reasons: tuple[str, ...] = ()
    undo: bool = False
    draining: bool = False
    waiting: tuple[JobName, ...] = ()


ShowDrain = Callable[[Drain], None]


def failover(
    cluster: str | None,
    target: str,
    *,
    to: str | None = None,
    parallel: int | None = None,
    force: bool = False,
    dry_run: bool = False,
    wait: bool = True,
    show: Show,
) -> OperationList:
    """Give up a worker or an instance, and follow what comes of it. With `dry_run`, the plans.

    Raises UsageError, UnknownWorker, UnknownInstance, HealthyTarget, NoCopy and Refused, all before
    anything is touched, and DeadlineExceeded.
    """
    if parallel is not None and parallel < 1:
        raise UsageError(
            f"{parallel} workers cannot inherit anything",
            remedy="choose 1 or more for --parallel, or leave it out: then all that can do",
        )
    request = FailoverRequest(
        target=target, to=parse_heirs(to), parallel=parallel, force=force, dry_run=dry_run
    )
    with connect(cluster) as client:
        begun = client.failover(request)
        return follow_all(client, begun, show) if wait and not dry_run else begun


def switchover(
    cluster: str | None,
    target: str,
    *,
    to: str | None = None,
    dry_run: bool = False,
    wait: bool = True,
    show: Show,
) -> OperationList:
    """Move all that a worker or an instance owns to holders of copies; otherwise as `failover`."""
    request = SwitchoverRequest(target=target, to=to, dry_run=dry_run)
    with connect(cluster) as client:
        begun = client.switchover(request)
        return follow_all(client, begun, show) if wait and not dry_run else begun


def drain(
    cluster: str | None,
    worker: str,
    *,
    undo: bool = False,
    dry_run: bool = False,
    wait: bool = True,
    show: Show,
    show_drain: ShowDrain,
) -> Drain:
    """Take everything off a worker, and wait until it holds nothing. With `undo`, let it have some
    again. To repeat it does no harm: operations by which it is drained already are waited for.

    Raises UnknownWorker, Busy and Refused before anything is touched, and DeadlineExceeded.
    """
    name = WorkerId(worker)
    with connect(cluster) as client:
        draining = undo and any(w.draining for w in client.status().workers if w.id == name)
        request = DrainRequest(worker=name, undo=undo, dry_run=dry_run)
        try:
            begun = client.drain(request)
        except Busy:
            running = _drains_of(client, name)
            if dry_run or not wait or not running.operations:
                raise
            begun = _after(running, client, request, show)
        if undo:
            return _undone(name, begun, draining=draining)
        if dry_run or not wait:
            return _look(client, name, begun)
        ended = follow_all(client, begun, show)
        found = _look(client, name, ended)
        if error_of_all(ended.operations) is not None or _is_over(found):
            return found
        ask = looks(
            lambda: _look(client, name, ended),
            deadline_s=DRAIN_DEADLINE_S,
            every_s=DRAIN_LOOK_S,
        )
        show_drain(found)
        for found in ask:
            show_drain(found)
            if _is_over(found):
                return found
    raise DeadlineExceeded(
        f"worker {worker} still holds {held_words(found)} after {DRAIN_DEADLINE_S:.0f} s",
        remedy=f"do not stop its host yet: see `rhinoctl status`, and wait again with"
        f" `rhinoctl drain {worker}`",
    )


def parse_heirs(text: str | None) -> tuple[str, ...]:
    """The workers and instances of ``w2,i5``; none for None. Raises UsageError."""
    if text is None:
        return ()
    names = tuple(name.strip() for name in text.split(","))
    if not all(names):
        raise UsageError(
            f"{text!r} is no list of workers and instances",
            remedy="write names with commas between them, such as --to w2,w3",
        )
    return tuple(dict.fromkeys(names))


def held_words(found: Drain) -> str:
    """``5 vnodes of job clicks, 1 vnode of job bids``."""
    return ", ".join(
        f"{'1 vnode' if number == 1 else f'{number} vnodes'} of job {job}"
        for job, number in found.held.items()
    )


def exit_of_drain_plan(found: Drain) -> Exit:
    """How a dry run of a drain ends."""
    if found.held or (found.undo and found.draining):
        return Exit.HAS_CHANGES
    return any_change(found.operations)


def error_of_drain(found: Drain) -> Degraded | None:
    """What to say if a worker still holds something that has no other place; None otherwise."""
    if not (found.held and found.settled):
        return None
    if found.waiting:
        jobs = f"job{'' if len(found.waiting) == 1 else 's'} {', '.join(found.waiting)}"
        return Degraded(
            f"do not stop worker {found.worker}: it still holds {held_words(found)}. No query of"
            f" {jobs} runs, and copies leave with the next batch only: the last one may need them",
            remedy=f"start the query of {jobs}, then repeat `rhinoctl drain {found.worker}`;"
            " `--undo` takes it back",
        )
    return Degraded(
        f"do not stop worker {found.worker}: it still holds {held_words(found)}, for which there"
        f" is no other place: {'; '.join(found.reasons) or 'no reason was given'}",
        remedy="start another worker or want fewer copies (`rhinoctl job set JOB replication=R`),"
        f" then repeat `rhinoctl drain {found.worker}`; `--undo` takes it back",
    )


def _drains_of(client: ControlClient, worker: WorkerId) -> OperationList:
    """The running operations by which a worker is being drained, begun by somebody before."""
    jobs = client.jobs().jobs
    placed = {(j.name, i.id) for j in jobs for i in j.instances if i.worker == worker}
    return OperationList(
        operations=tuple(
            view
            for view in client.operations().operations
            if view.kind is Kind.DRAIN
            and view.phase not in ENDED
            and any((view.job, origin) in placed for origin in view.origins.values())
        )
    )


def _after(
    running: OperationList, client: ControlClient, request: DrainRequest, show: Show
) -> OperationList:
    """Follow what runs, then begin what is left to do."""
    ended = follow_all(client, running, show)
    if error_of_all(ended.operations) is not None:
        return ended
    return OperationList(operations=(*ended.operations, *client.drain(request).operations))


def _undone(worker: WorkerId, operations: OperationList, *, draining: bool) -> Drain:
    return Drain(
        worker=worker,
        undo=True,
        draining=draining,
        operations=operations.operations,
        held={},
        settled=True,
    )


def _look(client: ControlClient, worker: WorkerId, operations: OperationList) -> Drain:
    groups = [client.groups(job.name, GroupsRequest()) for job in client.jobs().jobs]
    held = {view.job: _held_by(worker, view) for view in groups}
    holding = [view for view in groups if held[view.job]]
    return Drain(
        worker=worker,
        operations=operations.operations,
        held={job: number for job, number in held.items() if number},
        settled=all(map(is_over, holding)) and not any(_owns(worker, v) for v in holding),
        reasons=tuple(dict.fromkeys(reason for view in holding for reason in view.reasons)),
        waiting=tuple(v.job for v in holding if v.waits_for_batch and not is_settled(v)),
    )


def _held_by(worker: WorkerId, view: GroupsView) -> int:
    return sum(
        worker == group.worker or any(worker == member.worker for member in group.members)
        for group in view.groups
    )


def _owns(worker: WorkerId, view: GroupsView) -> bool:
    return any(worker == group.worker for group in view.groups)


def _is_over(found: Drain) -> bool:
    """Whether nothing is held any more, or nothing more will leave."""
    return not found.held or found.settled
