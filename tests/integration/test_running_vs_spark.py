"""`RunningAggregate` over odd values equals Spark's own ``groupBy().agg()``, types included.

The frame goes the way of the product: Spark computes the key group, Arrow carries the rows; they
are cut into batches and channels at random, and the state after the last one is Spark's answer.
"""

import math
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from rhinoctl.ids import KEY_GROUPS
from rhinoctl.operators import KEY_GROUP, ArithmeticOverflow, RunningAggregate, bound_from_json
from tests.unit.operators.driving import Instance

pytestmark = pytest.mark.spark

LONG_MAX = 2**63 - 1
INSTANTS = [
    datetime(1899, 12, 31, 23, 59, 59, 999999, tzinfo=UTC),
    datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=UTC),
    datetime(2024, 3, 31, 1, 30, tzinfo=UTC),
    datetime(2024, 10, 27, 0, 30, tzinfo=UTC),
    datetime(2024, 10, 27, 1, 30, tzinfo=UTC),
]
# Numbers are such that a sum of doubles does not depend on the order of rows.
POOLS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "flag": (pa.bool_(), [True, False]),
    "tiny": (pa.int8(), [-128, 0, 127]),
    "short": (pa.int16(), [-32768, 0, 32767]),
    "whole": (pa.int32(), [-(2**31), -1, 0, 2**31 - 1]),
    "long": (pa.int64(), [-(2**43), -1, 0, 1, 2**43]),
    "float": (pa.float32(), [0.0, -0.0, 1.5, -2.25, math.inf, math.nan]),
    "double": (pa.float64(), [0.0, -0.0, 0.5, -1.25, 2.0**40, -math.inf, math.inf, math.nan]),
    "finite": (pa.float64(), [0.0, 0.5, -1.25, 2.0**40]),
    "text": (pa.string(), ["", "a", "A", "a\0", "é", "e\u0301", "\uffff", "\U0001f600", "b" * 40]),
    "bytes": (pa.binary(), [b"", b"\0", b"\x7f", b"\x80", b"\xff\0", b"\xff"]),
    "day": (pa.date32(), [date(1, 1, 1), date(1969, 12, 31), date(2024, 2, 29)]),
    "instant": (pa.timestamp("us", "UTC"), INSTANTS),
    "local": (pa.timestamp("us"), [each.replace(tzinfo=None) for each in INSTANTS]),
    "span": (pa.duration("us"), [timedelta(-1, microseconds=1), timedelta(0), timedelta(2)]),
    "money": (pa.decimal128(12, 2), [Decimal("-0.01"), Decimal("0.00"), Decimal("9999.99")]),
    "big": (pa.decimal128(38, 3), [Decimal("-1e30"), Decimal("0.001"), Decimal("1e30")]),
}
SUMMED = ("tiny", "short", "whole", "long", "float", "double", "finite")
AGGREGATES: dict[str, str | tuple[str, str]] = {
    "n": "count",
    **{f"count_{column}": ("count", column) for column in POOLS},
    **{f"sum_{column}": ("sum", column) for column in SUMMED},
    **{f"avg_{column}": ("avg", column) for column in SUMMED},
    **{f"{pick}_{column}": (pick, column) for pick in ("min", "max") for column in POOLS},
}
KEYS = [
    *[["flag"], ["tiny"], ["short"], ["whole"], ["long"], ["float"], ["double"], ["text"]],
    *[["bytes"], ["day"], ["instant"], ["local"], ["span"], ["money"], ["big"]],
    *[["text", "double"], ["bytes", "text", "flag"], ["double", "instant", "big"]],
]


@pytest.fixture(scope="module")
def frame(spark: SparkSession) -> DataFrame:
    """600 rows of odd values, a fifth of them null; whole groups are null in a column or two."""
    random = Random(7)
    columns = {}
    for name, (held, pool) in POOLS.items():
        values = [random.choice(pool) if random.random() < 0.8 else None for _ in range(600)]
        columns[name] = pa.array(values, held)
    return spark.createDataFrame(pa.table(columns)).cache()


def by_spark(frame: DataFrame, keys: list[str], aggregates: dict[str, Any]) -> pa.Table:
    def column(name: str, form: str | tuple[str, str]) -> Column:
        function, over = (form, "*") if isinstance(form, str) else form
        return getattr(F, function)(over).alias(name)

    columns = [column(name, form) for name, form in aggregates.items()]
    return frame.groupBy(*keys).agg(*columns).toArrow()


def by_us(frame: DataFrame, operator: RunningAggregate, *, batches: int) -> pa.Table:
    """The state after the frame's rows came in batches of two channels."""
    hashed = F.pmod(F.xxhash64(*operator.keys), F.lit(KEY_GROUPS)).cast("int")
    rows = frame.select(*operator.columns(), hashed.alias(KEY_GROUP)).toArrow()
    bound = operator.bind(rows.schema)
    instance = Instance(bound_from_json(bound.to_json()), vnodes=8)
    random = Random(rows.num_rows)
    cuts = sorted(random.randrange(rows.num_rows + 1) for _ in range(2 * batches - 1))
    parts = [
        rows.slice(start, end - start)
        for start, end in zip([0, *cuts], [*cuts, rows.num_rows], strict=True)
    ]
    for at in range(0, len(parts), 2):
        instance.run(parts[at : at + 2])
    return instance.state()


def comparable(table: pa.Table, keys: list[str]) -> dict[tuple[Any, ...], dict[str, Any]]:
    """Rows by key; NaN equals NaN."""
    found = {}
    for row in table.to_pylist():
        for name, value in row.items():
            if isinstance(value, float) and math.isnan(value):
                row[name] = "NaN"
        key = tuple(row[name] for name in keys)
        assert key not in found
        found[key] = row
    return found


@pytest.mark.parametrize("keys", KEYS, ids=" ".join)
def test_equals_spark(frame: DataFrame, keys: list[str]) -> None:
    aggregates = {name: form for name, form in AGGREGATES.items() if name not in keys}
    expected = by_spark(frame, keys, aggregates)
    ours = by_us(frame, RunningAggregate(keys, aggregates), batches=4)
    assert comparable(ours, keys) == comparable(expected, keys)
    assert ours.schema.names == expected.schema.names
    assert ours.schema.types == expected.schema.types


@pytest.mark.parametrize("zone", ["America/New_York", "Asia/Kathmandu"])
def test_the_session_s_time_zone_moves_nothing(
    spark: SparkSession, frame: DataFrame, zone: str
) -> None:
    aggregates = {"n": "count", "first": ("min", "instant"), "last": ("max", "local")}
    here = by_us(frame, RunningAggregate(["instant"], aggregates), batches=2)
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", zone)
    try:
        there = by_us(frame, RunningAggregate(["instant"], aggregates), batches=2)
        expected = by_spark(frame, ["instant"], aggregates)
    finally:
        spark.conf.set("spark.sql.session.timeZone", before)
    assert there == here
    assert comparable(there, ["instant"]) == comparable(expected, ["instant"])


def sums(spark: SparkSession, *values: int) -> DataFrame:
    return spark.createDataFrame([(1, value) for value in values], "k long, v long")


def test_overflow_is_an_error_where_it_is_spark_s(spark: SparkSession) -> None:
    frame = sums(spark, LONG_MAX, 1)
    with pytest.raises(Exception, match="ARITHMETIC_OVERFLOW"):
        by_spark(frame, ["k"], {"total": ("sum", "v")})
    for batches in (1, 2):
        with pytest.raises(ArithmeticOverflow, match="ARITHMETIC_OVERFLOW"):
            by_us(frame, RunningAggregate(["k"], {"total": ("sum", "v")}), batches=batches)


def test_overflow_wraps_where_it_does_in_spark(spark: SparkSession) -> None:
    frame = sums(spark, LONG_MAX, LONG_MAX, 5)
    before = spark.conf.get("spark.sql.ansi.enabled")
    spark.conf.set("spark.sql.ansi.enabled", "false")
    try:
        expected = by_spark(frame, ["k"], {"total": ("sum", "v")})
    finally:
        spark.conf.set("spark.sql.ansi.enabled", before)
    wrapping = RunningAggregate(["k"], {"total": ("sum", "v")}, ansi=False)
    assert by_us(frame, wrapping, batches=2) == expected
