"""Rhino, sections 3.5.3, 4.1.3 and 4.2.3: what holds when an owner or a member fails.

As in test_rhino_epochs.py, on the model of a cluster: timestamps are batches, and the marker of a
failover is the cut. A worker is lost at places all over a job: dead, only cut off, or dead together
with the driver.
"""

import math
from collections.abc import Iterator
from itertools import cycle

import pytest

from rhino_agent.replication import predecessor, successor
from rhinoctl.ids import Vnode, WorkerId
from rhinoctl.protocol.chains import next_epoch
from rhinoctl.protocol.epochs import Epoch, Role, successor_fault
from rhinoctl.protocol.failover import Choice, GivenUp, orphans, plan_cut
from rhinoctl.protocol.groups import Host, plan_groups
from rhinoctl.protocol.records import DecisionRecord
from tests.fakes.cluster.exploring import BACK_S
from tests.fakes.cluster.inputs import Row, Workload
from tests.fakes.cluster.scenarios import (
    I0,
    LOST_AT_A_MARKER,
    RING,
    TWO_COPIES,
    V0,
    V1,
    W1,
    W2,
    W3,
    epoch,
)
from tests.fakes.cluster.world import Scenario, World

W4 = WorkerId("w4")
ADDRESSES = {worker: f"{worker}.sock" for worker in (W1, W2, W3, W4)}

each_job = pytest.mark.parametrize(
    "scenario", [RING, TWO_COPIES, LOST_AT_A_MARKER], ids=["ring", "two-copies", "at-a-marker"]
)


def losses_of(worker: WorkerId, scenario: Scenario, *, every: int) -> Iterator[World]:
    """Worlds that have just lost the worker, each at another place and in another way."""
    world, ways = World(scenario), cycle(["dead", "cut off", "dead with the driver"])
    while not world.ended:
        world.tick()
        if world.initialised and world.ticks % every == 0:
            lost, way = world.clone(), next(ways)
            if way == "dead with the driver" and lost.driver.alive:
                lost.kill_driver(in_flight_lost=True)
            gone = way != "cut off"
            lost.lose_worker(worker, crashed=gone, back_s=math.inf if gone else BACK_S)
            yield lost


def cut_of(world: World) -> DecisionRecord | None:
    """The record that gives the worker up; None if the job has ended before."""
    return next((record for record in world.oracle.history if record.next_epoch.lost), None)


def epoch_before(world: World, record: DecisionRecord) -> Epoch:
    history = world.oracle.history
    return history[history.index(record) - 1].next_epoch


def rows_in(world: World, worker: WorkerId, vnode: Vnode) -> list[Row]:
    """All rows that a worker's copy of a vnode has, as often as it has them."""
    return sorted(row for applied in world.workers[worker].copy_of(vnode) for row in applied.rows)


# --- theorem 1, for a handover whose origin has failed -------------------------------------------


@each_job
def test_theorem_1_the_heir_has_the_state_at_the_cut_and_processes_what_is_later(
    scenario: Scenario,
) -> None:
    """4.1.3, theorem 1, for the failover of 3.5.3: the target gets the origin's state as of the
    marker, processes only what is later, and the handover ends in finite time. So each row is in
    the state once, and nothing after the cut was processed by who is lost."""
    inherited = 0
    for world in losses_of(W1, scenario, every=2):
        world.run()
        cut, last = cut_of(world), world.oracle.epoch()
        if cut is None or last is None:
            continue
        inherited += len(orphans(epoch_before(world, cut), GivenUp(workers=frozenset({W1}))))
        for vnode in map(Vnode, last.vnodes()):
            rows = rows_in(world, last.owner_worker(vnode), vnode)
            batches = range(world.committed + 1)
            assert rows == [r for b in batches for r in world.workload.of_vnode(b, vnode)]
            assert rows
        for (vnode, time), who in world.oracle.acknowledged.items():
            if time > cut.time:
                staged = world.oracle.staged_in(time)
                assert who == (staged.routes[vnode].owner, staged.owner_worker(vnode))
                assert who[1] != W1
    assert inherited > 10


@each_job
def test_theorem_1_the_heir_has_no_record_in_flight_of_before_the_cut(scenario: Scenario) -> None:
    """4.1.3: the target starts once all that is older than the marker is there or will never be.
    What the lost worker was about to decide is the same for all: a batch below the cut is the one
    that every survivor has, and there is no other."""
    for world in losses_of(W1, scenario, every=2):
        world.run()
        cut = cut_of(world)
        if cut is None:
            continue
        older = [r for r in world.oracle.history if r.is_batch and r.position < cut.position]
        for record in older:
            for name in set(record.voters) - {W1}:
                assert world.workers[name].holds(record.id)
                others = [
                    key
                    for key in world.workers[name].segments
                    if key.position == record.position and key != record.id
                ]
                assert not others


# --- 4.2.3, the first failure: of the primary owner ----------------------------------------------


def test_replication_for_a_failed_owner_halts_and_resumes_under_its_heir() -> None:
    """4.2.3: replication of what the failed operator owned is halted until the failure is resolved,
    and then resumes. Until the cut a checkpoint is taken from the lost owner only, which sends
    none; from the cut on it is taken from the heir. Other vnodes' replication goes on as it was."""
    old = TWO_COPIES.first
    chain = [W1, W2, W3]
    assert [successor(old, w, V0) for w in chain] == [W2, W3, None]
    assert [predecessor(old, w, V0) for w in chain] == [None, W1, W2]
    plan = plan_cut(old, GivenUp(workers=frozenset({W1})), choice=Choice(to=frozenset({W2})))
    new = plan.epoch
    assert new is not None
    assert new.owner_worker(V0) == W2
    assert [successor(new, w, V0) for w in chain] == [None, W3, None]
    assert [predecessor(new, w, V0) for w in chain] == [None, None, W2]
    assert old.owner_worker(V1) == new.owner_worker(V1) == W2
    assert successor(old, W2, V1) == successor(new, W2, V1) == W3


def test_nothing_is_decided_without_a_lost_owner_before_it_is_given_up() -> None:
    """4.2.3, for the log, our other half of replication: while the owner is only silent, nothing is
    replicated for it, and nothing is decided that it has not sealed. After the cut each batch is on
    every member that is left."""
    after_cut = 0
    for world in losses_of(W1, TWO_COPIES, every=3):
        while not world.given_up and not world.ended:
            decided = [r for r in world.oracle.history if r.is_batch]
            assert all(r.id in world.workers[W1].segments for r in decided)
            world.tick()
        world.run()
        cut = cut_of(world)
        for record in world.oracle.history if cut is not None else ():
            if record.is_batch and record.position > cut.position:
                after_cut += 1
                assert set(record.voters) == set(cut.next_epoch.full_holders(V0)) == {W2, W3}
                assert all(world.workers[name].holds(record.id) for name in record.voters)
    assert after_cut > 10


# --- 4.2.3, the second failure: of a member ------------------------------------------------------


def mended(now: Epoch) -> Epoch | None:
    """What the controller wants after w2 is lost: one copy of each vnode, on a worker that lives.
    Whether a copy is whole is the model's to say."""
    if W2 in now.workers:
        return None
    plan = plan_groups(now, 1, {W1: Host(), W3: Host()}, {})
    whole = {W3: frozenset({V0, V1})}
    return next_epoch(now, plan, whole, ADDRESSES, joining_at_once=8)


MEMBER_LOST = Scenario(
    name="a member is lost, and another worker takes its place",
    first=epoch({I0: W1}, ((I0, "w2"), (I0, "w2"))),
    workload=Workload(vnodes=2, sizes=(3, 2, 2)),
    batches=3,
    proposals=((0, mended),),
)


def test_a_failed_member_is_removed_and_replaced_by_another_worker() -> None:
    """4.2.3: a worker of a replica group that fails is removed, and another takes its place. The
    owner stays the owner meanwhile, and at the end the newcomer has every row once."""
    replaced = 0
    for world in losses_of(W2, MEMBER_LOST, every=2):
        world.run()
        cut, last = cut_of(world), world.oracle.epoch()
        if cut is None or last is None:
            continue
        replaced += 1
        assert {route.owner for route in cut.next_epoch.routes} == {I0}
        for vnode in (V0, V1):
            assert cut.next_epoch.holders(vnode) == (W1,)
            assert last.full_holders(vnode) == (W1, W3)
            batches = range(world.committed + 1)
            expected = [r for b in batches for r in world.workload.of_vnode(b, vnode)]
            assert rows_in(world, W1, vnode) == rows_in(world, W3, vnode) == expected
    assert replaced > 10


@pytest.mark.parametrize("replication", [1, 2])
def test_the_group_is_filled_again_before_anything_else_leaves_it(replication: int) -> None:
    """4.2.3 by the plan alone, with more than one member: the cut takes the failed worker out of
    every group, `plan_groups` names others, and no step on the way costs a full copy."""
    members = " ".join(["w2", "w3"][:replication])
    now = epoch({I0: W1}, ((I0, members),) * 6)
    plan = plan_cut(now, GivenUp(workers=frozenset({W2})))
    assert plan.heirs == {}
    assert plan.epoch is not None
    now, joining = plan.epoch, 0
    hosts = {worker: Host() for worker in (W1, W3, W4)}
    while True:
        groups = plan_groups(now, replication, hosts, {})
        assert not groups.lacking
        whole = {w: frozenset(now.held_by(w)) for w in hosts}
        after = next_epoch(now, groups, whole, ADDRESSES, joining_at_once=2)
        if after is None:
            break
        assert successor_fault(now, after) is None
        for v in now.vnodes():
            assert set(now.full_holders(Vnode(v))) <= set(after.full_holders(Vnode(v)))
        joining += any(m.role is Role.JOINING for r in after.routes for m in r.members)
        now = after
    assert joining
    for v in now.vnodes():
        assert len(now.full_holders(Vnode(v))) == 1 + replication
        assert now.holders(Vnode(v)) == now.full_holders(Vnode(v))
        assert W2 not in now.holders(Vnode(v))
    assert now.instances == {I0: W1}
