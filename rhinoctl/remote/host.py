"""A host that commands are run on, whatever the way there; and what wraps one.

Invariants:

1. A command is a list of arguments, never text for a shell: what is in a name stays in it.
2. Every command has a deadline, here and on the host, where nothing of it is left after that.
3. What is piped into a command is never told by anything: that is where secrets go.
"""

import shlex
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path, PurePosixPath
from threading import Event
from typing import BinaryIO, Protocol

from rhinoctl.errors import CommandFailed, HostLost

SHOWN: int = 400
"""Characters of a command's complaint that an error shows, from its end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """What is run. `input`, or what is in `input_file`, is piped into it; `changes` says that it
    leaves the host different; `root` runs it by sudo where the inventory says so; `what` is what
    it is for, in errors; `longer` what a person gives for another `timeout_s`."""

    argv: tuple[str, ...]
    what: str
    input: bytes = b""
    input_file: Path | None = None
    timeout_s: float | None = None
    changes: bool = False
    root: bool = False
    longer: str = ""

    def __str__(self) -> str:
        return joined(self.argv)

    @property
    def can_be_typed(self) -> bool:
        """Whether a person can run it by hand: all of it is its arguments, on one line."""
        piped = self.input or self.input_file is not None
        return not piped and not any("\n" in word for word in self.argv)

    def open_input(self) -> BinaryIO:
        """What is piped into it, from its beginning. Raises OSError."""
        return BytesIO(self.input) if self.input_file is None else open(self.input_file, "rb")


@dataclass(frozen=True, slots=True)
class Done:
    """How a command ended, and all that it printed."""

    exit_code: int
    stdout: bytes
    stderr: bytes

    @property
    def text(self) -> str:
        """What it printed, whatever bytes those are."""
        return self.stdout.decode("utf-8", "replace")


class Host(Protocol):
    """A host, by the name that people know it by."""

    @property
    def name(self) -> str: ...

    def run(self, command: Command) -> Done:
        """Run a command to its end. Raises HostError's leaves if it was not run, or not to its end;
        not for what it exits with."""

    def close(self) -> None:
        """Let go of the host; what was started on it goes on."""


def checked(host: Host, command: Command) -> Done:
    """Run a command that has to succeed. Raises CommandFailed with what it said."""
    return succeeded(host, command, host.run(command))


def succeeded(host: Host, command: Command, done: Done) -> Done:
    """How a command ended that had to succeed. Raises CommandFailed with what it said."""
    if done.exit_code:
        said = (done.stderr or done.stdout).decode("utf-8", "replace").strip()
        said = said if len(said) <= SHOWN else f"… {said[-SHOWN:]}"
        raise CommandFailed(
            f"{host.name}: {command.what}: {said or 'it said nothing'} (exit code"
            f" {done.exit_code})",
            remedy=f"run it there by hand to see why: {command}"
            if command.can_be_typed
            else f"see on {host.name} what keeps it from that, then repeat the command",
        )
    return done


_WRITE = 'umask 077 && cat >"$1.new" && chmod "$2" "$1.new" && sync "$1.new" && mv -f "$1.new" "$1"'


def read_file(host: Host, path: PurePosixPath) -> bytes:
    """What is in a file. Raises what `checked` does."""
    return checked(host, Command(argv=("cat", "--", str(path)), what=f"read {path}")).stdout


def write_file(host: Host, path: PurePosixPath, content: bytes, mode: int, *, root: bool) -> None:
    """Write a file whole, or not at all; it is durable under its name afterwards. Raises
    CommandFailed and what `Host.run` does."""
    checked(
        host,
        Command(
            argv=("sh", "-c", _WRITE, "sh", str(path), f"{mode:o}"),
            what=f"write {path}",
            input=content,
            changes=True,
            root=root,
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """A command that was run, as it is kept: without what was piped into it. `exit_code` is None
    where it is not known whether it was run to its end; `fault` says why."""

    at: float
    host: str
    command: str
    what: str
    changes: bool
    seconds: float
    exit_code: int | None = None
    fault: str = ""


class Audited:
    """A host whose commands are written down, each after its end."""

    def __init__(
        self, host: Host, write: Callable[[Audit], object], now: Callable[[], float] = time.time
    ) -> None:
        self._host = host
        self._write = write
        self._now = now

    @property
    def name(self) -> str:
        return self._host.name

    def run(self, command: Command) -> Done:
        began = self._now()
        exit_code, fault = None, "interrupted"
        try:
            done = self._host.run(command)
            exit_code, fault = done.exit_code, ""
        except Exception as error:
            fault = str(error)
            raise
        finally:
            self._write(
                Audit(
                    at=began,
                    host=self.name,
                    command=str(command),
                    what=command.what,
                    changes=command.changes,
                    seconds=self._now() - began,
                    exit_code=exit_code,
                    fault=fault,
                )
            )
        return done

    def close(self) -> None:
        self._host.close()


class Untouched:
    """A host that is looked at only: a command that would change it is told, and counts as done."""

    def __init__(self, host: Host, tell: Callable[[str, Command], object]) -> None:
        self._host = host
        self._tell = tell

    @property
    def name(self) -> str:
        return self._host.name

    def run(self, command: Command) -> Done:
        if not command.changes:
            return self._host.run(command)
        self._tell(self.name, command)
        return Done(0, b"", b"")

    def close(self) -> None:
        self._host.close()


class Stoppable:
    """A host on which no command is begun any more once `stopped` is set: what runs then ends with
    its connection. Raises HostLost."""

    def __init__(self, host: Host, stopped: Event) -> None:
        self._host = host
        self._stopped = stopped

    @property
    def name(self) -> str:
        return self._host.name

    def run(self, command: Command) -> Done:
        if self._stopped.is_set():
            raise HostLost(
                f"{self.name}: interrupted before it was to {command.what}",
                remedy="repeat the command: it goes on where this one stopped",
            )
        return self._host.run(command)

    def close(self) -> None:
        self._host.close()


def joined(argv: Sequence[str]) -> str:
    """Arguments as one word for a POSIX shell: the one place where they are quoted."""
    return shlex.join(argv)
