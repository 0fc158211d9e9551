"""A cluster of real processes on this machine: up, a death, up again, down to the last process."""

import json
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rhinoctl.control.client import ControlClient, locate_controller
from rhinoctl.errors import Exit, StoreRefused
from rhinoctl.ids import JobName
from rhinoctl.protocol import views
from rhinoctl.remote.proc import born
from tests.fakes.world_spark import operator_spec

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

    end(first["w2"])
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


@pytest.mark.slow
def test_the_controller_loses_its_store(directory: str, tmp_path: Path) -> None:
    """It is damaged, which is told, then gone, and made anew from the workers; then a backup."""
    where = ("--cluster", directory)
    code, view = rhinoctl("local", "up", "--workers", "2", *where)
    assert code == Exit.DONE
    job = views.RegisterJob(
        name=JobName("clicks"), vnodes=4, instances=2, replication=1, operator=operator_spec()
    )
    located = locate_controller(directory)
    with ControlClient(located.address, located.token_file) as client:
        uid = client.register(job).uid
    backup = str(tmp_path / "backup")
    code, _ = rhinoctl("controller", "backup", backup, *where)
    assert (code, stat.S_IMODE(os.stat(backup).st_mode)) == (Exit.DONE, 0o600)
    code, moved = rhinoctl("handover", "clicks", "--vnodes", "0", "--to", "i1", *where)
    assert (code, moved["phase"]) == (Exit.DONE, "complete")

    end(pids(view)["controller"])
    store = Path(directory) / "controller.db"
    for ending in ("-wal", "-shm"):
        Path(f"{store}{ending}").unlink(missing_ok=True)
    store.write_bytes(b"no database " * 1000)
    code, error = rhinoctl("local", "up", *where)
    assert (code, error["error"]["code"]) == (Exit.NEEDS_REPAIR, "corrupt-file")
    assert "controller.db" in error["error"]["message"]
    code, view = rhinoctl("local", "status", *where)
    assert set(pids(view)) == {"w1", "w2"}, "nothing else was ended"

    store.unlink()
    code, view = rhinoctl("local", "up", *where)
    assert (code, view["started"]) == (Exit.DONE, ["controller"])
    code, status = rhinoctl("status", *where)
    assert code == Exit.DEGRADED
    assert status["refused_by"] == ["w1", "w2"]
    with (
        ControlClient(located.address, located.token_file) as client,
        pytest.raises(StoreRefused),
    ):
        client.register(job)
    code, plan = rhinoctl("controller", "recover", "--dry-run", *where)
    assert (code, [found["uid"] for found in plan["jobs"]]) == (Exit.HAS_CHANGES, [uid])
    code, done = rhinoctl("controller", "recover", *where)
    assert (code, done["jobs"]) == (Exit.DONE, plan["jobs"])
    code, moved = rhinoctl("handover", "clicks", "--vnodes", "0", "--to", "i0", *where)
    assert (code, moved["id"], moved["phase"]) == (Exit.DONE, "op-2", "complete")

    end(pids(view)["controller"])
    code, restored = rhinoctl("controller", "restore", backup, *where)
    assert (code, restored["reign"]) == (Exit.DONE, 1)
    code, _ = rhinoctl("local", "up", *where)
    assert code == Exit.DONE
    code, status = rhinoctl("status", *where)
    assert code == Exit.DEGRADED
    assert status["refused_by"] == ["w1", "w2"]
    code, done = rhinoctl("controller", "recover", *where)
    assert (code, done["reign"], done["operation"]) == (Exit.DONE, 3, 2)
    code, _ = rhinoctl("handover", "clicks", "--vnodes", "0", "--to", "i1", *where)
    assert code == Exit.DONE


def end(pid: int) -> None:
    """kill -9, and wait until it is gone."""
    os.kill(pid, signal.SIGKILL)
    while born(pid) is not None:
        time.sleep(0.01)
