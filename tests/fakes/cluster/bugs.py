"""Versions of the two machines of a batch that differ from the right ones in a line or two.

The exhaustive tests and the simulator have to find each of them (design, section 10).
"""

from dataclasses import replace
from typing import Any

from rhinoctl.protocol import batches, worker
from rhinoctl.protocol import messages as m
from rhinoctl.protocol.records import DecisionRecord
from rhinoctl.protocol.worker import OpenAttempt, WorkerState

_worker_step, _batch_step = worker.step, batches.step
"""The right ones, whatever stands in their place meanwhile."""


def acknowledge_before_persist(state: WorkerState, request: Any) -> worker.Step:
    """The answer leaves, then the record is made durable."""
    state, effects = _worker_step(state, request)
    answers = tuple(e for e in effects if isinstance(e, worker.Reply))
    return state, (*answers, *(e for e in effects if not isinstance(e, worker.Reply)))


def apply_before_unanimous_seal(state: batches.BatchState, event: batches.Event) -> batches.Step:
    """The first worker that has sealed decides: no alignment."""
    if state.phase is batches.Phase.SEALING and isinstance(event, batches.Answered):
        answer = event.message
        if isinstance(answer, m.SealAnswer) and not answer.missing:
            state = replace(state, waiting=frozenset({event.worker}))
    return _batch_step(state, event)


def cut_the_chain_without_an_epoch(state: batches.BatchState, event: batches.Event) -> batches.Step:
    """A member that does not answer is left out, and the batch goes on with the others."""
    if isinstance(event, batches.Lost) and state.record is not None:
        header = state.lineage.header()
        if state.phase is batches.Phase.SEALING:
            answer: m.Message = m.SealAnswer(header=header, record=state.record.id)
            return _batch_step(state, batches.Answered(worker=event.worker, message=answer))
        if state.phase is batches.Phase.APPLYING:
            answer = m.ApplyAnswer(
                header=header, record=state.record.id, outputs=(), applied_at=0.0
            )
            return _batch_step(state, batches.Answered(worker=event.worker, message=answer))
    return _batch_step(state, event)


def dedupe_without_our_attempt(state: WorkerState, request: Any) -> worker.Step:
    """A put that is here, by channel and task attempt, is not taken again in the next attempt."""
    before = state.opened or state.held
    if isinstance(request, m.Seal) and state.opened is not None:
        request = replace(request, record=_as_held(request.record, state.opened))
    after, effects = _worker_step(state, request)
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
