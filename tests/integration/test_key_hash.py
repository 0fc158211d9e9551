"""T16, stable key hash: the same vnode everywhere and in every release.

``golden/key_hash.json`` was written by Spark (``python -m tests.integration.test_key_hash`` writes
the numbers anew, for cases added to it; a number that changes loses state). Here Spark must still
give those numbers; ``tests/unit/operators/test_hashing.py`` holds our own hash to them, in
processes with other seeds of Python's hash.
"""

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from rhinoctl.ids import KEY_GROUPS
from rhinoctl.operators.hashing import key_groups
from tests.unit.operators.golden import GOLDEN, Case, columns_of, load

pytestmark = pytest.mark.spark


def by_spark(spark: SparkSession, cases: list[Case]) -> list[tuple[int, int]]:
    """Hash and key group of each case, in one row of one frame."""
    names, columns, hashes = [], [], []
    for number, case in enumerate(cases):
        mine = [f"c{number}_{at}" for at in range(len(case["types"]))]
        names += mine
        columns += columns_of(case)
        hashed = F.xxhash64(*mine)
        hashes += [hashed, F.pmod(hashed, F.lit(KEY_GROUPS)).cast("int")]
    frame = spark.createDataFrame(pa.Table.from_arrays(columns, names=names))
    row = frame.select(*hashes).first()
    return list(zip(row[::2], row[1::2], strict=True))


def test_spark_still_gives_the_golden_numbers(spark: SparkSession) -> None:
    cases = load()
    golden = [(int(case["hash"]), case["key_group"]) for case in cases]
    assert by_spark(spark, cases) == golden


def test_jvm_and_python_workers_agree(spark: SparkSession) -> None:
    """Wherever a task runs; PySpark gives its workers a hash seed that is not the driver's."""
    frame = spark.range(0, 3000, 1, 3).selectExpr(
        "id",
        "cast(id as string) as text",
        "repeat(cast(id as string), cast(id % 40 as int)) as long_text",
        "nullif(id % 3, 1) as some",
        "cast(id - 1500 as double) / 7 as number",
        "cast(id * 1000000007 - 5 as decimal(30,4)) as money",
    )
    keys = frame.columns
    hashed = frame.withColumn(
        "__kg", F.expr(f"cast(pmod(xxhash64({','.join(keys)}), 32768) as int)")
    )

    def compared(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            ours = key_groups([batch.column(key) for key in keys])
            yield pa.RecordBatch.from_arrays([batch["__kg"], pa.array(ours)], names=["jvm", "ours"])

    pairs = hashed.mapInArrow(compared, "jvm int, ours int").toArrow()
    assert pairs.num_rows == 3000
    assert pairs["jvm"].to_pylist() == pairs["ours"].to_pylist()


def one_group(frame: DataFrame) -> int:
    return len(frame.selectExpr("xxhash64(k) as h").distinct().collect())


def test_equal_keys_have_one_hash(spark: SparkSession) -> None:
    """What Spark groups together must be on one vnode: zeros and NaNs."""
    for held in ("double", "float"):
        zeros = spark.createDataFrame([(0.0,), (-0.0,)], f"k {held}")
        nans = spark.createDataFrame([(math.nan,), (-math.nan,)], f"k {held}")
        assert (one_group(zeros), one_group(nans)) == (1, 1)


def write(path: Path) -> None:
    spark = (
        SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
    )
    cases = load()
    filled: list[dict[str, Any]] = []
    for case, (hashed, group) in zip(cases, by_spark(spark, cases), strict=True):
        plain = {"types": case["types"], "values": case["values"]}
        filled.append(plain | {"hash": str(hashed), "key_group": group})
    lines = ",\n".join(json.dumps(case, ensure_ascii=True) for case in filled)
    path.write_text(f"[\n{lines}\n]\n", "utf-8")


if __name__ == "__main__":
    write(GOLDEN)
