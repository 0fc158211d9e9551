"""A worker is lost, dead or cut off: its vnodes go on elsewhere, in the running query."""

import logging

import pytest

from rhinoctl import limits
from rhinoctl.errors import HealthyTarget, NoCopy, Refused, UnknownWorker
from rhinoctl.ids import Vnode, WorkerId
from rhinoctl.protocol import views
from rhinoctl.protocol.epochs import Role
from rhinoctl.protocol.handover import Kind, Phase
from tests.fakes.world import JOB, World
from tests.fakes.world_spark import Query
from tests.scenarios.test_agent_killed import STEPS
from tests.scenarios.test_copies import checkpoints, tables

W1, W2, W3 = (WorkerId(f"w{n}") for n in (1, 2, 3))


def failovers(world: World) -> list[views.OperationView]:
    return [v for v in world.controller_views() if v.kind is Kind.FAILOVER]


def started(*, workers: int = 3, replication: int = 1, batches: int = 12) -> tuple[World, Query]:
    """A job with an instance on each worker that has run for a while."""
    world = World(workers=workers, instances=workers, replication=replication)
    query = world.start_query()
    world.until(lambda: query.directory.committed >= batches)
    return world, query


def goes_on(world: World, query: Query, within_s: float = 10.0) -> None:
    """Some batches more, soon."""
    seen = query.directory.committed
    world.until(lambda: query.directory.committed > seen + 2, "batches", within_s)


def all_copies(world: World, copies: int) -> bool:
    """Whether each vnode is on so many workers in full."""
    epoch = world.epoch()
    return all(len(epoch.full_holders(Vnode(v))) == copies for v in epoch.vnodes())


def end(world: World, query: Query) -> None:
    """More batches, then every output and all state equal those of the inputs."""
    world.finish(query, batches=query.directory.committed + 10)
    assert query.failures == []


def test_a_worker_is_killed_under_load() -> None:
    """Its vnodes have heirs within a moment, each batch counts once, copies are made anew."""
    world, query = started()
    owned = world.epoch().owned_by("i0")
    world.hosts["w1"].lose()
    goes_on(world, query, 5.0)
    (view,) = failovers(world)
    assert view.lost == ("w1",)
    assert set(view.moves) == set(owned)
    world.until(lambda: failovers(world)[0].phase is Phase.COMPLETE)
    assert W1 not in world.epoch().listeners()
    world.until(lambda: all_copies(world, 2), "copies on the other workers")
    world.until(lambda: failovers(world)[0].recover_ms is not None)
    end(world, query)


def test_what_is_asked_for_right_after_a_loss_is_planned_without_the_lost() -> None:
    """The worker was heard of a moment ago, and is known to be gone all the same."""
    world, query = started()
    world.hosts["w1"].lose()
    world.until(lambda: any(v.phase is Phase.COMPLETE for v in failovers(world)))
    operation = world.rescale(3)
    assert world.until_ended(operation).phase is Phase.COMPLETE
    assert set(world.epoch().instances.values()) == {"w2", "w3"}
    end(world, query)


@pytest.mark.parametrize(
    "step",
    [
        step if number % 2 else pytest.param(step, marks=pytest.mark.slow)
        for number, step in enumerate(s for s in STEPS if "session" not in s)
    ],
)
def test_a_worker_is_lost_at_a_step_of_a_batch(step: str) -> None:
    """Wherever it stood: what was decided counts, what was not is staged anew."""
    world, query = started(batches=6)
    does, holding, after = STEPS[step]
    lose = world.hosts["w1"].lose
    trap = world.trap("w1", does, lose, holding=holding, after=after, skip=3)
    world.until_sprung(trap)
    goes_on(world, query)
    assert W1 not in world.epoch().listeners()
    end(world, query)


@pytest.mark.parametrize(
    ("step", "after"),
    [
        ("stage 0", False),
        pytest.param("send Put", True, marks=pytest.mark.slow),
        ("send Seal", True),
        ("send Apply", True),
        pytest.param("then", True, marks=pytest.mark.slow),
        ("commit", True),
    ],
)
def test_worker_and_driver_are_lost_together(step: str, after: bool) -> None:
    """The next run of the query fences without the lost worker, and goes on from there."""
    world, query = started()

    def both() -> None:
        world.hosts["w1"].lose()
        query.kill()

    trap = world.trap(query.name, step, both, after=after)
    world.until_sprung(trap)
    query = world.start_query(query.directory)
    goes_on(world, query)
    end(world, query)


def test_a_worker_is_lost_while_no_query_runs() -> None:
    """The controller takes a session and cuts by itself."""
    world, query = started()
    query.kill()
    world.hosts["w1"].lose()
    world.until(lambda: bool(failovers(world)), "a failover")
    world.until(lambda: failovers(world)[0].phase is Phase.COMPLETE, "its end")
    query = world.start_query(query.directory)
    end(world, query)


@pytest.mark.parametrize("step", ["store.write", "send Heartbeat"])
@pytest.mark.parametrize("after", [False, True])
def test_the_controller_is_killed_during_a_failover(step: str, after: bool) -> None:
    """What is given up was persisted, or the next controller sees the silence itself."""
    world, query = started()
    world.hosts["w1"].lose()
    trap = world.trap("controller", step, world.kill_controller, after=after)
    world.until_sprung(trap)
    world.run(1.0)
    world.start_controller()
    goes_on(world, query, 30.0)
    end(world, query)


@pytest.mark.parametrize("firewalled", [False, True])
def test_a_dead_worker_whose_beacons_say_nothing_has_its_lease(firewalled: bool) -> None:
    """Nobody listens at its agent's address; that its instances are gone, too, is known only where
    their beacons refuse. A host of which nothing comes may be cut off."""
    world, query = started()
    world.firewalled = firewalled
    at = world.clock.monotonic()
    world.hosts["w1"].lose()
    world.until(lambda: bool(failovers(world)))
    took_s = world.clock.monotonic() - at
    assert (took_s > limits.LEASE_OF_WORKER_S - 2 * limits.HEARTBEAT_S) is firewalled
    goes_on(world, query, 20.0)
    end(world, query)


def test_a_worker_that_is_cut_off_comes_back() -> None:
    """It lives, and hears of nothing: what it does changes nothing. Back again, it runs nothing of
    the job, and its files save a part of the copying (design, section 8)."""
    world, query = started()
    host = world.hosts["w1"]
    others = [world.hosts[w].address for w in ("w2", "w3")]
    world.network.partition([host.address], [*others, "controller", query.name])
    goes_on(world, query, 20.0)
    assert W1 not in world.epoch().listeners()
    assert host.pids("i0"), "it does not know"
    world.network.heal()
    world.until(lambda: not host.pids("i0"), "the end of its instance")
    world.until(lambda: failovers(world)[0].phase is Phase.COMPLETE)
    end(world, query)


@pytest.mark.slow
def test_a_returning_worker_uses_its_files_again() -> None:
    """With two workers the copies have no other place: the lost one gets them back."""
    world, query = started(workers=2, batches=40)
    world.hosts["w1"].lose()
    goes_on(world, query)
    world.until(lambda: failovers(world)[0].phase is Phase.COMPLETE)
    assert world.groups().lacking == 8
    world.hosts["w1"].start_agent()
    world.until(lambda: all_copies(world, 2), "copies on both workers", 60.0)
    end(world, query)


def test_an_agent_alone_moves_nothing() -> None:
    """Design, section 3: it comes back and adopts its instances."""
    world, query = started()
    before = world.epoch()
    for name in ("w1", "w2", "w3"):
        world.hosts[name].kill_agent()
        world.run(1.0)
        world.hosts[name].start_agent()
        goes_on(world, query)
    assert world.epoch() == before
    assert not failovers(world)
    end(world, query)


def test_a_worker_that_is_restarted_on_purpose_moves_nothing() -> None:
    """Its instances end with it; it has said so, and is waited for."""
    world, query = started()
    before = world.epoch()
    for name in ("w1", "w2", "w3"):
        host = world.hosts[name]
        host.end_agent()
        world.until(lambda host=host: host.agent is None)
        assert not host.instances
        world.run(2.0)
        host.start_agent()
        goes_on(world, query)
    assert world.epoch() == before
    assert not failovers(world)
    end(world, query)


def test_a_worker_that_said_farewell_and_stays_away_is_given_up() -> None:
    world, query = started()
    world.hosts["w1"].end_agent()
    goes_on(world, query, 30.0)
    world.until(lambda: bool(failovers(world)), "a failover")
    goes_on(world, query, 30.0)
    assert W1 not in world.epoch().listeners()
    end(world, query)


@pytest.mark.slow
def test_an_agent_ends_without_a_controller_to_be_told() -> None:
    world, query = started()
    world.kill_controller()
    world.hosts["w1"].end_agent()
    world.until(lambda: world.hosts["w1"].agent is None, "its end", 2 * limits.FAREWELL_S)
    world.start_controller()
    world.run(1.0)
    world.hosts["w1"].start_agent()
    goes_on(world, query)
    assert not failovers(world)
    end(world, query)


@pytest.mark.slow
def test_copies_are_made_anew_once_the_heirs_have_recovered() -> None:
    """They would take the network, and the disks, from what the job waits for."""
    world, query = started(workers=4, batches=40)
    world.hosts["w1"].lose()
    for name in ("w2", "w3", "w4"):  # so that the heirs take their time
        for pid in list(world.hosts[name].instances):
            world.hosts[name].kill_pid(pid)
    phases = set()

    def all_back() -> bool:
        phase = failovers(world)[0].phase if failovers(world) else None
        joining = any(m.role is Role.JOINING for r in world.epoch().routes for m in r.members)
        assert not (joining and phase in (Phase.ARMED, Phase.MARKED))
        phases.add(phase)
        return all_copies(world, 2) and phase is Phase.COMPLETE

    world.until(all_back, "copies", 60.0)
    assert Phase.MARKED in phases
    end(world, query)


def test_an_agent_that_stays_away_is_given_up() -> None:
    world, query = started()
    world.hosts["w1"].kill_agent()
    goes_on(world, query, 30.0)
    assert W1 not in world.epoch().listeners()
    end(world, query)


@pytest.mark.parametrize(
    ("gone", "phase"),
    [
        pytest.param(gone, phase, marks=() if gone in often else pytest.mark.slow)
        for gone in ("w1", "w2", "w3")
        for phase, often in (
            (Phase.WARMING, {"w2"}),
            (Phase.ARMED, {"w1"}),
            (Phase.MARKED, {"w2", "w3"}),
        )
    ],
)
def test_a_worker_is_lost_during_a_handover(gone: str, phase: Phase) -> None:
    """The origin's or a third one: the handover goes on from the layout that the failover made. The
    target's: it is aborted, unless its marker is decided already."""
    world, query = started()
    operation = world.handover([0, 1], "i2")
    world.until(lambda: world.operation(operation).phase is phase)
    world.hosts[gone].lose()
    goes_on(world, query, 30.0)
    world.until_ended(operation)
    view = world.operation(operation)
    epoch = world.epoch()
    if gone == "w3" and phase is not Phase.MARKED:
        assert view.phase is Phase.ABORTED
        assert "w3" in view.reason
    else:
        assert view.phase is Phase.COMPLETE
        assert phase is Phase.MARKED or {epoch.routes[v].owner for v in (0, 1)} == {"i2"}
    assert {epoch.instances[route.owner] for route in epoch.routes} <= {"w1", "w2", "w3"} - {gone}
    assert [view.lost for view in failovers(world)] == [(gone,)]
    end(world, query)


@pytest.mark.parametrize(
    "phase", [pytest.param(Phase.WARMING, marks=pytest.mark.slow), Phase.ARMED]
)
@pytest.mark.parametrize(
    ("gone", "instances"),
    [
        ("w1", 5),
        pytest.param("w2", 5, marks=pytest.mark.slow),
        pytest.param("w1", 2, marks=pytest.mark.slow),
        ("w2", 2),
    ],
)
def test_a_worker_is_lost_during_a_rescale(gone: str, instances: int, phase: Phase) -> None:
    """With the layout of the plan, less what was lost; or as the failover leaves it, if the plan
    needs what was lost."""
    world, query = started(workers=4)
    world.until(lambda: all_copies(world, 2))
    operation = world.rescale(instances)
    world.until(lambda: world.operation(operation).phase is phase)
    planned = world.operation(operation).moves
    lost = {i for i, worker in world.epoch().instances.items() if worker == gone}
    world.hosts[gone].lose()
    goes_on(world, query, 30.0)
    world.until_ended(operation)
    view = world.operation(operation)
    owners = {v: world.epoch().routes[v].owner for v in planned}
    assert lost.isdisjoint(world.epoch().instances)
    if view.phase is Phase.COMPLETE:
        assert owners == planned
    else:
        assert "lost" in view.reason or "running" in view.reason or "silent" in view.reason
    end(world, query)


@pytest.mark.slow
def test_a_worker_is_lost_while_the_heirs_of_another_recover() -> None:
    """The first failover would wait for the second victim, the second for the first failover."""
    world = World(workers=4, instances=4, replication=2)
    query = world.start_query()
    world.until(lambda: query.directory.committed >= 12)
    cut = world.trap("w2", "disk.sync", lambda: None, holding="-1-")  # step 1: an epoch record
    world.hosts["w1"].lose()
    world.until_sprung(cut)
    lost = world.trap("w2", "reply SealAnswer", world.hosts["w2"].lose, after=True)
    world.until_sprung(lost)
    world.until(lambda: failovers(world)[0].phase is Phase.MARKED)
    world.failover("w2")
    goes_on(world, query, 30.0)
    (view,) = failovers(world)
    assert view.lost == ("w1", "w2")
    assert world.until_ended(view.id).phase is Phase.COMPLETE
    end(world, query)


@pytest.mark.slow
def test_two_workers_are_lost_one_after_the_other() -> None:
    world, query = started(workers=4)
    world.hosts["w1"].lose()
    goes_on(world, query)
    world.until(lambda: all_copies(world, 2), "copies on the other workers")
    world.hosts["w2"].lose()
    goes_on(world, query)
    assert [view.lost for view in failovers(world)] == [("w2",), ("w1",)]
    end(world, query)


@pytest.mark.slow
def test_many_losses_at_once_wait_for_a_person() -> None:
    """The brake: more than a third. With two copies a person may go on."""
    world, query = started(workers=4, replication=2)
    world.hosts["w1"].lose()
    world.hosts["w2"].lose()
    world.run(10.0)
    seen = query.directory.committed
    assert not failovers(world)
    findings = [finding.what for finding in world.call(lambda c: c.status()).findings]
    assert any("2 of 4 workers are lost together" in what for what in findings)
    world.failover("w1")
    world.failover("w2")
    world.until(lambda: query.directory.committed > seen + 2, "batches after the failovers")
    end(world, query)


def test_without_another_copy_the_job_waits_for_the_worker() -> None:
    world, query = started(replication=0)
    world.hosts["w1"].lose()
    world.run(10.0)
    with pytest.raises(NoCopy, match="nobody else has a whole copy of vnode 0"):
        world.failover("w1")
    world.hosts["w1"].start_agent()
    goes_on(world, query, 30.0)
    end(world, query)


def test_what_a_failover_by_hand_refuses() -> None:
    world, query = started()
    with pytest.raises(HealthyTarget, match="w1 answers"):
        world.failover("w1")
    with pytest.raises(HealthyTarget, match="i0 answers"):
        world.failover("i0")
    with pytest.raises(UnknownWorker, match="'w9'"):
        world.failover("w9")
    end(world, query)


@pytest.mark.slow
def test_a_job_with_fewer_instances_than_were_asked_for_says_so() -> None:
    """Those of a lost worker are not started elsewhere; a rescale, not a failover, says how many
    are wanted."""
    world, query = started()

    def instances() -> tuple[int, int]:
        job = world.call(lambda c: c.job(JOB))
        return len(job.instances), job.instances_asked

    assert instances() == (3, 3)
    world.hosts["w1"].lose()
    world.until(lambda: instances() == (2, 3), "a failover")
    world.until(lambda: failovers(world)[0].phase is Phase.COMPLETE)
    assert world.rescale(2) == "", "there are as many already"
    assert instances() == (2, 2)
    world.run(limits.WORKER_DOWN_S)
    assert world.until_ended(world.rescale(4)).phase is Phase.COMPLETE
    assert instances() == (4, 4)
    end(world, query)


@pytest.mark.slow
def test_a_failover_cannot_be_taken_back() -> None:
    world, query = started()
    world.hosts["w1"].lose()
    world.until(lambda: bool(failovers(world)), "a failover")
    with pytest.raises(Refused, match="no way back"):
        world.abort(failovers(world)[0].id)
    done = world.until_ended(failovers(world)[0].id)
    assert done.phase is Phase.COMPLETE
    world.abort(done.id)  # there is nothing to abort, and no cut that may be decided already
    assert failovers(world)[0].phase is Phase.COMPLETE
    end(world, query)


def test_a_switchover_is_a_promotion() -> None:
    """Nothing is copied: the target has it (Rhino, section 3.5)."""
    world, query = started()
    (view,) = world.switchover("i0")
    view = world.until_ended(view.id)
    assert view.phase is Phase.COMPLETE
    assert view.bytes_moved == 0
    assert not world.epoch().owned_by("i0")
    end(world, query)


@pytest.mark.slow
def test_a_drained_worker_can_be_stopped() -> None:
    """T3: the drain ends with no failover, and the host is not missed."""
    world, query = started()
    (view,) = world.drain("w1")
    assert world.until_ended(view.id).phase is Phase.COMPLETE
    world.until(lambda: W1 not in world.epoch().listeners(), "w1 to hold nothing")
    world.until(lambda: all_copies(world, 2), "two copies on the others")
    world.hosts["w1"].lose()
    goes_on(world, query)
    assert not failovers(world)
    end(world, query)


@pytest.mark.slow
def test_an_aborted_drain_leaves_its_worker_as_it_was() -> None:
    """The old layout is kept, so the worker is no drained one, and its copies stay."""
    world, query = started()
    before = world.epoch()
    (view,) = world.drain("w1")
    assert draining(world) == {W1}
    world.abort(view.id)
    assert world.until_ended(view.id).phase is Phase.ABORTED
    assert draining(world) == set()
    world.run(2 * limits.REPLAN_S)
    assert world.epoch().instances == before.instances
    assert set(world.epoch().held_by(W1)) == set(before.held_by(W1))
    (view,) = world.drain("w1")
    assert world.until_ended(view.id).phase is Phase.COMPLETE
    assert draining(world) == {W1}
    end(world, query)


@pytest.mark.parametrize("after", [False, True])
def test_a_controller_killed_as_it_aborts_a_drain_has_done_both_or_neither(after: bool) -> None:
    world, query = started()
    (view,) = world.drain("w1")
    kill = world.kill_controller
    trap = world.trap("controller", "store.write op/", kill, holding="phase=aborted", after=after)
    world.submit(lambda c: c.abort(view.id, views.AbortRequest(reason="a test")))
    world.until_sprung(trap)
    world.start_controller()
    aborted = world.until_ended(view.id).phase is Phase.ABORTED
    assert aborted == after
    assert draining(world) == (set() if aborted else {W1})
    end(world, query)


@pytest.mark.slow
def test_a_drain_of_a_job_without_a_query_waits_for_its_next_batch() -> None:
    """Vnodes move at once; nobody knows whether the last output is still owed, so copies stay, and
    that is said. The time without a query is no pause."""
    world, query = started()
    query.limit = 0
    world.until(lambda: not query.running, "the query's end")
    assert not world.groups().waits_for_batch
    world.run(2 * limits.SESSION_LIVE_S)
    (view,) = world.drain("w1")
    view = world.until_ended(view.id)
    assert view.phase is Phase.COMPLETE
    assert not view.live
    assert not any(group.worker == W1 for group in world.groups().groups)
    world.run(10.0)
    assert world.epoch().held_by(W1)
    assert world.groups().waits_for_batch
    query = world.start_query(query.directory)
    assert not world.groups().waits_for_batch
    world.until(lambda: W1 not in world.epoch().listeners(), "w1 to hold nothing")
    assert world.operation(view.id).pause_ms is None
    end(world, query)


def draining(world: World) -> set[str]:
    """The workers that are to be empty, as `status` shows them."""
    status = world.call(lambda c: c.status())
    return {worker.id for worker in status.workers if worker.draining}


@pytest.mark.slow
def test_replication_is_raised_and_lowered_while_it_runs() -> None:
    world, query = started(replication=0)
    world.set_replication(2)
    world.until(lambda: all_copies(world, 3), "three copies", 60.0)
    world.set_replication(1)
    world.until(lambda: all_copies(world, 2), "two copies", 60.0)
    end(world, query)


def test_a_member_that_is_lost_is_replaced() -> None:
    """Rhino, section 4.2.3, the second failure."""
    world = World(workers=3, instances=1, replication=1)
    query = world.start_query()
    world.until(lambda: query.directory.committed >= 12)
    assert world.epoch().instances.keys() == {"i0"}
    member = max(m.worker for route in world.epoch().routes for m in route.members)
    world.hosts[member].lose()
    goes_on(world, query, 30.0)
    world.until(lambda: all_copies(world, 2), "another member", 60.0)
    assert member not in world.epoch().listeners()
    end(world, query)


@pytest.mark.parametrize(
    ("damage", "all_of_them"),
    [
        ("a byte", False),
        pytest.param("gone", False, marks=pytest.mark.slow),
        pytest.param("truncated", True, marks=pytest.mark.slow),
        pytest.param("empty", True, marks=pytest.mark.slow),
    ],
)
def test_t6_an_heir_with_bad_bytes(
    damage: str, all_of_them: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """The newest checkpoint of a copy is bad, or every one: it is found before it serves and named,
    and an older one, or another holder's, is used (design, invariant 9)."""
    caplog.set_level(logging.INFO, "rhino.agent")
    world, query = started(replication=2, batches=80)
    vnode = world.epoch().owned_by("i0")[0]
    world.hosts["w1"].lose()
    for worker in ("w2", "w3")[: 1 if all_of_them else 2]:
        disk = world.hosts[worker].disk
        for checkpoint in checkpoints(world, worker, vnode)[0 if all_of_them else -1 :]:
            for path in tables(world, worker, checkpoint):
                if damage == "a byte":
                    disk.rot(path, (disk.size(path) or 1) // 2)
                elif damage == "gone":
                    disk.remove(path)
                else:
                    disk.corrupt(path, b"" if damage == "empty" else bytes(disk.read(path, 0, 9)))
    goes_on(world, query, 30.0)
    end(world, query)
    heir = world.epoch().owner_worker(vnode)
    told = [record.getMessage() for record in caplog.records]
    bad = [line for line in told if "checkpoint-bad" in line and f"vnode={vnode}" in line]
    assert bad or (all_of_them and heir == "w3"), "it is named"
