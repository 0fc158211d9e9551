"""The controller stays on the machine that has its store: on another one it would begin anew beside
it."""

import pytest

from rhinoctl.config.clusters import ClusterHome, Member
from rhinoctl.config.runs import HostState
from rhinoctl.errors import Exit
from rhinoctl.ops.deploy import exit_of
from rhinoctl.ops.deployed import clusters_directory
from rhinoctl.ops.undeploy import exit_of as exit_of_undeploy
from tests.fakes.deploy_host import FakeHost
from tests.unit.ops.test_deploy import AWAY, World, failing, states
from tests.unit.ops.test_running import removed, started, stopped, world

__all__ = ["world"]


def home() -> ClusterHome:
    return ClusterHome(clusters_directory() / "clicks", "clicks")


def mistyped(world: World) -> FakeHost:
    """The controller's line names a machine on which nothing is; what is on the right one."""
    right = world.hosts["controller"]
    world.hosts["controller"] = FakeHost("controller", facts={"machine_id": "another"})
    return right


def test_a_controller_on_another_machine_than_its_store_is_refused(world: World) -> None:
    mistyped(world)
    view = world.deploy()
    (failed,) = view.of(HostState.FAILED)
    assert "it is another machine than the controller was deployed on, c1" in failed.reason
    assert [host.host for host in view.of(HostState.NOT_TRIED)] == ["w1", "w2"]
    assert exit_of(view) is Exit.PARTIAL
    assert not any(host.changed for host in world.hosts.values())


@pytest.mark.parametrize("limit", [(), ("w1",)])
def test_no_agent_is_sent_to_a_controller_that_is_not_there(
    world: World, limit: tuple[str, ...]
) -> None:
    """The machine that the line names is not reached, or is not looked at."""
    text = world.inventory.read_text()
    world.inventory.write_text(text.replace("{host: c1}", "{host: c2}"))
    world.hosts["controller"].before = failing("", AWAY)
    view = world.deploy(*limit)
    assert states(view)["w1"] is HostState.NOT_TRIED
    (reason,) = {host.reason for host in view.of(HostState.NOT_TRIED)}
    assert reason == "the inventory has the controller on c2, and it was deployed on c1"
    assert not any(host.changed for host in world.hosts.values())


def test_a_controller_s_machine_may_have_another_name(world: World) -> None:
    text = world.inventory.read_text()
    world.inventory.write_text(text.replace("{host: c1}", "{host: c2}"))
    assert exit_of(world.deploy()) is Exit.DONE
    seat = home().seat()
    assert seat is not None
    assert seat.host == "c2"


def test_it_is_refused_where_a_worker_is_too(world: World) -> None:
    text = world.inventory.read_text()
    world.inventory.write_text(text.replace("{host: c1}", "{host: w2}"))
    view = world.deploy()
    assert "w2: " not in view.of(HostState.FAILED)[0].reason
    assert [host.host for host in view.of(HostState.FAILED)] == ["w2"]
    assert [host.host for host in view.of(HostState.NOT_TRIED)] == ["w1"]
    assert not any(host.changed for host in world.hosts.values())


def test_nothing_is_undeployed_where_the_controller_s_line_is_wrong(world: World) -> None:
    right = mistyped(world)
    view = removed(world, "clicks", wipe_data=True)
    (fault,) = view.faults
    assert fault.reason == "it is another machine: controller was deployed on c1"
    assert exit_of_undeploy(view) is Exit.PARTIAL
    assert right.running
    assert home().read() is not None
    assert home().seat() is not None


def test_it_is_neither_started_nor_stopped_elsewhere(world: World) -> None:
    world.hosts["controller"].facts["machine_id"] = "another"
    assert [fault.code for fault in stopped(world, "controller").faults] == ["host-unfit"]
    assert [fault.code for fault in started(world, "controller").faults] == ["host-unfit"]
    assert world.hosts["controller"].running


def test_a_seat_that_is_not_known_is_taken_again(world: World) -> None:
    """As after an earlier release had forgotten it."""
    home().leave_seat()
    home().leave("w1")
    assert set(states(world.deploy()).values()) == {HostState.UNCHANGED}
    assert home().seat() == Member(host="c1", machine="controller")
    assert set(home().members()) == {"w1", "w2"}


def test_a_deployment_tells_who_does_not_listen_to_its_controller(world: World) -> None:
    """A new store, beside workers that know more."""
    world.refused_by = ("w1", "w2")
    for view in (world.deploy(), world.deploy("w1")):
        assert exit_of(view) is Exit.DEGRADED
        (said,) = view.unwell
        assert said.startswith("workers w1, w2 do not listen to this controller")
        assert "rhinoctl controller recover" in said
    world.refused_by = ()
    assert exit_of(world.deploy()) is Exit.DONE
