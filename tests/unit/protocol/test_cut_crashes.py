"""A worker is lost at every place of small jobs, and everybody else may die besides.

As in test_batch_crashes: the model asserts the invariants as it goes, and at the end that each
batch was counted once by everybody who holds a copy, and was put out.
"""

import pytest

from tests.fakes.cluster import scenarios
from tests.fakes.cluster.exploring import explore, losses, losses_and_deaths
from tests.fakes.cluster.world import Scenario, World


def name_of(scenario: Scenario) -> str:
    return scenario.name.replace(" ", "-").replace(",", "")


USUAL = (scenarios.BEHIND_EACH_OTHER, scenarios.LOST_AT_A_MARKER)
"""The smallest with all that there is to lose: between batches, and at a marker."""

every_job = pytest.mark.parametrize("scenario", scenarios.LOSABLE, ids=name_of)


@every_job
def test_invariants_hold_without_faults(scenario: Scenario) -> None:
    world = World(scenario).run()
    assert not world.faults
    assert all(count == 1 for count in world.oracle.delivered.values())


@pytest.mark.parametrize(
    "scenario",
    [
        pytest.param(job, id=name_of(job), marks=() if job in USUAL else pytest.mark.slow)
        for job in scenarios.LOSABLE
    ],
)
def test_invariants_1_2_4_6_14_whoever_is_lost_wherever(scenario: Scenario) -> None:
    """Dead, dead for a while, or cut off: the job goes on without it, and nothing that it does
    when it comes back counts."""
    assert explore(World(scenario), losses).runs > 200


@pytest.mark.slow
@pytest.mark.timeout(3600)
@every_job
def test_invariants_hold_whoever_is_lost_and_whoever_dies_then(scenario: Scenario) -> None:
    explore(World(scenario), losses_and_deaths, depth=2)
