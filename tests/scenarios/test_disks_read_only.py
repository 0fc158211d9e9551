"""A disk that turns read-only, as a file system does after a fault: a moment of it changes nothing
and leaves nothing behind, for longer the disk is as good as lost."""

import errno
import os
from collections.abc import Iterable

import pytest

from rhinoctl.ids import Vnode
from rhinoctl.protocol.disks import DiskAction, DiskState
from rhinoctl.protocol.handover import Kind, Phase
from tests.fakes.world import World
from tests.fakes.world_spark import Query
from tests.scenarios.test_several_disks import SECOND, ask, has_copies_again, on_disk, reports


def newest(world: World, vnode: int) -> object:
    """What the newest checkpoint of a vnode at w1 covers."""
    agent = world.hosts["w1"].agent
    assert agent is not None
    (desk,) = agent.desks.values()
    manifest = desk.upkeep.holdings.newest(Vnode(vnode))
    return None if manifest is None else manifest.covers


def await_checkpoints(world: World, vnodes: Iterable[int]) -> None:
    """Wait for the next checkpoint of each of these vnodes at w1."""
    before = {vnode: newest(world, vnode) for vnode in vnodes}
    world.until(
        lambda: all(newest(world, vnode) != covers for vnode, covers in before.items()),
        "the next checkpoint of every vnode",
    )


def with_two_disks(**more: int) -> tuple[World, Query]:
    world = World(workers=3, replication=1, disks=2, **more)
    query = world.start_query()
    world.until(lambda: query.directory.committed >= 60)
    world.mishaps_expected = True
    return world, query


def test_a_disk_that_is_read_only_for_long_is_lost_and_its_vnodes_are_made_anew() -> None:
    world, query = with_two_disks()
    host = world.hosts["w1"]
    host.further[SECOND].read_only = True
    world.until(lambda: reports(world)["d2"].state is DiskState.LOST, "the disk to be given up")
    assert "cannot be written to: Read-only" in reports(world)["d2"].fault
    world.run(1.0)
    (finding,) = [f for f in world.status().findings if "d2" in f.what]
    assert "worker w1: disk d2 (/w1/2) is lost" in finding.what
    has_copies_again(world, query, "w1")
    assert ask(world, DiskAction.GIVE_UP, disk="d2")[0].state is DiskState.EMPTY
    world.finish(query, batches=query.directory.committed + 10)
    assert query.failures == []


def test_a_disk_that_turns_read_only_while_it_is_retired_can_be_given_up() -> None:
    world, query = with_two_disks()
    world.hosts["w1"].further[SECOND].read_only = True
    ask(world, DiskAction.RETIRE, disk="d2")
    world.until(lambda: reports(world)["d2"].state is DiskState.LOST)
    assert ask(world, DiskAction.GIVE_UP, disk="d2")[0].state is DiskState.EMPTY
    world.finish(query, batches=query.directory.committed + 10)


def test_a_disk_that_can_be_written_to_again_is_used_after_a_start_of_the_agent() -> None:
    world, query = with_two_disks()
    host = world.hosts["w1"]
    host.further[SECOND].read_only = True
    world.until(lambda: reports(world)["d2"].state is DiskState.LOST)
    host.kill_agent()
    host.start_agent()
    assert reports(world)["d2"].state is DiskState.LOST
    seen = query.directory.committed
    world.until(lambda: query.directory.committed >= seen + 20)
    host.further[SECOND].read_only = False
    host.kill_agent()
    host.start_agent()
    assert reports(world)["d2"].state is DiskState.IN_USE
    world.run(2.0)
    assert not world.status().findings
    world.finish(query, batches=query.directory.committed + 20)


@pytest.mark.parametrize("at_once", [False, True], ids=["its disk refuses", "it is killed"])
def test_another_worker_takes_over_what_an_owner_cannot_open(at_once: bool) -> None:
    """As of a disk that is gone, where to fetch the vnodes takes longer; no query ends for it."""
    world, query = with_two_disks()
    host, before = world.hosts["w1"], world.epoch()
    stuck = sorted(on_disk(host, SECOND) & {*before.owned_by("i0")})
    world.network.late_s = {"FetchManifest": 25.0}
    host.further[SECOND].read_only = True
    if at_once:
        for pid in host.pids("i0"):
            host.kill_pid(pid)
    world.until(lambda: len(world.controller_views()) == 1, "a failover")
    (failover,) = world.controller_views()
    assert (failover.kind, failover.lost) == (Kind.FAILOVER, ("i0",))
    assert world.until_ended(failover.id).phase is Phase.COMPLETE
    assert all(world.epoch().owner_worker(vnode) != "w1" for vnode in stuck)
    world.finish(query, batches=query.directory.committed + 20)
    assert query.failures == []


def test_a_rescale_onto_a_disk_that_turns_read_only_goes_on_with_the_other_one() -> None:
    world, query = with_two_disks(vnodes=8)
    host = world.hosts["w3"]
    host.further["/w3/2"].read_only = True
    operation = world.rescale(3)
    assert world.until_ended(operation).phase is Phase.COMPLETE
    assert reports(world, "w3")["d2"].state is DiskState.LOST
    world.finish(query, batches=query.directory.committed + 20)
    assert query.failures == []


@pytest.mark.parametrize("replication", [0, 1])
@pytest.mark.parametrize("seconds", [0.5, 4.0])
def test_a_moment_in_which_a_disk_is_read_only_leaves_nothing_behind(
    seconds: float, replication: int
) -> None:
    world = World(workers=2, replication=replication, disks=2)
    query = world.start_query()
    world.until(lambda: query.directory.committed >= 60)
    world.mishaps_expected = True
    disk = world.hosts["w1"].further[SECOND]
    vnodes = on_disk(world.hosts["w1"], SECOND)
    epoch = world.epoch().number
    disk.read_only = True
    world.run(seconds)
    disk.read_only = False
    world.run(2.0)
    assert reports(world)["d2"].state is DiskState.IN_USE
    await_checkpoints(world, vnodes)
    world.finish(query, batches=query.directory.committed + 20)
    assert world.epoch().number == epoch
    assert query.failures == []
    assert not any(".tmp" in name for name in disk.files("jobs"))


STEPS = {
    "room is made for it": ("w1", "disk.remove", ".tmp", False),
    "its tables are written": ("w1/i0", "disk.link", ".tmp/", False),
    "its stamps are written": ("w1", "disk.append", ".tmp/", False),
    "it is made durable": ("w1", "disk.sync", ".tmp/", False),
    "its manifest is written": ("w1", "disk.write_atomic", ".tmp/", False),
    "it gets its name": ("w1", "disk.rename", "ckpt/", False),
    "it has its name": ("w1", "disk.rename", "ckpt/", True),
}


@pytest.mark.parametrize("number", [errno.EROFS, errno.EIO])
@pytest.mark.parametrize("step", STEPS)
def test_a_disk_that_refuses_a_step_of_a_checkpoint_gets_the_next_one(
    step: str, number: int
) -> None:
    world = World(workers=1, instances=1, vnodes=2)
    query = world.start_query()
    world.until(lambda: query.directory.committed >= 40)
    world.mishaps_expected = True
    process, what, holding, after = STEPS[step]

    def refuse() -> None:
        raise OSError(number, os.strerror(number))

    trap = world.trap(process, what, refuse, holding=holding, after=after)
    world.until_sprung(trap)
    await_checkpoints(world, range(2))
    world.finish(query, batches=query.directory.committed + 20)
    assert query.failures == []


@pytest.mark.parametrize("seconds", [3.0, 60.0])
@pytest.mark.parametrize("replication", [0, 1])
def test_a_first_disk_that_is_read_only_is_waited_for_or_its_worker_given_up(
    seconds: float, replication: int
) -> None:
    """Its log is there: for longer than a moment the worker is as good as lost, though it answers.
    Without another copy the batch waits, and no query ends for it."""
    world = World(workers=3, replication=replication)
    query = world.start_query()
    world.until(lambda: query.directory.committed >= 40)
    world.mishaps_expected = True
    disk = world.hosts["w1"].disk
    disk.read_only = True
    world.run(seconds)
    if seconds > 10.0:
        (finding,) = [f for f in world.status().findings if "d1" in f.what]
        assert "disk d1 (disk) refuses: it cannot be written to: Read-only" in finding.what
    assert [v.lost for v in world.controller_views()] == (
        [("w1",)] if replication and seconds > 10.0 else []
    )
    disk.read_only = False
    world.finish(query, batches=query.directory.committed + 20)
    assert query.failures == []
    world.run(6.0)
    assert not [f for f in world.status().findings if "w1" in f.what]
