"""``rhinoctl demo``: the main job on an embedded cluster."""

from typing import Annotated

import typer

from rhinoctl.cli.options import Json, ends
from rhinoctl.errors import Exit
from rhinoctl.ops import demo as ops
from rhinoctl.ops.local import WORKERS_MAX
from rhinoctl.render.demo import demo_table
from rhinoctl.render.errors import show_error
from rhinoctl.render.live import DemoDisplay
from rhinoctl.render.output import emit


def demo(
    query: Annotated[
        str, typer.Option(metavar="NAME", help="The NEXMark query: q8, q5 or counts.")
    ] = "q8",
    seconds: Annotated[int, typer.Option(metavar="N", min=10, help="How long rows come.")] = 35,
    rate: Annotated[int, typer.Option(metavar="N", min=1, help="Rows a second.")] = 20_000,
    workers: Annotated[
        int, typer.Option(metavar="N", min=1, max=WORKERS_MAX, help="Workers of the cluster.")
    ] = 3,
    state_mb: Annotated[
        int, typer.Option(metavar="N", min=0, help="State to fill in before the clock starts.")
    ] = 0,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the directory with the logs.")] = False,
    as_json: Json = False,
) -> int:
    """Run a query whose state moves meanwhile, and check its result.

    The query is a PySpark structured stream on a cluster of processes that live as long as the
    demo. The job is rescaled from 2 to 4 instances, single vnodes are handed over between instances
    and workers, it is rescaled to 3, and a worker is killed; at the end its result is compared with
    Spark's batch result over the same input. Starting Spark and comparing take about a minute
    besides. Progress is shown on stderr.
    """
    request = ops.DemoRequest(
        query=query, seconds=seconds, rate=rate, workers=workers, state_mb=state_mb, keep=keep
    )
    with DemoDisplay() as display:
        outcome = ops.run_demo(request, say=display.line, show=display.show)
    emit(outcome.result, as_json, lambda _: demo_table(outcome))
    error = outcome.error
    return Exit.DONE if error is None else show_error(error, as_json=False)


def add_to(app: typer.Typer) -> None:
    """Put the verb into the command line."""
    codes = (Exit.REFUSED, Exit.ABORTED, Exit.DEGRADED)
    notes = {
        "unexpected": "also a result that differs from Spark's",
        "refused": "no Java 17, no PySpark 4.2",
        "aborted": "a handover did not complete",
    }
    app.command(**ends("rhinoctl demo --seconds 60 --state-mb 100", *codes, **notes))(demo)
