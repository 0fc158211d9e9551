"""An upgrade over hosts in memory: who is judged how, what is waited for, and in which order what
runs is restarted."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from rhinoctl.config.runs import find_run
from rhinoctl.errors import (
    CannotUpgrade,
    Exit,
    HostLost,
    HostUnreachable,
    NotRunning,
    Refused,
    UnknownHost,
)
from rhinoctl.ids import OpId, WorkerId
from rhinoctl.ops.deploy import DeployView, HostState, Means, exit_of
from rhinoctl.ops.deployed import Deployed, clusters_directory
from rhinoctl.ops.replay import replay
from rhinoctl.ops.upgrade import (
    By,
    UpgradeRequest,
    UpgradeView,
    Verdict,
    check_upgrade,
    exit_of_check,
    upgrade,
)
from rhinoctl.protocol.views import GroupsView, JobView, StatusView
from rhinoctl.remote.host import Command
from rhinoctl.remote.spoken import Spoken
from rhinoctl.remote.ssh import Login
from tests.fakes import controller as canned
from tests.fakes.deploy_host import FakeHost
from tests.unit.ops.test_deploy import World, failing, states

INVENTORY = """\
cluster: clicks
ssh: {user: spark}
controller: {host: c1}
workers:
  - {host: w1, rack: r1}
  - {host: w2, rack: r1}
  - {host: w3, rack: r2}
  - {host: w4}
"""
NAMES = ("controller", "w1", "w2", "w3", "w4")
AWAY = HostUnreachable("w2: cannot be reached", remedy="see that it runs")
LOST = HostLost("w2: the connection ended", remedy="repeat it")


class Cluster(World):
    """Four workers in two racks and none, and a job whose vnodes have a copy each. A copy is full
    while its agent runs, unless it is `gathering`: for so many looks of the controller."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.inventory.write_text(INVENTORY)
        for name in ("w3", "w4"):
            self.hosts[name] = FakeHost(name, spoken=self.spoken)
        self.chains = [("w1", "w3"), ("w2", "w4"), ("w3", "w1"), ("w4", "w2")]
        self.gathering: dict[str, int] = {}
        self.jobs: tuple[JobView, ...] = ()
        self.events: list[str] = []
        for name, host in self.hosts.items():
            host.before = self.watch(name)

    def watch(self, name: str) -> Callable[[Command], None]:
        def before(command: Command) -> None:
            for what in ("install", "stop", "start"):
                if command.what.startswith(f"{what} "):
                    self.events.append(f"{what} {name}")

        return before

    def means(self) -> Means:
        return replace(super().means(), settle_s=0.4, health_s=0.4)

    def _status(self, cluster: Deployed) -> StatusView:
        return replace(super()._status(cluster), jobs=self.jobs)

    def _groups(self, cluster: Deployed) -> tuple[GroupsView, ...]:
        whole = {name: bool(host.running) for name, host in self.hosts.items()}
        for name, looks in list(self.gathering.items()):
            whole[name] &= looks <= 0
            self.gathering[name] = looks - 1
        self.events.append(f"full {' '.join(name for name in NAMES[1:] if whole[name])}")
        groups = [
            canned.group(number, canned.member(copy, whole=whole[copy]), worker=WorkerId(owner))
            for number, (owner, copy) in enumerate(self.chains)
        ]
        return (canned.groups(*groups),)

    def request(self, *limit: str, by: By = By.HOST, back: bool = False) -> UpgradeRequest:
        return UpgradeRequest(inventory=self.inventory, by=by, limit=limit, back=back)

    def check(self, *limit: str, by: By = By.HOST, back: bool = False) -> UpgradeView:
        request = self.request(*limit, by=by, back=back)
        return check_upgrade(request, Login(), self.heard, self.means())

    def upgrade(self, *limit: str, by: By = By.HOST, back: bool = False) -> DeployView:
        request = self.request(*limit, by=by, back=back)
        return upgrade(request, Login(), self.heard, self.plans.append, self.means())

    def replay(self, run: str) -> DeployView:
        return replay(run, Login(), self.heard, self.plans.append, self.means())

    def restarted(self) -> list[str]:
        """Who was ended and started, in this order."""
        return [event for event in self.events if event.startswith(("stop", "start"))]

    def changed(self) -> bool:
        return any(host.changed for host in self.hosts.values())


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """Deployed with 1-a, and about to become 2-b."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    made = Cluster(tmp_path)
    made.deploy()
    made.release = "2-b"
    made.forget_commands()
    made.events.clear()
    made.plans.clear()
    return made


def verdicts(view: UpgradeView) -> dict[str, Verdict]:
    return {host.host: host.verdict for host in view.hosts}


def releases(world: Cluster) -> set[str]:
    return {host.current for host in world.hosts.values()}


def restarts(names: Iterable[str]) -> list[str]:
    return [event for name in names for event in (f"stop {name}", f"start {name}")]


# --- what would be --------------------------------------------------------------------------------


def test_a_check_says_what_runs_and_what_would_and_changes_nothing(world: Cluster) -> None:
    world.spoken["2-b"] = Spoken(version="2", protocol=2, format=2)
    view = world.check()
    assert exit_of_check(view) is Exit.HAS_CHANGES
    assert set(verdicts(view).values()) == {Verdict.CAN}
    for host in view.hosts:
        assert host.runs is not None
        assert host.would is not None
        assert (host.runs.name, host.runs.speaks) == ("1-a", Spoken(version="1"))
        assert (host.would.name, host.would.speaks) == ("2-b", world.spoken["2-b"])
    assert view.waves == (("w1",), ("w2",), ("w3",), ("w4",))
    assert (view.troubles, view.silent) == ((), "")
    assert world.check(by=By.RACK).waves == (("w1", "w2"), ("w3",), ("w4",))
    assert not world.changed()
    world.upgrade()
    again = world.check()
    assert exit_of_check(again) is Exit.DONE
    assert set(verdicts(again).values()) == {Verdict.NOTHING}
    assert again.waves == ()


def test_a_check_tells_what_is_not_well(world: Cluster) -> None:
    world.sick.add("w3")
    world.jobs = (canned.job(operation=OpId("op-7")),)
    world.gathering["w4"] = 9
    view = world.check()
    told = " ".join(view.troubles)
    assert all(each in told for each in ("w3", "op-7", "lacks copies"))
    assert exit_of_check(view) is Exit.HAS_CHANGES
    world.hosts["controller"].running.clear()
    silent = world.check()
    assert silent.silent


# --- in which order -------------------------------------------------------------------------------


def test_the_controller_is_first_then_agents_one_by_one(world: Cluster) -> None:
    view = world.upgrade()
    assert exit_of(view) is Exit.DONE
    assert set(states(view).values()) == {HostState.DONE}
    assert world.restarted() == restarts(NAMES)
    assert releases(world) == {"2-b"}
    first = world.events.index("stop controller")
    assert sorted(e for e in world.events[:first] if e.startswith("install")) == [
        f"install {name}" for name in sorted(NAMES)
    ]
    assert find_run(clusters_directory(), view.run).command == "upgrade"
    assert exit_of(world.upgrade()) is Exit.DONE
    assert len(world.plans) == 1


def test_agents_of_a_rack_are_away_together(world: Cluster) -> None:
    assert exit_of(world.upgrade(by=By.RACK)) is Exit.DONE
    order = [event for event in world.restarted() if "controller" not in event]
    assert sorted(order[:4]) == ["start w1", "start w2", "stop w1", "stop w2"]
    assert order[4:] == restarts(("w3", "w4"))


def test_the_next_agent_waits_until_every_copy_is_full_again(world: Cluster) -> None:
    world.hosts["w1"].before = lambda command: (
        world.gathering.update(w1=1) if command.what.startswith("start ") else None
    )
    assert exit_of(world.upgrade()) is Exit.DONE
    second = world.events.index("stop w2")
    assert world.events[second - 1] == "full w1 w2 w3 w4"
    assert "full w2 w3 w4" in world.events[:second]


def test_copies_that_do_not_come_back_are_the_end_of_it(world: Cluster) -> None:
    """To go on would take the second copy of a vnode away."""
    world.hosts["w2"].before = lambda command: (
        world.gathering.update(w2=99) if command.what.startswith("start ") else None
    )
    view = world.upgrade()
    assert states(view) == {
        **dict.fromkeys(("controller", "w1", "w2"), HostState.DONE),
        **dict.fromkeys(("w3", "w4"), HostState.NOT_TRIED),
    }
    assert exit_of(view) is Exit.PARTIAL
    assert world.hosts["w3"].current == "1-a"
    world.gathering.clear()
    resumed = world.replay(view.run)
    assert exit_of(resumed) is Exit.DONE
    assert find_run(clusters_directory(), resumed.run).by == "host"


def test_copies_that_the_last_agent_does_not_have_again_are_said(world: Cluster) -> None:
    world.hosts["w4"].before = lambda command: (
        world.gathering.update(w4=99) if command.what.startswith("start ") else None
    )
    view = world.upgrade()
    assert set(states(view).values()) == {HostState.DONE}
    assert exit_of(view) is Exit.DEGRADED
    assert view.unwell


# --- what stands in the way -----------------------------------------------------------------------


def undeployed(world: Cluster) -> None:
    world.inventory.write_text(f"{INVENTORY}  - {{host: w5}}\n")
    world.hosts["w5"] = FakeHost("w5")


def other_settings(world: Cluster) -> None:
    world.inventory.write_text(f"{INVENTORY}agent: {{cache_mb: 33}}\n")


def other_bounds(world: Cluster) -> None:
    world.inventory.write_text(INVENTORY.replace("rack: r2", "rack: r2, limits: {cpus: 2}"))


def newer(world: Cluster) -> None:
    world.release = "0.9-c"


def other_format(world: Cluster) -> None:
    world.spoken["2-b"] = Spoken(version="2", format=3, oldest_format=2)


def other_protocol(world: Cluster) -> None:
    world.spoken["2-b"] = Spoken(version="2", protocol=3, oldest_protocol=2)


def unreachable(world: Cluster) -> None:
    world.hosts["w2"].before = failing("", AWAY)


def down(world: Cluster) -> None:
    world.sick.add("w2")


def operation(world: Cluster) -> None:
    world.jobs = (canned.job(operation=OpId("op-7")),)


def copy_lacks(world: Cluster) -> None:
    world.gathering["w2"] = 99


REFUSED = [
    *(undeployed, other_settings, other_bounds, newer, other_format, other_protocol),
    *(unreachable, down, operation, copy_lacks),
]
JUDGED = {
    undeployed: {"not-running", "cannot-upgrade"},  # the controller does not know the worker yet
    other_settings: {"cannot-upgrade"},
    other_bounds: {"cannot-upgrade"},
    newer: {"host-unfit"},
    other_format: {"host-unfit"},
    other_protocol: {"host-unfit"},
    unreachable: {"host-unreachable"},
}


@pytest.mark.parametrize("fault", REFUSED, ids=lambda fault: fault.__name__)
def test_what_is_refused_before_anything_is_changed(
    world: Cluster, fault: Callable[[Cluster], None]
) -> None:
    fault(world)
    with pytest.raises(CannotUpgrade) as refused:
        world.upgrade()
    assert refused.value.remedy
    assert not world.changed()
    assert world.plans == []
    view = world.check()
    cannot = {host.code for host in view.hosts if host.verdict is Verdict.CANNOT}
    assert cannot == JUDGED.get(fault, set())
    assert exit_of_check(view) is (Exit.PARTIAL if cannot else Exit.HAS_CHANGES)


def test_what_becomes_well_in_time_is_waited_for(world: Cluster) -> None:
    world.gathering["w2"] = 1
    assert exit_of(world.upgrade()) is Exit.DONE
    assert any(line.startswith("waiting: ") for line in world.heard.lines)


def test_a_rack_that_has_all_copies_of_a_vnode_is_not_restarted_at_once(world: Cluster) -> None:
    world.chains[0] = ("w1", "w2")
    view = world.check(by=By.RACK)
    assert [host.host for host in view.hosts if host.verdict is Verdict.CANNOT] == ["w1", "w2"]
    with pytest.raises(CannotUpgrade, match="vnode 0 of job clicks"):
        world.upgrade(by=By.RACK)
    assert not world.changed()
    assert exit_of(world.upgrade()) is Exit.DONE


def test_copies_that_come_into_one_rack_meanwhile_are_seen(world: Cluster) -> None:
    world.hosts["w4"].before = lambda command: (
        world.chains.__setitem__(0, ("w1", "w2")) if command.what.startswith("install") else None
    )
    view = world.upgrade(by=By.RACK)
    assert states(view)["controller"] is HostState.DONE
    assert states(view)["w1"] is states(view)["w2"] is HostState.NOT_TRIED
    assert world.restarted() == restarts(["controller"])


def test_a_cluster_that_was_not_deployed_from_here(world: Cluster) -> None:
    world.inventory.write_text(INVENTORY.replace("clicks", "other"))
    with pytest.raises(NotRunning):
        world.upgrade()
    with pytest.raises(UnknownHost):
        world.check("w9")
    world.inventory.write_text(INVENTORY.replace("  - {host: w4}\n", ""))
    with pytest.raises(Refused, match="leaves out"):
        world.check()


# --- what breaks in the middle --------------------------------------------------------------------


def test_an_agent_that_does_not_come_back_is_the_last_one(world: Cluster) -> None:
    world.hosts["w2"].before = failing("start rhinoctl", LOST)
    view = world.upgrade()
    assert states(view) == {
        **dict.fromkeys(("controller", "w1"), HostState.DONE),
        "w2": HostState.UNREACHABLE,
        **dict.fromkeys(("w3", "w4"), HostState.NOT_TRIED),
    }
    assert "w2" in view.hosts[-1].reason
    assert (world.hosts["w3"].current, bool(world.hosts["w3"].running)) == ("1-a", True)
    world.hosts["w2"].before = world.watch("w2")
    world.events.clear()
    resumed = world.replay(view.run)
    assert exit_of(resumed) is Exit.DONE
    assert world.restarted() == ["start w2", *restarts(("w3", "w4"))]
    assert releases(world) == {"2-b"}


@pytest.mark.parametrize(("release", "back"), [("3-c", False), ("1-a", True)])
def test_what_a_bad_release_has_left_down_is_started_first_with_another(
    world: Cluster, release: str, back: bool
) -> None:
    world.hosts["w2"].before = failing("start rhinoctl", LOST)
    world.upgrade()
    world.hosts["w2"].before = world.watch("w2")
    world.release = release
    world.events.clear()
    assert exit_of(world.upgrade(back=back)) is Exit.DONE
    others = ["w1"] if back else ["w1", "w3", "w4"]
    assert world.restarted() == [*restarts(["controller"]), "start w2", *restarts(others)]
    assert releases(world) == {release}


def test_without_the_controller_no_agent_is_restarted(world: Cluster) -> None:
    world.hosts["controller"].before = failing("install", LOST)
    view = world.upgrade()
    assert states(view) == {
        "controller": HostState.UNREACHABLE,
        **dict.fromkeys(NAMES[1:], HostState.NOT_TRIED),
    }
    assert world.restarted() == []
    world.hosts["controller"].before = world.watch("controller")
    assert exit_of(world.upgrade()) is Exit.DONE


def test_a_release_that_does_not_arrive_somewhere_keeps_nobody_else(world: Cluster) -> None:
    world.hosts["w2"].before = failing("install", LOST)
    view = world.upgrade()
    assert states(view)["w2"] is HostState.UNREACHABLE
    assert len(view.of(HostState.DONE)) == 4
    assert world.hosts["w2"].running


def test_a_controller_that_was_left_down_is_started_first(world: Cluster) -> None:
    world.hosts["controller"].before = failing("start rhinoctl", LOST)
    view = world.upgrade()
    assert states(view)["w1"] is HostState.NOT_TRIED
    world.hosts["controller"].before = world.watch("controller")
    assert exit_of(world.replay(view.run)) is Exit.DONE
    assert releases(world) == {"2-b"}


# --- some of the hosts, and back ------------------------------------------------------------------


def test_agents_alone_only_after_the_controller(world: Cluster) -> None:
    with pytest.raises(CannotUpgrade, match="controller comes first"):
        world.upgrade("w1")
    assert not world.changed()
    assert exit_of(world.upgrade("controller")) is Exit.DONE
    view = world.upgrade("w1", "w3")
    assert states(view) == {"w1": HostState.DONE, "w3": HostState.DONE}
    assert world.restarted() == restarts(("controller", "w1", "w3"))
    assert verdicts(world.check())["w2"] is Verdict.CAN


def test_back_to_an_older_version_that_understands_the_newer_one(world: Cluster) -> None:
    world.spoken["2-b"] = Spoken(version="2", protocol=2, oldest_protocol=1)
    world.upgrade()
    world.release = "1-a"
    with pytest.raises(CannotUpgrade):
        world.upgrade()
    assert exit_of_check(world.check(back=True)) is Exit.HAS_CHANGES
    world.forget_commands()
    view = world.upgrade(back=True)
    assert exit_of(view) is Exit.DONE
    assert releases(world) == {"1-a"}
    assert not any(host.asked("install") for host in world.hosts.values())


def test_no_way_back_over_a_change_of_format(world: Cluster) -> None:
    world.spoken["2-b"] = Spoken(version="2", format=2)
    world.upgrade()
    world.release = "1-a"
    with pytest.raises(CannotUpgrade, match="format"):
        world.upgrade(back=True)


def test_a_deployment_refuses_what_is_too_far_apart(world: Cluster) -> None:
    other_protocol(world)
    view = world.deploy()
    assert {host.code for host in view.hosts} == {"host-unfit"}
    assert not world.changed()
