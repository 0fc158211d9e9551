"""``rhinoctl bench``: how fast it is on this machine, beside Spark's own."""

from typing import Annotated

import typer

from rhinoctl.cli.options import Json, ends, group
from rhinoctl.errors import Exit
from rhinoctl.ops import bench as ops
from rhinoctl.render.bench import bench_table
from rhinoctl.render.output import emit, say

app = group("Measure how fast it is on this machine, beside Spark's own state store.")

NOTES = {
    "unexpected": "also if the engines put out different results",
    "refused": "no Java 17, no PySpark 4.2",
}


def _number(what: str, least: int, text: str) -> typer.models.OptionInfo:
    option: typer.models.OptionInfo = typer.Option(what, min=least, metavar="N", help=text)
    return option


@app.command(**ends("rhinoctl bench steady --state-mb 100", Exit.REFUSED, Exit.DEGRADED, **NOTES))
def steady(
    query: Annotated[
        str, typer.Option(metavar="NAME", help="The query: counts, q5 or q8.")
    ] = "counts",
    rows: Annotated[int, _number("--rows", 1, "Rows of a batch.")] = 1_000_000,
    batches: Annotated[int, _number("--batches", 1, "Batches of an engine in each round.")] = 5,
    warm_up: Annotated[int, _number("--warm-up", 0, "Batches before those, not measured.")] = 5,
    rounds: Annotated[int, _number("--rounds", 1, "How often both engines are measured.")] = 2,
    state_mb: Annotated[int, _number("--state-mb", 0, "State to fill in before.")] = 0,
    sink: Annotated[
        str, typer.Option(metavar="NAME", help="What is done with a result: fetch or drop.")
    ] = "fetch",
    added: Annotated[
        bool, typer.Option(help="Measure what a batch of 1,000 rows costs as well.")
    ] = True,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the directory with the logs.")] = False,
    as_json: Json = False,
) -> int:
    """Compare the throughput with that of Spark's own state store.

    The same generated events go through the same query twice: with state in two instances of
    rhinoctl, and as Spark's own over its RocksDB state store with changelog checkpoints. Each runs
    in a driver of its own (local[2]), in turns. The throughput of a batch is its rows over Spark's
    triggerExecution of it. The sink "fetch" brings each batch's result into the driver as Arrow,
    "drop" leaves it where it is. The second figure is what a batch of 1,000 rows takes more than a
    foreachBatch that does nothing.
    """
    request = ops.BenchRequest(
        query=query,
        rows=rows,
        batches=batches,
        warm_up=warm_up,
        rounds=rounds,
        state_mb=state_mb,
        sink=sink,
        added=added,
        keep=keep,
    )
    emit(ops.run_bench(request, say=say), as_json, bench_table)
    return Exit.DONE
