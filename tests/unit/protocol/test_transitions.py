"""The table of transitions: each is taken once, and what is not in it is refused."""

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import pytest

from rhinoctl import limits
from rhinoctl.ids import Attempt, WorkerId
from rhinoctl.protocol import batches
from rhinoctl.protocol import messages as m
from rhinoctl.protocol.batches import (
    Answered,
    Event,
    Expired,
    Lost,
    Phase,
    Proposed,
    Staged,
)
from rhinoctl.protocol.records import DecisionRecord
from tests.fakes.cluster.scenarios import W1, W2
from tests.unit.protocol.building import (
    CUT,
    DONE,
    FIRST,
    FOUNDING,
    MOVED,
    Run,
    applied,
    applying,
    cutting,
    fence_answer,
    fencing,
    lineage,
    opening,
    record,
    refusal,
    restaged,
    sealed,
    sealing,
    staged,
    staging,
    task,
)


class Way(NamedTuple):
    """How a transition is taken: a run up to it, and the event."""

    run: Run
    event: Event


def answer(run: Run, message: m.Message) -> Way:
    return Way(run, Answered(worker=W2, message=message))


def last_fence(task_: batches.Task, message: m.Message) -> Way:
    return answer(fencing(task_).answer(fence_answer(), W1), message)


def lost(run: Run) -> Way:
    return Way(run, Lost(worker=W2, detail="no answer"))


def at_last_attempt() -> Run:
    """The last staging that the bound allows."""
    run = opening()
    for _ in range(limits.ATTEMPTS_MAX - 1):
        run.answer(DONE, W1, W2)
        run.on(staged(run, "push failed"))
    return run.answer(DONE, W1, W2)


def failed_staging() -> Way:
    run = at_last_attempt()
    return Way(run, staged(run, "push failed"))


def staged_now(*failures: str) -> Way:
    run = staging()
    return Way(run, staged(run, *failures))


def last_answer_in_sealing() -> Way:
    run = sealing()
    return answer(run.answer(sealed(run.state), W1), sealed(run.state))


def last_answer_in_applying() -> Way:
    run = applying()
    return answer(run.answer(applied(run.state), W1), applied(run.state))


def given_up(*, batch: int = 0, last: m.FenceAnswer | None = None) -> Way:
    """Only w1 has not answered the fence, and is given up."""
    run = fencing(task(batch)).answer(last or fence_answer(), W2)
    return Way(run, Proposed(epoch=CUT))


def elsewhere(decided: DecisionRecord) -> m.FenceAnswer:
    """The logs are at an epoch that the proposed cut does not follow."""
    return fence_answer(replace(decided, next_epoch=replace(FIRST, number=5)))


A = Answered
NOT_OPEN, POISON = m.RefusalCode.NOT_OPEN, m.RefusalCode.POISON
P = Phase
CHANGE = batches.Task(time=FOUNDING.time, change=MOVED)

WAYS: dict[tuple[Phase, type, Phase], Callable[[], Way]] = {
    (P.FENCING, A, P.FENCING): lambda: answer(fencing(), fence_answer()),
    (P.FENCING, A, P.OPENING): lambda: last_fence(task(), fence_answer()),
    (P.FENCING, A, P.SEALING): lambda: last_fence(CHANGE, fence_answer()),
    (P.FENCING, A, P.APPLYING): lambda: last_fence(task(), fence_answer(record(0, 2, FOUNDING.id))),
    (P.FENCING, A, P.FAILED): lambda: last_fence(task(7), fence_answer()),
    (P.FENCING, Lost, P.FENCING): lambda: lost(fencing()),
    (P.FENCING, Expired, P.FAILED): lambda: Way(fencing(), Expired()),
    (P.FENCING, Proposed, P.FENCING): lambda: Way(fencing(), Proposed(epoch=MOVED)),
    (P.FENCING, A, P.CUTTING): lambda: answer(fencing().on(Proposed(epoch=CUT)), fence_answer()),
    (P.FENCING, Proposed, P.CUTTING): given_up,
    (P.FENCING, Proposed, P.OPENING): lambda: given_up(last=elsewhere(FOUNDING)),
    (P.FENCING, Proposed, P.APPLYING): lambda: given_up(last=elsewhere(record(0, 2, FOUNDING.id))),
    (P.FENCING, Proposed, P.FAILED): lambda: given_up(batch=7, last=elsewhere(FOUNDING)),
    (P.CUTTING, A, P.CUTTING): lambda: answer(cutting(), sealed(sealing().state)),
    (P.CUTTING, A, P.OPENING): lambda: answer(run := cutting(), sealed(run.state)),
    (P.CUTTING, A, P.APPLYING): lambda: answer(run := cutting(applying()), sealed(run.state)),
    (P.CUTTING, A, P.FAILED): lambda: answer(cutting(), refusal(m.RefusalCode.FENCED)),
    (P.CUTTING, Lost, P.CUTTING): lambda: lost(cutting()),
    (P.CUTTING, Staged, P.CUTTING): lambda: Way(cutting(), staged(staging())),
    (P.CUTTING, Expired, P.FAILED): lambda: Way(cutting(), Expired()),
    (P.CUTTING, Proposed, P.CUTTING): lambda: Way(cutting(), Proposed(epoch=None)),
    (P.OPENING, Proposed, P.CUTTING): lambda: Way(opening(), Proposed(epoch=CUT)),
    (P.STAGING, Proposed, P.CUTTING): lambda: Way(staging(), Proposed(epoch=CUT)),
    (P.SEALING, Proposed, P.CUTTING): lambda: Way(sealing(), Proposed(epoch=CUT)),
    (P.APPLYING, Proposed, P.CUTTING): lambda: Way(applying(), Proposed(epoch=CUT)),
    (P.OPENING, A, P.OPENING): lambda: answer(opening(), DONE),
    (P.OPENING, A, P.STAGING): lambda: answer(opening().answer(DONE, W1), DONE),
    (P.OPENING, A, P.FAILED): lambda: answer(opening(), refusal(m.RefusalCode.FENCED)),
    (P.OPENING, Lost, P.OPENING): lambda: lost(opening()),
    (P.OPENING, Expired, P.FAILED): lambda: Way(opening(), Expired()),
    (P.OPENING, Proposed, P.OPENING): lambda: Way(opening(), Proposed(epoch=MOVED)),
    (P.STAGING, Staged, P.OPENING): lambda: staged_now("push failed"),
    (P.STAGING, Staged, P.SEALING): lambda: staged_now(),
    (P.STAGING, Staged, P.FAILED): failed_staging,
    (P.STAGING, A, P.STAGING): lambda: answer(staging(), DONE),
    (P.STAGING, Lost, P.STAGING): lambda: lost(staging()),
    (P.STAGING, Expired, P.FAILED): lambda: Way(staging(), Expired()),
    (P.STAGING, Proposed, P.STAGING): lambda: Way(staging(), Proposed(epoch=MOVED)),
    (P.SEALING, A, P.SEALING): lambda: answer(run := sealing(), sealed(run.state)),
    (P.SEALING, A, P.OPENING): lambda: answer(sealing(), refusal(NOT_OPEN)),
    (P.SEALING, A, P.APPLYING): last_answer_in_sealing,
    (P.SEALING, A, P.FAILED): lambda: answer(sealing(), refusal(m.RefusalCode.FAULT)),
    (P.SEALING, Lost, P.SEALING): lambda: lost(sealing()),
    (P.SEALING, Expired, P.OPENING): lambda: Way(sealing(MOVED), Expired()),
    (P.SEALING, Expired, P.FAILED): lambda: Way(sealing(), Expired()),
    (P.SEALING, Proposed, P.SEALING): lambda: Way(sealing(), Proposed(epoch=MOVED)),
    (P.APPLYING, A, P.APPLYING): lambda: answer(run := applying(), applied(run.state)),
    (P.APPLYING, A, P.DONE): last_answer_in_applying,
    (P.APPLYING, A, P.FAILED): lambda: answer(applying(), refusal(POISON)),
    (P.APPLYING, Lost, P.APPLYING): lambda: lost(applying()),
    (P.APPLYING, Expired, P.FAILED): lambda: Way(applying(), Expired()),
    (P.APPLYING, Proposed, P.APPLYING): lambda: Way(applying(), Proposed(epoch=MOVED)),
}


def label(way: tuple[Phase, type, Phase]) -> str:
    return f"{way[0].value}-{way[1].__name__}-{way[2].value}"


@pytest.mark.parametrize("way", WAYS, ids=label)
def test_a_transition_is_taken(way: tuple[Phase, type, Phase]) -> None:
    before, event = WAYS[way]()
    assert (before.state.phase, type(event)) == way[:2]
    after, _ = batches.step(before.state, event)
    assert after.phase is way[2]


def test_every_transition_of_the_table_is_taken() -> None:
    listed = {(*pair, to) for pair, targets in batches.TRANSITIONS.items() for to in targets}
    assert set(WAYS) == listed


STATES: dict[Phase, Callable[[], Run]] = {
    Phase.FENCING: fencing,
    Phase.CUTTING: cutting,
    Phase.OPENING: opening,
    Phase.STAGING: staging,
    Phase.SEALING: sealing,
    Phase.APPLYING: applying,
    Phase.DONE: lambda: (run := applying()).answer(applied(run.state), W1, W2),
    Phase.FAILED: lambda: fencing().on(Expired()),
}
EVENTS: tuple[Event, ...] = (
    Answered(worker=W1, message=DONE),
    Lost(worker=W1, detail=""),
    Staged(attempt=Attempt(2, 1), receipts=()),
    Proposed(epoch=None),
    Expired(),
)
ILLEGAL = [
    (phase, event)
    for phase in Phase
    for event in EVENTS
    if (phase, type(event)) not in batches.TRANSITIONS
]


@pytest.mark.parametrize(
    ("phase", "event"), ILLEGAL, ids=[f"{p.value}-{type(e).__name__}" for p, e in ILLEGAL]
)
def test_what_is_not_in_the_table_is_refused(phase: Phase, event: Event) -> None:
    run = STATES[phase]()
    assert run.state.phase is phase
    with pytest.raises(LookupError):
        batches.step(run.state, event)


def test_a_target_that_is_not_in_the_table_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The table is what the code consults, not a description of it."""
    table = {**batches.TRANSITIONS, (Phase.OPENING, Answered): frozenset({Phase.OPENING})}
    monkeypatch.setattr(batches, "TRANSITIONS", table)
    with pytest.raises(LookupError):
        opening().answer(DONE, W1, W2)


def test_a_session_that_has_fenced_begins_where_the_fence_would_lead() -> None:
    assert opening().state.phase is Phase.OPENING
    replay, _ = batches.begin(lineage(record(0, 2, FOUNDING.id)), task())
    assert (replay.phase, replay.replayed) == (Phase.APPLYING, True)
    change, _ = batches.begin(lineage(), CHANGE)
    assert change.phase is Phase.SEALING


def test_a_batch_goes_on_with_the_survivors() -> None:
    """Only w2 opens, seals and applies the batch that w1 was lost in."""
    run = cutting(sealing())
    run.answer(sealed(run.state), W2)
    assert run.state.phase is Phase.OPENING
    assert run.state.waiting == {W2}
    assert run.state.lineage.epoch == CUT
    restaged(run, [W2])
    assert run.state.record is not None
    assert run.state.record.voters == (W2,)


def test_after_a_cut_the_notice_of_a_decided_batch_is_said_again() -> None:
    """All outputs are asked for anew: those of the lost come from their heirs."""
    run = applying().answer(applied(applying().state), W1)
    cutting(run)
    run.answer(sealed(run.state), W2)
    assert run.state.phase is Phase.APPLYING
    assert run.state.waiting == {W2}
    assert not run.state.outputs
    assert run.state.record is not None
    assert run.state.record.owing == {W2}


def test_another_loss_replaces_the_cut() -> None:
    """Of the same number, under another attempt; the same one offered again changes nothing."""
    run = cutting()
    again, effects = batches.step(run.state, Proposed(epoch=CUT))
    assert again == run.state
    assert not effects
    first = run.state.attempt
    run.on(Proposed(epoch=replace(CUT, workers={**CUT.workers, WorkerId("w9"): "w9.sock"})))
    assert run.state.attempt is not None
    assert first is not None
    assert run.state.attempt > first


def test_an_attempt_number_is_never_used_again() -> None:
    """Whatever becomes of a task, its lineage knows every attempt it made."""
    run = staging()
    used = {run.state.attempt}
    for _ in range(3):
        run.on(staged(run, "push failed"))
        assert run.state.attempt not in used
        used.add(run.state.attempt)
        run.answer(DONE, W1, W2)
    run.on(Expired())
    again, _ = batches.begin(run.state.lineage, task())
    assert again.attempt not in used
    assert restaged(Run(again), (W1, W2)).state.phase is Phase.SEALING
