"""A child process that talks in JSON lines: events on its stdout, and its stdin as a lifeline.

While we live, the child's stdin stays open; it ends by itself when that closes, which the kernel
does for us however we end. Whatever it started is in its session, and is ended with it.
"""

import json
import os
import queue
import subprocess
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from rhinoctl.remote.local import Processes, module_argv, session_processes

LINES_MAX = 10_000
"""Events that wait to be read; a child that is faster is held up by its pipe."""

CLOSE_S = 5.0
"""A child whose stdin was closed stops a Spark session within this, or is ended."""


class Child:
    """A running module and its events. Use it in a ``with``: nothing of it is left afterwards.

    `environ` is added to our environment.
    """

    def __init__(
        self, module: str, settings: str, *, log: Path, environ: Mapping[str, str] | None = None
    ) -> None:
        log.parent.mkdir(parents=True, exist_ok=True)
        with open(log, "ab") as errors:
            self._process = subprocess.Popen(
                module_argv(module, settings),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                cwd=log.parent,
                start_new_session=True,
                env={**os.environ, **(environ or {})},
            )
        self._events: queue.Queue[dict[str, Any] | None] = queue.Queue(LINES_MAX)
        self._reader = threading.Thread(target=self._read, name="child-events", daemon=True)
        self._reader.start()

    def __enter__(self) -> "Child":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def pid(self) -> int:
        """Also the name of its session."""
        return self._process.pid

    def event(self, timeout_s: float) -> dict[str, Any] | None:
        """The next event; None if there is none in time. Raises EOFError after the last one."""
        try:
            found = self._events.get(timeout=timeout_s)
        except queue.Empty:
            return None
        if found is None:
            raise EOFError("the child has closed its output")
        return found

    def returncode(self, timeout_s: float) -> int | None:
        """How it ended; None if it has not within the time."""
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None

    def close(self) -> None:
        """Let go of its stdin, wait, and end what is left of its session."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        if self.returncode(CLOSE_S) is None:
            self._process.terminate()
            if self.returncode(CLOSE_S) is None:
                self._process.kill()
        self._process.wait()
        Processes().end(session_processes(self._process.pid), patience_s=2.0)

    def _read(self) -> None:
        """Lines that are JSON objects are events; whatever else a library prints is no event."""
        assert self._process.stdout is not None
        with self._process.stdout as output:
            for line in output:
                with suppress(ValueError):
                    found = json.loads(line)
                    if isinstance(found, dict):
                        self._events.put(found)
        self._events.put(None)
