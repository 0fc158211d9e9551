"""Starting, finding and ending instance processes: the one thing an agent does beyond its ports.

Every start takes a higher incarnation, which is durable before the process is (design, section 8).
A process is known by pid, start time and incarnation, so that a reused pid is not adopted.
"""

import os
import select
import signal
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from rhinoctl.remote.proc import born, interpreter, stat_fields


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessName:
    """What identifies a started process beyond doubt; `born` is its start time in clock ticks."""

    pid: int
    born: int


class Launcher(Protocol):
    """Processes. The simulator has its own."""

    def start(self, settings_path: str, log_path: str) -> ProcessName:
        """Start an instance with a settings file; its output goes to `log_path`."""
        ...

    def alive(self, process: ProcessName) -> bool:
        """Whether exactly this process runs."""
        ...

    def stopped(self, process: ProcessName) -> bool:
        """Whether a process that is alive stands still by a signal (SIGSTOP), now."""
        ...

    def kill(self, process: ProcessName) -> None:
        """Kill and reap it; returns once it is gone."""
        ...


class ProcessLauncher:
    """Real processes, each leading its own session: an agent killed alone takes none along."""

    def __init__(
        self, argv: Sequence[str] = (*interpreter(), "-m", "rhino_agent.instance")
    ) -> None:
        self._argv = tuple(argv)
        self._children: dict[int, subprocess.Popen[bytes]] = {}

    def start(self, settings_path: str, log_path: str) -> ProcessName:
        Path(log_path).parent.mkdir(parents=True, exist_ok=True)
        with open(log_path, "ab") as log:
            child = subprocess.Popen(
                [*self._argv, settings_path],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._children[child.pid] = child
        return ProcessName(pid=child.pid, born=born(child.pid) or 0)

    def alive(self, process: ProcessName) -> bool:
        child = self._children.get(process.pid)
        if child is not None:
            return child.poll() is None
        return process.pid > 0 and born(process.pid) == process.born

    def stopped(self, process: ProcessName) -> bool:
        return stat_fields(process.pid)[:1] == ["T"]

    def kill(self, process: ProcessName) -> None:
        if not self.alive(process):
            self._children.pop(process.pid, None)
            return
        os.kill(process.pid, signal.SIGKILL)
        child = self._children.pop(process.pid, None)
        if child is not None:
            child.wait()
            return
        descriptor = _pidfd(process.pid)
        if descriptor is not None:
            with os.fdopen(descriptor):
                _wait_readable(descriptor)


def _pidfd(pid: int) -> int | None:
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        return None


def _wait_readable(descriptor: int) -> None:
    select.select([descriptor], [], [], 5.0)
