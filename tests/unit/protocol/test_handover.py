"""The handover machine: its table, every way through it, and its phases by example."""

from dataclasses import replace

import pytest

from rhinoctl import limits
from rhinoctl.ids import BatchTime, InstanceId, Vnode, WorkerId
from rhinoctl.protocol import codec
from rhinoctl.protocol import handover as hm
from rhinoctl.protocol.epochs import Epoch, Role, with_chains_cut
from rhinoctl.protocol.handover import (
    AbortAsked,
    Handover,
    Observed,
    PauseAsked,
    Phase,
    ResumeAsked,
)
from rhinoctl.protocol.jobs import VnodeUse
from rhinoctl.protocol.messages import VnodeReport
from tests.unit.protocol.handover_walk import LATE, SOON, Broken, Scenario, Step, Walk, epoch

W1, W2 = WorkerId("w1"), WorkerId("w2")
I0, I1, I2 = InstanceId("i0"), InstanceId("i1"), InstanceId("i2")
V0, V1, V2 = Vnode(0), Vnode(1), Vnode(2)

# --- the walks -----------------------------------------------------------------------------------

SPARE = epoch(1, {I0: W1, I1: W1}, (I0, "w2"), (I0, ""), (I1, ""))

SCENARIOS = (
    Scenario(
        name="a new instance on a new worker",
        pauses=True,
        start=epoch(1, {I0: W1}, (I0, ""), (I0, ""), (I0, "")),
        moves={V1: I1, V2: I1},
        instances={I0: W1, I1: W2},
    ),
    Scenario(
        name="a new instance on the same worker",
        pauses=True,
        start=epoch(1, {I0: W1}, (I0, ""), (I0, "")),
        moves={V1: I1},
        instances={I0: W1, I1: W1},
    ),
    Scenario(
        name="an instance retires to a worker that has one of its vnodes already",
        start=epoch(1, {I0: W1, I1: W2}, (I0, ""), (I1, "w1"), (I1, "")),
        moves={V1: I0, V2: I0},
        instances={I0: W1},
    ),
    Scenario(
        name="an instance without vnodes retires",
        start=epoch(1, {I0: W1, I1: W2}, (I0, ""), (I0, "")),
        moves={},
        instances={I0: W1},
    ),
    Scenario(
        name="within a worker, while the driver still holds a cut of the chain",
        start=SPARE,
        moves={V0: I1, V1: I1},
        instances={I0: W1, I1: W1},
        stray=with_chains_cut(SPARE, {V0: frozenset({W2})}),
    ),
)
NEW_WORKER, NEW_INSTANCE = SCENARIOS[:2]


def test_nothing_breaks_an_invariant_and_every_row_of_the_table_is_taken() -> None:
    """Invariants 1, 6 and 7, and that vnodes have moved all or none, in every world. One test, so
    that the worlds are walked once, however many processes run the tests."""
    walks = tuple(Walk(scenario) for scenario in SCENARIOS)
    for walk in walks:
        walk.run()
    assert sum(walk.states for walk in walks) > 20_000
    taken = {way for walk in walks for way in walk.taken}
    table = {
        (before, event, after)
        for (before, event), afters in hm.TRANSITIONS.items()
        for after in afters
    }
    assert taken == table


# Seeded bugs: each is a step that does what a wrong machine would do.


def arms_early(state: Handover, event: hm.Event, now: float) -> Handover:
    """Takes a whole copy for a target that follows."""
    if isinstance(event, Observed):
        copies = {
            worker: {
                vnode: replace(report, use=VnodeUse.FOLLOWING, instance=state.moves[vnode])
                for vnode, report in reports.items()
                if report.use is not VnodeUse.COPYING
            }
            for worker, reports in event.facts.copies.items()
        }
        event = Observed(
            facts=replace(event.facts, copies=copies, ready=frozenset(state.moves.values()))
        )
    return hm.step(state, event, now)


def completes_at_the_first_report(state: Handover, event: hm.Event, now: float) -> Handover:
    """Says COMPLETE as soon as one worker reports the epoch."""
    if isinstance(event, Observed):
        reached = dict.fromkeys(state.workers, event.facts.epoch.number)
        reached |= dict.fromkeys(event.facts.epoch.listeners(), event.facts.epoch.number)
        event = Observed(facts=replace(event.facts, reached=reached))
    return hm.step(state, event, now)


def forgets_the_driver(state: Handover, event: hm.Event, now: float) -> Handover:
    """Says COMPLETE though the live session has not reported."""
    if isinstance(event, Observed):
        event = Observed(facts=replace(event.facts, driver_epoch=None))
    return hm.step(state, event, now)


def aborts_at_once(state: Handover, event: hm.Event, now: float) -> Handover:
    """Believes that a proposal which it withdraws cannot be taken any more."""
    after = hm.step(state, event, now)
    return replace(after, phase=Phase.ABORTED) if after.phase is Phase.ABORTING else after


def never_gives_up(state: Handover, event: hm.Event, now: float) -> Handover:
    """Has no deadline."""
    return hm.step(state, event, min(now, SOON))


def moves_one_by_one(state: Handover, event: hm.Event, now: float) -> Handover:
    """Proposes a part of the moves first."""
    after = hm.step(state, event, now)
    if after.phase is not Phase.ARMED or after.proposal is None:
        return after
    first = min(after.moves)
    routes = list(after.proposal.routes)
    for vnode in after.moves.keys() - {first}:
        routes[vnode] = replace(routes[vnode], owner=I0, members=())
    return replace(after, proposal=replace(after.proposal, routes=tuple(routes)))


@pytest.mark.parametrize(
    ("bug", "scenario", "invariant"),
    [
        (arms_early, NEW_WORKER, "invariant 1"),
        (completes_at_the_first_report, NEW_WORKER, "invariant 7"),
        (forgets_the_driver, NEW_INSTANCE, "invariant 7"),
        (aborts_at_once, NEW_INSTANCE, "(?i)aborted"),
        (never_gives_up, NEW_WORKER, "invariant 6"),
        (moves_one_by_one, NEW_WORKER, "some has moved, some has not"),
    ],
)
def test_a_seeded_bug_is_caught(bug: Step, scenario: Scenario, invariant: str) -> None:
    with pytest.raises(Broken, match=invariant):
        Walk(scenario, bug).run()


# --- the table -----------------------------------------------------------------------------------

START = NEW_WORKER.start
JOINING = epoch(2, {I0: W1}, (I0, ""), (I0, "w2?"), (I0, "w2?"))
FULL = epoch(3, {I0: W1}, (I0, ""), (I0, "w2"), (I0, "w2"))
MOVED = epoch(4, {I0: W1, I1: W2}, (I0, ""), (I1, "w1"), (I1, "w1"))
FOLLOWING = VnodeReport(use=VnodeUse.FOLLOWING, instance=I1)


def facts(now: Epoch, at_w2: VnodeReport = FOLLOWING, **changes: object) -> Observed:
    """What the controller sees when all have reached an epoch and all copies are alike."""
    found = hm.Facts(
        epoch=now,
        epoch_from=BatchTime(0, 7),
        reached=dict.fromkeys(now.workers, now.number),
        driver_epoch=now.number,
        copies={W2: {V1: at_w2, V2: at_w2}},
        ready=frozenset({I1}),
    )
    return Observed(facts=replace(found, **changes))  # type: ignore[arg-type]


def after(*events: hm.Event, now: float = SOON) -> Handover:
    """The state after events, each of them at `now`."""
    state = NEW_WORKER.planned()
    for event in events:
        state = hm.step(state, event, now)
    return state


def test_a_move_between_workers_takes_the_epochs_join_full_and_move() -> None:
    """Rhino, section 3.5.2: a new worker needs a bulk copy before the handover."""
    copying = VnodeReport(use=VnodeUse.COPYING)
    join = after(facts(START), facts(START, copying))
    assert join.phase is Phase.WARMING
    assert join.proposal is not None
    assert join.proposal.role_of(W2, V0) is None
    assert [join.proposal.role_of(W2, v) for v in (V1, V2)] == [Role.JOINING, Role.JOINING]
    assert join.proposal.workers[W2] == "w2.sock"
    assert hm.step(join, facts(JOINING, copying), SOON).proposal is None
    full = hm.step(join, facts(JOINING, VnodeReport(use=VnodeUse.READY)), SOON)
    assert full.proposal is not None
    assert [full.proposal.role_of(W2, v) for v in (V1, V2)] == [Role.FULL, Role.FULL]
    armed = hm.step(full, facts(FULL), SOON)
    assert (armed.phase, armed.armed, armed.proposal) == (Phase.ARMED, 4, MOVED)


def test_one_copy_that_is_not_whole_keeps_all_from_becoming_full() -> None:
    lacking = {W2: {V1: FOLLOWING, V2: VnodeReport(use=VnodeUse.COPYING)}}
    state = after(facts(START), facts(JOINING, copies=lacking))
    assert (state.phase, state.proposal) == (Phase.WARMING, None)


@pytest.mark.parametrize(
    "changes",
    [
        {"copies": {W2: {V1: FOLLOWING, V2: VnodeReport(use=VnodeUse.READY)}}},
        {"copies": {W2: {V1: FOLLOWING}}},
        {"copies": {}},
        {"copies": {W2: {V1: FOLLOWING, V2: replace(FOLLOWING, instance=I2)}}},
        {
            "copies": {
                W2: {
                    V1: FOLLOWING,
                    V2: replace(FOLLOWING, lag_batches=limits.LAG_BATCHES_MAX + 1),
                }
            }
        },
        {"ready": frozenset({I0})},
    ],
    ids=["closed", "no report", "worker silent", "another follows", "lag", "instance not ready"],
)
def test_state_leaves_only_when_every_target_follows(changes: dict[str, object]) -> None:
    """The condition in the module's docstring, one clause after the other."""
    state = after(facts(START), facts(FULL, **changes))
    assert (state.phase, state.proposal) == (Phase.WARMING, None)
    late = hm.step(state, facts(FULL, **changes), LATE)
    assert late.phase is Phase.ABORTED
    assert hm.step(state, facts(FULL), SOON).phase is Phase.ARMED


def test_a_target_whose_name_went_to_an_heir_elsewhere_ends_it() -> None:
    """Found by seed 710001856: the vnode would have had one worker twice in its chain."""
    taken = replace(START, instances={**START.instances, I1: W1})
    for state in (after(facts(START)), after(facts(START), PauseAsked())):
        ended = hm.step(state, facts(taken), SOON)
        assert (ended.phase, ended.proposal) == (Phase.ABORTED, None)
        assert ended.reason == "instance i1 is on w1 since a failover, not on w2"


def test_a_lag_within_the_bound_is_caught_up_by_the_marker() -> None:
    lag = replace(FOLLOWING, lag_batches=limits.LAG_BATCHES_MAX)
    assert after(facts(START), facts(FULL, lag)).phase is Phase.ARMED


def test_the_marker_is_the_record_that_began_the_epoch() -> None:
    state = after(facts(START), facts(FULL), facts(MOVED, epoch_from=BatchTime(1, 40)))
    assert (state.phase, state.marker, state.proposal) == (Phase.MARKED, BatchTime(1, 40), None)


@pytest.mark.parametrize(
    "changes",
    [
        {"reached": {W1: 4, W2: 3}},
        {"reached": {W1: 4}},
        {"driver_epoch": 3},
        {"driver_epoch": 0},
    ],
    ids=["one worker behind", "one silent", "driver behind", "driver not heard of"],
)
def test_complete_waits_for_all(changes: dict[str, object]) -> None:
    """Invariant 7; the origin's worker, still a member, and the live driver are among them."""
    marked = after(facts(START), facts(FULL), facts(MOVED, **changes))
    assert hm.step(marked, facts(MOVED, **changes), LATE).phase is Phase.MARKED
    assert hm.step(marked, facts(MOVED), SOON).phase is Phase.COMPLETE
    assert hm.step(marked, facts(MOVED, driver_epoch=None), SOON).phase is Phase.COMPLETE


def test_an_armed_proposal_stays_as_it_was_persisted() -> None:
    """Nothing is made anew for an epoch number that may be on its way already."""
    armed = after(facts(START), facts(FULL))
    assert hm.step(armed, facts(FULL, VnodeReport(use=VnodeUse.READY)), SOON) == armed


def test_an_abort_of_an_armed_handover_offers_an_epoch_that_moves_nothing() -> None:
    asked = after(facts(START), facts(FULL), AbortAsked(reason="enough"))
    assert (asked.phase, asked.proposal) == (Phase.ABORTING, None)
    offered = hm.step(asked, facts(FULL), SOON)
    assert offered.proposal == replace(FULL, number=4)
    assert hm.step(offered, facts(replace(FULL, number=4)), SOON).phase is Phase.ABORTED
    assert hm.step(offered, facts(MOVED), SOON).phase is Phase.MARKED


def test_the_first_reason_of_an_abort_is_kept() -> None:
    asked = after(facts(START), facts(FULL), AbortAsked(reason="one"), AbortAsked(reason="two"))
    assert asked.reason == "one"
    late = after(facts(START), facts(START), facts(START, VnodeReport(use=VnodeUse.COPYING)))
    assert hm.step(late, facts(START), LATE).reason != ""


def test_targets_follow_until_the_marker_is_decided_or_cannot_be() -> None:
    wished = {
        phase: bool(hm.warm_wishes(replace(NEW_WORKER.planned(), phase=phase))) for phase in Phase
    }
    assert {phase for phase, is_wished in wished.items() if is_wished} == {
        *(Phase.WARMING, Phase.PAUSED, Phase.ARMED, Phase.ABORTING, Phase.MARKED)
    }


def test_a_paused_one_gathers_copies_and_follows_but_is_not_armed() -> None:
    ready = VnodeReport(use=VnodeUse.READY)
    joining = after(PauseAsked(), facts(START))
    assert joining.phase is Phase.PAUSED
    assert joining.proposal is not None
    assert joining.proposal.role_of(W2, V1) is Role.JOINING
    full = hm.step(joining, facts(JOINING, ready), SOON)
    assert full.proposal is not None
    assert full.proposal.role_of(W2, V1) is Role.FULL
    waiting = hm.step(full, facts(FULL), SOON)
    assert (waiting.phase, waiting.proposal) == (Phase.PAUSED, None)
    assert hm.warm_wishes(waiting) == waiting.moves
    going = hm.step(hm.step(waiting, ResumeAsked(), SOON), facts(FULL), SOON)
    assert (going.phase, going.proposal) == (Phase.ARMED, MOVED)


def test_the_deadline_does_not_run_out_in_a_pause() -> None:
    """It is as far away after it as before, though no farther than a pause may be long."""
    warming = after(facts(START))
    paused = hm.step(warming, PauseAsked(), 100.0)
    held = hm.step(paused, facts(START, copies={}), 1_000.0)
    assert held.phase is Phase.PAUSED, "600 s have passed"
    going = hm.step(held, ResumeAsked(), 1_100.0)
    assert (going.phase, going.deadline, going.paused_s) == (Phase.WARMING, 1_600.0, 1_000.0)
    again = hm.step(hm.step(going, PauseAsked(), 1_200.0), ResumeAsked(), 9_000.0)
    assert again.deadline == 600.0 + limits.PAUSE_MAX_S
    assert hm.step(going, facts(START, copies={}), 1_599.0).phase is Phase.WARMING
    assert hm.step(going, facts(START, copies={}), 1_600.0).phase is Phase.ABORTED


def test_pauses_are_bounded_all_together() -> None:
    paused = after(PauseAsked(), now=0.0)
    assert hm.step(paused, facts(START), limits.PAUSE_MAX_S - 1).phase is Phase.PAUSED
    late = hm.step(paused, facts(START), limits.PAUSE_MAX_S)
    assert (late.phase, "paused" in late.reason) == (Phase.ABORTED, True)
    going = hm.step(paused, ResumeAsked(), 3_000.0)
    twice = hm.step(going, PauseAsked(), 3_001.0)
    assert hm.step(twice, facts(START), 3_600.0).phase is Phase.PAUSED
    assert hm.step(twice, facts(START), 3_001.0 + limits.PAUSE_MAX_S - 3_000.0).ended


@pytest.mark.parametrize(
    "phase",
    [Phase.ARMED, Phase.ABORTING, Phase.MARKED, Phase.COMPLETE, Phase.ABORTED],
)
def test_what_may_have_its_marker_cannot_be_paused(phase: Phase) -> None:
    state = replace(NEW_WORKER.planned(), phase=phase)
    assert not hm.may_pause(state)
    with pytest.raises(LookupError):
        hm.step(state, PauseAsked(), SOON)


@pytest.mark.parametrize("phase", sorted(hm.ENDED, key=lambda phase: phase.value))
def test_an_ended_handover_observes_nothing(phase: Phase) -> None:
    with pytest.raises(LookupError):
        hm.step(replace(NEW_WORKER.planned(), phase=phase), facts(START), SOON)


def test_every_phase_that_is_entered_has_its_time() -> None:
    state = NEW_WORKER.planned()
    events = (facts(START), facts(FULL), facts(MOVED), facts(MOVED))
    for now, event in enumerate(events):
        state = hm.step(state, event, float(now))
    assert state.times == {"warming": 0.0, "armed": 1.0, "marked": 2.0, "complete": 3.0}


def test_a_state_is_read_back_as_it_was_written() -> None:
    """A controller that crashes anywhere goes on from the same state."""
    state = NEW_WORKER.planned()
    for event in (facts(START), facts(JOINING), facts(FULL), facts(MOVED), facts(MOVED)):
        state = hm.step(state, event, SOON)
        assert codec.loads(Handover, codec.dumps(state)) == state
