"""Where vnodes and instances go: properties over random layouts (Rhino, section 3.5)."""

from collections import Counter
from collections.abc import Mapping
from itertools import combinations, pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rhinoctl.ids import InstanceId, Vnode, WorkerId
from rhinoctl.protocol.epochs import Epoch, Member, Role, Route, with_moves
from rhinoctl.protocol.placement import Plan, balancing_moves, first_epoch, plan_rescale

W = [WorkerId(f"w{n}") for n in range(12)]
ALL = {worker: f"{worker}.sock" for worker in W}


def instance(number: int) -> InstanceId:
    return InstanceId(f"i{number}")


@st.composite
def layouts(draw: st.DrawFn) -> Epoch:
    """A job as handovers may have left it: uneven, with instances that own nothing."""
    vnodes = 2 ** draw(st.integers(0, 5))
    numbers = sorted(draw(st.sets(st.integers(0, 12), min_size=1, max_size=min(vnodes, 8))))
    workers = draw(st.lists(st.sampled_from(W), min_size=1, max_size=5, unique=True))
    placed = {instance(n): draw(st.sampled_from(workers)) for n in numbers}
    routes = []
    for _ in range(vnodes):
        owner = draw(st.sampled_from(sorted(placed)))
        others = sorted(set(workers) - {placed[owner]})
        members = draw(st.lists(st.sampled_from(others), unique=True)) if others else []
        role = draw(st.sampled_from(Role))
        routes.append(
            Route(owner=owner, members=tuple(Member(worker=w, role=role) for w in members))
        )
    return Epoch(
        number=1, workers={w: ALL[w] for w in workers}, instances=placed, routes=tuple(routes)
    )


@st.composite
def rescales(draw: st.DrawFn) -> tuple[Epoch, int, list[WorkerId]]:
    epoch = draw(layouts())
    wanted = draw(st.integers(1, min(len(epoch.routes), 12)))
    workers = draw(st.lists(st.sampled_from(W), min_size=1, max_size=6, unique=True))
    return epoch, wanted, workers


def carried_out(epoch: Epoch, plan: Plan) -> Epoch:
    """The layout after a plan, whatever epochs led there."""
    named = {**ALL, **epoch.workers}
    whole = Epoch(
        number=epoch.number, workers=named, instances=epoch.instances, routes=epoch.routes
    )
    return with_moves(whole, plan.moves, plan.instances)


def shares(epoch: Epoch) -> list[int]:
    return sorted(len(epoch.owned_by(i)) for i in epoch.instances)


def even(counts: list[int]) -> bool:
    return max(counts) - min(counts) <= 1


# --- properties ----------------------------------------------------------------------------------


@given(rescales())
def test_vnodes_are_balanced_within_one(case: tuple[Epoch, int, list[WorkerId]]) -> None:
    epoch, wanted, workers = case
    after = carried_out(epoch, plan_rescale(epoch, wanted, workers))
    assert len(after.instances) == wanted
    assert even(shares(after))


@given(rescales())
def test_a_second_plan_is_empty(case: tuple[Epoch, int, list[WorkerId]]) -> None:
    epoch, wanted, workers = case
    after = carried_out(epoch, plan_rescale(epoch, wanted, workers))
    again = plan_rescale(after, wanted, workers)
    assert again.empty
    assert again.instances == after.instances


@given(rescales())
def test_no_vnode_moves_that_may_stay(case: tuple[Epoch, int, list[WorkerId]]) -> None:
    """Against all ways to share the vnodes out evenly over the same instances."""
    epoch, wanted, workers = case
    plan = plan_rescale(epoch, wanted, workers)
    small, extra = divmod(len(epoch.routes), wanted)
    held = {i: len(epoch.owned_by(i)) for i in plan.instances}
    most_that_can_stay = max(
        sum(min(held[i], small + (i in larger)) for i in held)
        for larger in combinations(sorted(held), extra)
    )
    assert len(plan.moves) == len(epoch.routes) - most_that_can_stay
    for vnode, target in plan.moves.items():
        assert epoch.routes[vnode].owner != target


@given(rescales(), st.randoms(use_true_random=False))
def test_a_plan_does_not_depend_on_the_order_of_registration(
    case: tuple[Epoch, int, list[WorkerId]], chance: Random
) -> None:
    """Scenario T1."""
    epoch, wanted, workers = case
    shuffled = Epoch(
        number=epoch.number,
        workers=_shuffled(epoch.workers, chance),
        instances=_shuffled(epoch.instances, chance),
        routes=epoch.routes,
    )
    others = sorted(workers, key=lambda _: chance.random())
    assert plan_rescale(epoch, wanted, workers) == plan_rescale(shuffled, wanted, others)


def _shuffled(mapping: Mapping[str, str], chance: Random) -> dict[str, str]:
    items = list(mapping.items())
    chance.shuffle(items)
    return dict(items)


@given(rescales())
def test_instances_that_stay_stay_where_they_are(case: tuple[Epoch, int, list[WorkerId]]) -> None:
    epoch, wanted, workers = case
    plan = plan_rescale(epoch, wanted, workers)
    before, after = set(epoch.instances), set(plan.instances)
    assert before <= after or after <= before
    for kept in before & after:
        assert plan.instances[kept] == epoch.instances[kept]
    for fresh in after - before:
        assert plan.instances[fresh] in workers


@given(st.integers(1, 6), st.lists(st.integers(1, 16), min_size=1, max_size=6))
def test_workers_stay_even_from_rescale_to_rescale(workers: int, counts: list[int]) -> None:
    """Design, section 14: no worker gets everything, and new ones do not stay idle."""
    used = {worker: ALL[worker] for worker in W[:workers]}
    epoch = first_epoch(vnodes=16, instances=counts[0], workers=used)
    for wanted in counts[1:]:
        epoch = carried_out(epoch, plan_rescale(epoch, wanted, list(used)))
        load = Counter(epoch.instances.values())
        assert even([load[worker] for worker in used])
        assert even(shares(epoch))


@given(st.integers(0, 5), st.integers(1, 32), st.integers(1, 12))
def test_the_first_epoch_is_even_and_contiguous(power: int, instances: int, workers: int) -> None:
    vnodes = 2**power
    if instances > vnodes:
        return
    used = {worker: ALL[worker] for worker in W[:workers]}
    epoch = first_epoch(vnodes=vnodes, instances=instances, workers=used)
    assert even(shares(epoch))
    load = Counter(epoch.instances.values())
    assert even([load[worker] for worker in used])
    owners = [route.owner for route in epoch.routes]
    changes = sum(a != b for a, b in pairwise(owners))
    assert changes == instances - 1
    assert set(epoch.workers) == set(epoch.instances.values())
    backwards = dict(reversed(used.items()))
    assert first_epoch(vnodes=vnodes, instances=instances, workers=backwards) == epoch


# --- by example ----------------------------------------------------------------------------------


def test_a_vnode_goes_where_its_copy_is() -> None:
    """Rhino, section 3.5.1: the target runs on a worker that has a copy."""
    copy = (Member(worker=W[2], role=Role.FULL),)
    epoch = Epoch(
        number=1,
        workers={w: ALL[w] for w in W[:3]},
        instances={instance(0): W[0], instance(1): W[1], instance(2): W[2]},
        routes=(
            *(Route(owner=instance(0)) for _ in range(3)),
            Route(owner=instance(0), members=copy),
        ),
    )
    moves = balancing_moves(epoch, epoch.instances)
    assert moves[Vnode(3)] == instance(2)
    assert moves == {Vnode(2): instance(1), Vnode(3): instance(2)}


def test_instances_are_counted_not_spelled() -> None:
    """i2 is older than i10, and a retired name is not taken again by the same plan."""
    epoch = first_epoch(vnodes=16, instances=11, workers={W[0]: ALL[W[0]]})
    assert set(epoch.instances) - set(plan_rescale(epoch, 10, W[:1]).instances) == {"i10"}
    assert set(plan_rescale(epoch, 13, W[:1]).instances) - set(epoch.instances) == {"i11", "i12"}


def test_new_instances_go_to_workers_that_have_none() -> None:
    """Horizontal scaling, and vertical once every worker has one."""
    epoch = first_epoch(vnodes=8, instances=1, workers={W[0]: ALL[W[0]]})
    wide = plan_rescale(epoch, 5, W[:3])
    assert Counter(wide.instances.values()) == {W[0]: 2, W[1]: 2, W[2]: 1}


def test_an_instance_that_owns_nothing_retires() -> None:
    """A plan without moves is not an empty one."""
    epoch = Epoch(
        number=1,
        workers={W[0]: ALL[W[0]]},
        instances={instance(0): W[0], instance(1): W[0]},
        routes=(Route(owner=instance(0)), Route(owner=instance(0))),
    )
    plan = plan_rescale(epoch, 1, W[:1])
    assert (plan.instances, plan.moves, plan.empty) == ({instance(0): W[0]}, {}, False)


@pytest.mark.parametrize("instances", [0, -1, 5])
def test_the_parallelism_is_bounded_by_the_vnodes(instances: int) -> None:
    epoch = first_epoch(vnodes=4, instances=2, workers={W[0]: ALL[W[0]]})
    with pytest.raises(ValueError, match="4 vnodes"):
        plan_rescale(epoch, instances, W[:1])
    with pytest.raises(ValueError, match="4 vnodes"):
        first_epoch(vnodes=4, instances=instances, workers={W[0]: ALL[W[0]]})


def test_nothing_is_placed_on_no_worker() -> None:
    epoch = first_epoch(vnodes=4, instances=2, workers={W[0]: ALL[W[0]]})
    with pytest.raises(ValueError, match="instances"):
        plan_rescale(epoch, 3, [])
    with pytest.raises(ValueError, match="0 workers"):
        first_epoch(vnodes=4, instances=2, workers={})


def test_new_instances_go_where_there_are_slots() -> None:
    workers, slots = W[:3], {W[0]: 1, W[2]: 0}
    first = first_epoch(vnodes=8, instances=3, workers={w: ALL[w] for w in workers}, slots=slots)
    assert sorted(first.instances.values()) == [W[0], W[1], W[1]]
    more = plan_rescale(first, 5, workers, slots)
    assert Counter(more.instances.values()) == {W[0]: 1, W[1]: 4}
    full = plan_rescale(first, 4, [W[0], W[2]], slots)
    assert full.instances[instance(3)] == W[2], "none has one: the emptiest, and it is refused"
