"""A job that nothing happens to."""

from rhinoctl import limits
from tests.fakes.world import World
from tests.fakes.world_input import Workload


def test_state_and_outputs_are_those_of_the_inputs() -> None:
    world = World()
    query = world.start_query()
    world.finish(query, batches=30)
    assert query.failures == []
    assert len(query.sessions) == 1


def test_the_log_is_trimmed_and_stays_bounded_though_two_vnodes_never_get_a_row() -> None:
    world = World(workers=2, workload=Workload(vnodes=6, of=8))
    query = world.start_query()
    query.trigger_s = 0.05
    segments: list[int] = []
    for batch in range(20, 301, 20):
        world.until(lambda batch=batch: query.directory.committed >= batch)
        root = f"jobs/{world.uid()}/log"
        segments.append(max(len(host.disk.list(root)) for host in world.hosts.values()))
    bound = 3 * limits.CHECKPOINT_ROUND_BATCHES + limits.TRIM_EVERY_BATCHES
    assert max(segments) <= bound, segments
    world.finish(query, batches=300)
    for host in world.hosts.values():
        checkpoints = [host.disk.list(path) for path in _vnode_directories(world, host.name)]
        assert all(len(kept) <= limits.CHECKPOINTS_RETAINED + 1 for kept in checkpoints)


def _vnode_directories(world: World, worker: str) -> list[str]:
    root = f"jobs/{world.uid()}/ckpt"
    return [f"{root}/{vnode}" for vnode in world.hosts[worker].disk.list(root)]
