"""The end of a bench for eyes: two throughputs and their ratio, and where a batch's time goes."""

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from rhinoctl.ops.bench_figures import Added, BenchResult
from rhinoctl.render.tables import columns, spaced
from rhinoctl.render.units import count, milliseconds

PARTS = {
    "open": "open",
    "stage": "source and stage",
    "seal": "seal",
    "apply": "apply",
    "output": "output",
    "query": "query and output",
    "driver": "rhinoctl's driver",
    "spark": "Spark's own",
}
"""The parts of a batch as `rhinoctl.spark.bench` names them, in the order of the table."""


def bench_table(result: BenchResult) -> RenderableType:
    """All of it."""
    state = f", {result.state_mb} MB of state besides" if result.state_mb else ""
    title = f"{result.query}: batches of {count(result.rows)} rows{state}, sink {result.sink}"
    ratio = f"ratio {result.ratio:.2f} (throughput of rhino over Spark's)"
    return spaced(
        [
            Text(title, "bold"),
            _throughput(result),
            Text(ratio, "green" if result.ratio >= 1 else "yellow"),
            _parts(result),
            Text(_added(result.added)) if result.added is not None else None,
        ]
    )


def _throughput(result: BenchResult) -> Table:
    table = columns("ENGINE", "BATCHES>", "ROWS/S>", "BATCH>", "SLOWEST>")
    for name, found in (("rhino", result.rhino), ("spark", result.spark)):
        table.add_row(
            name,
            count(found.batches),
            count(found.rows_per_s),
            milliseconds(found.batch_ms),
            milliseconds(found.batch_ms_max),
        )
    return table


def _parts(result: BenchResult) -> Table:
    """Medians; steps of Spark's own are indented under it."""
    shown = {"RHINO>": result.rhino, "SPARK>": result.spark}
    if result.added is not None:
        shown[f"RHINO, {count(result.added.rows)} ROWS>"] = result.added.rhino
    table = columns("WHERE THE TIME GOES", *shown)
    every = list(shown.values())
    for part, words in PARTS.items():
        _row(table, words, [each.seconds.get(part) for each in every])
    for step in dict.fromkeys(step for each in every for step in each.spark_seconds):
        _row(table, f"  {step}", [each.spark_seconds.get(step) for each in every])
    return table


def _row(table: Table, words: str, seconds: list[float | None]) -> None:
    if any(each is not None for each in seconds):
        shown = (milliseconds(None if each is None else 1000 * each) for each in seconds)
        table.add_row(words, *shown)


def _added(added: Added) -> str:
    return (
        f"A batch of {count(added.rows)} rows adds {milliseconds(added.added_ms)} at the median:"
        f" it takes {milliseconds(added.rhino.batch_ms)}, and {milliseconds(added.empty_ms)} with"
        f" a foreachBatch that does nothing."
    )
