"""Messages are lost, repeated and overtaken; hosts are cut off from each other."""

from math import inf

import pytest

from rhinoctl import limits
from rhinoctl.protocol.handover import Phase
from tests.fakes.wire import QUIET, Faults
from tests.fakes.world import World
from tests.fakes.world_input import Workload
from tests.scenarios.test_failover import all_copies

ROUGH = Faults(delay_s=(0.0005, 0.03), lose_request=0.05, lose_answer=0.05, repeat=0.05)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_one_message_in_twenty_is_lost_and_one_comes_twice(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lost apply costs its batch a minute: few batches come, so the move has hours."""
    monkeypatch.setattr(limits, "HANDOVER_DEADLINE_S", 6 * 3600.0)
    world = World(seed, workers=3, faults=ROUGH, leisure=10.0)
    query = world.start_query(settled=False)
    world.until(lambda: query.directory.committed >= 5, within_s=1800)
    world.network.faults = QUIET  # until every worker has been heard
    world.run(5.0)
    operation = world.rescale(3)
    world.network.faults = ROUGH
    assert world.until_ended(operation, within_s=3 * 3600).phase is Phase.COMPLETE
    world.finish(query, batches=query.directory.committed + 5, within_s=1800)


def test_a_worker_is_cut_off_for_a_while() -> None:
    """Batches wait for it: nobody votes in its place. Then they go on."""
    world = World(workers=2)
    query = world.start_query()
    world.until(lambda: query.directory.committed >= 10)
    cut = world.hosts["w2"].address
    world.network.partition([cut], ["controller", query.name, world.hosts["w1"].address])
    seen = query.directory.committed
    world.run(20.0)
    assert query.directory.committed <= seen + 1
    world.network.heal()
    world.finish(query, batches=seen + 15, within_s=900)


def test_two_workers_that_do_not_reach_each_other_for_a_while_end_no_query() -> None:
    """Slices are passed on by one of them only: the batch waits, as for a worker that is silent."""
    world = World(workers=2, replication=1)
    query = world.start_query()
    world.until(lambda: all_copies(world, 2), "two copies of each vnode")
    world.network.partition([world.hosts["w1"].address], [world.hosts["w2"].address])
    seen = query.directory.committed
    world.run(9.0)
    assert query.directory.committed <= seen + 1
    world.network.heal()
    world.finish(query, batches=seen + 15)
    assert query.failures == []


@pytest.mark.slow
def test_a_target_is_cut_off_from_its_source_while_it_copies() -> None:
    world = World(workers=3)
    query = world.start_query()
    world.until(lambda: query.directory.committed >= 15)
    target = world.hosts["w3"].address
    sources = [world.hosts[name].address for name in ("w1", "w2")]
    operation = world.rescale(3)
    trap = world.trap(
        "w3", "send FetchManifest", lambda: world.network.partition([target], sources)
    )
    world.until_sprung(trap)
    seen = query.directory.committed
    world.until(lambda: query.directory.committed >= seen + 10, within_s=300)
    world.network.heal()
    assert world.until_ended(operation).phase is Phase.COMPLETE
    world.finish(query, batches=query.directory.committed + 15)
    assert query.failures == []


@pytest.mark.slow
def test_a_member_that_nobody_waits_for_misses_a_batch_while_its_instance_follows() -> None:
    """The checkpoint of a vnode that was quiet is not thought to reach over a batch that touched
    it, but that this worker never saw."""
    workload = Workload(rows_max=150)
    world = World(workers=3, workload=workload)
    query = world.start_query()
    query.trigger_s = 0.3
    world.until(lambda: query.directory.committed >= 15)
    w1, w2, w3 = (host.address for host in world.hosts.values())
    workload.quiet = (query.directory.planned_to, inf)
    # One of the two vnodes is not copied, so that the worker is not made a full member.
    world.trap("w3", f"send FetchManifest {w2}", lambda: world.network.cut(w3, w2))
    followed = world.trap("w3/i2", "reply BatchApplied", lambda: None)
    operation = world.rescale(3)
    world.until_sprung(followed)
    seen = query.directory.committed
    world.until(lambda: query.directory.committed > seen)
    workload.quiet = (workload.quiet[0], query.directory.planned_to)
    world.network.partition([w3], [query.name, w1, w2])
    world.until(lambda: query.directory.committed > seen + 1)
    world.network.heal()
    world.network.cut(w3, w2)
    seen = query.directory.committed
    world.until(lambda: query.directory.committed >= seen + 4)
    world.network.heal()
    assert world.until_ended(operation).phase is Phase.COMPLETE
    world.finish(query, batches=query.directory.committed + 15)
    assert query.failures == []
