"""A disk made of several: where vnodes go, and what goes over all of the disks."""

import errno
import logging

import pytest

from rhinoctl.ids import DiskId
from rhinoctl.protocol.disks import DiskState
from rhinoctl.state.spread import Place, SpreadDisk
from tests.fakes.disk import FakeDisk
from tests.fakes.spread import spread


def disks(*rooms: int | None) -> tuple[SpreadDisk, list[FakeDisk]]:
    """Disks of so many bytes each, None without a bound."""
    each = [
        FakeDisk(capacity_bytes=room, mount=f"/d{n}/" if n > 1 else "", number=n)
        for n, room in enumerate(rooms, start=1)
    ]
    return spread(each), each


def fill(whole: SpreadDisk, vnodes: range, job: str = "j", *, size: int = 1) -> None:
    for vnode in vnodes:
        whole.append(f"jobs/{job}/ckpt/{vnode}/a/x", [bytes(size)])


def counts(whole: SpreadDisk) -> list[int]:
    return [len(whole.places(member)) for member in whole.members]


def test_equal_disks_get_equally_many_vnodes() -> None:
    whole, _ = disks(None, None, None)
    fill(whole, range(12))
    assert counts(whole) == [4, 4, 4]


def test_a_disk_with_more_room_gets_more() -> None:
    whole, _ = disks(1000, 3000)
    fill(whole, range(16))
    assert counts(whole) == [4, 12]


def test_a_full_disk_gets_none() -> None:
    whole, (first, _) = disks(10, None)
    first.append("ballast", [bytes(10)])
    fill(whole, range(4))
    assert counts(whole) == [0, 4]


@pytest.mark.parametrize("state", [DiskState.RETIRING, DiskState.EMPTY, DiskState.LOST])
def test_a_disk_that_is_not_in_use_gets_none(state: DiskState) -> None:
    whole, _ = disks(None, None)
    whole.members[1].state = state
    fill(whole, range(4))
    assert counts(whole) == [4, 0]


def test_the_databases_of_a_vnode_are_where_its_checkpoints_are() -> None:
    whole, (_, second) = disks(None, None)
    fill(whole, range(2))
    assert second.list("jobs/j/ckpt") == ["1"]
    assert whole.path_of("jobs/j/live/i0/1/0") == "jobs/j/live/i0/1/0"
    assert whole.path_of("jobs/j/live/i0/1/1") == "/d2/jobs/j/live/i0/1/1"
    whole.link("jobs/j/ckpt/1/a/x", "jobs/j/ckpt/1/b/x")
    assert second.copies == whole.copies == 0


def test_a_vnode_whose_database_was_opened_first_stays_where_that_is() -> None:
    whole, each = disks(None, None)
    opened = [whole.path_of(f"jobs/j/live/i0/1/{vnode}") for vnode in range(4)]
    for vnode, path in enumerate(opened):
        each[path.startswith("/d2/")].append(f"jobs/j/live/i0/1/{vnode}/CURRENT", [b"x"])
    again = spread(each)
    assert [again.path_of(f"jobs/j/live/i0/1/{vnode}") for vnode in range(4)] == opened
    fill(again, range(4))
    assert counts(again) == [2, 2]


def test_all_else_is_on_the_first() -> None:
    whole, (_, second) = disks(None, None)
    for path in ("disks", "jobs/j/spec.json", "jobs/j/log/0", "jobs/j/instances/i0.json"):
        whole.write_atomic(path, b"x")
    assert list(second.files()) == []


def test_a_job_is_listed_renamed_and_removed_on_all_disks() -> None:
    whole, each = disks(None, None)
    fill(whole, range(4))
    fill(whole, range(2), "other")
    whole.write_atomic("jobs/j/spec.json", b"{}")
    assert whole.list("jobs") == ["j", "other"]
    assert whole.list("jobs/j") == ["ckpt", "spec.json"]
    assert whole.list("jobs/j/ckpt") == ["0", "1", "2", "3"]
    assert whole.list("jobs/j/ckpt/3") == ["a"]
    whole.rename("jobs/j", "jobs/j.gone")
    assert whole.list("jobs") == ["j.gone", "other"]
    whole.remove("jobs/j.gone")
    assert [disk.list("jobs") for disk in each] == [["other"], ["other"]]
    assert counts(whole) == [1, 1]
    with pytest.raises(FileNotFoundError):
        whole.rename("jobs/j", "jobs/k")


def test_a_vnode_that_has_left_gets_its_place_anew() -> None:
    whole, _ = disks(None, None)
    fill(whole, range(4))
    whole.remove("jobs/j/ckpt/0")
    whole.remove("jobs/j/ckpt/2")
    assert counts(whole) == [0, 2]
    fill(whole, range(2, 3))
    assert counts(whole) == [1, 2]


def test_a_link_between_two_disks_is_a_copy_announced_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    whole, _ = disks(None, None)
    fill(whole, range(2), size=(1 << 20) + 7)
    with caplog.at_level(logging.WARNING):
        whole.link("jobs/j/ckpt/0/a/x", "jobs/j/ckpt/1/b/x")
        whole.link("jobs/j/ckpt/0/a/x", "jobs/j/ckpt/1/b/y")
    assert whole.size("jobs/j/ckpt/1/b/x") == (1 << 20) + 7
    assert whole.stamp("jobs/j/ckpt/1/b/x") != whole.stamp("jobs/j/ckpt/0/a/x")
    assert whole.list("jobs/j/ckpt/1/b") == ["x", "y"]
    assert len(caplog.records) == 1
    with pytest.raises(FileExistsError):
        whole.link("jobs/j/ckpt/0/a/x", "jobs/j/ckpt/1/b/x")


def test_a_copy_for_which_there_is_no_room_leaves_nothing() -> None:
    whole, (_, second) = disks(None, None)
    fill(whole, range(2))
    second.capacity_bytes = 5000
    whole.append("jobs/j/ckpt/0/a/big", [bytes(6000)])
    with pytest.raises(OSError, match="No space"):
        whole.link("jobs/j/ckpt/0/a/big", "jobs/j/ckpt/1/b/big")
    assert list(second.files()) == ["jobs/j/ckpt/1/a/x"]


def test_nothing_is_renamed_from_one_disk_to_another() -> None:
    whole, _ = disks(None, None)
    fill(whole, range(2))
    with pytest.raises(OSError, match="ross-device") as caught:
        whole.rename("jobs/j/ckpt/0/a", "jobs/j/ckpt/1/b")
    assert caught.value.errno == errno.EXDEV


def test_stamps_of_two_disks_differ_though_inodes_do_not() -> None:
    whole, _ = disks(None, None)
    fill(whole, range(2))
    one, two = (whole.stamp(f"jobs/j/ckpt/{vnode}/a/x") for vnode in (0, 1))
    assert one is not None
    assert two is not None
    assert one.inode % (1 << 64) == two.inode % (1 << 64)
    assert one != two


def test_room_is_what_may_be_used_and_one_file_system_counts_once() -> None:
    whole, each = disks(1000, 3000)
    assert whole.free_bytes() == 4000
    whole.members[1].state = DiskState.RETIRING
    assert whole.free_bytes() == 1000
    again = spread([each[0], each[1], each[1]])
    assert again.free_bytes() == 4000


def test_what_was_on_a_lost_disk_is_nowhere() -> None:
    whole, (_, second) = disks(None, None)
    fill(whole, range(4))
    second.gone = True
    assert whole.lose(whole.members[1]) == [Place("j", "1"), Place("j", "3")]
    assert whole.list("jobs/j/ckpt") == ["0", "2"]
    assert whole.size("jobs/j/ckpt/1/a/x") is None
    whole.members[1].state = DiskState.LOST
    fill(whole, range(4))
    assert counts(whole) == [4, 0]


def test_a_disk_in_trouble_does_not_hide_the_others_room() -> None:
    whole, (_, second) = disks(1000, 3000)
    second.gone = True
    assert whole.free_bytes() == 1000
    assert whole.roomiest().name == DiskId("d1")


def test_one_disk_that_cannot_be_written_to_is_told_of_all() -> None:
    first, second = FakeDisk(), FakeDisk(mount="/d2/", number=2)
    whole = spread([first, second])
    assert whole.refusal() is None
    second.read_only = True
    why = whole.refusal()
    assert why is not None
    assert why.errno == errno.EROFS
    whole.lose(whole.members[1])
    assert whole.refusal() is None, "nobody writes to one that is lost"
