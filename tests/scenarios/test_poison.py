"""A batch that the operator cannot take: the query fails by name, and nothing else does."""

from collections.abc import Iterable
from math import inf

from rhinoctl.protocol import views
from rhinoctl.protocol.diagnosis import Facts, diagnose
from rhinoctl.protocol.findings import Check
from tests.fakes.world import World
from tests.fakes.world_input import Row, Workload
from tests.fakes.world_spark import Query
from tests.fakes.world_windows import WindowedWorkload

FAR_MS = 9_223_372_036_850_000
"""Nearly the last millisecond that there is."""


def poisoned(workload: Workload) -> tuple[World, Query, int]:
    """A world whose query has failed three times at the same batch."""
    world = World(workers=2, workload=workload)
    query = world.start_query()
    world.until(lambda: query.directory.committed >= 10)
    workload.poison = query.directory.planned_to
    world.until(lambda: len(query.failures) >= 3)
    return world, query, query.directory.committed + 1


def findings(world: World) -> list[views.Finding]:
    """What status says of poison."""
    return [each for each in world.status().findings if "cannot be applied" in each.what]


def test_a_poison_batch_fails_the_query_and_leaves_state_and_instances_as_they_were() -> None:
    world, query, batch = poisoned(Workload(keys=1))
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


def test_status_and_doctor_name_a_poison_batch_also_when_its_query_has_gone() -> None:
    world, query, batch = poisoned(Workload(keys=1))
    query.kill()
    world.run(10.0)
    (finding,) = findings(world)
    assert f"batch 0/{batch}" in finding.what
    assert "ARITHMETIC_OVERFLOW" in finding.what
    found = diagnose(Facts(cluster=world.call(lambda c: c.evidence())))
    (judged,) = [each for each in found if each.check is Check.POISON_BATCH]
    assert judged.evidence in finding.what
    assert judged.remedy == finding.remedy


def test_agents_that_start_anew_name_a_poison_batch_with_the_next_run_of_the_query() -> None:
    world, query, batch = poisoned(Workload(keys=1))
    query.kill()
    for host in world.hosts.values():
        host.kill_agent()
        host.start_agent()
    later = world.start_query(query.directory, settled=False)
    world.until(lambda: bool(later.failures))
    world.run(3.0)
    (finding,) = findings(world)
    assert f"batch 0/{batch}" in finding.what


def test_neither_other_rows_nor_a_new_stream_get_past_a_poison_batch_but_a_new_job_does() -> None:
    """What the remedy says: the rows of a decided batch are in the log."""
    workload = Workload(keys=1)
    world, query, batch = poisoned(workload)
    workload.poison = inf
    failures = len(query.failures)
    world.until(lambda: len(query.failures) > failures)
    assert query.failures[-1].startswith(f"batch {batch}: poison"), "the rows are mended too late"
    query.kill()
    world.run(6.0)
    world.bind()
    stream = world.start_query(settled=False)
    world.until(lambda: bool(stream.failures))
    assert f"batch 0/{batch}" in stream.failures[0], "the new stream meets the former one's batch"
    assert "ARITHMETIC_OVERFLOW" in stream.failures[0]
    stream.kill()
    world.run(6.0)
    world.delete()
    world.until(lambda: not world.status().jobs)
    again = world.start_query()
    world.finish(again, batches=10)
    assert again.failures == []
    assert findings(world) == []


class FarWorkload(WindowedWorkload):
    """The row at offset `far` has a time that no state holds."""

    far: float = inf

    def rows(self, start: int, end: int) -> list[Row]:
        found: Iterable[Row] = super().rows(start, end)
        return [
            (key, FAR_MS if start + at == self.far else time)
            for at, (key, time) in enumerate(found)
        ]


def test_a_time_that_no_state_holds_is_refused_before_its_batch_is_decided() -> None:
    workload = FarWorkload()
    world = World(workers=2, workload=workload)
    query = world.start_query()
    world.until(lambda: query.directory.committed >= 10)
    workload.far = query.directory.planned_to
    world.until(lambda: len(query.failures) >= 2)
    for failure in query.failures:
        assert "time column 't'" in failure
    assert findings(world) == []
    workload.far = inf
    world.finish(query, batches=20)
