"""SEEP, sections 4.2 and 4.3: recovery is scale out to one, and faster if it is to several.

SEEP's operator o is an instance here, its VM a worker, and backup(o) are the full members of its
vnodes' chains: ours need not be upstream, since the buffer state is backed up with the rest. Scale
out is a handover; the cut of a failover is the same change of the epoch without the origin.
"""

import math

import pytest

from rhinoctl.ids import BASE, BatchTime, InstanceId, Vnode, WorkerId
from rhinoctl.protocol.epochs import Epoch, Role, with_chains_cut, with_moves
from rhinoctl.protocol.failover import Choice, GivenUp, orphans, plan_cut
from rhinoctl.state.primitives import BufferState, partition_buffer_state, partition_state
from tests.fakes.cluster import scenarios
from tests.fakes.cluster.exploring import Fault, explore, losses
from tests.fakes.cluster.inputs import Workload
from tests.fakes.cluster.scenarios import I0, I1, I2, THREE, W1, W2, W3, epoch
from tests.fakes.cluster.world import Scenario, World

VNODES = 8
LAYOUT = epoch(THREE, ((I0, "w2 w3"),) * VNODES)
"""i0 on w1 has all vnodes, i1 and i2 none yet; both of their workers have copies of all."""

EACH_LOSS = [
    pytest.param(scenario.first, worker, id=f"{scenario.name}, {worker}".replace(" ", "-"))
    for scenario in scenarios.LOSABLE
    for worker in sorted(scenario.first.workers)
]


def cut_after(before: Epoch, lost: WorkerId, *, heirs_max: int | None = None) -> Epoch:
    gone = GivenUp(workers=frozenset({lost}))
    plan = plan_cut(before, gone, choice=Choice(parallel=heirs_max))
    assert plan.epoch is not None
    return plan.epoch


@pytest.mark.parametrize(("before", "lost"), EACH_LOSS)
def test_recovery_is_a_special_case_of_scale_out(before: Epoch, lost: WorkerId) -> None:
    """4.2: overload and failure are handled the same way. The cut is the epoch of the handover that
    moves the lost worker's vnodes to the heirs, and of the one after it, in which the origin's
    worker leaves; both in one, since nobody has to wait for who is lost."""
    cut = cut_after(before, lost)
    moves = {v: cut.routes[v].owner for v in orphans(before, GivenUp(workers=frozenset({lost})))}
    assert moves
    moved = with_moves(before, moves, {**before.instances, **cut.instances})
    left = with_chains_cut(moved, {Vnode(v): frozenset({lost}) for v in before.vnodes()})
    assert cut.routes == left.routes


@pytest.mark.parametrize(("failed", "to"), [(I0, W1), (I0, W2), (I1, W3), (I2, W1)])
def test_recovery_of_an_instance_alone_is_that_handover(failed: InstanceId, to: WorkerId) -> None:
    """4.2, where the operator fails and not its VM: then the origin's worker stays in the chains as
    after any handover, and the two epochs are equal in all but what they give up."""
    before = scenarios.TWO_COPIES.first
    gone, choice = GivenUp(instances=frozenset({failed})), Choice(to=frozenset({to}))
    plan = plan_cut(before, gone, choice=choice)
    assert plan.epoch is not None
    instances = {**before.instances, **plan.epoch.instances}
    assert plan.epoch.routes == with_moves(before, plan.heirs, instances).routes
    assert list(plan.heirs) == list(before.owned_by(failed))


def test_recovery_is_scale_out_to_a_parallelisation_level_of_one() -> None:
    """4.2: a failed operator is scaled out to one: scale-out-operator(o, 1) of 4.3."""
    cut = cut_after(LAYOUT, W1, heirs_max=1)
    (heir,) = {route.owner for route in cut.routes}
    assert {Vnode(v): heir for v in cut.vnodes()} == partition_state(LAYOUT, I0, [heir])
    assert cut.number == LAYOUT.number + 1


def test_parallel_recovery_halves_what_one_heir_replays() -> None:
    """4.2 and 4.3: by scale-out-operator(o, 2) each restored operator replays half of the tuples.
    β is what batches 3 to 9 have for the vnodes of i0, the same number of rows for each."""
    cut = cut_after(LAYOUT, W1)
    owners = {Vnode(v): route.owner for v, route in enumerate(cut.routes)}
    buffer = BufferState(after=dict.fromkeys(owners, BatchTime(0, 2)), through=BatchTime(0, 9))
    load = Workload(vnodes=VNODES, size=4 * VNODES)

    def replayed(share: BufferState) -> int:
        return sum(
            len(load.of_vnode(batch, vnode))
            for vnode, since in share.after.items()
            for batch in range(since.batch + 1, share.through.batch + 1)
        )

    alone = partition_buffer_state(buffer, partition_state(LAYOUT, I0, [I1]))
    halves = partition_buffer_state(buffer, owners)
    assert set(halves) == {I1, I2}
    assert replayed(alone[I1]) == 7 * 4 * VNODES
    assert replayed(halves[I1]) == replayed(halves[I2]) == replayed(alone[I1]) // 2
    sizes = [len(share.after) for share in halves.values()]
    planned = partition_state(LAYOUT, I0, [I1, I2])
    assert sizes == [list(planned.values()).count(i) for i in (I1, I2)]


PARALLEL = Scenario(
    name="an instance with several vnodes is lost, two workers have copies",
    first=epoch(THREE, ((I0, "w2 w3"),) * 4),
    workload=Workload(vnodes=4, sizes=(5, 4)),
    batches=2,
)


def lost_at(scenario: Scenario, worker: WorkerId, ticks: int) -> World:
    """The world at its end, of which a worker died for good after so many ticks of the job."""
    world = World(scenario)
    while not world.initialised:
        world.tick()
    for _ in range(ticks):
        world.tick()
    world.lose_worker(worker, crashed=True, back_s=math.inf)
    return world.run()


@pytest.mark.parametrize("ticks", range(10, 150, 20))
def test_the_operator_is_restored_without_being_operational(ticks: int) -> None:
    """4.3: processing restarts from the last checkpoint without o. It is dead for good, and two
    instances that owned nothing have its state at the end, half of the vnodes each."""
    world = lost_at(PARALLEL, W1, ticks)
    last = world.oracle.epoch()
    assert last is not None
    assert W1 not in last.workers
    owned = {instance: last.owned_by(instance) for instance in (I1, I2)}
    assert [len(vnodes) for vnodes in owned.values()] == [2, 2]
    for instance, vnodes in owned.items():
        for vnode in vnodes:
            copy = world.workers[last.instances[instance]].copy_of(vnode)
            rows = sorted(row for applied in copy for row in applied.rows)
            assert rows == [r for b in range(2) for r in world.workload.of_vnode(b, vnode)]


def test_no_sophisticated_failure_detector_is_needed() -> None:
    """4.2: an operator is scaled out when it has become unresponsive, whatever the reason. A worker
    that was only cut off, and goes on with all that it had, does no harm."""

    def cut_off(world: World) -> list[Fault]:
        return [fault for fault in losses(world) if "cut off" in fault.name]

    assert explore(World(scenarios.BEHIND_EACH_OTHER), cut_off).runs > 100


def test_without_a_backup_there_is_no_scale_out() -> None:
    """4.3: if backup(o) fails as well, the scale out is not done, and tried again once it is back.
    Ours names the vnodes for which it waits, and moves no other one meanwhile."""
    both = GivenUp(workers=frozenset({W1, W2}))
    plan = plan_cut(scenarios.RING.first, both)
    assert (plan.epoch, plan.stranded) == (None, (Vnode(0),))
    again = plan_cut(scenarios.RING.first, GivenUp(workers=frozenset({W1})))
    assert again.epoch is not None


def test_a_restored_operator_that_fails_is_recovered_in_the_same_way() -> None:
    """4.3: each partition has a backup of its own from the start, so that an oⁱ that fails is
    recovered from it. The heirs' vnodes are full copies on each other's workers."""
    first = cut_after(LAYOUT, W1)
    for v in first.vnodes():
        assert set(first.full_holders(Vnode(v))) == {W2, W3}
        assert first.role_of(W2, Vnode(v)) is first.role_of(W3, Vnode(v)) is Role.FULL
    second = cut_after(first, W2)
    assert {route.owner for route in second.routes} == {I2}


def test_a_failed_partition_does_not_undo_the_scale_out() -> None:
    """4.3: the routing state is kept by the query manager, here in every epoch record: what was
    split stays split, also for vnodes whose owner fails afterwards."""
    names = [I0, I1, InstanceId("i2")]
    split = with_moves(LAYOUT, partition_state(LAYOUT, I0, names), THREE)
    cut = cut_after(split, W1)
    for v in split.vnodes():
        if split.routes[v].owner != I0:
            assert cut.routes[v].owner == split.routes[v].owner
    buffer = BufferState(after=dict.fromkeys(map(Vnode, split.vnodes()), BASE), through=BASE)
    owners = {Vnode(v): route.owner for v, route in enumerate(cut.routes)}
    shares = partition_buffer_state(buffer, owners)
    assert sorted(len(share.after) for share in shares.values()) == [4, 4]
