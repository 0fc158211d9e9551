"""What an upgrade waits for between two restarts comes, on the real loops: after each one all
instances are ready, every copy is full, and nothing has moved (docs/operations/upgrade.md)."""

import pytest

from rhinoctl.ops.groups import full_copies, wanted_copies
from rhinoctl.ops.steps import SETTLE_S
from rhinoctl.protocol.views import Health
from tests.fakes.world import World


def is_well(world: World) -> bool:
    """As `rhinoctl.ops.steps.Health` would find it."""
    status, groups = world.status(), world.groups()
    return (
        all(worker.health is Health.OK for worker in status.workers)
        and all(instance.ready for job in status.jobs for instance in job.instances)
        and not any(job.lacking or job.operation for job in status.jobs)
        and full_copies(groups) == wanted_copies(groups)
    )


@pytest.mark.parametrize("live", [True, False], ids=["a query runs", "its query has ended"])
@pytest.mark.parametrize("at_once", [1, 2], ids=["by host", "by rack"])
def test_agents_restarted_in_waves_have_their_copies_again(live: bool, at_once: int) -> None:
    world = World(seed=5, workers=4, instances=4, replication=1)
    query = world.start_query()
    world.until(lambda: query.directory.committed >= 3, "some batches")
    if not live:
        query.limit = 0
        world.until(lambda: not query.running, "the query's end")
    world.until(lambda: is_well(world), "a start where all is well")
    before = world.epoch()
    hosts = list(world.hosts.values())
    for first in range(0, len(hosts), at_once):
        wave = hosts[first : first + at_once]
        for host in wave:
            host.end_agent()
        world.until(lambda wave=wave: not any(host.agent for host in wave), "their end")
        for host in wave:
            host.start_agent()
        world.run(1.0)
        world.until(lambda: is_well(world), "every copy to be full again", SETTLE_S)
    assert world.epoch() == before
    if live:
        world.finish(query, query.directory.committed + 2)
