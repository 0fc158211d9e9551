"""Disks that are nearly full: what they cost and what is advised, by what is on them."""

from typing import Any

import pytest

from rhinoctl import limits
from rhinoctl.ids import DiskId, WorkerId
from rhinoctl.protocol.disks import DiskReport, DiskState
from rhinoctl.protocol.messages import Header, WorkerReport
from rhinoctl.protocol.rooms import LowRoom, give_up_lost, low_rooms, make_room

LOW = limits.ROOM_LOW_BYTES - 1
W3 = WorkerId("w3")


def disk(name: str, **changes: Any) -> DiskReport:
    fields: dict[str, Any] = {
        "disk": DiskId(name),
        "path": f"/mnt/{name}",
        "state": DiskState.IN_USE,
        "free_bytes": 1 << 40,
        "vnodes": 2,
        "bytes": 1000,
        "shares": DiskId(name),
    }
    return DiskReport(**{**fields, **changes})


def low(*disks: DiskReport, free_bytes: int = 1 << 40) -> list[LowRoom]:
    header = Header(cluster="c")
    report = WorkerReport(
        header=header, worker=W3, pid=1, wall=0.0, free_bytes=free_bytes, jobs={}, disks=disks
    )
    return list(low_rooms(report))


@pytest.mark.parametrize("told", [True, False])
def test_a_full_disk_is_not_advised_to_be_drained_which_needs_room(told: bool) -> None:
    for free in (0, limits.DISK_FULL_BYTES):
        (only,) = low(disk("d1", free_bytes=free)) if told else low(free_bytes=free)
        assert (only.disk, only.matters) == ("", True)
        assert only.full == (free == 0)
        assert ("`rhinoctl failover w3`" in make_room(only)) == only.full
        assert ("`rhinoctl drain w3`" in make_room(only)) == (not only.full)


def test_an_empty_disk_besides_the_first_costs_nothing_and_may_be_retired() -> None:
    (added,) = low(disk("d1"), disk("d2"), disk("d3", free_bytes=1, vnodes=0))
    assert (added.disk, added.matters, added.full) == ("d3", False, False)
    assert "`rhinoctl disk retire w3:d3`" in make_room(added)
    assert "drain" not in make_room(added)


@pytest.mark.parametrize("free", [0, LOW])
def test_a_disk_with_vnodes_may_be_retired_if_another_one_has_room(free: int) -> None:
    (second,) = low(disk("d1"), disk("d2", free_bytes=free))
    assert second.matters
    assert "`rhinoctl disk retire w3:d2`" in make_room(second)
    for each in low(disk("d1", free_bytes=free), disk("d2", free_bytes=free)):
        assert "retire" not in make_room(each)


def test_the_first_disk_is_never_advised_to_be_retired() -> None:
    (first,) = low(disk("d1", free_bytes=LOW, vnodes=0), disk("d2"))
    assert (first.disk, first.matters) == ("d1", True)
    assert "`rhinoctl drain w3`" in make_room(first)


def test_disks_of_one_file_system_have_one_room() -> None:
    shared = {"shares": DiskId("d2"), "free_bytes": LOW}
    (one,) = low(disk("d1"), disk("d2", vnodes=0, **shared), disk("d3", **shared))
    assert (one.disk, one.vnodes) == ("d3", 2)
    with_first = {"shares": DiskId("d1"), "free_bytes": LOW}
    (one,) = low(disk("d1", vnodes=0, **with_first), disk("d3", **with_first))
    assert (one.disk, one.has_log) == ("d1", True)


def test_what_is_lost_or_leaves_needs_no_room() -> None:
    gone = disk("d2", state=DiskState.LOST, free_bytes=0)
    assert low(disk("d1"), gone, disk("d3", state=DiskState.RETIRING, free_bytes=0)) == []


def test_a_lost_disk_may_be_given_up() -> None:
    assert "`rhinoctl disk retire w3:d2 --lost`" in give_up_lost(W3, DiskId("d2"))
