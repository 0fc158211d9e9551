"""Verdicts on workers, and what stops the controller from acting on them."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rhinoctl.ids import BatchTime
from rhinoctl.protocol.liveness import (
    Evidence,
    Past,
    Patience,
    Verdict,
    beacons_count,
    brake,
    judge,
)

PATIENCE = Patience(lease_s=5.0, agent_restart_s=10.0)


def seen(**changes: object) -> Evidence:
    plain: dict[str, object] = {
        "silent_s": 0.1,
        "up_s": 100.0,
        "refused": False,
        "instances": 2,
        "beacons": 2,
        "leaving": False,
        "decided_s": None,
    }
    return Evidence(**{**plain, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("evidence", "verdict"),
    [
        (seen(), Verdict.ALIVE),
        (seen(silent_s=3.0), Verdict.SUSPECT),
        (seen(silent_s=5.0), Verdict.LOST),
        (seen(silent_s=5.0, decided_s=1.0), Verdict.SUSPECT),
        (seen(silent_s=5.0, decided_s=6.0), Verdict.LOST),
        (seen(refused=True, beacons=0), Verdict.LOST),
        (seen(refused=True, beacons=1), Verdict.SUSPECT),
        (seen(refused=True, beacons=1, silent_s=10.0), Verdict.LOST),
        (seen(refused=True, beacons=0, leaving=True), Verdict.SUSPECT),
        (seen(refused=True, beacons=0, leaving=True, silent_s=10.0), Verdict.LOST),
        (seen(refused=True, instances=0, beacons=0), Verdict.SUSPECT),
        (seen(refused=True, instances=0, beacons=0, silent_s=10.0), Verdict.LOST),
        (seen(silent_s=None, up_s=1.0), Verdict.ALIVE),
        (seen(silent_s=None, up_s=5.0), Verdict.LOST),
        (seen(silent_s=None, up_s=1.0, refused=True, instances=0, beacons=0), Verdict.SUSPECT),
    ],
)
def test_verdicts(evidence: Evidence, verdict: Verdict) -> None:
    assert judge(evidence, PATIENCE) is verdict


@given(st.floats(0, 60), st.booleans(), st.integers(0, 3), st.integers(0, 3), st.floats(0, 60))
def test_more_silence_never_makes_it_more_alive(
    silent_s: float, refused: bool, instances: int, beacons: int, more_s: float
) -> None:
    order = [Verdict.ALIVE, Verdict.SUSPECT, Verdict.LOST]
    now = seen(
        silent_s=silent_s, refused=refused, instances=instances, beacons=min(beacons, instances)
    )
    later = seen(
        silent_s=silent_s + more_s,
        refused=refused,
        instances=instances,
        beacons=min(beacons, instances),
    )
    assert order.index(judge(now, PATIENCE)) <= order.index(judge(later, PATIENCE))


@given(
    st.one_of(st.none(), st.floats(0, 20)),
    st.booleans(),
    st.booleans(),
    st.integers(0, 3),
    st.one_of(st.none(), st.floats(0, 10)),
)
def test_beacons_are_asked_where_they_count(
    silent_s: float | None, refused: bool, leaving: bool, beacons: int, decided_s: float | None
) -> None:
    """Where they are not, the verdict is the same whatever they would have said."""
    instances = 0 if silent_s is None else 3  # who has never answered has told of no instance
    known = seen(
        silent_s=silent_s,
        refused=refused,
        leaving=leaving,
        instances=instances,
        beacons=0,
        decided_s=decided_s,
    )
    if beacons_count(known, PATIENCE) or not instances:
        return
    answers = [replace(known, beacons=beacons), replace(known, refused=False)]
    wanted = judge(known, PATIENCE)
    assert [judge(each, PATIENCE) for each in answers] == [wanted, wanted]


def test_a_worker_that_is_lost_for_good_is_not_asked_for_its_beacons() -> None:
    assert beacons_count(seen(refused=True, silent_s=1.0), PATIENCE)
    assert not beacons_count(seen(refused=False, silent_s=1.0), PATIENCE)
    assert not beacons_count(seen(refused=True, silent_s=10.0), PATIENCE)
    assert beacons_count(seen(refused=True, silent_s=10.0, decided_s=1.0), PATIENCE)


def test_many_losses_at_once_are_left_to_a_person() -> None:
    assert brake(lost=1, workers=2, decided=None, past=()) is None
    assert brake(lost=1, workers=3, decided=None, past=()) is None
    assert brake(lost=2, workers=6, decided=None, past=()) is None
    assert "2 of 5 workers" in (brake(lost=2, workers=5, decided=None, past=()) or "")


def test_a_batch_that_ends_two_workers_is_left_to_a_person() -> None:
    at, later = BatchTime(0, 7), BatchTime(0, 8)
    assert brake(lost=1, workers=3, decided=later, past=[Past(decided=at)]) is None
    assert "the batch after 0/7" in (
        brake(lost=1, workers=3, decided=at, past=[Past(decided=at)]) or ""
    )
