"""Who inherits: every orphan has an heir that is a full member, or nothing is proposed."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from rhinoctl.ids import BASE, InstanceId, JobUid, OpId, Vnode, WorkerId
from rhinoctl.protocol.duties import Duty, duties_after
from rhinoctl.protocol.epochs import Epoch, Member, Role, Route, successor_fault
from rhinoctl.protocol.failover import Choice, GivenUp, orphans, plan_cut
from rhinoctl.protocol.handover import Facts, Phase
from rhinoctl.protocol.recovery import Failover, step, with_more
from tests.fakes.cluster.oracle import duties
from tests.fakes.cluster.scenarios import I0, I1, I2, THREE, V0, V1, V2, W1, W2, W3, epoch

WORKERS = tuple(WorkerId(f"w{n}") for n in range(1, 6))


@st.composite
def layouts(draw: st.DrawFn) -> Epoch:
    """Any instances on any of five workers, with any chains."""
    instances = {
        InstanceId(f"i{n}"): draw(st.sampled_from(WORKERS)) for n in range(draw(st.integers(1, 5)))
    }
    routes = []
    for _ in range(draw(st.integers(1, 8))):
        owner = draw(st.sampled_from(sorted(instances)))
        others = [w for w in WORKERS if w != instances[owner]]
        members = draw(st.lists(st.sampled_from(others), unique=True, max_size=3))
        roles = st.sampled_from((Role.FULL, Role.FULL, Role.JOINING))
        routes.append(
            Route(
                owner=owner,
                members=tuple(Member(worker=w, role=draw(roles)) for w in members),
            )
        )
    return Epoch(
        number=4,
        workers={w: f"{w}.sock" for w in WORKERS},
        instances=instances,
        routes=tuple(routes),
    )


workers = st.frozensets(st.sampled_from(WORKERS), max_size=3)


@given(layouts(), workers, st.frozensets(st.sampled_from([I0, I1, I2]), max_size=2))
def test_a_cut_is_a_legal_successor_without_what_is_given_up(
    before: Epoch, lost: frozenset[WorkerId], failed: frozenset[InstanceId]
) -> None:
    gone = GivenUp(workers=lost, instances=failed).within(before)
    plan = plan_cut(before, gone)
    without = [v for v in orphans(before, gone) if not set(before.full_holders(v)) - gone.workers]
    assert list(plan.stranded) == without
    if without or not gone:
        assert plan.epoch is None
        return
    after = plan.epoch
    assert after is not None
    assert successor_fault(before, after) is None
    assert after.is_cut
    assert not after.workers.keys() & lost
    assert not after.instances.keys() & gone.instances
    assert plan.heirs.keys() == set(orphans(before, gone))
    for v in before.vnodes():
        vnode = Vnode(v)
        assert set(after.full_holders(vnode)) == set(before.full_holders(vnode)) - lost
        if vnode not in plan.heirs:
            assert after.routes[v].owner == before.routes[v].owner
    owed = duties(before, [after])
    assert sorted(v for duty in owed for v in duty.vnodes) == list(before.vnodes())
    assert not {duty.worker for duty in owed} & lost
    assert not {duty.instance for duty in owed} & gone.instances


def test_many_recover_at_once() -> None:
    """SEEP, section 4.2: parallel recovery. The two vnodes of w1 go to two workers."""
    before = epoch(THREE, ((I0, "w2 w3"), (I0, "w2 w3"), (I1, ""), (I2, "")))
    plan = plan_cut(before, GivenUp(workers=frozenset({W1})))
    assert set(plan.heirs.values()) == {I1, I2}
    one = plan_cut(before, GivenUp(workers=frozenset({W1})), choice=Choice(parallel=1))
    assert len(set(one.heirs.values())) == 1
    named = plan_cut(before, GivenUp(workers=frozenset({W1})), choice=Choice(to=frozenset({W3})))
    assert set(named.heirs.values()) == {I2}


def test_the_copy_that_is_the_least_behind_inherits() -> None:
    before = epoch(THREE, ((I0, "w2 w3"), (I1, ""), (I2, "")))
    plan = plan_cut(before, GivenUp(workers=frozenset({W1})), behind={(W2, V0): 12, (W3, V0): 1})
    assert plan.heirs == {V0: I2}


def test_a_copy_of_which_nothing_is_known_is_not_the_least_behind() -> None:
    """Design, section 14: missing metrics read as zero."""
    before = epoch(THREE, ((I0, "w2 w3"), (I1, ""), (I2, "")))
    for told, other in ((W2, W3), (W3, W2)):
        plan = plan_cut(before, GivenUp(workers=frozenset({W1})), behind={(told, V0): 500})
        assert plan.epoch is not None
        assert plan.epoch.owner_worker(V0) == told
        assert other in plan.epoch.full_holders(V0)


def test_a_worker_without_an_instance_gets_one() -> None:
    before = epoch({I0: W1}, ((I0, "w2"),))
    plan = plan_cut(before, GivenUp(workers=frozenset({W1})))
    assert plan.heirs == {V0: I1}
    assert plan.epoch is not None
    assert plan.epoch.instances == {I1: W2}


def test_a_failed_instance_leaves_its_worker_in_the_chain() -> None:
    before = epoch(THREE, ((I0, "w2"), (I1, ""), (I2, "")))
    plan = plan_cut(before, GivenUp(instances=frozenset({I0})))
    assert plan.epoch is not None
    assert plan.epoch.full_holders(V0) in ((W1,), (W2, W1), (W1, W2))
    assert W1 in plan.epoch.voters()


def test_no_instance_has_the_name_of_one_that_was_given_up_by_an_earlier_cut() -> None:
    """It would be given up again at once, and so would its heir, without end."""
    before = epoch({I1: W1}, ((I1, "w2"),))
    plan = plan_cut(before, GivenUp(instances=frozenset({I0, I1})))
    assert plan.heirs == {V0: I2}


def test_an_heir_that_is_lost_too_hands_its_duty_on() -> None:
    """The part of the batch's output goes with the vnode, from heir to heir."""
    before = epoch(THREE, ((I0, "w2 w3"), (I1, "w3"), (I2, "")))
    first = plan_cut(before, GivenUp(workers=frozenset({W1})), choice=Choice(to=frozenset({W2})))
    assert first.epoch is not None
    second = plan_cut(first.epoch, GivenUp(workers=frozenset({W2})))
    assert second.epoch is not None
    owed = {(d.instance, d.part): d.vnodes for d in duties(before, [first.epoch, second.epoch])}
    assert owed == {
        (I2, 0): frozenset({V2}),
        (I2, second.epoch.number): frozenset({V0, V1}),
    }


def test_who_was_given_up_and_is_back_owes_what_it_inherits_and_nothing_else() -> None:
    """Not what it owed before, though its log lacks the record that gave it up; and of an heir that
    is given up as well, what that inherited from it."""
    before = epoch(THREE, ((I0, "w2"), (I1, "w1"), (I2, "w1")))
    cut = plan_cut(before, GivenUp(workers=frozenset({W1}))).epoch
    assert cut is not None
    back = replace(before, number=cut.number + 1)
    owed = duties(before, [cut, back])
    assert W1 not in {duty.worker for duty in owed}
    later = plan_cut(back, GivenUp(workers=frozenset({W2})), choice=Choice(to=frozenset({W1})))
    assert later.epoch is not None
    mine = [duty for duty in duties_after(owed, later.epoch) if duty.worker == W1]
    part = later.epoch.number
    assert mine == [Duty(instance=I0, worker=W1, part=part, vnodes=frozenset({V0, V1}))]


def seen(now: Epoch) -> Facts:
    return Facts(
        epoch=now, epoch_from=BASE, reached={}, driver_epoch=None, copies={}, ready=frozenset()
    )


def forced(now: Epoch, lost: WorkerId) -> Failover:
    """A failover that may lose state, as it is offered."""
    begun = Failover(
        op=OpId("op-1"),
        job=JobUid("j-1"),
        gone=GivenUp(workers=frozenset({lost})),
        why="",
        decided=None,
        force=True,
    )
    return step(begun, seen(now), {}, 0.0)


def test_a_cut_that_is_offered_is_offered_anew_once_it_may_lose_state() -> None:
    before = epoch(THREE, ((I0, "w2"), (I1, "w3"), (I2, "w1")))
    offered = step(replace(forced(before, W1), force=False, proposal=None), seen(before), {}, 0.0)
    assert offered.proposal is not None
    assert not offered.proposal.forced
    again = step(replace(offered, force=True), seen(before), {}, 1.0)
    assert again.proposal == replace(offered.proposal, forced=True)


def test_a_failover_knows_what_began_empty_by_all_of_its_cuts() -> None:
    before = epoch(THREE, ((I0, ""), (I1, ""), (I2, "")))
    first = forced(before, W1)
    assert first.begin_empty == {V0}
    assert first.proposal is not None
    more = with_more(first, GivenUp(workers=frozenset({W2})), "")
    second = step(more, seen(first.proposal), {}, 1.0)
    assert second.proposal is not None
    assert V1 in second.proposal.forfeited
    done = step(second, seen(second.proposal), {}, 2.0)
    assert done.phase is Phase.MARKED
    assert done.begin_empty == {V0, *second.proposal.forfeited}


def test_what_an_earlier_failover_has_lost_is_not_lost_again() -> None:
    before = epoch(THREE, ((I0, ""), (I1, "w3"), (I2, "")))
    first = forced(before, W1).proposal
    assert first is not None
    later = forced(first, W2)
    assert later.proposal is not None
    assert later.begin_empty == later.proposal.forfeited
    assert V1 not in later.begin_empty
    assert step(later, seen(first), {}, 1.0).begin_empty == later.begin_empty


def test_a_new_heir_has_a_name_that_no_handover_has_planned() -> None:
    """Found by seed 710001856."""
    before = epoch({I0: W1}, ((I0, "w2"), (I0, "w2")), idle=(W2,))
    gone = GivenUp(workers=frozenset({W1}))
    assert set(plan_cut(before, gone).heirs.values()) == {I1}
    assert set(plan_cut(before, gone, taken=frozenset({I1})).heirs.values()) == {I2}
    state = Failover(op=OpId("op-1"), job=JobUid("j"), gone=gone, why="", decided=None)
    seen = Facts(
        epoch=before,
        epoch_from=BASE,
        reached={},
        driver_epoch=None,
        copies={},
        ready=frozenset(),
        planned=frozenset({I1}),
    )
    assert set(step(state, seen, {}, 1.0).heirs.values()) == {I2}
