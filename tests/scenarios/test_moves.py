"""Vnodes move while records flow: within a worker, between workers, and by rescaling."""

import pytest

from rhinoctl.errors import Busy
from rhinoctl.ids import InstanceId, Vnode
from rhinoctl.protocol.handover import Phase
from tests.fakes.world import JOB, World
from tests.scenarios.test_failover import all_copies


def owners(world: World) -> dict[int, str]:
    return {v: world.epoch().routes[v].owner for v in world.epoch().vnodes()}


def test_vnodes_move_between_two_instances_of_one_worker() -> None:
    world = World(workers=1)
    query = world.start_query()
    view = world.until_ended(world.handover([0, 2], "i1"))
    assert view.phase is Phase.COMPLETE
    assert (owners(world)[0], owners(world)[2]) == ("i1", "i1")
    assert view.bytes_moved == 0
    world.finish(query, batches=30)
    assert query.failures == []


def test_one_vnode_moves_to_another_worker() -> None:
    world = World(workers=2)
    query = world.start_query()
    world.until(lambda: query.directory.committed >= 5)
    view = world.until_ended(world.handover([1], "i1"))
    assert view.phase is Phase.COMPLETE
    assert view.bytes_moved > 0
    world.finish(query, batches=60)
    assert query.failures == []
    epoch = world.epoch()
    assert epoch.holders(Vnode(1)) == ("w2",), "redundancy is lowered after the move"


def test_a_job_is_rescaled_from_two_to_four_to_three_instances_over_three_workers() -> None:
    world = World(workers=3)
    query = world.start_query()
    assert world.until_ended(world.rescale(4)).phase is Phase.COMPLETE
    assert set(world.epoch().instances) == {"i0", "i1", "i2", "i3"}
    assert {len(world.epoch().owned_by(i)) for i in world.epoch().instances} == {2}
    world.until(lambda: query.directory.committed >= 30)
    assert world.until_ended(world.rescale(3)).phase is Phase.COMPLETE
    assert len(world.epoch().instances) == 3
    world.finish(query, batches=60)
    assert query.failures == []
    running = [one for host in world.hosts.values() for one in host.instances.values()]
    assert {one.settings.instance for one in running} == set(world.epoch().instances)


def test_a_second_operation_is_refused_by_the_name_of_the_first() -> None:
    world = World()
    query = world.start_query()
    first = world.rescale(4)
    with pytest.raises(Busy, match=first):
        world.rescale(3)
    world.until_ended(first)
    world.finish(query, batches=20)


def test_what_a_handover_reports_is_what_every_worker_and_the_driver_have() -> None:
    """COMPLETE means that all report the epoch (invariant 7)."""
    world = World()
    query = world.start_query()
    operation = world.rescale(3)

    def complete() -> bool:
        assert world.controller is not None
        return world.controller.operation(operation).phase is Phase.COMPLETE

    world.until(complete)
    (number,) = {
        desk.job.state.decided.next_epoch.number
        for host in world.hosts.values()
        if host.agent is not None
        for desk in host.agent.desks.values()
        if desk.job.state.decided is not None
    }
    assert query.epoch_seen == number


def test_an_idle_job_is_woken_for_the_marker() -> None:
    world = World(workers=2)
    query = world.start_query()
    world.until(lambda: query.directory.committed >= 10)
    query.idle = True
    view = world.until_ended(world.handover([0], "i1"))
    assert view.phase is Phase.COMPLETE
    query.idle = False
    world.finish(query, batches=30)


def test_vnodes_move_while_no_query_runs_and_the_next_one_finds_them() -> None:
    world = World(workers=2)
    query = world.start_query()
    world.until(lambda: query.directory.committed >= 12)
    query.kill()
    view = world.until_ended(world.handover([0, 1], "i1"))
    assert view.phase is Phase.COMPLETE
    assert owners(world)[0] == InstanceId("i1")
    later = world.start_query(query.directory)
    world.finish(later, batches=30)
    assert later.failures == []


def test_pause_is_measured() -> None:
    world = World(workers=2)
    world.start_query()
    world.run(4.0)
    operation = world.handover([0], "i1")
    view = world.until_ended(operation)
    world.until(lambda: world.operation(operation).pause_ms is not None)
    pause_ms = world.operation(operation).pause_ms
    assert view.job == JOB
    assert pause_ms is not None
    assert pause_ms < 300


@pytest.mark.slow
def test_vnodes_that_come_back_at_once_are_opened_from_the_new_copy() -> None:
    """An origin that still has a vnode open from its own time has missed what came in between: it
    cannot go on from there, though its worker's log has the records by then."""
    world = World(workers=2)
    query = world.start_query()
    world.until(lambda: query.directory.committed >= 3)
    everything = list(world.epoch().vnodes())
    for number in range(4):
        world.until_ended(world.handover(everything, ("i1", "i0")[number % 2]))
        world.until(lambda: not any(route.members for route in world.epoch().routes))
        until = query.directory.committed + 1
        world.until(lambda until=until: query.directory.committed >= until)
    world.finish(query, batches=query.directory.committed + 10)
    assert query.failures == []


def test_what_an_origin_has_open_still_does_not_hold_up_its_batches_when_vnodes_come_back() -> None:
    """It has left their chains and opens them for the next handover before it has joined again: a
    batch in between is not in its log. It must not wait for that with what it owns."""
    world = World(workers=2)
    query = world.start_query()
    world.until(lambda: query.directory.committed >= 3)
    for number in range(3):
        world.until_ended(world.handover([0, 1], ("i1", "i0")[number % 2]))
        world.until(lambda: not any(route.members for route in world.epoch().routes))
    world.finish(query, batches=query.directory.committed + 10)
    assert query.failures == []


@pytest.mark.slow
def test_a_fifth_agent_comes_and_another_goes_during_the_restore() -> None:
    """T5: whoever is not needed may come; what the lost one owned goes on at its heirs."""
    world = World(workers=5, instances=3, replication=1)
    query = world.start_query()
    world.until(lambda: query.directory.committed >= 20)
    world.hosts["w5"].lose()
    world.until(lambda: "w5" not in world.epoch().listeners(), "w5 to be given up")
    world.until(lambda: all(v.phase is Phase.COMPLETE for v in world.controller_views()))
    world.until(lambda: all_copies(world, 2), "two copies of each vnode")
    operation = world.rescale(4)

    def comes_and_goes() -> None:
        world.hosts["w5"].start_agent()
        world.hosts["w3"].lose()

    world.until_sprung(world.trap("w4", "send OpenVnode", comes_and_goes))
    view = world.until_ended(operation)
    world.until(lambda: "w3" not in world.epoch().listeners(), "w3 to be given up")
    assert ("i3" in world.epoch().instances) == (view.phase is Phase.COMPLETE)
    world.finish(query, batches=query.directory.committed + 15)
    assert query.failures == []
