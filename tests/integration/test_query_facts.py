"""What Spark says of a running query, as `rhinoctl.spark.query` reads it."""

import json
import time
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from rhinoctl.spark.query import BatchFacts, QueryFacts, marker_of
from rhinoctl.spark.source import nexmark_stream

pytestmark = [pytest.mark.spark, pytest.mark.timeout(120)]


def run(spark: SparkSession, facts: QueryFacts, path: Path, events: int) -> tuple[Any, list[Any]]:
    """Run a query to the end of what is there; the query, and the facts of its batches."""
    found: list[BatchFacts] = []

    def take(frame: DataFrame, batch: int) -> None:
        found.append(facts.of(frame, batch))

    options = {"rate": 1000, "base_ms": 0, "events": events, "max_events_per_batch": 100}
    writer = nexmark_stream(spark, **options).writeStream.foreachBatch(take)
    query = writer.option("checkpointLocation", str(path)).trigger(availableNow=True).start()
    assert query.awaitTermination(60)
    assert query.exception() is None
    return query, found


def test_each_batch_begins_where_the_one_before_ended(spark: SparkSession, tmp_path: Path) -> None:
    facts = QueryFacts(spark)
    before_ms = int(time.time() * 1000)
    query, first = run(spark, facts, tmp_path / "c", events=250)
    assert [each.batch for each in first] == [0, 1, 2]
    assert first[0].start_offsets == ""
    assert [each.start_offsets for each in first[1:]] == [f.end_offsets for f in first[:-1]]
    assert [each.rows_at_most for each in first] == [None, 100, 50], "as far as it can be told"
    ends = [json.loads(json.loads(each.end_offsets)[0])["n"] for each in first]
    assert ends == [100, 200, 250]
    assert {(each.query_id, each.run_id) for each in first} == {(str(query.id), str(query.runId))}
    assert all(before_ms <= each.batch_time_ms <= time.time() * 1000 for each in first)

    again, later = run(spark, facts, tmp_path / "c", events=300)
    assert later[0].start_offsets == first[-1].end_offsets, "from Spark's log, not from memory"
    assert later[0].query_id == str(query.id)
    assert later[0].run_id == str(again.runId) != str(query.runId)


def test_rows_are_bounded_only_where_a_plan_makes_none(spark: SparkSession, tmp_path: Path) -> None:
    """A filter leaves the bound, an explosion may have any number of rows."""
    options = {"rate": 1000, "base_ms": 0, "events": 250, "max_events_per_batch": 100}
    for name, expected in (("kept", [None, 100, 50]), ("exploded", [None] * 3)):
        facts = QueryFacts(spark)
        found: list[int | None] = []

        def take(
            frame: DataFrame, batch: int, facts: QueryFacts = facts, to: list[int | None] = found
        ) -> None:
            to.append(facts.of(frame, batch).rows_at_most)

        stream = (
            nexmark_stream(spark, **options).where("price > 3").withWatermark("time", "1 second")
        )
        if name == "exploded":
            stream = stream.selectExpr("explode(sequence(1, price % 100)) AS n")
        writer = stream.writeStream.foreachBatch(take).trigger(availableNow=True)
        query = writer.option("checkpointLocation", str(tmp_path / name)).start()
        assert query.awaitTermination(60)
        assert found == expected


def test_the_marker_is_found_among_the_offsets() -> None:
    assert marker_of(json.dumps(['{"n": 7}', '{"marker": 12}'])) == 12
    assert marker_of(json.dumps({"0": '{"marker": 12}', "1": None})) == 12
    assert marker_of(json.dumps(['{"n": 7, "marker": 3}', None, '"text"'])) == 0
