"""Each of the design's six bugs is found within 1,000 seeds (design, section 10).

Opt in: ``pytest -m slow tests/sim``. `make sim SEEDS=0:1000 BUG=cut-without-an-epoch` tells how.
"""

import pytest

from tests.sim.bugs import BUGS, seeded
from tests.sim.plan import plan_of
from tests.sim.run import simulate

SEEDS_MAX = 1000


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("bug", BUGS)
def test_a_seeded_bug_is_caught(bug: str) -> None:
    with seeded(bug):
        seed = next((s for s in range(SEEDS_MAX) if simulate(plan_of(s)).finding), None)
    assert seed is not None
    assert simulate(plan_of(seed)).finding is None, "it was not the bug that was found"
