"""What is released stays so, and an output that is owed is made, over restarts of an agent."""

from rhinoctl.ids import InstanceId
from rhinoctl.protocol.handover import Phase
from tests.fakes.world import World
from tests.scenarios.test_failover import W2, all_copies, failovers, started


def test_a_restart_after_an_epoch_record_knows_that_the_batch_before_it_is_released() -> None:
    """The newest record is no batch's then. A checkpoint that has the batch says that it is
    released: nobody tries to make its output from a state that is past it."""
    world = World(workers=2)
    query = world.start_query()
    world.until(lambda: query.directory.committed >= 5)
    staged = world.trap(query.name, "staged", query.kill, after=True)
    world.until_sprung(staged)
    world.run(6.0)
    operation = world.handover([0], "i1")
    world.until_ended(operation)
    for host in world.hosts.values():
        host.power_loss()
        host.start_agent()
    world.run(5.0)
    for host in world.hosts.values():
        incarnations = [one.settings.incarnation for one in host.instances.values()]
        assert max(incarnations) == 2, "no instance is started again and again"
    later = world.start_query(query.directory)
    world.finish(later, batches=20)
    assert later.failures == []


def test_the_output_of_a_marker_batch_is_made_again_after_its_epoch_left_the_log() -> None:
    """The record names its epoch by number only; the record before it, which says what the epoch
    is, outlives the trimming."""
    world = World(workers=1)
    query = world.start_query()
    query.trigger_s = 0.02
    world.until(lambda: query.directory.committed >= 60)
    operation = world.handover([0], "i1")
    world.until(lambda: world.operation(operation).phase is Phase.ARMED)
    before = world.epoch().number
    world.until(lambda: world.epoch().number > before)
    query.kill()
    host = world.hosts["w1"]
    assert host.agent is not None
    (desk,) = host.agent.desks.values()
    desk.upkeep.trim()
    desk.job.trim_log(desk.job.released)
    host.power_loss()
    host.start_agent()
    later = world.start_query(query.directory)
    world.finish(later, batches=80)
    assert later.failures == []


def test_what_an_instance_has_made_before_it_was_given_up_is_not_put_out() -> None:
    """The worker lives, so that the file is still there; another instance owes that part now."""
    world = World(workers=2)
    query = world.start_query()
    world.until(lambda: query.directory.committed >= 5)
    world.until_sprung(world.trap(query.name, "then", query.kill, after=True))
    host = world.hosts["w1"]
    assert host.agent is not None
    job = host.agent.desks[world.uid()].job
    time = job.decided_time
    (own,) = job.outputs.of(time).values()
    job.outputs.note((InstanceId("i9"), 7), time, own.rows, own.size)
    later = world.start_query(query.directory)
    world.finish(later, batches=20)
    assert later.failures == []


def test_who_waits_for_a_batch_in_an_older_session_is_told_that_it_is_older() -> None:
    """A cut of the newer one may have made owners here the heirs of a part that the older has got
    from somebody else. It is told at once, not when the batch has been applied."""
    world = World(workers=1, instances=1)
    query = world.start_query()
    world.until(lambda: query.directory.committed >= 5)
    host = world.hosts["w1"]
    (pid,) = host.pids("i0")
    kill = world.trap("w1/i0", "disk.append", lambda: host.kill_pid(pid), holding="/out/")
    world.until_sprung(kill)
    assert query.running
    later = world.start_query(query.directory, takeover=True, settled=False)
    world.until(lambda: bool(query.failures), "the older one to be told", 0.5)
    assert "is live and holds session" in query.failures[0]
    query.kill()
    world.finish(later, batches=20)
    assert later.failures == []


def test_who_was_given_up_and_is_back_before_the_next_batch_makes_no_part_of_it() -> None:
    """Its log has the batch, and not the record that made others the heirs of its part."""
    world, query = started(batches=13)
    world.until(lambda: all_copies(world, 2), "two copies of each vnode")
    world.until_sprung(world.trap(query.name, "then", query.kill, after=True))
    others = ["controller", *(world.hosts[name].address for name in ("w1", "w3"))]
    world.network.partition([world.hosts["w2"].address], others)
    world.until(lambda: any(v.phase is Phase.COMPLETE for v in failovers(world)))
    world.network.heal()
    world.run(5.0)
    (switchover,) = world.switchover("w1", to="w2")
    assert world.until_ended(switchover.id).phase is Phase.COMPLETE
    assert W2 in world.epoch().voters()
    later = world.start_query(query.directory)
    world.finish(later, batches=later.directory.committed + 10)
    assert later.failures == []
