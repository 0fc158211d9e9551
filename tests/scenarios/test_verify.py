"""Verification and scrub on the real loops: what rots is named, serves nobody and is replaced."""

import errno
import zlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

import pytest

from rhinoctl import limits
from rhinoctl.errors import Busy, UnknownJob, UnknownVnode
from rhinoctl.ids import JobName, Vnode
from rhinoctl.ops import verify as ops
from rhinoctl.protocol import views
from rhinoctl.protocol.verification import Checked
from rhinoctl.state.hashing import content_hash
from rhinoctl.state.manifests import MANIFEST, FileEntry, Identity, Manifest
from tests.fakes.store import SIZES
from tests.fakes.world import JOB, World
from tests.fakes.world_spark import Query
from tests.scenarios.test_copies import checkpoints, tables, warmed_up
from tests.scenarios.test_replication import settled


def verify(
    world: World, vnodes: tuple[int, ...] = (), *, deep: bool = False, within_s: float = 60.0
) -> views.VerifyView:
    """As the command does it."""
    request = views.VerifyRequest(vnodes=tuple(map(Vnode, vnodes)), deep=deep)
    begun: views.VerifyView = world.call(lambda c: c.verify(JOB, request))
    named = views.VerifyRequest(vnodes=request.vnodes, deep=deep, round=begun.round)
    found, until = begun, world.clock.monotonic() + within_s
    while not found.over:
        assert world.clock.monotonic() < until, "a verification does not end"
        world.run(0.5)
        with suppress(ConnectionError):
            found = world.call(lambda c: c.verify(JOB, named))
    return found


def running(world: World, batches: int = 50) -> Query:
    """A job with some checkpoints, whose batches come at leisure from now on."""
    query = warmed_up(world, batches)
    query.trigger_s = 0.25
    return query


def rot(world: World, worker: str, vnode: int) -> tuple[str, str]:
    """Flip a byte of the newest checkpoint; its id and the file."""
    newest = checkpoints(world, worker, vnode)[-1]
    path = tables(world, worker, newest)[0]
    world.hosts[worker].disk.rot(path, 0)
    checkpoint, file = path.split("/")[-2:]
    return checkpoint, file


def replicated(world: World, query: Query) -> None:
    """All workers of each chain have the owner's newest checkpoint; no batch runs any more."""
    query.idle = True
    for vnode in range(world.vnodes):
        world.until(lambda vnode=vnode: settled(world, vnode), f"vnode {vnode} everywhere")


def mended(world: World) -> Callable[[], bool]:
    """Whether no bad checkpoint is left to be replaced, as `status` says it."""

    def is_mended() -> bool:
        status: views.StatusView = world.call(lambda c: c.status())
        return not any("bad copy" in finding.what for finding in status.findings)

    return is_mended


@pytest.mark.parametrize("refusal", [None, errno.EXDEV], ids=["links", "copies"])
def test_all_is_whole_and_equal_while_the_job_runs(refusal: int | None) -> None:
    """T9: also where nothing can be linked the digests are equal."""
    world = World(workers=3, instances=3, replication=1)
    for host in world.hosts.values():
        host.disk.link_refusal = refusal
    query = running(world)
    seen = query.directory.committed
    view = verify(world, deep=True)
    assert query.directory.committed > seen
    assert ops.error_of(view) is None
    assert len(view.copies) == 2 * world.vnodes
    assert {one.state for c in view.copies for one in c.checkpoints} == {Checked.WHOLE}
    assert ops.apart(view) == []
    assert all(each.equal for each in ops.compared(view))
    assert {each.vnode for each in ops.compared(view)} == set(map(Vnode, range(world.vnodes)))
    world.finish(query, batches=query.directory.committed + 5)


@pytest.mark.parametrize(
    "whose", ["a member's", pytest.param("the owner's", marks=pytest.mark.slow)]
)
def test_a_flipped_byte_is_named_and_mended(whose: str) -> None:
    world = World(workers=3, vnodes=4, replication=2)
    query = running(world)
    replicated(world, query)
    chain = world.epoch().holders(Vnode(3))
    worker = chain[0] if whose == "the owner's" else chain[2]
    checkpoint, file = rot(world, worker, 3)
    view = verify(world)
    found = ops.bad(view)
    assert {(b.worker, b.vnode, b.file) for b in found} == {(worker, 3, file)}
    assert checkpoint in {b.checkpoint for b in found}
    assert {b.why for b in found} == {"its content has changed"}
    assert ops.error_of(view) is not None
    status: views.StatusView = world.call(lambda c: c.status())
    assert [w.found_bad > 0 for w in status.workers] == [w.id == worker for w in status.workers]
    query.idle = False
    world.until(mended(world), "a good one in its place")
    replicated(world, query)
    assert ops.error_of(verify(world, deep=True)) is None
    query.idle = False
    world.finish(query, batches=query.directory.committed + 10)
    assert query.failures == []


def test_a_live_database_does_not_keep_a_file_that_is_bad() -> None:
    """It links the checkpoint's files: the next checkpoint would have the rotten one, by a hash of
    its own, and pass it down the chain."""
    world = World(workers=2, vnodes=4, replication=1)
    query = running(world)
    replicated(world, query)
    owner = world.epoch().holders(Vnode(3))[0]
    disk = world.hosts[owner].disk
    checkpoint, file = rot(world, owner, 3)
    (live,) = {p for p in disk.files(f"jobs/{world.uid()}/live") if p.endswith(f"/3/{file}")}
    rotten = disk.stamp(live)
    assert rotten == disk.stamp(f"jobs/{world.uid()}/ckpt/3/{checkpoint}/{file}")
    verify(world)

    def is_linked() -> bool:
        return rotten in [disk.stamp(path) for path in disk.files(f"jobs/{world.uid()}/live")]

    world.until(lambda: not is_linked(), "that the live database is opened anew")
    query.idle = False
    world.until(mended(world), "a good one in its place")
    world.finish(query, batches=query.directory.committed + 10)


def test_the_same_checkpoint_is_good_once_it_was_fetched_again() -> None:
    """All that a member had is bad, and no batch runs: it gets what the owner has, by its id."""
    world = World(workers=2, vnodes=4, replication=1)
    query = running(world, 100)  # the log of the first batches is gone
    replicated(world, query)
    worker = world.epoch().holders(Vnode(3))[1]
    had = checkpoints(world, worker, 3)
    for path in {tables(world, worker, each)[0] for each in had}:
        world.hosts[worker].disk.rot(path, 0)
    assert {each.vnode for each in ops.bad(verify(world))} == {3}
    world.until(mended(world), "a good one in its place")
    assert checkpoints(world, worker, 3)[-1] == had[-1]
    assert ops.error_of(verify(world, deep=True)) is None
    query.idle = False
    world.finish(query, batches=query.directory.committed + 10)


@pytest.mark.slow
def test_without_another_copy_an_older_checkpoint_serves() -> None:
    world = World(workers=1)
    query = running(world, 60)
    checkpoint, file = rot(world, "w1", 0)
    found = ops.bad(verify(world))
    assert {(each.vnode, each.file) for each in found} == {(0, file)}
    assert checkpoint in {each.checkpoint for each in found}
    (pid,) = world.hosts["w1"].pids("i0")
    world.hosts["w1"].kill_pid(pid)
    world.finish(query, batches=query.directory.committed + 10)
    assert query.failures == []


def test_a_worker_that_is_down_is_named_and_never_counted_as_whole() -> None:
    world = World(workers=3, vnodes=4, instances=1, replication=2, auto_failover=False)
    query = running(world)
    world.hosts["w3"].lose()
    view = verify(world)
    assert ops.silent(view) == ["w3"]
    assert "w3" in ops.error_of(view).message  # type: ignore[union-attr]
    assert all(not c.checkpoints for c in view.copies if c.worker == "w3")
    assert not any(c.settled for c in view.copies if c.worker == "w3")
    world.hosts["w3"].start_agent()
    world.until(lambda: not ops.silent(verify(world)), "w3")
    assert ops.error_of(verify(world)) is None
    world.finish(query, batches=query.directory.committed + 5)


@pytest.mark.slow
def test_only_the_vnodes_that_were_asked_for() -> None:
    world = World(workers=2, vnodes=4, replication=1)
    query = running(world)
    rot(world, world.epoch().holders(Vnode(3))[0], 3)
    view = verify(world, (1, 2))
    assert {copy.vnode for copy in view.copies} == {1, 2}
    assert ops.error_of(view) is None
    assert {each.vnode for each in ops.bad(verify(world, (1, 3)))} == {3}
    world.finish(query, batches=query.directory.committed + 5)


def test_what_there_is_not_is_refused() -> None:
    world = World(workers=1, vnodes=8)
    running(world, 5)
    with pytest.raises(UnknownVnode, match="no vnode 8"):
        world.call(lambda c: c.verify(JOB, views.VerifyRequest(vnodes=(Vnode(8),))))
    with pytest.raises(UnknownJob):
        world.call(lambda c: c.verify(JobName("other"), views.VerifyRequest()))


@pytest.mark.slow
def test_two_who_ask_for_the_same_share_a_round_and_others_are_told_to_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "VERIFY_BYTES_S", 200)
    world = World(workers=2, vnodes=4, replication=1)
    query = running(world)
    first = world.call(lambda c: c.verify(JOB, views.VerifyRequest()))
    world.run(5.0)
    assert world.call(lambda c: c.verify(JOB, views.VerifyRequest())).round == first.round
    with pytest.raises(Busy, match="all vnodes"):
        world.call(lambda c: c.verify(JOB, views.VerifyRequest(deep=True)))
    world.run(limits.VERIFY_WISH_S + 1.0)
    later = world.call(lambda c: c.verify(JOB, views.VerifyRequest(deep=True)))
    assert later.round != first.round, "nobody has asked for the first any more"
    world.finish(query, batches=query.directory.committed + 5)


@pytest.mark.slow
def test_a_round_goes_on_over_restarts_while_checkpoints_come_and_go(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What was noted stays until it is read, however many checkpoints are taken meanwhile."""
    monkeypatch.setattr(limits, "VERIFY_BYTES_S", 600)
    world = World(workers=2, vnodes=4, replication=1)
    query = running(world)
    query.trigger_s = 0.1
    seen = query.directory.committed
    restarts = [
        lambda: (world.kill_controller(), world.start_controller()),
        lambda: (world.hosts["w2"].kill_agent(), world.hosts["w2"].start_agent()),
    ]
    for after, restart in enumerate(restarts):
        world.network.after(2.0 + 2.0 * after, restart)
    view = verify(world, within_s=300.0)
    assert query.directory.committed > seen + 64
    assert ops.error_of(view) is None
    assert all(copy.checkpoints for copy in view.copies)
    world.finish(query, batches=query.directory.committed + 5)


# --- the state -----------------------------------------------------------------------------------


def forge(
    world: World, worker: str, vnode: int, *, readable: bool = True, extra: bytes = b""
) -> str:
    """Another state in the newest checkpoint, of which the manifest says that it is right: an
    `extra` key, or another last byte."""
    disk, newest = world.hosts[worker].disk, checkpoints(world, worker, vnode)[-1]
    identity = Identity(
        cluster=world.cluster, job=world.uid(), operator="a step", vnode=Vnode(vnode)
    )
    manifest = Manifest.decode(disk.read(f"{newest}/{MANIFEST}"), path=newest, expected=identity)
    entry = next(e for e in manifest.files if e.name.endswith(".sst") and e.size)
    data = bytearray(disk.read(f"{newest}/{entry.name}"))
    if extra:
        data += SIZES.pack(len(extra), 1) + extra + b"1"
    else:
        data[-1] ^= 1
    name = f"0-{zlib.crc32(data):08x}.sst" if readable else entry.name
    current = bytes(disk.read(f"{newest}/CURRENT")).partition(b"\n")[2]
    listed = current.replace(entry.name.encode(), name.encode())
    contents = {
        "CURRENT": b"%08x\n" % zlib.crc32(listed) + listed,
        name: bytes(data),
    }
    files = [e for e in manifest.files if e.name not in ("CURRENT", entry.name)]
    disk.remove(f"{newest}/{entry.name}")
    for file, content in contents.items():
        disk.write_atomic(f"{newest}/{file}", content)
        files.append(FileEntry(name=file, size=len(content), blake3=content_hash(content)))
    forged = replace(manifest, files=tuple(sorted(files, key=lambda e: e.name)))
    disk.write_atomic(f"{newest}/{MANIFEST}", forged.encode())
    return manifest.checkpoint_id


@pytest.mark.parametrize("readable", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_state_that_is_wrong_although_its_files_are_as_written(readable: bool) -> None:
    world = World(workers=2, vnodes=4, instances=1, replication=1)
    query = running(world)
    replicated(world, query)
    world.hosts["w2"].kill_agent()
    checkpoint = forge(world, "w2", 3, readable=readable)
    world.hosts["w2"].start_agent()
    world.run(5.0)
    assert ops.error_of(verify(world)) is None
    view = verify(world, deep=True)
    unequal = [d for d in ops.compared(view) if not d.equal]
    assert ops.error_of(view) is not None
    if readable:
        assert [(d.vnode, d.checkpoint, set(d.of)) for d in unequal] == [
            (3, checkpoint, {"w1", "w2"})
        ]
        assert ops.bad(view) == []
    else:
        assert unequal == []
        assert [(b.worker, b.vnode, b.checkpoint) for b in ops.bad(view)] == [("w2", 3, checkpoint)]
    query.idle = False
    world.finish(query, batches=query.directory.committed + 10)


# --- the scrub -----------------------------------------------------------------------------------


def test_the_scrub_finds_what_nobody_has_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SCRUB_EVERY_S", 40.0)
    monkeypatch.setattr(limits, "SCRUB_LOOK_S", 1.0)
    world = World(workers=2, vnodes=4, instances=1, replication=1, scrub_bytes_s=1 << 20)
    query = running(world)
    replicated(world, query)
    rot(world, "w2", 2)

    def bad() -> int:
        agent = world.hosts["w2"].agent
        assert agent is not None
        (desk,) = agent.desks.values()
        return desk.upkeep.found_bad

    world.until(lambda: bad() > 0, "that it is found", 60.0)
    query.idle = False
    world.until(mended(world), "a good one in its place")
    assert ops.error_of(verify(world)) is None
    world.finish(query, batches=query.directory.committed + 10)


@pytest.mark.slow
def test_the_scrub_keeps_to_its_rate_and_reads_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SCRUB_EVERY_S", 30.0)
    monkeypatch.setattr(limits, "SCRUB_LOOK_S", 1.0)
    world = World(workers=1, vnodes=4, scrub_bytes_s=400)
    query = running(world)
    query.idle = True
    agent = world.hosts["w1"].agent
    assert agent is not None
    (desk,) = agent.desks.values()
    before, began = desk.scrub.bytes, world.clock.monotonic()
    world.run(20.0)
    spent = world.clock.monotonic() - began
    assert 0 < desk.scrub.bytes - before <= 400 * (spent + 5.0)
