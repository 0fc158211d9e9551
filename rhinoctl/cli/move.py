"""``rhinoctl handover`` and ``rhinoctl rescale``: what moves vnodes."""

from typing import Annotated

import typer

from rhinoctl.cli.options import Cluster, DryRun, JobArgument, Json, NoWait, ends
from rhinoctl.errors import Exit
from rhinoctl.ops import operations as ops
from rhinoctl.render import tables
from rhinoctl.render.errors import show_error
from rhinoctl.render.live import OperationProgress
from rhinoctl.render.output import emit

CODES = (Exit.REFUSED, Exit.ABORTED, Exit.BUSY, Exit.DEGRADED, Exit.HAS_CHANGES)


def handover(
    job: JobArgument,
    vnodes: Annotated[
        str, typer.Option("--vnodes", metavar="LIST", help="The vnodes to move, such as 3,7-9.")
    ],
    to: Annotated[
        str, typer.Option("--to", metavar="INSTANCE", help="The instance that shall own them.")
    ],
    dry_run: DryRun = False,
    no_wait: NoWait = False,
    cluster: Cluster = None,
    as_json: Json = False,
) -> int:
    """Move virtual nodes to an instance while the job runs.

    Ctrl-C ends only the waiting, with exit code 130: the operation goes on.
    """
    with OperationProgress() as progress:
        view = ops.handover(
            *(cluster, job),
            vnodes=vnodes,
            to=to,
            dry_run=dry_run,
            wait=not no_wait,
            show=progress.show,
        )
    return end(view, dry_run, as_json)


def rescale(
    job: JobArgument,
    instances: Annotated[
        int, typer.Option("--instances", metavar="N", help="The number of instances to have.")
    ],
    dry_run: DryRun = False,
    no_wait: NoWait = False,
    cluster: Cluster = None,
    as_json: Json = False,
) -> int:
    """Change the number of instances while the job runs.

    Ctrl-C ends only the waiting, with exit code 130: the operation goes on.
    """
    with OperationProgress() as progress:
        view = ops.rescale(
            *(cluster, job),
            instances=instances,
            dry_run=dry_run,
            wait=not no_wait,
            show=progress.show,
        )
    return end(view, dry_run, as_json)


def end(view: ops.View, dry_run: bool, as_json: bool) -> int:
    """Show the plan or the operation; one that was aborted is shown like any, and is an error."""
    emit(view, as_json, tables.plan_table if dry_run else tables.operation_table)
    if dry_run:
        return ops.exit_of_plan(view)
    error = ops.error_of(view)
    return Exit.DONE if error is None else show_error(error, as_json=False)


def add_to(app: typer.Typer) -> None:
    """Put the verbs into the command line."""
    example = "rhinoctl handover clicks --vnodes 3,7-9 --to i1"
    refused = "unknown job, vnode or instance; no controller"
    app.command(**ends(example, *CODES, refused=refused))(handover)
    example = "rhinoctl rescale clicks --instances 4 --dry-run"
    app.command(**ends(example, *CODES, refused="unknown job; no controller"))(rescale)
