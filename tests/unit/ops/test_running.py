"""The verbs on deployed hosts, over hosts in memory: what they touch, and in which order."""

import time
from pathlib import Path

import pytest

from rhinoctl.config.clusters import ClusterHome
from rhinoctl.config.runs import HostState
from rhinoctl.errors import (
    CommandFailed,
    Exit,
    HostUnreachable,
    NotRunning,
    Refused,
    UnknownHost,
    WorkerInUse,
)
from rhinoctl.ops import running
from rhinoctl.ops.deployed import clusters_directory, read_deployed
from rhinoctl.ops.undeploy import UndeployRequest, UndeployView, undeploy
from rhinoctl.ops.undeploy import exit_of as exit_of_undeploy
from rhinoctl.remote.host import Command
from rhinoctl.remote.ssh import Login
from tests.fakes import controller as canned
from tests.fakes.deploy_host import fleet_of_fakes
from tests.unit.ops.test_deploy import INVENTORY, World, failing

AWAY = HostUnreachable("w1: cannot be reached", remedy="see that it runs")


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    made = World(tmp_path)
    made.deploy()
    made.forget_commands()
    return made


def ignore(_: str) -> None:
    """For progress that nobody reads."""


def listed(world: World, *names: str) -> running.HostsView:
    open_fleet = lambda inventory, login: fleet_of_fakes(world.hosts)  # noqa: E731
    return running.list_hosts(world.inventory, names, Login(), open_fleet)


def stopped(world: World, *names: str) -> running.HostsView:
    open_fleet = lambda inventory, login: fleet_of_fakes(world.hosts)  # noqa: E731
    return running.stop(world.inventory, names, Login(), ignore, open_fleet)


def started(world: World, *names: str) -> running.HostsView:
    open_fleet = lambda inventory, login: fleet_of_fakes(world.hosts)  # noqa: E731
    return running.start(world.inventory, names, Login(), ignore, open_fleet, world._status)


def removed(world: World, confirmed: str, *hosts: str, wipe_data: bool = False) -> UndeployView:
    request = UndeployRequest(
        inventory=world.inventory, confirmed=confirmed, hosts=hosts, wipe_data=wipe_data
    )
    open_fleet = lambda inventory, login: fleet_of_fakes(world.hosts)  # noqa: E731
    return undeploy(request, Login(), ignore, open_fleet, world.means().status)


def test_every_process_is_listed_with_its_release(world: World) -> None:
    view = listed(world)
    assert [(p.host, p.role, p.release, p.running, p.kind) for p in view.processes] == [
        ("controller", "controller", "1-a", True, "supervised"),
        ("w1", "agent", "1-a", True, "supervised"),
        ("w2", "agent", "1-a", True, "supervised"),
    ]
    assert running.exit_of_list(view) is Exit.DONE
    assert not any(host.changed for host in world.hosts.values())
    world.hosts["w2"].running.clear()
    assert running.exit_of_list(listed(world)) is Exit.DEGRADED
    world.hosts["w1"].before = failing("", AWAY)
    view = listed(world)
    assert [(f.host, f.code, f.reason) for f in view.faults] == [
        ("w1", "host-unreachable", "cannot be reached")
    ]
    assert running.exit_of_list(view) is Exit.PARTIAL
    with pytest.raises(UnknownHost):
        listed(world, "w9")


def test_what_is_stopped_is_what_was_named_the_controller_first(world: World) -> None:
    stopped(world, "w2")
    assert [bool(host.running) for host in world.hosts.values()] == [True, True, False]
    order: list[str] = []
    for name, host in world.hosts.items():

        def before(command: Command, name: str = name) -> None:
            if command.what.startswith("stop "):
                order.append(name)

        host.before = before
    view = stopped(world)
    assert order[0] == "controller"
    assert sorted(order[1:]) == ["w1", "w2"]
    assert not any(process.running for process in view.processes)


def test_agents_of_a_controller_that_is_away_are_started_and_not_waited_for(world: World) -> None:
    stopped(world)
    world.forget_commands()
    gone = HostUnreachable("controller: no answer within 10 s", remedy="see that it runs")
    world.hosts["controller"].before = failing("", gone)
    began = time.monotonic()
    view = started(world)
    assert time.monotonic() - began < 5
    assert [p.running for p in view.processes] == [True, True]
    assert [(f.host, f.code) for f in view.faults] == [
        ("controller", "host-unreachable"),
        ("w1", "not-running"),
        ("w2", "not-running"),
    ]
    for fault in view.faults[1:]:
        assert gone.message in fault.reason
        assert gone.remedy in fault.remedy
        assert "that the ports" not in fault.remedy
    assert len(world.hosts["controller"].commands) == 1, "it is not waited for a second time"


def test_an_agent_alone_is_not_waited_for_longer_than_its_controller_may_be_silent(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "SILENT_S", 0.2)
    stopped(world)
    began = time.monotonic()
    (fault,) = started(world, "w1").faults
    assert time.monotonic() - began < 10
    assert (fault.host, fault.code) == ("w1", "not-running")
    assert "no controller answers" in fault.reason
    world.hosts["controller"].running = {"rhinoctl-clicks-controller": 7}
    assert started(world, "w1").faults == ()


def test_an_agent_that_does_not_stay_is_that_whatever_becomes_of_the_controller(
    world: World,
) -> None:
    stopped(world)
    world.hosts["controller"].before = failing("", AWAY)
    world.hosts["w1"].crashes = True
    codes = {fault.host: fault.code for fault in started(world).faults}
    assert codes == {
        "controller": "host-unreachable",
        "w1": "service-failed",
        "w2": "not-running",
    }


def test_hosts_on_which_nothing_is_deployed_were_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    bare = World(tmp_path)
    view = listed(bare)
    assert {fault.code for fault in view.faults} == {"not-running"}
    assert running.exit_of_list(view) is Exit.REFUSED
    bare.hosts["w1"].before = failing("", AWAY)
    assert running.exit_of_list(listed(bare)) is Exit.PARTIAL


def test_a_cluster_that_was_not_deployed_from_here_is_not_stopped(world: World) -> None:
    ClusterHome(clusters_directory() / "clicks", "clicks").forget()
    with pytest.raises(NotRunning, match="not deployed from this machine"):
        stopped(world)
    view = listed(world)
    assert {fault.code for fault in view.faults} == {"foreign-manifest"}
    assert not any(host.changed for host in world.hosts.values())


def test_a_log_is_followed_until_its_host_is_gone(world: World) -> None:
    host = world.hosts["w1"]
    host.said = ["one", "two", "three"]
    writes = iter([["four"], [], ["five", "six"]])

    def pause(_: float) -> None:
        news = next(writes, None)
        host.said += news or []
        if news is None:
            host.before = failing("logs", AWAY)

    open_fleet = lambda inventory, login: fleet_of_fakes(world.hosts)  # noqa: E731
    views = running.follow_logs(world.inventory, "w1", 2, Login(), open_fleet, pause)
    for lines in (("two", "three"), ("four",), ("five", "six")):
        assert next(views) == running.LogView(host="w1", role="agent", lines=lines)
    with pytest.raises(type(AWAY)):
        next(views)


def test_a_command_on_all_hosts(world: World) -> None:
    command = running.command_of(["look", "here"], timeout_s=5, root=False)
    for host in world.hosts.values():
        host._run = lambda rest, command: b"out\n"  # type: ignore[attr-defined]
    world.hosts["w1"].before = failing("run", CommandFailed("w1: no", remedy="mend it"))
    open_fleet = lambda inventory, login: fleet_of_fakes(world.hosts)  # noqa: E731
    view = running.execute(world.inventory, (), command, Login(), open_fleet)
    assert [(each.host, each.stdout) for each in view.hosts] == [
        ("controller", "out\n"),
        ("w2", "out\n"),
    ]
    assert [fault.host for fault in view.faults] == ["w1"]
    assert running.exit_of_exec(view) is Exit.PARTIAL


def test_selected_names_are_those_of_processes(world: World) -> None:
    world.inventory.write_text(INVENTORY.replace("host: c1", "host: w2"))
    cluster = read_deployed(world.inventory)

    def chosen(*names: str) -> dict[str, list[str]]:
        return {n: [r.value for r in roles] for n, roles in cluster.selected(names).items()}

    assert chosen() == {"w2": ["controller", "agent"], "w1": ["agent"]}
    assert chosen("controller") == {"w2": ["controller"]}
    assert chosen("w2") == {"w2": ["controller", "agent"]}
    assert chosen("w1", "w1") == {"w1": ["agent"]}


def test_undeploy_asks_for_the_right_name(world: World) -> None:
    with pytest.raises(Refused, match="is of cluster clicks, and other was typed"):
        removed(world, "other")
    assert not any(host.commands for host in world.hosts.values())


@pytest.mark.parametrize("wipe_data", [False, True])
def test_undeploy_leaves_nothing_but_state_that_is_to_stay(world: World, wipe_data: bool) -> None:
    view = removed(world, "clicks", wipe_data=wipe_data)
    assert exit_of_undeploy(view) is Exit.DONE
    for host in world.hosts.values():
        assert not host.running
        assert set(host.files) == (set() if wipe_data else {"/opt/rhinoctl/cluster"})
        assert not host.releases
        assert bool(host.directories) is not wipe_data
    home = ClusterHome(clusters_directory() / "clicks", "clicks")
    assert (home.read() is None) is wipe_data
    assert home.members() == {}
    assert world.deploy().run


def test_state_that_was_kept_can_be_wiped_later(world: World) -> None:
    removed(world, "clicks")
    view = removed(world, "clicks", wipe_data=True)
    assert exit_of_undeploy(view) is Exit.DONE
    assert not any(host.directories or host.files for host in world.hosts.values())
    assert ClusterHome(clusters_directory() / "clicks", "clicks").read() is None


def test_what_check_has_prepared_goes_though_nothing_was_deployed(world: World) -> None:
    removed(world, "clicks", wipe_data=True)
    world.forget_commands()
    world.hosts["w1"].made = ["new /opt/rhinoctl", "new /var/lib/rhinoctl"]
    view = removed(world, "clicks")
    assert exit_of_undeploy(view) is Exit.DONE
    assert {host.host: host.state for host in view.hosts} == {
        "controller": HostState.UNCHANGED,
        "w1": HostState.DONE,
        "w2": HostState.UNCHANGED,
    }
    changed = {name for name, host in world.hosts.items() if host.asked("remove what was")}
    assert changed == {"w1"}


def test_what_was_deployed_is_wiped_and_not_what_the_inventory_names_now(world: World) -> None:
    world.hosts["w1"].directories["/var/lib/dear"] = 0o755
    world.hosts["w1"].holds.add("/var/lib/dear")
    world.inventory.write_text(INVENTORY.replace("host: w1", "host: w1, disks: [/var/lib/dear]"))
    view = removed(world, "clicks", wipe_data=True)
    assert world.hosts["w1"].holds == {"/var/lib/dear"}
    assert [host.strange for host in view.hosts] == [(), ("/var/lib/dear",), ()]
    assert exit_of_undeploy(view) is Exit.PARTIAL
    home = ClusterHome(clusters_directory() / "clicks", "clicks")
    assert home.read() is not None
    world.inventory.write_text(INVENTORY)
    view = removed(world, "clicks", wipe_data=True)
    assert (exit_of_undeploy(view), home.read()) == (Exit.DONE, None)


def test_undeploy_of_one_host_lets_the_worker_go(world: World) -> None:
    removed(world, "clicks", "w2")
    assert [bool(host.running) for host in world.hosts.values()] == [True, True, False]
    world.inventory.write_text(INVENTORY.replace("  - {host: w2}\n", ""))
    del world.hosts["w2"]
    view = world.deploy()
    assert [host.restarts for host in view.hosts] == [True, False]


@pytest.mark.parametrize("wipe_data", [False, True])
def test_a_worker_that_has_something_is_not_taken_off(world: World, wipe_data: bool) -> None:
    has = canned.job(instances=(canned.instance(0, "w2", range(2)),))
    world.jobs = (has,)
    with pytest.raises(WorkerInUse, match="worker w2 still has") as fault:
        removed(world, "clicks", "w1", "w2", wipe_data=wipe_data)
    assert "drain w2" in fault.value.remedy
    assert not any(host.changed for host in world.hosts.values())
    assert exit_of_undeploy(removed(world, "clicks", "w1", wipe_data=wipe_data)) is Exit.DONE


@pytest.mark.parametrize("hosts", [(), ("controller", "w2"), ("w2",)])
def test_who_takes_the_controller_off_or_has_none_is_not_asked_to_wait(
    world: World, hosts: tuple[str, ...]
) -> None:
    world.jobs = (canned.job(instances=(canned.instance(0, "w2", range(2)),)),)
    if hosts == ("w2",):
        world.hosts["controller"].running.clear()
    assert exit_of_undeploy(removed(world, "clicks", *hosts)) is Exit.DONE
    assert not world.hosts["w2"].running


def test_a_host_that_is_away_keeps_what_identifies_the_cluster(world: World) -> None:
    world.hosts["w1"].before = failing("", AWAY)
    view = removed(world, "clicks", wipe_data=True)
    assert exit_of_undeploy(view) is Exit.PARTIAL
    home = ClusterHome(clusters_directory() / "clicks", "clicks")
    assert home.read() is not None
    assert set(home.members()) == {"w1"}


def test_a_host_of_another_cluster_is_left_alone(world: World) -> None:
    world.hosts["w1"].files["/opt/rhinoctl/cluster"] = (0o600, b"clicks-99\n")
    view = removed(world, "clicks")
    assert [fault.code for fault in view.faults] == ["foreign-manifest"]
    assert world.hosts["w1"].running
    assert not world.hosts["w1"].changed


# --- the machine is not the one that is meant ----------------------------------------------------


def test_another_worker_s_machine_is_neither_wiped_nor_stopped(world: World) -> None:
    """Two lines of the inventory were exchanged."""
    for name, machine in (("w1", "w2"), ("w2", "w1")):
        world.hosts[name].facts["machine_id"] = machine
    view = removed(world, "clicks", "w1", wipe_data=True)
    assert [(f.host, f.code) for f in view.faults] == [("w1", "host-unfit")]
    assert "it is the machine of worker w2" in view.faults[0].reason
    assert [fault.code for fault in stopped(world, "w2").faults] == ["host-unfit"]
    assert not any(host.changed for host in world.hosts.values())
    assert set(ClusterHome(clusters_directory() / "clicks", "clicks").members()) == {"w1", "w2"}


def test_a_controller_does_not_go_with_a_worker_whose_line_names_its_machine(world: World) -> None:
    world.hosts["w1"].facts["machine_id"] = "controller"
    view = removed(world, "clicks", "w1", wipe_data=True)
    assert [(f.host, f.code) for f in view.faults] == [("w1", "host-unfit")]
    world.hosts["w1"].facts["machine_id"] = "w1"
    world.hosts["w1"].files["/opt/rhinoctl/controller/started"] = (0o600, b"x\n")
    view = removed(world, "clicks", "w1", wipe_data=True)
    assert "the controller was deployed there, too" in view.faults[0].reason
    assert not any(host.changed for host in world.hosts.values())


def test_undeploy_asks_for_every_worker_that_was_deployed(world: World) -> None:
    world.inventory.write_text(INVENTORY.replace("  - {host: w2}\n", ""))
    with pytest.raises(Refused, match=r"leaves out .* worker w2"):
        removed(world, "clicks", wipe_data=True)
    assert not any(host.changed for host in world.hosts.values())


def test_state_whose_disk_is_not_mounted_is_not_taken_for_removed(world: World) -> None:
    state = "/var/lib/rhinoctl/worker"
    mode = world.hosts["w1"].directories.pop(state)
    view = removed(world, "clicks", wipe_data=True)
    assert [(f.host, f.code) for f in view.faults] == [("w1", "disk-not-mounted")]
    assert state in view.faults[0].reason
    assert ClusterHome(clusters_directory() / "clicks", "clicks").read() is not None
    world.hosts["w1"].directories[state] = mode
    assert removed(world, "clicks", wipe_data=True).faults == ()
