"""A cluster on hosts with real sshds gets another release while it answers, and while it has a job:
no vnode moves, and no two agents are away at once. Figures are printed, not asserted."""

import os
import tarfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest

from rhinoctl.errors import DeadlineExceeded, Exit, NotRunning
from rhinoctl.ids import JobName
from rhinoctl.ops.cluster import connect
from rhinoctl.ops.deploy import REAL, exit_of
from rhinoctl.ops.deployed import clusters_directory
from rhinoctl.ops.upgrade import UpgradeRequest, check_upgrade, exit_of_check, upgrade
from rhinoctl.protocol.views import Health, RegisterJob
from rhinoctl.remote.environment import Environment, build_environment, write_archive
from rhinoctl.remote.packages import Entry, Platform
from rhinoctl.remote.ssh import Login
from tests.fakes.world_spark import operator_spec
from tests.integration.test_deploy import AGENT, CONTROLLER, Cluster, cluster, until
from tests.unit.ops.test_deploy import Heard

__all__ = ["cluster"]  # the fixture

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]  # needs root, sshd and ip

CLICKS = RegisterJob(
    name=JobName("clicks"), vnodes=4, instances=2, replication=1, operator=operator_spec()
)


@lru_cache(maxsize=1)
def another(platform: Platform, cache: Path, say: Callable[[str], None]) -> Environment:
    """This release with a file more, and so with another name."""
    with tarfile.open(build_environment(platform, cache, say).archive) as archive:
        entries = [_entry(archive, member) for member in archive]
    return write_archive([*entries, Entry("site/another", b"")], platform, cache, say)


def _entry(archive: tarfile.TarFile, member: tarfile.TarInfo) -> Entry:
    file = archive.extractfile(member)
    assert file is not None
    return Entry(member.name, file.read(), executable=bool(member.mode & 0o100))


@dataclass
class Watched:
    """What the controller said, asked all the time: who was away at once, how long it was silent,
    and every place that vnodes were at."""

    away: set[tuple[str, ...]] = field(default_factory=set)
    places: set[tuple[Any, ...]] = field(default_factory=set)
    silent_s: float = 0.0


@contextmanager
def watching() -> Iterator[Watched]:
    seen, ended = Watched(), threading.Event()

    def watch() -> None:
        heard = time.monotonic()
        while not ended.wait(0.1):
            try:
                with connect("clicks") as client:
                    status = client.status()
            except (NotRunning, DeadlineExceeded):
                continue
            now = time.monotonic()
            seen.silent_s, heard = max(seen.silent_s, now - heard), now
            bad = (worker.id for worker in status.workers if worker.health is not Health.OK)
            seen.away.add(tuple(sorted(bad)))
            for job in status.jobs:
                where = tuple((each.id, each.worker, each.vnodes) for each in job.instances)
                seen.places.add((job.epoch, where))

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield seen
    finally:
        ended.set()
        thread.join()


def test_another_release_while_the_cluster_answers(cluster: Cluster, capfd: Any) -> None:
    hosts = cluster.hosts
    hosts.write_inventory(controller="auto_failover: false")
    code, view = cluster.run("deploy")
    assert code is Exit.DONE, view
    with connect(str(clusters_directory() / "clicks" / "driver")) as client:
        client.register(CLICKS)
    until(lambda: cluster.run("upgrade", "--check")[1]["troubles"] == [])
    code, view = cluster.run("upgrade", "--check")
    assert (code, view["waves"]) == (Exit.DONE, [])
    assert {host["runs"]["speaks"]["protocol"] for host in view["hosts"]} == {1}

    before = {name: cluster.running(name, AGENT) for name in hosts.workers()}
    request, heard = UpgradeRequest(inventory=hosts.inventory), Heard()
    means = replace(REAL, build=another)
    judged = check_upgrade(request, Login(), heard, means)
    assert exit_of_check(judged) is Exit.HAS_CHANGES
    assert judged.waves == (("w1",), ("w2",), ("w3",))

    with watching() as seen:
        began = time.monotonic()
        done = upgrade(request, Login(), heard, heard.lines.append, means)
        took_s = time.monotonic() - began
    assert exit_of(done) is Exit.DONE, [(each.host, each.reason) for each in done.hosts]
    ends = [host.host for host in heard.ends]
    assert ends == ["controller", "w1", "w2", "w3"]
    assert len(seen.places) == 1, "a vnode has moved"
    assert max(map(len, seen.away)) <= 1
    (name,) = {host.would.name for host in judged.hosts if host.would is not None}
    for host in hosts.names():
        link = hosts.hosts[host].directory / "opt/rhinoctl/current"
        assert Path(os.readlink(link)).name == name
    for host, pids in before.items():
        assert cluster.running(host, AGENT) not in ([], pids)
    assert len(cluster.running("c1", CONTROLLER)) == 1
    again = upgrade(request, Login(), heard, heard.lines.append, means)
    assert (exit_of(again), again.run) == (Exit.DONE, "")
    assert exit_of_check(check_upgrade(request, Login(), heard)) is Exit.HAS_CHANGES
    code, view = cluster.run("undeploy", "--confirm", "clicks", "--wipe-data")
    assert (code, cluster.modules()) == (Exit.DONE, [])
    with capfd.disabled():
        times = ", ".join(f"{host.host} {host.seconds:.1f}" for host in done.hosts)
        print(
            f"\n  upgrade {took_s:.1f} s ({times} s), controller away {seen.silent_s:.1f} s", end=""
        )
