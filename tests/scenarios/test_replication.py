"""Checkpoints on their way down the chains, on the real loops."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from math import inf

import pytest

from rhinoctl import limits
from rhinoctl.ids import Vnode
from rhinoctl.protocol.handover import Phase
from tests.fakes.world import World
from tests.fakes.world_process import Trap
from tests.scenarios.test_copies import checkpoints, tables, warmed_up
from tests.scenarios.test_failover import all_copies, failovers, goes_on


@dataclass(eq=False, kw_only=True)
class Ear(Trap):
    """Hears all that a process does, and never springs."""

    hears: Callable[[str], None]

    def matches(self, process: str, step: str, *, after: bool) -> bool:
        """See `Trap`."""
        if process == self.process and not after:
            self.hears(step)
        return False


def newest(world: World, worker: str, vnode: int) -> str:
    """The id of the newest complete checkpoint, empty without one."""
    found = checkpoints(world, worker, vnode)
    return found[-1].rpartition("/")[2] if found else ""


def settled(world: World, vnode: int) -> bool:
    """Whether everybody in the vnode's chain has the owner's newest checkpoint."""
    ids = {newest(world, worker, vnode) for worker in world.epoch().holders(Vnode(vnode))}
    return len(ids) == 1 and "" not in ids


def log_bytes(world: World, worker: str) -> int:
    agent = world.hosts[worker].agent
    assert agent is not None
    return agent.desks[world.uid()].job.log.size()


def test_every_member_has_the_owners_checkpoints_file_by_file() -> None:
    """Rhino, 4.2.2: to the tail, by the member before it; what was there before is linked."""
    world = World(workers=3, instances=1, replication=2)
    query = warmed_up(world, batches=80)
    query.idle = True  # no new checkpoints: what is on its way arrives
    for vnode in range(world.vnodes):
        if checkpoints(world, "w1", vnode):
            world.until(lambda vnode=vnode: settled(world, vnode), f"vnode {vnode} on all three")
    for vnode in range(world.vnodes):
        owner = world.hosts["w1"].disk
        for member in ("w2", "w3"):
            disk = world.hosts[member].disk
            for path in tables(world, "w1", checkpoints(world, "w1", vnode)[-1]):
                assert bytes(disk.read(path)) == bytes(owner.read(path))
    query.idle = False
    world.finish(query, batches=query.directory.committed + 5)


@pytest.mark.slow
def test_copies_take_the_time_between_batches() -> None:
    """The next chunk waits for the batch under way, but not for longer than a chunk may."""
    world = World(workers=2, instances=1, replication=1)
    query = warmed_up(world, batches=20)
    agent = world.hosts["w2"].agent
    assert agent is not None
    job = agent.desks[world.uid()].job
    busy_since = inf
    waits: list[float] = []

    def heard(step: str) -> None:
        nonlocal busy_since
        now = world.clock.monotonic()
        busy_since = min(busy_since, now) if job.batch_under_way else inf
        if step.startswith("send FetchChunk"):
            waits.append(max(0.0, now - busy_since))

    world.traps.append(Ear(process="w2", step="", then=lambda: None, hears=heard))
    world.until(lambda: query.directory.committed >= 60)
    assert waits
    quick = [wait for wait in waits if wait < limits.YIELD_S]
    assert max(quick, default=0.0) < 0.05  # only what a batch found under way
    world.network.late_s["Seal"] = 3.0  # from now on a batch is always under way
    waits.clear()
    world.until(lambda: query.directory.committed >= 80, within_s=300)
    assert [wait for wait in waits if wait >= limits.YIELD_S]
    world.finish(query, batches=query.directory.committed + 3)


@pytest.mark.slow
def test_the_owners_log_waits_for_the_chain() -> None:
    """Invariant 5: it is trimmed once every full member has the checkpoint, and soon then."""
    world = World(workers=2, instances=1, replication=1)
    world.network.late_s["FetchChunk"] = inf
    query = warmed_up(world, batches=120)
    waiting = log_bytes(world, "w1")
    del world.network.late_s["FetchChunk"]
    world.until(lambda: log_bytes(world, "w1") < waiting / 2, "a short log")
    world.finish(query, batches=query.directory.committed + 5)


@pytest.mark.slow
def test_a_chain_that_does_not_acknowledge_is_offered_the_newest_later() -> None:
    """Invariant 12: a chain is deaf for a while; its tail gets the newest copies after it."""
    world = World(workers=3, instances=1, replication=2)
    query = warmed_up(world, batches=40)
    world.network.late_s["OfferCheckpoint"] = 1e6
    world.until(lambda: query.directory.committed >= 120, within_s=600)
    world.network.late_s.clear()
    query.idle = True
    world.until(lambda: settled(world, 0), "the tail", 200.0)
    query.idle = False
    world.finish(query, batches=query.directory.committed + 5)


@pytest.mark.slow
def test_a_lagging_copy_replays_more_and_serves_all_the_same() -> None:
    """T3: the copies are many checkpoints behind; the heir applies what its log has."""
    world = World(workers=3, instances=3, replication=1)
    world.network.late_s["FetchChunk"] = inf
    query = warmed_up(world, batches=60)
    world.hosts["w1"].lose()
    goes_on(world, query, 20.0)
    world.until(lambda: failovers(world)[0].phase is Phase.COMPLETE)
    assert (failovers(world)[0].replayed_batches or 0) > 20
    world.network.late_s.clear()
    world.until(lambda: all_copies(world, 2), "two copies again", 200.0)
    world.finish(query, batches=query.directory.committed + 10)
    assert query.failures == []


@pytest.mark.slow
def test_the_network_has_a_bound() -> None:
    """Copies come, slowly; the lag that is told grows meanwhile."""
    fast, slow = (World(workers=2, instances=1, replication=1, copies_bytes_s=b) for b in (0, 400))
    lags = []
    for world in (fast, slow):
        query = warmed_up(world, batches=100)
        lags.append(max(m.lag_batches or 0 for g in world.groups().groups for m in g.members))
        world.finish(query, batches=query.directory.committed + 5)
    assert lags[1] > lags[0]


@pytest.mark.slow
def test_lag_grows_while_copies_are_throttled() -> None:
    """Design, section 14: lag that looks frozen while throttled. In batches, bytes and seconds."""
    world = World(workers=2, vnodes=4, instances=1, replication=1, copies_bytes_s=1)
    query = warmed_up(world, batches=30)
    query.trigger_s = 0.2
    seen: list[tuple[float, float, float]] = []
    for _ in range(4):
        world.run(3.0)  # some heartbeats
        members = [member for group in world.groups().groups for member in group.members]
        assert {member.worker for member in members} == {"w2"}
        lags = [(m.lag_batches or 0, m.lag_bytes or 0, m.lag_s or 0.0) for m in members]
        seen.append(tuple(map(sum, zip(*lags, strict=True))))  # type: ignore[arg-type]
    for earlier, later in pairwise(seen):
        assert all(a < b for a, b in zip(earlier, later, strict=True)), seen
    world.finish(query, batches=query.directory.committed + 5)


def test_what_a_silent_worker_has_is_not_known_and_not_none() -> None:
    """Design, section 14: missing metrics read as zero. The controller has never heard of w2."""
    world = World(workers=2, vnodes=4, instances=1, replication=1, auto_failover=False)
    warmed_up(world, batches=20)
    world.kill_controller()
    world.hosts["w2"].lose()
    world.start_controller()
    world.run(3.0)
    (worker,) = [worker for worker in world.status().workers if worker.id == "w2"]
    assert worker.free_bytes is None
    assert not worker.room_low
    members = [member for group in world.groups().groups for member in group.members]
    assert {member.worker for member in members} == {"w2"}
    assert {(m.lag_batches, m.lag_bytes, m.lag_s) for m in members} == {(None, None, None)}
