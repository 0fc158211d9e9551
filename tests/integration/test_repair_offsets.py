"""Spark's offset log loses what was decided: the replay is refused, repaired, and counts once."""

import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from rhinoctl import limits
from rhinoctl.errors import IdentityChanged
from rhinoctl.ops.doctor import doctor
from rhinoctl.ops.offset_log import newest_commit
from rhinoctl.ops.repair_offsets import repair_offsets
from rhinoctl.protocol.findings import Check
from rhinoctl.spark import Result, Rhino
from rhinoctl.spark.source import nexmark_batch, nexmark_stream
from tests.integration.running import Running
from tests.integration.test_rhino_api import COUNT, EVENTS, Collected, run_to_end

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(240)]

JOB = "repaired"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[str]:
    running = Running(tmp_path / "running", workers=2)
    yield str(running.cluster)
    running.close()


class Failing(Collected):
    """Fails once a batch of this number is decided and applied, before Spark commits it."""

    def __init__(self, at: int | None) -> None:
        super().__init__()
        self.at = at

    def __call__(self, result: Result, batch: int) -> None:
        if batch == self.at:
            raise RuntimeError("the database is away")
        super().__call__(result, batch)


def run(
    spark: SparkSession,
    cluster: str,
    path: Path,
    collected: Collected,
    *,
    rows: int,
    before: int | None = None,
) -> tuple[Any, Any]:
    """A run of the query; how it failed for Spark, and for rhinoctl. With `before` no row can be
    read that is not before that event time."""
    with Rhino(spark, JOB, controller=cluster, instances=2, vnodes=8) as rhino:
        source = nexmark_stream(spark, **EVENTS, max_events_per_batch=rows)
        if before is not None:
            sound = F.unix_millis("time") < before
            beyond = F.raise_error(F.lit("the source is away")).cast("bigint")
            source = source.withColumn("price", F.when(sound, F.col("price")).otherwise(beyond))
        stream = rhino.mark(source)
        writer = stream.writeStream.foreachBatch(rhino.sink(COUNT, then=collected))
        query = writer.option("checkpointLocation", str(path)).trigger(availableNow=True).start()
        run_to_end(query)
        return query.exception(), rhino.fault


@pytest.mark.parametrize("version", ["1", "2"])
def test_a_batch_gets_its_decided_offsets_back(
    spark: SparkSession, cluster: str, tmp_path: Path, version: str
) -> None:
    """Invariant 11: rows are never dropped or doubled on such evidence."""
    setting = "spark.sql.streaming.offsetLog.formatVersion"
    path, collected = tmp_path / "ck", Failing(at=1)
    spark.conf.set(setting, version)
    try:
        failed, _ = run(spark, cluster, path, collected, rows=8000)
        assert failed is not None
        assert [(path / kind / "1").exists() for kind in ("offsets", "commits")] == [True, False]
        for name in ("1", ".1.crc"):  # the disk loses it, and Spark plans the batch anew
            (path / "offsets" / name).unlink()
        collected.at = None
        failed, fault = run(spark, cluster, path, collected, rows=5000)
        assert isinstance(fault, IdentityChanged)
        assert f"job repair-offsets {JOB}" in fault.remedy
        time.sleep(limits.SESSION_LIVE_S + 1.0)
        found = doctor(cluster, job=JOB, checkpoint=str(path))
        assert [each.check for each in found.findings] == [Check.OFFSETS_DIFFER]
        repaired = repair_offsets(cluster, JOB, checkpoint=str(path))
        assert (repaired.written, (path / "offsets" / "1").read_text()[:2]) == (True, f"v{version}")
        assert doctor(cluster, job=JOB, checkpoint=str(path)).findings == ()
        failed, fault = run(spark, cluster, path, collected, rows=8000)
        assert (failed, fault) == (None, None)
    finally:
        spark.conf.unset(setting)
    bids = nexmark_batch(spark, **EVENTS)
    expected = bids.groupBy("auction").agg(F.count("*"), F.max("price")).collect()
    assert collected.rows == {row[0]: (row[1], row[2]) for row in expected}


def tear(path: Path, name: str) -> None:
    """The disk loses the end of a file of Spark's, and its checksum."""
    file = path / name
    file.write_bytes(file.read_bytes()[:40] if len(file.read_bytes()) > 40 else b"v1\n{")
    file.with_name(f".{file.name}.crc").unlink(missing_ok=True)


@pytest.mark.parametrize("what", ["offsets", "commits"])
def test_spark_starts_again_after_its_newest_entry_or_commit_was_torn(
    spark: SparkSession, cluster: str, tmp_path: Path, what: str
) -> None:
    path, collected = tmp_path / "ck", Failing(at=None)
    assert run(spark, cluster, path, collected, rows=8000) == (None, None)
    newest = newest_commit(path)
    if what == "offsets":  # of a batch that was planned, and not decided
        shutil.copy(path / "offsets" / str(newest), path / "offsets" / str(newest + 1))
        newest += 1
    tear(path, f"{what}/{newest}")
    failed, _ = run(spark, cluster, path, collected, rows=8000)
    assert failed is not None
    time.sleep(limits.SESSION_LIVE_S + 1.0)
    (finding,) = doctor(cluster, job=JOB, checkpoint=str(path)).findings
    check = Check.OFFSETS_UNREADABLE if what == "offsets" else Check.COMMIT_UNREADABLE
    assert finding.check is check
    (mended,) = repair_offsets(cluster, JOB, checkpoint=str(path)).others
    assert mended.file == str(path / what / str(newest))
    assert doctor(cluster, job=JOB, checkpoint=str(path)).findings == ()
    assert run(spark, cluster, path, collected, rows=8000) == (None, None)


def test_spark_starts_again_after_it_lost_the_commit_of_a_batch_that_it_had_gone_past(
    spark: SparkSession, cluster: str, tmp_path: Path
) -> None:
    """The disk goes back by a moment: the next batch had begun, and nothing of it is left."""
    path, collected = tmp_path / "ck", Failing(at=None)
    failed, _ = run(spark, cluster, path, collected, rows=8000, before=16)
    assert failed is not None
    assert newest_commit(path) == 1
    for name in ("offsets/2", "offsets/.2.crc", "commits/1", "commits/.1.crc"):
        (path / name).unlink()
    failed, fault = run(spark, cluster, path, collected, rows=8000)
    assert isinstance(fault, IdentityChanged)
    assert f"job repair-offsets {JOB}" in fault.remedy
    time.sleep(limits.SESSION_LIVE_S + 1.0)
    (finding,) = doctor(cluster, job=JOB, checkpoint=str(path)).findings
    assert finding.check is Check.COMMIT_LOST
    repaired = repair_offsets(cluster, JOB, checkpoint=str(path))
    assert [mended.file for mended in repaired.others] == [str(path / "commits" / "1")]
    assert not repaired.written
    assert doctor(cluster, job=JOB, checkpoint=str(path)).findings == ()
    assert run(spark, cluster, path, collected, rows=8000) == (None, None)
    bids = nexmark_batch(spark, **EVENTS)
    expected = bids.groupBy("auction").agg(F.count("*"), F.max("price")).collect()
    assert collected.rows == {row[0]: (row[1], row[2]) for row in expected}
