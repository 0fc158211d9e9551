"""Workers with several disks: vnodes are spread, leave a disk that is retired, and outlive one that
is lost."""

import errno

import pytest

from rhinoctl.errors import DiskRefused, UnknownDisk, UnknownWorker, WorkerUnreachable
from rhinoctl.ids import DiskId, Vnode, WorkerId
from rhinoctl.protocol.disks import DiskAction, DiskList, DiskReport, DiskRequest, DiskState
from rhinoctl.protocol.handover import Kind, Phase
from rhinoctl.protocol.views import Health
from tests.fakes.world import World
from tests.fakes.world_host import Host
from tests.fakes.world_spark import Query

SECOND = "/w1/2"


def reports(world: World, worker: str = "w1") -> dict[str, DiskReport]:
    """The disks of a worker as it tells of them."""
    agent = world.hosts[worker].agent
    assert agent is not None
    return {report.disk: report for report in agent.disks()}


def ask(
    world: World, action: DiskAction, *, path: str = "", disk: str = "", worker: str = "w1"
) -> list[DiskReport]:
    """Ask something of a worker's disks, as the CLI does; raises what the agent refuses with."""
    request = DiskRequest(action=action, worker=WorkerId(worker), path=path, disk=DiskId(disk))
    found: DiskList = world.call(lambda c: c.change_disks(request))
    assert all((view.worker, view.live) == (worker, True) for view in found.disks)
    return [view.disk for view in found.disks]


def on_disk(host: Host, path: str) -> set[int]:
    """The vnodes that have files on a further disk."""
    disk = host.further[path]
    return {int(name.split("/")[3]) for name in disk.files("jobs") if "/ckpt/" in name}


def opened_anew(host: Host, path: str) -> bool:
    """Whether no instance has a database on a disk."""
    return not any("/live/" in name for name in host.further[path].files("jobs"))


def test_vnodes_are_spread_and_their_links_stay_on_one_disk() -> None:
    world = World(workers=2, vnodes=8, replication=1, disks=2)
    query = world.start_query()
    world.until(lambda: query.directory.committed >= 60)
    for host in world.hosts.values():
        told = reports(world, host.name)
        assert [told[name].vnodes for name in ("d1", "d2")] == [4, 4]
        assert host.further[f"/{host.name}/2"].copies == host.disk.copies == 0
    world.finish(query, batches=query.directory.committed + 10)


def test_one_disk_is_laid_out_as_ever() -> None:
    world = World(workers=1)
    query = world.start_query()
    world.until(lambda: query.directory.committed >= 40)
    disk = world.hosts["w1"].disk
    assert disk.size("disks.json") is None
    tops = {name.split("/")[0] for name in disk.files()}
    assert tops == {"incarnation.json", "claim.json", "ballast", "jobs"}
    world.finish(query, batches=query.directory.committed + 5)


@pytest.mark.parametrize("ends", [pytest.param("agent", marks=pytest.mark.slow), "power"])
def test_after_a_restart_every_vnode_is_where_it_was(ends: str) -> None:
    world = World(workers=2, replication=1, disks=2)
    query = world.start_query()
    world.until(lambda: query.directory.committed >= 60)
    host = world.hosts["w1"]
    before = on_disk(host, SECOND)
    host.kill_agent() if ends == "agent" else host.power_loss()
    host.start_agent()
    world.until(lambda: query.directory.committed >= 100)
    assert before <= on_disk(host, SECOND)
    assert [reports(world)[name].vnodes for name in ("d1", "d2")] == [4, 4]
    world.finish(query, batches=query.directory.committed + 10)


def test_a_disk_is_added_while_records_flow_and_takes_new_vnodes() -> None:
    world = World(workers=2)
    query = world.start_query()
    world.until(lambda: query.directory.committed >= 40)
    host = world.hosts["w1"]
    host.plug(SECOND)
    (added,) = ask(world, DiskAction.ADD, path=SECOND)
    assert (added.disk, added.state, added.vnodes) == ("d2", DiskState.IN_USE, 0)
    assert world.until_ended(world.handover([4, 5, 6, 7], "i0")).phase is Phase.COMPLETE
    world.until(lambda: reports(world)["d2"].bytes > 0)
    host.kill_agent()
    host.start_agent()
    assert reports(world)["d2"].vnodes == 4
    world.finish(query, batches=query.directory.committed + 10)


def test_what_is_refused_is_said_by_the_agent_and_nothing_is_changed() -> None:
    world = World(workers=2, disks=2)
    world.start_query()
    with pytest.raises(DiskRefused, match="has its log"):
        ask(world, DiskAction.RETIRE, disk="d1")
    with pytest.raises(UnknownDisk, match="it has d1, d2"):
        ask(world, DiskAction.SCRUB, disk="d9")
    with pytest.raises(DiskRefused, match="cannot be used"):
        ask(world, DiskAction.ADD, path="/not/plugged")
    with pytest.raises(UnknownWorker, match="w1, w2"):
        ask(world, DiskAction.SCRUB, worker="w9")
    world.hosts["w2"].kill_agent()
    world.until(lambda: world.status().workers[1].health is Health.DOWN)
    with pytest.raises(WorkerUnreachable, match="nothing was done"):
        ask(world, DiskAction.RETIRE, disk="d2", worker="w2")
    listed: DiskList = world.call(lambda c: c.disks())
    assert [(view.worker, view.disk.disk, view.live) for view in listed.disks] == [
        ("w1", "d1", True),
        ("w1", "d2", True),
        ("w2", "d1", False),
        ("w2", "d2", False),
    ]
    assert {view.disk.state for view in listed.disks} == {DiskState.IN_USE}


@pytest.mark.parametrize("replication", [pytest.param(0, marks=pytest.mark.slow), 1])
def test_a_disk_is_retired_under_load(replication: int) -> None:
    """Owned vnodes and copies leave it, nothing is fetched for it, and then it may go."""
    world = World(workers=2, replication=replication, disks=2)
    query = world.start_query()
    world.until(lambda: query.directory.committed >= 40)
    host = world.hosts["w1"]
    moving = on_disk(host, SECOND)
    assert moving
    assert ask(world, DiskAction.RETIRE, disk="d2")[0].state is DiskState.RETIRING
    world.until(lambda: reports(world)["d2"].state is DiskState.EMPTY, "an empty disk")
    assert on_disk(host, SECOND) == set()
    assert opened_anew(host, SECOND)
    assert reports(world)["d1"].vnodes == reports(world, "w2")["d1"].vnodes * 2
    host.unplug(SECOND)
    world.run(10.0)
    host.power_loss()
    host.start_agent()
    assert reports(world)["d2"].state is DiskState.EMPTY
    world.finish(query, batches=query.directory.committed + 40)
    assert query.failures == []


def test_what_is_set_aside_while_it_moves_does_not_come_back_on_the_other_disk() -> None:
    """A vnode that was forfeited begins empty, and nothing from before may serve it again."""
    world = World(workers=1, vnodes=4, disks=2)
    query = world.start_query()
    world.until(lambda: query.directory.committed >= 60)
    agent = world.hosts["w1"].agent
    assert agent is not None
    (desk,) = agent.desks.values()
    vnode = Vnode(min(on_disk(world.hosts["w1"], SECOND)))
    kept = desk.upkeep.holdings.of(vnode)
    oldest = kept.complete()[-1].checkpoint_id
    assert len(kept.complete()) > 1

    def forfeit() -> None:
        assert desk.upkeep.holdings.has(kept)
        kept.set_aside(oldest, "a test")

    world.trap("w1", "disk.rename", forfeit, holding=f"moving/{world.uid()}-{vnode}", after=True)
    ask(world, DiskAction.RETIRE, disk="d2")
    world.until(lambda: not desk.upkeep.holdings.has(kept), "the vnode on the other disk")
    now = desk.upkeep.holdings.of(vnode).complete()
    assert now
    assert oldest not in [manifest.checkpoint_id for manifest in now]
    world.finish(query, batches=query.directory.committed + 20)


def test_a_vnode_that_cannot_leave_its_disk_holds_up_no_other() -> None:
    world = World(workers=1, vnodes=8, disks=2)
    query = world.start_query()
    world.until(lambda: query.directory.committed >= 40)
    host = world.hosts["w1"]
    moving = on_disk(host, SECOND)
    stuck, refusing = min(moving), True

    def refuse() -> None:
        if refusing:
            arm()
            raise OSError(errno.EIO, "a test")

    def arm() -> None:
        world.trap("w1", "disk.append", refuse, holding=f"moving/{world.uid()}-{stuck}/")

    arm()
    ask(world, DiskAction.RETIRE, disk="d2")
    world.until(lambda: on_disk(host, SECOND) == {stuck}, "the others to have left")
    assert f"vnode {stuck} does not leave it" in reports(world)["d2"].fault
    refusing = False
    world.until(lambda: reports(world)["d2"].state is DiskState.EMPTY, "an empty disk")
    assert reports(world)["d2"].fault == ""
    world.finish(query, batches=query.directory.committed + 20)


MOVE = {
    "a file is copied": ("disk.append", "moving/", False),
    "a checkpoint is whole there": ("disk.rename", "moving/", True),
    "both disks have the vnode": ("disk.rename", "moved/", False),
    "the old one has it no more": ("disk.rename", "moved/", True),
    "its files go": ("disk.remove", "moved/", False),
}


@pytest.mark.parametrize("what", MOVE)
def test_a_crash_in_a_move_between_disks_leaves_every_vnode_on_one(what: str) -> None:
    world = World(workers=1, vnodes=4, disks=2)
    query = world.start_query()
    world.until(lambda: query.directory.committed >= 30)
    host = world.hosts["w1"]
    ask(world, DiskAction.RETIRE, disk="d2")
    step, holding, after = MOVE[what]
    trap = world.trap("w1", step, host.power_loss, holding=holding, after=after)
    world.until_sprung(trap)
    host.start_agent()
    for vnode in range(4):
        directory = f"jobs/{world.uid()}/ckpt/{vnode}"
        having = [disk for disk in (host.disk, host.further[SECOND]) if disk.list(directory)]
        assert len(having) == 1, f"vnode {vnode}"
    assert not host.disk.list("moving")
    world.until(lambda: reports(world)["d2"].state is DiskState.EMPTY)
    world.finish(query, batches=query.directory.committed + 20)


def has_copies_again(world: World, query: Query, worker: str) -> None:
    """Batches go on after the loss of a disk, and what was on it is made anew."""
    seen = query.directory.committed
    world.until(lambda: query.directory.committed >= seen + 30, "batches after the loss")
    agent = world.hosts[WorkerId(worker)].agent
    assert agent is not None
    (desk,) = agent.desks.values()
    held = world.epoch().fully_held_by(WorkerId(worker))
    world.until(lambda: all(desk.upkeep.holdings.base(v) is not None for v in held))


def test_a_disk_that_dies_under_load_is_said_and_its_vnodes_are_made_anew() -> None:
    world = World(workers=3, replication=1, disks=2)
    query = world.start_query()
    world.until(lambda: query.directory.committed >= 60)
    world.mishaps_expected = True
    host = world.hosts["w1"]
    host.unplug(SECOND)
    world.until(lambda: reports(world)["d2"].state is DiskState.LOST)
    assert "cannot be read" in reports(world)["d2"].fault
    has_copies_again(world, query, "w1")
    world.finish(query, batches=query.directory.committed + 10)


@pytest.mark.parametrize("starts", [1, 2])
def test_what_a_disk_that_was_away_has_of_a_job_that_left_goes_when_it_is_back(starts: int) -> None:
    """Beside no description of the job on the first disk it looked like state that nobody else may
    have, and the worker got no copies of the job any more. It may be started before the disk is
    back, too."""
    world = World(workers=3, replication=1, disks=2)
    query = world.start_query()
    world.until(lambda: query.directory.committed >= 60)
    world.mishaps_expected = True
    host, second = world.hosts["w1"], world.hosts["w1"].further[SECOND]
    host.unplug(SECOND)
    world.until(lambda: reports(world)["d2"].state is DiskState.LOST)
    world.drain("w1")
    world.until(lambda: not host.disk.list("jobs"), "the job to leave")
    for start in range(starts):
        if start == starts - 1:
            host.plug_again(SECOND)
            assert second.list(f"jobs/{world.uid()}/ckpt")
        host.kill_agent()
        host.start_agent()
    assert not second.list("jobs")
    assert not host.disk.list("left")
    world.run(3.0)
    assert world.groups().unreadable == {}
    world.finish(query, batches=query.directory.committed + 10)
    assert query.failures == []


def test_another_worker_takes_over_what_an_owner_has_lost() -> None:
    """Its instance ended with the disk, and to fetch the vnodes would take longer than that."""
    world = World(workers=3, replication=1, disks=2)
    query = world.start_query()
    world.until(lambda: query.directory.committed >= 60)
    world.mishaps_expected = True
    host, before = world.hosts["w1"], world.epoch()
    lost = sorted(on_disk(host, SECOND) & {*before.owned_by("i0")})
    kept = sorted({*before.owned_by("i0")} - {*lost})
    world.network.late_s = {"FetchManifest": 25.0}
    host.unplug(SECOND)
    for pid in host.pids("i0"):
        host.kill_pid(pid)
    world.until(lambda: len(world.controller_views()) == 1, "a failover")
    (failover,) = world.controller_views()
    assert (failover.kind, failover.lost) == (Kind.FAILOVER, ("i0",))
    assert world.until_ended(failover.id).phase is Phase.COMPLETE
    epoch = world.epoch()
    assert all(epoch.owner_worker(vnode) != "w1" for vnode in lost)
    assert all(epoch.owner_worker(vnode) == "w1" for vnode in kept)
    world.finish(query, batches=query.directory.committed + 20)
    assert query.failures == []


def test_what_nobody_else_has_waits_for_its_disk() -> None:
    """The agent goes on without it, and nothing is made up; with the disk all is there again."""
    world = World(workers=2, disks=2)
    query = world.start_query()
    world.until(lambda: query.directory.committed >= 60)
    world.mishaps_expected = True
    host = world.hosts["w1"]
    host.lose()
    disk = host.further.pop(SECOND)
    host.start_agent()
    seen = query.directory.committed
    world.run(30.0)
    assert query.directory.committed <= seen + 1
    assert world.controller_views() == ()
    (finding,) = [f for f in world.status().findings if "d2" in f.what]
    assert "worker w1: disk d2 (/w1/2) is lost" in finding.what
    assert "`rhinoctl disk retire w1:d2 --lost`" in finding.remedy
    host.kill_agent()
    host.further[SECOND] = disk
    host.start_agent()
    if not query.running:
        query = world.start_query(query.directory)
    world.finish(query, batches=query.directory.committed + 20)


@pytest.mark.slow
def test_a_scrub_that_is_asked_for_finds_what_has_rotted() -> None:
    world = World(workers=2, replication=1, disks=2)
    query = world.start_query()
    world.until(lambda: query.directory.committed >= 60)
    host = world.hosts["w1"]
    query.trigger_s = 60.0
    world.run(2.0)
    told = ask(world, DiskAction.SCRUB, disk="d2")
    assert [(each.disk, each.scrub.number) for each in told] == [("d2", 1)]
    world.until(lambda: reports(world)["d2"].scrub.over)
    well = reports(world)["d2"].scrub
    assert well.done_bytes == well.total_bytes > 0
    assert (well.bad, reports(world)["d1"].scrub.number) == ((), 0)
    rotten = next(p for p in host.further[SECOND].files("jobs") if "ckpt" in p and ".sst" in p)
    vnode, checkpoint, file = rotten.split("/")[3:]
    host.further[SECOND].rot(rotten, 3)
    ask(world, DiskAction.SCRUB)
    world.until(lambda: all(disk.scrub.over for disk in reports(world).values()))
    found = reports(world)["d2"].scrub
    assert found.number == 2
    assert any(
        f"vnode {vnode}, checkpoint {checkpoint}, file {file}: its content" in line
        for line in found.bad
    )
    assert reports(world)["d1"].scrub.bad == ()
    agent = host.agent
    assert agent is not None
    (desk,) = agent.desks.values()
    world.until(lambda: desk.upkeep.found_bad > 0)
    query.trigger_s = 0.1
    world.finish(query, batches=query.directory.committed + 20)


@pytest.mark.slow
def test_an_agent_starts_without_a_disk_and_takes_it_back_later() -> None:
    """What was made anew elsewhere meanwhile counts, and not what is old on it."""
    world = World(workers=3, replication=1, disks=2)
    query = world.start_query()
    world.until(lambda: query.directory.committed >= 60)
    world.mishaps_expected = True
    host = world.hosts["w1"]
    host.lose()
    disk = host.further.pop(SECOND)
    host.start_agent()
    assert reports(world)["d2"].state is DiskState.LOST
    seen = query.directory.committed
    world.until(lambda: query.directory.committed >= seen + 40)
    host.kill_agent()
    host.further[SECOND] = disk
    host.start_agent()
    assert reports(world)["d2"].state is DiskState.IN_USE
    assert on_disk(host, SECOND).isdisjoint(
        int(v) for uid in host.disk.list("jobs") for v in host.disk.list(f"jobs/{uid}/ckpt")
    )
    world.finish(query, batches=query.directory.committed + 20)
