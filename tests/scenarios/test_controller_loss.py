"""The controller's store is lost, or an old copy comes back (docs/protocol/controller-loss.md)."""

import pytest

from rhinoctl import limits
from rhinoctl.errors import IdentityChanged, Refused, StoreRefused, UnknownWorker
from rhinoctl.ids import InstanceId, Vnode, WorkerId
from rhinoctl.protocol import views
from rhinoctl.protocol.handover import Kind, Phase
from tests.fakes.world import JOB, World
from tests.fakes.world_spark import Query


def running(**changes: int) -> tuple[World, Query]:
    """A job that has run for a while."""
    world = World(**{"workers": 3, **changes})  # type: ignore[arg-type]
    query = world.start_query()
    world.until(lambda: query.directory.committed >= 10)
    return world, query


def wait_for_copies(world: World) -> None:
    """Until every vnode has its whole copies."""
    world.until(lambda: world.call(lambda c: c.job(JOB)).lacking == 0, "copies")


def go_on(world: World, query: Query, batches: int = 10) -> None:
    """More batches, whatever the controller does."""
    seen = query.directory.committed
    world.until(lambda: query.directory.committed >= seen + batches, "more batches")


def end(world: World, query: Query, sessions: int = 1) -> None:
    """The next operation works, and everything was counted once."""
    world.rescale(3)
    world.until_ended(world.controller_views()[0].id)
    assert world.controller_views()[0].phase is Phase.COMPLETE
    world.finish(query, batches=query.directory.committed + 10)
    assert query.failures == []
    assert len(query.sessions) == sessions


# --- lost ----------------------------------------------------------------------------------------


def test_a_lost_store_is_refused_and_made_anew_while_batches_go_on() -> None:
    world, query = running(replication=1)
    wait_for_copies(world)
    before = world.call(lambda c: c.job(JOB))
    instances = {pid for host in world.hosts.values() for pid in host.instances}
    world.replace_store()
    assert world.objections() == {"w1", "w2", "w3"}
    go_on(world, query)
    assert {pid for host in world.hosts.values() for pid in host.instances} == instances
    assert world.controller_views() == ()

    shown = world.recover(dry_run=True)
    assert world.objections() == {"w1", "w2", "w3"}, "a dry run changes nothing"
    assert world.recover() == shown
    assert [(job.name, job.uid, job.session) for job in shown.jobs] == [
        (JOB, before.uid, before.session)
    ]
    world.run(5.0)
    assert world.objections() == frozenset()
    after = world.call(lambda c: c.job(JOB))
    same = ("uid", "session", "epoch", "query_id", "replication", "instances_asked", "live")
    assert [getattr(after, name) for name in same] == [getattr(before, name) for name in same]
    assert {pid for host in world.hosts.values() for pid in host.instances} == instances
    end(world, query)


def test_a_refused_controller_changes_nothing() -> None:
    world, query = running()
    world.replace_store()
    move = views.HandoverRequest(vnodes=(Vnode(0),), to=InstanceId("i1"))
    with pytest.raises(StoreRefused) as caught:
        world.call(lambda c: c.handover(JOB, move))
    assert "controller recover" in caught.value.remedy
    query.kill()
    other = world.start_query(query.directory, settled=False)
    world.run(5.0)
    assert other.failures, "a query that starts is told, and not begun anew from nothing"
    assert all("store-refused" in failure for failure in other.failures)
    assert other.sessions == []
    world.recover()
    other.failures.clear()
    seen = other.directory.committed
    world.until(lambda: other.directory.committed > seen)
    assert other.sessions[0] > query.sessions[-1] + limits.SESSIONS_UNSEEN - 1
    world.finish(other, batches=seen + 10)


@pytest.mark.slow
def test_after_a_recovery_the_query_is_still_the_job_s_own() -> None:
    """Invariant 11: no other query is taken for it."""
    world, query = running()
    world.replace_store()
    world.recover()
    query.kill()
    world.run(limits.SESSION_LIVE_S + 1)
    request = views.TakeSession(query_id="another", run_id="r", batch=0)
    with pytest.raises(IdentityChanged):
        world.call(lambda c: c.take_session(JOB, request))
    again = world.start_query(query.directory)
    world.finish(again, batches=again.directory.committed + 5)


@pytest.mark.slow
def test_replication_and_draining_are_taken_over() -> None:
    world, query = running(replication=1)
    world.set_replication(2)
    wait_for_copies(world)
    (drain,) = world.drain("w1")
    world.until_ended(drain.id)
    world.run(1.0)
    world.replace_store()
    view = world.recover()
    assert (view.draining, view.jobs[0].replication) == (("w1",), 2)
    world.run(2.0)
    status = world.call(lambda c: c.status())
    assert [w.id for w in status.workers if w.draining] == ["w1"]
    assert (drain.id, world.rescale(3)) == ("op-1", "op-2"), "an id is never given twice"
    world.finish(query, batches=query.directory.committed + 10)


@pytest.mark.parametrize("phase", ["warming", "armed", "marked"])
def test_a_store_that_is_lost_in_a_handover(phase: str) -> None:
    world, query = running()
    trap = world.trap(
        "controller", "store.write op/", world.kill_controller, holding=f"phase={phase}", after=True
    )
    world.submit(
        lambda c: c.handover(JOB, views.HandoverRequest(vnodes=(Vnode(0),), to=InstanceId("i1")))
    )
    world.until_sprung(trap)
    world.replace_store()
    assert world.objections()
    go_on(world, query)
    world.recover()
    go_on(world, query)
    world.until_ended(world.handover([1], "i1"))
    end(world, query)


@pytest.mark.slow
@pytest.mark.parametrize("after_s", [0.0, 0.3])
def test_a_store_that_is_lost_in_a_failover(after_s: float) -> None:
    world, query = running(workers=4, replication=1)
    wait_for_copies(world)
    victim = world.hosts[WorkerId("w1")]
    victim.lose()
    trap = world.trap("controller", "store.write failover/", lambda: None, after=True)
    world.until_sprung(trap)
    world.run(after_s)
    world.replace_store()
    assert world.objections()
    with pytest.raises(Refused) as caught:
        world.recover()
    assert "--without w1" in caught.value.remedy
    view = world.recover("w1")
    assert view.silent == ("w1",)
    go_on(world, query)
    world.until(lambda: "w1" not in world.epoch().workers, "an epoch without w1")
    victim.start_agent()
    world.run(5.0)
    assert world.objections() == frozenset()
    wait_for_copies(world)
    end(world, query)


@pytest.mark.slow
def test_what_was_given_up_stays_given_up() -> None:
    """The cut is offered, and perhaps decided, when the store is lost; the worker is back."""
    world, query = running(workers=4, replication=1)
    wait_for_copies(world)
    world.network.late_s["Seal"] = 3.0
    victim = world.hosts[WorkerId("w1")]
    victim.lose()
    trap = world.trap("controller", "store.write failover/", lambda: None, after=True)
    world.until_sprung(trap)
    world.run(0.5)
    victim.start_agent()
    world.replace_store()
    world.run(1.0)
    world.network.late_s.clear()
    view = world.recover()
    assert view.jobs[0].gone == ("w1",)
    (operation,) = world.controller_views()
    assert (operation.kind, operation.lost, operation.id) == (Kind.FAILOVER, ("w1",), "op-2")
    assert world.until_ended(operation.id).phase is Phase.COMPLETE
    assert "w1" not in {*world.epoch().instances.values()}
    end(world, query, sessions=len(query.sessions))


# --- an old copy ---------------------------------------------------------------------------------


def test_an_old_copy_is_refused_though_its_controller_starts_often() -> None:
    world, query = running()
    old = world.copy_store()
    world.until_ended(world.handover([0], "i1"))
    for _ in range(3):
        world.replace_store(old)
        assert world.objections() == {"w1", "w2", "w3"}
        old = world.copy_store()
    go_on(world, query)
    assert world.epoch().routes[Vnode(0)].owner == "i1"
    view = world.recover()
    assert view.operation == 1
    world.run(2.0)
    assert world.epoch().routes[Vnode(0)].owner == "i1", "an operation of old is not run again"
    end(world, query)


def test_an_old_copy_does_not_give_a_session_twice() -> None:
    world, query = running()
    old = world.copy_store()
    query.kill()
    second = world.start_query(query.directory)
    world.replace_store(old)
    second.kill()
    third = world.start_query(query.directory, settled=False)
    world.run(3.0)
    assert third.sessions == []
    world.recover()
    seen = third.directory.committed
    world.until(lambda: third.directory.committed > seen)
    assert third.sessions[0] > second.sessions[-1]
    world.finish(third, batches=seen + 10)


def test_the_query_that_opened_a_new_stream_goes_on_over_a_copy_from_before_that() -> None:
    """Nobody but its batches tells of it: the workers have heard nothing of it from the controller.
    The stream before it does not go on."""
    world, query = running()
    query.kill()
    world.run(limits.SESSION_LIVE_S + 1.0)
    copy = world.copy_store()
    world.bind()
    later = world.start_query(world.new_directory(query.directory.planned_to))
    later.kill()
    world.replace_store(copy)
    (job,) = world.recover().jobs
    assert "has opened a new stream" in job.note
    former = world.start_query(query.directory, settled=False)
    world.until(lambda: bool(former.failures), "the former stream to be refused")
    former.kill()
    world.run(limits.SESSION_LIVE_S + 1.0)
    again = world.start_query(later.directory)
    world.finish(again, batches=later.directory.committed + 10)
    assert again.failures == []


@pytest.mark.slow
def test_the_copy_of_a_store_that_has_not_changed_since_is_as_good_as_it() -> None:
    world, query = running()
    world.run(1.0)
    world.replace_store(world.copy_store())
    world.run(2.0)
    assert world.objections() == frozenset()
    end(world, query)


@pytest.mark.slow
def test_a_failover_that_an_old_copy_has_is_not_done_again() -> None:
    """The worker is back and whole; a controller over the old copy would give it up once more."""
    world, query = running(workers=4, replication=1)
    wait_for_copies(world)
    victim = world.hosts[WorkerId("w1")]
    victim.lose()
    trap = world.trap("controller", "store.write failover/", lambda: None, after=True)
    world.until_sprung(trap)
    old = world.copy_store()
    world.until(lambda: "w1" not in world.epoch().workers, "an epoch without w1")
    victim.start_agent()
    world.until_ended(world.controller_views()[0].id)
    wait_for_copies(world)
    world.until_ended(world.rescale(4))
    world.until(lambda: "w1" in world.epoch().workers, "w1 to be of use again")
    world.replace_store(old)
    world.run(7.0)
    assert world.objections()
    assert "w1" in world.epoch().workers
    view = world.recover()
    assert view.jobs[0].gone == ()
    world.run(7.0)
    assert "w1" in world.epoch().workers
    world.finish(query, batches=query.directory.committed + 10)


@pytest.mark.slow
def test_agents_that_restart_have_not_forgotten() -> None:
    world, query = running()
    old = world.copy_store()
    world.until_ended(world.handover([0], "i1"))
    world.kill_controller()
    world.run(1.0)
    for host in world.hosts.values():
        host.power_loss()
        host.start_agent()
    world.replace_store(old)
    assert world.objections() == {"w1", "w2", "w3"}
    world.recover()
    end(world, query)


# --- recovery itself -----------------------------------------------------------------------------


def test_a_recovery_that_is_not_needed_does_nothing() -> None:
    world, query = running()
    store = world.copy_store()
    view = world.recover()
    assert (view.needed, view.jobs) == (False, ())
    assert dict(store.scan()) == dict(world.copy_store().scan())
    end(world, query)


def test_a_worker_that_answers_is_not_left_out() -> None:
    world, _ = running()
    world.replace_store()
    with pytest.raises(Refused):
        world.recover("w1")
    with pytest.raises(UnknownWorker):
        world.recover("w9")


def test_a_controller_killed_while_it_recovers() -> None:
    world, query = running()
    for after in (False, True):
        world.replace_store()
        assert world.objections()
        trap = world.trap(
            "controller", "store.write cluster/draining", world.kill_controller, after=after
        )
        with pytest.raises(ConnectionResetError):
            world.recover()
        assert trap.sprung
        world.start_controller()
        world.run(1.0)
        assert bool(world.objections()) is not after
    end(world, query)


@pytest.mark.slow
def test_a_second_recovery_gives_no_session_that_the_first_gave() -> None:
    world, query = running()
    world.replace_store()
    world.recover()
    query.kill()
    second = world.start_query(query.directory)
    world.replace_store()
    view = world.recover()
    assert view.reign == 3
    second.kill()
    third = world.start_query(query.directory)
    assert third.sessions[0] > second.sessions[-1] > query.sessions[-1]
    world.finish(third, batches=third.directory.committed + 5)


@pytest.mark.slow
def test_what_a_recovered_store_may_have_given_is_not_given_again() -> None:
    """It is lost before any worker has heard of a session that it gave."""
    world, query = running()
    for _ in range(2):
        world.replace_store()
        world.recover()
        world.run(1.0)
    query.kill()
    again = world.start_query(query.directory)
    assert again.sessions[0] > query.sessions[-1] + 2 * limits.SESSIONS_UNSEEN
    world.finish(again, batches=again.directory.committed + 5)


@pytest.mark.slow
def test_a_job_that_only_a_silent_worker_has_is_not_begun_anew() -> None:
    """It is left out with its worker; when that is back the job is there, and its name is taken."""
    world = World(workers=2, instances=1)
    query = world.start_query()
    world.until(lambda: query.directory.committed >= 5)
    (owner,) = world.epoch().instances.values()
    world.hosts[owner].lose()
    world.replace_store()
    query.kill()
    view = world.recover(owner)
    assert view.jobs == ()
    world.hosts[owner].start_agent()
    world.run(3.0)
    assert world.objections() == frozenset()
    status = world.call(lambda c: c.status())
    assert status.health is views.Health.DEGRADED, "it says that the job is there, and what to do"
    again = world.start_query(query.directory, settled=False)
    world.run(3.0)
    assert again.failures
    assert again.sessions == []
    assert [job.name for job in world.recover().jobs] == [JOB]
    seen = again.directory.committed
    world.until(lambda: again.directory.committed > seen)
    world.finish(again, batches=seen + 5)


def test_two_controllers_over_copies_of_one_store() -> None:
    """The one that the workers heard first is listened to; the other only looks."""
    world, query = running()
    first, process, wire = world.controller, world._controller_process, world._controller_wire
    assert first is not None
    world.schedule.remove("controller")
    world.controller = world._controller_process = world._controller_wire = None
    world._store = world._store.copied()
    world.start_controller()
    world.run(2.0)
    assert world.objections() == frozenset()
    for _ in range(100):
        first.step(0.0)
        world.run(0.05)
    assert first.status().health is views.Health.DEGRADED
    assert process is not None
    assert wire is not None
    end(world, query)
