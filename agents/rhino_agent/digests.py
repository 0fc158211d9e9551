"""Logical digests of checkpoints, made by a process of its own (`rhino_agent.digesting`).

To read a vnode's entries takes seconds and holds the interpreter's lock, so neither the agent's
loop nor an instance does it.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from rhinoctl.protocol import codec

END_S = 0.5
"""A killed process is gone within milliseconds, and the agent's loop does not wait for more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Digested:
    """What came of one checkpoint: a digest, or a fault; `corrupt`, if it is the checkpoint's."""

    digest: str = ""
    entries: int = 0
    fault: str = ""
    corrupt: bool = False


class Digester(Protocol):
    """Makes one digest at a time, elsewhere. The simulator has its own."""

    def begin(self, directory: str) -> None:
        """Have a checkpoint digested. Raises OSError if nobody can."""
        ...

    def poll(self) -> Digested | None:
        """What came of it, or None for not yet. Never waits."""
        ...

    def end(self) -> None:
        """Nobody wants any more digests now."""
        ...


class ProcessDigester:
    """`Digester` by a child process, which is started when it is needed."""

    def __init__(
        self, argv: Iterable[str] = (sys.executable, "-m", "rhino_agent.digesting")
    ) -> None:
        self._argv = tuple(argv)
        self._child: subprocess.Popen[bytes] | None = None
        self._line = b""

    def begin(self, directory: str) -> None:
        if self._child is None:
            self._child = subprocess.Popen(
                self._argv,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
            assert self._child.stdout is not None
            os.set_blocking(self._child.stdout.fileno(), False)
        assert self._child.stdin is not None
        try:
            self._child.stdin.write(json.dumps(directory).encode() + b"\n")
            self._child.stdin.flush()
        except BrokenPipeError:
            self.end()
            raise

    def poll(self) -> Digested | None:
        child = self._child
        if child is None:
            return Digested(fault="no process makes digests")
        assert child.stdout is not None
        piece = child.stdout.read(1 << 16)
        if piece is None:
            return None
        self._line += piece
        if not piece:
            self.end()
            return Digested(fault=f"the process that makes digests has ended ({child.returncode})")
        if not self._line.endswith(b"\n"):
            return None
        line, self._line = self._line, b""
        try:
            found: Digested = codec.loads(Digested, line)
        except codec.CodecError as fault:
            return Digested(fault=f"the process that makes digests answers with {fault}")
        return found

    def end(self) -> None:
        child, self._child, self._line = self._child, None, b""
        if child is None:
            return
        child.kill()
        for pipe in (child.stdin, child.stdout):
            with suppress(BrokenPipeError):
                assert pipe is not None
                pipe.close()
        with suppress(subprocess.TimeoutExpired):  # a disk that hangs; it is reaped when it ends
            child.wait(END_S)
