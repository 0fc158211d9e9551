"""kill -9 of an instance: reaped, started again, its batches replayed, the output made again."""

import pytest

from rhinoctl.protocol.handover import Phase
from tests.fakes.world import World

STEPS = {
    "before the rows are read": ("disk.read", "/log/", False),
    "before the output is written": ("disk.append", "/out/", False),
    "with the output under its temporary name": ("disk.append", "/out/", True),
    "with the output in place": ("disk.rename", "/out/", True),
    "before it answers": ("reply BatchApplied", "", False),
    "after it answered": ("reply BatchApplied", "", True),
}


@pytest.mark.parametrize("step", STEPS)
def test_an_instance_killed_in_the_middle_of_apply(step: str) -> None:
    world = World(workers=2)
    query = world.start_query()
    world.until(lambda: query.directory.committed >= 10)
    host = world.hosts["w1"]
    (pid,) = host.pids("i0")
    does, holding, after = STEPS[step]
    trap = world.trap(
        "w1/i0", does, lambda: host.kill_pid(pid), holding=holding, after=after, skip=2
    )
    world.until_sprung(trap)
    world.finish(query, batches=25)
    assert query.failures == []
    (again,) = host.pids("i0")
    assert host.instances[again].settings.incarnation == 2


@pytest.mark.slow
def test_an_instance_killed_while_it_takes_a_checkpoint_takes_another_later() -> None:
    """A vnode whose checkpoint came to nothing is not busy for ever."""
    world = World(workers=1)
    query = world.start_query()
    host = world.hosts["w1"]
    (pid,) = host.pids("i0")
    trap = world.trap(
        "w1/i0", "disk.append", lambda: host.kill_pid(pid), holding="/ckpt/", after=True
    )
    world.until_sprung(trap)
    world.until(lambda: query.directory.committed >= 120)
    assert host.agent is not None
    (desk,) = host.agent.desks.values()
    assert len(desk.job.log.links(*_all())) < 110
    world.finish(query, batches=122)


def _all():  # type: ignore[no-untyped-def]
    from rhinoctl.ids import BASE, BatchTime

    return BASE, BatchTime(99, 0)


def test_a_target_killed_while_it_warms_warms_again() -> None:
    world = World(workers=2)
    query = world.start_query()
    world.until(lambda: query.directory.committed >= 20)
    host = world.hosts["w2"]
    (pid,) = host.pids("i1")
    trap = world.trap("w2/i1", "reply Done", lambda: host.kill_pid(pid))
    operation = world.handover([0, 1], "i1")
    world.until_sprung(trap)
    assert world.until_ended(operation).phase is Phase.COMPLETE
    world.finish(query, batches=60)


def test_an_instance_that_hangs_is_replaced() -> None:
    world = World(workers=1)
    query = world.start_query()
    world.until(lambda: query.directory.committed >= 5)
    host = world.hosts["w1"]
    (pid,) = host.pids("i0")
    world.schedule.pause(f"w1#{pid}")
    world.until(lambda: host.pids("i0") not in ([], [pid]), within_s=400)
    world.finish(query, batches=15)


def test_an_instance_that_is_stopped_for_good_is_replaced() -> None:
    """SIGSTOP in the middle of a batch, and nobody comes: neither a person nor the driver's end."""
    world = World(workers=2)
    query = world.start_query()
    world.until(lambda: query.directory.committed >= 10)
    host = world.hosts["w1"]
    (pid,) = host.pids("i0")
    stop = world.trap("w1", "send ApplyBatch", lambda: world.schedule.pause(f"w1#{pid}"))
    world.until_sprung(stop)
    began = world.clock.monotonic()
    world.finish(query, batches=query.directory.committed + 10)
    assert world.clock.monotonic() - began < 30.0
    assert query.failures == []
    assert host.pids("i0") not in ([], [pid])
