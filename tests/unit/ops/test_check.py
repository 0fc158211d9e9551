"""A check over hosts in memory: what is looked at, what is mended, and what is left alone."""

from collections.abc import Callable
from pathlib import Path

import pytest

from rhinoctl.config.clusters import ClusterHome, Member
from rhinoctl.config.rates import Rates
from rhinoctl.config.runs import RunState, find_run
from rhinoctl.errors import CommandFailed, Exit, HostLost, RhinoError
from rhinoctl.ops.check import CheckMeans, CheckView, HostState, apply, check, exit_of
from rhinoctl.ops.deployed import clusters_directory
from rhinoctl.ops.host_checks import Verdict
from rhinoctl.remote.fleet import Fleet
from rhinoctl.remote.host import Command, Host
from rhinoctl.remote.network import Stop, Stretch
from rhinoctl.remote.ssh import Login
from tests.fakes.deploy_host import FakeHost, fleet_of_fakes

INVENTORY = """\
cluster: clicks
ssh: {user: spark}
controller: {host: c1}
workers:
  - {host: w1}
  - {host: w2}
"""
SYSTEMD = {"systemd": "yes", "user_manager": "yes"}
DAY_S = 86_400.0


class Declined(Exception):
    """A person says no."""


class World:
    """Three hosts, and a network as it is told."""

    def __init__(self, directory: Path) -> None:
        self.inventory = directory / "inventory.yml"
        self.inventory.write_text(INVENTORY)
        self.hosts = {name: FakeHost(name) for name in ("controller", "w1", "w2")}
        self.network = {"w1": 1e9, "w2": 1e9}
        self.now = 0.0
        self.measured = 0
        self.told: list[str] = []
        self.plans: list[CheckView] = []
        self.home = ClusterHome(clusters_directory() / "clicks", "clicks")

    def _measure(self, fleet: Fleet[Host], stops: tuple[Stop, ...]) -> tuple[Stretch, ...]:
        """Each stretch is as slow as the slower one of its two ends."""
        self.measured += 1
        return tuple(
            Stretch(
                sender=a.name,
                receiver=b.name,
                port=b.port,
                bytes_s=min(self.network[a.name], self.network[b.name]),
            )
            for a, b in zip(stops, [*stops[1:], stops[0]], strict=True)
        )

    def means(self) -> CheckMeans:
        return CheckMeans(
            open_fleet=lambda inventory, login: fleet_of_fakes(self.hosts),
            measure=self._measure,
            now=lambda: self.now,
        )

    def check(self) -> CheckView:
        return check(self.inventory, Login(), self.told.append, self.means())

    def apply(
        self, *, dry_run: bool = False, agree: Callable[[CheckView], object] | None = None
    ) -> CheckView:
        return apply(
            *(self.inventory, Login(), self.told.append, agree or self.plans.append),
            self.means(),
            dry_run=dry_run,
        )

    def join(self) -> None:
        """The cluster has been deployed."""
        with self.home.claimed():
            for name in ("w1", "w2"):
                self.home.join(name, Member(host=name, machine=name))

    def install(self, name: str, identity: str = "") -> None:
        """A release is there, of this cluster unless another one is named."""
        with self.home.claimed():
            identity = identity or self.home.make().identity
        self.hosts[name].current = "1-a"
        self.hosts[name].releases = ["1-a"]
        self.hosts[name].files["/opt/rhinoctl/cluster"] = (0o600, identity.encode())

    @property
    def changed(self) -> list[str]:
        return [name for name, host in self.hosts.items() if host.changed]


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return World(tmp_path)


def failed(view: CheckView) -> set[tuple[str, str]]:
    return {(each.host, each.check) for each in view.findings if each.verdict is Verdict.FAIL}


def refusing(what: str, fault: RhinoError) -> Callable[[Command], None]:
    def before(command: Command) -> None:
        if command.what.startswith(what):
            raise fault

    return before


def test_a_check_changes_no_host_and_says_what_could_be_mended(world: World) -> None:
    view = world.check()
    assert (exit_of(view), world.changed) == (Exit.DONE, [])
    assert [(each.host, each.state) for each in view.mends] == [
        (name, HostState.PLANNED) for name in ("controller", "w1", "w2")
    ]
    assert view.mends[1].what == "make /opt/rhinoctl (in /), /var/lib/rhinoctl/worker (in /)"
    assert not world.home.runs.exists()


# --- ports ---------------------------------------------------------------------------------------


def test_a_port_of_our_own_process_is_not_taken_by_somebody(world: World) -> None:
    world.hosts["w1"].facts = world.hosts["w2"].facts = {"port.7471": "taken"}
    for name in ("w1", "w2"):
        world.install(name)
    world.hosts["w1"].running = {"rhinoctl-clicks-agent": 7}
    view = world.check()
    assert failed(view) == {("w2", "port 7471")}
    (ours,) = [f for f in view.findings if (f.host, f.check) == ("w1", "port 7471")]
    assert ours.seen == "our agent listens there"


def test_the_process_of_another_cluster_is_somebody(world: World) -> None:
    world.hosts["w1"].facts = {"port.7471": "taken"}
    world.hosts["w1"].running = {"rhinoctl-clicks-agent": 7}
    world.install("w1", identity="clicks-of-another")
    view = world.check()
    assert failed(view) == {("w1", "port 7471"), ("w1", "cluster")}
    assert "w1" not in {each.host for each in view.mends}


def test_a_process_that_cannot_be_asked_is_somebody_and_the_host_is_judged(world: World) -> None:
    world.hosts["w1"].facts = {"port.7471": "taken"}
    world.install("w1")
    world.hosts["w1"].before = refusing("state", CommandFailed("w1: no", remedy="see"))
    assert failed(world.check()) == {("w1", "port 7471")}


# --- mending -------------------------------------------------------------------------------------


def test_directories_are_made_as_a_deployment_makes_them_and_twice_is_once(world: World) -> None:
    view = world.apply()
    assert {each.state for each in view.mends} == {HostState.DONE}
    assert exit_of(view) is Exit.DONE
    assert len(world.plans) == 1
    w1 = world.hosts["w1"]
    assert w1.directories == {"/opt/rhinoctl": 0o755, "/var/lib/rhinoctl/worker": 0o700}
    assert w1.made == [
        "new /opt/rhinoctl",
        *(f"{kind} /var/lib/rhinoctl/worker" for kind in ("new", "state")),
    ]
    seen = {each.check: each.seen for each in view.findings if each.host == "w1"}
    assert "not there yet" not in seen["directory /var/lib/rhinoctl/worker"]
    again = world.apply()
    assert (again.mends, again.run, len(world.plans)) == ((), "", 1)


def test_every_command_that_mends_is_written_down(world: World) -> None:
    view = world.apply()
    run = find_run(clusters_directory(), view.run)
    assert (run.command, run.state) == ("check", RunState.DONE)
    assert [step.what for step in run.hosts["w1"].steps] == [view.mends[1].what]
    commands = (world.home.runs / f"{view.run}.commands").read_text()
    assert commands.count("make directories") == 3


def test_root_makes_them_where_the_inventory_says_so(world: World) -> None:
    for host in world.hosts.values():
        host.facts = {f"dir.{n}.writable": "" for n in range(2)}
    assert world.check().mends == ()
    assert len(failed(world.check())) == 6
    world.inventory.write_text(INVENTORY.replace("user: spark", "user: spark, sudo: true"))
    for name in ("controller", "w1"):
        world.hosts[name].facts |= {"sudo": "yes"}
    view = world.apply()
    assert [each.host for each in view.mends] == ["controller", "w1"]
    assert failed(view) == {("w2", "user")}
    (command,) = world.hosts["w1"].asked("make directories")
    assert command.root
    assert world.changed == ["controller", "w1"]


def test_what_fails_is_not_mended_around(world: World) -> None:
    """A file for a disk, a disk that was there, an installation that cannot be executed."""
    world.hosts["w1"].facts = {"dir.1.file": "yes"}
    world.hosts["w2"].made = ["new /opt/rhinoctl", "had /var/lib/rhinoctl/worker"]
    world.hosts["controller"].facts = {"dir.0.exec": ""}
    view = world.apply()
    assert [(each.host, each.what) for each in view.mends] == [
        ("w1", "make /opt/rhinoctl (in /)"),
        ("w2", "make /opt/rhinoctl (in /)"),
    ]
    assert set(world.hosts["w2"].directories) == {"/opt/rhinoctl"}
    assert failed(view) == {
        ("controller", "directory /opt/rhinoctl"),
        ("w1", "directory /var/lib/rhinoctl/worker"),
        ("w2", "directory /var/lib/rhinoctl/worker"),
    }
    assert exit_of(view) is Exit.DEGRADED


def test_a_machine_under_two_names_is_left_alone(world: World) -> None:
    world.hosts["w2"].facts = {"machine_id": "w1"}
    assert [each.host for each in world.apply().mends] == ["controller", "w1"]


def test_an_account_lingers_by_its_own_wish(world: World) -> None:
    world.hosts["w1"].facts = dict(SYSTEMD)
    view = world.apply()
    whats = [each.what for each in view.mends if each.host == "w1"]
    assert whats[1] == "let services of spark go on while nobody is logged in"
    (command,) = world.hosts["w1"].asked("let spark linger")
    assert (command.changes, command.root, command.argv[-1]) == (True, False, "spark")
    service = [f.seen for f in view.findings if (f.host, f.check) == ("w1", "service")]
    assert service == ["a unit of the user"]
    assert not world.hosts["w2"].asked("let")


def test_an_account_may_linger_also_where_services_are_supervised(world: World) -> None:
    """They go on, and are found (`rhinoctl.remote.services.Either`)."""
    world.hosts["w1"].facts = dict(SYSTEMD)
    world.install("w1")
    (before,) = [f for f in world.check().findings if (f.host, f.check) == ("w1", "service")]
    assert before.verdict is Verdict.WARN
    assert before.remedy.endswith("then `rhinoctl restart`")
    world.apply()
    assert world.hosts["w1"].asked("let spark linger")


def test_what_cannot_be_mended_stands_in_the_way_of_nothing(world: World) -> None:
    refused = CommandFailed("w1: spark may not linger", remedy="by a person with root")
    for name in ("w1", "w2"):
        world.hosts[name].facts = dict(SYSTEMD)
    world.hosts["w1"].before = refusing("let", refused)
    world.hosts["controller"].before = refusing("make", HostLost("controller: gone", remedy="x"))
    view = world.apply()
    states = [(each.host, each.state.value) for each in view.mends]
    assert states == [
        ("controller", "failed"),
        *(("w1", "done"), ("w1", "failed")),
        *(("w2", "done"), ("w2", "done")),
    ]
    assert view.mends[2].reason == "spark may not linger"
    assert view.mends[2].remedy == "by a person with root"
    assert exit_of(view) is Exit.PARTIAL
    run = find_run(clusters_directory(), view.run)
    assert (run.state, run.hosts["w1"].reason) == (RunState.PARTIAL, "spark may not linger")


def test_nothing_is_done_before_a_person_agrees_and_nothing_in_a_dry_run(world: World) -> None:
    def no(view: CheckView) -> None:
        assert view.mends
        raise Declined

    with pytest.raises(Declined):
        world.apply(agree=no)
    view = world.apply(dry_run=True)
    assert (exit_of(view), world.changed) == (Exit.HAS_CHANGES, [])
    assert {each.state for each in view.mends} == {HostState.PLANNED}


# --- the network ---------------------------------------------------------------------------------


def rates(world: World) -> tuple[float, dict[str, float]]:
    kept = world.home.rates()
    assert isinstance(kept, Rates)
    return kept.measured_at, {name: each.bytes_s for name, each in kept.workers.items()}


def test_the_last_check_before_a_deployment_is_kept(world: World) -> None:
    world.check()
    assert rates(world) == (0.0, {"w1": 1e9, "w2": 1e9})
    world.now, world.network = DAY_S, {"w1": 2e9, "w2": 2e9}
    world.check()
    assert rates(world) == (DAY_S, {"w1": 2e9, "w2": 2e9})


def test_what_a_cluster_counts_with_is_changed_by_nothing_but_apply(world: World) -> None:
    world.check()
    world.join()
    world.now, world.network = 40 * DAY_S, {"w1": 1e8, "w2": 1e8}
    assert world.check().findings[-1].check == "network"
    assert rates(world)[0] == 0.0  # all are slower: that is no drift
    assert {each.host for each in world.apply().mends} == {"controller", "w1", "w2"}
    assert rates(world)[0] == 0.0


def test_a_drift_is_said_and_taken_by_apply(world: World) -> None:
    world.inventory.write_text(INVENTORY + "  - {host: w3}\n")
    world.hosts["w3"] = FakeHost("w3")
    world.network["w3"] = 1e9
    world.check()
    world.join()
    world.now, world.network["w3"] = 40 * DAY_S, 1e8
    view = world.check()
    (found,) = [f for f in view.findings if "copies are placed" in f.seen]
    assert (found.host, found.verdict) == ("w3", Verdict.WARN)
    assert rates(world)[0] == 0.0
    before = world.measured
    applied = world.apply()
    assert [each.host for each in applied.mends][-1] == "w3"
    assert applied.mends[-1].state is HostState.DONE
    assert rates(world) == (40 * DAY_S, {"w1": 1e9, "w2": 1e9, "w3": 1e8})
    assert world.measured == before + 1  # what was mended is not the network
    assert not [f for f in applied.findings if "copies are placed" in f.seen]
    assert world.apply().mends == ()


def test_a_check_beside_another_command_says_that_nothing_is_kept(world: World) -> None:
    with world.home.claimed():
        world.check()
    assert world.home.rates() is None
    assert "not kept" in world.told[-1]
