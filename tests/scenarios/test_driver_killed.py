"""The driver is killed at every step of a batch; the next run of the query replays, exactly once.

The next run splits the rows otherwise and has another number of channels.
"""

import pytest

from rhinoctl.errors import IdentityChanged, SecondSession
from rhinoctl.ids import Vnode
from rhinoctl.protocol.handover import Phase
from tests.fakes.world import World
from tests.fakes.world_spark import SparkDirectory

STEPS = (
    "plan",
    "send Fence",
    "send Open",
    "stage 0",
    "send Put",
    "staged",
    "send Seal",
    "send Apply",
    "send FetchOutput",
    "then",
    "commit",
)


@pytest.mark.parametrize(
    "skip",
    [0, pytest.param(1, marks=pytest.mark.slow)],
    ids=["at the first", "at the second"],
)
@pytest.mark.parametrize("step", STEPS)
def test_a_driver_killed_at_a_step(step: str, skip: int) -> None:
    world = World(workers=2)
    directory = SparkDirectory(query_id="q")
    query = world.start_query(directory, settled=step != "send Fence")
    after = step in ("plan", "staged", "then", "commit")
    trap = world.trap(query.name, step, query.kill, skip=skip, after=after)
    world.until_sprung(trap)
    assert not query.running
    world.run(1.0)
    later = world.start_query(directory)
    world.finish(later, batches=directory.committed + 8)
    assert later.failures == []


@pytest.mark.parametrize("times", [3])
def test_runs_that_are_killed_again_and_again(times: int) -> None:
    world = World(workers=2)
    directory = SparkDirectory(query_id="q")
    for step in ("send Seal", "send Apply", "then") * times:
        query = world.start_query(directory)
        world.until_sprung(world.trap(query.name, step, query.kill, after=True))
    world.finish(world.start_query(directory), batches=directory.committed + 8)


@pytest.mark.slow
def test_a_driver_killed_with_the_marker_in_its_hands() -> None:
    """Whatever becomes of the record that carries the marker, the handover ends."""
    for skip in range(4):
        world = World(workers=2)
        query = world.start_query()
        world.until(lambda query=query: query.directory.committed >= 12)
        operation = world.handover([0, 1], "i1")
        world.until(lambda world=world, op=operation: world.operation(op).phase is Phase.ARMED)
        trap = world.trap(query.name, "send Seal", query.kill, skip=skip)
        world.until_sprung(trap)
        later = world.start_query(query.directory)
        assert world.until_ended(operation).phase is Phase.COMPLETE
        assert world.epoch().routes[Vnode(0)].owner == "i1"
        world.finish(later, batches=later.directory.committed + 8)


def test_a_zombie_driver_finds_itself_fenced() -> None:
    """A callback that outlives its query: all it still sends is refused, and changes nothing."""
    world = World(workers=2)
    query = world.start_query()
    world.until(lambda: query.directory.committed >= 10)
    successors = []

    def another_takes_over() -> None:
        later = world.start_query(query.directory, takeover=True, settled=False)
        successors.append(later)
        seen = query.directory.committed
        world.until(lambda: query.directory.committed >= seen + 3)

    trap = world.trap(query.name, "send Put", another_takes_over, skip=2)
    world.until_sprung(trap)
    query.limit = 0
    (later,) = successors
    world.finish(later, batches=later.directory.committed + 10)
    assert later.failures == []


def test_a_stopped_driver_is_continued_after_its_successor_began() -> None:
    world = World(workers=2)
    query = world.start_query()
    world.until(lambda: query.directory.committed >= 6)
    for entry in (query.name, f"{query.name}-ear"):
        world.schedule.pause(entry)
    world.run(8.0)
    later = world.start_query(query.directory)
    world.until(lambda: later.directory.committed >= 12)
    for entry in (query.name, f"{query.name}-ear"):
        world.schedule.resume(entry)
    query.limit = 0
    world.finish(later, batches=later.directory.committed + 10)


def test_a_second_run_is_refused_while_the_first_lives() -> None:
    world = World(workers=2)
    query = world.start_query()
    second = world.start_query(query.directory, settled=False)
    world.until(lambda: bool(second.failures))
    assert "live" in second.failures[0]
    second.kill()
    world.finish(query, batches=20)
    assert SecondSession.code == "second-session"


def test_a_new_stream_goes_on_over_the_same_state_once_it_is_allowed() -> None:
    """`job bind --new-stream`: the next generation, in which batch ids start at 0 again."""
    world = World(workers=2)
    query = world.start_query()
    world.until(lambda: query.directory.committed >= 20)
    query.limit = 0
    world.until(lambda: not query.running)
    world.run(6.0)
    fresh = SparkDirectory(query_id="another")
    refused = world.start_query(fresh, settled=False)
    world.until(lambda: bool(refused.failures))
    assert "bind" in refused.failures[0] or "belongs" in refused.failures[0]
    refused.kill()
    world.run(6.0)
    world.bind()
    later = world.start_query(fresh)
    world.finish(later, batches=60)
    assert later.failures == []
    assert {time.generation for time in fresh.outputs} == {1}
    assert IdentityChanged.code == "identity-changed"


@pytest.mark.slow
def test_a_copy_that_is_gathered_while_a_new_stream_begins_has_the_former_ones_last_batch() -> None:
    """No number tells how far the former stream went: the copy ends before its last batch, and the
    log here begins with the first of the new one."""
    world = World(workers=2)
    query = world.start_query()
    query.trigger_s = 0.02
    world.until(lambda: query.directory.committed >= 40)
    query.limit = 0
    world.until(lambda: not query.running)
    world.run(6.0)
    source, target = (world.hosts[name].address for name in ("w1", "w2"))
    trap = world.trap("w2", "send FetchManifest", lambda: world.network.cut(target, source))
    operation = world.handover([0], "i1")
    world.until_sprung(trap)
    world.bind()
    fresh = SparkDirectory(query_id="another")
    later = world.start_query(fresh)
    world.network.heal()
    assert world.until_ended(operation).phase is Phase.COMPLETE
    world.finish(later, batches=30)
    assert later.failures == []
