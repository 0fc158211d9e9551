"""A cluster deployed over SSH to hosts with real sshds: brought up from nothing, found again as it
is, finished after a fault, and removed to the last file. Figures are printed, not asserted."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from rhinoctl.cli import main
from rhinoctl.errors import Exit
from rhinoctl.operators import RunningAggregate
from rhinoctl.ops.cluster import connect, read_status
from rhinoctl.ops.deployed import clusters_directory
from rhinoctl.protocol.views import Health
from rhinoctl.spark import Result, Rhino
from rhinoctl.spark.source import nexmark_batch, nexmark_stream
from tests.integration.deployed_hosts import DeployHosts
from tests.integration.real_hosts import PLAIN_UID

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]  # needs root, sshd and ip

AGENT, CONTROLLER = "rhino_agent", "rhinoctl.control"


class Cluster:
    """The hosts, and commands typed on this machine."""

    def __init__(self, hosts: DeployHosts, capfd: pytest.CaptureFixture[str]) -> None:
        self.hosts = hosts
        self._capfd = capfd

    def run(self, *argv: str) -> tuple[Exit, Any]:
        """A command's exit code and what it says in JSON."""
        self._capfd.readouterr()
        began = time.monotonic()
        code = main([*argv, "-i", str(self.hosts.inventory), "--json"])
        out = self._capfd.readouterr().out
        self.seconds = time.monotonic() - began
        return Exit(code), json.loads(out)

    def running(self, host: str, module: str) -> list[int]:
        """The processes of a module on a host; its supervisor is not one."""
        found = []
        for pid in self.hosts.hosts[host].pids():
            try:
                line = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
            except OSError:
                continue  # it has ended meanwhile
            if "-m" in line and line[line.index("-m") + 1] == module:
                found.append(pid)
        return found

    def modules(self) -> list[tuple[str, str]]:
        """What runs of ours on all hosts."""
        wanted = (AGENT, CONTROLLER, "rhino_agent.instance", "rhinoctl.remote.supervisor")
        names = self.hosts.names()
        return [(h, m) for h in names for m in wanted for _ in self.running(h, m)]

    def files(self) -> set[str]:
        """All files of the hosts' own directories, but for those of the sshd."""
        found = set()
        for name, host in self.hosts.hosts.items():
            for below in ("opt", "varlib", "tmp", "root"):
                top = host.directory / below
                found |= {f"{name}/{p.relative_to(host.directory)}" for p in top.rglob("*")}
        return found


@pytest.fixture
def cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Iterator[Cluster]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    hosts = DeployHosts(tmp_path, workers=3)
    yield Cluster(hosts, capfd)
    hosts.close()


def states(view: Any) -> dict[str, str]:
    return {host["host"]: host["state"] for host in view["hosts"]}


def await_health(cluster: str, workers: int, of: int = 0) -> None:
    """Wait until so many workers are well, `of` so many, or all there are."""
    deadline = time.monotonic() + 30
    while True:
        status = read_status(cluster)
        well = [worker.id for worker in status.workers if worker.health is Health.OK]
        if (len(well), len(status.workers)) == (workers, of or workers):
            return
        assert time.monotonic() < deadline, status
        time.sleep(0.2)


def test_from_nothing_to_a_cluster_and_back(cluster: Cluster, capfd: Any) -> None:
    before = cluster.files()
    code, view = cluster.run("deploy", "--dry-run")
    assert code is Exit.HAS_CHANGES
    _, view = cluster.run("check")
    assert {found["seen"] for found in view["findings"] if "port" in found["check"]} == {"free"}
    assert cluster.files() == before
    code, view = cluster.run("deploy")
    first = cluster.seconds
    assert (code, set(states(view).values())) == (Exit.DONE, {"done"})
    await_health("clicks", 3)
    settings = cluster.hosts.hosts["c1"].directory / "opt/rhinoctl/controller/settings.json"
    known = json.loads(settings.read_text())["capacities"]
    assert all(each["bandwidth"] > 1 << 20 for each in known.values())
    _, view = cluster.run("check")
    assert {found["seen"] for found in view["findings"] if "port" in found["check"]} == {
        "our controller listens there",
        "our agent listens there",
    }
    code, view = cluster.run("deploy")
    second = cluster.seconds
    assert (code, set(states(view).values())) == (Exit.DONE, {"unchanged"})
    assert view["run"] == ""

    code, view = cluster.run("hosts", "list")
    assert code is Exit.DONE
    assert [(p["host"], p["role"], p["running"]) for p in view["processes"]] == [
        ("controller", "controller", True),
        *((name, "agent", True) for name in cluster.hosts.workers()),
    ]

    (agent,) = cluster.running("w2", AGENT)
    os.kill(agent, signal.SIGKILL)
    deadline = time.monotonic() + 30
    while cluster.running("w2", AGENT) in ([], [agent]):
        assert time.monotonic() < deadline, "the agent was not started again"
        time.sleep(0.1)
    await_health("clicks", 3)
    code, view = cluster.run("deploy")
    assert set(states(view).values()) == {"unchanged"}

    code, _ = cluster.run("stop", "--yes")
    assert (code, cluster.modules()) == (Exit.DONE, [])
    code, _ = cluster.run("start")
    assert code is Exit.DONE
    await_health("clicks", 3)
    code, view = cluster.run("undeploy", "--confirm", "clicks", "--wipe-data")
    assert (code, view["faults"]) == (Exit.DONE, [])
    assert cluster.modules() == []
    assert cluster.files() == before
    with capfd.disabled():
        print(f"\n  deploy {first:.1f} s, again {second:.1f} s", end="")


def test_a_host_that_falls_silent_in_the_middle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Its link is cut while a release is uploaded: it is named within 30 s, the others are done,
    and going on finishes it."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    hosts = DeployHosts(tmp_path, workers=2)
    try:
        cluster, cut_at, told_at = Cluster(hosts, capfd), 0.0, 0.0
        typed = subprocess.Popen(deploy_argv(hosts), stderr=subprocess.PIPE, text=True)
        assert typed.stderr is not None
        for line in typed.stderr:
            if line.startswith("w2: install release"):
                hosts.cut("w2")
                cut_at = time.monotonic()
            if line.startswith("w2: unreachable: "):
                told_at = time.monotonic()
        assert typed.wait(60) == Exit.PARTIAL
        assert 0 < told_at - cut_at < 30
        await_health("clicks", 1, of=2)
        hosts.mend("w2")
        (run,) = (clusters_directory() / "clicks" / "runs").glob("*.json")
        assert main(["replay", run.stem]) == Exit.DONE
        await_health("clicks", 2)
        releases = hosts.hosts["w2"].directory / "opt/rhinoctl/versions"
        assert len(list(releases.iterdir())) == 1
        code, _ = cluster.run("undeploy", "--confirm", "clicks", "--wipe-data")
        assert (code, cluster.modules()) == (Exit.DONE, [])
    finally:
        hosts.close()


def deploy_argv(hosts: DeployHosts) -> list[str]:
    return [sys.executable, "-m", "rhinoctl.cli", "deploy", "-i", str(hosts.inventory)]


def test_without_root_and_after_ctrl_c(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """An account without any power has directories of its own. A deployment that Ctrl-C ends while
    it uploads has ended within seconds, says how to go on, and that finishes it."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    hosts = DeployHosts(tmp_path, workers=1, user="spark")
    try:
        mine = "/var/lib/spark"
        more = f"install_dir: {mine}/rhinoctl\n"
        hosts.write_inventory(more, f"data_dir: {mine}/controller", f"disks: [{mine}/disk]")
        cluster = Cluster(hosts, capfd)
        typed = subprocess.Popen(
            deploy_argv(hosts), stderr=subprocess.PIPE, text=True, process_group=0
        )
        assert typed.stderr is not None
        for line in typed.stderr:
            if "install release" in line:
                break
        time.sleep(0.5)
        began = time.monotonic()
        typed.send_signal(signal.SIGINT)
        said = typed.stderr.read()
        assert typed.wait(10) == 130
        assert time.monotonic() - began < 10
        assert "go on with: rhinoctl replay" in said
        run = said.rsplit(" ", 1)[1].strip()
        assert cluster.modules() == []
        assert main(["replay", run]) == Exit.DONE
        await_health("clicks", 1)
        for host, module in (("c1", CONTROLLER), ("w1", AGENT)):
            (pid,) = cluster.running(host, module)
            assert Path(f"/proc/{pid}").stat().st_uid == PLAIN_UID
        assert cluster.run("stop", "w1", "--yes")[0] == Exit.DONE
        disk = hosts.hosts["w1"].directory / "varlib/spark/disk"
        disk.rename(disk.with_name("away"))  # its disk is not mounted
        code, view = cluster.run("start", "w1")
        assert code == Exit.PARTIAL
        assert "disk-not-mounted" in view["faults"][0]["reason"]
        assert "rhinoctl restart w1" in view["faults"][0]["remedy"]
        assert not disk.exists()
        disk.with_name("away").rename(disk)
        assert cluster.run("restart", "w1", "--yes")[0] == Exit.DONE
        code, _ = cluster.run("undeploy", "--confirm", "clicks", "--wipe-data")
        assert (code, cluster.modules()) == (Exit.DONE, [])
        left = {file.partition("/")[2] for file in cluster.files()}
        assert left == {"varlib/spark"}
    finally:
        hosts.close()


@pytest.mark.spark
def test_a_job_on_deployed_hosts(
    cluster: Cluster, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Spark job finds the cluster by the driver's access. An agent that is killed comes back and
    takes over its instance, which has not noticed; a restart in place moves nothing; what came
    out is Spark's own."""
    cluster.hosts.write_inventory(controller="auto_failover: false")
    code, view = cluster.run("deploy")
    assert code is Exit.DONE, view
    access = tmp_path / "access"
    shutil.copytree(clusters_directory() / "clicks" / "driver", access)
    options = {"stream": "bid", "rate": 500, "events": 40_000, "keys": 200, "base_ms": now_ms()}
    rows: dict[int, int] = {}

    def take(result: Result, batch: int) -> None:
        rows.update({row["auction"]: row["n"] for row in result.arrow.to_pylist()})

    def counted() -> int:
        assert rhino.fault is None
        return sum(rows.values())

    def goes_on() -> None:
        before = counted()
        until(lambda: counted() > before or before == total)

    total = nexmark_batch(spark, **options).count()
    count = RunningAggregate(keys=["auction"], aggregates={"n": "count"})
    monkeypatch.setenv("RHINO_CONTROLLER", str(access))
    with Rhino(spark, "clicks", instances=3, vnodes=16, replication=1) as rhino:
        stream = rhino.mark(nexmark_stream(spark, **options))
        query = (
            stream.writeStream.foreachBatch(rhino.sink(count, then=take))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .start()
        )
        try:
            goes_on()
            instances = cluster.running("w2", "rhino_agent.instance")
            (agent,) = cluster.running("w2", AGENT)
            os.kill(agent, signal.SIGKILL)
            until(lambda: cluster.running("w2", AGENT) not in ([], [agent]))
            goes_on()
            assert cluster.running("w2", "rhino_agent.instance") == instances != []
            code, view = cluster.run("restart", "w3", "--yes")
            assert (code, view["faults"]) == (Exit.DONE, [])
            goes_on()
            with connect("clicks") as client:
                assert client.operations().operations == ()
            until(lambda: counted() == total)
        finally:
            query.stop()
    own = nexmark_batch(spark, **options).groupBy("auction").count().collect()
    assert rows == {row[0]: row[1] for row in own}
    code, view = cluster.run("undeploy", "--confirm", "clicks", "--wipe-data")
    assert (code, cluster.modules()) == (Exit.DONE, [])


def until(held: Callable[[], bool], within_s: float = 90.0) -> None:
    deadline = time.monotonic() + within_s
    while not held():
        assert time.monotonic() < deadline, "it does not come to that"
        time.sleep(0.1)


def now_ms() -> int:
    return int(1000 * time.time())


def test_a_host_that_is_away_and_settings_that_change(cluster: Cluster) -> None:
    cluster.hosts.cut("w3")
    code, view = cluster.run("deploy")
    assert code is Exit.PARTIAL
    assert states(view) == {
        "controller": "done",
        "w1": "done",
        "w2": "done",
        "w3": "unreachable",
    }
    (away,) = [host for host in view["hosts"] if host["host"] == "w3"]
    assert away["code"] == "host-unreachable"
    assert away["seconds"] < 30
    cluster.hosts.mend("w3")
    assert main(["replay", view["run"], "--json"]) == Exit.DONE
    await_health("clicks", 3)

    agents = {name: cluster.running(name, AGENT) for name in cluster.hosts.workers()}
    controller = cluster.running("c1", CONTROLLER)
    cluster.hosts.write_inventory("agent: {cache_mb: 32}\n")
    code, view = cluster.run("deploy", "--yes")
    assert (code, states(view)["controller"]) == (Exit.DONE, "unchanged")
    assert cluster.running("c1", CONTROLLER) == controller
    for name, pids in agents.items():
        assert cluster.running(name, AGENT) not in ([], pids)

    code, view = cluster.run("undeploy", "--confirm", "clicks")
    assert code is Exit.DONE
    assert all(host["kept"] for host in view["hosts"])
    assert cluster.modules() == []
    kept = {Path(name).name for name in cluster.files() if "/opt/rhinoctl/" in name}
    assert kept == {"cluster", "made"}
    code, view = cluster.run("deploy", "--limit", "controller,w1")
    assert (code, set(states(view).values())) == (Exit.DONE, {"done"})


def test_a_port_that_changes_and_a_line_that_is_wrong_take_no_worker_away(cluster: Cluster) -> None:
    code, view = cluster.run("deploy")
    assert code is Exit.DONE, view
    cluster.hosts.write_inventory("ports: {agent: 7600}\n")
    code, view = cluster.run("deploy", "--yes")
    assert (code, set(states(view).values())) == (Exit.DONE, {"done"})
    await_health("clicks", 3)
    right = cluster.hosts.inventory.read_text()
    w2, w3 = (cluster.hosts.hosts[name].address for name in ("w2", "w3"))
    wrong = right.replace(f"{w2},", "?").replace(f"{w3},", f"{w2},").replace("?", f"{w3},")
    cluster.hosts.inventory.write_text(wrong)
    code, view = cluster.run("deploy", "--yes")
    assert (code, states(view)["w2"], states(view)["w3"]) == (Exit.PARTIAL, "failed", "failed")
    await_health("clicks", 3)
    cluster.hosts.inventory.write_text(right)
    code, view = cluster.run("deploy")
    assert (code, set(states(view).values())) == (Exit.DONE, {"unchanged"})
    (pid,) = cluster.running("w2", AGENT)
    os.kill(pid, signal.SIGSTOP)
    until(lambda: cluster.run("deploy")[0] is Exit.PARTIAL)
    os.kill(pid, signal.SIGCONT)
    await_health("clicks", 3)


def test_a_directory_that_was_never_deployed_is_not_wiped(cluster: Cluster) -> None:
    before = cluster.files()
    assert cluster.run("check", "--apply", "--yes")[0] is Exit.DONE
    code, view = cluster.run("undeploy", "--confirm", "clicks")
    assert (code, {host["state"] for host in view["hosts"]}) == (Exit.DONE, {"done"})
    assert cluster.files() == before
    assert cluster.run("deploy")[0] is Exit.DONE
    dear = cluster.hosts.hosts["w1"].directory / "varlib/dear/file"
    dear.parent.mkdir()
    dear.touch()
    cluster.hosts.write_inventory(worker="disks: [/var/lib/dear]")
    code, view = cluster.run("deploy", "--limit", "w1")
    assert (code, states(view)) == (Exit.PARTIAL, {"w1": "failed"})
    code, view = cluster.run("undeploy", "--confirm", "clicks", "--wipe-data")
    assert (code, view["hosts"][1]["strange"]) == (Exit.PARTIAL, ["/var/lib/dear"])
    assert cluster.files() == before | {"w1/varlib/dear", "w1/varlib/dear/file"}


def test_a_link_that_is_slow_is_named_by_check(cluster: Cluster) -> None:
    def network() -> dict[str, str]:
        _, view = cluster.run("check")
        return {f["host"]: f["verdict"] for f in view["findings"] if f["check"] == "network"}

    cluster.hosts.slow("w2", 80)
    assert network() == {"w1": "warn", "w2": "warn", "w3": "pass"}
    cluster.hosts.slow("w2", 0)
    assert network() == {"w1": "pass", "w2": "pass", "w3": "pass"}


def test_a_controller_s_store_is_backed_up_and_brought_back(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also from another machine, where the cluster's keys are not."""
    assert cluster.run("deploy")[0] is Exit.DONE
    file = str(tmp_path / "monday")
    code, view = cluster.run("controller", "backup", file)
    assert (code, view["deployed"]) == (Exit.DONE, True)
    code, view = cluster.run("controller", "restore", file)
    assert (code, view["error"]["code"]) == (Exit.REFUSED, "already-running")
    assert cluster.run("stop", "controller", "--yes")[0] is Exit.DONE
    data = cluster.hosts.hosts["c1"].directory / "varlib/rhinoctl"
    (store,) = data.rglob("controller.db")
    store.write_bytes(b"no store")
    code, view = cluster.run("controller", "backup", f"{file}-2")
    assert (code, view["error"]["code"]) == (Exit.NEEDS_REPAIR, "corrupt-file")

    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "another"))
    assert cluster.run("controller", "restore", file)[0] is Exit.DONE
    assert (store.parent / "controller.db.replaced").read_bytes() == b"no store"
    assert store.stat().st_mode & 0o777 == 0o600
    code, view = cluster.run("deploy", "--yes")  # with new certificates
    assert code is Exit.DONE
    await_health("clicks", 3)
    assert read_status("clicks").refused_by == ()
