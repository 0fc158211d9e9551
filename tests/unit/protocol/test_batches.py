"""What the batch machine makes of answers, faults and proposals."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from rhinoctl import limits
from rhinoctl.ids import BASE, BatchTime, WorkerId
from rhinoctl.protocol import batches
from rhinoctl.protocol import messages as m
from rhinoctl.protocol.batches import Answered, Expired, FaultKind, Lost, Phase, Proposed
from rhinoctl.protocol.duties import Duty
from rhinoctl.protocol.epochs import with_chains_cut, with_members_full, with_moves
from rhinoctl.protocol.records import DecisionRecord, Watermarks
from tests.fakes.cluster.scenarios import I0, I1, TWO, V0, W1, W2, W3, epoch
from tests.unit.protocol.building import (
    CUT,
    DONE,
    FIRST,
    FOUNDING,
    JOINING,
    MOVED,
    Run,
    applied,
    applying,
    begun,
    fence_answer,
    fenced,
    fencing,
    lineage,
    opening,
    record,
    refusal,
    restaged,
    sealed,
    sealing,
    staged,
    task,
)

FULL = with_members_full(JOINING, {V0: W2})
"""The epoch that makes w2, which has joined, a full member."""
BATCH_0 = record(0, 2, FOUNDING.id)
CHANGE_AFTER_0 = replace(record(0, 3, BATCH_0.id, step=1, next_epoch=MOVED), epoch=1)
STRIPPED = with_chains_cut(FIRST, {V0: frozenset({W2})})
"""The next epoch: nobody but w1 has vnode 0."""
STRIPPED_AFTER_0 = replace(record(0, 3, BATCH_0.id, step=1, next_epoch=STRIPPED), epoch=1)


def fault(run: Run) -> FaultKind:
    assert run.state.phase is Phase.FAILED
    assert run.state.fault is not None
    return run.state.fault.kind


# --- the fence -----------------------------------------------------------------------------------


def test_invariant_1_nothing_is_opened_before_every_voter_has_fenced() -> None:
    run = fencing().answer(fence_answer(), W1)
    assert run.state.phase is Phase.FENCING
    assert run.sends == []
    run.answer(fence_answer(), W2)
    assert {type(send.message) for send in run.sends} == {m.Open}


def test_the_fence_follows_the_epochs_that_the_logs_show() -> None:
    """The controller believes in an epoch of one worker; the log knows of the next, with two."""
    alone = replace(JOINING, routes=(replace(JOINING.routes[0], members=()),))
    run = begun(replace(lineage(None, fenced=False), epoch=alone), task(1))
    assert [send.worker for send in run.sends] == [W1]
    run.answer(fence_answer(record(0, 2, FOUNDING.id, next_epoch=FIRST)), W1)
    assert [send.worker for send in run.sends] == [W2]
    run.answer(fence_answer(BATCH_0), W2)
    assert run.state.phase is Phase.OPENING


def test_a_job_without_a_record_is_refused() -> None:
    nothing = fence_answer(None)
    assert fault(fenced(task(), {W1: nothing, W2: nothing})) is FaultKind.BEHIND
    assert fault(begun(lineage(None), task())) is FaultKind.BEHIND


# --- identity (invariant 11) ---------------------------------------------------------------------

BEFORE = [BATCH_0, CHANGE_AFTER_0]
"""The last decided record: a batch, or an epoch record after it."""


@pytest.mark.parametrize("last", BEFORE, ids=["batch", "epoch-record"])
@pytest.mark.parametrize(
    ("asked", "kind"),
    [
        (task(0, end_offsets="9"), FaultKind.OFFSETS_DIFFER),
        (task(1, start_offsets="9"), FaultKind.OFFSETS_DIFFER),
        (task(1, operator="sum"), FaultKind.OTHER_OPERATOR),
        (task(0, operator="sum"), FaultKind.OTHER_OPERATOR),
        (task(2), FaultKind.WRONG_BATCH),
    ],
)
def test_invariant_11_a_changed_identity_is_refused(
    last: DecisionRecord, asked: batches.Task, kind: FaultKind
) -> None:
    assert fault(begun(lineage(last), asked)) is kind


def test_invariant_11_a_replay_that_starts_elsewhere_is_refused() -> None:
    last = record(1, 3, BATCH_0.id)
    assert fault(begun(lineage(last), task(1, start_offsets="9"))) is FaultKind.OFFSETS_DIFFER
    assert begun(lineage(last), task(1, start_offsets="")).state.phase is Phase.APPLYING


def test_invariant_11_a_new_stream_is_another_generation_not_another_batch() -> None:
    last = record(7, 3, BATCH_0.id)
    assert fault(begun(lineage(last), task(0))) is FaultKind.WRONG_BATCH
    reborn = replace(task(0), time=BatchTime(1, 0))
    assert begun(lineage(last), reborn).state.phase is Phase.OPENING
    assert fault(begun(lineage(last), replace(reborn, time=BatchTime(1, 1)))) is (
        FaultKind.WRONG_BATCH
    )


# --- replays -------------------------------------------------------------------------------------


@pytest.mark.parametrize("last", BEFORE, ids=["batch", "epoch-record"])
def test_invariant_13_a_decided_batch_is_not_staged_again(last: DecisionRecord) -> None:
    """Whatever was sealed after it: an epoch record stands for the batch, and asks all its voters,
    among which are those who owned the batch."""
    run = begun(lineage(last), task(0))
    assert run.state.phase is Phase.APPLYING
    assert {send.worker: send.message for send in run.sends} == {
        w: m.Apply(header=run.state.lineage.header(), record=last.id, voter=True)
        for w in last.voters
    }


def owing(worker: WorkerId) -> tuple[Duty, ...]:
    """A part that a worker owes."""
    return (Duty(instance=I0, worker=worker, part=0, vnodes=frozenset({V0})),)


def test_invariant_14_who_owned_the_batch_is_asked_for_its_output_wherever_the_vnodes_are_now() -> (
    None
):
    """w3 owned, has left the epoch by one record, and did not vote on the one after that."""
    gone = replace(CHANGE_AFTER_0, owed=(*owing(W1), *owing(W3)))
    run = begun(lineage(gone), task(0))
    assert {send.worker for send in run.sends} == run.state.waiting == {W1, W2, W3}
    change = begun(lineage(gone), batches.Task(time=BASE, change=MOVED))
    assert change.state.waiting == {W1, W2}, "an epoch record has no output"


def test_a_record_says_who_owes_its_output_and_epoch_records_repeat_it() -> None:
    run = sealing()
    assert run.state.record is not None
    assert run.state.record.owing == {W1, W2}
    assert sealing(None, JOINING).state.record.owing == {W1}  # type: ignore[union-attr]
    written = begun(lineage(replace(BATCH_0, owed=owing(W3))), CHANGE).state.record
    assert written is not None
    assert written.owed == owing(W3)


def test_invariant_14_what_another_run_has_released_is_not_put_out_empty() -> None:
    run = begun(lineage(BATCH_0), task(0))
    run.answer(applied(run.state, released=True), W1)
    assert fault(run) is FaultKind.RELEASED


# --- attempts ------------------------------------------------------------------------------------


def test_attempts_end() -> None:
    run = opening()
    while run.state.phase is Phase.OPENING:
        run.answer(DONE, W1, W2)
        run.on(staged(run, "push to w1 failed"))
    assert fault(run) is FaultKind.ATTEMPTS
    assert run.state.attempts == limits.ATTEMPTS_MAX


def test_invariant_4_a_silent_voter_is_asked_again_and_never_left_out() -> None:
    run = sealing()
    run.answer(sealed(run.state), W1)
    for _ in range(50):
        run.on(Lost(worker=W2, detail="no answer"))
        assert run.state.waiting == {W2}
        assert [type(send.message) for send in run.sends] == [m.Seal]
    assert fault(run.on(Expired())) is FaultKind.UNREACHABLE
    assert run.state.fault is not None
    assert run.state.fault.workers == (W2,)


@pytest.mark.parametrize("code", [m.RefusalCode.BUSY, m.RefusalCode.UNKNOWN_JOB])
@pytest.mark.parametrize("start", [fencing, opening, sealing, applying])
def test_invariant_12_what_is_asked_again_is_asked_after_a_delay(
    start: Callable[[], Run], code: m.RefusalCode
) -> None:
    """So that no loop spins until the phase's deadline ends it."""
    run = start().answer(refusal(code), W2)
    assert [send.delay_s for send in run.sends] == [limits.RETRY_DELAY_S]
    run.on(Lost(worker=W2, detail="no answer"))
    assert [send.delay_s for send in run.sends] == [limits.RETRY_DELAY_S]


def test_invariant_12_missing_slices_are_waited_for_then_staged_anew() -> None:
    run, resends = sealing(), 0
    first = run.state.attempt
    run.answer(sealed(run.state), W1)
    for _ in range(limits.SEAL_MISSES_MAX):
        run.answer(sealed(run.state, (0, V0)), W2)
        asked = [send for send in run.sends if isinstance(send.message, m.Resend)]
        resends += len(asked)
        assert all(send.worker == W1 for send in asked)
        again = [send for send in run.sends if isinstance(send.message, m.Seal)]
        assert [send.delay_s for send in again] == [limits.MISSING_DELAY_S]
    assert resends == limits.SEAL_MISSES_MAX // limits.RESEND_EVERY
    run.answer(sealed(run.state, (0, V0)), W2)
    assert (run.state.phase, run.state.attempt) != (Phase.SEALING, first)
    assert run.state.phase is Phase.OPENING


def test_invariant_12_missing_slices_are_waited_for_longer_with_each_attempt() -> None:
    """As long in all as a silent worker is, within the deadline of each seal."""
    longest = limits.SEAL_MISSES_MAX << (limits.ATTEMPTS_MAX - 1)
    assert longest * limits.MISSING_DELAY_S < limits.SEAL_DEADLINE_S
    run = sealing()
    run.state = replace(run.state, attempts=3, misses={W2: 4 * limits.SEAL_MISSES_MAX - 1})
    assert run.answer(sealed(run.state, (0, V0)), W2).state.phase is Phase.SEALING
    assert run.answer(sealed(run.state, (0, V0)), W2).state.phase is Phase.OPENING


def test_the_answer_to_a_resend_is_no_answer_to_a_seal() -> None:
    run = sealing()
    before = run.state
    assert run.answer(DONE, W1).state == before


def test_answers_of_workers_that_nobody_waits_for_change_nothing() -> None:
    for run in (opening(first=JOINING), sealing(first=JOINING)):
        before = run.state
        run.answer(refusal(m.RefusalCode.FENCED), W2)
        run.on(Lost(worker=W2, detail="no answer"))
        assert run.state == before
        assert run.effects == ()


# --- markers -------------------------------------------------------------------------------------


def test_a_marker_is_sealed_by_those_whom_it_makes_voters() -> None:
    run = sealing(FULL, JOINING)
    assert run.state.record is not None
    assert run.state.record.next_epoch == FULL
    assert run.state.waiting == {W1, W2}
    assert sealing(None, JOINING).state.waiting == {W1}


def test_a_proposal_is_taken_up_to_the_seal() -> None:
    run = opening().answer(DONE, W1, W2).on(Proposed(epoch=MOVED))
    run.on(staged(run))
    assert run.state.record is not None
    assert run.state.record.next_epoch == MOVED


def test_a_proposal_that_does_not_follow_the_epoch_is_not_taken() -> None:
    stale = replace(MOVED, number=7)
    unready = with_moves(JOINING, {V0: I1}, TWO)
    for proposal, first in ((stale, FIRST), (unready, JOINING)):
        run = sealing(proposal, first)
        assert run.state.record is not None
        assert run.state.record.next_epoch == first


NEWCOMER_FAILS = {
    "silent": Expired(),
    "restarted": Answered(worker=W2, message=refusal(m.RefusalCode.NOT_OPEN)),
    "not whole": Answered(worker=W2, message=refusal(m.RefusalCode.BEHIND)),
    "faulty": Answered(worker=W2, message=refusal(m.RefusalCode.FAULT)),
}


@pytest.mark.parametrize("event", NEWCOMER_FAILS.values(), ids=NEWCOMER_FAILS.keys())
def test_invariant_6_a_newcomer_costs_the_batch_its_marker_not_the_query_its_life(
    event: batches.Event,
) -> None:
    run = sealing(FULL, JOINING).on(event)
    assert run.state.plain
    run.answer(DONE, W1).on(Proposed(epoch=FULL))
    run.on(staged(run))
    assert run.state.record is not None
    assert not run.state.record.is_marker, "the marker was tried with this batch already"
    run.answer(sealed(run.state), W1)
    assert run.state.phase is Phase.APPLYING
    again = begun(run.state.lineage, task(1), FULL)
    tried_again = restaged(again, (W1,)).state.record
    assert tried_again is not None
    assert tried_again.is_marker


def test_an_owner_whose_other_copy_is_not_whole_costs_the_marker_only() -> None:
    """w2 votes anyway, for its own vnode; what it refuses is to be full of another."""
    first = epoch(TWO, ((I0, "w2?"), (I1, "")))
    run = sealing(with_members_full(first, {V0: W2}), first)
    run.answer(refusal(m.RefusalCode.BEHIND), W2)
    assert (run.state.phase, run.state.plain) == (Phase.OPENING, True)


def test_a_voter_that_lacks_a_decided_record_ends_the_batch() -> None:
    for run in (opening(), sealing(), applying()):
        assert fault(run.answer(refusal(m.RefusalCode.BEHIND), W2)) is FaultKind.BEHIND


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (m.RefusalCode.FENCED, FaultKind.FENCED),
        (m.RefusalCode.POISON, FaultKind.POISON),
        (m.RefusalCode.FAULT, FaultKind.REFUSED),
        (m.RefusalCode.FOREIGN, FaultKind.REFUSED),
    ],
)
def test_a_refusal_that_repeating_cannot_mend_ends_the_batch(
    code: m.RefusalCode, kind: FaultKind
) -> None:
    for start in (fencing, opening, sealing, applying):
        assert fault(start().answer(refusal(code), W2)) is kind


# --- epoch records -------------------------------------------------------------------------------

CHANGE = batches.Task(time=BASE, change=MOVED)


def test_an_epoch_record_repeats_what_the_next_batch_has_to_know() -> None:
    """Its watermarks, times and operator are those of the batch it follows: a later session may
    see nothing but the epoch record."""
    marks = Watermarks(late_ms=5, evict_ms=7, max_event_ms=(11,))
    last = replace(BATCH_0, watermarks=marks, batch_time_ms=1000, rows={V0: 3})
    written = begun(lineage(last), CHANGE).state.record
    assert written is not None
    assert (written.watermarks, written.batch_time_ms) == (marks, 1000)
    assert (written.end_offsets, written.operator, written.rows) == ("1", "count", {V0: 3})
    assert (written.after, written.position) == (last.id, last.position._replace(step=1))
    assert written.winners == ()


def test_an_epoch_record_for_another_epoch_than_the_fence_shows_is_refused() -> None:
    for number in (3, 9):
        ahead = replace(MOVED, number=number)
        stale = begun(lineage(BATCH_0), batches.Task(time=BASE, change=ahead))
        assert fault(stale) is FaultKind.STALE_EPOCH
    lawless = with_moves(JOINING, {V0: I1}, TWO)
    last = replace(BATCH_0, next_epoch=JOINING)
    refused = begun(lineage(last), batches.Task(time=BASE, change=lawless))
    assert fault(refused) is FaultKind.STALE_EPOCH


def test_an_epoch_that_holds_already_is_made_known_to_all() -> None:
    """It was sealed by all, and the one who asked for it died before it could say so."""
    run = begun(lineage(CHANGE_AFTER_0), CHANGE)
    assert run.state.phase is Phase.APPLYING
    assert {type(send.message) for send in run.sends} == {m.Apply}
    run.answer(applied(run.state, released=True), W1, W2)
    assert run.state.ended
    assert run.state.fault is None
    assert run.state.lineage.epoch == MOVED


# --- what the lost are asked all the same --------------------------------------------------------


def stripped(**cut: bool) -> Run:
    """w1 is given up, and w2 has sealed that it keeps no copy of vnode 0 any more."""
    task_ = batches.Task(time=BASE, change=replace(CUT, **cut))  # type: ignore[arg-type]
    run = begun(lineage(None, fenced=False), task_)
    assert {send.worker for send in run.sends} == {W2}
    return run.answer(fence_answer(BATCH_0, STRIPPED_AFTER_0), W2)


def test_invariant_2_who_has_the_last_copy_is_asked_before_a_record_counts_without_it() -> None:
    """No cut could follow that record: the job would go on with w1, which does not know of it."""
    run = stripped()
    assert [(send.worker, type(send.message)) for send in run.sends] == [(W1, m.Fence)]
    assert run.state.phase is Phase.FENCING
    assert fault(run.on(Expired())) is FaultKind.UNREACHABLE
    assert run.state.fault is not None
    assert run.state.fault.workers == (W1,)


def test_what_the_last_copy_has_not_sealed_was_never_decided() -> None:
    run = stripped().answer(fence_answer(BATCH_0), W1)
    assert run.state.phase is Phase.SEALING
    assert run.state.record is not None
    assert (run.state.record.next_epoch, run.state.record.after) == (CUT, BATCH_0.id)
    assert {send.worker for send in run.sends} == {W2}


def test_what_the_last_copy_has_sealed_was_decided() -> None:
    run = stripped().answer(fence_answer(BATCH_0, STRIPPED_AFTER_0), W1)
    assert run.state.phase is Phase.APPLYING
    assert run.state.record == STRIPPED_AFTER_0


def test_who_has_accepted_that_state_is_lost_does_not_wait_for_the_last_copy() -> None:
    run = stripped(forced=True)
    assert run.state.phase is Phase.APPLYING
    assert run.state.record == STRIPPED_AFTER_0


def test_a_record_that_a_cut_can_follow_counts_without_the_lost() -> None:
    moved = batches.Task(time=BASE, change=CUT)
    run = begun(lineage(None, fenced=False), moved)
    run.answer(fence_answer(BATCH_0, CHANGE_AFTER_0), W2)
    assert run.state.phase is Phase.APPLYING
    assert run.state.record == CHANGE_AFTER_0


def test_a_driver_asks_the_last_copy_too() -> None:
    run = begun(lineage(None, fenced=False), task(1), CUT)
    run.answer(fence_answer(BATCH_0, STRIPPED_AFTER_0), W2)
    run.on(Proposed(epoch=CUT))
    assert {(send.worker, type(send.message)) for send in run.sends} == {(W1, m.Fence)}
    run.answer(fence_answer(BATCH_0), W1)
    assert run.state.phase is Phase.CUTTING


def test_an_epoch_record_that_a_newcomer_cannot_seal_ends() -> None:
    run = begun(
        lineage(replace(FOUNDING, next_epoch=JOINING)), batches.Task(time=BASE, change=FULL)
    )
    assert fault(run.answer(refusal(m.RefusalCode.BEHIND), W2)) is FaultKind.BEHIND
