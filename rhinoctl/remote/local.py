"""Processes on this machine: started on their own, known beyond doubt, ended to the last one.

A process is known by its pid and its start time, so that a pid which was used again is never ended
for one that died long ago. Signals go through a pidfd, which cannot change its process.
"""

import errno
import json
import os
import select
import shutil
import signal
import socket
import stat
import subprocess
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import NamedTuple

from rhinoctl.errors import PortInUse, UnwritableDirectory
from rhinoctl.remote.proc import born, interpreter, runs, stat_fields

KILL_S = 10.0
"""A killed process is gone at once, unless the kernel is busy with its pages."""


class ProcessName(NamedTuple):
    """What identifies a process; `born` is its start time in clock ticks since boot."""

    pid: int
    born: int


def module_argv(module: str, *arguments: str) -> tuple[str, ...]:
    """The command line of a module of this very installation, whatever the directory."""
    return (*interpreter(), "-P", "-m", module, *arguments)


class Processes:
    """Processes that this one starts or ends. Those it started are reaped by it."""

    def __init__(self) -> None:
        self._children: dict[int, subprocess.Popen[bytes]] = {}

    def start_module(self, module: str, settings: str, *, log: Path) -> ProcessName:
        """Start `python -m module settings`, as `start` does."""
        return self.start(module_argv(module, settings), log=log)

    def start(self, argv: Sequence[str], *, log: Path) -> ProcessName:
        """Start a process in a session of its own, so that neither Ctrl-C nor our end reaches it;
        its output is appended to `log`."""
        log.parent.mkdir(parents=True, exist_ok=True)
        with open(log, "ab") as output:
            child = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=log.parent,
                start_new_session=True,
            )
        self._children[child.pid] = child
        return ProcessName(child.pid, born(child.pid) or 0)

    def alive(self, process: ProcessName) -> bool:
        """Whether exactly this process runs."""
        child = self._children.get(process.pid)
        if child is not None and child.poll() is not None:
            return False
        return process.pid > 0 and born(process.pid) == process.born

    def end(
        self,
        processes: Iterable[ProcessName],
        *,
        patience_s: float,
        first: signal.Signals = signal.SIGTERM,
    ) -> list[ProcessName]:
        """Ask them to end with the `first` signal, kill those that did not in time; returns
        those that were running.

        They are gone on return, or had the time of `KILL_S` to go.
        """
        with ExitStack() as opened:
            handles: dict[int, ProcessName] = {}
            for process in processes:
                handle = _pidfd(process)
                if handle is not None:
                    opened.callback(os.close, handle)
                    handles[handle] = process
            running = list(handles.values())
            for number, patience in ((first, patience_s), (signal.SIGKILL, KILL_S)):
                for handle in handles:
                    with suppress(ProcessLookupError):
                        signal.pidfd_send_signal(handle, number)
                for handle in _wait(handles, patience):
                    del handles[handle]
        for process in running:
            child = self._children.pop(process.pid, None)
            if child is not None:
                child.poll()
        return running


def instance_processes(disk: Path) -> list[ProcessName]:
    """The instances that an agent started, from what it keeps of each on its disk."""
    found = []
    for path in sorted(disk.glob("jobs/*/instances/*.json")):
        try:
            birth = json.loads(path.read_bytes())
            found.append(ProcessName(int(birth["pid"]), int(birth["born"])))
        except (OSError, ValueError, KeyError, TypeError):
            continue  # another file, such as settings, or one that is just being removed
    return [process for process in found if process.pid > 0]


def session_processes(leader: int) -> list[ProcessName]:
    """All processes of the session that process `leader` opened, whoever their parent is now."""
    found = []
    for entry in Path("/proc").iterdir():
        fields = stat_fields(int(entry.name)) if entry.name.isdigit() else []
        if runs(fields) and int(fields[3]) == leader:
            found.append(ProcessName(int(entry.name), int(fields[19])))
    return found


def make_run_directory(path: str) -> None:
    """Make the directory of the Unix sockets, for this user alone.

    Raises UnwritableDirectory if it belongs to somebody else or is no directory.
    """
    try:
        os.makedirs(path, mode=0o700, exist_ok=True)
        found = os.lstat(path)
    except OSError as fault:
        raise _not_ours(path, fault.strerror or str(fault)) from fault
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise _not_ours(path, "it is not a directory of this user with mode 0700")


def remove_run_directory(path: str) -> None:
    """Remove the sockets; nothing happens if they are gone."""
    shutil.rmtree(path, ignore_errors=True)


def check_free(address: str) -> None:
    """Raise PortInUse if somebody answers at a Unix socket or holds a port of 127.0.0.1.

    A socket that nobody listens on is a dead process's, and is removed.
    """
    _, _, rest = address.partition("://")
    if address.startswith("http://"):
        host, _, port = rest.partition(":")
        _check_port(host, int(port))
    elif os.path.exists(rest):
        with socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(1.0)
            if probe.connect_ex(rest) in (0, errno.EAGAIN):
                raise _in_use(address)
        os.unlink(rest)


def _check_port(host: str, port: int) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as fault:
            raise _in_use(f"{host}:{port}") from fault


def _in_use(address: str) -> PortInUse:
    return PortInUse(
        f"another process listens on {address}",
        remedy="end it (`rhinoctl local down`, if it is a cluster), or use another --port",
    )


def _not_ours(path: str, reason: str) -> UnwritableDirectory:
    return UnwritableDirectory(
        f"cannot keep sockets in {path}: {reason}", remedy=f"remove {path} and try again"
    )


def _pidfd(process: ProcessName) -> int | None:
    """A handle of exactly this process; None if it does not run."""
    try:
        handle = os.pidfd_open(process.pid) if process.pid > 0 else None
    except ProcessLookupError:
        return None
    if handle is not None and born(process.pid) != process.born:
        os.close(handle)
        return None
    return handle


def _wait(handles: Iterable[int], patience_s: float) -> Iterator[int]:
    """The handles whose process ends within the time."""
    poll = select.poll()
    left = set(handles)
    for handle in left:
        poll.register(handle, select.POLLIN)
    deadline = time.monotonic() + patience_s
    while left and (rest := deadline - time.monotonic()) > 0:
        for handle, _ in poll.poll(rest * 1000):
            poll.unregister(handle)
            left.discard(handle)
            yield handle


def last_line(log: Path) -> str:
    """The last line of a log, for a message about a process that ended; empty without one."""
    try:
        text = log.read_text("utf-8", errors="replace")
    except OSError:
        return ""
    return text.rstrip().rpartition("\n")[2]
