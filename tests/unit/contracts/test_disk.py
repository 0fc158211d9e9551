"""The contract of the Disk port, over the real one, the fake, and one made of several."""

import errno
import gc
import os
import random
import stat
import tempfile
from pathlib import Path

import pytest

from rhinoctl.errors import UnwritableDirectory
from rhinoctl.state.disk import LocalDisk, RoomyDisk, StampingDisk, write_atomic
from rhinoctl.state.spread import SpreadDisk
from tests.fakes.disk import FakeDisk
from tests.fakes.spread import Below, spread
from tests.unit.state.test_links import mounted

KINDS = ("local", "fake", "spread", "spread fakes", "vnode on spread", "vnode on spread fakes")
"""Of several disks the first has all but vnodes; a vnode's directory is here on the second."""


@pytest.fixture(params=KINDS)
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> StampingDisk:
    kind = str(request.param)
    if kind == "local":
        return LocalDisk(str(tmp_path / "root"))
    if kind == "fake":
        return FakeDisk()
    real = not kind.endswith("fakes")
    whole = spread([_disk(tmp_path, number, real=real) for number in (1, 2)])
    if not kind.startswith("vnode"):
        return whole
    whole.append("jobs/j/ckpt/2/x", [b"of a vnode that the first disk has"])
    return Below(whole, "jobs/j/ckpt/3")


def _disk(tmp_path: Path, number: int, *, real: bool) -> RoomyDisk:
    if real:
        return LocalDisk(str(tmp_path / f"d{number}"), number=number)
    return FakeDisk(mount=f"/d{number}/" if number > 1 else "", number=number)


def test_append_returns_the_offset_and_makes_directories(disk: StampingDisk) -> None:
    assert disk.append("a/b/log", [b"one", bytearray(b"two")]) == 0
    assert disk.append("a/b/log", [memoryview(b"three"), b""]) == 6
    assert disk.append("a/b/log", []) == 11
    assert bytes(disk.read("a/b/log")) == b"onetwothree"
    assert disk.size("a/b/log") == 11


def test_append_takes_many_buffers(disk: StampingDisk) -> None:
    pieces = [bytes([i % 251]) * (i % 7) for i in range(5000)]
    disk.append("log", pieces)
    assert bytes(disk.read("log")) == b"".join(pieces)


def test_append_to_many_files_in_turn(disk: StampingDisk) -> None:
    for turn in range(2):
        for number in range(100):
            assert disk.append(f"d{number % 3}/f{number}", [b"x"]) == turn
    assert len(disk.list("d0")) == 34


def test_read_is_short_only_at_the_end(disk: StampingDisk) -> None:
    disk.append("log", [b"0123456789"])
    assert bytes(disk.read("log", 3, 4)) == b"3456"
    assert bytes(disk.read("log", 8, 10)) == b"89"
    assert bytes(disk.read("log", 12, 10)) == b""
    assert bytes(disk.read("log", 5)) == b"56789"


def test_truncate_cuts_and_append_goes_on_there(disk: StampingDisk) -> None:
    disk.append("log", [b"0123456789"])
    disk.truncate("log", 4)
    assert disk.append("log", [b"x"]) == 4
    assert bytes(disk.read("log")) == b"0123x"
    with pytest.raises(ValueError, match="shorter"):
        disk.truncate("log", 99)


def test_a_missing_file(disk: StampingDisk) -> None:
    assert disk.size("none") is None
    assert disk.stamp("none") is None
    assert disk.list("none") == []
    disk.remove("none")
    disk.remove("none/below")
    for call in (
        lambda: disk.read("none"),
        lambda: disk.truncate("none", 0),
        lambda: disk.sync(["none"]),
        lambda: disk.link("none", "other"),
        lambda: disk.rename("none", "other"),
    ):
        with pytest.raises(FileNotFoundError):
            call()


def test_a_rename_of_nothing_makes_nothing(disk: StampingDisk) -> None:
    disk.append("a/x", [b"1"])
    for source in ("none", "none/below", "a/none"):
        with pytest.raises(FileNotFoundError):
            disk.rename(source, "b/c/other")
        with pytest.raises(FileNotFoundError):
            disk.rename(source, "a/x")
    assert disk.list("") == ["a"]
    assert bytes(disk.read("a/x")) == b"1"
    disk.remove("a/none/below")
    disk.remove("a")
    disk.remove("a")
    assert disk.list("") == []


@pytest.mark.parametrize("path", ["../x", "/x", "a/../x", "a//x", "", ".", "a/./x", "a/", "a\0"])
def test_no_path_leaves_the_root(disk: StampingDisk, path: str) -> None:
    disk.append("a", [b"x"])
    for call in (
        lambda: disk.append(path, [b"x"]),
        lambda: disk.read(path),
        lambda: disk.write_atomic(path, b"x"),
        lambda: disk.link("a", path),
        lambda: disk.rename(path, "a"),
        lambda: disk.remove(path),
        lambda: disk.path_of(path),
    ):
        with pytest.raises(ValueError, match="below the root"):
            call()


def test_write_atomic_replaces_and_append_sees_the_new_file(disk: StampingDisk) -> None:
    disk.append("a/state", [b"old, and longer"])
    disk.write_atomic("a/state", b"new")
    assert disk.append("a/state", [b"!"]) == 3
    disk.write_atomic("a/state", memoryview(b"newer"))
    assert bytes(disk.read("a/state")) == b"newer"
    assert disk.list("a") == ["state"]


def test_a_link_is_the_same_file_under_a_second_name(disk: StampingDisk) -> None:
    disk.append("a/one", [b"bytes"])
    before = disk.stamp("a/one")
    disk.link("a/one", "b/two")
    assert disk.stamp("b/two") == disk.stamp("a/one") == before
    disk.remove("a/one")
    assert bytes(disk.read("b/two")) == b"bytes"


def test_a_link_never_replaces(disk: StampingDisk) -> None:
    disk.append("one", [b"1"])
    disk.append("two", [b"2"])
    with pytest.raises(FileExistsError):
        disk.link("one", "two")
    assert bytes(disk.read("two")) == b"2"


def test_a_stamp_changes_with_the_file(disk: StampingDisk) -> None:
    disk.append("f", [b"0123"])
    first = disk.stamp("f")
    disk.append("f", [b"4"])
    second = disk.stamp("f")
    disk.write_atomic("f", b"01234")
    assert len({first, second, disk.stamp("f")}) == 3


def test_rename_moves_a_tree_and_append_follows(disk: StampingDisk) -> None:
    disk.append("a/x/log", [b"1"])
    disk.append("a/y", [b"2"])
    disk.rename("a", "b/c")
    assert disk.list("") == ["b"]
    assert disk.list("b/c") == ["x", "y"]
    assert disk.append("a/x/log", [b"other"]) == 0
    assert bytes(disk.read("b/c/x/log")) == b"1"


def test_rename_replaces_a_file_but_no_tree(disk: StampingDisk) -> None:
    disk.append("one", [b"1"])
    disk.append("two", [b"2"])
    disk.rename("one", "two")
    assert bytes(disk.read("two")) == b"1"
    disk.append("d/x", [b"x"])
    disk.append("e/x", [b"x"])
    with pytest.raises(OSError, match="not empty"):
        disk.rename("d", "e")


def test_remove_takes_a_tree_and_append_begins_anew(disk: StampingDisk) -> None:
    disk.append("a/b/log", [b"123"])
    disk.remove("a")
    assert disk.list("") == []
    assert disk.append("a/b/log", [b"4"]) == 0


def test_list_is_sorted(disk: StampingDisk) -> None:
    for name in ("b", "a", "c/x"):
        disk.append(name, [b""])
    assert disk.list("") == ["a", "b", "c"]
    assert disk.list("a") == []


def test_sync_of_files_in_new_directories(disk: StampingDisk) -> None:
    disk.append("a/b/one", [b"1"])
    disk.append("a/c/two", [b"2"])
    disk.sync(["a/b/one", "a/c/two", "a/b/one"])
    disk.sync(iter(["a/b/one"]))
    disk.sync(["a"])


# --- the real disk only ------------------------------------------------------------------------


@pytest.mark.parametrize("number", [errno.EXDEV, errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK])
def test_a_refused_link_becomes_a_copy_announced_once(
    tmp_path: Path, number: int, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(source: str, target: str) -> None:
        raise OSError(number, os.strerror(number), source, None, target)

    disk = LocalDisk(str(tmp_path / "root"), link=refuse)
    disk.append("one", [b"bytes"])
    for target in ("a/two", "a/three"):
        disk.link("one", target)
        assert bytes(disk.read(target)) == b"bytes"
    assert disk.stamp("a/two") != disk.stamp("one")
    assert disk.copies == 2
    assert len(caplog.records) == 1
    assert sorted(os.listdir(tmp_path / "root/a")) == ["three", "two"]
    with pytest.raises(FileExistsError):
        disk.link("one", "a/two")


def test_other_failures_of_a_link_are_raised(tmp_path: Path) -> None:
    def refuse(source: str, target: str) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    disk = LocalDisk(str(tmp_path), link=refuse)
    disk.append("one", [b"bytes"])
    with pytest.raises(OSError, match="Input/output"):
        disk.link("one", "two")
    assert disk.copies == 0


def test_an_unwritable_root_is_refused_with_a_remedy(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(UnwritableDirectory) as caught:
        LocalDisk(str(tmp_path / "file/root"))
    assert str(tmp_path / "file/root") in caught.value.message
    assert caught.value.remedy
    with pytest.raises(UnwritableDirectory):
        LocalDisk(str(tmp_path / "file"))
    disk = LocalDisk(str(tmp_path))
    for call in (lambda: disk.append("file/x", [b"x"]), lambda: disk.write_atomic("file/x", b"x")):
        with pytest.raises(UnwritableDirectory):
            call()


def test_a_disk_that_is_written_to_refuses_nothing(disk: StampingDisk, tmp_path: Path) -> None:
    if isinstance(disk, LocalDisk | FakeDisk | SpreadDisk):
        assert disk.refusal() is None
    assert not list(tmp_path.rglob("*probe*"))


def test_a_file_system_that_turns_read_only_is_found_and_is_no_matter_of_rights(
    tmp_path: Path,
) -> None:
    root = tmp_path / "mount"
    root.mkdir()
    with mounted("-t", "tmpfs", "none", root):
        disk = LocalDisk(str(root))
        disk.append("a/x", [b"1"])
        disk.close()
        assert disk.refusal() is None
        with mounted("-o", "remount,ro", root, undo=("-o", "remount,rw", root)):
            why = disk.refusal()
            assert why is not None
            assert why.errno == errno.EROFS
            for call in (
                lambda: disk.append("a/x", [b"2"]),
                lambda: disk.append("a/y", [b"2"]),
                lambda: disk.append("b/x", [b"2"]),
                lambda: disk.write_atomic("a/z", b"2"),
                lambda: disk.remove("a/none"),
            ):
                with pytest.raises(OSError, match="Read-only"):
                    call()
            with pytest.raises(UnwritableDirectory, match="Read-only"):
                LocalDisk(str(root))
        assert disk.refusal() is None
        assert bytes(disk.read("a/x")) == b"1"


@pytest.mark.parametrize(
    ("number", "refuses"),
    [(errno.EIO, True), (errno.EROFS, True), (errno.ENOSPC, False), (errno.EDQUOT, False)],
)
def test_a_refusal_for_want_of_room_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, refuses: bool
) -> None:
    disk = LocalDisk(str(tmp_path))

    def refuse(**_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(tempfile, "mkstemp", refuse)
    assert (disk.refusal() is not None) is refuses


def test_descriptors_are_bounded_and_closed(tmp_path: Path) -> None:
    def descriptors() -> int:
        return len(os.listdir("/proc/self/fd"))

    gc.collect()
    before = descriptors()
    disk = LocalDisk(str(tmp_path))
    for number in range(300):
        disk.append(f"f{number}", [b"x"])
    assert descriptors() - before <= 64
    disk.close()
    assert descriptors() == before
    assert disk.append("f0", [b"y"]) == 1


def test_a_failed_append_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    disk = LocalDisk(str(tmp_path))
    disk.append("log", [b"0123"])
    os.remove(tmp_path / "log")
    os.symlink("/dev/full", tmp_path / "log")
    other = LocalDisk(str(tmp_path))
    with pytest.raises(OSError, match="No space"):
        other.append("log", [b"x"])


def test_killed_writes_are_not_listed(tmp_path: Path) -> None:
    disk = LocalDisk(str(tmp_path))
    (tmp_path / ".state.abc123.tmp").write_bytes(b"half")
    (tmp_path / ".hidden").write_bytes(b"")
    assert disk.list("") == [".hidden"]


def test_write_atomic_sets_the_mode_and_leaves_nothing_behind(tmp_path: Path) -> None:
    path = tmp_path / "token"
    write_atomic(str(path), b"secret", mode=0o600)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    (tmp_path / "tree/x").mkdir(parents=True)
    with pytest.raises(OSError, match="directory"):
        write_atomic(str(tmp_path / "tree"), b"x")
    assert sorted(os.listdir(tmp_path)) == ["token", "tree"]
    with pytest.raises(UnwritableDirectory):
        write_atomic(str(path / "below"), b"x")


def test_two_may_remove_a_tree_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = LocalDisk(str(tmp_path))
    for name in ("a/b/x", "a/c/y", "a/z"):
        disk.append(name, [b"1"])
    scan, seen = os.scandir, []

    def scan_and_lose(where: int) -> object:
        found = scan(where)
        if not seen:
            seen.append(where)
            os.remove(tmp_path / "a/b/x")
            os.rmdir(tmp_path / "a/b")
        return found

    monkeypatch.setattr(os, "scandir", scan_and_lose)
    disk.remove("a")
    assert seen
    assert disk.list("") == []


# --- the fake only: what a power loss may do ------------------------------------------------------


def test_a_crash_keeps_what_was_synced_and_nothing_else() -> None:
    disk = FakeDisk()
    disk.append("a/log", [b"durable"])
    disk.sync(["a/log"])
    disk.append("a/log", [b" lost"])
    disk.append("a/other", [b"lost"])
    disk.write_atomic("b/state", b"kept")
    disk.crash()
    assert bytes(disk.read("a/log")) == b"durable"
    assert disk.list("") == ["a", "b"]
    assert disk.list("a") == ["log"]
    assert bytes(disk.read("b/state")) == b"kept"


def test_a_crash_tears_as_the_seed_says() -> None:
    def run(seed: int) -> tuple[list[str], bytes]:
        disk = FakeDisk()
        disk.append("log", [b"durable-"])
        disk.sync(["log"])
        disk.append("log", [b"torn"])
        for number in range(5):
            disk.append(f"f{number}", [b"x"])
        disk.crash(random.Random(seed))
        return disk.list(""), bytes(disk.read("log"))

    outcomes = {seed: run(seed) for seed in range(40)}
    assert outcomes == {seed: run(seed) for seed in range(40)}
    logs = {log for _, log in outcomes.values()}
    assert all(log.startswith(b"durable-") for log in logs)
    assert {b"durable-", b"durable-torn"} < logs
    assert any(log.endswith(b"\0") for log in logs)
    assert len({tuple(names) for names, _ in outcomes.values()}) > 5


def test_a_removed_tree_may_come_back_in_part() -> None:
    seen = set()
    for seed in range(40):
        disk = FakeDisk()
        for name in ("a", "b"):
            disk.append(f"tree/{name}", [b"x"])
            disk.sync([f"tree/{name}"])
        disk.remove("tree")
        disk.crash(random.Random(seed))
        seen.add(tuple(disk.list("tree")))
    assert ("a",) in seen
    assert () in seen


def test_a_renamed_tree_stays_renamed() -> None:
    disk = FakeDisk()
    disk.append("tree.tmp/a", [b"x"])
    disk.sync(["tree.tmp/a"])
    disk.rename("tree.tmp", "tree")
    disk.crash()
    assert disk.list("") == ["tree"]
    assert disk.list("tree") == ["a"]


def test_a_full_disk_refuses_and_heals() -> None:
    disk = FakeDisk(capacity_bytes=10)
    disk.append("log", [b"01234567"])
    with pytest.raises(OSError, match="No space"):
        disk.append("log", [b"0123"])
    assert disk.size("log") == 8
    disk.remove("log")
    disk.append("log", [b"0123456789"])


def test_a_directory_of_another_process_gets_a_durable_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RocksDB makes that of a vnode's first checkpoint, below one that we know as durable."""
    disk = LocalDisk(str(tmp_path))
    disk.append("ckpt/1/a", [b"x"])
    disk.sync(["ckpt/1/a"])
    (tmp_path / "ckpt/2/c.tmp").mkdir(parents=True)
    (tmp_path / "ckpt/2/c.tmp/b").write_bytes(b"y")
    synced: list[str] = []
    fsync = os.fsync

    def noted(descriptor: int) -> None:
        fsync(descriptor)
        synced.append(os.path.relpath(os.readlink(f"/proc/self/fd/{descriptor}"), tmp_path))

    monkeypatch.setattr(os, "fsync", noted)
    disk.sync(["ckpt/2/c.tmp/b"])
    assert synced == ["ckpt/2/c.tmp/b", "ckpt/2/c.tmp", "ckpt/2", "ckpt"]
    synced.clear()
    disk.sync(["ckpt/2/c.tmp/b"])
    assert synced == ["ckpt/2/c.tmp/b"]
