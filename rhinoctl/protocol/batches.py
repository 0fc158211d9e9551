"""The batch machine: one batch, decided once, unanimously, by the holder of the session.

It runs in the Spark driver (and, for an epoch record without a live session, in the controller).
The other side is `rhinoctl.protocol.worker`. Design, section 4; Rhino, section 4.1 ("epoch
alignment").

Invariants (numbers of the design, section 10):

1.  Nothing is opened before every voter of the last epoch has persisted the session.
2.  A batch is applied only after every voter has sealed the same attempt, or after a fence has
    shown that they had.
4.  A voter that does not answer is asked again until the deadline, never left out; only an epoch
    that gives it up, a *cut* (docs/protocol/failover.md), is sealed without it.
11. A batch whose offsets are not the decided ones is refused; so is one that is neither the last
    decided batch nor the one after it.
13. A decided batch is finished with its attempt; an undecided one is staged anew, whole.
14. A batch that is released, because another run has committed it, is not put out again without
    the outputs that are gone.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from rhinoctl import limits
from rhinoctl.ids import Attempt, BatchTime, WorkerId
from rhinoctl.protocol import messages as m
from rhinoctl.protocol.batch_state import TRANSITIONS as TRANSITIONS
from rhinoctl.protocol.batch_state import Answered as Answered
from rhinoctl.protocol.batch_state import BatchState as BatchState
from rhinoctl.protocol.batch_state import Deadline as Deadline
from rhinoctl.protocol.batch_state import Effect as Effect
from rhinoctl.protocol.batch_state import Event as Event
from rhinoctl.protocol.batch_state import Expired as Expired
from rhinoctl.protocol.batch_state import Fault as Fault
from rhinoctl.protocol.batch_state import FaultKind as FaultKind
from rhinoctl.protocol.batch_state import Lost as Lost
from rhinoctl.protocol.batch_state import Phase as Phase
from rhinoctl.protocol.batch_state import Proposed as Proposed
from rhinoctl.protocol.batch_state import Send as Send
from rhinoctl.protocol.batch_state import Stage as Stage
from rhinoctl.protocol.batch_state import Staged as Staged
from rhinoctl.protocol.batch_state import Step as Step
from rhinoctl.protocol.decisions import Receipt as Receipt
from rhinoctl.protocol.decisions import Task as Task
from rhinoctl.protocol.decisions import batch_record, epoch_record
from rhinoctl.protocol.epochs import Epoch, successor_fault
from rhinoctl.protocol.records import DecisionRecord, RecordId
from rhinoctl.protocol.sessions import (
    NOBODY,
    Lineage,
    asked_after_all,
    last_decided,
    newest_epoch,
    unfenced,
)


def begin(lineage: Lineage, task: Task, proposal: Epoch | None = None) -> Step:
    """Start a batch, or an epoch change, at the fence if the session has not fenced yet."""
    coming = task.change or proposal
    lost = NOBODY if coming is None else coming.lost
    state = BatchState(
        phase=Phase.FENCING, lineage=lineage, task=task, proposal=proposal, lost=lost
    )
    if lineage.fenced:
        return _placed(state)
    waiting = lineage.epoch.voters() - lost
    fence = m.Fence(header=lineage.header())
    sends = [Send(worker=worker, message=fence) for worker in sorted(waiting)]
    state = replace(state, waiting=waiting)
    return state, (*sends, Deadline(after_s=limits.FENCE_DEADLINE_S))


def step(state: BatchState, event: Event) -> Step:
    """The next state and what to do about it. Raises LookupError on an illegal transition."""
    allowed = TRANSITIONS[state.phase, type(event)]
    handler = _HANDLERS.get((state.phase, type(event)), _HANDLERS.get((None, type(event))))
    after, effects = handler(state, event) if handler else (state, ())
    if after.phase not in allowed:
        raise LookupError(f"{state.phase} may not become {after.phase} on {type(event).__name__}")
    return after, effects


def _failed(state: BatchState, kind: FaultKind, detail: str, *workers: WorkerId) -> Step:
    fault = Fault(kind=kind, detail=detail, workers=workers)
    return replace(state, phase=Phase.FAILED, waiting=frozenset(), fault=fault), ()


def _expired(state: BatchState, event: Expired) -> Step:
    silent = sorted(state.waiting)
    if state.phase is Phase.SEALING and _carries_marker(state):
        return _opening(state)
    detail = f"no answer in {state.phase.value} of batch {state.task.time}"
    return _failed(state, FaultKind.UNREACHABLE, detail, *silent)


def _proposed(state: BatchState, event: Proposed) -> Step:
    state = replace(state, proposal=event.epoch)
    if event.epoch is None or not event.epoch.is_cut or state.task.change is not None:
        return state, ()
    state = replace(state, lost=state.lost | event.epoch.lost)
    if state.phase is Phase.FENCING:
        state = replace(state, waiting=state.waiting - state.lost)
        return (state, ()) if state.waiting else _fenced(state)
    return _cutting(state) if _is_cut_due(state) else (state, ())


# --- cutting off lost workers --------------------------------------------------------------------


def _is_cut_due(state: BatchState) -> bool:
    """Whether the proposal is a cut that fits what holds, and not the one that is being sealed."""
    cut = state.proposal
    if cut is None or not cut.is_cut:
        return False
    if state.phase is Phase.CUTTING and state.record is not None and state.record.next_epoch == cut:
        return False
    return successor_fault(state.lineage.epoch, cut) is None


def _cutting(state: BatchState) -> Step:
    """Seal the proposal without the workers that it gives up, after the last decided record. What
    is under way of an undecided batch is thrown away by it; of a decided one, the notice is said
    again after it."""
    cut = state.proposal
    assert cut is not None
    decided = state.decided or state.phase is Phase.APPLYING
    lineage = replace(state.lineage, counter=state.lineage.counter + 1)
    record = epoch_record(lineage, state.task.time, cut)
    state = replace(state, lineage=lineage, attempt=record.attempt, receipts=(), decided=decided)
    listeners = frozenset(record.voters) | cut.listeners()
    return _send_seals(state, record, listeners, Phase.CUTTING)


def _cut_answered(state: BatchState, event: Answered) -> Step:
    if event.worker not in state.waiting:
        return state, ()
    record = state.record
    assert record is not None
    if not isinstance(event.message, m.SealAnswer):
        return _refused(state, event)
    if event.message.record != record.id:
        return state, ()
    state = replace(state, waiting=state.waiting - {event.worker})
    if state.waiting:
        return state, ()
    lineage = replace(state.lineage, last=record, epoch=record.next_epoch)
    state = replace(state, lineage=lineage, proposal=None)
    if state.decided:
        return _applying(replace(state, outputs=(), applied_at={}))
    return _placed(state)


def _waited_for(state: BatchState, worker: WorkerId) -> Step:
    """A worker that says why it waits is not silent: the batch waits with it, for as long as it
    says so. Attempts that came to nothing for it do not count."""
    if state.phase is Phase.OPENING:
        state = replace(state, attempts=1)
    send = Send(worker=worker, message=_request(state, worker), delay_s=limits.FULL_RETRY_S)
    return state, (send, Deadline(after_s=_PATIENCE_S[state.phase]))


_PATIENCE_S: Mapping[Phase, float] = {
    Phase.FENCING: limits.FENCE_DEADLINE_S,
    Phase.CUTTING: limits.SEAL_DEADLINE_S,
    Phase.OPENING: limits.OPEN_DEADLINE_S,
    Phase.SEALING: limits.SEAL_DEADLINE_S,
    Phase.APPLYING: limits.APPLY_DEADLINE_S,
}
"""How long workers may be silent in each phase in which they are asked for something."""


def _ask_again(state: BatchState, event: Lost) -> Step:
    """A lost answer is asked for again: every request of the protocol may be repeated."""
    if event.worker not in state.waiting:
        return state, ()
    message = _request(state, event.worker)
    send = Send(worker=event.worker, message=message, delay_s=limits.RETRY_DELAY_S)
    return state, (send,)


def _request(state: BatchState, worker: WorkerId) -> m.Message:
    """What the phase asks of a worker."""
    header = state.lineage.header()
    if state.phase is Phase.FENCING:
        return m.Fence(header=header)
    if state.phase is Phase.OPENING:
        assert state.attempt is not None
        return m.Open(
            header=header,
            time=state.task.time,
            attempt=state.attempt,
            after=_last_id(state.lineage),
            epoch=state.lineage.epoch,
        )
    assert state.record is not None
    if state.phase in (Phase.SEALING, Phase.CUTTING):
        record, last = state.record.addressed_to(worker, state.lineage.epoch), state.lineage.last
        voted = last is not None and last.id == record.after and worker in last.voters
        return m.Seal(header=header, record=record, voter=voted)
    record = state.record
    return m.Apply(header=header, record=record.id, voter=worker in record.voters)


def _last_id(lineage: Lineage) -> RecordId:
    assert lineage.last is not None
    return lineage.last.id


# --- fencing -------------------------------------------------------------------------------------


def _fence_answered(state: BatchState, event: Answered) -> Step:
    if event.worker not in state.waiting:
        return state, ()
    if not isinstance(event.message, m.FenceAnswer):
        return _refused(state, event)
    fences = {**state.fences, event.worker: event.message}
    waiting, newest = state.waiting - {event.worker}, newest_epoch(fences)
    if newest is not None and newest.number > state.lineage.epoch.number:
        waiting &= newest.voters()
    state = replace(state, fences=fences, waiting=waiting)
    return (state, ()) if state.waiting else _fenced(state)


def _fenced(state: BatchState) -> Step:
    """All that were asked have answered: are there more to ask? If not, where are we?"""
    lost, coming = state.lost, state.task.change or state.proposal
    if coming is None or not coming.forced:
        lost -= asked_after_all(state.fences, lost)
    fences = _without(state.fences, lost)
    more = unfenced(fences, lost) | (state.lost - lost - fences.keys())
    if more:
        fence = m.Fence(header=state.lineage.header())
        sends = tuple(Send(worker=worker, message=fence) for worker in sorted(more))
        return replace(state, waiting=more), sends
    lineage = replace(state.lineage, fenced=True)
    last = last_decided(fences, lost)
    if last is not None:
        lineage = replace(lineage, last=last, epoch=last.next_epoch)
    return _placed(replace(state, lineage=lineage))


def _without(
    fences: Mapping[WorkerId, m.FenceAnswer], lost: frozenset[WorkerId]
) -> dict[WorkerId, m.FenceAnswer]:
    return {worker: answer for worker, answer in fences.items() if worker not in lost}


def _placed(state: BatchState) -> Step:
    """After the fence: is this the batch to decide, the one decided last, or another?"""
    lineage, task = state.lineage, state.task
    if task.change is not None:
        return _changing(state, task.change)
    last = lineage.last
    if last is None:
        return _failed(state, FaultKind.BEHIND, "no worker has a record of the job")
    if _is_cut_due(state):
        return _cutting(state)
    if last.operator and task.operator != last.operator:
        detail = f"operator {task.operator} at batch {task.time}, decided with {last.operator}"
        return _failed(state, FaultKind.OTHER_OPERATOR, detail)
    if task.time == last.time and last.time.batch >= 0:
        return _replaying(state, last)
    follows = task.time == BatchTime(last.time.generation, last.time.batch + 1)
    reborn = task.time.generation > last.time.generation and task.time.batch == 0
    if not (follows or reborn):
        detail = f"Spark asks for batch {task.time}, the last decided is {last.time}"
        return _failed(state, FaultKind.WRONG_BATCH, detail)
    if follows and _differ(task.start_offsets, last.end_offsets):
        detail = f"batch {task.time} starts at {task.start_offsets}, decided {last.end_offsets}"
        return _failed(state, FaultKind.OFFSETS_DIFFER, detail)
    return _opening(state)


def _differ(asked: str, decided: str) -> bool:
    """Whether two offsets differ; an empty text stands for one that the sender does not have."""
    return asked != decided and "" not in (asked, decided)


def _replaying(state: BatchState, last: DecisionRecord) -> Step:
    """The batch is decided: not one row of it is staged again, whatever Spark would send.

    `last` may be an epoch record after the batch, which repeats the batch's offsets. Then those who
    owe the batch's output are asked, too: they may have left the epoch since.
    """
    task = state.task
    if task.end_offsets != last.end_offsets or _differ(task.start_offsets, last.start_offsets):
        detail = (
            f"batch {task.time} has offsets {task.start_offsets} to {task.end_offsets}, "
            f"decided {last.start_offsets} to {last.end_offsets}"
        )
        return _failed(state, FaultKind.OFFSETS_DIFFER, detail)
    return _applying(replace(state, record=last, replayed=True))


# --- opening, staging ----------------------------------------------------------------------------


def _opening(state: BatchState) -> Step:
    """The next attempt, from nothing. One whose marker was not sealed by all goes without it."""
    state = replace(state, plain=state.plain or _carries_marker(state))
    if state.attempts >= limits.ATTEMPTS_MAX:
        return _failed(
            state, FaultKind.ATTEMPTS, f"batch {state.task.time}: {state.attempts} attempts"
        )
    counter = state.lineage.counter + 1
    lineage = replace(state.lineage, counter=counter)
    state = replace(
        state,
        phase=Phase.OPENING,
        lineage=lineage,
        attempt=Attempt(lineage.session, counter),
        attempts=state.attempts + 1,
        waiting=lineage.epoch.voters(),
        receipts=(),
        record=None,
        misses={},
    )
    sends = [
        Send(worker=worker, message=_request(state, worker))
        for worker in sorted(lineage.epoch.listeners())
    ]
    return state, (*sends, Deadline(after_s=limits.OPEN_DEADLINE_S))


def _open_answered(state: BatchState, event: Answered) -> Step:
    if event.worker not in state.waiting:
        return state, ()
    if not isinstance(event.message, m.Done):
        return _refused(state, event)
    state = replace(state, waiting=state.waiting - {event.worker})
    if state.waiting:
        return state, ()
    assert state.attempt is not None
    stage = Stage(time=state.task.time, attempt=state.attempt, epoch=state.lineage.epoch)
    state = replace(state, phase=Phase.STAGING)
    return state, (stage, Deadline(after_s=limits.STAGE_DEADLINE_S))


def _staged(state: BatchState, event: Staged) -> Step:
    if event.attempt != state.attempt:
        return state, ()
    if event.failures:
        return _opening(state)
    return _sealing(replace(state, receipts=event.receipts))


# --- sealing -------------------------------------------------------------------------------------


def _sealing(state: BatchState) -> Step:
    """Write the record, and with it the marker if a proposal is at hand.

    Joining members that the proposal makes voters must seal the marker too: they could not open
    the next batch without it. If one stays silent or refuses, the batch is staged again without the
    proposal.
    """
    lineage, taken = state.lineage, state.proposal
    assert state.attempt is not None
    if taken is None or state.plain or successor_fault(lineage.epoch, taken) is not None:
        taken = lineage.epoch
    record = batch_record(lineage, state.task, state.attempt, state.receipts, taken)
    return _send_seals(state, record, lineage.epoch.listeners())


def _carries_marker(state: BatchState) -> bool:
    record = state.record
    return record is not None and record.is_batch and record.is_marker


def _changing(state: BatchState, change: Epoch) -> Step:
    """Seal an epoch record, if the logs that the fence has shown still ask for it.

    They may be at this epoch, or past it, without every worker knowing: then the last record is
    made known to all instead, and `lineage.epoch` tells the caller what holds.
    """
    lineage = state.lineage
    if lineage.last is not None:
        if lineage.epoch.number >= change.number:
            return _applying(replace(state, record=lineage.last, replayed=True))
        fault = successor_fault(lineage.epoch, change)
        if fault is not None:
            return _failed(state, FaultKind.STALE_EPOCH, fault)
    lineage = replace(lineage, counter=lineage.counter + 1)
    record = epoch_record(lineage, state.task.time, change)
    state = replace(state, lineage=lineage, attempt=record.attempt)
    return _send_seals(state, record, frozenset(record.voters) | change.listeners())


def _send_seals(
    state: BatchState,
    record: DecisionRecord,
    listeners: frozenset[WorkerId],
    phase: Phase = Phase.SEALING,
) -> Step:
    voters = frozenset(record.voters)
    state = replace(state, phase=phase, record=record, waiting=voters, misses={})
    sends = [Send(worker=w, message=_request(state, w)) for w in sorted(listeners)]
    patience = limits.MARKER_DEADLINE_S if _carries_marker(state) else limits.SEAL_DEADLINE_S
    return state, (*sends, Deadline(after_s=patience))


def _seal_answered(state: BatchState, event: Answered) -> Step:
    if event.worker not in state.waiting:
        return state, ()
    answer, record = event.message, state.record
    assert record is not None
    if isinstance(answer, m.Done):
        return state, ()  # of a `Resend`, which is not what this phase waits for
    if isinstance(answer, m.Refusal) and _costs_the_marker(state, event.worker, answer.code):
        return _opening(state)
    if not isinstance(answer, m.SealAnswer):
        return _refused(state, event)
    if answer.record != record.id:
        return state, ()
    if answer.missing:
        return _missing(state, event.worker)
    state = replace(state, waiting=state.waiting - {event.worker})
    if state.waiting:
        return state, ()
    lineage = replace(state.lineage, last=record, epoch=record.next_epoch)
    return _applying(replace(state, lineage=lineage))


def _costs_the_marker(state: BatchState, worker: WorkerId, code: m.RefusalCode) -> bool:
    """Whether a refusal is of the marker, not of the batch: a copy that it counts as full is not
    whole, or the worker is to vote only because of it."""
    if not _carries_marker(state):
        return False
    others = (m.RefusalCode.FENCED, m.RefusalCode.BUSY, m.RefusalCode.UNKNOWN_JOB)
    newcomer = worker not in state.lineage.epoch.voters()
    return code is m.RefusalCode.BEHIND or (newcomer and code not in others)


def _missing(state: BatchState, worker: WorkerId) -> Step:
    """A member lacks slices that may still be on their way down the chain: ask for them again."""
    misses = state.misses.get(worker, 0) + 1
    if misses > limits.SEAL_MISSES_MAX * 2 ** (state.attempts - 1):
        return _opening(state)
    asks = _resends(state, worker) if misses % limits.RESEND_EVERY == 0 else []
    again = Send(worker=worker, message=_request(state, worker), delay_s=limits.MISSING_DELAY_S)
    return replace(state, misses={**state.misses, worker: misses}), (*asks, again)


def _resends(state: BatchState, worker: WorkerId) -> list[Send]:
    """Ask whoever shares a chain with `worker` to forward what it holds of the attempt again."""
    assert state.attempt is not None
    epoch = state.lineage.epoch
    holders = {w for vnode in epoch.held_by(worker) for w in epoch.holders(vnode)} - {worker}
    resend = m.Resend(header=state.lineage.header(), time=state.task.time, attempt=state.attempt)
    return [Send(worker=holder, message=resend) for holder in sorted(holders)]


# --- applying ------------------------------------------------------------------------------------


def _applying(state: BatchState) -> Step:
    """Decided: the notice goes to all; those that run instances answer once they have applied. Who
    has left with this record, and owes nothing, is not waited for: no cut could give it up."""
    record = state.record
    assert record is not None
    asked = frozenset(record.voters) & frozenset(record.next_epoch.workers)
    others = frozenset(record.voters) - asked
    if not state.replayed:
        others |= state.lineage.epoch.listeners()
    if state.task.change is None:
        asked |= record.owing
    else:
        asked -= state.lost
    state = replace(state, phase=Phase.APPLYING, waiting=asked)
    sends = [Send(worker=w, message=_request(state, w)) for w in sorted(asked | others)]
    return state, (*sends, Deadline(after_s=limits.APPLY_DEADLINE_S))


def _apply_answered(state: BatchState, event: Answered) -> Step:
    if event.worker not in state.waiting:
        return state, ()
    answer = event.message
    if not isinstance(answer, m.ApplyAnswer):
        return _refused(state, event)
    if answer.released and state.task.change is None:
        detail = f"batch {state.task.time} was committed by another run of the query meanwhile"
        return _failed(state, FaultKind.RELEASED, detail, event.worker)
    state = replace(
        state,
        waiting=state.waiting - {event.worker},
        outputs=(*state.outputs, *answer.outputs),
        applied_at={**state.applied_at, event.worker: answer.applied_at},
    )
    if state.waiting:
        return state, ()
    return replace(state, phase=Phase.DONE), ()


def _refused(state: BatchState, event: Answered) -> Step:
    """A refusal, by its code: another attempt, asked again, or the end of this batch."""
    if not isinstance(event.message, m.Refusal):
        detail = f"{event.worker} answered with {type(event.message).__name__}"
        return _failed(state, FaultKind.REFUSED, detail, event.worker)
    code, detail = event.message.code, f"{event.worker}: {event.message.detail}"
    match code:
        case m.RefusalCode.FENCED:
            return _failed(state, FaultKind.FENCED, detail, event.worker)
        case m.RefusalCode.POISON:
            return _failed(state, FaultKind.POISON, detail, event.worker)
        case m.RefusalCode.BUSY | m.RefusalCode.UNKNOWN_JOB:
            return _ask_again(state, Lost(worker=event.worker, detail=detail))
        case m.RefusalCode.FULL:
            return _waited_for(state, event.worker)
        case m.RefusalCode.NOT_OPEN | m.RefusalCode.STALE_ATTEMPT if (
            state.phase
            in (
                Phase.OPENING,
                Phase.SEALING,
            )
            and state.task.change is None
        ):
            return _opening(state)
        case m.RefusalCode.BEHIND:
            return _failed(state, FaultKind.BEHIND, detail, event.worker)
        case _:
            return _failed(state, FaultKind.REFUSED, detail, event.worker)


_HANDLERS: Mapping[tuple[Phase | None, type], Callable[[BatchState, Any], Step]] = {
    (Phase.FENCING, Answered): _fence_answered,
    (Phase.CUTTING, Answered): _cut_answered,
    (Phase.CUTTING, Staged): _staged,
    (Phase.OPENING, Answered): _open_answered,
    (Phase.STAGING, Staged): _staged,
    (Phase.SEALING, Answered): _seal_answered,
    (Phase.APPLYING, Answered): _apply_answered,
    (None, Lost): _ask_again,
    (None, Proposed): _proposed,
    (None, Expired): _expired,
}
