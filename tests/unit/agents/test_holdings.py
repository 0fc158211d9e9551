"""What of the log goes on from a copy."""

from rhinoctl.ids import BASE, Vnode
from tests.fakes.world import World
from tests.fakes.world_spark import SparkDirectory


def test_a_gap_at_the_end_of_a_stream_is_seen_from_both_sides() -> None:
    """Nothing in the times says which batch of a generation was its last."""
    world = World(workers=1)
    query = world.start_query()
    world.until(lambda: query.directory.committed >= 5)
    query.limit = 0
    world.until(lambda: not query.running)
    world.run(6.0)
    world.bind()
    later = world.start_query(SparkDirectory(query_id="another"))
    world.until(lambda: later.directory.committed >= 3)
    later.kill()
    agent = world.hosts["w1"].agent
    assert agent is not None
    (desk,) = agent.desks.values()
    job, holdings = desk.job, desk.upkeep.holdings
    links = job.log.links(BASE, job.decided_time)
    last = max(link.time for link in links if link.time.generation == 0)
    before = next(link.after for link in links if link.time == last)
    assert holdings.log_through(Vnode(0), before) == job.decided_time
    assert holdings.log_since(Vnode(0)) == BASE
    record = job.log.record(last)
    assert record is not None
    job.log.drop(record.position, record.attempt)
    assert holdings.log_through(Vnode(0), before) == before
    assert holdings.log_since(Vnode(0)) == last


def test_what_waits_for_a_checkpoint_is_known_again_after_a_gap() -> None:
    """The log is read anew when somebody asks, and not with the next batch."""
    world = World(workers=1)
    query = world.start_query()
    world.until(lambda: query.directory.committed >= 5)
    agent = world.hosts["w1"].agent
    assert agent is not None
    (desk,) = agent.desks.values()
    holdings = desk.upkeep.holdings
    before = {vnode: holdings.waiting(vnode) for vnode in holdings.vnodes()}
    assert any(rows for rows, _ in before.values())
    holdings.look_again()
    assert {vnode: holdings.waiting(vnode) for vnode in holdings.vnodes()} == before
