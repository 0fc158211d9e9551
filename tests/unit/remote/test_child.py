"""A child that talks in JSON lines, and of which nothing is left."""

import subprocess
import sys
from pathlib import Path

import pytest

from rhinoctl.remote.child import Child
from rhinoctl.remote.local import session_processes

TALKER = """
import json, subprocess, sys
print(json.dumps({"event": "started"}), flush=True)
print("a library's chatter", flush=True)
print("[1]", flush=True)
other = [sys.executable, "-c", "import time; time.sleep(60)"]
if sys.argv[1] == "leaves one behind":
    subprocess.Popen(other, stdout=subprocess.DEVNULL)
print(json.dumps({"event": "result"}), flush=True)
if sys.argv[1] != "ends":
    sys.stdin.read()
print("the lifeline is gone", file=sys.stderr)
"""


@pytest.fixture
def talker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "talker.py").write_text(TALKER)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return tmp_path / "logs" / "talker.log"


def test_events_then_the_end(talker: Path) -> None:
    with Child("talker", "ends", log=talker) as child:
        assert child.event(20.0) == {"event": "started"}
        assert child.event(20.0) == {"event": "result"}
        with pytest.raises(EOFError):
            child.event(20.0)
        assert child.returncode(20.0) == 0


def test_no_event_in_time(talker: Path) -> None:
    with Child("talker", "waits", log=talker) as child:
        child.event(20.0)
        child.event(20.0)
        assert child.event(0.01) is None
        assert child.returncode(0.0) is None
    assert child.returncode(0.0) == 0
    assert talker.read_text() == "the lifeline is gone\n"


def test_nothing_of_its_session_is_left(talker: Path) -> None:
    with Child("talker", "leaves one behind", log=talker) as child:
        child.event(20.0)
        child.event(20.0)
        assert len(session_processes(child.pid)) == 2
    assert session_processes(child.pid) == []


def test_it_ends_when_we_are_killed(talker: Path) -> None:
    """The kernel closes its stdin, however we end."""
    parent = (
        "import os, pathlib; from rhinoctl.remote.child import Child;"
        f"child = Child('talker', 'waits', log=pathlib.Path({str(talker)!r}));"
        "child.event(20.0); child.event(20.0); os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", parent], timeout=60)
    while talker.read_text() != "the lifeline is gone\n":
        pass
