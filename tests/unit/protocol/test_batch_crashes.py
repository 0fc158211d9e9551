"""Every fault at every place of small jobs: the batch protocol on the model of a cluster.

The model asserts the invariants of the design's section 10 as it goes (1, 2, 4, 7, 10, 12, 13, 14),
and at the end that every vnode's applied rows are the input of all batches, once and in order, on
every full holder. A job that does not come to its end fails, too (6, 12).
"""

import pytest

from rhinoctl.protocol.batches import FaultKind, Phase
from tests.fakes.cluster import scenarios
from tests.fakes.cluster.exploring import (
    crashes_only,
    explore,
    repeat_everything,
    storm,
)
from tests.fakes.cluster.world import Scenario, World

EVERY_FAULT = (
    scenarios.PLAIN,
    scenarios.CHAIN,
    scenarios.PROMOTED,
    scenarios.JOINED,
    scenarios.BETWEEN,
)
DEATHS = tuple(each for each in scenarios.ALL if each not in EVERY_FAULT)
"""Jobs that are near to one of those, or long: in `make test` with deaths only."""


def name_of(scenario: Scenario) -> str:
    return scenario.name.replace(" ", "-").replace(",", "")


every_job = pytest.mark.parametrize("scenario", scenarios.ALL, ids=name_of)


@every_job
def test_invariants_hold_without_faults(scenario: Scenario) -> None:
    world = World(scenario).run()
    assert not world.faults
    assert len(world.drivers) <= 3
    assert all(count == 1 for count in world.oracle.delivered.values())


@pytest.mark.parametrize("scenario", EVERY_FAULT, ids=name_of)
def test_invariants_1_2_4_7_10_13_whatever_fails_wherever(scenario: Scenario) -> None:
    """One fault: a driver that dies or is stopped and goes on, a worker that crashes after any
    effect, a power loss of all, a message or an answer that is lost."""
    world = World(scenario)
    tally = explore(world)
    assert tally.runs > 2 * world.ticks, "not every place was tried"


@pytest.mark.parametrize("scenario", DEATHS, ids=name_of)
def test_invariants_1_2_4_7_10_13_whoever_dies_wherever(scenario: Scenario) -> None:
    assert explore(World(scenario), crashes_only).runs > 100


def test_invariant_13_a_decided_batch_is_put_out_again_with_the_attempt_that_was_decided() -> None:
    """The driver dies after the user's function has got the batch, before Spark commits it."""
    world = World(scenarios.CHAIN)
    while world.oracle.delivered.get(0) is None:
        world.tick()
    decided = world.oracle.history
    world.kill_driver(in_flight_lost=False)
    world.run()
    assert world.oracle.delivered[0] == 2
    assert world.oracle.history[: len(decided)] == decided


@pytest.mark.parametrize("killed_in", [None, Phase.STAGING, Phase.SEALING, Phase.APPLYING])
@every_job
def test_invariants_1_and_11_whatever_message_comes_again(
    scenario: Scenario, killed_in: Phase | None
) -> None:
    """A second delivery of any request, however late, also when another session has begun since,
    changes nothing: no row is applied twice, nothing newer is displaced."""
    tally = repeat_everything(World(scenario), killed_in=killed_in)
    assert tally.runs > 100
    assert tally.ticks == 0


@pytest.mark.parametrize("seed", range(12))
@every_job
def test_invariants_hold_in_a_storm(scenario: Scenario, seed: int) -> None:
    """Messages overtake each other, several faults come at once, and the job still ends (6, 12)."""
    storm(scenario, seed)


def test_storms_are_not_idle() -> None:
    worlds = [storm(scenarios.PROMOTED, seed) for seed in range(40)]
    assert {FaultKind.FENCED, FaultKind.UNREACHABLE} <= set().union(*(w.faults for w in worlds))
    assert sum(len(world.drivers) > 2 for world in worlds) > 10


def test_a_storm_is_the_same_for_the_same_seed() -> None:
    runs = [storm(scenarios.CHAIN, 7) for _ in range(2)]
    assert runs[0].oracle.history == runs[1].oracle.history
    assert runs[0].ticks == runs[1].ticks


# --- longer than `make test` has time for ---------------------------------------------------------


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("scenario", DEATHS, ids=name_of)
def test_invariants_hold_for_every_fault_of_the_other_jobs(scenario: Scenario) -> None:
    explore(World(scenario))


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    "scenario", [scenarios.PLAIN, scenarios.PROMOTED, scenarios.JOINED], ids=name_of
)
def test_invariants_hold_for_every_pair_of_crashes(scenario: Scenario) -> None:
    explore(World(scenario), crashes_only, depth=2)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@every_job
def test_invariants_hold_in_many_storms(scenario: Scenario) -> None:
    for seed in range(1000, 2000):
        storm(scenario, seed)
