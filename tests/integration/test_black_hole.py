"""A worker's host whose network swallows all: nobody hangs up, nothing is refused, nothing comes.

On network namespaces: the worker goes on in its own world, as an owner that does not know that it
is none any more.
"""

import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rhinoctl import limits
from rhinoctl.ids import WorkerId
from rhinoctl.ops.demo_kill import Accident, failover_of, victim_of
from rhinoctl.protocol.views import Health, OperationView
from tests.integration.hosts import Hosts
from tests.integration.running import JOB, Running

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture
def hosts() -> Iterator[Hosts]:
    assert shutil.which("ip"), "needs iproute2"
    made = Hosts(3)
    yield made
    made.close()


def failover_after(job: Running, accident: Accident) -> OperationView:
    """The failover that the accident leads to, a while after the lease at the latest."""
    deadline = time.monotonic() + 6 * limits.LEASE_OF_WORKER_S
    while time.monotonic() < deadline:
        view = failover_of(job.client, accident)
        if view is not None:
            return view
        time.sleep(0.05)
    raise AssertionError(f"no failover; {job.client.status()}")


def test_a_black_hole_is_a_loss_within_the_lease(hosts: Hosts, tmp_path: Path) -> None:
    """Detected by silence alone; the query goes on with heirs. When its network comes back the old
    owner is fenced, becomes a worker among others, and no record counts twice."""
    job = Running(tmp_path, hosts=hosts, seconds=45, instances=3, replication=1, rate=2000)
    try:
        job.start()
        job.until(lambda e: e["event"] == "clock")
        job.batches(3)
        victim = victim_of(job.client.job(JOB))
        at = time.time()
        hosts.cut(job.hosts[victim])
        view = failover_after(job, Accident(worker=victim, at=at))
        assert time.time() - at >= limits.LEASE_OF_WORKER_S / 2, "nothing but silence told of it"
        assert job.ended(view.id).phase.value == "complete"
        job.batches(2)
        assert victim not in {i.worker for i in job.client.job(JOB).instances}
        hosts.mend(job.hosts[victim])
        _await_health(job, victim)
        job.batches(2)
        assert job.result()["oracle"]["equal"]
    finally:
        job.close()


def _await_health(job: Running, worker: WorkerId) -> None:
    deadline = time.monotonic() + 60.0
    while time.monotonic() < deadline:
        health = {each.id: each.health for each in job.client.status().workers}
        if health[worker] is Health.OK:
            return
        time.sleep(0.2)
    raise AssertionError(f"{worker} is still {health[worker]}")
