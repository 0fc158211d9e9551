"""A disk loses bytes of a worker's log: of rows, or of the newest record, which looks as if it had
never been sealed. Rows come from another full holder; a record that is missed makes its worker one
that cannot read the job (`test_unreadable`). No query fails.
"""

import logging
from collections.abc import Iterator

import pytest

from rhinoctl.ids import Vnode, WorkerId
from rhinoctl.protocol import views
from rhinoctl.protocol.diagnosis import Facts, diagnose
from rhinoctl.protocol.findings import Check
from tests.fakes.world import World
from tests.fakes.world_spark import Query
from tests.scenarios.test_copies import warmed_up
from tests.scenarios.test_failover import all_copies, end, failovers, goes_on
from tests.scenarios.test_unreadable import healed, started

W1, W3 = WorkerId("w1"), WorkerId("w3")


def segments(world: World, worker: WorkerId) -> list[str]:
    """Those of batches, the newest last."""
    root = f"jobs/{world.uid()}/log"
    names = [name for name in world.hosts[worker].disk.list(root) if name.endswith(".seg")]
    batches = [name for name in names if "--" not in name and name.split("-")[2] == "0"]
    return [f"{root}/{name}" for name in sorted(batches, key=lambda n: int(n.split("-")[1]))]


def rows_of(world: World, worker: WorkerId) -> Iterator[tuple[str, int, Vnode]]:
    """Where in which segment the rows of each decided slice lie, and whose they are."""
    agent = world.hosts[worker].agent
    assert agent is not None
    log = agent.desks[world.uid()].job.log
    every = frozenset(Vnode(v) for v in range(world.vnodes))
    for record in log.records():
        for path, _, places in log.places(record.time, every) if record.is_batch else ():
            for place in places:
                yield path, place.offset, place.vnode


def rot_rows(world: World, worker: WorkerId) -> None:
    """Every row of every decided batch in a worker's log has another byte; nothing tells."""
    for path, offset, _ in list(rows_of(world, worker)):
        world.hosts[worker].disk.rot(path, offset)


def kill_instances(world: World, worker: WorkerId) -> None:
    host = world.hosts[worker]
    for instance in [one.settings.instance for one in host.instances.values()]:
        for pid in host.pids(instance):
            host.kill_pid(pid)


def without_failure(world: World, query: Query) -> None:
    end(world, query)
    assert query.failures == []


def test_rows_that_an_owner_has_to_apply_again_come_from_another_holder(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """An instance dies, and what it has to replay has rotted."""
    caplog.set_level(logging.INFO, "rhino.agent")
    world, query = started()
    rot_rows(world, W1)
    kill_instances(world, W1)
    goes_on(world, query, 30.0)
    told = [record.getMessage() for record in caplog.records]
    assert any("log-slice-bad" in line and ".seg" in line for line in told), "it is named"
    assert failovers(world) == []
    without_failure(world, query)


def test_what_is_bad_is_said_until_a_checkpoint_has_it() -> None:
    world, query = started()
    rot_rows(world, W1)
    kill_instances(world, W1)

    def said() -> bool:
        return any("bad copy on worker w1" in f.what for f in world.status().findings)

    world.until(said, "the finding", 30.0)
    found = [
        one
        for one in diagnose(Facts(cluster=world.call(lambda c: c.evidence())))
        if one.check is Check.BAD_CHECKPOINT
    ]
    assert found
    assert all("does not match its checksum" in one.evidence for one in found)
    assert any("of vnode" in one.what and "worker w1" in one.what for one in found)
    goes_on(world, query, 30.0)
    world.until(lambda: not said(), "checkpoints", 120.0)
    without_failure(world, query)


def test_a_copy_that_begins_where_rows_have_rotted_comes_from_another_holder() -> None:
    """A worker is asked for its log, finds it bad, and mends its own copy, too."""
    world = World(workers=4, instances=1, replication=2)
    query = warmed_up(world, 30)
    world.until(lambda: all_copies(world, 3), "copies")
    owner = world.epoch().owner_worker(Vnode(0))
    rot_rows(world, min(world.epoch().voters() - {owner}))
    world.hosts[owner].lose()
    goes_on(world, query, 30.0)
    world.until(lambda: all_copies(world, 3), "copies", 60.0)
    without_failure(world, query)


def test_rows_that_nobody_else_has_are_not_forgotten() -> None:
    """The state in memory stays open, batches wait, and good bytes mend it."""
    world, query = started(replication=0)
    agent = world.hosts[W1].agent
    assert agent is not None
    was = {path: bytes(world.hosts[W1].disk.read(path)) for path in segments(world, W1)}
    rot_rows(world, W1)
    kill_instances(world, W1)
    world.until(lambda: bool(query.failures), "the query to fail", 60.0)
    assert any("of vnode" in f.what for f in world.status().findings)
    assert world.status().health is views.Health.DEGRADED
    world.hosts[W1].kill_agent()
    for path, data in was.items():
        world.hosts[W1].disk.corrupt(path, data)
    world.hosts[W1].start_agent()
    again = world.start_query(directory=query.directory)
    goes_on(world, again, 60.0)
    end(world, again)


@pytest.mark.parametrize("worker", [W1, pytest.param(W3, marks=pytest.mark.slow)])
def test_a_newest_record_that_is_lost_gives_its_worker_up(worker: WorkerId) -> None:
    """At its next start the segment looks as if its seal had never ended; the others know."""
    world, query = started()
    host = world.hosts[worker]
    trap = world.trap(worker, "reply ApplyAnswer", host.kill_agent)
    world.until_sprung(trap)
    host.disk.rot(segments(world, worker)[-1], 0)
    host.start_agent()
    goes_on(world, query, 60.0)
    (view,) = failovers(world)
    assert view.lost == (worker,)
    assert "cannot read" in view.reason
    healed(world, worker)
    without_failure(world, query)


def test_a_newest_record_that_the_only_holder_has_lost_is_not_given_up() -> None:
    world, query = started(replication=0)
    host = world.hosts[W1]
    trap = world.trap("w1", "reply ApplyAnswer", host.kill_agent)
    world.until_sprung(trap)
    path = segments(world, W1)[-1]
    was = bytes(host.disk.read(path))
    host.disk.rot(path, 0)
    host.start_agent()
    world.until(lambda: bool(world.groups().unreadable), "the report", 60.0)
    world.run(20.0)
    assert failovers(world) == []
    assert host.disk.list("bad") == []
    host.kill_agent()
    host.disk.write_atomic(path, was)
    host.start_agent()
    assert segments(world, W1)[-1] == path
    goes_on(world, query, 60.0)
    end(world, query)


def test_what_was_whole_before_a_batch_that_a_start_has_found_is_looked_at_again() -> None:
    """The log may have a piece of that batch only, if the segment beside it has rotted, too."""
    world, query = started()
    host = world.hosts[W1]
    world.until_sprung(world.trap(query.name, "then", query.kill, after=True))
    world.run(3.0)
    host.kill_agent()
    host.start_agent()
    assert host.agent is not None
    job = host.agent.desks[world.uid()].job
    found, before = job.state.sealed, job.continuity()
    assert found is not None
    again = world.start_query(directory=query.directory)
    world.until(lambda: job.decided_time >= found.time, "the notice that it is decided")
    assert job.continuity() != before
    without_failure(world, again)
