"""Bugs put in on purpose (design, section 10): the exhaustive test finds each of them.

A bug replaces one of the machines in the model by a version that differs in a line or two. Each is
found twice: by watching promises as they are made, and by what comes of it alone, which shows that
the test need not know where to look.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from rhinoctl.ids import WorkerId
from rhinoctl.protocol import batches, worker
from rhinoctl.protocol import messages as m
from rhinoctl.protocol.epochs import Epoch, Member, Role, Route
from rhinoctl.protocol.failover import Choice, CutPlan, GivenUp, plan_cut
from rhinoctl.protocol.worker import OpenAttempt, WorkerState
from tests.fakes.cluster import scenarios
from tests.fakes.cluster.bugs import (
    acknowledge_before_persist,
    apply_before_unanimous_seal,
    cut_the_chain_without_an_epoch,
    dedupe_without_our_attempt,
)
from tests.fakes.cluster.exploring import Fault, explore, losses, repeat_everything
from tests.fakes.cluster.inputs import Workload
from tests.fakes.cluster.invariants import Broken
from tests.fakes.cluster.workers import ModelWorker, Segment
from tests.fakes.cluster.world import Rules, Scenario, World


def forget_the_session(state: WorkerState, request: Any) -> worker.Step:
    """The session is kept in memory only."""
    state, effects = worker.step(state, request)
    return state, tuple(e for e in effects if not isinstance(e, worker.PersistSession))


def apply_on_seal(here: ModelWorker, segment: Segment) -> None:
    """A follower applies what it has sealed, without waiting for the decision."""
    if segment.record.is_batch and here.name not in segment.record.owing:
        here.apply(segment)
        here.applied = segment.record.time


def open_displaces_a_seal(state: WorkerState, request: Any) -> worker.Step:
    """What the first version of the machine did: an `Open` that comes late starts its attempt anew,
    and drops what the same attempt has sealed."""
    sealed = state.sealed
    ours = isinstance(request, m.Open) and request.header.session == state.session
    if ours and sealed is not None and sealed.attempt == request.attempt:
        opened = OpenAttempt(
            time=request.time, attempt=request.attempt, epoch=request.epoch, after=request.after
        )
        drop = worker.DropAttempt(time=sealed.time, attempt=sealed.attempt)
        done = worker.Reply(message=m.Done(header=request.header))
        return replace(state, sealed=None, opened=opened), (drop, done)
    return worker.step(state, request)


BUGS: dict[str, tuple[Rules, Scenario]] = {
    "acknowledge before persist": (
        Rules(worker_step=acknowledge_before_persist),
        scenarios.PLAIN,
    ),
    "apply before unanimous seal": (
        Rules(batch_step=apply_before_unanimous_seal),
        scenarios.PLAIN,
    ),
    "a follower applies on seal": (Rules(on_sealed=apply_on_seal), scenarios.PROMOTED),
    "dedupe by channel and task attempt without our attempt": (
        Rules(worker_step=dedupe_without_our_attempt),
        scenarios.PLAIN,
    ),
    "a chain cut without an epoch": (
        Rules(batch_step=cut_the_chain_without_an_epoch),
        scenarios.CHAIN,
    ),
}

every_bug = pytest.mark.parametrize(("rules", "scenario"), BUGS.values(), ids=BUGS.keys())


@every_bug
@pytest.mark.parametrize("watchful", [True, False], ids=["by-promise", "by-outcome"])
def test_a_seeded_bug_is_found(rules: Rules, scenario: Scenario, watchful: bool) -> None:
    with pytest.raises((Broken, LookupError)):
        explore(World(scenario, replace(rules, watchful=watchful)))


def test_a_session_that_is_not_durable_is_found() -> None:
    """By promise only: the order of attempts is a second line of defence behind it."""
    with pytest.raises(Broken):
        explore(World(scenarios.PLAIN, Rules(worker_step=forget_the_session)))


def test_a_late_message_that_displaces_a_seal_is_found() -> None:
    with pytest.raises(Broken):
        repeat_everything(World(scenarios.PLAIN, Rules(worker_step=open_displaces_a_seal)))


@every_bug
def test_most_bugs_do_not_show_without_a_fault(rules: Rules, scenario: Scenario) -> None:
    """So it is the faults that find them: what comes of a run without one is right."""
    World(scenario, replace(rules, watchful=False)).run()


# --- bugs of failover ----------------------------------------------------------------------------


def leave_the_lost_out(state: batches.BatchState, event: batches.Event) -> batches.Step:
    """A chain cut without an epoch: who is offered as lost is not waited for any more, and the
    batch goes on as if it had agreed. No record says so."""
    if not isinstance(event, batches.Proposed) or event.epoch is None or not event.epoch.is_cut:
        return batches.step(state, event)
    agreement, effects = _agreement(state), ()
    for name in sorted(event.epoch.lost) if agreement is not None else ():
        answered = batches.Answered(worker=name, message=agreement)
        state, effects = batches.step(state, answered)
    return state, effects


def _agreement(state: batches.BatchState) -> m.Message | None:
    """What the phase waits to hear."""
    header, record = state.lineage.header(), state.record
    if state.phase is batches.Phase.OPENING:
        return m.Done(header=header)
    if state.phase is batches.Phase.SEALING and record is not None:
        return m.SealAnswer(header=header, record=record.id)
    if state.phase is batches.Phase.APPLYING and record is not None:
        return m.ApplyAnswer(header=header, record=record.id, outputs=(), applied_at=0.0)
    return None


def one_seal_decides_after_a_loss(state: batches.BatchState, event: batches.Event) -> batches.Step:
    """The fence without the lost worker takes a record as decided that some survivor has sealed,
    although another one lacks it."""
    offered = isinstance(event, batches.Proposed) and event.epoch is not None
    if state.phase is batches.Phase.FENCING and (state.lost or offered):
        fences = {name: _taken_as_decided(answer) for name, answer in state.fences.items()}
        state = replace(state, fences=fences)
        if isinstance(event, batches.Answered) and isinstance(event.message, m.FenceAnswer):
            event = replace(event, message=_taken_as_decided(event.message))
    return batches.step(state, event)


def _taken_as_decided(answer: m.FenceAnswer) -> m.FenceAnswer:
    return answer if answer.sealed is None else replace(answer, decided=answer.sealed, sealed=None)


def a_joining_member_inherits(epoch: Epoch, gone: GivenUp) -> CutPlan:
    """Whoever is in the chain may be an heir, and who has just joined has the least to do."""
    joining = {m.worker for r in epoch.routes for m in r.members if m.role is Role.JOINING}
    routes = tuple(replace(route, members=_all_full(route)) for route in epoch.routes)
    choice = Choice(to=frozenset(joining - gone.workers))
    return plan_cut(replace(epoch, routes=routes), gone, choice=choice)


def _all_full(route: Route) -> tuple[Member, ...]:
    return tuple(replace(member, role=Role.FULL) for member in route.members)


def driver_and_worker_lost(world: World) -> Iterator[Fault]:
    """The driver dies at this place, what it has sent is lost, and so is a worker for good."""
    if not world.initialised or not world.driver.alive or world.given_up:
        return
    for name in sorted(world.observed().workers):
        yield Fault(f"the driver and {name} are lost", _driver_and(name))


def _driver_and(name: WorkerId) -> Callable[[World], None]:
    def strike(world: World) -> None:
        world.kill_driver(in_flight_lost=True)
        world.lose_worker(name, crashed=True, back_s=math.inf)

    return strike


JOINING_BEHIND = Scenario(
    name="a member has joined, and the owner is lost",
    first=scenarios.epoch(scenarios.TWO, ((scenarios.I0, "w2 w3?"), (scenarios.I1, "w1 w3"))),
    workload=Workload(vnodes=2, sizes=(3,)),
    batches=1,
)

Faults = Callable[[World], Iterable[Fault]]

FAILOVER_BUGS: dict[str, tuple[Rules, Scenario, Faults]] = {
    **{
        f"a chain cut without an epoch: {scenario.name}": (
            Rules(batch_step=leave_the_lost_out),
            scenario,
            losses,
        )
        for scenario in scenarios.LOSABLE
    },
    "a fence that takes one seal for a decision": (
        Rules(batch_step=one_seal_decides_after_a_loss),
        scenarios.RING,
        driver_and_worker_lost,
    ),
    "a cut whose heir is a joining member": (
        Rules(plan_cut=a_joining_member_inherits),
        JOINING_BEHIND,
        losses,
    ),
}

SLOW = tuple(s.name for s in (scenarios.RING, scenarios.TWO_COPIES, scenarios.LOST_BETWEEN))
"""The larger places where the same bug hides."""

every_failover_bug = pytest.mark.parametrize(
    ("rules", "scenario", "faults"),
    [
        pytest.param(
            *bug,
            id=name.replace(" ", "-").replace(",", "").replace(":", ""),
            marks=pytest.mark.slow if name.endswith(SLOW) else (),
        )
        for name, bug in FAILOVER_BUGS.items()
    ],
)


@every_failover_bug
@pytest.mark.parametrize("watchful", [True, False], ids=["by-promise", "by-outcome"])
def test_a_seeded_bug_of_failover_is_found(
    rules: Rules, scenario: Scenario, faults: Faults, watchful: bool
) -> None:
    with pytest.raises((Broken, LookupError)):
        explore(World(scenario, replace(rules, watchful=watchful)), faults)


def test_a_joining_heir_is_found_where_the_driver_does_not_refuse_the_cut(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The driver's check of the next epoch is the first line of defence against that bug, the
    worker's of its own copy the second: it does not seal the cut, and the query ends."""
    monkeypatch.setattr(batches, "successor_fault", lambda old, new: None)
    rules = Rules(plan_cut=a_joining_member_inherits, watchful=False)
    with pytest.raises(Broken, match="no whole copy"):
        explore(World(JOINING_BEHIND, rules), losses)


@pytest.mark.parametrize(
    ("scenario", "faults"),
    [(scenarios.RING, driver_and_worker_lost), (JOINING_BEHIND, losses)],
    ids=["driver-and-worker", "joining-member"],
)
def test_without_a_bug_nothing_is_found(scenario: Scenario, faults: Faults) -> None:
    """Places and faults above that test_cut_crashes.py does not have."""
    assert explore(World(scenario), faults).runs > 200


@every_failover_bug
def test_bugs_of_failover_do_not_show_without_a_fault(
    rules: Rules, scenario: Scenario, faults: Faults
) -> None:
    World(scenario, replace(rules, watchful=False)).run()
