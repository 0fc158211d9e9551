"""A worker joins a cluster of hosts in memory, or leaves it: what is touched, in which order."""

import json
import os
from pathlib import Path

import pytest

from rhinoctl.config.clusters import ClusterHome
from rhinoctl.config.inventory import read_inventory
from rhinoctl.config.runs import find_run
from rhinoctl.errors import (
    AlreadyInInventory,
    Busy,
    CannotEditInventory,
    Exit,
    HealthyTarget,
    HostLost,
    HostUnreachable,
    NotRunning,
    Refused,
    RhinoError,
    UnknownHost,
    WorkerInUse,
)
from rhinoctl.ids import OpId, Vnode, WorkerId
from rhinoctl.ops.deploy import DeployView, HostState
from rhinoctl.ops.deployed import Deployed, clusters_directory
from rhinoctl.ops.members import (
    AddRequest,
    AddView,
    MemberMeans,
    NewWorker,
    RemovePlan,
    RemoveRequest,
    RemoveView,
    add_host,
    exit_of_add,
    exit_of_remove,
    remove_host,
)
from rhinoctl.protocol.views import Health, JobView, OperationView, StatusView, WorkerView
from rhinoctl.remote.host import Command
from rhinoctl.remote.ssh import Login
from tests.fakes import controller as canned
from tests.fakes.deploy_host import FakeHost
from tests.unit.ops.test_deploy import World, failing

INVENTORY = """\
cluster: clicks
ssh: {user: spark}
controller: {host: c1}
workers:  # of rack one
  - {host: w1}
  - {host: w2}  # new

# nothing more
"""
AWAY = HostUnreachable("w3: cannot be reached", remedy="see that it runs")
LOST = HostLost("w3: the connection ended", remedy="repeat it")
SETTINGS = "/opt/rhinoctl/controller/settings.json"


class Members(World):
    """A cluster whose controller knows the workers of its settings, and what jobs have on them."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.inventory.write_text(INVENTORY)
        self.hosts["w3"] = FakeHost("w3")
        self.draining: set[str] = set()
        self.jobs: tuple[JobView, ...] = ()
        self.operations: tuple[OperationView, ...] = ()
        self.events: list[str] = []
        self.agreed: list[DeployView | RemovePlan] = []

    def known(self) -> list[str]:
        """The workers of the controller's settings."""
        return list(json.loads(self.hosts["controller"].files[SETTINGS][1])["workers"])

    def _status(self, cluster: Deployed) -> StatusView:
        if not self.hosts["controller"].running:
            raise NotRunning("no controller answers", remedy="start it")
        workers = tuple(
            WorkerView(
                id=WorkerId(name),
                address="",
                health=Health.OK if self.hosts[name].running else Health.DOWN,
                seen_s=0.0,
                pid=self.hosts[name].pid_of("agent"),
                free_bytes=0,
                instances=0,
                vnodes_owned=0,
                log_bytes=0,
                draining=name in self.draining,
            )
            for name in self.known()
        )
        return StatusView(
            cluster="",
            health=Health.OK,
            workers=workers,
            jobs=self.jobs,
            operations=self.operations,
            findings=(),
        )

    def _drain(self, cluster: Deployed, worker: str, *, undo: bool) -> None:
        self.events.append(f"{'admit' if undo else 'drain'} {worker}")
        if undo:
            self.draining.remove(worker)
        else:
            self.draining.add(worker)

    def member_means(self) -> MemberMeans:
        return MemberMeans(deploy=self.means(), set_draining=self._drain)

    def add(self, host: str = "w3", *, dry_run: bool = False, **said: object) -> AddView:
        worker = NewWorker(host=host, **said)  # type: ignore[arg-type]
        request = AddRequest(inventory=self.inventory, worker=worker, dry_run=dry_run)
        means = self.member_means()
        return add_host(request, Login(), self.heard, self.agreed.append, means)

    def remove(
        self, worker: str = "w2", *, dry_run: bool = False, lost: bool = False, wipe: bool = False
    ) -> RemoveView:
        request = RemoveRequest(
            inventory=self.inventory, worker=worker, dry_run=dry_run, wipe_data=wipe, lost=lost
        )
        means = self.member_means()
        return remove_host(request, Login(), self.heard, self.agreed.append, means)

    def text(self) -> str:
        return self.inventory.read_bytes().decode()

    def changed(self) -> set[str]:
        return {name for name, host in self.hosts.items() if host.changed}


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Members:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    made = Members(tmp_path)
    made.deploy()
    made.forget_commands()
    return made


def home() -> ClusterHome:
    return ClusterHome(clusters_directory() / "clicks", "clicks")


def job(*, owner: str = "w1", copy: str = "w1", vnodes: int = 2) -> JobView:
    return canned.job(
        instances=(canned.instance(0, owner, range(vnodes)),),
        members={Vnode(vnode): (WorkerId(copy),) for vnode in range(vnodes)},
    )


# --- joining --------------------------------------------------------------------------------------


def test_a_worker_joins_and_the_other_agents_are_left_alone(world: Members) -> None:
    view = world.add(rack="r2", slots=2, disks=("/data/a", "/data/b"))
    assert exit_of_add(view) is Exit.DONE
    line = "  - {host: w3, rack: r2, slots: 2, disks: [/data/a, /data/b]}"
    assert (view.lines, view.written) == ((line,), True)
    assert world.text() == INVENTORY.replace("# new\n", f"# new\n{line}\n")
    assert world.known() == ["w1", "w2", "w3"]
    assert world.hosts["w3"].running
    assert {"/data/a", "/data/b"} <= set(world.hosts["w3"].directories)
    assert not world.hosts["w1"].commands
    assert not world.hosts["w2"].commands
    assert set(home().members()) == {"w1", "w2", "w3"}
    world.forget_commands()
    assert {host.state for host in world.deploy().hosts} == {HostState.UNCHANGED}


def test_a_dry_run_of_joining_is_the_plan_and_writes_nothing(world: Members) -> None:
    view = world.add(dry_run=True)
    assert exit_of_add(view) is Exit.HAS_CHANGES
    assert [(h.host, bool(h.steps), h.restarts) for h in view.deployment.hosts] == [
        ("controller", True, True),
        ("w3", True, False),
    ]
    assert (view.written, world.text()) == (False, INVENTORY)
    assert world.changed() == set()
    assert world.agreed == []


def test_the_plan_is_agreed_to_before_the_inventory_is_written(world: Members) -> None:
    class Refuses:
        def append(self, plan: object) -> None:
            assert world.text() == INVENTORY
            raise KeyboardInterrupt

    world.agreed = Refuses()  # type: ignore[assignment]
    with pytest.raises(KeyboardInterrupt):
        world.add()
    assert world.text() == INVENTORY
    assert world.changed() == set()


def test_a_host_that_cannot_be_reached_does_not_join(world: Members) -> None:
    world.hosts["w3"].before = failing("", AWAY)
    with pytest.raises(HostUnreachable, match=r"w3: cannot be reached; .* was not changed"):
        world.add()
    assert (world.text(), world.changed()) == (INVENTORY, set())
    world.hosts["w3"] = FakeHost("w3", facts={"machine_id": "w1"})
    with pytest.raises(RhinoError, match="the machine of worker w1, on w1") as fault:
        world.add()
    assert "name another host" in fault.value.remedy
    assert (world.text(), world.changed()) == (INVENTORY, set())


@pytest.mark.parametrize("what", ["install", "start", "write /opt/rhinoctl/agent"])
def test_one_that_breaks_off_stays_in_the_inventory_and_is_gone_on_with(
    world: Members, what: str
) -> None:
    world.hosts["w3"].before = failing(what, LOST)
    view = world.add()
    assert (exit_of_add(view), view.written) == (Exit.PARTIAL, True)
    assert "  - {host: w3}\n" in world.text()
    with pytest.raises(AlreadyInInventory, match="worker w3 on w3"):
        world.add()
    world.hosts["w3"].before = lambda command: None
    assert find_run(clusters_directory(), view.deployment.run).limit == ("controller", "w3")
    resumed = world.resume(view.deployment.run)
    assert {host.host for host in resumed.hosts} == {"controller", "w3"}
    assert world.hosts["w3"].running
    assert {host.state for host in world.deploy().hosts} == {HostState.UNCHANGED}


def test_one_that_is_there_is_refused_and_so_is_an_inventory_that_cannot_be_edited(
    world: Members,
) -> None:
    with pytest.raises(AlreadyInInventory, match="worker w2 on w2"):
        world.add("W2", name="w9")
    text = "cluster: clicks\ncontroller: {host: c1}\nworkers: [{host: w1}, {host: w2}]\n"
    world.inventory.write_text(text)
    with pytest.raises(CannotEditInventory) as fault:
        world.add()
    assert "{host: w3}" in fault.value.remedy
    assert (world.text(), world.changed()) == (text, set())
    home().forget()
    with pytest.raises(NotRunning, match="not deployed from this machine"):
        world.add()


def test_mode_links_and_line_ends_of_the_inventory_stay(world: Members) -> None:
    real = world.inventory.rename(world.inventory.with_name("real.yml"))
    real.write_bytes(INVENTORY.replace("\n", "\r\n").encode())
    real.chmod(0o640)
    world.inventory.symlink_to(real.name)
    view = world.add()
    assert world.inventory.is_symlink()
    assert real.stat().st_mode & 0o777 == 0o640
    want = INVENTORY.replace("# new\n", "# new\n  - {host: w3}\n").replace("\n", "\r\n")
    assert real.read_bytes().decode() == want
    assert sorted(os.listdir(real.parent)) == ["inventory.yml", "real.yml", "state"]
    kept = find_run(clusters_directory(), view.deployment.run)
    assert kept.inventory == real.read_text()  # as a later deployment reads it


def test_what_somebody_else_writes_meanwhile_is_not_lost(world: Members) -> None:
    class Writes:
        def append(self, plan: object) -> None:
            world.inventory.write_text(INVENTORY + "agent: {cache_mb: 33}\n")

    world.agreed = Writes()  # type: ignore[assignment]
    with pytest.raises(Busy, match="changed by somebody else"):
        world.add()
    assert world.text() == INVENTORY + "agent: {cache_mb: 33}\n"
    assert world.changed() == set()


def test_one_whose_host_is_as_it_is_to_be_is_written_all_the_same(world: Members) -> None:
    text = INVENTORY.replace("  - {host: w2}  # new\n", "")
    world.inventory.write_text(text)
    assert exit_of_add(world.add("w2", dry_run=True)) is Exit.HAS_CHANGES
    assert world.text() == text
    view = world.add("w2")
    assert (exit_of_add(view), view.deployment.run, view.written) == (Exit.DONE, "", True)
    assert "  - {host: w2}\n" in world.text()
    assert world.changed() == set()


# --- leaving --------------------------------------------------------------------------------------


@pytest.mark.parametrize("wipe", [False, True])
def test_a_worker_leaves_its_host_then_the_controller_then_the_inventory(
    world: Members, wipe: bool
) -> None:
    order: list[str] = []
    for name in ("controller", "w2"):

        def before(command: Command, name: str = name) -> None:
            if command.changes:
                order.append(name)
                assert world.text() == INVENTORY

        world.hosts[name].before = before
    view = world.remove(wipe=wipe)
    assert exit_of_remove(view) is Exit.DONE
    assert list(dict.fromkeys(order)) == ["w2", "controller"]
    assert order == sorted(order, reverse=True)
    assert world.text() == INVENTORY.replace("  - {host: w2}  # new\n", "")
    assert not world.hosts["w2"].running
    assert bool(world.hosts["w2"].directories) is not wipe
    assert world.known() == ["w1"]
    assert not world.hosts["w1"].commands
    assert set(home().members()) == {"w1"}
    assert world.events == ["drain w2"]
    assert {host.state for host in world.deploy().hosts} == {HostState.UNCHANGED}
    with pytest.raises(UnknownHost, match="no worker w2"):
        world.remove()


@pytest.mark.parametrize(
    ("has", "down", "remedy"),
    [
        (job(owner="w2"), False, "drain w2"),
        (job(copy="w2"), False, "drain w2"),
        (job(owner="w2", vnodes=0), False, "drain w2"),
        (job(owner="w2"), True, "failover w2"),
    ],
    ids=["owns", "copies", "an empty instance", "down"],
)
def test_a_worker_with_state_is_left_alone(
    world: Members, has: JobView, down: bool, remedy: str
) -> None:
    world.jobs = (has,)
    if down:
        world.hosts["w2"].running.clear()
    for lost in (False, True) if down else (False,):
        with pytest.raises(WorkerInUse, match="worker w2 still has") as fault:
            world.remove(lost=lost)
        assert remedy in fault.value.remedy
    with pytest.raises(WorkerInUse):
        world.remove(dry_run=True)
    assert (world.text(), world.changed(), world.events) == (INVENTORY, set(), [])
    world.jobs = (job(),)
    assert exit_of_remove(world.remove(lost=down)) is Exit.DONE


def test_what_comes_to_it_while_a_person_thinks_stops_it(world: Members) -> None:
    class Thinks:
        def append(self, plan: object) -> None:
            world.jobs = (job(copy="w2"),)

    world.agreed = Thinks()  # type: ignore[assignment]
    with pytest.raises(WorkerInUse):
        world.remove()
    assert (world.text(), world.changed()) == (INVENTORY, set())


def test_an_operation_under_way_stops_it_and_so_does_a_silent_controller(world: Members) -> None:
    world.operations = (canned.operation(id=OpId("op-7")),)
    with pytest.raises(Busy, match="op-7"):
        world.remove()
    world.hosts["controller"].running.clear()
    with pytest.raises(NotRunning):
        world.remove()
    assert (world.text(), world.changed()) == (INVENTORY, set())


def test_a_dry_run_of_leaving_is_the_plan(world: Members) -> None:
    view = world.remove(dry_run=True)
    assert exit_of_remove(view) is Exit.HAS_CHANGES
    assert view.plan.lines == ("  - {host: w2}  # new",)
    assert len(view.plan.steps) == 3
    assert (world.text(), world.changed(), world.events) == (INVENTORY, set(), [])
    assert world.agreed == []


def test_a_lost_host_is_not_asked_for_anything(world: Members) -> None:
    with pytest.raises(HealthyTarget, match="worker w2 is not lost"):
        world.remove(lost=True)
    world.hosts["w2"].running.clear()
    world.hosts["w2"].before = failing("", AWAY)
    view = world.remove()
    assert exit_of_remove(view) is Exit.PARTIAL
    assert world.text() == INVENTORY
    world.hosts["w2"].commands.clear()
    view = world.remove(lost=True)
    assert (exit_of_remove(view), view.undeployed) == (Exit.DONE, None)
    assert not world.hosts["w2"].commands
    assert world.known() == ["w1"]
    assert set(home().members()) == {"w1"}
    assert "w2" not in world.text()


@pytest.mark.parametrize(
    ("host", "what"),
    [
        ("w2", "stop"),
        ("w2", "remove"),
        ("controller", "write"),
        ("controller", "stop"),
        ("controller", "start"),
        ("controller", "state"),
    ],
)
def test_leaving_that_breaks_off_anywhere_is_repeated(world: Members, host: str, what: str) -> None:
    """Whether the host goes away or a person ends the command."""
    for fault in (LOST, KeyboardInterrupt()):

        def before(command: Command, fault: BaseException = fault) -> None:
            if command.what.startswith(what) and command.changes | (what == "state"):
                raise fault

        world.hosts[host].before = before
        try:
            assert exit_of_remove(world.remove()) is Exit.PARTIAL
        except KeyboardInterrupt:
            assert isinstance(fault, KeyboardInterrupt)
        assert world.text() == INVENTORY
    world.hosts[host].before = lambda command: None
    assert exit_of_remove(world.remove()) is Exit.DONE
    assert world.known() == ["w1"]
    assert "w2" not in world.text()
    assert {h.state for h in world.deploy().hosts} == {HostState.UNCHANGED}


def test_an_inventory_that_is_changed_meanwhile_is_taken_out_of_by_repeating(
    world: Members,
) -> None:
    other = INVENTORY.replace("# nothing more", "# something")

    def before(command: Command) -> None:
        if command.what.startswith("start"):
            world.inventory.write_text(other)

    world.hosts["controller"].before = before
    with pytest.raises(Busy, match="changed by somebody else"):
        world.remove()
    assert world.text() == other
    world.forget_commands()
    assert exit_of_remove(world.remove()) is Exit.DONE
    assert world.text() == other.replace("  - {host: w2}  # new\n", "")
    assert world.changed() == set()


def test_the_controller_s_host_and_the_last_worker_stay(world: Members) -> None:
    world.inventory.write_text(INVENTORY.replace("host: c1", "host: w2"))
    with pytest.raises(Refused, match="on the controller's host"):
        world.remove()
    world.inventory.write_text("cluster: clicks\ncontroller: {host: c1}\nworkers:\n  - host: w1\n")
    with pytest.raises(CannotEditInventory, match="the only one"):
        world.remove("w1")
    assert world.changed() == set()


def test_who_has_left_may_come_back_and_gets_state_again(world: Members) -> None:
    world.remove()
    assert world.draining == {"w2"}  # the controller remembers names
    view = world.add("w2")
    assert exit_of_add(view) is Exit.DONE
    assert world.draining == set()
    assert [worker.id for worker in read_inventory(world.inventory).workers] == ["w1", "w2"]
