"""T6: bad bytes on one replica, with four checkpoints kept.

Each is found and named (worker, vnode, file, checkpoint), an older checkpoint or another holder
serves, and good bytes come in its place.
"""

import logging
from collections import Counter
from pathlib import PurePosixPath

import pytest

from rhinoctl import limits
from rhinoctl.errors import Exit
from rhinoctl.ids import Vnode
from rhinoctl.ops import verify as ops
from rhinoctl.protocol import messages as m
from tests.fakes.disk import FakeDisk
from tests.fakes.world import World
from tests.fakes.world_input import Workload
from tests.scenarios.test_copies import checkpoints, tables
from tests.scenarios.test_verify import forge, mended, replicated, running, verify

KEPT = 4


@pytest.fixture(autouse=True)
def keep_four(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CHECKPOINTS_RETAINED", KEPT)


def overheard(world: World, kind: type[m.Message]) -> list[m.Message]:
    """Every message of a kind, from now on, with those to come."""
    heard: list[m.Message] = []

    def listen(message: m.Message) -> m.Message:
        if isinstance(message, kind):
            heard.append(message)
        return message

    world.network.rewrite = listen
    return heard


def shared_by_the_newest_three(world: World, worker: str, vnode: int) -> str:
    """A file that checkpoints 8–10 of a vnode have in common, and 7 has not; empty without one."""
    disk, four = world.hosts[worker].disk, checkpoints(world, worker, vnode)[-KEPT:]
    if len(four) < KEPT:
        return ""
    stamps = [{disk.stamp(path): path for path in tables(world, worker, one)} for one in four]
    common = set(stamps[1]) & set(stamps[2]) & set(stamps[3]) - set(stamps[0])
    return min((stamps[3][stamp] for stamp in common), default="")


@pytest.mark.slow
def test_a_byte_in_a_file_that_three_checkpoints_share(caplog: pytest.LogCaptureFixture) -> None:
    """The heir opens checkpoint 7, after one attempt at each of the others at the most."""
    caplog.set_level(logging.INFO, "rhino.agent")
    world = World(workers=2, vnodes=4, instances=1, replication=1, workload=Workload(rows_max=1))
    query = running(world, 60)
    paths: list[str] = []
    while not paths:
        assert query.directory.committed < 2000, "no file that three checkpoints share"
        world.run(1.0)
        paths = [path for v in range(4) if (path := shared_by_the_newest_three(world, "w2", v))]
    *_, vnode, _, file = paths[0].split("/")
    oldest, *bad = [PurePosixPath(p).name for p in checkpoints(world, "w2", int(vnode))[-KEPT:]]
    world.hosts["w2"].disk.rot(paths[0], 0)
    opened = overheard(world, m.OpenVnode)
    world.hosts["w1"].lose()
    seen = query.directory.committed
    world.until(lambda: query.directory.committed > seen + 2, "batches on w2", 60.0)
    told = [r.getMessage() for r in caplog.records if "checkpoint-bad" in r.getMessage()]
    for checkpoint in bad:
        (line,) = [line for line in told if f"checkpoint={checkpoint} " in line]
        assert f"vnode={vnode} " in line
        assert file in line
    bases = Counter(
        PurePosixPath(message.base).name
        for message in opened
        if isinstance(message, m.OpenVnode) and message.vnode == int(vnode) and message.base
    )
    assert bases[oldest] == 1
    assert all(bases[checkpoint] <= 1 for checkpoint in bad), bases
    world.network.rewrite = None
    world.finish(query, batches=query.directory.committed + 10)
    assert query.failures == []


def damage(disk: FakeDisk, paths: list[str], what: str) -> list[str]:
    """Do it to one file, or to all; the names of those."""
    chosen = paths if what == "empty" else paths[:1]
    for path in chosen:
        if what == "gone":
            disk.remove(path)
        elif what == "empty":
            disk.corrupt(path, b"")
        else:
            disk.corrupt(path, bytes(disk.read(path))[:-1])
    return [PurePosixPath(path).name for path in chosen]


@pytest.mark.parametrize(
    "what", ["empty", *(pytest.param(w, marks=pytest.mark.slow) for w in ("truncated", "gone"))]
)
def test_a_damaged_file_of_a_replica_is_named_and_fetched_again(what: str) -> None:
    world = World(workers=2, vnodes=4, instances=1, replication=1)
    query = running(world, 60)
    replicated(world, query)
    disk, newest = world.hosts["w2"].disk, checkpoints(world, "w2", 3)[-1]
    files = damage(disk, tables(world, "w2", newest), what)
    bad = ops.bad(verify(world))
    assert {(each.worker, each.vnode) for each in bad} == {("w2", 3)}
    assert PurePosixPath(newest).name in {each.checkpoint for each in bad}
    assert {each.file for each in bad} <= set(files)
    query.idle = False
    world.until(mended(world), "a good one in its place")
    assert ops.error_of(verify(world, deep=True)) is None
    world.finish(query, batches=query.directory.committed + 10)
    assert query.failures == []


def test_a_file_of_three_and_a_half_chunks_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(workers=3, vnodes=4, instances=2)
    query = running(world)
    query.idle = True
    world.run(5.0)
    vnodes = world.epoch().owned_by("i0")
    path = max(
        (p for v in vnodes for p in tables(world, "w1", checkpoints(world, "w1", v)[-1])),
        key=lambda p: world.hosts["w1"].disk.size(p) or 0,
    )
    size = world.hosts["w1"].disk.size(path) or 0
    chunk = size * 2 // 7
    assert 3.4 < size / chunk < 3.6
    monkeypatch.setattr(limits, "CHUNK_BYTES", chunk)
    asked = overheard(world, m.FetchChunk)
    world.set_replication(2)
    query.idle = False
    query.trigger_s = 5.0
    world.until(lambda: len(world.epoch().full_holders(vnodes[0])) == 3, "copies")
    lengths: dict[tuple[str, str], set[tuple[int, int]]] = {}
    for each in asked:
        assert isinstance(each, m.FetchChunk)
        key = (each.checkpoint, each.file)
        lengths.setdefault(key, set()).add((each.offset, each.length))
    whole = [(0, chunk), (chunk, chunk), (2 * chunk, chunk), (3 * chunk, size - 3 * chunk)]
    assert whole in [sorted(pieces) for pieces in lengths.values()]
    world.network.rewrite = None
    assert ops.error_of(verify(world, deep=True)) is None
    world.finish(query, batches=query.directory.committed + 10)


def test_one_extra_key_is_found_by_a_deep_look_only() -> None:
    """Its files are as their manifest says, and the state is not that of the other copy."""
    world = World(workers=2, vnodes=4, instances=1, replication=1)
    query = running(world)
    replicated(world, query)
    world.hosts["w2"].kill_agent()
    checkpoint = forge(world, "w2", 3, extra=b"a key that nobody wrote")
    world.hosts["w2"].start_agent()
    world.run(5.0)
    assert ops.error_of(verify(world)) is None
    view = verify(world, deep=True)
    fault = ops.error_of(view)
    assert fault is not None
    assert fault.exit_code != Exit.DONE
    (unequal,) = [each for each in ops.compared(view) if not each.equal]
    assert (unequal.vnode, unequal.checkpoint, set(unequal.of)) == (3, checkpoint, {"w1", "w2"})
    entries = {
        copy.worker: next(one.entries for one in copy.checkpoints if one.checkpoint == checkpoint)
        for copy in view.copies
        if copy.vnode == Vnode(3)
    }
    assert entries["w2"] == entries["w1"] + 1
    query.idle = False
    world.finish(query, batches=query.directory.committed + 10)
