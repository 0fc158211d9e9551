"""``rhinoctl disk``: the disks of workers."""

from typing import Annotated

import typer

from rhinoctl.cli.options import Cluster, Json, ends, group
from rhinoctl.errors import Exit, RhinoError
from rhinoctl.ops import disks as ops
from rhinoctl.render import disks as tables
from rhinoctl.render.errors import show_error
from rhinoctl.render.live import WaitProgress
from rhinoctl.render.output import emit

app = group("List, add, retire and read through the disks of workers.")

WorkerArgument = Annotated[str, typer.Argument(metavar="WORKER", help="The worker, such as w1.")]
NoWait = Annotated[
    bool, typer.Option("--no-wait", help="Return once it has begun; watch it with disk list.")
]


@app.command(
    "list",
    **ends(
        "rhinoctl disk list w1",
        *(Exit.REFUSED, Exit.DEGRADED),
        refused="no controller",
        degraded="a disk is lost, or a worker does not answer",
    ),
)
def list_disks(
    worker: Annotated[
        str | None,
        typer.Argument(
            metavar="WORKER", help="Only this worker's. Default: all.", show_default=False
        ),
    ] = None,
    cluster: Cluster = None,
    as_json: Json = False,
) -> int:
    """Show every disk: its room, and what is on it."""
    found = ops.list_disks(cluster, worker)
    emit(found, as_json, tables.disk_table)
    return _ended(ops.error_of_list(found))


@app.command(
    **ends(
        "rhinoctl disk add w1 /mnt/b/rhino",
        *(Exit.REFUSED, Exit.DEGRADED),
        refused="the directory cannot be used",
        degraded="the worker does not answer",
    )
)
def add(
    worker: WorkerArgument,
    directory: Annotated[
        str,
        typer.Argument(
            metavar="DIRECTORY", help="On that worker; an empty one, or one to be made."
        ),
    ],
    cluster: Cluster = None,
    as_json: Json = False,
) -> int:
    """Give a running worker another directory, for vnodes that come to it from now on."""
    emit(ops.add(cluster, worker, directory), as_json, tables.disk_table)
    return Exit.DONE


@app.command(
    **ends(
        "rhinoctl disk retire w1:d2",
        *(Exit.REFUSED, Exit.DEGRADED),
        refused="unknown disk, the first one, or no room on the others",
        degraded="it cannot be emptied, or the worker does not answer",
    )
)
def retire(
    target: Annotated[str, typer.Argument(metavar="WORKER:DISK", help="The disk, such as w1:d2.")],
    lost: Annotated[
        bool,
        typer.Option("--lost", help="Give up a lost disk: what only it has is GONE."),
    ] = False,
    no_wait: NoWait = False,
    cluster: Cluster = None,
    as_json: Json = False,
) -> int:
    """Move all that is on a disk to the worker's others, while jobs run, so that it may go.

    Nothing leaves the worker, and copies stay whole meanwhile. Ctrl-C ends only the waiting, with
    exit code 130.
    """
    with WaitProgress() as progress:
        found = ops.retire(
            *(cluster, target),
            wait=not no_wait,
            lost=lost,
            show=lambda seen: progress.tell(tables.retire_line(seen)),
        )
    emit(found, as_json, tables.retired_text)
    return _ended(ops.error_of_retirement(found, waited=not no_wait))


@app.command(
    **ends(
        "rhinoctl disk scrub w1:d2",
        *(Exit.REFUSED, Exit.DEGRADED),
        refused="unknown worker or disk, or a lost one",
        degraded="something is bad, or the worker does not answer",
    )
)
def scrub(
    target: Annotated[
        str,
        typer.Argument(metavar="WORKER[:DISK]", help="The worker, or one of its disks: w1:d2."),
    ],
    no_wait: NoWait = False,
    cluster: Cluster = None,
    as_json: Json = False,
) -> int:
    """Read all checkpoints on a disk now, and say which files are not what they should be.

    It reads no faster than the scrub in the background. A bad file is named, serves nobody any
    more, and is fetched again by itself. Ctrl-C ends only the waiting, with exit code 130.
    """
    with WaitProgress() as progress:
        found = ops.scrub(
            *(cluster, target),
            wait=not no_wait,
            show=lambda seen: progress.tell(tables.scrub_line(seen)),
        )
    emit(found, as_json, tables.scrub_table)
    return _ended(ops.error_of_scrub(found, waited=not no_wait))


def _ended(error: RhinoError | None) -> int:
    return Exit.DONE if error is None else show_error(error, as_json=False)
