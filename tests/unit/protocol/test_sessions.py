"""What a fence's answers show: the last decided record, and who else has to be asked."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from rhinoctl.ids import WorkerId
from rhinoctl.protocol.epochs import Epoch, with_members_full
from rhinoctl.protocol.messages import FenceAnswer
from rhinoctl.protocol.records import DecisionRecord
from rhinoctl.protocol.sessions import NOBODY, asked_after_all, last_decided, unfenced
from tests.fakes.cluster.scenarios import I0, I1, V0, W1, W2, W3, epoch
from tests.unit.protocol.building import FIRST, FOUNDING, fence_answer, record

ZERO = record(0, 2, FOUNDING.id)
ONE = record(1, 3, ZERO.id)
OTHER_ONE = record(1, 1, ZERO.id, session=2)
BETWEEN = record(0, 3, ZERO.id, step=1)

JOINING = epoch({I0: W1}, ((I0, "w2 w3?"),))
FULL = with_members_full(JOINING, {V0: W3})
MARKER = record(1, 3, ZERO.id, voters=(W1, W2, W3), next_epoch=FULL)
"""Batch 1 with the marker that makes w3 a full member, so that w3 votes on it."""


def at(decided: DecisionRecord | None, sealed: DecisionRecord | None = None) -> FenceAnswer:
    return fence_answer(decided, sealed)


ANSWERS: dict[str, tuple[Mapping[WorkerId, FenceAnswer], DecisionRecord | None]] = {
    "nobody has anything": ({W1: at(None), W2: at(None)}, None),
    "the first record, sealed by one": ({W1: at(None, FOUNDING), W2: at(None)}, None),
    "the first record, sealed by all": ({W1: at(None, FOUNDING), W2: at(None, FOUNDING)}, FOUNDING),
    "known to all": ({W1: at(ZERO), W2: at(ZERO)}, ZERO),
    "known to one, sealed by the other": ({W1: at(ZERO), W2: at(FOUNDING, ZERO)}, ZERO),
    "sealed by all, known to none": ({W1: at(ZERO, ONE), W2: at(ZERO, ONE)}, ONE),
    "sealed by one": ({W1: at(ZERO, ONE), W2: at(ZERO)}, ZERO),
    "two attempts": ({W1: at(ZERO, ONE), W2: at(ZERO, OTHER_ONE)}, ZERO),
    "an epoch record sealed by all": ({W1: at(ZERO, BETWEEN), W2: at(ZERO, BETWEEN)}, BETWEEN),
    "an epoch record beside a batch": ({W1: at(ZERO, BETWEEN), W2: at(ZERO, ONE)}, ZERO),
    "one is a record ahead": ({W1: at(ZERO, ONE), W2: at(FOUNDING, ZERO)}, ZERO),
    "one has restarted": ({W1: at(FOUNDING, ZERO), W2: at(ZERO, ONE)}, ZERO),
    "a marker without its newcomer": ({W1: at(ZERO, MARKER), W2: at(ZERO, MARKER)}, ZERO),
    "a marker that its newcomer has not": (
        {W1: at(ZERO, MARKER), W2: at(ZERO, MARKER), W3: at(None)},
        ZERO,
    ),
    "a marker with its newcomer": (
        {W1: at(ZERO, MARKER), W2: at(ZERO, MARKER), W3: at(None, MARKER)},
        MARKER,
    ),
}


@pytest.mark.parametrize(("answers", "last"), ANSWERS.values(), ids=ANSWERS.keys())
def test_the_last_decided_record(
    answers: Mapping[WorkerId, FenceAnswer], last: DecisionRecord | None
) -> None:
    assert last_decided(answers) == last


def test_invariant_4_a_voter_that_has_not_answered_leaves_a_record_open() -> None:
    """It may have been decided: the voter is asked, and until then nothing follows from it."""
    answers = {W1: at(ZERO, ONE)}
    assert last_decided(answers) == ZERO
    assert unfenced(answers) == {W2}


def test_the_voters_of_the_epoch_that_holds_are_fenced() -> None:
    moved_on = replace(ZERO, next_epoch=epoch({I0: W3}, ((I0, "w2"),)))
    assert unfenced({W1: at(moved_on), W2: at(moved_on)}) == {W3}


def test_invariant_6_a_newcomer_is_not_waited_for_once_its_marker_cannot_be_decided() -> None:
    """w3 was to become full and is gone. A voter that has not sealed the marker, and is fenced,
    never will: whatever w3 has makes no difference."""
    open_marker = {W1: at(ZERO, MARKER), W2: at(ZERO, MARKER)}
    assert unfenced(open_marker) == {W3}
    dead_marker = {W1: at(ZERO, MARKER), W2: at(ZERO)}
    assert unfenced(dead_marker) == frozenset()


def test_nobody_else_is_fenced_when_all_are() -> None:
    known: Epoch = FIRST
    answers = {worker: at(ZERO) for worker in known.voters()}
    assert unfenced(answers) == frozenset()
    assert unfenced({W1: at(None)}) == frozenset()


def test_the_lost_who_have_the_last_copies_of_a_vnode_are_asked_after_all() -> None:
    """w1 and w2 alone have vnode 0 in the epoch that w3 has sealed."""
    both, workers = frozenset({W1, W2}), {I0: W1, I1: W3}
    alone = epoch(workers, ((I0, "w2"), (I1, "")))
    sealed = record(1, 3, ZERO.id, voters=(W1, W2, W3), next_epoch=alone)
    survivors = {W3: at(ZERO, sealed)}
    assert last_decided(survivors, both) == sealed
    assert asked_after_all(survivors, both) == both
    assert asked_after_all(survivors, frozenset({W1})) == NOBODY, "w2 has sealed it, or it is open"
    assert asked_after_all({**survivors, W1: at(ZERO)}, both) == both
    assert asked_after_all({**survivors, W1: at(ZERO), W2: at(ZERO)}, both) == both
    assert asked_after_all({**survivors, W1: at(ZERO), W2: at(ZERO, sealed)}, both) == NOBODY
    spread = replace(sealed, next_epoch=epoch(workers, ((I0, "w2 w3"), (I1, ""))))
    assert asked_after_all({W3: at(ZERO, spread)}, both) == NOBODY
