"""A batch that the operator cannot take: the query fails by name, and nothing else does."""

from tests.fakes.world import World
from tests.fakes.world_input import Workload


def test_a_poison_batch_fails_the_query_and_leaves_state_and_instances_as_they_were() -> None:
    workload = Workload(keys=1)
    world = World(workers=2, workload=workload)
    query = world.start_query()
    world.until(lambda: query.directory.committed >= 10)
    workload.poison = query.directory.planned_to
    world.until(lambda: len(query.failures) >= 3)
    batch = query.directory.committed + 1
    for failure in query.failures:
        assert failure.startswith(f"batch {batch}: poison")
        assert "ARITHMETIC_OVERFLOW" in failure
        assert "k='k0'" in failure
    incarnations = [
        one.settings.incarnation for host in world.hosts.values() for one in host.instances.values()
    ]
    assert incarnations == [1, 1], "nobody dies of it"
    query.kill()
    world.check()
