"""The worker's side of the batch protocol: fence, attempts, seals, and what is decided.

One state per (worker, job). `step` is pure; the agent's loop carries the effects out in their
order, so that what must be durable is durable before an answer leaves (design, section 4).

Invariants (numbers of the design, section 10):

1.  A session below the newest is refused, and so is an attempt: whatever an older message asks for,
    it never displaces what a newer attempt has left. The session is persisted before an answer.
2.  A sealed record is applied only once it is known to be decided: by `Apply`, or by the next
    record's `after`. Never on its seal.
4.  `SealAnswer` without missing slices leaves only after the record and all it names are durable;
    a record that makes this worker a full member is sealed only if its copy is whole.
13. Opening the next attempt drops what an undecided one left, sealed or not. At most one of an open
    attempt and an undecided record is here at a time.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from rhinoctl.ids import NO_ATTEMPT, Attempt, BatchTime, Vnode, WorkerId
from rhinoctl.protocol import messages as m
from rhinoctl.protocol.epochs import Epoch, Role
from rhinoctl.protocol.records import (
    DecisionRecord,
    Position,
    RecordId,
    SliceName,
    expected_slices,
)

PutKey = tuple[int, int]
"""(channel, task attempt)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenAttempt:
    """The attempt whose puts are taken now, and what of it is held so far."""

    time: BatchTime
    attempt: Attempt
    epoch: Epoch
    after: RecordId
    puts: Mapping[PutKey, Mapping[Vnode, SliceName]] = field(default_factory=dict)

    def lacks(self, record: DecisionRecord) -> tuple[tuple[int, Vnode], ...]:
        """The (channel, vnode) pairs of the record's slices that are not held as named."""
        lacking = [
            (channel, name.vnode)
            for channel, task_attempt, name in expected_slices(record)
            if self.puts.get((channel, task_attempt), {}).get(name.vnode) != name
        ]
        return tuple(sorted(lacking))


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerState:
    """What a worker knows of one job. `session`, `decided` and `sealed` outlive the process: the
    first in its own file, the records in the worker log.

    `held` is what was open when `sealed` was sealed: it may still have to be forwarded. `whole` are
    vnodes of which this worker, as a joining member, has a base and all that came after it, up to
    the newest record. Only the agent can know: it says so with ``replace(state, whole=…)`` whenever
    it has looked. The machine takes it back when the worker has missed a record.
    """

    worker: WorkerId
    session: int = 0
    decided: DecisionRecord | None = None
    sealed: DecisionRecord | None = None
    opened: OpenAttempt | None = None
    held: OpenAttempt | None = None
    whole: frozenset[Vnode] = frozenset()

    def newest_attempt(self) -> Attempt:
        """The newest attempt of which anything is left here; attempts grow from batch to batch."""
        left = (self.opened, self.sealed, self.decided)
        return max((each.attempt for each in left if each is not None), default=NO_ATTEMPT)

    def epoch(self) -> Epoch | None:
        """The epoch that holds now, as far as this worker knows it to be decided."""
        if self.opened is not None:
            return self.opened.epoch
        return self.decided.next_epoch if self.decided is not None else None


# --- effects, in the order in which they are to happen -------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class PersistSession:
    """Make the session durable before anything that follows."""

    session: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DropAttempt:
    """Remove what the log has of an attempt that was not decided."""

    time: BatchTime
    attempt: Attempt
    step: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendPut:
    """Append these slices of the put at hand to the attempt's segment."""

    time: BatchTime
    attempt: Attempt
    channel: int
    task_attempt: int
    slices: tuple[SliceName, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardPut:
    """Pass slices of the put at hand to the next worker of their chain."""

    worker: WorkerId
    put: m.Put


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardHeld:
    """Pass what the log holds of an open attempt to the chains again."""

    attempt: OpenAttempt


@dataclass(frozen=True, slots=True, kw_only=True)
class SealRecord:
    """Append the record to its segment and make the segment durable."""

    record: DecisionRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Decide:
    """The record is decided: owners and followers may apply up to its batch."""

    record: DecisionRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """Spark has committed every batch up to this one: outputs may go, checkpoints may cover it."""

    time: BatchTime


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """Answer the request at hand."""

    message: m.Message


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyWhenApplied:
    """Answer the request at hand with `ApplyAnswer` once this worker's owners have applied it."""

    record: DecisionRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class GiveUp:
    """What is here of the job is not what this worker has voted for: it takes no part any more."""

    fault: str


Effect = (
    PersistSession
    | DropAttempt
    | AppendPut
    | ForwardPut
    | ForwardHeld
    | SealRecord
    | Decide
    | Release
    | Reply
    | ReplyWhenApplied
    | GiveUp
)
Step = tuple[WorkerState, tuple[Effect, ...]]
Request = m.Fence | m.Open | m.Put | m.Resend | m.Seal | m.Apply


def step(state: WorkerState, request: Request) -> Step:
    """The next state and the effects, ending in exactly one answer."""
    session = request.header.session
    if session < state.session:
        detail = f"session {session}; {state.worker} has persisted session {state.session}"
        return _refuse(state, request, m.RefusalCode.FENCED, detail)
    before: tuple[Effect, ...] = ()
    if session > state.session:
        before = (PersistSession(session=session), *_drop_open(state))
        state = replace(state, session=session, opened=None)
    handler: Callable[[WorkerState, Any], Step] = _HANDLERS[type(request)]
    state, effects = handler(state, request)
    return state, (*before, *effects)


def recovered(
    worker: WorkerId, session: int, records: tuple[DecisionRecord, ...]
) -> tuple[WorkerState, tuple[DropAttempt, ...]]:
    """The state after a restart, from the sealed records of the log in any order.

    The newest, which is that of the highest attempt (its place may be before that of a left-over
    whose removal a power loss has undone), is sealed and perhaps not decided. What it follows is
    decided. A record that a later attempt has passed over is a left-over.
    """
    if not records:
        return WorkerState(worker=worker, session=session), ()
    newest = max(records, key=lambda record: record.attempt)
    decided = next((record for record in records if record.id == newest.after), None)
    drops = tuple(_drop(record) for record in _passed_over(records))
    state = WorkerState(worker=worker, session=session, decided=decided, sealed=newest)
    return state, drops


def _passed_over(records: tuple[DecisionRecord, ...]) -> list[DecisionRecord]:
    """Records after which a later attempt was made as if they were not here: it follows an earlier
    record, or another one at the same place."""
    passed_over = []
    followed: dict[Position, set[RecordId]] = {}
    lowest: Position | None = None
    for record in sorted(records, key=lambda record: record.attempt, reverse=True):
        others = followed.get(record.position, set()) - {record.id}
        if others or (lowest is not None and lowest < record.position):
            passed_over.append(record)
        after = record.after
        followed.setdefault(after.position, set()).add(after)
        lowest = after.position if lowest is None else min(lowest, after.position)
    return passed_over


def _drop(record: DecisionRecord) -> DropAttempt:
    return DropAttempt(time=record.time, attempt=record.attempt, step=record.position.step)


def _drop_open(state: WorkerState) -> tuple[Effect, ...]:
    if state.opened is None:
        return ()
    return (DropAttempt(time=state.opened.time, attempt=state.opened.attempt),)


def _header(state: WorkerState, request: Request) -> m.Header:
    epoch = state.epoch()
    return replace(
        request.header, session=state.session, epoch=epoch.number if epoch is not None else 0
    )


def _refuse(state: WorkerState, request: Request, code: m.RefusalCode, detail: str) -> Step:
    refusal = m.Refusal(header=_header(state, request), code=code, detail=detail)
    return state, (Reply(message=refusal),)


def _done(state: WorkerState, request: Request) -> Reply:
    return Reply(message=m.Done(header=_header(state, request)))


def _fence(state: WorkerState, request: m.Fence) -> Step:
    answer = m.FenceAnswer(
        header=_header(state, request), decided=state.decided, sealed=state.sealed
    )
    return state, (Reply(message=answer),)


def _stale(state: WorkerState, request: Request, attempt: Attempt) -> Step:
    detail = f"attempt {attempt}; {state.worker} has seen {state.newest_attempt()}"
    return _refuse(state, request, m.RefusalCode.STALE_ATTEMPT, detail)


def _settle(state: WorkerState, after: RecordId) -> tuple[WorkerState, tuple[Effect, ...]] | None:
    """Learn from `after`, the sender's last decided record: None if this worker lacks it."""
    decided, sealed = state.decided, state.sealed
    if sealed is not None and sealed.id == after:
        return replace(state, decided=sealed, sealed=None), (Decide(record=sealed),)
    if decided is not None and decided.id == after:
        if sealed is None:
            return state, ()
        return replace(state, sealed=None), (_drop(sealed),)
    return None


def _open(state: WorkerState, request: m.Open) -> Step:
    opened = state.opened
    if opened is not None and (opened.time, opened.attempt) == (request.time, request.attempt):
        return state, (_done(state, request),)
    if request.attempt <= state.newest_attempt():
        return _stale(state, request, request.attempt)
    if state.decided is not None and request.time <= state.decided.time:
        detail = f"batch {request.time}; {state.decided.position} is decided"
        return _refuse(state, request, m.RefusalCode.STALE_ATTEMPT, detail)
    settled = _settle(state, request.after)
    if settled is None:
        if request.epoch.fully_held_by(state.worker):
            return _give_up(state, request, request.after)
        settled = _begun_anew(state)
    dropped = _drop_open(state)
    state, learnt = settled
    state = replace(
        state,
        opened=OpenAttempt(
            time=request.time, attempt=request.attempt, epoch=request.epoch, after=request.after
        ),
    )
    release = Release(time=request.after.position.time)
    return state, (*dropped, *learnt, release, _done(state, request))


def _begun_anew(state: WorkerState) -> tuple[WorkerState, tuple[Effect, ...]]:
    """The worker's log begins here: with the job's first record, or because a worker that nobody
    waits for has missed records, or has none yet.

    What it has sealed last may or may not have been decided, so that it is dropped; what is before
    that is no longer what a fence should be told of.
    """
    dropped = () if state.sealed is None else (_drop(state.sealed),)
    return replace(state, decided=None, sealed=None, whole=frozenset()), dropped


def _put(state: WorkerState, request: m.Put) -> Step:
    opened = state.opened
    if opened is None or opened.time != request.time or opened.attempt < request.attempt:
        detail = f"attempt {request.attempt} at batch {request.time} is not open"
        return _refuse(state, request, m.RefusalCode.NOT_OPEN, detail)
    if opened.attempt > request.attempt:
        detail = f"attempt {request.attempt}; {opened.attempt} is open"
        return _refuse(state, request, m.RefusalCode.STALE_ATTEMPT, detail)
    key = (request.channel, request.task_attempt)
    held = opened.puts.get(key, {})
    fresh = tuple(name for name in request.slices if name.vnode not in held)
    if not fresh:
        return state, (_done(state, request),)
    puts = {**opened.puts, key: {**held, **{name.vnode: name for name in fresh}}}
    state = replace(state, opened=replace(opened, puts=puts))
    append = AppendPut(
        time=request.time,
        attempt=request.attempt,
        channel=request.channel,
        task_attempt=request.task_attempt,
        slices=fresh,
    )
    forwards = _forwards(state.worker, opened.epoch, replace(request, slices=fresh))
    return state, (append, *forwards, _done(state, request))


def _forwards(worker: WorkerId, epoch: Epoch, put: m.Put) -> tuple[ForwardPut, ...]:
    """The put's slices by the workers that get them from this one.

    A full holder serves the next full member of the chain, and the joining ones before that: a
    member that is not waited for must not stand between two that are.
    """
    onward: dict[WorkerId, list[SliceName]] = {}
    for name in put.slices:
        for successor in _served(worker, epoch, name.vnode):
            onward.setdefault(successor, []).append(name)
    return tuple(
        ForwardPut(worker=successor, put=replace(put, slices=tuple(names), forwarded=True))
        for successor, names in sorted(onward.items())
    )


def _served(worker: WorkerId, epoch: Epoch, vnode: Vnode) -> tuple[WorkerId, ...]:
    if epoch.role_of(worker, vnode) is not Role.FULL:
        return ()
    chain = epoch.holders(vnode)
    rest = chain[chain.index(worker) + 1 :]
    full = [n for n, member in enumerate(rest) if epoch.role_of(member, vnode) is Role.FULL]
    return rest[: full[0] + 1] if full else rest


def held_forwards(
    worker: WorkerId, attempt: OpenAttempt, header: m.Header
) -> tuple[ForwardPut, ...]:
    """Every put that is held of an open attempt, by the workers that follow in the chains."""
    return tuple(
        forward
        for (channel, task_attempt), names in sorted(attempt.puts.items())
        for forward in _forwards(
            worker,
            attempt.epoch,
            m.Put(
                header=header,
                time=attempt.time,
                attempt=attempt.attempt,
                channel=channel,
                task_attempt=task_attempt,
                slices=tuple(names[vnode] for vnode in sorted(names)),
            ),
        )
    )


def _resend(state: WorkerState, request: m.Resend) -> Step:
    """Forward what is held of an attempt, open or sealed and not decided. It may be nothing."""
    attempt = state.opened if state.sealed is None else state.held
    if attempt is None or attempt.attempt != request.attempt:
        return state, (_done(state, request),)
    return state, (ForwardHeld(attempt=attempt), _done(state, request))


def _give_up(state: WorkerState, request: Request, lacking: RecordId) -> Step:
    """A decided record is not here that this worker has sealed: its disk has lost it since; or it
    was decided without it, which was silent, and the cut is on its way. Like one that cannot read
    its log it is as good as lost for the job; who asks waits for the failover."""
    detail = f"{state.worker} lacks the decided record {lacking.position}"
    state, answer = _refuse(state, request, m.RefusalCode.BUSY, detail)
    return state, (GiveUp(fault=detail), *answer)


def _seal(state: WorkerState, request: m.Seal) -> Step:
    record = request.record
    known = (state.sealed, state.decided)
    if any(mine is not None and mine.id == record.id for mine in known):
        return state, (_sealed(state, request, record),)
    if record.attempt < state.newest_attempt():
        return _stale(state, request, record.attempt)
    if state.decided is not None and record.position <= state.decided.position:
        detail = f"record {record.position}; {state.decided.position} is decided"
        return _refuse(state, request, m.RefusalCode.STALE_ATTEMPT, detail)
    return (_seal_batch if record.is_batch else _seal_change)(state, request, record)


def _seal_change(state: WorkerState, request: m.Seal, record: DecisionRecord) -> Step:
    """Seal an epoch record, which needs no attempt to be open."""
    dropped = _drop_open(state)
    settled = _settle(state, record.after)
    if settled is None:
        if record.after.attempt != NO_ATTEMPT and record.next_epoch.fully_held_by(state.worker):
            if request.voter:
                return _give_up(state, request, record.after)
            detail = f"{state.worker} lacks the decided record {record.after.position}"
            return _refuse(state, request, m.RefusalCode.BEHIND, detail)
        settled = _begun_anew(state)
    after, learnt = settled
    now = after.decided.next_epoch if after.decided is not None else None
    lacking = _lacking(after, now, record)
    if lacking:
        return _not_whole(state, request, lacking)
    after = replace(after, sealed=record, held=None, opened=None)
    effects = (*dropped, *learnt, SealRecord(record=record), _sealed(after, request, record))
    return after, effects


def _seal_batch(state: WorkerState, request: m.Seal, record: DecisionRecord) -> Step:
    opened = state.opened
    if opened is None or (opened.time, opened.attempt) != (record.time, record.attempt):
        detail = f"attempt {record.attempt} at batch {record.time} is not open"
        return _refuse(state, request, m.RefusalCode.NOT_OPEN, detail)
    lacking = _lacking(state, opened.epoch, record)
    if lacking:
        return _not_whole(state, request, lacking)
    missing = opened.lacks(record)
    if missing:
        answer = m.SealAnswer(header=_header(state, request), record=record.id, missing=missing)
        return state, (Reply(message=answer),)
    state = replace(state, sealed=record, held=opened, opened=None)
    return state, (SealRecord(record=record), _sealed(state, request, record))


def _lacking(state: WorkerState, now: Epoch | None, record: DecisionRecord) -> tuple[Vnode, ...]:
    """The vnodes that the record makes this worker a full holder of, though its copy is not whole.
    The empty base of a job's first record is."""
    if record.after.attempt == NO_ATTEMPT:
        return ()
    return tuple(
        vnode
        for vnode in record.next_epoch.fully_held_by(state.worker)
        if vnode not in state.whole | record.next_epoch.forfeited
        and (now is None or now.role_of(state.worker, vnode) is not Role.FULL)
    )


def _not_whole(state: WorkerState, request: m.Seal, lacking: tuple[Vnode, ...]) -> Step:
    detail = f"{state.worker} has no whole copy of vnode {', '.join(map(str, lacking))}"
    return _refuse(state, request, m.RefusalCode.BEHIND, detail)


def _sealed(state: WorkerState, request: m.Seal, record: DecisionRecord) -> Reply:
    return Reply(message=m.SealAnswer(header=_header(state, request), record=record.id))


def _apply(state: WorkerState, request: m.Apply) -> Step:
    sealed, decided = state.sealed, state.decided
    if sealed is not None and sealed.id == request.record:
        state = replace(state, decided=sealed, sealed=None)
        return state, (Decide(record=sealed), ReplyWhenApplied(record=sealed))
    if decided is not None and _includes(decided.id, request.record):
        return state, (ReplyWhenApplied(record=decided),)
    if request.voter:
        return _give_up(state, request, request.record)
    detail = f"{state.worker} has not sealed {request.record.position}"
    return _refuse(state, request, m.RefusalCode.BEHIND, detail)


def _includes(decided: RecordId, asked: RecordId) -> bool:
    """Whether a decided record says that the batch of another one is decided, too: it is later, or
    the other is an epoch record after the same batch, sealed when this worker had left."""
    at, of = decided.position, asked.position
    return decided == asked or at > of or (at.time == of.time and at.step < of.step)


_HANDLERS: Mapping[type, Callable[[WorkerState, Any], Step]] = {
    m.Fence: _fence,
    m.Open: _open,
    m.Put: _put,
    m.Resend: _resend,
    m.Seal: _seal,
    m.Apply: _apply,
}
