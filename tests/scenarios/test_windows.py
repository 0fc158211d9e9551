"""Windows that are open while their state moves, and while everything dies around them."""

from random import Random

import pytest

from rhinoctl.protocol.handover import Phase
from tests.fakes.world import World
from tests.fakes.world_windows import WindowedWorkload

SEEDS = (0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2, 3)))


def test_windows_are_put_out_once_and_their_state_goes() -> None:
    world = World(workers=1, workload=WindowedWorkload())
    query = world.start_query()
    world.finish(query, batches=40)
    assert query.failures == []
    outputs = [cell for made in query.directory.outputs.values() for cell in made[0]]
    assert len(outputs) == len(set(outputs)) > 100


@pytest.mark.parametrize("seed", SEEDS)
def test_vnodes_move_at_random_while_windows_are_open(seed: int) -> None:
    random = Random(seed)
    world = World(seed, workers=2, workload=WindowedWorkload())
    query = world.start_query()
    world.until(lambda: query.directory.committed >= 5)
    for _ in range(4):
        vnodes = random.sample(range(8), random.randint(1, 4))
        operation = world.handover(vnodes, random.choice(["i0", "i1"]))
        if operation:  # they may be there already
            assert world.until_ended(operation).phase is Phase.COMPLETE
        seen = query.directory.committed
        world.until(lambda seen=seen: query.directory.committed >= seen + random.randint(1, 6))
    world.finish(query, batches=query.directory.committed + 20)
    assert query.failures == []


@pytest.mark.parametrize("victim", ["driver", "agent", "instance", "power"])
def test_a_batch_that_closes_windows_is_repeated(victim: str) -> None:
    """What is over is put out again from checkpoint and log, although another batch has been
    opened meanwhile in which it would not be over any more."""
    world = World(workers=2, workload=WindowedWorkload())
    query = world.start_query()
    host = world.hosts["w1"]
    for number in range(6):
        directory, wanted = query.directory, 8 * (number + 1)
        world.until(lambda d=directory, w=wanted: d.committed >= w)
        if victim == "driver":
            query.kill()
            query = world.start_query(query.directory, settled=False)
        elif victim == "instance":
            host.kill_pid(host.pids("i0")[0])
        else:
            host.power_loss(Random(number)) if victim == "power" else host.kill_agent()
            world.run(0.2)
            host.start_agent()
    world.finish(query, batches=query.directory.committed + 20)


def test_an_idle_vnode_closes_its_windows_too() -> None:
    """Only the lower half of the vnodes has rows after a while; the watermark is everybody's."""
    world = World(workers=2, workload=WindowedWorkload(quiet=(200, 2000)))
    query = world.start_query()
    world.until(lambda: query.directory.committed >= 30)
    assert world.until_ended(world.handover([0, 1], "i1")).phase is Phase.COMPLETE
    world.finish(query, batches=query.directory.committed + 30)
    assert query.failures == []


@pytest.mark.parametrize("seed", SEEDS)
def test_workers_are_lost_at_random_while_windows_are_open(seed: int) -> None:
    """Heirs have the windows as they were, the watermark included."""
    random = Random(seed)
    world = World(seed, workers=3, instances=3, replication=1, workload=WindowedWorkload())
    query = world.start_query()
    for _ in range(3):
        seen = query.directory.committed
        world.until(lambda seen=seen: query.directory.committed >= seen + random.randint(3, 9))
        host = random.choice(list(world.hosts.values()))
        host.lose()
        seen = query.directory.committed
        world.until(lambda seen=seen: query.directory.committed > seen + 2, "batches", 30.0)
        host.start_agent()
        world.until(lambda: world.call(lambda c: c.job("counts")).lacking == 0, "copies", 120.0)
    world.finish(query, batches=query.directory.committed + 20)
    assert query.failures == []
