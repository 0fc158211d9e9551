"""Processes: started on their own, known beyond doubt, ended whatever they do about it."""

import json
import os
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rhinoctl import errors
from rhinoctl.remote.local import (
    Processes,
    ProcessName,
    check_free,
    instance_processes,
    last_line,
    make_run_directory,
    remove_run_directory,
    session_processes,
)
from rhinoctl.remote.proc import born

SLEEPER = """
import signal, sys, time
mode = open(sys.argv[1]).read()
if mode == "stubborn":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("ready", flush=True)
time.sleep(60 if mode != "brief" else 0)
"""


@pytest.fixture
def processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Processes]:
    (tmp_path / "sleeper.py").write_text(SLEEPER)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return Processes()


def started(processes: Processes, tmp_path: Path, mode: str) -> ProcessName:
    settings = tmp_path / "settings"
    settings.write_text(mode)
    log = tmp_path / "logs" / "sleeper.log"
    process = processes.start_module("sleeper", str(settings), log=log)
    while processes.alive(process) and last_line(log) != "ready":
        pass
    return process


@pytest.mark.parametrize("mode", ["polite", "stubborn"])
def test_an_end_is_an_end(processes: Processes, tmp_path: Path, mode: str) -> None:
    process = started(processes, tmp_path, mode)
    assert processes.alive(process)
    assert os.getsid(process.pid) == process.pid != os.getsid(0)
    assert [p.pid for p in session_processes(process.pid)] == [process.pid]
    assert processes.end([process], patience_s=0.2) == [process]
    assert not processes.alive(process)
    assert session_processes(process.pid) == []
    assert processes.end([process], patience_s=0.2) == []


def test_the_end_of_a_child_is_noticed(processes: Processes, tmp_path: Path) -> None:
    process = started(processes, tmp_path, "brief")
    while processes.alive(process):
        pass
    assert born(process.pid) is None


HEADLESS = """
import ctypes, sys, threading
def rest():
    print("ready", flush=True)
    sys.stdin.read()
    print("ending", flush=True)
threading.Thread(target=rest).start()
ctypes.CDLL(None).syscall({"x86_64": 60, "aarch64": 93}[sys.argv[1]], 0)
"""


def test_a_process_runs_until_its_last_thread_has_ended() -> None:
    """A killed agent whose main thread was a zombie already still held its socket."""
    argv = [sys.executable, "-c", HEADLESS, os.uname().machine]
    process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None
    assert process.stdout is not None
    with process:
        assert process.stdout.readline() == "ready\n"
        while Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
            pass
        now = born(process.pid)
        assert now is not None
        assert Processes().alive(ProcessName(process.pid, now))
        process.stdin.close()
        assert process.stdout.readline() == "ending\n"
        while born(process.pid) is not None:
            pass


def test_a_pid_that_was_used_again_is_left_alone() -> None:
    other = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        now = born(other.pid)
        assert now is not None
        stale = ProcessName(other.pid, now - 1)
        assert not Processes().alive(stale)
        assert Processes().end([stale, ProcessName(0, 0)], patience_s=0.1) == []
        assert other.poll() is None
        assert Processes().alive(ProcessName(other.pid, now))
    finally:
        other.kill()
        other.communicate()


def test_instances_are_found_from_what_the_agent_keeps(tmp_path: Path) -> None:
    directory = tmp_path / "jobs" / "clicks-1" / "instances"
    directory.mkdir(parents=True)
    birth = {"incarnation": 2, "pid": 17, "born": 4, "listen": "grpc+unix:///x"}
    (directory / "i0.json").write_text(json.dumps(birth))
    (directory / "i1.json").write_text(json.dumps({**birth, "pid": 0}))
    (directory / "i2.json").write_text("{")
    (directory / "i0.settings.json").write_text(json.dumps({"cluster": "c"}))
    assert instance_processes(tmp_path) == [ProcessName(17, 4)]


def test_the_directory_of_sockets_is_for_this_user_only(tmp_path: Path) -> None:
    path = tmp_path / "run"
    make_run_directory(str(path))
    make_run_directory(str(path))
    assert stat.S_IMODE(path.stat().st_mode) == 0o700
    path.chmod(0o755)
    with pytest.raises(errors.UnwritableDirectory):
        make_run_directory(str(path))
    remove_run_directory(str(path))
    remove_run_directory(str(path))
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    path.symlink_to(elsewhere)
    with pytest.raises(errors.UnwritableDirectory):
        make_run_directory(str(path))


def test_a_port_in_use() -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        bound.listen()
        address = f"http://127.0.0.1:{bound.getsockname()[1]}"
        with pytest.raises(errors.PortInUse):
            check_free(address)
    check_free(address)


def test_a_socket_in_use_and_one_that_a_dead_process_left(tmp_path: Path) -> None:
    path = tmp_path / "c.sock"
    address = f"grpc+unix://{path}"
    check_free(address)
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(path))
        bound.listen()
        with pytest.raises(errors.PortInUse):
            check_free(address)
    assert path.exists()
    check_free(address)
    assert not path.exists()
