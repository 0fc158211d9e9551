"""Checkpoints that vanish from under a running agent: missed where they are touched, named, of use
to nobody, and there again without a person."""

import itertools
import logging

import pytest

from rhinoctl import limits
from rhinoctl.ids import Vnode
from rhinoctl.ops import verify as ops
from rhinoctl.state.manifests import MANIFEST
from tests.fakes.world import World
from tests.fakes.world_input import Workload
from tests.scenarios.test_copies import checkpoints, tables
from tests.scenarios.test_replication import log_bytes, newest
from tests.scenarios.test_verify import mended, replicated, running, verify

VNODE = 3


def vanish(world: World, worker: str, what: str) -> None:
    """As a person with `rm -r` does it."""
    root, last = f"jobs/{world.uid()}/ckpt", checkpoints(world, worker, VNODE)[-1]
    path = {
        "a file": tables(world, worker, last)[0],
        "a manifest": f"{last}/{MANIFEST}",
        "a checkpoint": last,
        "a vnode": f"{root}/{VNODE}",
        "all": root,
    }[what]
    world.hosts[worker].disk.remove(path)


def unfinished(world: World, worker: str) -> list[str]:
    """The directories of checkpoints that are not complete."""
    disk, root = world.hosts[worker].disk, f"jobs/{world.uid()}/ckpt"
    return [name for v in range(world.vnodes) for name in disk.list(f"{root}/{v}") if "." in name]


def found_bad(world: World, worker: str) -> int:
    agent = world.hosts[worker].agent
    assert agent is not None
    return agent.desks[world.uid()].upkeep.found_bad


def told(caplog: pytest.LogCaptureFixture, event: str) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.getMessage().startswith(event)]


@pytest.mark.parametrize(
    ("whose", "what"),
    [
        ("a member's", "all"),
        ("the owner's", "a vnode"),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in itertools.product(
                ("a member's", "the owner's"),
                ("a file", "a manifest", "a checkpoint", "a vnode", "all"),
            )
            if case not in (("a member's", "all"), ("the owner's", "a vnode"))
        ),
    ],
)
def test_a_look_names_it_and_it_comes_again(
    whose: str, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "rhino.agent")
    world = World(workers=3, vnodes=4, replication=2)
    query = running(world, 100)
    replicated(world, query)
    chain = world.epoch().holders(Vnode(VNODE))
    worker = chain[0] if whose == "the owner's" else chain[1]
    vanish(world, worker, what)
    found = ops.bad(verify(world))
    assert {each.worker for each in found} == {worker}
    assert VNODE in {each.vnode for each in found}
    assert {each.why for each in found} == {"it is not there"}
    query.idle = False
    world.until(mended(world), "a good one in its place")
    world.until(lambda: len(checkpoints(world, worker, VNODE)) >= 2, "an older one, too")
    replicated(world, query)
    assert ops.error_of(verify(world, deep=True)) is None
    for host in world.hosts:
        assert len(unfinished(world, host)) <= 1
    assert told(caplog, "turn-failed") == []
    query.idle = False
    world.finish(query, batches=query.directory.committed + 10)
    assert query.failures == []


@pytest.mark.slow
def test_a_member_misses_it_when_it_fetches_the_next(caplog: pytest.LogCaptureFixture) -> None:
    """The files that vanished are not the base of each fetch for ever; the log is trimmed on."""
    workload = Workload(rows_max=1)  # so that the next checkpoint has files of the one before
    world = World(workers=2, vnodes=4, instances=1, replication=1, workload=workload)
    query = running(world, 100)
    replicated(world, query)
    before = log_bytes(world, "w1")
    caplog.set_level(logging.INFO, "rhino.agent")
    vanish(world, "w2", "all")
    gone = newest(world, "w1", VNODE)
    query.idle = False
    world.until(lambda: found_bad(world, "w2") > 0, "that it is missed")
    world.until(lambda: newest(world, "w2", VNODE) not in ("", gone), "the next one")
    assert told(caplog, "checkpoint-not-fetched"), "what vanished was not the base of a fetch"
    world.until(mended(world), "that nothing is lacking")
    seen = query.directory.committed
    world.until(lambda: query.directory.committed > seen + 60, "batches", 120.0)
    assert log_bytes(world, "w1") < 3 * before
    replicated(world, query)
    assert len(unfinished(world, "w2")) <= 1
    assert len(told(caplog, "checkpoint-not-fetched")) <= world.vnodes
    assert told(caplog, "turn-failed") == []
    assert ops.error_of(verify(world, deep=True)) is None
    query.idle = False
    world.finish(query, batches=query.directory.committed + 10)
    assert query.failures == []


def test_an_owner_misses_it_when_it_takes_the_next(caplog: pytest.LogCaptureFixture) -> None:
    """Nothing is known to be wrong with its live database, which stays open."""
    caplog.set_level(logging.INFO, "rhino.agent")
    world = World(workers=2, vnodes=4, instances=1, replication=1)
    query = running(world, 100)
    replicated(world, query)
    lost = checkpoints(world, "w1", VNODE)[-2]
    world.hosts["w1"].disk.remove(lost)
    query.idle = False
    world.until(lambda: found_bad(world, "w1") > 0, "that it is missed")
    world.until(mended(world), "a good one in its place")
    world.run(2.0)
    assert told(caplog, "vnode-closed") == []
    replicated(world, query)
    assert ops.error_of(verify(world, deep=True)) is None
    query.idle = False
    world.finish(query, batches=query.directory.committed + 10)
    assert query.failures == []


def test_the_scrub_misses_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SCRUB_EVERY_S", 40.0)
    monkeypatch.setattr(limits, "SCRUB_LOOK_S", 1.0)
    world = World(workers=2, vnodes=4, instances=1, replication=1, scrub_bytes_s=1 << 20)
    query = running(world)
    replicated(world, query)
    vanish(world, "w2", "a vnode")
    world.until(lambda: found_bad(world, "w2") > 0, "that it is missed", 60.0)
    query.idle = False
    world.until(mended(world), "a good one in its place")
    world.finish(query, batches=query.directory.committed + 10)


def test_what_has_come_of_a_file_vanishes(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not gone on with in the middle, and no holder is blamed for what would come of that."""
    monkeypatch.setattr(limits, "CHUNK_BYTES", 64)
    world = World(workers=2, vnodes=4, instances=1)
    query = running(world)
    sprung: list[str] = []

    def lose() -> None:
        disk, root = world.hosts["w2"].disk, f"jobs/{world.uid()}/ckpt"
        for path in list(disk.files(root)):
            if ".incoming/" in path:
                sprung.append(path)
                disk.remove(path)

    for time in (3, 9, 20):
        world.trap("w2", "send FetchChunk", lose, skip=time)
    world.set_replication(1)
    world.until(lambda: len(world.epoch().full_holders(Vnode(VNODE))) == 2, "copies", 120.0)
    assert sprung
    assert [found_bad(world, worker) for worker in ("w1", "w2")] == [0, 0]
    assert ops.error_of(verify(world, deep=True)) is None
    world.finish(query, batches=query.directory.committed + 10)
    assert query.failures == []
