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
from rhinoctl.errors import Exit, StoreGone, StoreRefused
from rhinoctl.ids import JobName
from rhinoctl.ops.endings import problem_in
from rhinoctl.protocol import views
from rhinoctl.remote.proc import born
from tests.fakes.world_spark import operator_spec

UP_S = 90.0
CLICKS = views.RegisterJob(
    name=JobName("clicks"), vnodes=4, instances=2, replication=1, operator=operator_spec()
)


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


def registered(directory: str) -> str:
    """A job on all workers of a running cluster; its uid."""
    located = locate_controller(directory)
    with ControlClient(located.address, located.token_file) as client:
        return client.register(CLICKS).uid


@pytest.mark.slow
def test_a_disk_without_hard_links(directory: str) -> None:
    """T9: live databases and checkpoints on two mounts. Refused if links are required; else taken,
    and said once."""
    where = ("--cluster", directory)
    code, _ = rhinoctl("local", "up", "--workers", "2", *where)
    assert code == Exit.DONE
    job = Path(directory) / "workers/w1/jobs" / registered(directory)
    rhinoctl("local", "down", *where)
    for name in ("live", "ckpt"):
        (job / name).mkdir(exist_ok=True)
    mount = ["mount", "-t", "tmpfs", "none", str(job / "ckpt")]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("no mounts here")
    try:
        code, error = rhinoctl("local", "up", "--require-hardlink", *where)
        assert (code, error["error"]["code"]) == (Exit.REFUSED, "links-refused")
        assert "w1" in error["error"]["message"]
        code, view = rhinoctl("local", "status", *where)
        assert (code, pids(view)) == (Exit.REFUSED, {})
        code, _ = rhinoctl("local", "up", "--no-require-hardlink", *where)
        assert code == Exit.DONE
        _, status = rhinoctl("status", *where)
        assert {w["id"]: w["links_refused"] for w in status["workers"]} == {"w1": "EXDEV", "w2": ""}
        log = (Path(directory) / "logs/w1.log").read_text()
        assert log.count("disk.links_become_copies") == 1
    finally:
        rhinoctl("local", "down", *where)
        subprocess.run(["umount", str(job / "ckpt")], check=True)
    code, _ = rhinoctl("local", "up", "--require-hardlink", *where)
    assert code == Exit.DONE


@pytest.mark.slow
def test_a_disk_that_turns_read_only(directory: str, tmp_path: Path) -> None:
    """It counts as lost after some seconds, is given up, and the first one is named."""
    where, extra = ("--cluster", directory), tmp_path / "extra"
    extra.mkdir()
    mount = ["mount", "-t", "tmpfs", "none", str(extra)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("no mounts here")
    try:
        assert rhinoctl("local", "up", "--workers", "2", *where)[0] == Exit.DONE
        assert rhinoctl("disk", "add", "w1", str(extra), *where)[0] == Exit.DONE
        subprocess.run(["mount", "-o", "remount,ro", str(extra)], check=True)
        deadline = time.monotonic() + UP_S
        while (found := rhinoctl("disk", "list", *where))[0] == Exit.DONE:
            assert time.monotonic() < deadline, "the disk is not found"
        assert found[0] == Exit.DEGRADED
        assert "cannot be written to: Read-only" in str(found[1])
        _, status = rhinoctl("status", *where)
        assert [f["what"] for f in status["findings"] if "d2" in f["what"]]
        assert rhinoctl("disk", "retire", "w1:d2", "--lost", *where)[0] == Exit.DONE
        deadline = time.monotonic() + UP_S  # the list is as old as the last heartbeat
        while (found := rhinoctl("disk", "list", *where))[0] != Exit.DONE:
            assert time.monotonic() < deadline, found
    finally:
        rhinoctl("local", "down", *where)
        subprocess.run(["umount", "--lazy", str(extra)], check=True)


@pytest.mark.slow
def test_the_controller_loses_its_store(directory: str, tmp_path: Path) -> None:
    """It is damaged, which is told, then gone, and made anew from the workers; then a backup."""
    where = ("--cluster", directory)
    code, view = rhinoctl("local", "up", "--workers", "2", *where)
    assert code == Exit.DONE
    located = locate_controller(directory)
    uid = registered(directory)
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
    assert (code, view["started"]) == (Exit.DEGRADED, ["controller"])
    assert view["health"] == "degraded"
    code, status = rhinoctl("status", *where)
    assert code == Exit.DEGRADED
    assert status["refused_by"] == ["w1", "w2"]
    with (
        ControlClient(located.address, located.token_file) as client,
        pytest.raises(StoreRefused),
    ):
        client.register(CLICKS)
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
    assert code == Exit.DEGRADED
    code, status = rhinoctl("status", *where)
    assert code == Exit.DEGRADED
    assert status["refused_by"] == ["w1", "w2"]
    code, done = rhinoctl("controller", "recover", *where)
    assert (code, done["reign"], done["operation"]) == (Exit.DONE, 3, 2)
    code, _ = rhinoctl("handover", "clicks", "--vnodes", "0", "--to", "i1", *where)
    assert code == Exit.DONE


def test_the_store_is_moved_from_under_a_running_controller(directory: str, tmp_path: Path) -> None:
    """It ends, and says why; put back, the store is the one that was."""
    where = ("--cluster", directory)
    code, view = rhinoctl("local", "up", "--workers", "1", *where)
    assert code == Exit.DONE
    for path in Path(directory).glob("controller.db*"):
        path.rename(tmp_path / path.name)
    gone_by(pids(view)["controller"], 10.0)
    problem = problem_in((Path(directory) / "logs/controller.log").read_text().splitlines()[-1])
    assert problem is not None
    assert problem.code == StoreGone.code
    code, view = rhinoctl("local", "status", *where)
    assert (code, set(pids(view))) == (Exit.DEGRADED, {"w1"})

    code, _ = rhinoctl("local", "up", *where)
    assert code == Exit.DEGRADED, "an empty one is refused by the worker"
    rhinoctl("local", "down", *where)
    for path in tmp_path.glob("controller.db*"):
        path.rename(Path(directory) / path.name)
    code, _ = rhinoctl("local", "up", *where)
    assert code == Exit.DONE


def gone_by(pid: int, within_s: float) -> None:
    deadline = time.monotonic() + within_s
    while born(pid) is not None:
        assert time.monotonic() < deadline, "the process goes on"
        time.sleep(0.01)


def end(pid: int) -> None:
    """kill -9, and wait until it is gone."""
    os.kill(pid, signal.SIGKILL)
    while born(pid) is not None:
        time.sleep(0.01)
