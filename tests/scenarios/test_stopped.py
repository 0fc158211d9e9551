"""An owner that stands still (SIGSTOP) until others have inherited, and then goes on where it stood
(design, section 14): what it still writes and says changes nothing."""

import pytest

from rhinoctl.protocol.handover import Phase
from tests.scenarios.test_failover import W1, all_copies, end, failovers, goes_on, started

STEPS = {
    "before it writes an output": ("w1/i0", "disk.append", "/out/", False),
    "after it has written an output": ("w1/i0", "disk.append", "/out/", True),
    "before it says that a batch is applied": ("w1/i0", "reply BatchApplied", "", False),
    "before its seal is durable": ("w1", "disk.sync", "/log/", False),
    "before it says that it has sealed": ("w1", "reply SealAnswer", "", False),
    "before it says that a batch is applied everywhere": ("w1", "reply ApplyAnswer", "", False),
}


@pytest.mark.parametrize(
    "step",
    [
        pytest.param(step, marks=pytest.mark.slow if step.startswith("after") else ())
        for step in STEPS
    ],
)
def test_a_stopped_owner_goes_on_after_it_was_given_up(step: str) -> None:
    world, query = started()
    process, does, holding, after = STEPS[step]
    others = ["w1", *(f"w1#{pid}" for pid in world.hosts["w1"].instances)]
    standing = f"w1#{world.hosts['w1'].pids('i0')[0]}" if "/" in process else "w1"

    def stand_still() -> None:
        """The whole host: this process in the middle of its step, the others between two."""
        halted = [name for name in others if name != standing]
        for name in halted:
            world.schedule.pause(name)
        goes_on(world, query, 30.0)
        assert W1 not in world.epoch().listeners()
        assert world.hosts["w1"].instances, "it has not ended: it stands still"
        for name in halted:
            world.schedule.resume(name)

    world.until_sprung(world.trap(process, does, stand_still, holding=holding, after=after, skip=3))
    world.until(lambda: not world.hosts["w1"].pids("i0"), "the end of its instance")
    world.until(lambda: failovers(world)[0].phase is Phase.COMPLETE)
    world.until(lambda: all_copies(world, 2), "copies without it")
    end(world, query)


@pytest.mark.slow
def test_a_stopped_owner_has_taken_rows_of_a_batch_that_others_decide() -> None:
    """It stands still between two steps; what it goes on with is a batch that is long decided."""
    world, query = started()
    everybody = ["w1", *(f"w1#{pid}" for pid in world.hosts["w1"].instances)]

    def stand_still() -> None:
        for name in everybody:
            world.schedule.pause(name)

    trap = world.trap("w1", "disk.append", stand_still, holding="/log/", after=True, skip=3)
    world.until_sprung(trap)
    goes_on(world, query, 30.0)
    assert W1 not in world.epoch().listeners()
    for name in everybody:
        world.schedule.resume(name)
    world.until(lambda: not world.hosts["w1"].pids("i0"), "the end of its instance")
    end(world, query)
