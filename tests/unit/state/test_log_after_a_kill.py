"""The worker log of a process that was killed, and then the power goes (invariant 4)."""

import pytest

from rhinoctl.ids import Attempt
from tests.fakes.disk import FakeDisk
from tests.unit.state.test_log import filled, loaded, seal_batch


class Killed(BaseException):
    """The process ends at its next sync."""


def test_what_a_killed_process_left_in_memory_is_durable_once_it_is_loaded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The kernel has what the process appended; a loss of power after the restart does not get it
    back. Who says after the restart that it has sealed must be right then, too."""

    def killed(_: object) -> None:
        raise Killed

    disk = FakeDisk()
    log, ids = filled(disk, 1)
    with monkeypatch.context() as patched:
        patched.setattr(disk, "sync", killed)
        with pytest.raises(Killed):
            seal_batch(log, 1, ids[-1], Attempt(1, 2))
    told = [record.id for record in loaded(disk).records()]
    assert len(told) == 3
    disk.crash(None)
    assert [record.id for record in loaded(disk).records()] == told
