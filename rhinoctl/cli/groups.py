"""``rhinoctl groups`` and ``rhinoctl checkpoint``: the copies of each vnode."""

from typing import Annotated

import typer

from rhinoctl.cli.options import Cluster, JobArgument, Json, ends, group
from rhinoctl.errors import Exit
from rhinoctl.ops import checkpoint as checkpoint_ops
from rhinoctl.ops import groups as ops
from rhinoctl.render import groups as render
from rhinoctl.render.errors import show_error
from rhinoctl.render.live import WaitProgress
from rhinoctl.render.output import emit

app = group("Show and plan the copies of each vnode, and wait for them.")


@app.command(
    **ends(
        "rhinoctl groups show clicks",
        *(Exit.REFUSED, Exit.DEGRADED),
        refused="unknown job",
        degraded="copies are lacking",
    )
)
def show(
    job: JobArgument,
    vnodes: Annotated[
        bool, typer.Option("--vnodes", help="A line for each vnode, with its own lag.")
    ] = False,
    cluster: Cluster = None,
    as_json: Json = False,
) -> int:
    """Show which workers hold copies of which vnodes, and how far those lag."""
    found = ops.show_groups(cluster, job)
    emit(found, as_json, render.vnodes_table if vnodes else render.groups_table)
    return _exit_of(found)


@app.command(
    **ends(
        "rhinoctl groups plan clicks --replication 2",
        *(Exit.REFUSED, Exit.HAS_CHANGES),
        refused="unknown job",
        has_changes="copies would join or leave",
    )
)
def plan(
    job: JobArgument,
    replication: Annotated[
        int | None,
        typer.Option(
            "--replication",
            metavar="R",
            help="Further copies of each vnode. Default: as many as the job has set.",
            show_default=False,
        ),
    ] = None,
    cluster: Cluster = None,
    as_json: Json = False,
) -> int:
    """Show which copies would join and leave, and do nothing."""
    found = ops.plan_groups(cluster, job, replication=replication)
    emit(found, as_json, render.plan_table)
    return ops.exit_of_plan(found)


@app.command(
    **ends(
        "rhinoctl job set clicks replication=2\nrhinoctl groups apply clicks",
        *(Exit.REFUSED, Exit.DEGRADED),
        refused="unknown job",
        degraded="copies have no place, or it took too long",
    )
)
def apply(job: JobArgument, cluster: Cluster = None, as_json: Json = False) -> int:
    """Wait until all copies are as planned.

    The controller adds and removes copies by itself, all the time; this waits for it. Ctrl-C ends
    only the waiting, with exit code 130.
    """
    left = f"copies go on without this command: see `rhinoctl groups show {job}`"
    with WaitProgress(left) as progress:
        found = ops.apply_groups(
            cluster, job, show=lambda view: progress.tell(render.groups_line(view))
        )
    emit(found, as_json, render.applied_table)
    return _exit_of(found)


def checkpoint(job: JobArgument, cluster: Cluster = None, as_json: Json = False) -> int:
    """Checkpoint every vnode now, and wait until all copies have it.

    Checkpoints are taken by themselves; by hand it is for before a risky step, so that less would
    be replayed after it. Ctrl-C ends only the waiting, with exit code 130.
    """
    left = f"checkpoints go on without this command: see `rhinoctl groups show {job}`"
    with WaitProgress(left) as progress:
        found = checkpoint_ops.checkpoint(
            cluster, job, show=lambda view: progress.tell(render.checkpoint_line(view))
        )
    emit(found, as_json, render.checkpoint_table)
    return Exit.DONE


def _exit_of(found: ops.Groups) -> int:
    """Fewer copies than wanted are shown like any, and are an error."""
    error = ops.error_of(found)
    return Exit.DONE if error is None else show_error(error, as_json=False)


def add_to(app: typer.Typer) -> None:
    """Put the verb into the command line."""
    codes = (Exit.REFUSED, Exit.DEGRADED)
    ending = ends(
        "rhinoctl checkpoint clicks",
        *codes,
        refused="unknown job",
        degraded="not complete in time; says what is missing",
    )
    app.command(**ending)(checkpoint)
