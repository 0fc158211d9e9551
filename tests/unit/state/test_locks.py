"""Locks between processes."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rhinoctl.errors import AlreadyRunning, UnwritableDirectory
from rhinoctl.state import locks

KINDS = locks.NamedLock.__subclasses__()

HOLD = """
import sys, time
from rhinoctl.state.locks import AgentLock
AgentLock(sys.argv[1]).acquire()
print("held", flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("kind", KINDS)
def test_every_lock_says_what_it_protects_and_what_to_do(kind: type[locks.NamedLock]) -> None:
    assert kind.protects
    assert kind.remedy


@pytest.mark.parametrize("kind", KINDS)
def test_a_second_holder_is_refused_and_told_who(
    kind: type[locks.NamedLock], tmp_path: Path
) -> None:
    path = str(tmp_path / "made/on/demand/lock")
    first = kind(path)
    with first:
        assert first.held
        assert first.holder() == os.getpid()
        for second in (first, kind(path)):
            with pytest.raises(AlreadyRunning) as caught:
                second.acquire()
            assert str(os.getpid()) in caught.value.message
            assert kind.protects in caught.value.message
            assert path in caught.value.message
    assert not first.held
    first.release()
    with kind(path):
        pass


def test_a_killed_holder_holds_nothing(tmp_path: Path) -> None:
    path = str(tmp_path / "lock")
    holder = subprocess.Popen([sys.executable, "-c", HOLD, path], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    lock = locks.AgentLock(path)
    with pytest.raises(AlreadyRunning, match=str(holder.pid)):
        lock.acquire()
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    holder.stdout.close()
    assert lock.holder() == holder.pid
    with lock:
        assert lock.holder() == os.getpid()


def test_a_child_does_not_inherit_the_lock(tmp_path: Path) -> None:
    lock = locks.AgentLock(str(tmp_path / "lock"))
    lock.acquire()
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    lock.release()
    with locks.AgentLock(lock.path):
        pass
    child.communicate(b"\n")


def test_an_unwritable_place_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(UnwritableDirectory, match="file"):
        locks.AgentLock(str(tmp_path / "file/lock")).acquire()
    assert locks.AgentLock(str(tmp_path / "none")).holder() is None
