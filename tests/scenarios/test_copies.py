"""Copies between workers when something is wrong: with the disk, the source, or the bytes."""

import errno
import itertools
import logging
from collections import Counter
from dataclasses import replace
from math import inf

import pytest

from rhinoctl import limits
from rhinoctl.errors import CorruptFile
from rhinoctl.ids import InstanceId, WorkerId
from rhinoctl.protocol import messages as m
from rhinoctl.protocol.handover import Phase
from rhinoctl.state.manifests import MANIFEST, STAMPS
from tests.fakes.world import World
from tests.fakes.world_input import Workload
from tests.fakes.world_spark import Query


def warmed_up(world: World, batches: int = 40) -> Query:
    """A job that has run for a while, so that vnodes have two checkpoints."""
    query = world.start_query()
    query.trigger_s = 0.02
    world.until(lambda: query.directory.committed >= batches)
    return query


def checkpoints(world: World, worker: str, vnode: int) -> list[str]:
    """The complete ones, the newest last."""
    root = f"jobs/{world.uid()}/ckpt/{vnode}"
    names = [name for name in world.hosts[worker].disk.list(root) if "." not in name]
    return [f"{root}/{name}" for name in sorted(names, key=lambda n: int(n.split("-")[1]))]


def tables(world: World, worker: str, checkpoint: str) -> list[str]:
    """The files of a checkpoint with something in them."""
    disk = world.hosts[worker].disk
    paths = [f"{checkpoint}/{n}" for n in disk.list(checkpoint) if n not in (MANIFEST, STAMPS)]
    return [path for path in paths if disk.size(path)]


@pytest.mark.parametrize("refusal", [errno.EXDEV, errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK])
def test_a_disk_that_cannot_link_copies(refusal: int) -> None:
    world = World(workers=2)
    for host in world.hosts.values():
        host.disk.link_refusal = refusal
    query = warmed_up(world)
    assert world.until_ended(world.handover([0, 1], "i1")).phase is Phase.COMPLETE
    assert world.hosts["w2"].disk.copies > 0
    world.finish(query, batches=query.directory.committed + 15)
    assert query.failures == []


@pytest.mark.parametrize("refusal", [None, errno.EXDEV], ids=["links", "copies"])
def test_a_checkpoint_is_durable_before_it_is_acknowledged(refusal: int | None) -> None:
    """T9: fsync of files and directory before the acknowledgement, also where all is copied."""
    world = World(workers=3, vnodes=4, instances=1, replication=2)
    for host in world.hosts.values():
        host.disk.link_refusal = refusal
    acknowledged: list[str] = []

    def look(worker: str) -> None:
        """Every complete checkpoint, as a loss of power would leave it now."""
        disk = world.hosts[worker].disk
        for vnode in range(world.vnodes):
            for checkpoint in checkpoints(world, worker, vnode):
                for path in disk.files(checkpoint):
                    assert disk.durable(path) == bytes(disk.read(path)), path
        acknowledged.append(worker)

    for member, time in itertools.product(("w2", "w3"), range(20)):
        world.trap(member, "send StoredCheckpoint", lambda w=member: look(w), skip=time)
    query = warmed_up(world, batches=60)
    assert all(acknowledged.count(member) > 4 for member in ("w2", "w3"))
    world.finish(query, batches=query.directory.committed + 5)


@pytest.mark.parametrize(
    "damage",
    ["a byte", *(pytest.param(d, marks=pytest.mark.slow) for d in ("truncated", "empty", "gone"))],
)
def test_a_damaged_file_is_found_on_receipt_and_another_checkpoint_serves(
    damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "rhino.agent")
    world = World(workers=2)
    query = warmed_up(world, batches=80)
    disk = world.hosts["w1"].disk

    def do_damage() -> None:
        """To the checkpoint that the copy begins with, however new it is."""
        newest = checkpoints(world, "w1", 0)[-1]
        for path in tables(world, "w1", newest):
            if damage == "a byte":
                disk.rot(path, (disk.size(path) or 1) // 2)
            elif damage == "gone":
                disk.remove(path)
            else:
                disk.corrupt(path, b"" if damage == "empty" else bytes(disk.read(path, 0, 9)))

    trap = world.trap("w2", "send FetchChunk", do_damage)
    operation = world.handover([0], "i1")
    world.until_sprung(trap)
    assert world.until_ended(operation).phase is Phase.COMPLETE
    world.finish(query, batches=query.directory.committed + 15)
    assert query.failures == []
    told = [record.getMessage() for record in caplog.records]
    assert any("checkpoint-bad" in line and "vnode=0" in line for line in told), "it is named"
    assert CorruptFile.code == "corrupt-file"


def test_a_damaged_file_that_an_instance_finds_on_opening_is_set_aside() -> None:
    """Not tried for ever: an older checkpoint serves."""
    world = World(workers=1)
    query = warmed_up(world, batches=90)
    host = world.hosts["w1"]
    for path in tables(world, "w1", checkpoints(world, "w1", 0)[-1]):
        host.disk.rot(path, 0)
    (pid,) = host.pids("i0")
    host.kill_pid(pid)
    world.finish(query, batches=query.directory.committed + 15)
    assert query.failures == []


def test_another_holder_serves_when_the_one_that_was_asked_is_dead() -> None:
    """The wish names two holders; of the first there is nothing but the name."""
    world = World(workers=2)
    query = warmed_up(world)
    dead = WorkerId("a-dead-one")

    def with_a_dead_holder(message: m.Message) -> m.Message:
        if not isinstance(message, m.Heartbeat):
            return message
        jobs = [
            replace(
                job,
                warm=tuple(
                    replace(wish, sources={**wish.sources, dead: "grpc+unix:///dead.sock"})
                    for wish in job.warm
                ),
            )
            for job in message.jobs
        ]
        return replace(message, jobs=tuple(jobs))

    world.network.rewrite = with_a_dead_holder
    asked = world.trap("w2", "send FetchManifest grpc+unix:///dead.sock", lambda: None)
    operation = world.handover([0, 2], "i1")
    assert world.until_ended(operation).phase is Phase.COMPLETE
    assert asked.sprung
    world.network.rewrite = None
    world.finish(query, batches=query.directory.committed + 15)
    assert query.failures == []


@pytest.mark.slow
def test_an_answer_that_comes_when_its_sender_is_no_source_any_more_is_not_taken() -> None:
    """A source was cut off from all but the worker that copies, and given up meanwhile."""
    world = World(workers=3, instances=3, replication=1)
    query = warmed_up(world, batches=20)
    world.network.late_s["FetchManifest"] = 0.9 * limits.FETCH_TIMEOUT_S
    world.set_replication(2)
    asked = world.trap("w3", "send FetchManifest", lambda: None)
    world.until_sprung(asked)
    w2 = world.hosts["w2"].address
    world.network.partition([w2], ["controller", query.name, world.hosts["w1"].address])
    world.until(lambda: "w2" not in world.epoch().workers, "the failover", 60.0)
    copying = world.hosts["w3"].agent
    world.run(limits.FETCH_TIMEOUT_S)
    assert copying is not None
    assert world.hosts["w3"].agent is copying
    assert copying.mishaps == 0
    world.network.late_s.clear()
    world.network.heal()
    world.finish(query, batches=query.directory.committed + 15)


def test_a_copy_goes_on_when_its_only_source_is_started_again() -> None:
    world = World(workers=2)
    query = warmed_up(world)
    host = world.hosts["w1"]
    trap = world.trap("w2", "send FetchChunk", host.kill_agent, after=True)
    operation = world.handover([0, 1], "i1")
    world.until_sprung(trap)
    world.run(15.0)
    host.start_agent()
    assert world.until_ended(operation).phase is Phase.COMPLETE
    world.finish(query, batches=query.directory.committed + 15)
    assert query.failures == []


@pytest.mark.slow
def test_a_slow_copy_is_not_overtaken_by_the_sources_trimming() -> None:
    """Between the manifest and the last batch of the log the source takes checkpoints and trims;
    what the copy still needs stays."""
    world = World(workers=2)
    query = warmed_up(world, batches=60)
    refusals: list[str] = []
    trap = world.trap("w2", "send FetchChunk", lambda: None)
    operation = world.handover([0], "i1")
    world.until_sprung(trap)
    world.network.late_s = {"FetchChunk": 9.0, "FetchLog": 2.0}
    seen = query.directory.committed
    world.until(lambda: query.directory.committed >= seen + 150)
    watch = world.trap("w1", "reply Refusal", lambda: refusals.append("refused"))
    world.network.late_s = {}
    assert world.until_ended(operation).phase is Phase.COMPLETE
    assert refusals == []
    assert not watch.sprung
    world.until(lambda: len(world.hosts["w1"].disk.list(f"jobs/{world.uid()}/log")) < 120)
    world.finish(query, batches=query.directory.committed + 15)
    assert query.failures == []


def test_a_copy_gathers_the_batches_between_an_old_checkpoint_and_its_own_log(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without a fresh checkpoint old batches are fetched one by one; a vnode that none but them
    has touched is not thought to be as the checkpoint has it."""
    monkeypatch.setattr(limits, "FRESH_CHECKPOINT_S", 0.0)
    workload = Workload()
    world = World(workers=3, workload=workload)
    query = warmed_up(world, batches=70)
    workload.quiet = (query.directory.planned_to, inf)
    world.network.late_s = {"FetchLog": 0.05}
    fetched = world.trap("w3", "send FetchLog", lambda: None, skip=3)
    operation = world.rescale(3)
    world.until_sprung(fetched)
    assert world.until_ended(operation).phase is Phase.COMPLETE
    assert any(v < 4 for v in world.epoch().owned_by(InstanceId("i2")))
    (pid,) = world.hosts["w3"].pids("i2")
    world.hosts["w3"].kill_pid(pid)
    world.finish(query, batches=query.directory.committed + 15)
    assert query.failures == []


def test_what_makes_a_copy_whole_is_durable_before_it_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A checkpoint of a vnode that was quiet for long reaches far beyond its manifest. The target
    knows so after a loss of power too."""
    workload = Workload()
    world = World(workers=3, workload=workload)
    query = warmed_up(world, batches=20)
    workload.quiet = (query.directory.planned_to, inf)
    world.until(lambda: query.directory.committed >= 100)
    monkeypatch.setattr(limits, "TRIM_EVERY_BATCHES", 1000)
    assert world.until_ended(world.rescale(3)).phase is Phase.COMPLETE
    (quiet, *_) = world.epoch().owned_by(InstanceId("i2"))
    assert quiet < 4
    world.until(lambda: world.epoch().holders(quiet) == ("w3",))
    world.hosts["w3"].power_loss()
    world.run(0.5)
    world.hosts["w3"].start_agent()
    world.finish(query, batches=query.directory.committed + 10)
    assert query.failures == []


def test_that_a_copy_is_behind_is_said_once_and_that_it_is_not_any_more(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "rhino.agent")
    world = World(workers=2, vnodes=4, instances=1, replication=1)
    query = warmed_up(world)

    def said(event: str) -> Counter[str]:
        lines = [r.getMessage() for r in caplog.records if r.getMessage().startswith(f"{event} ")]
        return Counter(line.split()[1] for line in lines)

    world.until(lambda: len(said("checkpoint-replicated")) == 4)
    for _ in range(2):
        world.network.late_s["OfferCheckpoint"] = 2 * limits.FETCH_TIMEOUT_S
        caplog.clear()
        world.until(lambda: len(said("checkpoint-not-replicated")) == 4, within_s=200.0)
        world.run(3 * limits.FETCH_TIMEOUT_S)
        assert set(said("checkpoint-not-replicated").values()) == {1}
        caplog.clear()
        world.network.late_s.clear()
        world.until(lambda: len(said("checkpoint-replicated")) == 4, within_s=200.0)
        assert not said("checkpoint-not-replicated")
    world.finish(query, batches=query.directory.committed + 15)
