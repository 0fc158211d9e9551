"""A deployment over hosts in memory: what is done, in which order, and what becomes of faults."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from threading import Lock

import pytest

from rhinoctl.config.clusters import ClusterHome
from rhinoctl.config.rates import Rate, Rates
from rhinoctl.config.runs import Journal, RunState, find_run
from rhinoctl.control.settings import ControllerSettings
from rhinoctl.errors import (
    Busy,
    Exit,
    HostLost,
    HostUnreachable,
    MissingWheel,
    NotRunning,
    Refused,
    RhinoError,
    UnknownHost,
    UnknownRun,
)
from rhinoctl.ids import WorkerId
from rhinoctl.ops.deploy import (
    DeployRequest,
    DeployView,
    HostState,
    HostView,
    Means,
    deploy,
    exit_of,
    resume,
)
from rhinoctl.ops.deployed import Deployed, clusters_directory, read_deployed
from rhinoctl.protocol import codec
from rhinoctl.protocol.views import GroupsView, Health, JobView, StatusView, WorkerView
from rhinoctl.remote.environment import Environment
from rhinoctl.remote.host import Command
from rhinoctl.remote.packages import Platform
from rhinoctl.remote.spoken import Spoken
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


class Heard:
    """Progress that is kept."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.ends: list[HostView] = []
        self.run = ""

    def say(self, text: str) -> None:
        self.lines.append(text)

    def began(self, run: str) -> None:
        self.run = run

    def at(self, host: str, what: str) -> None:
        self.lines.append(f"{host}: {what}")

    def ended(self, host: HostView) -> None:
        self.ends.append(host)


class World:
    """Three hosts, and a controller that answers once it was started."""

    def __init__(self, directory: Path) -> None:
        self.inventory = directory / "inventory.yml"
        self.inventory.write_text(INVENTORY)
        self.spoken: dict[str, Spoken] = {}
        self.hosts = {
            name: FakeHost(name, spoken=self.spoken) for name in ("controller", "w1", "w2")
        }
        self.heard = Heard()
        self.plans: list[DeployView] = []
        self.release = "1-a"
        self.missing: RhinoError | None = None
        self.sick: set[str] = set()
        self.jobs: tuple[JobView, ...] = ()
        self.refused_by: tuple[str, ...] = ()

    def means(self) -> Means:
        return Means(
            open_fleet=lambda inventory, login: fleet_of_fakes(self.hosts),
            build=self._build,
            status=self._status,
            groups=self._groups,
            settle_s=1.0,
            health_s=1.0,
        )

    def _build(self, platform: Platform, cache: Path, say: Callable[[str], None]) -> Environment:
        if self.missing is not None and platform.machine == "riscv64":
            raise self.missing
        version, _, digest = self.release.partition("-")
        return Environment(
            platform=platform,
            speaks=self.spoken.get(self.release) or Spoken(version=version),
            digest=digest,
            archive=cache / "a",
            sha256="0",
            size=1,
        )

    def _status(self, cluster: Deployed) -> StatusView:
        if not self.hosts["controller"].running:
            raise NotRunning("no controller answers", remedy="start it")
        workers = tuple(
            WorkerView(
                id=WorkerId(name),
                address="",
                health=Health.OK if host.running and name not in self.sick else Health.DOWN,
                seen_s=0.0,
                pid=host.pid_of("agent"),
                free_bytes=0,
                instances=0,
                vnodes_owned=0,
                log_bytes=0,
            )
            for name, host in self.hosts.items()
            if name != "controller"
        )
        return StatusView(
            cluster="",
            health=Health.OK,
            workers=workers,
            jobs=self.jobs,
            operations=(),
            findings=(),
            refused_by=tuple(map(WorkerId, self.refused_by)),
        )

    def _groups(self, cluster: Deployed) -> tuple[GroupsView, ...]:
        return ()

    def deploy(self, *limit: str, dry_run: bool = False) -> DeployView:
        request = DeployRequest(inventory=self.inventory, limit=limit, dry_run=dry_run)
        return deploy(request, Login(), self.heard, self.plans.append, self.means())

    def resume(self, run: str) -> DeployView:
        return resume(run, Login(), self.heard, self.plans.append, self.means())

    def forget_commands(self) -> None:
        for host in self.hosts.values():
            host.commands.clear()


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return World(tmp_path)


def states(view: DeployView) -> dict[str, HostState]:
    return {host.host: host.state for host in view.hosts}


def failing(what: str, fault: RhinoError) -> Callable[[Command], None]:
    """A host on which a command that begins so ends with a fault."""

    def before(command: Command) -> None:
        if command.what.startswith(what):
            raise fault

    return before


LOST = HostLost("w1: the connection ended", remedy="repeat it")
AWAY = HostUnreachable("w1: cannot be reached", remedy="see that it runs")


def test_from_nothing_to_a_cluster_and_then_nothing_more(world: World) -> None:
    view = world.deploy()
    assert set(states(view).values()) == {HostState.DONE}
    assert exit_of(view) is Exit.DONE
    assert {name: len(host.running) for name, host in world.hosts.items()} == {
        "controller": 1,
        "w1": 1,
        "w2": 1,
    }
    assert find_run(clusters_directory(), view.run).state is RunState.DONE
    world.forget_commands()
    again = world.deploy()
    assert set(states(again).values()) == {HostState.UNCHANGED}
    assert (exit_of(again), again.run) == (Exit.DONE, "")
    assert not any(host.changed for host in world.hosts.values())
    assert len(world.plans) == 1


def test_a_dry_run_is_the_plan_and_changes_no_host(world: World) -> None:
    view = world.deploy(dry_run=True)
    assert set(states(view).values()) == {HostState.PLANNED}
    assert exit_of(view) is Exit.HAS_CHANGES
    assert not any(host.changed for host in world.hosts.values())
    done = world.deploy()
    assert [host.steps for host in done.hosts] == [host.steps for host in view.hosts]
    assert exit_of(world.deploy(dry_run=True)) is Exit.DONE


def test_the_plan_is_shown_before_anything_is_changed(world: World) -> None:
    def refuse(plan: DeployView) -> None:
        assert all(host.steps for host in plan.hosts)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        deploy(
            DeployRequest(inventory=world.inventory), Login(), world.heard, refuse, world.means()
        )
    assert not any(host.changed for host in world.hosts.values())
    assert world.heard.run == ""


def test_the_controller_answers_before_an_agent_is_started(world: World) -> None:
    def before(command: Command) -> None:
        if command.what.startswith("start rhinoctl"):
            assert world.hosts["controller"].running

    world.hosts["w1"].before = world.hosts["w2"].before = before
    assert exit_of(world.deploy()) is Exit.DONE


def test_hosts_that_are_not_named_are_left_alone(world: World) -> None:
    world.deploy("controller", "w2")
    assert not world.hosts["w1"].commands
    with pytest.raises(UnknownHost, match="no host w9"):
        world.deploy("w9")


def test_a_host_that_is_away_is_named_and_a_replay_finishes_it(world: World) -> None:
    world.hosts["w1"].before = failing("", AWAY)
    view = world.deploy()
    assert states(view) == {
        "controller": HostState.DONE,
        "w1": HostState.UNREACHABLE,
        "w2": HostState.DONE,
    }
    assert exit_of(view) is Exit.PARTIAL
    (away,) = view.of(HostState.UNREACHABLE)
    assert (away.code, away.reason) == ("host-unreachable", "cannot be reached")
    assert world.heard.ends[0].host == "w1"  # at once, and not when the others are done
    world.hosts["w1"].before = lambda command: None
    world.forget_commands()
    world.inventory.write_text("what was begun with is kept")
    resumed = world.resume(view.run)
    assert states(resumed) == {
        "controller": HostState.UNCHANGED,
        "w1": HostState.DONE,
        "w2": HostState.UNCHANGED,
    }
    assert not world.hosts["w2"].changed
    assert find_run(clusters_directory(), resumed.run).resumes == view.run


@pytest.mark.parametrize(
    "what", ["make directories", "install", "write", "switch", "start", "write /opt/rhinoctl/agent"]
)
def test_a_host_that_goes_away_in_the_middle(world: World, what: str) -> None:
    """It is left as it was by then, the others are done, and going on does what is missing."""
    world.hosts["w1"].before = failing(what, LOST)
    view = world.deploy()
    assert states(view)["w1"] is HostState.UNREACHABLE
    assert states(view)["w2"] is HostState.DONE
    record = find_run(clusters_directory(), view.run).hosts["w1"]
    assert [step.fault for step in record.steps][-1] == LOST.message
    assert all(step.seconds is not None for step in record.steps)
    assert not any(step.fault for step in record.steps[:-1])
    world.hosts["w1"].before = lambda command: None
    resumed = world.resume(view.run)
    assert states(resumed)["w1"] is HostState.DONE
    assert exit_of(world.deploy(dry_run=True)) is Exit.DONE


def test_without_its_controller_no_agent_is_started(world: World) -> None:
    world.hosts["controller"].before = failing("start", LOST)
    view = world.deploy()
    assert states(view) == {
        "controller": HostState.UNREACHABLE,
        "w1": HostState.NOT_TRIED,
        "w2": HostState.NOT_TRIED,
    }
    assert exit_of(view) is Exit.PARTIAL
    assert not world.hosts["w1"].running


def test_a_process_that_does_not_stay_is_a_reason_with_its_last_words(world: World) -> None:
    world.hosts["w1"].crashes = True
    world.means()
    view = world.deploy("controller")
    world.hosts["w2"].crashes = True
    status = world.means().status

    def nobody_reports(cluster: Deployed) -> StatusView:
        seen = status(cluster)
        return StatusView(
            cluster="", health=Health.OK, workers=(), jobs=(), operations=(), findings=seen.findings
        )

    means = Means(
        open_fleet=world.means().open_fleet, build=world.means().build, status=nobody_reports
    )
    request = DeployRequest(inventory=world.inventory)
    view = deploy(request, Login(), world.heard, world.plans.append, means)
    failed = view.of(HostState.FAILED)
    assert [host.host for host in failed] == ["w1", "w2"]
    assert {host.code for host in failed} == {"service-failed"}
    assert all("exit code 3" in host.reason for host in failed)
    assert all("the port is taken" in host.reason for host in failed)


UNFIT = {
    "no Python": {"python": ""},
    "an old Python": {"python": "3.9 /usr/bin/python3"},
    "a C library without wheels": {"libc": ""},
    "an installation that may not be executed": {"dir.0.exec": ""},
    "a disk that cannot be written to": {"dir.1.writable": ""},
    "a file in the place of a disk": {"dir.1.file": "yes"},
    "a full disk": {"dir.1.space_kb": f"{100 << 20} 1000"},
    "a port that somebody has": {"port.7471": "taken"},
    "a clock that is off by minutes": {"clock": "1000"},
    "the machine of another host": {"machine_id": "w2"},
}


@pytest.mark.parametrize("facts", UNFIT.values(), ids=list(UNFIT))
def test_a_host_that_is_not_fit_is_not_touched(world: World, facts: dict[str, str]) -> None:
    world.hosts["w1"].facts = facts
    view = world.deploy()
    wrong = "w2" if "machine_id" in facts else "w1"
    (failed,) = view.of(HostState.FAILED)
    assert failed.host == wrong
    assert failed.code == ("unsupported-host" if "python" in facts else "host-unfit")
    assert failed.reason
    assert failed.remedy
    assert not world.hosts[wrong].changed
    assert exit_of(view) is Exit.PARTIAL
    assert len(view.of(HostState.DONE)) == 2


def test_sudo_that_asks_for_a_password_is_found_before_anything_is_changed(world: World) -> None:
    world.inventory.write_text(INVENTORY.replace("user: spark", "user: spark, sudo: true"))
    for name in ("controller", "w1"):
        world.hosts[name].facts = {"sudo": "yes"}
    view = world.deploy()
    (failed,) = view.of(HostState.FAILED)
    assert (failed.host, failed.code) == ("w2", "host-unfit")
    assert not world.hosts["w2"].changed
    asked = {c.what.split()[0] for c in world.hosts["w1"].commands if c.root and c.changes}
    assert "install" not in asked  # root makes directories and services, and nothing else
    assert "make" in asked


def test_a_port_that_our_own_process_listens_on_is_no_fault(world: World) -> None:
    world.deploy()
    for name, port in (("controller", 7470), ("w1", 7471), ("w2", 7471)):
        world.hosts[name].facts = {f"port.{port}": "taken"}
    assert exit_of(world.deploy()) is Exit.DONE


def test_a_package_that_is_not_to_be_had_is_the_reason_of_the_hosts_that_need_it(
    world: World,
) -> None:
    world.missing = MissingWheel("rocksdict is not to be had", remedy="build it")
    world.hosts["w2"].facts = {"machine": "riscv64"}
    view = world.deploy()
    assert states(view) == {
        "controller": HostState.DONE,
        "w1": HostState.DONE,
        "w2": HostState.FAILED,
    }
    assert view.of(HostState.FAILED)[0].code == "missing-wheel"
    assert not world.hosts["w2"].changed


def test_a_host_of_another_cluster_is_refused(world: World) -> None:
    world.hosts["w1"].files["/opt/rhinoctl/cluster"] = (0o600, b"clicks-99\n")
    view = world.deploy()
    (failed,) = view.of(HostState.FAILED)
    assert (failed.host, failed.code) == ("w1", "foreign-manifest")
    assert "clicks-99" in failed.reason
    assert not world.hosts["w1"].changed


def test_agents_that_run_are_restarted_one_after_the_other(world: World) -> None:
    world.deploy()
    world.release = "1-b"
    away: set[str] = set()
    most: list[int] = []
    lock = Lock()

    def watching(name: str) -> Callable[[Command], None]:
        def before(command: Command) -> None:
            with lock:
                if command.what.startswith("stop "):
                    away.add(name)
                    most.append(len(away))
                if command.what.startswith("state ") and world.hosts[name].running:
                    away.discard(name)
                if command.what.startswith("start "):
                    away.discard(name)

        return before

    for name in ("w1", "w2"):
        world.hosts[name].before = watching(name)
    view = world.deploy()
    assert exit_of(view) is Exit.DONE
    assert all(host.restarts for host in world.plans[-1].hosts)
    assert most == [1, 1]
    assert {host.current for host in world.hosts.values()} == {"1-b"}


def test_a_restart_that_leaves_things_worse_is_the_last_one(world: World) -> None:
    """What was wrong before does not count."""
    world.sick.add("w2")
    world.deploy()
    world.release = "1-b"
    assert exit_of(world.deploy()) is Exit.PARTIAL  # w2 does not report
    world.sick.clear()
    assert exit_of(world.deploy()) is Exit.DONE
    world.release = "1-c"
    world.hosts["w1"].before = lambda command: (
        world.sick.add("w1") if command.what.startswith("stop") else None
    )
    view = world.deploy()
    assert states(view) == {
        "controller": HostState.DONE,
        "w1": HostState.FAILED,
        "w2": HostState.NOT_TRIED,
    }
    assert "worker w1 is not well" in view.hosts[2].reason
    assert world.hosts["w2"].current == "1-b"


def test_what_the_agent_before_has_said_last_does_not_count(world: World) -> None:
    """The controller may not have noticed yet that another one was started."""
    world.deploy()
    before = world.means().status(read_deployed(world.inventory))
    world.release = "1-b"
    means = replace(world.means(), status=lambda cluster: before)
    request = DeployRequest(inventory=world.inventory)
    view = deploy(request, Login(), world.heard, world.plans.append, means)
    assert states(view)["w1"] is HostState.FAILED
    assert view.of(HostState.FAILED)[0].code == "deadline-exceeded"


@pytest.mark.parametrize(("release", "fit"), [("1.9-a", False), ("1.10-b", True), ("2-a", True)])
def test_an_older_version_is_not_put_over_a_newer_one(
    world: World, release: str, fit: bool
) -> None:
    world.release = "1.10-a"
    world.deploy()
    world.release = release
    world.forget_commands()
    view = world.deploy()
    assert exit_of(view) is (Exit.DONE if fit else Exit.PARTIAL)
    assert any(host.changed for host in world.hosts.values()) is fit
    if not fit:
        assert {host.code for host in view.hosts} == {"host-unfit"}
        assert "1.10" in view.hosts[0].reason


def test_ctrl_c_leaves_an_account_and_going_on_finishes(world: World) -> None:
    def before(command: Command) -> None:
        if command.what.startswith("install"):
            raise KeyboardInterrupt

    world.hosts["w2"].before = before
    with pytest.raises(KeyboardInterrupt):
        world.deploy()
    run = find_run(clusters_directory(), world.heard.run)
    assert run.state is RunState.INTERRUPTED
    world.hosts["w2"].before = lambda command: None
    assert exit_of(world.resume(run.id)) is Exit.DONE


def test_an_inventory_that_leaves_out_a_worker_with_state_is_refused(world: World) -> None:
    world.deploy()
    world.forget_commands()
    world.inventory.write_text(INVENTORY.replace("  - {host: w2}\n", ""))
    with pytest.raises(Refused, match=r"leaves out .* worker w2 \(on w2\)"):
        world.deploy()
    assert not any(host.commands for host in world.hosts.values())


def test_a_worker_on_another_machine_than_its_state_is_refused(world: World) -> None:
    world.deploy()
    world.hosts["w1"] = FakeHost("w1", facts={"machine_id": "another"})
    view = world.deploy()
    (failed,) = view.of(HostState.FAILED)
    assert (failed.host, failed.code) == ("w1", "host-unfit")
    assert "another machine" in failed.reason
    assert not world.hosts["w1"].changed


def test_a_further_directory_with_something_in_it_is_refused_before_anything_is_changed(
    world: World,
) -> None:
    world.deploy()
    world.forget_commands()
    disks = "disks: [/var/lib/rhinoctl/worker, /data/dear]"
    world.inventory.write_text(INVENTORY.replace("host: w1", f"host: w1, {disks}"))
    world.hosts["w1"].directories["/data/dear"] = 0o755
    world.hosts["w1"].holds.add("/data/dear")
    view = world.deploy()
    (w1,) = view.of(HostState.FAILED)
    assert (w1.host, w1.code) == ("w1", "host-unfit")
    assert "/data/dear" in w1.reason
    assert not world.hosts["w1"].changed
    world.hosts["w1"].holds.remove("/data/dear")
    assert states(world.deploy())["w1"] is HostState.DONE
    assert "state /data/dear" in world.hosts["w1"].made


def test_two_at_once(world: World) -> None:
    with ClusterHome(clusters_directory() / "clicks", "clicks").claimed(), pytest.raises(Busy):
        world.deploy()
    assert not any(host.commands for host in world.hosts.values())


def test_a_run_that_another_inventory_came_after_is_not_gone_on_with(world: World) -> None:
    world.hosts["w1"].before = failing("", AWAY)
    view = world.deploy()
    world.hosts["w1"].before = lambda command: None
    world.inventory.write_text(f"{INVENTORY}agent: {{cache_mb: 33}}\n")
    world.deploy()
    with pytest.raises(Busy, match="is stale"):
        world.resume(view.run)


def test_a_run_of_a_check_is_not_gone_on_with(world: World) -> None:
    view = world.deploy()
    home = ClusterHome(clusters_directory() / "clicks", "clicks")
    old = find_run(clusters_directory(), view.run)
    checked = replace(old, id="20260314-150926-5f3a", command="check")
    Journal(home.runs, checked)
    with pytest.raises(UnknownRun, match="is of `rhinoctl check`"):
        world.resume(checked.id)


def test_what_was_measured_is_taken_and_twice_is_once(world: World) -> None:
    home = ClusterHome(clusters_directory() / "clicks", "clicks")
    rates = Rates(
        measured_at=0.0,
        workers={
            "w1": Rate(address="w1", bytes_s=1e9),
            "w2": Rate(address="w2", bytes_s=1e8),
        },
    )
    with home.claimed():
        home.keep_rates(rates)
    world.deploy()
    assert any("the network as measured" in line for line in world.heard.lines)
    _, settings = world.hosts["controller"].files["/opt/rhinoctl/controller/settings.json"]
    known = codec.loads(ControllerSettings, settings)
    assert [each.bandwidth for each in known.capacities.values()] == [1e9, 1e8]
    assert set(states(world.deploy()).values()) == {HostState.UNCHANGED}
    home.keep_rates(replace(rates, workers={"w1": Rate(address="w1", bytes_s=1e9)}))
    assert [host.host for host in world.deploy().of(HostState.DONE)] == ["controller"]


def test_secrets_are_in_no_account_of_what_was_done(world: World) -> None:
    view = world.deploy()
    home = ClusterHome(clusters_directory() / "clicks", "clicks")
    known = home.read()
    assert known is not None
    secrets = [known.key, *known.tokens.values()]
    written = "".join(path.read_text() for path in home.runs.iterdir())
    assert view.run in written
    assert "install" in written
    shown = written + repr(view) + "\n".join(world.heard.lines)
    assert not any(secret.split("\n")[-2 if "\n" in secret else 0] in shown for secret in secrets)
    given = {command.input for host in world.hosts.values() for command in host.commands}
    assert any(known.tokens["operator"].encode() in each for each in given)
    for host in world.hosts.values():
        for command in host.commands:
            assert not any(secret in str(command) for secret in secrets)
