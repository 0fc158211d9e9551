"""A decided segment of a worker's log is damaged: its agent cannot read the job any more.

The worker is seen and serves its other jobs. Of this one it counts as lost, is named everywhere,
and begins anew with empty hands once nothing of it is needed.
"""

import pytest

from rhinoctl.errors import HealthyTarget, NoCopy
from rhinoctl.ids import JobName, WorkerId
from rhinoctl.ops import groups as groups_ops
from rhinoctl.ops import verify as verify_ops
from rhinoctl.protocol import views
from rhinoctl.protocol.diagnosis import Facts, diagnose
from rhinoctl.protocol.findings import Check, Finding
from rhinoctl.protocol.handover import Phase
from tests.fakes.disk import FakeDisk
from tests.fakes.world import JOB, World
from tests.fakes.world_spark import Query
from tests.scenarios.test_copies import warmed_up
from tests.scenarios.test_failover import all_copies, end, failovers, goes_on
from tests.scenarios.test_verify import verify

W1, W2, W3 = (WorkerId(f"w{n}") for n in (1, 2, 3))


def started(**more: object) -> tuple[World, Query]:
    """Owners on w1 and w2; w3 has copies only."""
    world = World(**{"workers": 3, "instances": 2, "replication": 1, **more})  # type: ignore[arg-type]
    query = warmed_up(world, 30)
    query.trigger_s = 0.1
    world.until(lambda: all_copies(world, 1 + world.replication), "copies")
    if world.replication:
        assert set(world.hosts) == world.epoch().voters()
    return world, query


def damage(world: World, worker: str, job: JobName = JOB) -> tuple[str, bytes]:
    """kill -9 of the agent, a decided segment is bad, and the agent starts again; the segment and
    what was in it."""
    host = world.hosts[WorkerId(worker)]
    host.kill_agent()
    root = f"jobs/{world.uid(job)}/log"
    path = f"{root}/{sorted(host.disk.list(root))[1]}"
    was = bytes(host.disk.read(path))
    host.disk.corrupt(path, b"not a segment")
    host.start_agent()
    return path, was


def found(world: World) -> list[Finding]:
    """What doctor says of jobs that cannot be read."""
    every = diagnose(Facts(cluster=world.call(lambda c: c.evidence())))
    return [finding for finding in every if finding.check is Check.JOB_UNREADABLE]


def aside(world: World, worker: str) -> list[str]:
    disk: FakeDisk = world.hosts[WorkerId(worker)].disk
    return disk.list("bad")


def healed(world: World, worker: str) -> None:
    """It has copies again, nothing is said any more, and what was damaged is there to be seen."""
    world.until(lambda: aside(world, worker) == [world.uid()], "the files to be set aside", 60.0)
    world.until(lambda: all_copies(world, 2), "copies", 60.0)
    world.until(lambda: world.status().health is views.Health.OK, "a sound cluster", 60.0)
    assert found(world) == []
    assert world.groups().unreadable == {}


@pytest.mark.parametrize(
    "worker",
    [
        pytest.param("w1", id="an owner"),
        pytest.param("w3", id="copies only", marks=pytest.mark.slow),
    ],
)
def test_it_is_given_up_for_the_job_and_heals_by_itself(worker: str) -> None:
    """Its instances may still run: what they owned has heirs, and they end."""
    world, query = started()
    path, _ = damage(world, worker)
    goes_on(world, query, 20.0)
    (view,) = failovers(world)
    assert view.lost == (worker,)
    assert "cannot read" in view.reason
    healed(world, worker)
    name = path.rpartition("/")[2]
    kept = world.hosts[WorkerId(worker)].disk.read(f"bad/{world.uid()}/log/{name}")
    assert bytes(kept) == b"not a segment"
    end(world, query)


@pytest.mark.slow
def test_it_takes_part_again() -> None:
    """With as many workers as copies ask for, the one that was damaged must be one of them."""
    world, query = started(workers=2, instances=1)
    damage(world, "w2")
    goes_on(world, query, 20.0)
    healed(world, "w2")
    assert W2 in world.epoch().voters()
    world.hosts[W1].lose()
    goes_on(world, query, 20.0)
    end(world, query)


@pytest.mark.slow
def test_one_that_was_given_up_before_comes_back_with_a_damaged_log() -> None:
    """It never joins with what it cannot read, which is why nothing has to be given up again."""
    world, query = started(workers=2, instances=1)
    world.hosts[W2].lose()
    world.until(lambda: any(v.phase is Phase.COMPLETE for v in failovers(world)))
    goes_on(world, query)
    damage(world, "w2")
    healed(world, "w2")
    assert len(failovers(world)) == 1
    end(world, query)


def started_without(worker: str) -> tuple[World, Query]:
    """No failover by itself, and batches wait for a worker that cannot read the job."""
    world, query = started(auto_failover=False)
    damage(world, worker)
    world.until(lambda: bool(found(world)), "the report")
    return world, query


def test_everybody_names_it_and_a_failover_by_hand_is_accepted() -> None:
    world, query = started_without("w3")
    (finding,) = found(world)
    assert "worker w3 cannot read" in finding.what
    assert ".seg of the worker log" in finding.evidence
    assert "`rhinoctl failover w3`" in finding.remedy
    status = world.status()
    assert status.health is views.Health.DEGRADED
    assert [w.id for w in status.workers if w.health is views.Health.DEGRADED] == [W3]
    said = [f for f in status.findings if "w3 cannot read what it has of job" in f.what]
    assert len(said) == 1
    assert "batches wait for it" in said[0].what
    assert list(world.groups().unreadable) == [W3]
    fault = groups_ops.error_of(world.groups())
    assert fault is not None
    assert "w3" in fault.message
    fault = verify_ops.error_of(verify(world))
    assert fault is not None
    assert "what worker w3 has of job" in fault.message
    with pytest.raises(HealthyTarget):
        world.failover("w2")
    (view,) = world.failover("w3")
    assert world.until_ended(view.id).phase is Phase.COMPLETE
    goes_on(world, query)
    healed(world, "w3")
    assert verify_ops.error_of(verify(world)) is None
    end(world, query)


@pytest.mark.slow
def test_nothing_is_set_aside_before_a_batch_says_that_nothing_is_needed() -> None:
    """The last batch's output may still be owed (invariant 14)."""
    world, query = started()
    query.kill()
    world.run(6.0)
    damage(world, "w3")
    world.until(lambda: bool(failovers(world)) and failovers(world)[0].phase is Phase.COMPLETE)
    world.run(20.0)
    assert aside(world, "w3") == []
    (finding,) = found(world)
    assert "with the next batches" in finding.remedy
    fault = verify_ops.error_of(verify(world))
    assert fault is not None, "though it has no part in the job any more"
    again = world.start_query(directory=query.directory)
    healed(world, "w3")
    end(world, again)


def test_the_only_holder_keeps_what_it_has() -> None:
    """Nobody else has it: batches wait, a person decides, and good bytes mend it."""
    world, query = started(replication=0)
    uid = world.uid()
    path, was = damage(world, "w1")
    world.run(20.0)
    assert failovers(world) == []
    assert aside(world, "w1") == []
    (finding,) = found(world)
    assert "batches wait for it: it owns vnode" in finding.cost
    assert "--force" in finding.remedy
    assert f"jobs/{uid}" in finding.remedy
    assert any("no failover by itself" in f.what for f in world.status().findings)
    with pytest.raises(NoCopy):
        world.failover("w1")
    host = world.hosts[W1]
    host.kill_agent()
    host.disk.corrupt(path, was)
    host.start_agent()
    goes_on(world, query, 30.0)
    end(world, query)


@pytest.mark.slow
def test_its_other_jobs_stay_where_they_are() -> None:
    world = World(workers=2, instances=2, replication=1, auto_failover=False)
    one = world.start_query(job=JobName("one"))
    two = world.start_query(job=JobName("two"))
    world.until(lambda: min(one.directory.committed, two.directory.committed) >= 20)
    damage(world, "w1", JobName("one"))
    world.until(lambda: bool(found(world)), "the report")
    (view,) = world.failover("w1")
    assert view.job == "one"
    world.until_ended(view.id)
    goes_on(world, one)
    assert W1 in world.epoch(JobName("two")).instances.values()
    world.until(lambda: aside(world, "w1") == [world.uid(JobName("one"))])
    world.finish(two, batches=two.directory.committed + 5)
    world.finish(one, batches=one.directory.committed + 5)
    world.run(20.0)
    world.delete(JobName("one"))
    world.until(lambda: aside(world, "w1") == [], "what was set aside goes with its job")


def test_a_crash_while_it_is_set_aside_on_several_disks() -> None:
    world, query = started(disks=2)
    uid, host = world.uid(), world.hosts[W3]
    (second,) = host.further.values()
    damage(world, "w3")
    trap = world.trap("w3", f"disk.rename bad/{uid}", host.kill_agent, after=True)
    world.until_sprung(trap)
    assert host.disk.list(f"bad/{uid}")
    assert second.list(f"jobs/{uid}"), "not yet there"
    host.start_agent()
    world.until(lambda: bool(second.list(f"bad/{uid}/ckpt")), "the rest", 60.0)
    healed(world, "w3")
    end(world, query)


def test_what_is_spread_over_disks_is_set_aside_on_each() -> None:
    world, query = started(disks=2)
    uid, host = world.uid(), world.hosts[W3]
    disks = (host.disk, *host.further.values())
    assert all(disk.list(f"jobs/{uid}/ckpt") for disk in disks)
    damage(world, "w3")
    world.until(lambda: all(disk.list(f"bad/{uid}/ckpt") for disk in disks), "set aside", 60.0)
    healed(world, "w3")
    world.finish(query, batches=query.directory.committed + 5)
    query.limit = 0
    world.until(lambda: not query.running)
    world.run(6.0)
    world.delete()
    world.until(lambda: not any(disk.list("bad") for disk in disks))
