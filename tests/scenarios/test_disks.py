"""A worker whose disk refuses: it promises nothing that it cannot keep, and heals with the disk."""

import errno

import pytest

from rhinoctl.errors import DiskFull
from rhinoctl.protocol.handover import Phase
from tests.fakes.world import World

REFUSALS = {
    "a put": ("disk.append", "/log/"),
    "a seal": ("disk.sync", "/log/"),
    "a session": ("disk.write_atomic", "session.json"),
}


class Refusing:
    """A disk step of w1's agent fails for some times, or once half of it is done."""

    def __init__(self, world: World, step: str, holding: str, *, after: bool, times: int) -> None:
        self._world = world
        self._arguments = ("w1", step, self._refuse)
        self._more = {"holding": holding, "after": after}
        self._left = times
        self.refused = 0
        self._arm()

    def _arm(self) -> None:
        self._world.trap(*self._arguments, **self._more)

    def _refuse(self) -> None:
        self._world.mishaps_expected = True
        self.refused += 1
        self._left -= 1
        if self._left:
            self._arm()
        raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("after", [False, True], ids=["before", "half way"])
@pytest.mark.parametrize("what", REFUSALS)
def test_a_disk_that_is_full_for_a_moment(what: str, after: bool) -> None:
    world = World(workers=2)
    query = world.start_query()
    world.until(lambda: query.directory.committed >= 10)
    times = 1 if (what, after) == ("a session", True) else 3
    refusing = Refusing(world, *REFUSALS[what], after=after, times=times)
    if what == "a session":
        query.kill()
        query = world.start_query(query.directory)
    world.until(lambda: refusing.refused >= times)
    world.finish(query, batches=query.directory.committed + 10)


def test_a_record_whose_fsync_failed_is_not_believed_in_after_a_second_one() -> None:
    """The kernel may have dropped the pages: the attempt is given up, not sealed again."""
    world = World(workers=1)
    query = world.start_query()
    world.until(lambda: query.directory.committed >= 10)
    refusing = Refusing(world, "disk.sync", "/log/", after=False, times=1)
    world.until(lambda: refusing.refused == 1)
    host = world.hosts["w1"]
    assert host.agent is not None
    (desk,) = host.agent.desks.values()
    assert desk.job.state.opened is None
    world.finish(query, batches=query.directory.committed + 10)


@pytest.mark.slow
def test_a_full_disk_of_a_target_delays_its_copy_only() -> None:
    world = World(workers=3)
    query = world.start_query()
    world.until(lambda: query.directory.committed >= 20)
    world.mishaps_expected = True
    disk = world.hosts["w3"].disk
    operation = world.rescale(3)
    trap = world.trap("w3", "send FetchChunk", lambda: setattr(disk, "capacity_bytes", 0))
    world.until_sprung(trap)
    seen = query.directory.committed
    world.run(20.0)
    assert query.directory.committed > seen + 20, "nobody waits for a joining member"
    disk.capacity_bytes = None
    assert world.until_ended(operation).phase is Phase.COMPLETE
    world.finish(query, batches=query.directory.committed + 10)
    assert query.failures == []


def test_an_agent_starts_on_a_disk_that_is_full() -> None:
    """It is the one that removes what may go: it has kept room for its own start."""
    world = World(workers=2)
    query = world.start_query()
    world.until(lambda: query.directory.committed >= 20)
    host = world.hosts["w1"]
    world.mishaps_expected = True
    host.kill_agent()
    host.disk.capacity_bytes = host.disk.bytes_used()
    host.start_agent()
    assert host.agent is not None
    world.run(2.0)
    host.disk.capacity_bytes = None
    world.finish(query, batches=query.directory.committed + 10)


def test_a_full_disk_is_said_before_and_while_it_is() -> None:
    world = World(workers=2)
    query = world.start_query()
    world.until(lambda: query.directory.committed >= 5)
    assert not world.status().findings
    disk = world.hosts["w2"].disk
    disk.capacity_bytes = disk.bytes_used() + (100 << 20)
    world.run(2.0)
    (finding,) = world.status().findings
    assert "worker w2: its disk has 10" in finding.what
    disk.capacity_bytes = None
    world.run(2.0)
    assert not world.status().findings
    world.finish(query, batches=10)


def test_a_move_that_would_fill_a_disk_is_refused() -> None:
    world = World(workers=3)
    query = world.start_query()
    world.until(lambda: query.directory.committed >= 40)
    disk = world.hosts["w3"].disk
    disk.capacity_bytes = disk.bytes_used() + 100
    world.run(2.0)
    seen = world.epoch()
    with pytest.raises(DiskFull, match="worker w3 has 100 B free"):
        world.rescale(3)
    disk.capacity_bytes = None
    world.run(2.0)
    assert world.epoch() == seen
    assert world.until_ended(world.rescale(3)).phase is Phase.COMPLETE
    world.finish(query, batches=query.directory.committed + 10)


def test_an_instance_that_cannot_write_is_started_again_until_it_can() -> None:
    world = World(workers=1)
    query = world.start_query()
    world.until(lambda: query.directory.committed >= 10)
    times: list[int] = []

    def refuse() -> None:
        times.append(1)
        if len(times) < 3:
            world.trap("w1/i0", "disk.append", refuse, holding="/out/")
        raise OSError(errno.ENOSPC, "No space left on device")

    world.trap("w1/i0", "disk.append", refuse, holding="/out/")
    world.until(lambda: len(times) == 3)
    world.finish(query, batches=query.directory.committed + 10)
    assert query.failures == []


def test_a_disk_that_is_full_heals_when_what_may_go_has_gone() -> None:
    """Batches are refused, so that none is released; trimming comes all the same."""
    world = World(workers=1)
    query = world.start_query()
    query.trigger_s = 0.02
    world.until(lambda: query.directory.committed >= 100)
    host = world.hosts["w1"]
    assert host.agent is not None
    (desk,) = host.agent.desks.values()
    world.mishaps_expected = True
    refused = world.trap("w1", "reply Refusal", lambda: None)
    before = desk.job.log.size()
    host.disk.capacity_bytes = host.disk.bytes_used() + 1000
    world.until_sprung(refused)
    world.until(lambda: desk.job.log.size() < before)
    world.finish(query, batches=query.directory.committed + 5)


@pytest.mark.slow
@pytest.mark.parametrize("whose", ["the only owner's", "an owner's", "a copy's"])
@pytest.mark.parametrize("when", ["between batches", "while a batch is applied"])
def test_a_disk_that_is_full_for_long_is_waited_for(whose: str, when: str) -> None:
    """Longer than any worker may be silent: the query does not end for it."""
    alone = whose == "the only owner's"
    world = World(workers=1 if alone else 2, instances=1, replication=0 if alone else 1)
    query = world.start_query()
    world.until(lambda: query.directory.committed >= 20)
    host = world.hosts["w2" if whose == "a copy's" else "w1"]
    world.mishaps_expected = True

    def fill() -> None:
        host.disk.capacity_bytes = host.disk.bytes_used()

    if when == "between batches":
        fill()
    else:
        world.until_sprung(world.trap("w1/i0", "disk.append", fill, holding="/out/"))
    world.run(600.0)
    assert query.failures == []
    seen = query.directory.committed
    host.disk.capacity_bytes = None
    world.run(5.0)
    assert query.directory.committed > seen
    world.finish(query, batches=query.directory.committed + 10)
    assert query.failures == []
