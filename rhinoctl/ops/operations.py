"""Handovers and rescales from the request to the end, and what else is done with operations.

The plan is the controller's: a dry run returns it, and without one the same checks and the same
plan are begun at once. An operation belongs to the controller, so that to stop watching ends
nothing.
"""

import time
from collections.abc import Callable
from contextlib import suppress

from rhinoctl import limits
from rhinoctl.control.client import ControlClient
from rhinoctl.errors import (
    DeadlineExceeded,
    Exit,
    NotRunning,
    OperationAborted,
    ParallelismOutOfRange,
    Refused,
)
from rhinoctl.ids import InstanceId, Vnode
from rhinoctl.ops.cluster import connect
from rhinoctl.ops.vnodes import format_vnodes, parse_vnodes
from rhinoctl.protocol.handover import ENDED, Phase
from rhinoctl.protocol.views import (
    AbortRequest,
    HandoverRequest,
    OperationList,
    OperationView,
    RescaleRequest,
)

View = OperationView
"""An operation as the functions here return it."""

Show = Callable[[View], None]

WATCH_S = 0.2
"""Between two looks at an operation: phases last from tens of milliseconds to minutes."""

WATCH_DEADLINE_S = limits.HANDOVER_DEADLINE_S + 60.0
"""The operation ends by its own deadline; this is for a controller that does not end it."""

AWAY_S = 60.0
"""A controller may be restarted while we watch: its operations go on afterwards."""

PAUSE_S = 3.0
"""The pause is known once the targets have reported the first batch after the marker."""


def handover(
    cluster: str | None,
    job: str,
    *,
    vnodes: str,
    to: str,
    dry_run: bool = False,
    wait: bool = True,
    show: Show,
) -> OperationView:
    """Move vnodes to an instance, and watch it to its end. With `dry_run`, its plan.

    Raises UsageError, UnknownJob, UnknownVnode, UnknownInstance, Busy and Refused, all before
    anything is touched, and DeadlineExceeded.
    """
    request = HandoverRequest(vnodes=parse_vnodes(vnodes), to=InstanceId(to), dry_run=dry_run)
    with connect(cluster) as client:
        begun = client.handover(job, request)
        return _follow(client, begun, show) if wait and not dry_run else begun


def rescale(
    cluster: str | None,
    job: str,
    *,
    instances: int,
    dry_run: bool = False,
    wait: bool = True,
    show: Show,
) -> OperationView:
    """Another number of instances; otherwise as `handover`. Raises ParallelismOutOfRange."""
    if instances < 1:
        raise ParallelismOutOfRange(
            f"a job cannot have {instances} instances",
            remedy="choose a number from 1 to the job's number of vnodes (`rhinoctl job list`)",
        )
    request = RescaleRequest(instances=instances, dry_run=dry_run)
    with connect(cluster) as client:
        begun = client.rescale(job, request)
        return _follow(client, begun, show) if wait and not dry_run else begun


def abort(
    cluster: str | None, op: str, *, reason: str, wait: bool = True, show: Show
) -> OperationView:
    """Go back to the old layout; nothing to do for what was aborted already.

    Raises UnknownOperation, and Refused if it was too late.
    """
    with connect(cluster) as client:
        ended = client.abort(op, AbortRequest(reason=reason))
        if wait and ended.phase not in ENDED:
            ended = watch(client, ended, show)
    if ended.phase in (Phase.MARKED, Phase.COMPLETE):
        raise Refused(
            f"{op} is past its marker: the vnodes have moved",
            remedy=f"move them back: {back(ended)}",
        )
    return ended


def back(view: OperationView) -> str:
    """The commands that undo the moves of an operation, one for each origin."""
    homes: dict[InstanceId, list[Vnode]] = {}
    for vnode, origin in view.origins.items():
        homes.setdefault(origin, []).append(vnode)
    return ", ".join(
        f"`rhinoctl handover {view.job} --vnodes {format_vnodes(vnodes)} --to {origin}`"
        for origin, vnodes in sorted(homes.items())
    )


def list_operations(cluster: str | None) -> OperationList:
    """Operations, the newest first."""
    with connect(cluster) as client:
        return client.operations()


def show_operation(cluster: str | None, op: str) -> OperationView:
    """One operation. Raises UnknownOperation."""
    with connect(cluster) as client:
        return client.operation(op)


def watch(client: ControlClient, view: OperationView, show: Show) -> OperationView:
    """Show an operation until it has ended, over restarts of the controller.

    Raises DeadlineExceeded if it does not end, and NotRunning if the controller stays away.
    """
    deadline = time.monotonic() + WATCH_DEADLINE_S
    seen_at = time.monotonic()
    show(view)
    while view.phase not in ENDED:
        now = time.monotonic()
        if now > deadline:
            raise DeadlineExceeded(
                f"{view.id} has not ended within {WATCH_DEADLINE_S:.0f} s",
                remedy=f"see `rhinoctl status` and `rhinoctl op show {view.id}`",
            )
        time.sleep(WATCH_S)
        try:
            view = client.operation(view.id)
        except (NotRunning, DeadlineExceeded):
            if now - seen_at > AWAY_S:
                raise
            continue
        seen_at = now
        show(view)
    return view


def exit_of_plan(plan: OperationView) -> Exit:
    """How a dry run ends."""
    return Exit.HAS_CHANGES if plan.phase is Phase.PLANNED else Exit.DONE


def error_of(view: OperationView) -> OperationAborted | None:
    """What to say of an operation that went back to the old layout; None for any other."""
    if view.phase is not Phase.ABORTED:
        return None
    return OperationAborted(
        f"{view.kind.value} {view.id} was aborted, and job {view.job} has its old layout:"
        f" {view.reason}",
        remedy=f"see `rhinoctl op show {view.id}` and `rhinoctl status`, then start it again",
    )


def _follow(client: ControlClient, begun: OperationView, show: Show) -> OperationView:
    """Watch to the end, and a little longer for the pause, which is measured after it."""
    ended = watch(client, begun, show)
    if ended.phase is not Phase.COMPLETE or not ended.moves:
        return ended
    with suppress(NotRunning, DeadlineExceeded):  # it is complete all the same
        deadline = time.monotonic() + (PAUSE_S if client.job(ended.job).live else 0)
        while ended.pause_ms is None and time.monotonic() < deadline:
            time.sleep(WATCH_S)
            ended = client.operation(ended.id)
    return ended
