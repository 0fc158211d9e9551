"""A cluster of real processes on this machine: up, a death, up again, down to the last process."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rhinoctl.errors import Exit
from rhinoctl.remote.proc import born

UP_S = 90.0


def rhinoctl(*argv: str) -> tuple[int, Any]:
    """Exit code and JSON answer of a command."""
    run = subprocess.run(
        [sys.executable, "-m", "rhinoctl.cli", *argv, "--json"],
        capture_output=True,
        text=True,
        timeout=UP_S,
    )
    assert run.stdout, run.stderr
    return run.returncode, json.loads(run.stdout)


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[str]:
    """A cluster's directory; whatever runs over it at the end of the test is ended."""
    path = str(tmp_path / "cluster")
    yield path
    rhinoctl("local", "down", "--cluster", path)


def pids(view: Any) -> dict[str, int]:
    return {p["name"]: p["pid"] for p in view["processes"] if p["alive"]}


def test_up_a_death_up_again_and_down(directory: str) -> None:
    code, view = rhinoctl("local", "up", "--workers", "2", "--cluster", directory)
    assert (code, view["health"]) == (Exit.DONE, "ok")
    assert view["started"] == ["controller", "w1", "w2"]
    first = pids(view)
    code, status = rhinoctl("status", "--cluster", directory)
    assert (code, [w["id"] for w in status["workers"]]) == (Exit.DONE, ["w1", "w2"])

    code, error = rhinoctl("local", "up", "--cluster", directory)
    assert (code, error["error"]["code"]) == (Exit.REFUSED, "already-running")

    os.kill(first["w2"], signal.SIGKILL)
    while born(first["w2"]) is not None:
        time.sleep(0.01)
    code, view = rhinoctl("local", "status", "--cluster", directory)
    assert (code, view["health"]) == (Exit.DEGRADED, "degraded")
    code, view = rhinoctl("local", "up", "--cluster", directory)
    assert (code, view["started"]) == (Exit.DONE, ["w2"])
    again = pids(view)
    assert {name for name in first if first[name] != again[name]} == {"w2"}

    socket_directory = Path(view["controller"].removeprefix("unix://")).parent
    assert socket_directory.exists()
    code, view = rhinoctl("local", "down", "--cluster", directory)
    assert (code, view["health"]) == (Exit.DONE, "down")
    assert sorted(view["ended"]) == ["controller", "w1", "w2"]
    assert [pid for pid in again.values() if born(pid) is not None] == []
    assert not socket_directory.exists()
    code, view = rhinoctl("local", "down", "--cluster", directory)
    assert (code, view["ended"]) == (Exit.DONE, [])
    code, error = rhinoctl("status", "--cluster", directory)
    assert (code, error["error"]["code"]) == (Exit.REFUSED, "not-running")


def test_an_up_that_fails_leaves_nothing_running(directory: str, tmp_path: Path) -> None:
    """The second worker's disk is in the way of its directory."""
    (tmp_path / "cluster" / "workers" / "w2").mkdir(parents=True)
    (tmp_path / "cluster" / "workers" / "w2" / "agent.lock").mkdir()
    code, error = rhinoctl("local", "up", "--workers", "2", "--cluster", directory)
    assert code != Exit.DONE
    assert error["error"]["code"] == "not-running"
    code, view = rhinoctl("local", "status", "--cluster", directory)
    assert (code, view["health"], pids(view)) == (Exit.REFUSED, "down", {})
