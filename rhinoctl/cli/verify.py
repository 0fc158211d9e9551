"""``rhinoctl verify``: whether the copies are what they should be."""

from typing import Annotated

import typer

from rhinoctl.cli.options import Cluster, JobArgument, Json, ends
from rhinoctl.errors import Exit
from rhinoctl.ops import verify as ops
from rhinoctl.render.errors import show_error
from rhinoctl.render.live import WaitProgress
from rhinoctl.render.output import emit
from rhinoctl.render.verify import verify_line, verify_table


def verify(
    job: JobArgument,
    vnodes: Annotated[
        str | None,
        typer.Option(
            "--vnodes",
            metavar="LIST",
            help="The vnodes to verify, such as 3,7-9. Default: all.",
            show_default=False,
        ),
    ] = None,
    deep: Annotated[
        bool,
        typer.Option("--deep", help="Compare the state in all copies, not only files with hashes."),
    ] = False,
    cluster: Cluster = None,
    as_json: Json = False,
) -> int:
    """Read all copies of a job's state again, while it runs, and say which are whole.

    A bad one is named, serves nobody any more, and is fetched again by itself. Ctrl-C ends the
    reading, too, with exit code 130.
    """
    with WaitProgress() as progress:
        found = ops.verify(
            *(cluster, job),
            vnodes=vnodes,
            deep=deep,
            show=lambda view: progress.tell(verify_line(view)),
        )
    emit(found, as_json, verify_table)
    error = ops.error_of(found)
    return Exit.DONE if error is None else show_error(error, as_json=False)


def add_to(app: typer.Typer) -> None:
    """Put the verb into the command line."""
    ending = ends(
        "rhinoctl verify clicks --vnodes 3,7-9 --deep",
        *(Exit.REFUSED, Exit.BUSY, Exit.DEGRADED),
        refused="unknown job or vnode",
        busy="the job is being verified otherwise",
        degraded="something is bad, or a worker did not answer",
    )
    app.command(**ending)(verify)
