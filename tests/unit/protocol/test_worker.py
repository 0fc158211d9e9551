"""The worker machine: what it refuses, what it keeps, what it makes of its log after a crash."""

from dataclasses import replace

import pytest

from rhinoctl.ids import Attempt, BatchTime, Vnode, WorkerId
from rhinoctl.protocol import messages as m
from rhinoctl.protocol import worker
from rhinoctl.protocol.epochs import Epoch, with_members_full
from rhinoctl.protocol.records import DecisionRecord, SliceName
from rhinoctl.protocol.worker import WorkerState, recovered, step
from tests.fakes.cluster.scenarios import I0, V0, W1, W2, W3, epoch
from tests.unit.protocol.building import FIRST, FOUNDING, HEADER, JOINING, MOVED, record

ZERO = record(0, 2, FOUNDING.id)
ONE = record(1, 3, ZERO.id)
CHANGE = replace(record(0, 3, ZERO.id, step=1, next_epoch=MOVED), epoch=1)
STATE = WorkerState(worker=W1, session=1, decided=FOUNDING)


def header(session: int = 1) -> m.Header:
    return replace(HEADER, session=session)


def open_(of: DecisionRecord, to: Epoch = FIRST) -> m.Open:
    """The request that begins the attempt of a record."""
    return m.Open(
        header=header(of.attempt.session),
        time=of.time,
        attempt=of.attempt,
        after=of.after,
        epoch=to,
    )


def seal(of: DecisionRecord) -> m.Seal:
    return m.Seal(header=header(of.attempt.session), record=of)


def apply(of: DecisionRecord, session: int = 1) -> m.Apply:
    return m.Apply(header=header(session), record=of.id)


def put(of: DecisionRecord, *vnodes: int, task_attempt: int = 0) -> m.Put:
    names = tuple(SliceName(vnode=Vnode(v), rows=1, size=8, checksum=v) for v in vnodes)
    return m.Put(
        header=header(of.attempt.session),
        time=of.time,
        attempt=of.attempt,
        channel=0,
        task_attempt=task_attempt,
        slices=names,
    )


def through(state: WorkerState, *requests: worker.Request) -> WorkerState:
    for request in requests:
        state, _ = step(state, request)
    return state


def refused(state: WorkerState, request: worker.Request) -> m.RefusalCode | None:
    """The code with which a request is refused; it must change nothing then."""
    after, effects = step(state, request)
    answer = effects[-1]
    if not (isinstance(answer, worker.Reply) and isinstance(answer.message, m.Refusal)):
        return None
    assert after == state
    assert len(effects) == 1
    return answer.message.code


# --- what comes late (invariants 1 and 13) --------------------------------------------------------


def test_invariant_13_a_late_open_does_not_displace_what_its_attempt_has_sealed() -> None:
    """The answer to `Open` was lost and asked for again; meanwhile the batch was sealed, and may be
    decided."""
    sealed = through(STATE, open_(ZERO), seal(ZERO))
    assert sealed.sealed == ZERO
    assert refused(sealed, open_(ZERO)) is m.RefusalCode.STALE_ATTEMPT


def test_invariant_13_a_late_epoch_record_does_not_displace_a_newer_attempt() -> None:
    """The epoch record was given up, and the session has gone on with the next batch."""
    given_up = replace(record(-1, 2, FOUNDING.id, step=2, next_epoch=MOVED), epoch=1)
    newer = record(0, 3, FOUNDING.id)
    opened = through(STATE, seal(given_up), open_(newer))
    assert opened.sealed is None
    assert refused(opened, seal(given_up)) is m.RefusalCode.STALE_ATTEMPT
    sealed = through(opened, seal(newer))
    assert refused(sealed, seal(given_up)) is m.RefusalCode.STALE_ATTEMPT


def test_invariant_1_an_attempt_goes_up_only() -> None:
    opened = through(STATE, open_(replace(ZERO, attempt=Attempt(1, 5))))
    older = replace(ZERO, attempt=Attempt(1, 4))
    assert refused(opened, open_(older)) is m.RefusalCode.STALE_ATTEMPT
    assert refused(opened, put(older, 0)) is m.RefusalCode.STALE_ATTEMPT
    assert refused(opened, seal(older)) is m.RefusalCode.STALE_ATTEMPT
    assert refused(opened, put(replace(ZERO, attempt=Attempt(1, 6)), 0)) is m.RefusalCode.NOT_OPEN


@pytest.mark.parametrize(
    "request_",
    [m.Fence(header=header()), open_(ONE), put(ONE, 0), seal(ONE), apply(ONE)],
    ids=lambda request_: type(request_).__name__,
)
def test_invariant_1_an_older_session_is_refused_whatever_it_asks(request_: worker.Request) -> None:
    fenced = through(STATE, m.Fence(header=header(2)))
    assert refused(fenced, request_) is m.RefusalCode.FENCED


def test_invariant_1_a_session_is_durable_before_anything_it_asks_for() -> None:
    for request in (m.Fence(header=header(2)), open_(record(0, 1, FOUNDING.id, session=2))):
        _, effects = step(STATE, request)
        assert effects[0] == worker.PersistSession(session=2)


def test_a_fence_of_the_same_session_leaves_its_attempt_open() -> None:
    opened = through(STATE, open_(ZERO))
    assert through(opened, m.Fence(header=header())) == opened
    assert through(opened, m.Fence(header=header(2))).opened is None


def test_a_decided_record_of_another_attempt_is_not_taken_for_this_one() -> None:
    decided = through(STATE, open_(ZERO), seal(ZERO), apply(ZERO))
    assert refused(decided, apply(ZERO)) is None
    other = record(0, 9, FOUNDING.id)
    assert refused(decided, apply(other)) is m.RefusalCode.BEHIND


def test_a_worker_that_has_left_answers_for_the_batch_that_it_knows_to_be_decided() -> None:
    """It owes the output; an epoch record after the batch was sealed without it."""
    decided = through(STATE, open_(ZERO), seal(ZERO), apply(ZERO))
    later = replace(CHANGE, position=CHANGE.position._replace(step=3))
    _, effects = step(decided, apply(later))
    assert effects == (worker.ReplyWhenApplied(record=ZERO),)
    assert refused(STATE, apply(later)) is m.RefusalCode.BEHIND
    assert refused(decided, apply(ONE)) is m.RefusalCode.BEHIND


# --- what is durable and applied, when (invariants 2 and 4) ---------------------------------------


def test_invariant_4_the_record_is_durable_before_the_answer() -> None:
    for request in (seal(ZERO), seal(replace(CHANGE, after=FOUNDING.id))):
        _, effects = step(through(STATE, open_(ZERO)), request)
        kinds = [type(effect) for effect in effects]
        assert kinds.index(worker.SealRecord) < kinds.index(worker.Reply)


def test_invariant_2_nothing_is_decided_by_a_seal() -> None:
    _, effects = step(through(STATE, open_(ZERO)), seal(ZERO))
    assert worker.Decide not in {type(effect) for effect in effects}


@pytest.mark.parametrize("request_", [apply(ZERO), open_(ONE), seal(CHANGE)])
def test_invariant_2_a_record_is_decided_by_notice_or_by_its_successor(
    request_: worker.Request,
) -> None:
    state, effects = step(through(STATE, open_(ZERO), seal(ZERO)), request_)
    assert worker.Decide(record=ZERO) in effects
    assert state.decided == ZERO


def test_invariant_13_what_the_next_attempt_passes_over_is_dropped() -> None:
    sealed = through(STATE, open_(ZERO), seal(ZERO))
    again = record(0, 3, FOUNDING.id)
    state, effects = step(sealed, open_(again))
    assert worker.DropAttempt(time=ZERO.time, attempt=ZERO.attempt) in effects
    assert state.sealed is None


# --- chains --------------------------------------------------------------------------------------


def forwards(here: WorkerId, to: Epoch) -> set[WorkerId]:
    state = replace(STATE, worker=here)
    _, effects = step(through(state, open_(ZERO, to)), put(ZERO, 0))
    return {effect.worker for effect in effects if isinstance(effect, worker.ForwardPut)}


def test_a_joining_member_does_not_stand_between_full_ones() -> None:
    """It is not waited for: a batch must not hang on what it forwards."""
    chain = epoch({I0: W1}, ((I0, "w2? w3"),))
    assert forwards(W1, chain) == {W2, W3}
    assert forwards(W2, chain) == set()
    assert forwards(W3, chain) == set()


def test_a_full_member_hands_on_to_the_next_full_one() -> None:
    chain = epoch({I0: W1}, ((I0, "w2 w3"),))
    assert forwards(W1, chain) == {W2}
    assert forwards(W2, chain) == {W3}


def test_a_put_is_taken_once_however_often_it_comes() -> None:
    state = through(STATE, open_(ZERO), put(ZERO, 0))
    again, effects = step(state, put(ZERO, 0))
    assert again == state
    assert [type(effect) for effect in effects] == [worker.Reply]
    _, more = step(state, put(ZERO, 0, 1))
    appended = [effect for effect in more if isinstance(effect, worker.AppendPut)]
    assert [name.vnode for effect in appended for name in effect.slices] == [1]


def resent(state: WorkerState, of: DecisionRecord) -> worker.OpenAttempt | None:
    request = m.Resend(header=header(of.attempt.session), time=of.time, attempt=of.attempt)
    after, effects = step(state, request)
    assert after == state
    assert isinstance(effects[-1], worker.Reply)
    assert isinstance(effects[-1].message, m.Done)
    held = [effect.attempt for effect in effects if isinstance(effect, worker.ForwardHeld)]
    return held[0] if held else None


def test_what_is_held_is_forwarded_again_until_it_is_decided() -> None:
    """Also after the seal: the owner's worker has sealed long before a member's slice is missed."""
    opened = through(STATE, open_(ZERO), put(ZERO, 0))
    sealed = through(opened, seal(ZERO))
    for state in (opened, sealed):
        held = resent(state, ZERO)
        assert held is not None
        sent = worker.held_forwards(W1, held, header())
        assert [(forward.worker, forward.put.channel) for forward in sent] == [(W2, 0)]
    assert resent(through(sealed, apply(ZERO)), ZERO) is None
    assert resent(through(sealed, open_(record(0, 3, FOUNDING.id))), ZERO) is None


# --- joining -------------------------------------------------------------------------------------

FULL = with_members_full(JOINING, {V0: W2})
PROMOTION = record(1, 3, ZERO.id, next_epoch=FULL)
"""Batch 1 with the marker that makes w2 a full member."""


def joiner(*, whole: bool) -> WorkerState:
    """w2, which is at batch 0 and has batch 1 open."""
    state = replace(STATE, worker=W2, decided=ZERO)
    state = through(state, open_(PROMOTION, JOINING))
    return replace(state, whole=frozenset({V0}) if whole else frozenset())


def test_invariant_4_a_copy_that_is_not_whole_does_not_become_full() -> None:
    assert refused(joiner(whole=False), seal(PROMOTION)) is m.RefusalCode.BEHIND
    assert refused(joiner(whole=True), seal(PROMOTION)) is None
    plain = record(1, 3, ZERO.id, next_epoch=JOINING)
    assert refused(joiner(whole=False), seal(plain)) is None


def test_invariant_4_nor_by_an_epoch_record() -> None:
    change = replace(record(0, 3, ZERO.id, step=1, next_epoch=FULL), epoch=1)
    decided = replace(ZERO, next_epoch=JOINING)
    state = replace(STATE, worker=W2, decided=decided)
    assert refused(state, seal(change)) is m.RefusalCode.BEHIND
    assert refused(replace(state, whole=frozenset({V0})), seal(change)) is None


def test_invariant_4_a_missed_record_takes_back_what_the_agent_has_said() -> None:
    """w2 reported a whole copy; then batch 1 went by without it."""
    state = replace(STATE, worker=W2, decided=ZERO, whole=frozenset({V0}))
    late = record(2, 4, ONE.id, next_epoch=FULL)
    missed = through(state, open_(late, JOINING))
    assert (missed.whole, missed.decided) == (frozenset(), None)
    assert refused(missed, seal(late)) is m.RefusalCode.BEHIND


@pytest.mark.parametrize(
    ("asked", "lacking"),
    [
        pytest.param(open_(ONE), ZERO, id="open"),
        pytest.param(replace(seal(replace(CHANGE, after=ONE.id)), voter=True), ONE, id="seal"),
        pytest.param(replace(apply(ONE), voter=True), ONE, id="apply"),
    ],
)
def test_a_full_holder_that_lacks_a_decided_record_gives_itself_up(
    asked: worker.Request, lacking: DecisionRecord
) -> None:
    """Its disk has lost what it had sealed. Who asks waits for the failover."""
    after, effects = step(STATE, asked)
    assert after == STATE
    given_up, answer = effects
    assert isinstance(given_up, worker.GiveUp)
    assert given_up.fault == f"w1 lacks the decided record {lacking.position}"
    assert isinstance(answer, worker.Reply)
    assert isinstance(answer.message, m.Refusal)
    assert answer.message.code is m.RefusalCode.BUSY


def test_a_worker_that_has_not_voted_for_a_record_has_only_not_heard_of_it() -> None:
    """It joins with a record that it has missed, or is back after a cut."""
    assert refused(STATE, seal(replace(CHANGE, after=ONE.id))) is m.RefusalCode.BEHIND
    assert refused(STATE, apply(ONE)) is m.RefusalCode.BEHIND


def test_a_joining_member_begins_its_log_where_it_is_let_in() -> None:
    state = WorkerState(worker=W2)
    opened = through(state, open_(ONE, JOINING))
    assert opened.opened is not None
    assert opened.opened.time == BatchTime(0, 1)
    uncertain = replace(STATE, worker=W2, decided=FOUNDING, sealed=ZERO)
    _, effects = step(uncertain, open_(record(2, 4, ONE.id), JOINING))
    assert worker.DropAttempt(time=ZERO.time, attempt=ZERO.attempt) in effects


# --- after a restart -----------------------------------------------------------------------------


def test_a_worker_without_a_log_knows_its_session() -> None:
    assert recovered(W1, 4, ()) == (WorkerState(worker=W1, session=4), ())


def test_the_newest_record_is_sealed_and_what_it_follows_is_decided() -> None:
    state, drops = recovered(W1, 1, (ONE, FOUNDING, ZERO))
    assert (state.decided, state.sealed, drops) == (ZERO, ONE, ())


def test_left_overs_of_earlier_attempts_are_dropped() -> None:
    again = record(0, 3, FOUNDING.id)
    state, drops = recovered(W1, 1, (FOUNDING, ZERO, again))
    assert state.sealed == again
    assert [drop.attempt for drop in drops] == [ZERO.attempt]


def test_a_removal_that_a_power_loss_undoes_does_not_hide_a_newer_record() -> None:
    """Batch 1 was sealed and given up; then an epoch record after batch 0 was sealed. Its place is
    before that of the left-over, its attempt is not."""
    change = replace(CHANGE, attempt=Attempt(1, 9))
    state, drops = recovered(W1, 1, (FOUNDING, ZERO, ONE, change))
    assert (state.decided, state.sealed) == (ZERO, change)
    assert [(drop.time, drop.step) for drop in drops] == [(ONE.time, 0)]


def test_an_epoch_record_that_was_given_up_does_not_stay() -> None:
    one = record(1, 9, ZERO.id)
    state, drops = recovered(W1, 1, (FOUNDING, ZERO, CHANGE, one))
    assert (state.decided, state.sealed) == (ZERO, one)
    assert [(drop.time, drop.step) for drop in drops] == [(ZERO.time, 1)]


def test_a_left_over_at_the_place_of_a_decided_record_does_not_stay() -> None:
    left = record(1, 3, ZERO.id)
    one = record(1, 5, ZERO.id)
    two = record(2, 6, one.id)
    state, drops = recovered(W1, 1, (FOUNDING, ZERO, left, one, two))
    assert (state.decided, state.sealed) == (one, two)
    assert [drop.attempt for drop in drops] == [left.attempt]


def test_records_before_a_gap_are_kept() -> None:
    """A joining member that has missed batches fetches them later; what it has stays."""
    seven = record(7, 9, record(6, 8).id)
    state, drops = recovered(W2, 1, (FOUNDING, ZERO, seven))
    assert (state.decided, state.sealed, drops) == (None, seven, ())


def test_what_a_restart_finds_is_what_was_known_without_it() -> None:
    """Up to what is not durable: an open attempt, and that the newest record is decided."""
    state = through(STATE, open_(ZERO), seal(ZERO), apply(ZERO), open_(ONE), seal(ONE))
    after, drops = recovered(W1, 1, (FOUNDING, ZERO, ONE))
    assert (after.decided, after.sealed, drops) == (state.decided, state.sealed, ())
    assert through(after, apply(ONE)).decided == ONE
