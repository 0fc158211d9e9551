"""``rhinoctl op``: operations that run or have ended."""

from typing import Annotated

import typer

from rhinoctl.cli.move import end
from rhinoctl.cli.options import Cluster, Json, NoWait, OpArgument, ends, group
from rhinoctl.errors import Exit
from rhinoctl.ops import operations as ops
from rhinoctl.render import tables
from rhinoctl.render.live import OperationProgress
from rhinoctl.render.output import emit

app = group("Show, follow and abort handovers, failovers and other operations.")


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
