"""Acceptance scenarios at full length, with real processes: minutes, for `make e2e`."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Self

import pytest

from rhinoctl.control.client import ControlClient
from rhinoctl.ops.demo_kill import failover_of, kill_worker
from rhinoctl.protocol.handover import Kind
from rhinoctl.protocol.views import DrainRequest, HandoverRequest, OperationView, RescaleRequest
from tests.integration.running import JOB, Running, Start, starting

pytestmark = [pytest.mark.e2e, pytest.mark.spark]


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Start]:
    with starting(tmp_path) as make:
        yield make


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("state_mb", [50, 1024])
def test_t1_live_rescale_under_load(running: Start, state_mb: int) -> None:
    """T1: 4 agents, 64 vnodes, 200 k keys, 2 k records/s for 120 s; 2 → 4 at 30 s, one handover in
    between, 4 → 3 at 80 s. Every record once, nothing of the state lost."""
    job = running(workers=4, seconds=120, state_mb=state_mb, rate=2000, keys=200_000, vnodes=64)
    job.start()
    job.until(lambda e: e["event"] == "clock", within_s=900)
    start = time.monotonic()

    def at(second: float) -> None:
        job.until(lambda _: time.monotonic() - start >= second)

    at(30)
    grown = job.client.rescale(JOB, RescaleRequest(instances=4))
    _expect_complete(job, grown)
    owned = [len(i.vnodes) for i in job.client.job(JOB).instances]
    assert owned == [16, 16, 16, 16]
    at(60)
    moved = job.client.handover(JOB, HandoverRequest(vnodes=(5, 40), to="i2"))
    _expect_complete(job, moved)
    at(80)
    shrunk = job.client.rescale(JOB, RescaleRequest(instances=3))
    _expect_complete(job, shrunk)
    verdict = job.until(lambda e: e["event"] == "result", within_s=600)
    assert verdict["oracle"]["equal"], verdict
    assert verdict["oracle"]["rows"] > 0


@pytest.mark.timeout(900)
@pytest.mark.parametrize("query", ["q5", "q8"])
def test_t1_in_the_middle_of_windows(running: Start, query: str) -> None:
    """T1 for windows: rescaled, single vnodes handed over, and an instance killed, while windows
    are open; what is put out is Spark's own, row for row."""
    job = running(workers=3, seconds=90, rate=4000, keys=20_000, vnodes=64, query=query)
    job.start()
    job.until(lambda e: e["event"] == "clock", within_s=300)
    start = time.monotonic()

    def at(second: float) -> None:
        job.until(lambda _: time.monotonic() - start >= second)

    at(15)
    _expect_complete(job, job.client.rescale(JOB, RescaleRequest(instances=4)))
    at(35)
    moved = job.client.handover(JOB, HandoverRequest(vnodes=(5, 40, 63), to="i1"))
    _expect_complete(job, moved)
    at(50)
    os.kill(job.client.job(JOB).instances[0].pid, signal.SIGKILL)
    at(65)
    _expect_complete(job, job.client.rescale(JOB, RescaleRequest(instances=3)))
    verdict = job.until(lambda e: e["event"] == "result", within_s=600)
    assert verdict["oracle"]["equal"], verdict
    assert verdict["oracle"]["rows"] > 0


@pytest.mark.timeout(900)
@pytest.mark.parametrize("query", ["q5", "q8"])
def test_the_demo_s_verdict(query: str) -> None:
    """`rhinoctl demo` as it is, with each query of the paper."""
    argv = [sys.executable, "-m", "rhinoctl.cli", "demo", "--query", query, "--json"]
    ended = subprocess.run(argv, capture_output=True, text=True, timeout=600, check=False)
    assert ended.returncode == 0, ended.stderr[-3000:]
    result = json.loads(ended.stdout)
    assert result["oracle"]["equal"]
    assert result["oracle"]["rows"] > 0
    assert len(result["handovers"]) == 3


def _expect_complete(job: Running, begun: OperationView) -> None:
    view = job.ended(begun.id, within_s=300)
    assert view.phase.value == "complete", view.reason


@pytest.mark.timeout(1800)
def test_t3_kill_the_owner(running: Start) -> None:
    """T3: two copies of 400 MB, 16 vnodes on the victim, killed with its instances under load; then
    a clean restart of each agent in turn, then the drain of a host."""
    job = running(
        workers=4, instances=4, vnodes=64, replication=2, state_mb=400, rate=2000, keys=200_000,
        seconds=240,
    )  # fmt: skip
    job.start()
    job.until(lambda e: e["event"] == "clock", within_s=900)
    _await_copies(job)
    with _Traffic(job.client) as traffic:
        job.batches(30)
        accident = kill_worker(job.cluster, job.client, JOB)
        job.batches(2)
        lost = failover_of(job.client, accident)
        assert lost is not None
        _expect_complete(job, lost)
        recovered = time.time()
    lost = job.client.operation(lost.id)
    state = sum(i.state_bytes for i in job.client.job(JOB).instances)
    assert len(lost.moves) == 16
    assert state > 400e6
    job.up()
    _await_copies(job)
    layout = {i.id: i.vnodes for i in job.client.job(JOB).instances}
    for worker in ("w1", "w2", "w3", "w4"):
        job.restart(worker)
        job.batches(2)
        assert {i.id: i.vnodes for i in job.client.job(JOB).instances} == layout
    drained = job.client.job(JOB).instances[0].worker
    for begun in job.client.drain(DrainRequest(worker=drained)).operations:
        _expect_complete(job, begun)
    view = job.client.job(JOB)
    assert drained not in {i.worker for i in view.instances}
    losses = [o for o in job.client.operations().operations if o.kind is Kind.FAILOVER]
    assert len(losses) == 1, losses
    assert job.until(lambda e: e["event"] == "result", within_s=600)["oracle"]["equal"]
    assert lost.bytes_moved < state / 100
    usual, meanwhile = traffic.around(accident.at, recovered)
    print(f"{usual / 1e6:.1f} MB of checkpoints in as long before, {meanwhile / 1e6:.1f} meanwhile")
    assert meanwhile < usual + state / 100


class _Traffic:
    """The bytes of checkpoints that come to all workers, looked at ten times a second."""

    def __init__(self, client: ControlClient) -> None:
        self._client = client
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._seen: list[tuple[float, int]] = []

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join(timeout=30.0)

    def around(self, begin: float, end: float) -> tuple[int, int]:
        """Bytes between two times, after the most that came in any stretch as long before them."""
        length = end - begin
        before = [at for at, _ in self._seen if at + length <= begin]
        return max(self._between(at, at + length) for at in before), self._between(begin, end)

    def _between(self, begin: float, end: float) -> int:
        counts = [bytes_ for at, bytes_ in self._seen if begin <= at <= end]
        # the count of a worker that has died goes
        return sum(max(0, later - earlier) for earlier, later in pairwise(counts))

    def _watch(self) -> None:
        while not self._ended.wait(0.1):
            self._seen.append((time.time(), self._client.job(JOB).fetched_bytes))


def _await_copies(job: Running) -> None:
    """Wait until every vnode has all its copies, while the job runs."""
    deadline = time.monotonic() + 300
    while job.client.job(JOB).lacking:
        assert time.monotonic() < deadline, job.client.job(JOB)
        job.batches(1)


@pytest.mark.timeout(1800)
def test_t2b_driver_killed_between_our_commit_and_sparks(running: Start) -> None:
    """T2 (b), 20 rounds: the driver dies when a batch is applied and Spark has not committed it."""
    job = running(workers=2, seconds=3600, rate=500)
    for number in range(20):
        job.start(partitions=1 + number % 3)
        job.batches(1)
        job.kill_job()
    clock = job.directory / "job" / "clock"
    passed = time.time() - int(clock.read_text()) / 1000 if clock.exists() else 0.0
    job.start(seconds=int(passed) + 10)  # what came until now, and a little more
    assert job.until(lambda e: e["event"] == "result", within_s=600)["oracle"]["equal"]
