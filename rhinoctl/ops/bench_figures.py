"""From the batches that a bench measured to its figures. Pure.

The throughput of a batch is its rows over Spark's ``triggerExecution`` of it, for both engines: all
that one batch takes, Spark's own bookkeeping included. Medians are over all rounds together.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from statistics import median

from rhinoctl.errors import ResultMismatch


class Engine(Enum):
    """What runs the batches: EMPTY is a `foreachBatch` that does nothing."""

    RHINO = "rhino"
    SPARK = "spark"
    EMPTY = "empty"


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """One measured batch. `seconds` are the parts of its time that were measured in the callback,
    `spark_seconds` Spark's own ``durationMs`` without ``triggerExecution`` and ``addBatch``;
    `rows_out` is -1 where the output was not looked at."""

    rows: int
    rows_out: int
    batch_s: float
    seconds: Mapping[str, float]
    spark_seconds: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What the job tells of one engine's batches, after those to warm up."""

    engine: Engine
    batches: tuple[Batch, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """One engine's: rows per second and milliseconds at the median, the slowest batch, and where
    the time of a batch goes (medians of each part, so that their sum is not the median's)."""

    batches: int
    rows: int
    rows_out: int
    rows_per_s: float
    batch_ms: float
    batch_ms_max: float
    seconds: dict[str, float]
    spark_seconds: dict[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Added:
    """What a small batch costs over a `foreachBatch` that does nothing with the same source."""

    rows: int
    rhino: Figures
    empty_ms: float
    added_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchResult:
    """The one object that `rhinoctl bench steady --json` ends with; `ratio` is the throughput of
    rhino over Spark's."""

    query: str
    rows: int
    state_mb: int
    sink: str
    rounds: int
    rhino: Figures
    spark: Figures
    ratio: float
    added: Added | None


def figures(batches: Sequence[Batch]) -> Figures:
    """The figures of at least one batch."""
    times = [batch.batch_s for batch in batches]
    return Figures(
        batches=len(batches),
        rows=round(median(batch.rows for batch in batches)),
        rows_out=sum(batch.rows_out for batch in batches) if _looked_at(batches) else -1,
        rows_per_s=round(median(batch.rows / batch.batch_s for batch in batches), 1),
        batch_ms=round(1000 * median(times), 1),
        batch_ms_max=round(1000 * max(times), 1),
        seconds=_medians(batch.seconds for batch in batches),
        spark_seconds=_medians(batch.spark_seconds for batch in batches),
    )


def _looked_at(batches: Iterable[Batch]) -> bool:
    return all(batch.rows_out >= 0 for batch in batches)


def _medians(parts: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """The median of each part; a batch that has not a part spent nothing on it."""
    every = list(parts)
    names = list(dict.fromkeys(name for each in every for name in each))
    return {name: round(median(each.get(name, 0.0) for each in every), 6) for name in names}


def batches_of(measured: Iterable[Measured], engine: Engine) -> list[Batch]:
    """One engine's batches of all rounds."""
    return [batch for each in measured if each.engine is engine for batch in each.batches]


def added(measured: Sequence[Measured], rows: int) -> Added:
    """The difference of the medians."""
    rhino = figures(batches_of(measured, Engine.RHINO))
    empty = figures(batches_of(measured, Engine.EMPTY))
    return Added(
        rows=rows,
        rhino=rhino,
        empty_ms=empty.batch_ms,
        added_ms=round(rhino.batch_ms - empty.batch_ms, 1),
    )


def compare(measured: Sequence[Measured]) -> tuple[Figures, Figures, float]:
    """The figures of both engines and their ratio.

    Raises ResultMismatch if they put out another number of rows for the same input: then one of
    them did other work.
    """
    rhino = figures(batches_of(measured, Engine.RHINO))
    spark = figures(batches_of(measured, Engine.SPARK))
    if min(rhino.rows_out, spark.rows_out) >= 0 and rhino.rows_out != spark.rows_out:
        raise ResultMismatch(
            f"rhino put out {rhino.rows_out} rows and Spark {spark.rows_out} for the same input",
            remedy="run it again with --keep and report it with the directory",
        )
    return rhino, spark, round(rhino.rows_per_s / spark.rows_per_s, 3)
