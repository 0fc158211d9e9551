"""What `local up` would start, from what is in the directory and what runs."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rhinoctl import errors
from rhinoctl.config import cluster as config
from rhinoctl.config.cluster import ClusterFile
from rhinoctl.ids import WorkerId
from rhinoctl.ops import local
from rhinoctl.ops.local import UpRequest, plan_up
from rhinoctl.protocol.views import Health
from tests.fakes import controller as fake

DIRECTORY = Path("/nowhere/cluster")


def request(**changes: Any) -> UpRequest:
    return UpRequest(**{"directory": DIRECTORY, **changes})


def running(workers: int = 3) -> ClusterFile:
    """A cluster all of whose processes were started."""
    cluster = plan_up(request(workers=workers), None, frozenset()).cluster
    started = {name: (100 + n, 7) for n, name in enumerate(cluster.names())}
    return replace(cluster, processes=started)


def test_a_first_up_starts_everything() -> None:
    plan = plan_up(request(), None, frozenset())
    assert plan.start == ("controller", "w1", "w2", "w3")
    assert plan.cluster.processes == {}
    assert plan.cluster.controller.startswith("unix:///tmp/rhino-")


def test_paths_of_sockets_fit_the_system() -> None:
    cluster = plan_up(request(workers=local.WORKERS_MAX), None, frozenset()).cluster
    longest = max(len(entry.address.partition("://")[2]) for entry in cluster.workers.values())
    assert longest + len("-i1000-1000000.sock") <= 107


def test_up_after_down_starts_everything_again_over_the_same_identity() -> None:
    known = running(2)
    plan = plan_up(request(), known, frozenset())
    assert plan.start == ("controller", "w1", "w2")
    assert plan.cluster.cluster == known.cluster
    assert plan.cluster.workers == known.workers


def test_up_starts_what_died_and_remembers_what_runs() -> None:
    known = running()
    plan = plan_up(request(), known, frozenset({"controller", "w1", "w3"}))
    assert plan.start == ("w2",)
    assert set(plan.cluster.processes) == {"controller", "w1", "w3"}


def test_a_second_up_is_refused() -> None:
    known = running()
    with pytest.raises(errors.AlreadyRunning):
        plan_up(request(), known, frozenset(known.names()))


def test_workers_may_be_added_while_all_is_down() -> None:
    known = running(2)
    assert plan_up(request(workers=4), known, frozenset()).start[-2:] == ("w3", "w4")
    with pytest.raises(errors.Refused):
        plan_up(request(workers=4), known, frozenset({"w1"}))


def test_workers_that_may_hold_state_are_not_left_out() -> None:
    with pytest.raises(errors.Refused):
        plan_up(request(workers=2), running(3), frozenset())


def test_each_worker_has_as_many_disks_as_are_asked_for_beside_each_other() -> None:
    known = plan_up(request(workers=2, disks=3), None, frozenset()).cluster
    for name, entry in known.workers.items():
        assert entry.disk == str(DIRECTORY / "workers" / name)
        assert entry.disks == tuple(str(DIRECTORY / "disks" / f"{name}-{n}") for n in (2, 3))
    later = plan_up(request(workers=3), known, frozenset()).cluster
    assert [len(entry.disks) for entry in later.workers.values()] == [2, 2, 2]
    assert plan_up(request(), None, frozenset()).cluster.workers[WorkerId("w1")].disks == ()


def test_disks_may_be_added_while_all_is_down_and_are_not_left_out() -> None:
    known = plan_up(request(workers=2, disks=2), None, frozenset()).cluster
    known = replace(known, processes=dict.fromkeys(known.names(), (100, 7)))
    more = plan_up(request(disks=4), known, frozenset()).cluster
    assert [len(entry.disks) for entry in more.workers.values()] == [3, 3]
    assert more.workers[WorkerId("w1")].disks[:1] == known.workers[WorkerId("w1")].disks
    with pytest.raises(errors.Refused, match="cannot change"):
        plan_up(request(disks=4), known, frozenset({"w1"}))
    with pytest.raises(errors.Refused, match="have 2 disks"):
        plan_up(request(disks=1), known, frozenset())


def test_the_address_changes_only_while_all_is_down() -> None:
    known = running()
    assert plan_up(request(port=8700), known, frozenset()).cluster.controller.endswith(":8700")
    with pytest.raises(errors.Refused):
        plan_up(request(port=8700), known, frozenset({"w1"}))


def test_limits_are_kept_until_others_are_asked_for() -> None:
    first = plan_up(request(cache_mb=10), None, frozenset()).cluster
    again = plan_up(request(buffer_mb=20), first, frozenset()).cluster
    assert (again.cache_mb, again.buffer_mb) == (10, 20)


def test_a_directory_of_another_version_is_refused() -> None:
    with pytest.raises(errors.ForeignManifest):
        plan_up(request(), replace(running(), version="99.0.0"), frozenset())


def test_status_of_what_is_down(tmp_path: Path) -> None:
    with pytest.raises(errors.NotRunning):
        local.status(tmp_path)
    config.write_cluster(tmp_path, running())
    view = local.status(tmp_path)
    assert view.health is Health.DOWN
    assert local.exit_of_local(view) is errors.Exit.REFUSED


def test_down_of_what_is_down_has_nothing_to_do(tmp_path: Path) -> None:
    config.write_cluster(tmp_path, replace(running(), run=str(tmp_path / "run")))
    assert local.down(tmp_path, lambda _: None).ended == ()
    with pytest.raises(errors.NotRunning):
        local.down(tmp_path / "other", lambda _: None)


def test_an_address_names_no_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(errors.UsageError):
        local.directory_of("unix:///tmp/c.sock")
    monkeypatch.setenv("RHINO_CONTROLLER", "/somewhere")
    assert local.directory_of(None) == Path("/somewhere")
    assert local.directory_of("/else") == Path("/else")


def test_a_worker_that_cannot_read_a_job_has_come_up() -> None:
    poor = fake.worker(2, health=Health.DEGRADED, unreadable=("clicks-1",))
    late, down = fake.worker(3, health=Health.DEGRADED), fake.worker(4, health=Health.DOWN)
    assert local.not_back((fake.worker(1), poor, late, down)) == ["w3", "w4"]
