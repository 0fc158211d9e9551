"""A worker is lost, dead or cut off: its vnodes go on elsewhere, in the running query."""

from rhinoctl.ids import Vnode, WorkerId
from rhinoctl.protocol.handover import Kind, Phase
from tests.fakes.world import World


def failovers(world: World) -> list:
    return [v for v in world.controller_views() if v.kind is Kind.FAILOVER]


def test_a_worker_is_killed_under_load() -> None:
    world = World(workers=3, instances=3, replication=1)
    query = world.start_query()
    world.until(lambda: query.directory.committed >= 12)
    owned = world.epoch().owned_by("i0")
    world.hosts["w1"].lose()
    seen = query.directory.committed
    world.until(lambda: query.directory.committed > seen + 3, "batches after the loss", 5.0)
    (view,) = failovers(world)
    assert view.lost == ("w1",)
    assert set(view.moves) == set(owned)
    world.until(lambda: failovers(world)[0].phase is Phase.COMPLETE)
    epoch = world.epoch()
    assert WorkerId("w1") not in epoch.listeners()
    world.until(lambda: world.groups().joins == 0, "copies on the other workers")
    world.until(
        lambda: all(len(world.epoch().full_holders(Vnode(v))) == 2 for v in epoch.vnodes()),
        "whole copies",
    )
    world.finish(query, batches=query.directory.committed + 20)
    assert query.failures == []
