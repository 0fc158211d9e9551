"""An agent is killed, alone or with its whole host; instances that survive it are adopted."""

from random import Random

import pytest

from tests.fakes.world import World
from tests.fakes.world_spark import Query

STEPS = {
    "before a session is persisted": ("disk.write_atomic", "session.json", False),
    "after a session is persisted": ("disk.write_atomic", "session.json", True),
    "before a put is appended": ("disk.append", "/log/", False),
    "after a put is appended": ("disk.append", "/log/", True),
    "before a put is answered": ("reply Done", "", False),
    "before a seal is durable": ("disk.sync", "/log/", False),
    "after a seal is durable": ("disk.sync", "/log/", True),
    "after a seal is answered": ("reply SealAnswer", "", True),
    "before an apply is answered": ("reply ApplyAnswer", "", False),
    "after an apply is answered": ("reply ApplyAnswer", "", True),
    "while outputs are removed": ("disk.remove", "/out/", False),
    "while a checkpoint is published": ("disk.write_atomic", "manifest.json", True),
    "while coverage is made durable": ("disk.write_atomic", "covers.json", True),
    "while the log is trimmed": ("disk.remove", "/log/", False),
}


def interrupted(world: World, query: Query, step: str, then: str, seed: int = 0) -> None:
    """Kill w1's agent, or its host, at a step; start it again a second later."""
    host = world.hosts["w1"]
    does, holding, after = STEPS[step]
    chance = Random(seed)

    def end() -> None:
        if then == "agent":
            host.kill_agent()
        else:
            host.power_loss(chance)

    if "session" in step:
        query.kill()
        trap = world.trap("w1", does, end, holding=holding, after=after)
        query = world.start_query(query.directory, settled=False)
    else:
        trap = world.trap("w1", does, end, holding=holding, after=after, skip=3 if after else 4)
    world.until_sprung(trap)
    world.run(1.0)
    host.start_agent()
    world.finish(query, batches=query.directory.committed + 15)


@pytest.mark.parametrize("then", [pytest.param("agent", marks=pytest.mark.slow), "power"])
@pytest.mark.parametrize("step", STEPS)
def test_an_agent_is_killed_at_a_step_of_a_batch(step: str, then: str) -> None:
    world = World(workers=2)
    query = world.start_query()
    world.until(lambda: query.directory.committed >= 12)
    interrupted(world, query, step, then)
    incarnations = [
        one.settings.incarnation
        for one in world.hosts["w1"].instances.values()
        if one.settings.instance == "i0"
    ]
    assert incarnations == [1 if then == "agent" else 2]


def test_surviving_instances_are_adopted_by_their_incarnation() -> None:
    world = World(workers=2)
    query = world.start_query()
    world.until(lambda: query.directory.committed >= 5)
    host = world.hosts["w1"]
    before = list(host.instances)
    host.kill_agent()
    world.run(2.0)
    assert list(host.instances) == before
    host.start_agent()
    world.finish(query, batches=15)
    assert list(host.instances) == before
    assert query.failures == []


def test_an_output_that_an_instance_wrote_while_its_agent_was_gone_is_found() -> None:
    world = World(workers=1)
    query = world.start_query()
    world.until(lambda: query.directory.committed >= 5)
    host = world.hosts["w1"]

    def agent_dies_while_the_instance_works() -> None:
        host.kill_agent()
        host.start_agent()

    trap = world.trap("w1/i0", "disk.append", agent_dies_while_the_instance_works, holding="/out/")
    world.until_sprung(trap)
    world.finish(query, batches=12)
    assert query.failures == []


def test_an_agent_killed_between_starting_an_instance_and_writing_down_its_pid() -> None:
    """The process that nobody knows of does not live on beside its successor."""
    world = World(workers=1)
    query = world.start_query()
    host = world.hosts["w1"]
    (pid,) = host.pids("i0")
    trap = world.trap(
        "w1", "disk.write_atomic", host.kill_agent, holding="instances/i0.json", skip=1
    )
    host.kill_pid(pid)
    world.until_sprung(trap)
    world.run(1.0)
    host.start_agent()
    world.until(lambda: query.directory.committed >= 10)
    world.run(2.0)
    assert len(host.pids("i0")) == 1
    world.finish(query, batches=15)


@pytest.mark.parametrize("seed", range(12))
def test_a_worker_loses_power_at_any_moment(seed: int) -> None:
    world = World(seed, workers=2)
    query = world.start_query()
    world.run(1.0 + seed * 0.37)
    world.hosts["w1"].power_loss(Random(seed))
    world.run(0.5)
    world.hosts["w1"].start_agent()
    world.run(2.0)
    for host in world.hosts.values():
        host.power_loss(Random(seed + 1))
    world.run(0.5)
    for host in world.hosts.values():
        host.start_agent()
    world.finish(query, batches=query.directory.committed + 15)


def test_an_agent_is_killed_before_its_fsync_and_the_power_goes_after_its_restart() -> None:
    """What it had appended is in the kernel's memory only, and can be read after the restart: it
    has sealed nothing before that is durable. The other worker has applied the batch by then."""
    world = World(workers=2)
    query = world.start_query()
    world.until(lambda: query.directory.committed >= 5)
    host = world.hosts["w1"]
    world.until_sprung(world.trap("w1", "disk.sync", host.kill_agent, holding="/log/"))
    power = world.trap("w2", "reply ApplyAnswer", host.power_loss, after=True)
    host.start_agent()
    world.until_sprung(power)
    host.start_agent()
    world.finish(query, batches=query.directory.committed + 10)
