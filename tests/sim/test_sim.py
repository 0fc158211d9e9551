"""A few seeds of the simulator at each run of the tests, and all that have found something.

`make sim` runs others (docs/simulator.md).
"""

from collections import Counter
from functools import cache

import pytest

from tests.fakes.rows import TABLES, Row
from tests.sim import cluster
from tests.sim import faults as f
from tests.sim.cluster import BYTES_EVERY
from tests.sim.plan import plan_of
from tests.sim.run import Outcome, simulate
from tests.sim.seeds import FOUND, USUAL


@cache
def outcome_of(seed: int) -> Outcome:
    return simulate(plan_of(seed))


@pytest.mark.timeout(400)
def test_nothing_is_found_by_seeds_in_which_every_fault_strikes() -> None:
    """One fault that never does would be a hole. All seeds are in one test: it takes them together
    to say that, and no seed is run for it twice. Rows that are never taken here are taken in
    tests/unit/protocol."""
    struck: Counter[type[f.Fault]] = Counter()
    taken: set[Row] = set()
    for seed in USUAL:
        outcome = outcome_of(seed)
        if outcome.finding is not None:
            outcome.finding.add_note(f"make sim SEED={seed}\n{outcome.plan}")
            raise outcome.finding
        struck += outcome.struck
        taken |= outcome.rows
    assert sorted(kind.__name__ for kind in f.KINDS if not struck[kind]) == []
    assert sorted(taken - TABLES) == []
    assert len(taken) > len(TABLES) // 3


@pytest.mark.slow
@pytest.mark.parametrize("seed", FOUND)
def test_what_a_seed_has_found_is_not_found_again(seed: int) -> None:
    outcome = outcome_of(seed)
    if outcome.finding is not None:
        outcome.finding.add_note(f"make sim SEED={seed}\n{outcome.plan}")
        raise outcome.finding


def test_messages_as_bytes_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Most seeds send messages as they are: nobody changes one that was sent."""
    seed = USUAL[0]
    assert seed % BYTES_EVERY
    monkeypatch.setattr(cluster, "BYTES_EVERY", 1)
    assert simulate(plan_of(seed)).digest == outcome_of(seed).digest


def test_a_seed_does_the_same_again() -> None:
    first, again = outcome_of(USUAL[0]), simulate(plan_of(USUAL[0]))
    assert (first.digest, first.done) == (again.digest, again.done)
    assert first.digest != outcome_of(USUAL[1]).digest


def test_a_fault_that_is_left_out_leaves_the_others_as_they_are() -> None:
    plan = plan_of(USUAL[0])
    shorter = plan.without(frozenset({1}))
    assert shorter.numbers == (0, *range(2, len(plan.events)))
    assert [e.fault for e in shorter.events] == [plan.events[n].fault for n in shorter.numbers]
    assert sum(e.wait_s for e in shorter.events) == pytest.approx(
        sum(e.wait_s for e in plan.events)
    )


def test_rotten_bits_are_on_one_worker_with_copies_elsewhere() -> None:
    for seed in range(300):
        plan = plan_of(seed)
        rot = [e.fault.worker for e in plan.events if isinstance(e.fault, f.BitRot)]
        lost = [e.fault.worker for e in plan.events if isinstance(e.fault, f.CrashWorker)]
        if rot:
            assert plan.setup.replication
            assert {*rot, *lost} == {plan.setup.rotten}
