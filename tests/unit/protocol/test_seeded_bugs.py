"""Bugs put in on purpose (design, section 10): the exhaustive test finds each of them.

A bug replaces one of the machines in the model by a version that differs in a line or two. Each is
found twice: by watching promises as they are made, and by what comes of it alone, which shows that
the test need not know where to look.
"""

from dataclasses import replace
from typing import Any

import pytest

from rhinoctl.protocol import batches, worker
from rhinoctl.protocol import messages as m
from rhinoctl.protocol.records import DecisionRecord
from rhinoctl.protocol.worker import OpenAttempt, WorkerState
from tests.fakes.cluster import scenarios
from tests.fakes.cluster.exploring import explore, repeat_everything
from tests.fakes.cluster.invariants import Broken
from tests.fakes.cluster.workers import ModelWorker, Segment
from tests.fakes.cluster.world import Rules, Scenario, World


def acknowledge_before_persist(state: WorkerState, request: Any) -> worker.Step:
    """The answer leaves, then the record is made durable."""
    state, effects = worker.step(state, request)
    answers = tuple(e for e in effects if isinstance(e, worker.Reply))
    return state, (*answers, *(e for e in effects if not isinstance(e, worker.Reply)))


def forget_the_session(state: WorkerState, request: Any) -> worker.Step:
    """The session is kept in memory only."""
    state, effects = worker.step(state, request)
    return state, tuple(e for e in effects if not isinstance(e, worker.PersistSession))


def apply_before_unanimous_seal(state: batches.BatchState, event: batches.Event) -> batches.Step:
    """The first worker that has sealed decides: no alignment."""
    if state.phase is batches.Phase.SEALING and isinstance(event, batches.Answered):
        answer = event.message
        if isinstance(answer, m.SealAnswer) and not answer.missing:
            state = replace(state, waiting=frozenset({event.worker}))
    return batches.step(state, event)


def cut_the_chain_without_an_epoch(state: batches.BatchState, event: batches.Event) -> batches.Step:
    """A member that does not answer is left out, and the batch goes on with the others."""
    if isinstance(event, batches.Lost) and state.record is not None:
        header = state.lineage.header()
        if state.phase is batches.Phase.SEALING:
            answer: m.Message = m.SealAnswer(header=header, record=state.record.id)
            return batches.step(state, batches.Answered(worker=event.worker, message=answer))
        if state.phase is batches.Phase.APPLYING:
            answer = m.ApplyAnswer(
                header=header, record=state.record.id, outputs=(), applied_at=0.0
            )
            return batches.step(state, batches.Answered(worker=event.worker, message=answer))
    return batches.step(state, event)


def apply_on_seal(here: ModelWorker, segment: Segment) -> None:
    """A follower applies what it has sealed, without waiting for the decision."""
    owed = here.duties_at(segment.record.time)
    if segment.record.is_batch and not owed:
        here.apply(segment)
        here.applied = segment.record.time


def dedupe_without_our_attempt(state: WorkerState, request: Any) -> worker.Step:
    """A put that is here, by channel and task attempt, is not taken again in the next attempt."""
    before = state.opened or state.held
    if isinstance(request, m.Seal) and state.opened is not None:
        request = replace(request, record=_as_held(request.record, state.opened))
    after, effects = worker.step(state, request)
    if isinstance(request, m.Open) and before is not None and after.opened is not None:
        same_batch = before.time == request.time and before.attempt != request.attempt
        if same_batch and not after.opened.puts:
            after = replace(after, opened=replace(after.opened, puts=before.puts))
    return after, effects


def _as_held(record: DecisionRecord, opened: OpenAttempt) -> DecisionRecord:
    """The record with the names of the slices that are here under its channels."""
    winners = []
    for winner in record.winners:
        held = opened.puts.get((winner.channel, winner.task_attempt), {})
        slices = tuple(held.get(name.vnode, name) for name in winner.slices)
        winners.append(replace(winner, slices=slices))
    return replace(record, winners=tuple(winners))


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
