"""A worker that has the only copy is given up: its vnodes begin empty, and people are told."""

import pytest

from rhinoctl.errors import NoCopy
from rhinoctl.ids import JobName, Vnode, WorkerId
from rhinoctl.protocol.handover import Phase
from tests.fakes.world import JOB, World
from tests.scenarios.test_failover import end, failovers, goes_on, started


def test_a_person_may_accept_that_state_is_lost() -> None:
    """Nobody else has w1's vnodes: with --force they begin empty, and the others go on as ever."""
    world, query = started(replication=0)
    before = world.epoch()
    world.hosts["w1"].lose()
    world.run(6.0)
    (planned,) = world.failover("w1", force=True, dry_run=True)
    (view,) = world.failover("w1", force=True)
    goes_on(world, query, 10.0)
    world.until(lambda: failovers(world)[0].phase is Phase.COMPLETE)
    done = failovers(world)[0]
    assert set(view.moves) == set(before.owned_by("i0"))
    for said in (planned, view, done):
        assert said.forfeited == before.owned_by("i0")
        assert said.forfeited_bytes, "what is lost was reported when its worker lived"
        assert said.forfeited_seen is not None
    forfeited = {key for key, _ in world.state().items()}
    assert forfeited, "rows that came since are counted"
    world.hosts["w1"].start_agent()
    world.until(lambda: not world.hosts["w1"].agent.desks, "w1 to forget the job")  # type: ignore[union-attr]
    goes_on(world, query)
    assert query.failures == []
    since = world.call(lambda c: c.job(JOB)).forfeited
    assert since == dict.fromkeys(before.owned_by("i0"), done.marker)
    world.until_ended(world.rescale(4))
    world.replace_store()
    assert world.objections()
    world.recover()
    assert world.call(lambda c: c.job(JOB)).forfeited == since, "for as long as there is the job"


def test_state_that_was_not_lost_is_not_said_to_be() -> None:
    """Others have copies: --force changes nothing."""
    world, query = started(workers=4, replication=2)
    world.hosts["w1"].lose()
    world.hosts["w2"].lose()
    world.run(10.0)
    assert not failovers(world)
    world.failover("w1", force=True)
    world.failover("w2", force=True)
    world.until(lambda: failovers(world)[0].phase is Phase.COMPLETE)
    assert not any(view.forfeited for view in failovers(world))
    assert not world.call(lambda c: c.job(JOB)).forfeited
    end(world, query)


def test_the_second_of_two_holders_is_given_up_only_by_force() -> None:
    """Each has what the other has: with the first given up, the second is the last."""
    world, query = started(workers=3)
    lost = [WorkerId(f"w{n}") for n in (1, 2)]
    epoch = world.epoch()
    last = tuple(Vnode(v) for v in epoch.vnodes() if {*epoch.full_holders(Vnode(v))} <= {*lost})
    assert last, "some vnode is on these two only"
    for worker in lost:
        world.hosts[worker].lose()
    world.run(10.0)
    world.failover("w1")
    world.run(2.0)
    with pytest.raises(NoCopy, match="nobody else has a whole copy"):
        world.failover("w2")
    (planned,) = world.failover("w2", force=True, dry_run=True)
    world.failover("w2", force=True)
    world.until(lambda: failovers(world)[0].phase is Phase.COMPLETE)
    goes_on(world, query)
    assert planned.forfeited == failovers(world)[0].forfeited == last
    assert {*world.call(lambda c: c.job(JOB)).forfeited} == {*last}


@pytest.mark.slow
def test_every_job_that_would_lose_state_is_named() -> None:
    world = World(workers=2, replication=0)
    for name in ("one", "two"):
        world.start_query(job=JobName(name))
    world.run(5.0)
    world.hosts["w1"].lose()
    world.run(10.0)
    with pytest.raises(NoCopy) as refused:
        world.failover("w1")
    assert "job one" in refused.value.message
    assert "job two" in refused.value.message
    assert refused.value.remedy.count("--force") == 1
    remedies = [f.remedy for f in world.status().findings if "no failover by itself" in f.what]
    assert len(remedies) == 2
    assert all("failover w1 --force" in remedy for remedy in remedies), "what is not refused, too"
