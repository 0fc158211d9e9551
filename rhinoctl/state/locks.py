"""Locks between processes: each is a class that says what it protects.

A lock is an flock on a file that holds the pid of its holder. The kernel releases it when the
holder dies, however it dies; the file stays, because removing it would let a second holder lock a
new file of the same name.
"""

import fcntl
import os
from types import TracebackType
from typing import ClassVar, Self

from rhinoctl.errors import AlreadyRunning
from rhinoctl.state.disk import as_unwritable


class NamedLock:
    """The root of all locks; use a subclass. Held from `acquire` to `release`, or in a ``with``.

    Raises AlreadyRunning, which names what is protected, the file and the holder's pid, and
    UnwritableDirectory. A second lock on the same file in the same process is refused as well.
    """

    protects: ClassVar[str]
    remedy: ClassVar[str]

    def __init__(self, path: str) -> None:
        self.path = os.path.abspath(path)
        self._descriptor: int | None = None

    @property
    def held(self) -> bool:
        return self._descriptor is not None

    def acquire(self) -> None:
        if self._descriptor is not None:
            raise self._refusal(os.getpid())
        descriptor = self._opened()
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            raise self._refusal(self.holder()) from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        self._descriptor = descriptor

    def release(self) -> None:
        """Let go; nothing happens if it is not held."""
        if self._descriptor is None:
            return
        os.ftruncate(self._descriptor, 0)
        os.close(self._descriptor)
        self._descriptor = None

    def holder(self) -> int | None:
        """The pid in the file: of who holds the lock or, after a kill, held it last."""
        try:
            with open(self.path, encoding="ascii", errors="replace") as file:
                text = file.read(32)
        except FileNotFoundError:
            return None
        return int(text) if text.strip().isdigit() else None

    def __enter__(self) -> Self:
        self.acquire()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()

    def _opened(self) -> int:
        try:
            os.makedirs(os.path.dirname(self.path), exist_ok=True)
            return os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise as_unwritable(error, os.path.dirname(self.path)) from error

    def _refusal(self, holder: int | None) -> AlreadyRunning:
        who = "another process" if holder is None else f"process {holder}"
        return AlreadyRunning(f"{who} holds {self.protects} ({self.path})", remedy=self.remedy)


class ClusterLock(NamedLock):
    protects = "the directory of this local cluster"
    remedy = "see it with `rhinoctl status`, or end it with `rhinoctl local down`"


class ControllerLock(NamedLock):
    protects = "the controller's directory: one controller per cluster"
    remedy = "use the controller that runs, or stop it first"


class AgentLock(NamedLock):
    protects = "the agent's directory: one agent per worker"
    remedy = "use the agent that runs, or stop it first"


class DatabaseLock(NamedLock):
    protects = "this database: one process writes it"
    remedy = "stop the process that has the database open"
