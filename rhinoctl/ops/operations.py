"""Handovers and rescales from the request to the end, and what else is done with operations.

The plan is the controller's: a dry run returns it, and without one the same checks and the same
plan are begun at once. An operation belongs to the controller, so that to stop watching ends
nothing.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from datetime import UTC, datetime

from rhinoctl import limits
from rhinoctl.control.client import ControlClient
from rhinoctl.errors import (
    DeadlineExceeded,
    Degraded,
    Exit,
    NotRunning,
    OperationAborted,
    ParallelismOutOfRange,
    Refused,
    RhinoError,
)
from rhinoctl.ids import InstanceId
from rhinoctl.ops.cluster import connect
from rhinoctl.ops.looks import LOOK_S, looks
from rhinoctl.ops.vnodes import parse_vnodes
from rhinoctl.protocol.handover import ENDED, Kind, Phase
from rhinoctl.protocol.phrases import workers as named
from rhinoctl.protocol.views import (
    AbortRequest,
    HandoverRequest,
    OperationList,
    OperationView,
    RepairView,
    RescaleRequest,
    RevertRequest,
)

View = OperationView
"""An operation as the functions here return it."""

Show = Callable[[View], None]

WATCH_DEADLINE_S = limits.HANDOVER_DEADLINE_S + limits.PAUSE_MAX_S + 60.0
"""The operation ends by its own deadline; this is for a controller that does not end it."""

MEASURED_S = 3.0
"""Pause and recovery are known once the targets have reported the first batch of their own."""


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
        return follow(client, begun, show) if wait and not dry_run else begun


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
        return follow(client, begun, show) if wait and not dry_run else begun


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
    if ended.phase is Phase.MARKED:
        raise Refused(
            f"{op} is past its marker: the vnodes have moved",
            remedy=f"move them back: `rhinoctl op revert {op}`, once it is complete",
        )
    if ended.phase is Phase.COMPLETE:
        at = f"{datetime.fromtimestamp(ended.times[ended.phase.value], UTC):%Y-%m-%d %H:%M:%S} UTC"
        back = f"`rhinoctl op revert {op}`"
        if ended.kind is Kind.FAILOVER:
            back = "`rhinoctl switchover`, once what was lost is back"
        raise Refused(
            f"{ended.kind.value} {op} of job {ended.job} is complete since {at}: there is nothing"
            " to abort",
            remedy=f"see `rhinoctl op show {op}`; move the vnodes back: {back}",
        )
    return ended


def revert(
    cluster: str | None, op: str, *, dry_run: bool = False, wait: bool = True, show: Show
) -> OperationView:
    """Move back what a complete operation has moved, and watch that to its end.

    Raises UnknownOperation, CannotRevert and Busy, all before anything is touched, and
    DeadlineExceeded.
    """
    with connect(cluster) as client:
        begun = client.revert(op, RevertRequest(dry_run=dry_run))
        return follow(client, begun, show) if wait and not dry_run else begun


def pause(cluster: str | None, op: str) -> OperationView:
    """Keep an operation before its marker. Raises UnknownOperation, and CannotPause if it is too
    late."""
    with connect(cluster) as client:
        return client.pause(op)


def resume(cluster: str | None, op: str, *, wait: bool = True, show: Show) -> OperationView:
    """Go on with a paused operation, and watch it to its end. Raises UnknownOperation, CannotPause
    and DeadlineExceeded."""
    with connect(cluster) as client:
        going = client.resume(op)
        return follow(client, going, show) if wait else going


def repair(cluster: str | None, op: str) -> tuple[RepairView, RhinoError | None]:
    """Have the workers of an operation asked again; the controller waits for their answers. Returns
    how it stands, and what to say if that is not its good end. Raises UnknownOperation."""
    with connect(cluster) as client:
        view = client.repair(op)
    return view, _unrepaired(view)


def _unrepaired(view: RepairView) -> RhinoError | None:
    operation = view.operation
    if operation.phase in ENDED:
        return error_of(operation)
    waits = "; ".join(view.waits_for) or "the next report of its workers"
    if view.silent:
        remedy = (
            f"bring {named(view.silent)} back, or give it up: `rhinoctl failover {view.silent[0]}`"
        )
    elif operation.kind is Kind.FAILOVER or operation.phase is Phase.MARKED:
        remedy = f"it ends by itself: `rhinoctl op watch {operation.id}`"
    elif operation.phase is Phase.PAUSED:
        remedy = f"let it go on: `rhinoctl op resume {operation.id}`, or `rhinoctl op abort` it"
    else:
        remedy = f"follow it: `rhinoctl op watch {operation.id}`, or `rhinoctl op abort` it"
    return Degraded(
        f"{operation.id} is {operation.phase.value}: it waits for {waits}", remedy=remedy
    )


def list_operations(cluster: str | None) -> OperationList:
    """Operations, the newest first."""
    with connect(cluster) as client:
        return client.operations()


def show_operation(cluster: str | None, op: str) -> OperationView:
    """One operation. Raises UnknownOperation."""
    with connect(cluster) as client:
        return client.operation(op)


def watch_operation(cluster: str | None, op: str, *, show: Show) -> OperationView:
    """Watch an operation that somebody else may have begun to its end. Raises UnknownOperation,
    and DeadlineExceeded."""
    with connect(cluster) as client:
        return follow(client, client.operation(op), show)


def watch(client: ControlClient, view: OperationView, show: Show) -> OperationView:
    """Show an operation until it has ended, over restarts of the controller.

    Raises DeadlineExceeded if it does not end, and NotRunning if the controller stays away.
    """
    show(view)
    if view.phase in ENDED:
        return view
    op = view.id
    for view in looks(lambda: client.operation(op), deadline_s=WATCH_DEADLINE_S):
        show(view)
        if view.phase in ENDED:
            return view
    raise DeadlineExceeded(
        f"{op} has not ended within {WATCH_DEADLINE_S:.0f} s",
        remedy=f"see `rhinoctl status` and `rhinoctl op show {op}`",
    )


def exit_of_plan(plan: OperationView) -> Exit:
    """How a dry run ends."""
    return Exit.HAS_CHANGES if plan.phase is Phase.PLANNED else Exit.DONE


def any_change(plans: Iterable[OperationView]) -> Exit:
    """How a dry run of several plans ends."""
    return Exit.HAS_CHANGES if Exit.HAS_CHANGES in map(exit_of_plan, plans) else Exit.DONE


def error_of(view: OperationView) -> OperationAborted | None:
    """What to say of an operation that went back to the old layout; None for any other."""
    if view.phase is not Phase.ABORTED:
        return None
    return OperationAborted(
        f"{view.kind.value} {view.id} of job {view.job} was aborted, and has moved nothing:"
        f" {view.reason}",
        remedy=f"see `rhinoctl op show {view.id}` and `rhinoctl status`, then start it again",
    )


def error_of_all(ended: Sequence[OperationView]) -> OperationAborted | None:
    """As `error_of`, for operations that began together: all that were aborted in one error."""
    errors = [error for view in ended if (error := error_of(view)) is not None]
    if len(errors) < 2:
        return errors[0] if errors else None
    return OperationAborted(
        f"{len(errors)} of {len(ended)} operations were aborted: "
        + "; ".join(error.message for error in errors),
        remedy="see `rhinoctl status`, then start them again: what is complete is left alone",
    )


def follow(client: ControlClient, begun: OperationView, show: Show) -> OperationView:
    """Watch to the end, and a little longer for what is measured only after it."""
    ended = watch(client, begun, show)
    if ended.phase is not Phase.COMPLETE or not ended.moves:
        return ended
    with suppress(NotRunning, DeadlineExceeded):  # it is complete all the same
        live = ended.live and client.job(ended.job).live
        deadline = time.monotonic() + (MEASURED_S if live else 0)
        while not _is_measured(ended) and time.monotonic() < deadline:
            time.sleep(LOOK_S)
            ended = client.operation(ended.id)
    return ended


def follow_all(client: ControlClient, begun: OperationList, show: Show) -> OperationList:
    """Follow operations that began together, one after the other, to the end of all."""
    for view in begun.operations:
        show(view)
    return OperationList(operations=tuple(follow(client, v, show) for v in begun.operations))


def _is_measured(view: OperationView) -> bool:
    return (view.recover_ms if view.kind is Kind.FAILOVER else view.pause_ms) is not None
