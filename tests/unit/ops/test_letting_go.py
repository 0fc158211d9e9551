"""A machine that is lost is let go, and what is on it is not forgotten."""

from collections.abc import Callable

import pytest

from rhinoctl.config.clusters import Former, Member
from rhinoctl.config.deployment import Role
from rhinoctl.config.inventory import Inventory
from rhinoctl.config.runs import HostState
from rhinoctl.errors import (
    Exit,
    HealthyTarget,
    HostKeyChanged,
    NotRunning,
    Refused,
    WorkerInUse,
)
from rhinoctl.ops.deploy import exit_of
from rhinoctl.ops.deployed import Deployed
from rhinoctl.ops.letting_go import let_go
from rhinoctl.ops.undeploy import UndeployRequest, UndeployView, undeploy
from rhinoctl.ops.undeploy import exit_of as exit_of_undeploy
from rhinoctl.protocol.views import StatusView
from rhinoctl.remote.fleet import Fleet
from rhinoctl.remote.host import Host
from rhinoctl.remote.ssh import Login
from tests.fakes import controller as canned
from tests.fakes.deploy_host import FakeHost, fleet_of_fakes
from tests.unit.ops.test_deploy import AWAY, World, failing, states
from tests.unit.ops.test_running import ignore, listed, world
from tests.unit.ops.test_seat import home

__all__ = ["world"]

SILENT = NotRunning("no controller answers", remedy="start it")


class Machines:
    """Which machine each address leads to, by name; the others are as in the world."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.at: dict[str, FakeHost] = {"c1": world.hosts["controller"]}

    def open(self, inventory: Inventory, login: Login) -> Fleet[Host]:
        hosts = dict(self.world.hosts)
        for name, address, _ in inventory.reached():
            hosts[name] = self.at.get(address, hosts.get(name, FakeHost(name)))
        return fleet_of_fakes(hosts)

    def let_go(
        self, *names: str, status: Callable[[Deployed], StatusView] | None = None
    ) -> UndeployView:
        def silent(cluster: Deployed) -> StatusView:
            raise SILENT

        where = self.world.inventory
        return let_go(where, "clicks", names, Login(), ignore, self.open, status or silent)

    def undeploy(self, *hosts: str, wipe: bool = False, former: bool = False) -> UndeployView:
        request = UndeployRequest(
            inventory=self.world.inventory,
            confirmed="clicks",
            hosts=hosts,
            wipe_data=wipe,
            former=former,
        )
        return undeploy(request, Login(), ignore, self.open, self.world.means().status)


@pytest.fixture
def machines(world: World) -> Machines:
    """The controller's line names a machine on which nothing is."""
    made = Machines(world)
    text = world.inventory.read_text()
    world.inventory.write_text(text.replace("{host: c1}", "{host: c2}"))
    world.hosts["controller"] = FakeHost("controller", facts={"machine_id": "new"})
    return made


def test_a_machine_that_answers_is_not_let_go(machines: Machines) -> None:
    view = machines.let_go("controller")
    (fault,) = view.faults
    assert fault.code == HealthyTarget.code
    assert fault.reason == "c1, where it was deployed, is not lost: it answers"
    assert exit_of_undeploy(view) is Exit.PARTIAL
    assert home().seat() == Member(host="c1", machine="controller")


def test_nor_is_one_that_is_somebody_else_s_by_its_key(machines: Machines) -> None:
    changed = HostKeyChanged("controller: another key", remedy="see that it is the host")
    machines.at["c1"].before = failing("", changed)
    assert [fault.code for fault in machines.let_go("controller").faults] == [changed.code]
    assert home().seat() is not None


def test_nor_is_a_controller_that_answers(machines: Machines) -> None:
    machines.world.hosts["controller"].running["controller"] = 1
    machines.at["c1"].before = failing("", AWAY)
    with pytest.raises(HealthyTarget, match="the controller is not lost"):
        machines.let_go("controller", status=machines.world.means().status)
    assert home().seat() is not None


def test_a_controller_whose_machine_is_lost_goes_elsewhere_and_is_removed_once_it_is_back(
    machines: Machines,
) -> None:
    world, old = machines.world, machines.at["c1"]
    old.before = failing("", AWAY)
    view = machines.let_go("controller")
    assert [(host.host, host.let_go) for host in view.hosts] == [("controller", "c1")]
    assert (exit_of_undeploy(view), home().seat()) == (Exit.DONE, None)
    assert not old.changed
    assert exit_of(world.deploy()) is Exit.DONE
    assert world.hosts["controller"].running
    assert any("c1 was let go with the controller" in line for line in world.heard.lines)
    (said,) = listed(world).former
    assert "rhinoctl undeploy --former" in said

    assert exit_of_undeploy(machines.undeploy(former=True)) is Exit.PARTIAL
    old.before = lambda command: None
    view = machines.undeploy(former=True)
    assert [(host.host, host.state) for host in view.hosts] == [
        ("controller on c1", HostState.DONE)
    ]
    assert exit_of_undeploy(view) is Exit.DONE
    assert not old.running
    assert (bool(view.hosts[0].kept), len(home().former())) == (True, 1), "its state is there"
    machines.undeploy(former=True, wipe=True)
    assert (old.holds, home().former()) == (set(), ())
    assert world.hosts["controller"].running
    assert home().seat() == Member(host="c2", machine="new")


def test_a_whole_cluster_is_not_gone_while_a_machine_that_was_let_go_is_away(
    machines: Machines,
) -> None:
    old = machines.at["c1"]
    old.before = failing("", AWAY)
    machines.let_go("controller")
    machines.world.deploy()
    view = machines.undeploy(wipe=True)
    assert [fault.host for fault in view.faults] == ["controller on c1"]
    assert (exit_of_undeploy(view), home().read() is None) == (Exit.PARTIAL, False)
    old.before = lambda command: None
    assert exit_of_undeploy(machines.undeploy(wipe=True)) is Exit.DONE
    assert not old.running
    assert home().read() is None


def test_a_machine_that_was_installed_anew_is_not_remembered(machines: Machines) -> None:
    machines.at["c1"] = FakeHost("controller", facts={"machine_id": "anew"})
    view = machines.let_go("controller")
    assert [host.let_go for host in view.hosts] == ["c1"]
    assert home().former() == ()


def test_what_was_not_deployed_has_nothing_to_let_go(machines: Machines) -> None:
    home().leave("w2")
    assert [host.state for host in machines.let_go("w2").hosts] == [HostState.UNCHANGED]
    with pytest.raises(Refused, match="nothing was typed"):
        let_go(machines.world.inventory, "", ("w2",), Login(), ignore, machines.open)


def test_a_worker_that_is_well_or_has_something_is_not_let_go(world: World) -> None:
    machines = Machines(world)
    with pytest.raises(HealthyTarget, match="w2 is not lost"):
        machines.let_go("w2", status=world.means().status)
    world.sick.add("w2")
    world.jobs = (canned.job(instances=(canned.instance(0, "w2", range(2)),)),)
    with pytest.raises(WorkerInUse):
        machines.let_go("w2", status=world.means().status)
    world.jobs = ()
    world.hosts["w2"].before = failing("", AWAY)
    assert [host.let_go for host in machines.let_go("w2").hosts] == ["w2"]
    assert home().former() == (Former(name="w2", role=Role.AGENT, host="w2", machine="w2"),)


def test_a_machine_that_was_let_go_and_is_back_is_no_worker_until_it_is_clean(
    machines: Machines,
) -> None:
    world, old = machines.world, machines.at["c1"]
    old.before = failing("", AWAY)
    machines.let_go("controller")
    world.deploy()
    old.before = lambda command: None
    text = world.inventory.read_text()
    world.inventory.write_text(text.replace("{host: w2}", "{host: c1, name: w2}"))
    home().leave("w2")
    old.facts, old.name = {"machine_id": "controller"}, "w2"
    world.hosts["w2"], taken = old, world.hosts["w2"]
    view = world.deploy()
    (failed,) = view.of(HostState.FAILED)
    assert "the controller that was let go with this machine" in failed.reason
    assert failed.remedy == "`rhinoctl undeploy --former --wipe-data` removes it"
    world.hosts["w2"], old.name = taken, "controller"
    assert exit_of_undeploy(machines.undeploy(former=True, wipe=True)) is Exit.DONE
    world.hosts["w2"], old.name = old, "w2"
    assert states(world.deploy())["w2"] is HostState.DONE


def test_one_that_has_its_place_again_is_not_let_go_any_more(world: World) -> None:
    machines = Machines(world)
    world.hosts["w2"].before = failing("", AWAY)
    machines.let_go("w2")
    world.hosts["w2"].before = lambda command: None
    assert isinstance(home().former()[0], Former)
    world.deploy()
    assert home().former() == ()
    assert set(home().members()) == {"w1", "w2"}
