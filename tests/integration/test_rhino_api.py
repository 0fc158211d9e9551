"""`Rhino` as the author of a job uses it, in a session of their own, on an embedded cluster."""

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from rhinoctl.errors import IdentityChanged, MissingColumn, RhinoError, SecondSession
from rhinoctl.operators import RunningAggregate, WindowAggregate
from rhinoctl.spark import Result, Rhino
from rhinoctl.spark.source import nexmark_batch, nexmark_stream
from tests.integration.running import Running

pytestmark = [pytest.mark.spark, pytest.mark.timeout(240)]

EVENTS = {"stream": "bid", "rate": 1_000_000, "base_ms": 0, "events": 20_000, "keys": 300}
COUNT = RunningAggregate(keys=["auction"], aggregates={"n": "count", "best": ("max", "price")})


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The controller's directory of a cluster of two workers, for all tests here."""
    running = Running(tmp_path_factory.mktemp("api"), workers=2)
    yield str(running.cluster)
    running.close()


def run_to_end(query: Any, *, within_s: float = 120.0) -> None:
    """Wait for the query's end, whether it is a success or not."""
    with contextlib.suppress(StreamingQueryException):
        assert query.awaitTermination(within_s)
    assert not query.isActive


class Collected:
    """What `then` was given: the newest row of each key, and both forms of each result."""

    def __init__(self) -> None:
        self.rows: dict[int, tuple[int, int]] = {}
        self.frames: list[tuple[pa.Table, list[Any]]] = []

    def __call__(self, result: Result, batch: int) -> None:
        if batch == 0:
            self.frames.append((result.arrow, result.df.collect()))
        for row in result.arrow.to_pylist():
            self.rows[row["auction"]] = (row["n"], row["best"])


def start(
    spark: SparkSession, rhino: Rhino, sink: Callable[[DataFrame, int], None], path: Path
) -> Any:
    stream = rhino.mark(nexmark_stream(spark, **EVENTS, max_events_per_batch=8000))
    writer = stream.writeStream.foreachBatch(sink).trigger(availableNow=True)
    return writer.option("checkpointLocation", str(path)).start()


def test_results_are_sparks_own_and_come_as_arrow_and_as_a_frame(
    spark: SparkSession, cluster: str, tmp_path: Path
) -> None:
    collected = Collected()
    with Rhino(spark, "api-counts", controller=cluster, instances=2, vnodes=8) as rhino:
        query = start(spark, rhino, rhino.sink(COUNT, then=collected), tmp_path / "c")
        run_to_end(query)
        assert query.exception() is None
    bids = nexmark_batch(spark, **EVENTS)
    expected = bids.groupBy("auction").agg(F.count("*"), F.max("price")).collect()
    assert collected.rows == {row[0]: (row[1], row[2]) for row in expected}
    table, rows = collected.frames[0]
    assert sorted(map(tuple, rows)) == sorted(tuple(r.values()) for r in table.to_pylist())


def test_the_last_windows_are_put_out_and_the_run_ends(
    spark: SparkSession, cluster: str, tmp_path: Path
) -> None:
    """With availableNow: the batch that the watermark asks for is run, and is the last."""
    operator = WindowAggregate(
        keys=["auction"],
        time="time",
        window="4 milliseconds",
        slide="2 milliseconds",
        watermark="1 millisecond",
        aggregates={"n": "count"},
        output="append",
    )
    rows: list[tuple[Any, ...]] = []
    batches: list[int] = []

    def take(result: Result, batch: int) -> None:
        batches.append(batch)
        rows.extend(
            (*row["window"].values(), row["auction"], row["n"]) for row in result.arrow.to_pylist()
        )

    with Rhino(spark, "api-windows", controller=cluster, vnodes=8) as rhino:
        query = start(spark, rhino, rhino.sink(operator, then=take), tmp_path / "c")
        run_to_end(query)
        assert rhino.fault is None
        marks = rhino.last.state.record.watermarks
    bids = nexmark_batch(spark, **EVENTS)
    window = F.window("time", "4 milliseconds", "2 milliseconds")
    own = bids.groupBy(window, "auction").agg(F.count("*").alias("n"))
    over = own.where(F.col("window.end") <= F.timestamp_millis(F.lit(marks.evict_ms))).toArrow()
    expected = [(*r["window"].values(), r["auction"], r["n"]) for r in over.to_pylist()]
    assert sorted(rows) == sorted(expected)
    last = bids.agg(F.max(F.unix_millis("time"))).first()[0]
    assert marks.evict_ms == last - 1
    assert batches == list(range(len(batches)))


@pytest.mark.slow
def test_names_of_columns_may_have_dots_and_quotes(
    spark: SparkSession, cluster: str, tmp_path: Path
) -> None:
    name = "the `auction`.id"
    operator = RunningAggregate(keys=[name], aggregates={"n": "count"})
    counted: dict[int, int] = {}

    def take(result: Result, batch: int) -> None:
        counted.update({row[name]: row["n"] for row in result.arrow.to_pylist()})

    with Rhino(spark, "api-names", controller=cluster, vnodes=8) as rhino:
        stream = nexmark_stream(spark, **{**EVENTS, "events": 500}).toDF(name, "b", "p", "t")
        writer = (
            rhino.mark(stream)
            .toDF(name, "b", "p", "t")
            .writeStream.foreachBatch(rhino.sink(operator, then=take))
        )
        writer = writer.trigger(availableNow=True)
        run_to_end(writer.option("checkpointLocation", str(tmp_path / "c")).start())
        assert rhino.fault is None
    assert sum(counted.values()) == 460


def test_a_missing_key_column_is_named_and_no_job_comes_of_it(
    spark: SparkSession, cluster: str, tmp_path: Path
) -> None:
    wrong = RunningAggregate(keys=["acution"], aggregates={"n": "count"})
    with Rhino(spark, "api-missing", controller=cluster) as rhino:
        with pytest.raises(MissingColumn, match="acution"):
            rhino.check(nexmark_stream(spark, **EVENTS), wrong)
        rhino.check(nexmark_stream(spark, **EVENTS), COUNT)
        query = start(spark, rhino, rhino.sink(wrong, then=Collected()), tmp_path / "c")
        run_to_end(query)
        assert isinstance(rhino.fault, MissingColumn)
        assert "acution" in rhino.fault.message
        assert "api-missing" not in {job.name for job in rhino.client.jobs().jobs}


def test_another_declaration_under_the_same_name_is_refused(
    spark: SparkSession, cluster: str, tmp_path: Path
) -> None:
    other = RunningAggregate(keys=["bidder"], aggregates={"n": "count"})
    first = _fault(spark, cluster, COUNT, tmp_path / "a")
    assert first is None
    assert isinstance(_fault(spark, cluster, other, tmp_path / "b"), IdentityChanged)


def _fault(
    spark: SparkSession, cluster: str, operator: RunningAggregate, path: Path
) -> RhinoError | None:
    with Rhino(spark, "api-same-name", controller=cluster, vnodes=8) as rhino:
        query = start(spark, rhino, rhino.sink(operator, then=Collected()), path)
        run_to_end(query)
        return rhino.fault


@pytest.mark.slow
def test_a_second_live_query_of_a_job_is_refused(
    spark: SparkSession, cluster: str, tmp_path: Path
) -> None:
    """Invariant 10: one session per job; the first goes on. On a machine so busy that the first is
    not heard of for seconds, the second is refused as another query of the job."""
    options = {**EVENTS, "rate": 500, "base_ms": int(time.time() * 1000), "events": 5000}
    with (
        Rhino(spark, "api-two", controller=cluster, vnodes=8) as first,
        Rhino(spark, "api-two", controller=cluster, vnodes=8) as second,
    ):
        collected = Collected()
        stream = first.mark(nexmark_stream(spark, **options))
        running = (
            stream.writeStream.foreachBatch(first.sink(COUNT, then=collected))
            .option("checkpointLocation", str(tmp_path / "first"))
            .start()
        )
        try:
            deadline = time.monotonic() + 60
            while not collected.rows and time.monotonic() < deadline:
                running.awaitTermination(1)
            query = start(spark, second, second.sink(COUNT, then=Collected()), tmp_path / "second")
            run_to_end(query)
            assert isinstance(second.fault, SecondSession | IdentityChanged)
            assert running.isActive
            assert first.fault is None
        finally:
            running.stop()
