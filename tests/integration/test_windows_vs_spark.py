"""Operators over event time put out in each batch what Spark's own stateful query puts out.

Each batch is a file for Spark, read one at a time; the same rows come to the operator cut at random
into tasks. Rows are out of order, late, without time, and before 1970.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from rhinoctl.operators import (
    KEY_GROUP,
    Operator,
    WindowAggregate,
    WindowJoin,
    bound_from_json,
)
from rhinoctl.protocol import watermarks
from rhinoctl.protocol.records import NO_WATERMARKS
from rhinoctl.spark import gather
from rhinoctl.spark.staging import projection
from rhinoctl.spark.tagging import tagged
from tests.unit.operators.driving import Instance, routed

pytestmark = pytest.mark.spark

TIME = pa.timestamp("us", "UTC")
FRAME = pa.schema([("user", pa.string()), ("at", TIME), ("price", pa.int64())])
VNODES = 8

Rows = list[tuple[Any, ...]]
Build = Callable[[DataFrame], DataFrame]


def files(directory: Path, batches: list[pa.Table]) -> str:
    """One file a batch, in the order of their times."""
    directory.mkdir()
    for number, table in enumerate(batches):
        path = directory / f"{number:03d}.parquet"
        pq.write_table(table, path)
        os.utime(path, (1_700_000_000 + number, 1_700_000_000 + number))
    return str(directory)


def reading(spark: SparkSession, directory: str, schema: pa.Schema) -> DataFrame:
    empty = spark.createDataFrame(schema.empty_table())
    return spark.readStream.schema(empty.schema).option("maxFilesPerTrigger", 1).parquet(directory)


def by_spark(query: DataFrame, mode: str, checkpoint: Path) -> dict[int, Rows]:
    """What each batch of Spark's own query puts out, the one without data at the end included."""
    found: dict[int, Rows] = {}

    def take(frame: DataFrame, batch: int) -> None:
        found[batch] = comparable(frame.toArrow())

    writer = query.writeStream.foreachBatch(take).outputMode(mode)
    started = (
        writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    )
    assert started.awaitTermination(300)
    assert started.exception() is None
    return found


@dataclass
class Ours:
    """The operator, driven as the product drives it."""

    operator: Operator
    random: Random

    def batches(self, frames: list[DataFrame]) -> dict[int, Rows]:
        """What each batch puts out, and the one that is woken at the end."""
        instance = None
        marks = NO_WATERMARKS
        found: dict[int, Rows] = {}
        for number, frame in enumerate(frames):
            rows = self._staged(frame, compared=number < 2)
            if instance is None:
                bound = self.operator.bind(rows.drop_columns([KEY_GROUP]).schema)
                bound = bound_from_json(bound.to_json())
                instance = Instance(bound, VNODES)
            seen: tuple[int | None, ...] = ()
            slices = []
            for part in self._parts(rows):
                seen = watermarks.greatest(seen, bound.event_times(part))
                slices += routed(bound.pre_aggregate(part), VNODES)
            marks = watermarks.of_batch(marks, bound.delays_ms, seen)
            found[number] = comparable(instance.apply(slices, marks).output)
        assert instance is not None
        if watermarks.rises(marks, bound.delays_ms):
            marks = watermarks.of_batch(marks, bound.delays_ms, ())
            found[len(frames)] = comparable(instance.apply([], marks).output)
        return found

    def _staged(self, frame: DataFrame, *, compared: bool) -> pa.Table:
        """The columns that cross from the JVM, and the key group; gathered rows are the same."""
        rows = frame.selectExpr(*projection(self.operator)).toArrow()
        rows = rows.rename_columns([KEY_GROUP, *self.operator.columns()])
        if compared:
            gathered = gather.routed(frame.toArrow(), self.operator)
            assert gathered.to_pylist() == rows.to_pylist()
            assert gathered.schema.types == rows.schema.types
        return rows

    def _parts(self, rows: pa.Table) -> list[pa.Table]:
        cuts = sorted(self.random.randrange(rows.num_rows + 1) for _ in range(2))
        edges = [0, *cuts, rows.num_rows]
        return [rows.slice(a, b - a) for a, b in pairwise(edges)]


def comparable(table: pa.Table) -> Rows:
    return sorted(tuple(map(str, row.values())) for row in table.to_pylist())


def moments(random: Random, start: datetime, batches: int, pace_s: int) -> list[pa.Table]:
    """Batches whose times go on by `pace_s`, a third of them out of order by up to a minute."""
    made = []
    for number in range(batches):
        rows = []
        for _ in range(random.randrange(5, 40)):
            at = start + timedelta(seconds=number * pace_s, microseconds=random.randrange(10**7))
            if random.random() < 0.3:
                at -= timedelta(seconds=random.randrange(60))
            price = random.choice([None, *range(-3, 9)])
            who = random.choice(["a", "b", "c", "d", None])
            rows.append((who, None if random.random() < 0.05 else at, price))
        columns = [pa.array([row[n] for row in rows], FRAME.field(n).type) for n in range(3)]
        made.append(pa.table(columns, schema=FRAME))
    return made


AGGREGATES = {
    "n": "count",
    "total": ("sum", "price"),
    "least": ("min", "price"),
    "most": ("max", "price"),
    "mean": ("avg", "price"),
}
NOW = datetime(2024, 3, 31, 0, 59, 30, tzinfo=UTC)  # half a minute before Europe's clocks change

LONG_AGO = datetime(1969, 12, 31, 23, 59, 20, tzinfo=UTC)


@dataclass(frozen=True)
class Windows:
    window: str
    slide: str | None
    watermark: str
    mode: str
    start: datetime = NOW
    zone: str = "UTC"
    pace_s: int = 15


CASES = [
    pytest.param(Windows("10 seconds", None, "5 seconds", "append"), marks=pytest.mark.slow),
    Windows("30 seconds", "10 seconds", "12 seconds", "append", zone="Europe/Berlin"),
    pytest.param(
        Windows("25 seconds", "10 seconds", "0 seconds", "update", zone="Asia/Kathmandu"),
        marks=pytest.mark.slow,
    ),
    pytest.param(
        Windows("1 day", "6 hours", "2 hours", "append", pace_s=30_000, zone="Europe/Berlin"),
        marks=pytest.mark.slow,
    ),
    Windows("20 seconds", None, "5 seconds", "update", start=LONG_AGO),
]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_window_aggregate(spark: SparkSession, tmp_path: Path, case: Windows) -> None:
    random = Random(str(case))
    tables = moments(random, case.start, batches=6, pace_s=case.pace_s)
    stream = reading(spark, files(tmp_path / "in", tables), FRAME)
    window = F.window("at", case.window, case.slide or case.window)
    columns = [
        getattr(F, form if isinstance(form, str) else form[0])(
            "*" if isinstance(form, str) else form[1]
        ).alias(name)
        for name, form in AGGREGATES.items()
    ]
    operator = WindowAggregate(
        ["user"],
        AGGREGATES,
        time="at",
        window=case.window,
        slide=case.slide,
        watermark=case.watermark,
        output=case.mode,
    )
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", case.zone)
    try:
        query = stream.withWatermark("at", case.watermark).groupBy(window, "user").agg(*columns)
        expected = by_spark(query, case.mode, tmp_path / "checkpoint")
        found = Ours(operator, random).batches([spark.createDataFrame(t) for t in tables])
    finally:
        spark.conf.set("spark.sql.session.timeZone", before)
    assert found == expected
    assert sum(map(len, expected.values())) > 10


def joined_sides(random: Random, batches: int) -> tuple[list[pa.Table], list[pa.Table]]:
    """Persons and auctions, out of order and late; the auctions are behind."""
    left = pa.schema([("id", pa.int64()), ("name", pa.string()), ("time", TIME)])
    right = pa.schema([("seller", pa.int64()), ("reserve", pa.int32()), ("time", TIME)])
    sides: tuple[list[pa.Table], list[pa.Table]] = ([], [])
    for number in range(batches):
        for schema, made, behind in zip((left, right), sides, (0, 7), strict=True):
            rows = []
            for _ in range(random.randrange(5, 30)):
                at = NOW + timedelta(
                    seconds=number * 12 - behind, milliseconds=random.randrange(9000)
                )
                if random.random() < 0.3:
                    at -= timedelta(seconds=random.randrange(60))
                key = random.choice([None, *range(6)])
                if random.random() < 0.05:  # does a row that cannot match raise the watermark?
                    key, at = None, at + timedelta(seconds=30)
                value = random.choice(["a", "b", None]) if schema is left else random.randrange(99)
                rows.append((key, value, None if random.random() < 0.05 else at))
            columns = [pa.array([row[n] for row in rows], schema.field(n).type) for n in range(3)]
            made.append(pa.table(columns, schema=schema))
    return sides


@pytest.mark.timeout(300)
def test_window_join(spark: SparkSession, tmp_path: Path) -> None:
    random = Random(8)
    lefts, rights = joined_sides(random, batches=6)
    left = reading(spark, files(tmp_path / "left", lefts), lefts[0].schema)
    right = reading(spark, files(tmp_path / "right", rights), rights[0].schema)
    window = F.window("time", "20 seconds").alias("window")
    left = left.withWatermark("time", "5 seconds").select(window, "id", "name")
    right = right.withWatermark("time", "9 seconds").select(window, "seller", "reserve")
    same = (left["id"] == right["seller"]) & (left["window"] == right["window"])
    query = left.join(right, same).select(left["window"], "id", "name", "reserve")
    expected = by_spark(query, "append", tmp_path / "checkpoint")
    operator = WindowJoin(
        keys={"left": ["id"], "right": ["seller"]},
        time="time",
        window="20 seconds",
        watermark={"left": "5 seconds", "right": "9 seconds"},
        select={"left": ["id", "name"], "right": ["reserve"]},
    )
    frames = [
        tagged(left=spark.createDataFrame(a), right=spark.createDataFrame(b))
        for a, b in zip(lefts, rights, strict=True)
    ]
    found = Ours(operator, random).batches(frames)
    assert found == expected
    assert sum(map(len, expected.values())) > 50
