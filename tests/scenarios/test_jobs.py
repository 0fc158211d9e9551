"""Jobs come and go, and two of them share workers."""

from random import Random

import pytest

from rhinoctl.ids import JobName
from tests.fakes.world import JOB, World


def test_a_deleted_job_leaves_nothing() -> None:
    world = World(workers=2)
    query = world.start_query()
    world.until(lambda: query.directory.committed >= 20)
    query.limit = 0
    world.until(lambda: not query.running)
    world.run(6.0)
    world.delete()
    world.until(lambda: all(h.disk.list("jobs") == [] for h in world.hosts.values()))
    assert all(host.instances == {} for host in world.hosts.values())
    world.until(lambda: _jobs(world) == ())
    again = world.start_query()
    world.finish(again, batches=10)


def _jobs(world: World):  # type: ignore[no-untyped-def]
    assert world.controller is not None
    return world.controller.job_list().jobs


@pytest.mark.parametrize("seed", range(4))
def test_no_loss_of_power_brings_a_deleted_job_back(seed: int) -> None:
    world = World(workers=2)
    query = world.start_query()
    world.until(lambda: query.directory.committed >= 12)
    query.kill()
    world.run(6.0)
    host = world.hosts["w1"]
    trap = world.trap("w1", "disk.remove", lambda: host.power_loss(Random(seed)), holding=".gone")
    trap.skip = 1
    world.delete()
    world.until_sprung(trap)
    host.start_agent()
    world.until(lambda: host.disk.list("jobs") == [])
    world.until(lambda: _jobs(world) == ())


def test_a_job_may_be_deleted_while_it_is_being_installed() -> None:
    world = World(workers=2)
    query = world.start_query(settled=False)
    trap = world.trap("controller", "send Seal", query.kill)
    world.until_sprung(trap)
    world.delete()
    world.run(60.0)
    assert _jobs(world) == ()
    world.finish(world.start_query(), batches=8)


def test_two_jobs_on_the_same_workers_with_instances_of_the_same_names() -> None:
    world = World(workers=2)
    one = world.start_query(job=JobName("one"))
    two = world.start_query(job=JobName("two"))
    moved = world.handover([0, 1], "i1", job=JobName("two"))
    world.until_ended(moved)
    world.finish(one, batches=25)
    world.finish(two, batches=25)
    assert one.failures == two.failures == []


def test_one_job_with_an_unreadable_log_does_not_take_the_others_along() -> None:
    world = World(workers=2)
    one = world.start_query(job=JobName("one"))
    two = world.start_query(job=JobName("two"))
    world.until(lambda: min(one.directory.committed, two.directory.committed) >= 10)
    host = world.hosts["w1"]
    host.kill_agent()
    root = f"jobs/{world.uid(JobName('one'))}/log"
    older = sorted(host.disk.list(root))[1]
    host.disk.corrupt(f"{root}/{older}", b"not a segment")
    host.start_agent()
    world.finish(two, batches=25)
    assert two.failures == []
    one.kill()
    world.run(20.0)
    world.delete(JobName("one"))
    world.until(lambda: host.disk.list("jobs") == [two.uid])
    assert {one.settings.job.uid for one in host.instances.values()} == {two.uid}


def test_a_job_s_directory_that_lost_its_spec_is_kept() -> None:
    """It may have what nobody else has; with the file put back the job goes on."""
    world = World(workers=1)
    query = world.start_query()
    world.until(lambda: query.directory.committed >= 20)
    host, root = world.hosts["w1"], f"jobs/{world.uid()}"
    host.kill_agent()
    spec = host.disk.read(f"{root}/spec.json")
    host.disk.remove(f"{root}/spec.json")
    host.disk.write_atomic("jobs/not-ours/a/b", b"of somebody else")
    before = list(host.disk.files(root))
    host.start_agent()
    world.run(30.0)
    assert list(host.disk.files(root)) == before
    assert host.disk.read("jobs/not-ours/a/b") == b"of somebody else"
    host.kill_agent()
    host.disk.write_atomic(f"{root}/spec.json", spec)
    host.start_agent()
    if not query.running:
        query = world.start_query()
    world.finish(query, batches=query.directory.committed + 20)


def test_a_job_that_was_hardly_taken_on_is_taken_on_anew() -> None:
    """The power goes before its first file is whole: what is left of it is in nobody's way."""
    world = World(workers=1)
    trap = world.trap("w1", "disk.write_atomic jobs/", world.hosts["w1"].power_loss)
    query = world.start_query(settled=False)
    world.until_sprung(trap)
    world.hosts["w1"].disk.write_atomic(f"jobs/{world.uid()}/log/.0.tmp", b"half")
    world.hosts["w1"].start_agent()
    if not query.running:
        query = world.start_query()
    world.finish(query, batches=10)


@pytest.mark.parametrize("name", ["spec.json", "session.json"])
def test_a_job_s_small_files_may_be_damaged(name: str) -> None:
    """The agent starts, the worker is given up for this job, and comes back as an empty one."""
    world = World(workers=2, replication=1)
    query = world.start_query()
    world.until(lambda: query.directory.committed >= 20)
    host = world.hosts["w2"]
    host.kill_agent()
    host.disk.corrupt(f"jobs/{world.uid()}/{name}", b"{")
    host.start_agent()
    world.until(lambda: bool(host.disk.list("bad")), "the damaged directory to be set aside")
    if not query.running:
        query = world.start_query()
    world.finish(query, batches=query.directory.committed + 30)


def test_a_removal_that_was_cut_short_between_two_disks_is_finished() -> None:
    world = World(workers=1, disks=2)
    query = world.start_query()
    world.until(lambda: query.directory.committed >= 20)
    query.kill()
    world.run(20.0)
    host, uid = world.hosts["w1"], world.uid()
    trap = world.trap("w1", f"disk.rename jobs/{uid}", host.power_loss, after=True)
    world.delete(JOB)
    world.until_sprung(trap)
    host.start_agent()
    world.until(lambda: not host.disk.list("jobs"))
    assert not any(disk.list("jobs") for disk in host.further.values())
