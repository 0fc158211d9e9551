"""``rhinoctl failover``, ``switchover`` and ``drain``: a worker or an instance as a whole."""

from functools import partial
from typing import Annotated

import typer
from rich.text import Text

from rhinoctl.cli.options import Cluster, DryRun, Json, NoWait, ends
from rhinoctl.errors import Exit
from rhinoctl.ops import workers as ops
from rhinoctl.ops.operations import any_change, error_of_all
from rhinoctl.render import groups, tables
from rhinoctl.render.errors import show_error
from rhinoctl.render.live import OperationProgress
from rhinoctl.render.output import emit

CODES = (Exit.REFUSED, Exit.ABORTED, Exit.BUSY, Exit.DEGRADED, Exit.HAS_CHANGES)

Target = Annotated[
    str, typer.Argument(metavar="WORKER|INSTANCE", help="A worker, such as w1, or an instance.")
]


def failover(
    target: Target,
    to: Annotated[
        str | None,
        typer.Option(
            "--to",
            metavar="LIST",
            help="Only these workers or instances inherit, such as w2,w3. Default: all that can.",
            show_default=False,
        ),
    ] = None,
    parallel: Annotated[
        int | None,
        typer.Option(
            "--parallel",
            metavar="N",
            help="At most so many workers inherit, if they can take all. Default: all that can.",
            show_default=False,
        ),
    ] = None,
    force: Annotated[
        bool,
        typer.Option("--force", help="Let vnodes without another copy begin EMPTY: state is lost."),
    ] = False,
    dry_run: DryRun = False,
    no_wait: NoWait = False,
    cluster: Cluster = None,
    as_json: Json = False,
) -> int:
    """Let copies take over from a worker or instance that died.

    As a rule it happens by itself. By hand it is for what was left to a person: see `rhinoctl
    status`, and try --dry-run first. Ctrl-C ends only the waiting, with exit code 130.
    """
    with OperationProgress() as progress:
        found = ops.failover(
            *(cluster, target),
            to=to,
            parallel=parallel,
            force=force,
            dry_run=dry_run,
            wait=not no_wait,
            show=progress.show,
        )
    return _end(found, f"nothing to do: no job has a part on {target}", dry_run, as_json)


def switchover(
    target: Target,
    to: Annotated[
        str | None,
        typer.Option(
            "--to",
            metavar="WORKER|INSTANCE",
            help="Where all of it goes. Default: wherever it costs the least.",
            show_default=False,
        ),
    ] = None,
    dry_run: DryRun = False,
    no_wait: NoWait = False,
    cluster: Cluster = None,
    as_json: Json = False,
) -> int:
    """Move all that a worker or instance owns to where copies are.

    Jobs run meanwhile, and those without a live query are moved, too. Unlike after drain, it may
    keep copies and get vnodes again. Ctrl-C ends only the waiting, with exit code 130: the
    operation goes on.
    """
    with OperationProgress() as progress:
        found = ops.switchover(
            cluster, target, to=to, dry_run=dry_run, wait=not no_wait, show=progress.show
        )
    return _end(found, f"nothing to do: {target} owns no vnode", dry_run, as_json)


def drain(
    worker: Annotated[str, typer.Argument(metavar="WORKER", help="The worker, such as w1.")],
    undo: Annotated[
        bool, typer.Option("--undo", help="Let the worker have vnodes and copies again.")
    ] = False,
    dry_run: DryRun = False,
    no_wait: NoWait = False,
    cluster: Cluster = None,
    as_json: Json = False,
) -> int:
    """Take everything off a worker so that it may be stopped.

    Jobs run meanwhile. What it owns of a job without a live query moves, too, but copies stay until
    the query's next batch (exit code 7). It gets no vnodes and copies any more until --undo. Ctrl-C
    ends only the waiting, with exit code 130: the drain goes on, and the same command waits for it
    again.
    """
    left = (
        f"the drain of {worker} goes on without this command: wait for it again with"
        f" `rhinoctl drain {worker}`, take it back with `rhinoctl drain {worker} --undo`"
    )
    with OperationProgress(left) as progress:
        found = ops.drain(
            *(cluster, worker),
            undo=undo,
            dry_run=dry_run,
            wait=not no_wait,
            show=progress.show,
            show_drain=lambda drain: progress.tell(groups.drain_line(drain)),
        )
    emit(found, as_json, groups.drain_plan_table if dry_run else groups.drain_table)
    if dry_run:
        return ops.exit_of_drain_plan(found)
    if undo or no_wait:
        return Exit.DONE
    error = error_of_all(found.operations) or ops.error_of_drain(found)
    return Exit.DONE if error is None else show_error(error, as_json=False)


def _end(found: ops.Operations, nothing: str, dry_run: bool, as_json: bool) -> int:
    """Show the plans or the operations; those that were aborted are an error."""
    if not found.operations:
        emit(found, as_json, lambda _: Text(nothing))
        return Exit.DONE
    emit(found, as_json, tables.plans_table if dry_run else tables.operations_table)
    if dry_run:
        return any_change(found.operations)
    error = error_of_all(found.operations)
    return Exit.DONE if error is None else show_error(error, as_json=False)


def add_to(app: typer.Typer) -> None:
    """Put the verbs into the command line."""
    command = partial(ends, refused="unknown worker or instance; it is healthy; no other copy")
    app.command(**command("rhinoctl failover w1 --dry-run", *CODES))(failover)
    command = partial(ends, refused="unknown worker or instance; it does not answer")
    app.command(**command("rhinoctl switchover w1 --to w2", *CODES))(switchover)
    command = partial(
        ends, refused="unknown worker", degraded="copies have no other place, or no query runs"
    )
    app.command(**command("rhinoctl drain w1\nrhinoctl drain w1 --undo", *CODES))(drain)
