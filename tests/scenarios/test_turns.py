"""Every vnode has its turn: what an heir would replay is bounded, in batches too."""

import pytest

from rhinoctl import limits
from tests.fakes.world import JOB, World
from tests.fakes.world_spark import Query
from tests.fakes.world_windows import WindowedWorkload
from tests.scenarios.test_replication import log_bytes

VNODES = 32


def windows_of_few_keys(**more: float) -> tuple[World, Query]:
    """Each batch has a few rows, for a few of the vnodes, and moves the watermark: it touches all
    vnodes. `more` are delays of requests, by their kind."""
    workload = WindowedWorkload(keys=20, rows_max=6, vnodes=VNODES, of=VNODES)
    world = World(workers=2, vnodes=VNODES, replication=1, workload=workload)
    world.network.late_s |= more
    return world, world.start_query()


def most_behind(world: World, query: Query, *, until_batch: int) -> tuple[int, int]:
    """The most batches that an heir would have to replay of any vnode, and the largest log, seen
    while the job goes on to a batch."""
    behind, log = 0, 0
    for batch in range(query.directory.committed + 10, until_batch + 1, 10):
        world.until(lambda batch=batch: query.directory.committed >= batch)
        members = [member for group in world.groups().groups for member in group.members]
        behind = max(behind, *(member.lag_batches or 0 for member in members))
        log = max(log, *(log_bytes(world, worker) for worker in world.hosts))
    return behind, log


@pytest.mark.slow
def test_vnodes_without_rows_have_their_turn_however_long_the_others_take_to_replay() -> None:
    """Small batches that take long: a replay of their rows is predicted to exceed its target,
    whatever is checkpointed, and eviction touches the vnodes without rows as well."""
    world, query = windows_of_few_keys(ApplyBatch=0.3, CheckpointVnode=0.02)
    query.trigger_s = 0.02
    world.until(lambda: query.directory.committed >= 2 * limits.CHECKPOINT_ROUND_BATCHES)
    behind, log = most_behind(world, query, until_batch=160)
    assert behind <= limits.CHECKPOINT_ROUND_BATCHES
    assert most_behind(world, query, until_batch=230)[1] <= 1.2 * log
    loss = world.call(lambda c: c.job(JOB)).losses[0]
    assert loss.batches * 0.3 < loss.seconds < (loss.batches + 10) * 0.3 + 1
    world.finish(query, batches=query.directory.committed + 5)


@pytest.mark.slow
def test_a_chain_that_is_slower_than_the_checkpoints_takes_all_vnodes_in_turn() -> None:
    """New checkpoints of the first vnodes come before the chain has had those of the last: these
    are not passed over, and the log goes although no checkpoint stays here until the chain has it.
    """
    world, query = windows_of_few_keys(FetchChunk=0.4)
    world.until(lambda: query.directory.committed >= 150)
    behind, log = most_behind(world, query, until_batch=250)
    assert behind <= 4 * limits.CHECKPOINT_ROUND_BATCHES
    assert most_behind(world, query, until_batch=400)[1] <= 1.2 * log
    world.network.late_s.clear()
    world.finish(query, batches=query.directory.committed + 5)
