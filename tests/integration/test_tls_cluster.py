"""A cluster as it is deployed: controller and agents on TCP with TLS, each with files of its own.

Operator and Spark driver have an access each, and no process shares a socket file with another but
an agent with its instances.
"""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from rhinoctl import limits
from rhinoctl.config.access import write_access
from rhinoctl.config.authority import issue, make_authority
from rhinoctl.control.client import ControlClient, locate_controller
from rhinoctl.control.roles import Role
from rhinoctl.errors import NotRunning, RoleTooLow
from rhinoctl.ids import Vnode, WorkerId
from rhinoctl.operators import RunningAggregate
from rhinoctl.protocol import codec
from rhinoctl.protocol.handover import Kind, Phase
from rhinoctl.protocol.views import HandoverRequest, Health, OperationView, SetJob
from rhinoctl.spark import Result, Rhino
from rhinoctl.spark.source import nexmark_batch, nexmark_stream
from rhinoctl.wire.beacon import listening
from rhinoctl.wire.secret import Secret
from tests.fakes.tls import certified, files_of

JOB = "tls"
NEVER_S = 600.0
"""No verdict of this test is one of patience: without beacons it would wait for ever."""

AUTHORITY = make_authority("prod")
COUNT = RunningAggregate(keys=["auction"], aggregates={"n": "count", "best": ("max", "price")})


class Deployed:
    """A controller and agents on this machine, each told everything by its settings."""

    def __init__(self, directory: Path, workers: tuple[str, ...]) -> None:
        self.directory = directory
        self.ports = {name: free_port() for name in ("controller", *workers)}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        for name in ("wire", *Role):
            (directory / f"{name}.token").write_text(f"token-of-{name}\n")
        for worker in workers:
            self.start(worker)
        self.start("controller")
        self.operator = self.client(Role.OPERATOR)
        until(self._complete, "all report")

    def access(self, role: Role) -> str:
        """The directory with what a role needs."""
        directory = self.directory / "access" / role
        write_access(
            directory,
            controller=f"https://localhost:{self.ports['controller']}",
            ca=AUTHORITY.certificate,
            issued=issue(AUTHORITY, name="someone", role=role, hosts=()),
            token=Secret(f"token-of-{role}"),
            wire_token=Secret("token-of-wire") if role is Role.DRIVER else None,
        )
        return str(directory)

    def client(self, role: Role) -> ControlClient:
        located = locate_controller(self.access(role))
        return ControlClient(located.address, located.token_file, located.tls)

    def start(self, name: str) -> None:
        """Start a process (again)."""
        run = self.directory / name
        run.mkdir(exist_ok=True)
        tls = files_of(certified(AUTHORITY), run / "tls")
        settings: dict[str, Any] = {
            "cluster": "prod",
            "tls": codec.to_json(tls),
            "token_file": str(self.directory / "wire.token"),
            "parent": os.getpid(),
        }
        if name == "controller":
            module = "rhinoctl.control"
            settings |= {
                "store": str(run / "store"),
                "listen": f"https://0.0.0.0:{self.ports[name]}",
                "tokens": {role: str(self.directory / f"{role}.token") for role in Role},
                "workers": {
                    worker: f"grpc+tls://localhost:{port}"
                    for worker, port in self.ports.items()
                    if worker != name
                },
                "lease_s": NEVER_S,
                "agent_restart_s": NEVER_S,
            }
        else:
            module = "rhino_agent"
            (run / "disk").mkdir(exist_ok=True)  # as a deployment does
            settings |= {
                "worker": name,
                "disk": str(run / "disk"),
                "run": str(run),
                "listen": f"grpc+tls://0.0.0.0:{self.ports[name]}",
                "cache_bytes": 32 << 20,
                "buffer_bytes": 32 << 20,
            }
        path = run / "settings.json"
        path.write_bytes(codec.dumps(settings))
        with (run / "log").open("ab") as log:
            argv = [sys.executable, "-m", module, str(path)]
            self._processes[name] = subprocess.Popen(argv, stdout=log, stderr=log)

    def kill(self, name: str) -> None:
        self._processes[name].kill()
        self._processes.pop(name).wait()

    def close(self) -> None:
        self.operator.close()
        for process in self._processes.values():
            process.terminate()
        for process in self._processes.values():
            process.wait(30)

    def _complete(self) -> bool:
        try:
            workers = self.operator.status().workers
        except NotRunning:
            return False
        return len(workers) == len(self.ports) - 1 and all(w.health is Health.OK for w in workers)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def until(held: Callable[[], bool], what: str, *, within_s: float = 90.0) -> None:
    deadline = time.monotonic() + within_s
    while not held():
        assert time.monotonic() < deadline, f"{what}: it does not come to that"
        time.sleep(0.1)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Deployed]:
    deployed = Deployed(tmp_path, ("w1", "w2", "w3"))
    yield deployed
    deployed.close()


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(300)
def test_a_job_moves_and_survives_over_tls(
    spark: SparkSession, cluster: Deployed, tmp_path: Path
) -> None:
    """A vnode moves; an agent dies and adopts its instance; a worker dies and is replaced at once,
    which its beacon tells; what came out is Spark's own."""
    options = {"stream": "bid", "rate": 1500, "events": 60_000, "keys": 300, "base_ms": now_ms()}
    rows: dict[int, tuple[int, int]] = {}

    def take(result: Result, batch: int) -> None:
        rows.update({r["auction"]: (r["n"], r["best"]) for r in result.arrow.to_pylist()})

    def counted() -> int:
        assert rhino.fault is None
        return sum(n for n, _ in rows.values())

    access = cluster.access(Role.DRIVER)
    with Rhino(spark, JOB, controller=access, instances=3, vnodes=8, replication=1) as rhino:
        with pytest.raises(RoleTooLow):
            rhino.client.set_job(JOB, SetJob(replication=0))
        stream = rhino.mark(nexmark_stream(spark, **options))
        query = (
            stream.writeStream.foreachBatch(rhino.sink(COUNT, then=take))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .start()
        )
        try:
            until(lambda: counted() > 0, "a first batch")
            move(cluster)
            adopt(cluster)
            until(lambda: all_replicated(cluster), "copies")
            replace_worker(cluster)
            total = nexmark_batch(spark, **options).count()
            until(lambda: counted() == total, "the last batch", within_s=120.0)
        finally:
            query.stop()
    own = nexmark_batch(spark, **options).groupBy("auction").agg(F.count("*"), F.max("price"))
    assert rows == {row[0]: (row[1], row[2]) for row in own.collect()}


@pytest.mark.spark
@pytest.mark.timeout(240)
def test_tasks_push_and_fetch_over_tls(
    spark: SparkSession, cluster: Deployed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark's Python workers have the credentials with the task's closure, and are forks."""
    monkeypatch.setattr(limits, "GATHERED_ROWS_MAX", -1)
    monkeypatch.setattr(limits, "LOCAL_FRAME_BYTES", -1)
    options = {"stream": "bid", "rate": 1_000_000, "base_ms": 0, "events": 20_000, "keys": 300}
    rows: dict[int, tuple[int, int]] = {}

    def take(result: Result, batch: int) -> None:
        rows.update({r["auction"]: (r["n"], r["best"]) for r in result.df.collect()})

    access = cluster.access(Role.DRIVER)
    with Rhino(spark, JOB, controller=access, instances=2, vnodes=8) as rhino:
        stream = rhino.mark(nexmark_stream(spark, **options, max_events_per_batch=8000))
        query = (
            stream.writeStream.foreachBatch(rhino.sink(COUNT, then=take))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(120)
        assert rhino.fault is None
    own = nexmark_batch(spark, **options).groupBy("auction").agg(F.count("*"), F.max("price"))
    assert rows == {row[0]: (row[1], row[2]) for row in own.collect()}


def now_ms() -> int:
    return int(time.time() * 1000)


def move(cluster: Deployed) -> None:
    """A vnode to another worker, on a request of the operator."""
    to = next(one for one in cluster.operator.job(JOB).instances if Vnode(0) not in one.vnodes)
    moved = cluster.operator.handover(JOB, HandoverRequest(vnodes=(Vnode(0),), to=to.id))
    until(lambda: cluster.operator.operation(moved.id).phase is Phase.COMPLETE, "the move")


def adopt(cluster: Deployed) -> None:
    """An agent is killed and comes back: its instance lives, and so nothing is given up."""
    before = one_on(cluster, "w2")
    cluster.kill("w2")
    assert listening(f"tcp://localhost:{cluster.ports['w2'] + 1}") is True
    cluster.start("w2")
    until(lambda: one_on(cluster, "w2").ready and health(cluster, "w2") is Health.OK, "w2 is back")
    assert one_on(cluster, "w2").pid == before.pid
    assert failovers(cluster) == []


def replace_worker(cluster: Deployed) -> None:
    """Agent and instance die, and only their ports tell that they have."""
    lost = one_on(cluster, "w3")
    cluster.kill("w3")
    os.kill(lost.pid, signal.SIGKILL)
    until(lambda: any(op.phase is Phase.COMPLETE for op in failovers(cluster)), "the failover")
    (operation,) = failovers(cluster)
    assert operation.lost == (WorkerId("w3"),)


def all_replicated(cluster: Deployed) -> bool:
    return cluster.operator.status().health is Health.OK


def one_on(cluster: Deployed, worker: str) -> Any:
    return next(one for one in cluster.operator.job(JOB).instances if one.worker == worker)


def health(cluster: Deployed, worker: str) -> Health:
    return next(w.health for w in cluster.operator.status().workers if w.id == worker)


def failovers(cluster: Deployed) -> list[OperationView]:
    return [op for op in cluster.operator.operations().operations if op.kind is Kind.FAILOVER]
