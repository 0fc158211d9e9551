"""The life of a cluster on hosts, from nothing to nothing, under a job that never stops: deployed
over SSH to hosts with real sshds, with Spark standalone workers beside the agents."""

import json
import os
import queue
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyspark
import pytest

from rhinoctl.cli import main
from rhinoctl.errors import Exit
from rhinoctl.ops.cluster import connect
from rhinoctl.ops.deploy import REAL, exit_of
from rhinoctl.ops.deployed import clusters_directory
from rhinoctl.ops.upgrade import UpgradeRequest, upgrade
from rhinoctl.protocol.handover import Kind, Phase
from rhinoctl.protocol.views import OperationView, RescaleRequest
from rhinoctl.remote.local import Processes, session_processes
from rhinoctl.remote.ssh import Login
from tests.integration.deployed_hosts import DeployHosts
from tests.integration.test_deploy import AGENT, Cluster, await_health, states
from tests.integration.test_upgrade import another, watching
from tests.unit.ops.test_deploy import Heard

pytestmark = [pytest.mark.e2e, pytest.mark.spark, pytest.mark.timeout(1200)]

ROOT = Path(__file__).parents[2]
JOB = "clicks"
RATE = 400
SECONDS = 300
"""Of rows: as long as all that happens to the cluster takes on two busy cores."""


class Standalone:
    """A Spark standalone cluster: its master here, a worker on each host named."""

    def __init__(self, hosts: DeployHosts, names: list[str], directory: Path) -> None:
        self._hosts, self._directory = hosts, directory
        self._started: list[subprocess.Popen[bytes]] = []
        home = Path(pyspark.__file__).parent
        self._class = str(home / "bin" / "spark-class")
        self._env = {
            **os.environ,
            "SPARK_HOME": str(home),
            "SPARK_MASTER_OPTS": "-Dspark.worker.timeout=15",
            "SPARK_DAEMON_MEMORY": "256m",
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
            "PYSPARK_PYTHON": sys.executable,
        }
        self.master = f"spark://{hosts.gateway}:7077"
        where = ["--host", hosts.gateway, "--port", "7077", "--webui-port", "0"]
        self._start("master", hosts.gateway, (), "org.apache.spark.deploy.master.Master", *where)
        for name in names:
            address = hosts.hosts[name].address
            work = str(directory / f"work-{name}")
            where = ["--host", address, "--webui-port", "0", "--cores", "1", "--memory", "600m"]
            self._start(
                *(name, address, hosts.hosts[name].enter, "org.apache.spark.deploy.worker.Worker"),
                *(*where, "--work-dir", work, self.master),
            )

    def _start(self, name: str, address: str, enter: tuple[str, ...], *argv: str) -> None:
        with open(self._directory / f"spark-{name}.log", "wb") as log:
            self._started.append(
                subprocess.Popen(
                    [*enter, self._class, *argv],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env=self._env | {"SPARK_LOCAL_IP": address},
                    start_new_session=True,
                )
            )

    def close(self) -> None:
        """End all of it; executors are in the sessions of their workers."""
        for process in self._started:
            Processes().end(session_processes(process.pid), patience_s=0.0)
            process.wait()


class Driver:
    """The job's driver, and what it has told."""

    def __init__(self, spark: Standalone, hosts: DeployHosts, access: Path, place: Path) -> None:
        script = Path(__file__).with_name("deployed_job.py")
        argv = [spark.master, hosts.gateway, str(place / "ckpt"), str(RATE * SECONDS), str(RATE)]
        self._log = place / "driver.log"
        with open(self._log, "wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, str(script), *argv],
                stdout=subprocess.PIPE,
                stderr=log,
                env={
                    **os.environ,
                    "RHINO_CONTROLLER": str(access),
                    "SPARK_LOCAL_IP": hosts.gateway,
                    "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
                    "PYSPARK_PYTHON": sys.executable,
                },
                start_new_session=True,
            )
        self.rows, self.total, self.batches = 0, -1, 0
        self.verdict: dict[str, Any] | None = None
        self._lines: queue.Queue[bytes] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)

    def look(self) -> None:
        """Take what it has told; it must not have failed."""
        while True:
            try:
                event = json.loads(self._lines.get_nowait())
            except queue.Empty:
                break
            assert event["event"] != "failed", event
            self.total = event["rows"] if event["event"] == "total" else self.total
            if event["event"] == "batch":
                self.rows, self.batches = event["rows"], event["batch"]
            if event["event"] == "verdict":
                self.verdict = event
        ended = self._process.poll()
        assert ended in (None, 0), self._log.read_text()[-3000:]

    def goes_on(self) -> None:
        """Three more batches are put out."""
        self.look()
        before = self.batches
        until(lambda: self._has(before + 3), 120)

    def _has(self, batch: int) -> bool:
        self.look()
        return self.batches >= batch or self.verdict is not None

    def close(self) -> None:
        Processes().end(session_processes(self._process.pid), patience_s=0.0)
        self._process.wait()


def until(held: Callable[[], bool], within_s: float = 90.0) -> None:
    deadline = time.monotonic() + within_s
    while not held():
        assert time.monotonic() < deadline, "it does not come to that"
        time.sleep(0.1)


@pytest.fixture
def four(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Iterator[Cluster]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    hosts = DeployHosts(tmp_path, workers=4)
    yield Cluster(hosts, capfd)
    hosts.close()


def operations(kind: Kind) -> list[OperationView]:
    with connect("clicks") as client:
        return [view for view in client.operations().operations if view.kind is kind]


def where_instances_are() -> set[str]:
    with connect("clicks") as client:
        return {str(instance.worker) for instance in client.job(JOB).instances if instance.vnodes}


def copies_are_whole() -> bool:
    with connect("clicks") as client:
        return client.job(JOB).lacking == 0


def test_a_job_goes_on_while_its_hosts_come_fail_are_upgraded_and_leave(
    four: Cluster, tmp_path: Path
) -> None:
    """Deploy on three and one hosts, rescale onto a fourth that comes later, lose one host's
    network (its owner is a zombie), fail over, heal, adopt, restart all one by one for another
    setting and again for another release, drain one, undeploy. What came out is Spark's own, and
    nothing is left on the hosts."""
    hosts = four.hosts
    before = four.files()
    hosts.write_inventory(workers=3)
    assert four.run("deploy")[0] is Exit.DONE
    await_health("clicks", 3)
    access = tmp_path / "access"
    shutil.copytree(clusters_directory() / "clicks" / "driver", access)
    with ExitStack() as closing:
        spark = Standalone(hosts, ["w1", "w2", "w3"], tmp_path)
        closing.callback(spark.close)
        driver = Driver(spark, hosts, access, tmp_path)
        closing.callback(driver.close)
        until(lambda: driver.look() is None and driver.batches > 2, 180)

        hosts.write_inventory(workers=4)
        code, view = four.run("deploy", "--yes")
        assert (code, states(view)["w4"]) == (Exit.DONE, "done")
        assert states(view)["w1"] == "unchanged"
        await_health("clicks", 4)
        with connect("clicks") as client:
            client.rescale(JOB, RescaleRequest(instances=4))
        until(lambda: operations(Kind.RESCALE)[-1].phase is Phase.COMPLETE, 180)
        assert "w4" in where_instances_are()
        driver.goes_on()

        until(copies_are_whole, 120)
        hosts.cut("w2")
        until(lambda: bool(operations(Kind.FAILOVER)), 60)
        until(lambda: operations(Kind.FAILOVER)[-1].phase is Phase.COMPLETE, 60)
        assert four.running("w2", "rhino_agent.instance"), "it does not know"
        assert "w2" not in where_instances_are()
        driver.goes_on()

        hosts.mend("w2")
        until(copies_are_whole, 120)
        await_health("clicks", 4)
        until(lambda: four.running("w2", "rhino_agent.instance") == [], 60)
        driver.goes_on()

        agents = {name: four.running(name, AGENT) for name in hosts.workers()}
        hosts.write_inventory("agent: {cache_mb: 48}\n", workers=4)
        code, view = four.run("deploy", "--yes")
        assert (code, states(view)["controller"]) == (Exit.DONE, "unchanged")
        for name, old in agents.items():
            assert four.running(name, AGENT) not in ([], old), name
        assert len(operations(Kind.FAILOVER)) == 1, "a restart in place moves nothing"
        driver.goes_on()

        until(copies_are_whole, 120)
        with watching() as seen:
            request, heard = UpgradeRequest(inventory=hosts.inventory), Heard()
            means = replace(REAL, build=another)
            done = upgrade(request, Login(), heard, heard.lines.append, means)
        assert exit_of(done) is Exit.DONE, [(each.host, each.reason) for each in done.hosts]
        assert [host.host for host in heard.ends] == ["controller", "w1", "w2", "w3", "w4"]
        assert max(map(len, seen.away)) <= 1
        assert len(seen.places) == 1, "a vnode has moved"
        driver.goes_on()

        until(copies_are_whole, 120)
        assert main(["drain", "w4", "--cluster", "clicks", "--json"]) == Exit.DONE
        assert "w4" not in where_instances_are()
        driver.goes_on()
        code, view = four.run("undeploy", "--host", "w4", "--confirm", "clicks", "--wipe-data")
        assert (code, four.running("w4", AGENT)) == (Exit.DONE, []), view

        until(lambda: driver.look() is None and driver.verdict is not None, 300)
        assert driver.verdict is not None
        assert driver.verdict["equal"], driver.verdict
        assert driver.verdict["rows"] == driver.total > 0
    hosts.write_inventory(workers=3)
    code, view = four.run("undeploy", "--confirm", "clicks", "--wipe-data")
    assert (code, four.modules()) == (Exit.DONE, []), view
    assert four.files() == before
