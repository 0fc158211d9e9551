"""The checkpoints of one vnode, over the fake disk and the real one."""

import errno
import os
import random
from collections.abc import Mapping
from pathlib import Path

import pytest

from rhinoctl.errors import CorruptFile, ForeignManifest
from rhinoctl.ids import BatchTime, JobUid, Vnode
from rhinoctl.state.checkpoints import Level, VnodeCheckpoints
from rhinoctl.state.disk import LocalDisk, StampingDisk
from rhinoctl.state.hashing import SLICE_BYTES, content_hash, finish
from rhinoctl.state.leases import Leases
from rhinoctl.state.manifests import Identity, Manifest
from tests.fakes.disk import FakeDisk

IDENTITY = Identity(cluster="c", job=JobUid("j"), operator="counts", vnode=Vnode(7))
SST = b"the content of a table"


@pytest.fixture(params=["local", "fake"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> StampingDisk:
    return LocalDisk(str(tmp_path)) if request.param == "local" else FakeDisk()


def loaded(disk: StampingDisk, directory: str = "ckpt/7") -> VnodeCheckpoints:
    return VnodeCheckpoints(disk, directory, IDENTITY)


def draft(checkpoint_id: str, batch: int, identity: Identity = IDENTITY) -> Manifest:
    return Manifest(
        identity=identity,
        operator_version="1",
        vnodes=64,
        checkpoint_id=checkpoint_id,
        last_batch=BatchTime(0, batch),
        covers=BatchTime(0, batch),
        epoch=1,
    )


def take(
    checkpoints: VnodeCheckpoints,
    disk: StampingDisk,
    batch: int,
    files: Mapping[str, bytes],
    links: Mapping[str, str] | None = None,
) -> Manifest:
    """Do what RocksDB does between `begin` and `finish`: write some files, link others."""
    making = checkpoints.begin(f"c{batch}")
    for name, data in files.items():
        disk.append(f"{making}/{name}", [data])
    for name, source in (links or {}).items():
        disk.link(source, f"{making}/{name}")
    return finish(checkpoints.finish(draft(f"c{batch}", batch)))


def copy_over(
    origin: VnodeCheckpoints, disk: StampingDisk, target: VnodeCheckpoints, manifest: Manifest
) -> int:
    """Transfer what is missing; returns the bytes sent."""
    sent = 0
    for entry in target.missing(manifest):
        data = disk.read(f"{origin.path_of(manifest.checkpoint_id)}/{entry.name}")
        disk.append(target.incoming(manifest, entry), [data])
        sent += len(data)
    finish(target.adopt(manifest))
    return sent


# --- taken here -----------------------------------------------------------------------------------


def test_a_finished_checkpoint_is_listed_after_a_restart(disk: StampingDisk) -> None:
    checkpoints = loaded(disk)
    assert checkpoints.complete() == []
    older = take(checkpoints, disk, 1, {"1.sst": SST, "CURRENT": b"m", "2.log": b""})
    newer = take(checkpoints, disk, 2, {"3.sst": b"more"})
    assert checkpoints.complete() == loaded(disk).complete() == [newer, older]
    assert [(entry.name, entry.size) for entry in older.files] == [
        ("1.sst", len(SST)),
        ("2.log", 0),
        ("CURRENT", 1),
    ]
    assert older.files[0].blake3 == content_hash(SST)
    assert disk.list("ckpt/7") == ["c1", "c2"]


def test_a_linked_file_is_not_read_again(disk: StampingDisk) -> None:
    table = bytes(range(256)) * 100
    disk.append("live/1.sst", [table])
    first = take(loaded(disk), disk, 1, {}, {"1.sst": "live/1.sst"})
    checkpoints = loaded(disk)
    making = checkpoints.begin("c2")
    disk.link("live/1.sst", f"{making}/9.sst")
    disk.append(f"{making}/CURRENT", [b"m"])
    steps = checkpoints.finish(draft("c2", 2))
    assert sum(steps) == 1
    newest = checkpoints.complete()[0]
    assert newest.files[0].blake3 == first.files[0].blake3


def test_hashing_goes_in_slices(disk: StampingDisk) -> None:
    checkpoints = loaded(disk)
    making = checkpoints.begin("c1")
    disk.append(f"{making}/1.sst", [bytes(2 * SLICE_BYTES + 5)])
    pieces = [piece for piece in checkpoints.finish(draft("c1", 1)) if piece]
    assert pieces == [SLICE_BYTES, SLICE_BYTES, 5]
    assert checkpoints.complete()[0].files[0].blake3 == content_hash(bytes(2 * SLICE_BYTES + 5))


def test_a_file_that_changes_while_it_is_hashed_is_refused(disk: StampingDisk) -> None:
    checkpoints = loaded(disk)
    making = checkpoints.begin("c1")
    disk.append(f"{making}/1.sst", [bytes(SLICE_BYTES + 1)])
    steps = checkpoints.finish(draft("c1", 1))
    next(steps)
    disk.append(f"{making}/1.sst", [b"x"])
    with pytest.raises(CorruptFile, match="changed"):
        finish(steps)
    assert disk.list("ckpt/7") == []


def test_what_is_given_up_leaves_nothing(disk: StampingDisk) -> None:
    checkpoints = loaded(disk)
    making = checkpoints.begin("c1")
    disk.append(f"{making}/1.sst", [SST])
    steps = checkpoints.finish(draft("c1", 1))
    next(steps)
    steps.close()
    assert disk.list("ckpt/7") == []
    disk.append(checkpoints.begin("c2") + "/1.sst", [SST])
    checkpoints.abandon("c2")
    with pytest.raises(FileNotFoundError):
        finish(checkpoints.finish(draft("c2", 2)))
    assert disk.list("ckpt/7") == []
    assert checkpoints.complete() == []


def test_an_id_is_used_once(disk: StampingDisk) -> None:
    checkpoints = loaded(disk)
    manifest = take(checkpoints, disk, 1, {"1.sst": SST})
    with pytest.raises(FileExistsError):
        checkpoints.begin("c1")
    assert checkpoints.missing(manifest) == []
    with pytest.raises(FileExistsError):
        finish(checkpoints.adopt(manifest))
    with pytest.raises(ValueError, match="id"):
        checkpoints.begin("../x")


# --- whose it is, and what a crash leaves ---------------------------------------------------------


def test_anothers_checkpoint_is_refused_and_kept(disk: StampingDisk) -> None:
    take(loaded(disk), disk, 1, {"1.sst": SST})
    other = Identity(cluster="other", job=JobUid("j"), operator="counts", vnode=Vnode(7))
    with pytest.raises(ForeignManifest, match="cluster other"):
        VnodeCheckpoints(disk, "ckpt/7", other)
    assert len(loaded(disk).complete()) == 1
    with pytest.raises(ForeignManifest):
        loaded(disk).missing(draft("c9", 9, other))


def test_a_corrupt_manifest_sets_its_checkpoint_aside_once(disk: StampingDisk) -> None:
    checkpoints = loaded(disk)
    good = take(checkpoints, disk, 1, {"1.sst": SST})
    take(checkpoints, disk, 2, {"2.sst": SST})
    disk.write_atomic("ckpt/7/c2/manifest.json", b"")
    again = loaded(disk)
    assert again.complete() == [good]
    assert "manifest" in again.damaged["c2"]
    assert list(loaded(disk).damaged) == ["c2"]
    assert again.retain(Leases(), keep=2) == []
    assert disk.list("ckpt/7") == ["c1", "c2.bad"]
    take(again, disk, 3, {"3.sst": SST})
    again.retain(Leases(), keep=2)
    assert disk.list("ckpt/7") == ["c1", "c3"]
    assert again.damaged == {}


def test_loading_collects_what_is_unfinished_but_keeps_transfers(disk: StampingDisk) -> None:
    for name in ("c1/1.sst", "c2.tmp/1.sst", "c3.gone/manifest.json", "c4.incoming/" + "0" * 64):
        disk.append(f"ckpt/7/{name}", [b"x"])
    disk.append("ckpt/7/lost+found", [b""])
    checkpoints = loaded(disk)
    assert disk.list("ckpt/7") == ["c4.incoming", "lost+found"]
    checkpoints.retain(Leases())
    assert disk.list("ckpt/7") == ["lost+found"]


@pytest.mark.parametrize("seed", range(60))
def test_after_a_power_loss_a_checkpoint_is_complete_or_not_there(seed: int) -> None:
    """Invariant 5: complete and verified, wherever the crash fell."""
    chance = random.Random(seed)
    disk = FakeDisk()
    checkpoints = loaded(disk)
    finished = [take(checkpoints, disk, 0, {"0.sst": b"zero", "CURRENT": b"m0"})]
    disk.append("live/5.sst", [b"five" * 50])
    for batch in (1, 2, 3):
        making = checkpoints.begin(f"c{batch}")
        disk.append(f"{making}/{batch}.sst", [b"data of %d" % batch * 20])
        disk.link("live/5.sst", f"{making}/5.sst")
        steps = checkpoints.finish(draft(f"c{batch}", batch))
        budget = chance.randrange(12)
        for _ in steps:
            budget -= 1
            if budget < 0:
                break
        else:
            finished.append(checkpoints.complete()[0])
            checkpoints.retain(Leases())
            continue
        break
    disk.crash(chance)
    again = loaded(disk)
    for manifest in again.complete():
        finish(again.verify(manifest.checkpoint_id, Level.HASHES))
    ids = [manifest.checkpoint_id for manifest in again.complete()]
    assert ids[: len(finished[-2:])] == [m.checkpoint_id for m in reversed(finished[-2:])]
    assert set(disk.list("ckpt/7")) == set(ids)
    assert again.damaged == {}


@pytest.mark.parametrize("seed", range(20))
def test_a_power_loss_leaves_no_half_of_what_was_removed_with_its_vnode(seed: int) -> None:
    """A manifest without its files would be taken for a copy when the vnode comes again."""
    disk = FakeDisk()
    checkpoints = loaded(disk)
    for batch in (1, 2):
        take(checkpoints, disk, batch, {f"{batch}.sst": SST, "CURRENT": b"m"})
    checkpoints.remove()
    assert disk.list("ckpt") == []
    disk.crash(random.Random(seed))
    again = loaded(disk)
    for manifest in again.complete():
        finish(again.verify(manifest.checkpoint_id, Level.HASHES))


# --- verified -------------------------------------------------------------------------------------


def test_verify_passes_what_was_written(disk: StampingDisk) -> None:
    checkpoints = loaded(disk)
    take(checkpoints, disk, 1, {"1.sst": SST, "2.log": b""})
    for again in (checkpoints, loaded(disk)):
        assert sum(again.verify("c1", Level.STAMPS)) == 0
        assert sum(again.verify("c1", Level.HASHES)) == len(SST)


def test_without_stamps_the_first_look_reads(disk: StampingDisk) -> None:
    take(loaded(disk), disk, 1, {"1.sst": SST})
    disk.remove("ckpt/7/c1/stamps.json")
    checkpoints = loaded(disk)
    assert sum(checkpoints.verify("c1", Level.STAMPS)) == len(SST)
    assert sum(checkpoints.verify("c1", Level.STAMPS)) == 0


@pytest.mark.parametrize("level", Level)
def test_same_name_and_size_other_content(disk: StampingDisk, level: Level) -> None:
    """Design, section 14. Invariant 9: a mismatch is named (vnode, file, checkpoint)."""
    checkpoints = loaded(disk)
    take(checkpoints, disk, 1, {"000012.sst": SST})
    disk.write_atomic("ckpt/7/c1/000012.sst", SST[::-1])
    for again in (checkpoints, loaded(disk)):
        with pytest.raises(CorruptFile) as caught:
            finish(again.verify("c1", level))
        for part in ("vnode 7", "c1", "000012.sst"):
            assert part in caught.value.message
        assert caught.value.remedy


@pytest.mark.parametrize("level", Level)
def test_all_files_of_a_checkpoint_0_bytes(disk: StampingDisk, level: Level) -> None:
    """Design, section 14."""
    checkpoints = loaded(disk)
    take(checkpoints, disk, 1, {"1.sst": SST, "CURRENT": b"m"})
    for name in ("1.sst", "CURRENT"):
        disk.truncate(f"ckpt/7/c1/{name}", 0)
    with pytest.raises(CorruptFile, match=r"1\.sst: it has 0 bytes"):
        finish(loaded(disk).verify("c1", level))
    disk.truncate("ckpt/7/c1/manifest.json", 0)
    assert loaded(disk).complete() == []


@pytest.mark.parametrize("level", Level)
def test_a_lost_file(disk: StampingDisk, level: Level) -> None:
    checkpoints = loaded(disk)
    take(checkpoints, disk, 1, {"1.sst": SST})
    disk.remove("ckpt/7/c1/1.sst")
    with pytest.raises(CorruptFile, match="not there"):
        finish(checkpoints.verify("c1", level))


def test_rot_is_found_by_hashes_only() -> None:
    disk = FakeDisk()
    checkpoints = loaded(disk)
    take(checkpoints, disk, 1, {"1.sst": SST})
    disk.rot("ckpt/7/c1/1.sst", 3)
    finish(checkpoints.verify("c1", Level.STAMPS))
    with pytest.raises(CorruptFile, match="content"):
        finish(checkpoints.verify("c1", Level.HASHES))


def test_a_bad_checkpoint_is_not_tried_for_ever(disk: StampingDisk) -> None:
    """Design, section 14: corrupt checkpoint retried for ever."""
    checkpoints = loaded(disk)
    good = take(checkpoints, disk, 1, {"1.sst": SST})
    take(checkpoints, disk, 2, {"2.sst": SST})
    checkpoints.set_aside("c2", "verify said so")
    assert checkpoints.complete() == loaded(disk).complete() == [good]
    take(checkpoints, disk, 2, {"2.sst": b"made anew under the same id"})
    checkpoints.set_aside("c2", "again")
    assert checkpoints.damaged == {"c2": "again"}


# --- vanished from under this process -------------------------------------------------------------


@pytest.mark.parametrize("what", ["/c2/1.sst", "/c2/manifest.json", "/c2", ""])
def test_what_vanished_is_found_and_forgotten(disk: StampingDisk, what: str) -> None:
    checkpoints = loaded(disk)
    older = take(checkpoints, disk, 1, {"1.sst": b"older"})
    take(checkpoints, disk, 2, {"1.sst": SST, "2.sst": b"more"})
    assert checkpoints.gone() == []
    disk.remove(f"ckpt/7{what}")
    gone = ["c2"] if what else ["c1", "c2"]
    assert checkpoints.gone() == gone
    for checkpoint_id in gone:
        assert checkpoints.has_nothing_of(checkpoint_id) == (what in ("/c2", ""))
        with pytest.raises(CorruptFile, match="it is not there"):
            finish(checkpoints.verify(checkpoint_id, Level.HASHES))
        checkpoints.set_aside(checkpoint_id, "it is not there")
    assert set(checkpoints.damaged) == set(gone)
    assert checkpoints.complete() == loaded(disk).complete() == ([older] if what else [])
    with pytest.raises(CorruptFile, match="c2"):
        finish(checkpoints.verify("c2", Level.HASHES))
    take(checkpoints, disk, 3, {"1.sst": SST})
    take(checkpoints, disk, 4, {"1.sst": SST})
    checkpoints.retain(Leases())
    assert (checkpoints.damaged, checkpoints.flaws) == ({}, {})
    assert disk.list("ckpt/7") == ["c3", "c4"]
    assert checkpoints.complete() == loaded(disk).complete()


def test_what_vanished_can_be_removed(disk: StampingDisk) -> None:
    checkpoints = loaded(disk)
    for batch in range(4):
        take(checkpoints, disk, batch, {"1.sst": SST})
    disk.remove("ckpt/7/c1")
    assert checkpoints.retain(Leases()) == ["c1", "c0"]
    disk.remove("ckpt/7")
    checkpoints.remove()
    assert checkpoints.complete() == []
    assert disk.list("") in ([], ["ckpt"])


def test_what_vanished_is_the_base_of_one_fetch_at_the_most(disk: StampingDisk) -> None:
    origin, target = loaded(disk, "w1/7"), loaded(disk, "w2/7")
    copy_over(origin, disk, target, take(origin, disk, 1, {"1.sst": SST}))
    manifest = take(origin, disk, 2, {"1.sst": SST, "2.sst": b"more"})
    disk.remove("w2/7")
    with pytest.raises(FileNotFoundError):
        copy_over(origin, disk, target, manifest)
    assert target.gone() == ["c1"]
    target.set_aside("c1", "it is not there")
    assert [entry.name for entry in target.missing(manifest)] == ["1.sst"]
    copy_over(origin, disk, target, manifest)
    assert target.complete() == loaded(disk, "w2/7").complete() == [manifest]
    assert disk.list("w2/7") == ["c2"]


@pytest.mark.parametrize("from_another", [True, False])
def test_a_checkpoint_with_a_hole_is_not_published(
    disk: StampingDisk, *, from_another: bool
) -> None:
    origin, target = loaded(disk, "w1/7"), loaded(disk, "w2/7")
    files = {"1.sst": SST, "2.sst": bytes(2 * SLICE_BYTES)}
    if from_another:
        manifest = take(origin, disk, 1, files)
        for entry in target.missing(manifest):
            data = disk.read(f"w1/7/c1/{entry.name}")
            disk.append(target.incoming(manifest, entry), [data])
        steps = target.adopt(manifest)
    else:
        making = target.begin("c1")
        for name, content in files.items():
            disk.append(f"{making}/{name}", [content])
        steps = target.finish(draft("c1", 1))
    for _ in range(2):
        next(steps)
    disk.remove("w2/7/c1.tmp/1.sst")
    with pytest.raises(FileNotFoundError):
        finish(steps)
    assert target.complete() == []
    assert "c1" not in disk.list("w2/7")
    assert "c1.tmp" not in disk.list("w2/7")


def test_of_transfers_that_ended_early_one_waits(disk: StampingDisk) -> None:
    origin, target = loaded(disk, "w1/7"), loaded(disk, "w2/7")
    for batch in range(1, 5):
        manifest = take(origin, disk, batch, {"1.sst": b"%d" % batch * 100})
        (entry,) = target.missing(manifest)
        disk.append(target.incoming(manifest, entry), [b"%d" % batch * 50])
        target.retain(Leases())
        assert disk.size(target.incoming(manifest, entry)) == 50, "it is under way"
        target.rest(manifest.checkpoint_id)
        target.retain(Leases())
        assert disk.list("w2/7") == [f"c{batch}.incoming"]
    assert target.missing(manifest) == [entry]
    disk.append(target.incoming(manifest, entry), [b"4" * 50])
    finish(target.adopt(manifest))
    assert disk.list("w2/7") == ["c4"]


# --- from another worker --------------------------------------------------------------------------


def test_only_contents_that_are_not_here_are_fetched(disk: StampingDisk) -> None:
    origin, target = loaded(disk, "w1/7"), loaded(disk, "w2/7")
    big = b"big" * 1000
    first = take(origin, disk, 1, {"1.sst": big, "CURRENT": b"m1"})
    assert copy_over(origin, disk, target, first) == len(big) + 2
    second = take(origin, disk, 2, {"8.sst": big, "9.sst": b"new", "CURRENT": b"m2"})
    assert copy_over(origin, disk, target, second) == len(b"new") + 2
    assert target.complete() == loaded(disk, "w2/7").complete() == [second, first]
    for manifest in target.complete():
        finish(target.verify(manifest.checkpoint_id, Level.HASHES))
    assert disk.list("w2/7") == ["c1", "c2"]
    assert disk.stamp("w2/7/c1/1.sst") == disk.stamp("w2/7/c2/8.sst")


def test_the_same_name_and_size_is_not_the_same_file(disk: StampingDisk) -> None:
    """Design, sections 5 and 14: the cause of three Spark fixes and one in Ozone."""
    origin, target = loaded(disk, "w1/7"), loaded(disk, "w2/7")
    take(target, disk, 1, {"000012.sst": SST})
    manifest = take(origin, disk, 2, {"000012.sst": SST[::-1]})
    assert [entry.name for entry in target.missing(manifest)] == ["000012.sst"]
    copy_over(origin, disk, target, manifest)
    assert bytes(disk.read("w2/7/c2/000012.sst")) == SST[::-1]
    assert bytes(disk.read("w2/7/c1/000012.sst")) == SST


def test_a_transfer_resumes_after_a_restart(disk: StampingDisk) -> None:
    origin, target = loaded(disk, "w1/7"), loaded(disk, "w2/7")
    manifest = take(origin, disk, 1, {"1.sst": SST, "2.sst": b"second"})
    one, two = target.missing(manifest)
    disk.append(target.incoming(manifest, one), [SST[:5]])
    disk.append(target.incoming(manifest, two), [b"second"])
    with pytest.raises(FileNotFoundError):
        finish(target.adopt(manifest))
    again = loaded(disk, "w2/7")
    assert again.missing(manifest) == [one]
    again.retain(Leases())
    assert disk.size(again.incoming(manifest, one)) == 5
    disk.append(again.incoming(manifest, one), [SST[5:]])
    finish(again.adopt(manifest))
    assert again.complete() == [manifest]


def test_a_received_file_with_other_content_is_fetched_again(disk: StampingDisk) -> None:
    origin, target = loaded(disk, "w1/7"), loaded(disk, "w2/7")
    manifest = take(origin, disk, 1, {"1.sst": SST})
    (entry,) = target.missing(manifest)
    disk.append(target.incoming(manifest, entry), [SST[::-1]])
    assert target.missing(manifest) == []
    with pytest.raises(CorruptFile, match=r"vnode 7, checkpoint c1, file 1\.sst"):
        finish(target.adopt(manifest))
    assert target.missing(manifest) == [entry]
    disk.append(target.incoming(manifest, entry), [SST, b"too much"])
    assert target.missing(manifest) == [entry]
    assert disk.size(target.incoming(manifest, entry)) is None
    copy_over(origin, disk, target, manifest)
    assert target.complete() == [manifest]


def test_a_bad_file_here_is_not_adopted(disk: StampingDisk) -> None:
    origin, target = loaded(disk, "w1/7"), loaded(disk, "w2/7")
    copy_over(origin, disk, target, take(origin, disk, 1, {"1.sst": SST}))
    disk.write_atomic("w2/7/c1/1.sst", SST[::-1])
    manifest = take(origin, disk, 2, {"1.sst": SST})
    assert target.missing(manifest) == []
    with pytest.raises(CorruptFile, match="checkpoint c1"):
        finish(target.adopt(manifest))
    target.set_aside("c1", "bad")
    copy_over(origin, disk, target, manifest)
    assert target.complete() == [manifest]


@pytest.mark.parametrize("number", [errno.EXDEV, errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK])
def test_where_links_are_refused_copies_are_hashed(number: int) -> None:
    disk = FakeDisk()
    origin, target = loaded(disk, "w1/7"), loaded(disk, "w2/7")
    copy_over(origin, disk, target, take(origin, disk, 1, {"1.sst": SST}))
    disk.link_refusal = number
    manifest = take(origin, disk, 2, {"1.sst": SST})
    assert sum(target.adopt(manifest)) == len(SST)
    finish(target.verify("c2", Level.HASHES))
    assert disk.copies == 1


@pytest.mark.parametrize("linked", [True, False], ids=["links", "copies"])
def test_files_and_directories_are_synced_before_a_checkpoint_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, linked: bool
) -> None:
    """T9: by the system calls of a real disk. The name itself is durable on return."""

    def refuse(source: str, target: str) -> None:
        raise OSError(errno.EMLINK, os.strerror(errno.EMLINK))

    disk = LocalDisk(str(tmp_path), link=os.link if linked else refuse)
    origin, target = loaded(disk, "w1/7"), loaded(disk, "w2/7")
    copy_over(origin, disk, target, take(origin, disk, 1, {"1.sst": SST}))
    manifest = take(origin, disk, 2, {"1.sst": SST, "2.sst": b"new"})
    done: list[tuple[str, str]] = []
    fsync, rename = os.fsync, os.rename

    def noted_fsync(descriptor: int) -> None:
        fsync(descriptor)
        done.append(("sync", os.readlink(f"/proc/self/fd/{descriptor}")))

    def noted_rename(source: str, destination: str) -> None:
        rename(source, destination)
        done.append(("rename", destination))

    monkeypatch.setattr(os, "fsync", noted_fsync)
    monkeypatch.setattr(os, "rename", noted_rename)
    copy_over(origin, disk, target, manifest)
    named = done.index(("rename", str(tmp_path / "w2/7/c2")))
    before = {path for what, path in done[:named] if what == "sync"}
    making = tmp_path / "w2/7/c2.tmp"
    fresh = {"2.sst", "stamps.json"} if linked else {"1.sst", "2.sst", "stamps.json"}
    assert {str(making), *(str(making / name) for name in fresh)} <= before
    assert any(path.startswith(f"{making}/.manifest.json.") for path in before)
    assert ("sync", str(tmp_path / "w2/7")) in done[named:]


# --- kept -----------------------------------------------------------------------------------------


def test_retain_keeps_the_newest_and_the_leased(disk: StampingDisk) -> None:
    """Invariant 8; design, section 14: file collected while a peer still reads."""
    checkpoints = loaded(disk)
    for batch in range(5):
        take(checkpoints, disk, batch, {"1.sst": b"%d" % batch})
    leases = Leases()
    leases.take(Vnode(7), "c1", "w2", until=10.0)
    leases.take(Vnode(8), "c0", "w2", until=10.0)
    assert checkpoints.retain(leases) == ["c2", "c0"]
    assert disk.list("ckpt/7") == ["c1", "c3", "c4"]
    assert bytes(disk.read("ckpt/7/c1/1.sst")) == b"1"
    leases.release("w2")
    assert checkpoints.retain(leases) == ["c1"]
    assert checkpoints.retain(leases) == []


def test_retain_leaves_alone_what_is_under_way(disk: StampingDisk) -> None:
    checkpoints = loaded(disk)
    disk.append(checkpoints.begin("c1") + "/1.sst", [SST])
    checkpoints.retain(Leases())
    finish(checkpoints.finish(draft("c1", 1)))
    assert len(checkpoints.complete()) == 1


def test_links_outlive_the_checkpoint(disk: StampingDisk) -> None:
    checkpoints = loaded(disk)
    take(checkpoints, disk, 1, {"1.sst": SST})
    disk.link("ckpt/7/c1/1.sst", "live/1.sst")
    take(checkpoints, disk, 2, {"2.sst": SST})
    checkpoints.retain(Leases(), keep=1)
    assert bytes(disk.read("live/1.sst")) == SST


def test_a_checkpoint_whose_name_may_not_be_durable_is_in_nobodys_way() -> None:
    """The rename was done and its fsync failed: the same checkpoint can be taken again."""

    class Failing(FakeDisk):
        fails = True

        def rename(self, source: str, target: str) -> None:
            super().rename(source, target)
            if self.fails and target.endswith("/c1"):
                self.fails = False
                raise OSError(errno.EIO, os.strerror(errno.EIO))

    disk = Failing()
    checkpoints = loaded(disk)
    with pytest.raises(OSError, match="Input/output"):
        take(checkpoints, disk, 1, {"a.sst": SST})
    assert checkpoints.complete() == []
    assert loaded(disk).complete() == []
    whole = take(checkpoints, disk, 1, {"a.sst": SST})
    assert loaded(disk).complete() == [whole]
