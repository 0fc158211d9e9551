"""Replica groups by example, and the epochs that lead to them (Rhino, section 4.2.2)."""

from collections import Counter

import pytest

from rhinoctl.ids import Vnode, WorkerId
from rhinoctl.protocol.chains import next_epoch
from rhinoctl.protocol.epochs import Epoch, with_moves
from rhinoctl.protocol.groups import GroupPlan, Host, plan_groups
from rhinoctl.protocol.placement import first_epoch
from tests.fakes.cluster.scenarios import I0, I1, V0, V1, V2, W1, W2, W3, epoch

W4 = WorkerId("w4")
ONE = {I0: W1}
ADDRESSES = {worker: f"{worker}.sock" for worker in (W1, W2, W3, W4)}
NO_SIZES: dict[Vnode, int] = {}


def hosts(*workers: WorkerId, **limits: int) -> dict[WorkerId, Host]:
    """Hosts that are all alike."""
    return {worker: Host(**limits) for worker in workers}


def members(plan: GroupPlan) -> list[str]:
    """Each vnode's members, e.g. ``"w2 w3"``."""
    return [" ".join(plan.members[vnode]) for vnode in sorted(plan.members)]


def chain(of: Epoch | None, vnode: Vnode = V0) -> str:
    """The members of a chain, e.g. ``"w2 w3?"``: w3 is joining."""
    assert of is not None
    listed = of.routes[vnode].members
    return " ".join(m.worker + ("?" if m.role.value == "joining" else "") for m in listed)


def following(
    now: Epoch, plan: GroupPlan, *whole: WorkerId, joining_at_once: int = 4
) -> Epoch | None:
    """The next epoch if the named workers have whole copies of all that they hold."""
    copies = {worker: frozenset(now.held_by(worker)) for worker in whole}
    return next_epoch(now, plan, copies, ADDRESSES, joining_at_once=joining_at_once)


def wanted(text: str, *, lacking: int = 0) -> GroupPlan:
    """A plan for vnode 0."""
    group = tuple(WorkerId(word) for word in text.split())
    return GroupPlan(
        members={V0: group}, lacking={V0: lacking} if lacking else {}, reasons=("as told",)
    )


# --- plans ---------------------------------------------------------------------------------------


def test_copies_are_spread_evenly_over_the_other_workers() -> None:
    now = epoch(ONE, ((I0, ""),) * 6)
    plan = plan_groups(now, 1, hosts(W1, W2, W3, W4), dict.fromkeys(map(Vnode, range(6)), 10))
    assert Counter(members(plan)) == {"w2": 2, "w3": 2, "w4": 2}
    assert (plan.lacking, plan.reasons) == ({}, ())


def test_a_larger_and_faster_host_gets_more() -> None:
    now = epoch(ONE, ((I0, ""),) * 6)
    sizes = dict.fromkeys(map(Vnode, range(6)), 10)
    large = {W2: Host(disk_bytes=100), W3: Host(disk_bytes=200)}
    assert Counter(members(plan_groups(now, 1, large, sizes))) == {"w2": 2, "w3": 4}
    fast = {W2: Host(bandwidth=2.0), W3: Host(bandwidth=1.0)}
    assert Counter(members(plan_groups(now, 1, fast, sizes))) == {"w2": 4, "w3": 2}


def test_racks_come_before_what_is_there() -> None:
    """A copy in the owner's rack is worth less than a move."""
    racks = {W1: Host(rack="a"), W2: Host(rack="a"), W3: Host(rack="b"), W4: Host(rack="b")}
    assert members(plan_groups(epoch(ONE, ((I0, "w2"),)), 1, racks, NO_SIZES)) == ["w3"]
    assert members(plan_groups(epoch(ONE, ((I0, "w4"),)), 1, racks, NO_SIZES)) == ["w4"]
    assert members(plan_groups(epoch(ONE, ((I0, "w3 w4"),)), 2, racks, NO_SIZES)) == ["w3 w4"]


def test_members_come_before_racks() -> None:
    racks = {W1: Host(rack="a"), W2: Host(rack="a"), W3: Host(rack="a")}
    plan = plan_groups(epoch(ONE, ((I0, ""),)), 2, racks, NO_SIZES)
    assert (members(plan), plan.lacking) == (["w2 w3"], {})


def test_a_full_member_stays_rather_than_a_joining_one() -> None:
    now = epoch(ONE, ((I0, "w2? w3 w4"),))
    assert members(plan_groups(now, 1, hosts(W1, W2, W3), NO_SIZES)) == ["w3"]
    assert members(plan_groups(now, 2, hosts(W1, W2, W3), NO_SIZES)) == ["w3 w2"]


def test_a_new_and_empty_worker_gets_nothing_that_has_a_place() -> None:
    now = epoch(ONE, ((I0, "w2"),) * 4)
    assert members(plan_groups(now, 1, hosts(W1, W2, W3), NO_SIZES)) == ["w2"] * 4


def test_what_a_worker_owns_fills_it() -> None:
    """w2 owns two vnodes: it has one slot left."""
    now = epoch({I0: W1, I1: W2}, ((I0, ""), (I0, ""), (I1, ""), (I1, "")))
    plan = plan_groups(now, 1, hosts(W1, W2, W3, slots=3), NO_SIZES)
    held = Counter(members(plan))
    assert (held["w1"], held["w2"]) <= (1, 1)
    assert plan.lacking == {}
    short = plan_groups(now, 1, hosts(W1, W2, slots=3), NO_SIZES)
    assert sum(short.lacking.values()) == 2
    assert short.reasons == (
        "worker w1 has no room for 1 vnode",
        "worker w2 has no room for 1 vnode",
    )


def test_large_vnodes_are_placed_first() -> None:
    """In the order of their names, the small ones would take half of each disk."""
    now = epoch(ONE, ((I0, ""),) * 5)
    sizes = {Vnode(v): size for v, size in enumerate((1, 1, 1, 1, 4))}
    plan = plan_groups(now, 1, hosts(W2, W3, disk_bytes=4), sizes)
    assert (members(plan), plan.lacking) == (["w3"] * 4 + ["w2"], {})


def test_no_vnode_gets_its_second_member_before_each_has_had_its_first() -> None:
    now = epoch(ONE, ((I0, ""), (I0, "")))
    plan = plan_groups(now, 2, hosts(W2, W3, slots=1), NO_SIZES)
    assert (members(plan), plan.lacking) == (["w2", "w3"], {V0: 1, V1: 1})


def test_a_swap_makes_room() -> None:
    """Only w2 may hold vnode 1's copy, and vnode 0's is in the only slot there."""
    now = epoch({I0: W1, I1: W3}, ((I0, "w2"), (I1, "")))
    room = {W2: Host(slots=1), W3: Host(slots=2)}
    plan = plan_groups(now, 1, room, NO_SIZES)
    assert (members(plan), plan.lacking) == (["w3", "w2"], {})


def test_what_is_over_capacity_goes_elsewhere_and_is_not_chosen_again() -> None:
    """Vnode 1 has been placed on w3 by an earlier plan: the others stay on w2."""
    full = {W2: Host(slots=2), W3: Host()}
    now = epoch(ONE, ((I0, "w2"), (I0, "w2 w3?"), (I0, "w2")))
    assert members(plan_groups(now, 1, full, {V1: 9})) == ["w2", "w3", "w2"]


def test_what_has_no_place_is_lacking_and_said() -> None:
    plan = plan_groups(epoch(ONE, ((I0, "w2"),)), 2, hosts(W1, W2), NO_SIZES)
    assert (members(plan), plan.lacking) == (["w2"], {V0: 1})
    assert plan.reasons == ("replication 2 needs 3 workers, there are 2",)
    none = plan_groups(epoch(ONE, ((I0, ""), (I0, ""))), 1, hosts(W1, W2, slots=0), NO_SIZES)
    assert (members(none), none.lacking) == (["", ""], {V0: 1, V1: 1})
    assert none.reasons == ("worker w2 has no room for 2 vnodes",)


@pytest.mark.parametrize("limits", [{"slots": -1}, {"disk_bytes": -1}, {"bandwidth": 0.0}])
def test_a_host_has_no_negative_room(limits: dict) -> None:
    with pytest.raises(ValueError, match="host"):
        Host(**limits)


def test_a_large_cluster_is_planned_with_every_copy_placed() -> None:
    """512 vnodes on 50 workers in 5 racks, with one slot in fifty to spare."""
    workers = {WorkerId(f"w{n}"): f"w{n}.sock" for n in range(50)}
    now = first_epoch(vnodes=512, instances=50, workers=workers)
    room = {worker: Host(slots=31, rack=f"r{n % 5}") for n, worker in enumerate(workers)}
    sizes = {Vnode(v): (v * 37) % 101 for v in now.vnodes()}
    plan = plan_groups(now, 2, room, sizes)
    assert plan.lacking == {}
    for vnode, group in plan.members.items():
        assert len({room[w].rack for w in (now.owner_worker(vnode), *group)}) == 3


# --- epochs --------------------------------------------------------------------------------------


def test_redundancy_is_raised_before_it_is_lowered() -> None:
    """Design, section 6: w3 joins, is waited for, becomes full; then w2 leaves."""
    plan = wanted("w3")
    now = epoch(ONE, ((I0, "w2"),))
    joined = following(now, plan)
    assert chain(joined) == "w2 w3?"
    assert joined is not None
    assert joined.workers[W3] == ADDRESSES[W3]
    assert following(joined, plan) is None, "its copy is not whole"
    raised = following(joined, plan, W3)
    assert chain(raised) == "w3 w2"
    assert raised is not None
    done = following(raised, plan)
    assert chain(done) == "w3"
    assert done is not None
    assert W2 not in done.workers
    assert following(done, plan) is None


def test_what_can_be_raised_is_raised_before_another_vnode_is_lowered() -> None:
    now = epoch(ONE, ((I0, "w2 w3"), (I0, ""), (I0, "w2?")))
    plan = GroupPlan(members={V0: (W2,), V1: (W2,), V2: (W2,)}, lacking={}, reasons=())
    seen = []
    while (after := following(now, plan, W2)) is not None:
        seen.append([chain(after, v) for v in (V0, V1, V2)])
        now = after
    assert seen == [
        ["w2 w3", "", "w2"],
        ["w2 w3", "w2?", "w2"],
        ["w2 w3", "w2", "w2"],
        ["w2", "w2", "w2"],
    ]


def test_all_whole_copies_become_full_in_one_epoch() -> None:
    now = epoch(ONE, ((I0, "w2? w3?"), (I0, "w3?")))
    plan = GroupPlan(members={V0: (W2, W3), V1: (W3,)}, lacking={}, reasons=())
    after = following(now, plan, W2, W3)
    assert (chain(after, V0), chain(after, V1)) == ("w2 w3", "w3")


def test_a_worker_is_not_flooded_and_the_barest_vnode_comes_first() -> None:
    now = epoch(ONE, ((I0, "w3"), (I0, ""), (I0, "w2?")))
    plan = GroupPlan(members={V0: (W3, W2), V1: (W2, W4), V2: (W2,)}, lacking={}, reasons=())
    after = following(now, plan, joining_at_once=2)
    assert [chain(after, v) for v in (V0, V1, V2)] == ["w3", "w2? w4?", "w2?"]
    assert after is not None
    assert following(after, plan, joining_at_once=2) is None


def test_a_joining_member_that_is_not_wanted_leaves_at_once() -> None:
    """And the full one that is not wanted stays until w4 is full."""
    assert chain(following(epoch(ONE, ((I0, "w2 w3? w4?"),)), wanted("w4"))) == "w2 w4?"


def test_what_is_lacking_is_made_up_for_by_who_is_there() -> None:
    """w2 drains, or is too full, and there is no place for its copy."""
    assert following(epoch(ONE, ((I0, "w2"),)), wanted("", lacking=1)) is None
    assert chain(following(epoch(ONE, ((I0, "w2 w3"),)), wanted("", lacking=1))) == "w2"
    assert chain(following(epoch(ONE, ((I0, "w2 w3"),)), wanted("w3"))) == "w3"


def test_no_epoch_is_made_for_the_order() -> None:
    """And no chain is put in order because of another one."""
    now = epoch(ONE, ((I0, "w3 w2"), (I0, "w3 w2")))
    plan = GroupPlan(members={V0: (W2, W3), V1: (W2, W3)}, lacking={}, reasons=())
    assert following(now, plan) is None
    more = following(
        now, GroupPlan(members={V0: (W2, W3, W4), V1: (W2, W3)}, lacking={}, reasons=())
    )
    assert (chain(more, V0), chain(more, V1)) == ("w2 w3 w4?", "w3 w2")


def test_a_plan_of_before_a_move_costs_no_copy() -> None:
    """w2 has taken over since; the plan wants it as a member, and w1 is the only one now."""
    moved = with_moves(epoch({I0: W1, I1: W2}, ((I0, "w2"),)), {V0: I1}, {I0: W1, I1: W2})
    assert chain(moved) == "w1"
    assert following(moved, wanted("w2")) is None


def test_a_worker_without_an_address_does_not_join() -> None:
    now, plan = epoch(ONE, ((I0, ""),)), wanted("w2")
    assert next_epoch(now, plan, {}, {}, joining_at_once=1) is None


def test_a_vnode_that_the_plan_does_not_name_is_left_alone() -> None:
    now = epoch(ONE, ((I0, "w2"), (I0, "w2 w3?")))
    assert following(now, wanted("w2"), W3) is None
