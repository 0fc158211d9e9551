"""Slices of the worker log that a disk has lost: let go of, and replaced by a piece."""

import errno
import os

import pytest

from rhinoctl.ids import Vnode
from rhinoctl.state.disk import StampingDisk
from tests.fakes.disk import FakeDisk
from tests.unit.state.test_log import at, contents, disk, filled, loaded, path_of

__all__ = ["disk"]


def test_a_rotten_slice_is_let_go_of_once_it_was_read_and_a_piece_takes_its_place(
    disk: StampingDisk,
) -> None:
    """Invariant 9. What is not rotten stays. After a restart both are found again."""
    log, ids = filled(disk, 2)
    path, wanted = path_of(0, ids[1].attempt), frozenset({Vnode(0), Vnode(1), Vnode(3)})
    disk.write_atomic(path, bytes(disk.read(path)).replace(b"one of 1", b"one of 2"))
    assert log.has(at(0).time, Vnode(1))
    found = log.reread(at(0).time, wanted)
    assert list(found) == [1]
    assert path in found[Vnode(1)]
    assert [vnode for vnode in sorted(wanted) if log.has(at(0).time, vnode)] == [0, 3]
    assert log.reread(at(0).time, wanted) == {}
    decided = log.record_for(at(0).time, frozenset({Vnode(1)}))
    puts = [(w.channel, w.task_attempt, w.slices) for w in decided.winners if w.slices]
    log.add_piece(decided, puts, [b"one of 0", b"one of 1"])
    for each in (log, loaded(disk)):
        each.reread(at(0).time, wanted)
        assert each.has(at(0).time, Vnode(1))
        assert contents(each, 0, {1}) == [(0, 1, b"one of 0"), (1, 1, b"one of 1")]


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOENT, errno.EMFILE])
def test_what_a_disk_cannot_read_is_rotten_unless_it_is_the_process_that_cannot(
    number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, _ = filled(FakeDisk(), 1)

    def fails(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(FakeDisk, "read", fails)
    found = log.reread(at(0).time, frozenset({Vnode(1)}))
    assert list(found) == ([] if number == errno.EMFILE else [1])
