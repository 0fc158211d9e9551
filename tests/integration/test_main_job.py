"""The main job on real processes, some of which are killed: equal to Spark all the same.

Each test names the design's invariant or the scenario that it shows.
"""

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from rhinoctl.ops.demo_kill import failover_of, kill_worker
from rhinoctl.protocol.views import BindRequest, HandoverRequest, RescaleRequest
from tests.integration.running import JOB, Start, starting

pytestmark = pytest.mark.spark


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Start]:
    with starting(tmp_path) as make:
        yield make


@pytest.mark.timeout(600)
def test_t1_rescale_and_single_vnodes_under_load(running: Start) -> None:
    """T1, short: 2 → 4 → 3 instances and single vnodes while records flow; equal to Spark."""
    job = running(workers=3, seconds=12, state_mb=5)
    job.start()
    job.until(lambda e: e["event"] == "clock")
    job.batches(2)
    grown = job.client.rescale(JOB, RescaleRequest(instances=4))
    assert job.ended(grown.id).phase.value == "complete"
    instances = job.client.job(JOB).instances
    assert sorted(len(i.vnodes) for i in instances) == [4, 4, 4, 4]
    assert {i.worker for i in instances} == {"w1", "w2", "w3"}
    target = instances[0].id
    moved = job.client.handover(JOB, HandoverRequest(vnodes=(9, 15), to=target))
    assert job.ended(moved.id).phase.value == "complete"
    assert {9, 15} <= set(job.client.job(JOB).instances[0].vnodes)
    shrunk = job.client.rescale(JOB, RescaleRequest(instances=3))
    assert job.ended(shrunk.id).phase.value == "complete"
    assert len(job.client.job(JOB).instances) == 3
    assert job.result()["oracle"]["equal"]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_windows_move_while_they_are_open(running: Start) -> None:
    """T1 for windows, short: the join of Q8, rescaled and its driver killed inside a window."""
    job = running(workers=2, seconds=8, query="q8", rate=2000)
    job.start()
    job.until(lambda e: e["event"] == "clock")
    job.batches(2)
    grown = job.client.rescale(JOB, RescaleRequest(instances=3))
    assert job.ended(grown.id).phase.value == "complete"
    job.kill_job()
    job.start(partitions=3)
    verdict = job.result()["oracle"]
    assert verdict["equal"]
    assert verdict["rows"] > 0


@pytest.mark.slow
def test_t3_a_worker_is_killed_under_load(running: Start) -> None:
    """T3, short: agent and instances die by SIGKILL, the query goes on, and nothing is fetched."""
    job = running(workers=3, seconds=8, instances=3, replication=1)
    job.start()
    job.until(lambda e: e["event"] == "clock")
    job.batches(3)
    accident = kill_worker(job.cluster, job.client, JOB)
    job.batches(2)
    view = failover_of(job.client, accident)
    assert view is not None
    assert job.ended(view.id).phase.value == "complete"
    assert view.bytes_moved == 0
    assert job.result()["oracle"]["equal"]
    assert job.client.job(JOB).lacking == 0, "copies are made anew on the two that are left"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_driver_killed_in_mid_batch_and_replayed_in_another_split(running: Start) -> None:
    """Invariants 2 and 13: kill -9 of the driver between and within batches; the replay comes from
    another number of tasks."""
    job = running(workers=1, seconds=8)
    job.start()
    job.batches(2)
    job.kill_job()
    job.start(partitions=3)
    job.batches(1)
    job.kill_job()
    job.start(partitions=1)
    assert job.result()["oracle"]["equal"]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_t2a_last_commit_deleted_applies_nothing_twice(running: Start) -> None:
    """T2 (a): the batch that Spark repeats was applied already; state and output are unchanged."""
    job = running(workers=1, seconds=6)
    job.start()
    last = job.batches(3)["batch"]
    job.kill_job()
    commits = job.directory / "job" / "checkpoint" / "commits"
    numbers = sorted(int(p.name) for p in commits.iterdir() if p.name.isdigit())
    (commits / str(numbers[-1])).unlink()
    (commits / f".{numbers[-1]}.crc").unlink(missing_ok=True)
    job.start()
    repeated = job.until(lambda e: e["event"] == "batch")
    assert repeated["batch"] in (last, last + 1)
    assert job.result()["oracle"]["equal"]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_t2cd_another_identity_is_refused_and_a_new_stream_is_explicit(running: Start) -> None:
    """T2 (c, d): with lost metadata (Spark 4.3 refuses that itself), with another query's, or with
    an empty checkpoint, nothing is written; a new stream over the same state has to be asked for,
    and opens the next generation."""
    job = running(workers=1, seconds=6)
    job.start()
    job.batches(2)
    job.kill_job()
    checkpoint = job.directory / "job" / "checkpoint"
    (checkpoint / "metadata").unlink()
    (checkpoint / ".metadata.crc").unlink(missing_ok=True)
    job.start()
    assert job.exit_code() not in (0, None)
    job.kill_job()
    before = job.client.job(JOB)  # only now: the agents have since told what was decided last
    (checkpoint / "metadata").write_text('{"id":"00000000-0000-0000-0000-000000000000"}')
    job.start()
    assert job.error()["code"] == "identity-changed"
    job.kill_job()
    shutil.rmtree(checkpoint)
    job.start()
    assert job.error()["code"] == "identity-changed"
    assert job.client.job(JOB).batch == before.batch
    job.kill_job()
    job.client.bind(JOB, BindRequest(new_stream=True))
    job.start()
    assert job.until(lambda e: e["event"] == "batch")["batch"] == 0
    assert job.client.job(JOB).generation == before.generation + 1


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_instance_agent_and_controller_killed_under_load(running: Start) -> None:
    """Invariant 2, and design section 3: an instance comes back from checkpoint and log, an agent
    killed alone moves nothing and adopts its instances, a controller is not needed for batches."""
    job = running(workers=2, seconds=20)
    job.start()
    job.until(lambda e: e["event"] == "clock")
    job.batches(2)
    victim = job.client.job(JOB).instances[0]
    os.kill(victim.pid, signal.SIGKILL)
    job.batches(2)
    replaced = job.client.job(JOB).instances[0]
    assert replaced.id == victim.id
    job.kill("controller")
    job.batches(2)
    job.up()
    kept = job.client.job(JOB).instances
    job.kill("w2")
    job.up()
    job.batches(2)
    assert [i.vnodes for i in job.client.job(JOB).instances] == [i.vnodes for i in kept]
    assert job.client.job(JOB).instances[1].pid == kept[1].pid
    assert job.result()["oracle"]["equal"]
