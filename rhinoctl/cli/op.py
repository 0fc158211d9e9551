"""``rhinoctl op``: operations that run or have ended."""

from typing import Annotated

import typer

from rhinoctl.cli.move import end
from rhinoctl.cli.options import Cluster, DryRun, Json, NoWait, OpArgument, ends, group
from rhinoctl.errors import Exit
from rhinoctl.ops import operations as ops
from rhinoctl.render import tables
from rhinoctl.render.doctor import repair_table
from rhinoctl.render.errors import show_error
from rhinoctl.render.live import OperationProgress
from rhinoctl.render.output import emit

app = group("Show, follow and end handovers, failovers and other operations.")


@app.command("list", **ends("rhinoctl op list", Exit.REFUSED, refused="no controller answers"))
def list_(cluster: Cluster = None, as_json: Json = False) -> int:
    """Show all operations, the newest first."""
    emit(ops.list_operations(cluster), as_json, tables.operation_list_table)
    return Exit.DONE


@app.command(**ends("rhinoctl op show op-7", Exit.REFUSED, refused="unknown operation"))
def show(op: OpArgument, cluster: Cluster = None, as_json: Json = False) -> int:
    """Show what an operation moves, and how long it took."""
    emit(ops.show_operation(cluster, op), as_json, tables.operation_table)
    return Exit.DONE


@app.command(
    **ends(
        "rhinoctl op watch op-7",
        *(Exit.REFUSED, Exit.ABORTED, Exit.DEGRADED),
        refused="unknown operation",
    )
)
def watch(op: OpArgument, cluster: Cluster = None, as_json: Json = False) -> int:
    """Follow an operation to its end, whoever began it.

    Ctrl-C ends only the watching, with exit code 130: the operation goes on.
    """
    with OperationProgress() as progress:
        view = ops.watch_operation(cluster, op, show=progress.show)
    return end(view, dry_run=False, as_json=as_json)


@app.command(
    **ends(
        "rhinoctl op abort op-7",
        Exit.REFUSED,
        Exit.DEGRADED,
        refused="unknown operation; its vnodes have moved already",
    )
)
def abort(
    op: OpArgument,
    reason: Annotated[
        str, typer.Option("--reason", metavar="TEXT", help="Why, for whoever looks at it later.")
    ] = "asked for",
    no_wait: NoWait = False,
    cluster: Cluster = None,
    as_json: Json = False,
) -> int:
    """Go back to the old layout, if the marker is not decided."""
    with OperationProgress() as progress:
        view = ops.abort(cluster, op, reason=reason, wait=not no_wait, show=progress.show)
    emit(view, as_json, tables.operation_table)
    return Exit.DONE


@app.command(
    **ends(
        "rhinoctl op revert op-7 --dry-run",
        *(Exit.REFUSED, Exit.ABORTED, Exit.BUSY, Exit.DEGRADED, Exit.HAS_CHANGES),
        refused="unknown operation; a failover; not complete; moved on since",
    )
)
def revert(
    op: OpArgument,
    dry_run: DryRun = False,
    no_wait: NoWait = False,
    cluster: Cluster = None,
    as_json: Json = False,
) -> int:
    """Move back what a complete operation has moved, by another operation.

    Vnodes return to the instances that they came from; those that have retired begin anew, and
    those that the operation began retire. Ctrl-C ends only the waiting, with exit code 130.
    """
    with OperationProgress() as progress:
        view = ops.revert(cluster, op, dry_run=dry_run, wait=not no_wait, show=progress.show)
    return end(view, dry_run, as_json)


@app.command(
    **ends(
        "rhinoctl op pause op-7",
        Exit.REFUSED,
        refused="unknown operation; its marker may be decided already",
    )
)
def pause(op: OpArgument, cluster: Cluster = None, as_json: Json = False) -> int:
    """Keep an operation before its marker: copies go on, and no vnode gets another owner.

    A pause is bounded: after an hour, all pauses of an operation together, it is aborted.
    """
    emit(ops.pause(cluster, op), as_json, tables.operation_table)
    return Exit.DONE


@app.command(
    **ends(
        "rhinoctl op resume op-7",
        *(Exit.REFUSED, Exit.ABORTED, Exit.DEGRADED),
        refused="unknown operation; it has ended",
    )
)
def resume(
    op: OpArgument, no_wait: NoWait = False, cluster: Cluster = None, as_json: Json = False
) -> int:
    """Go on with a paused operation; its deadline is as far away as when it was paused.

    Ctrl-C ends only the waiting, with exit code 130: the operation goes on.
    """
    with OperationProgress() as progress:
        view = ops.resume(cluster, op, wait=not no_wait, show=progress.show)
    return end(view, dry_run=False, as_json=as_json)


@app.command(
    **ends(
        "rhinoctl op repair op-7",
        *(Exit.REFUSED, Exit.ABORTED, Exit.DEGRADED),
        refused="unknown operation",
        degraded="it has not ended; what it waits for is shown",
    )
)
def repair(op: OpArgument, cluster: Cluster = None, as_json: Json = False) -> int:
    """Ask the workers of an operation again, and say how it stands or what it waits for.

    No operation ends in a state that only a person can leave: it completes or is aborted by what
    its workers report. This is for one that is late. What has ended already is left as it is.
    """
    view, error = ops.repair(cluster, op)
    emit(view, as_json, repair_table)
    return Exit.DONE if error is None else show_error(error, as_json=False)
