"""A process that keeps another one running, where there is no systemd to do it.

    python -m rhinoctl.remote.supervisor DEFINITION

Invariants:

1. One supervisor a service: it holds a lock for as long as it lives.
2. A process that it finds running from a supervisor before it goes on, and is kept from then on.
3. It ends after the process, never before, unless it is killed; then the process goes on, and
   `rhinoctl.remote.supervised` finds it.
"""

import fcntl
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Final

from rhinoctl.protocol import codec
from rhinoctl.remote.proc import born

PAUSE_MIN_S: Final = 1.0
PAUSE_MAX_S: Final = 30.0
"""A process that ends at once is started again after one second, two, four, up to this."""

STEADY_S: Final = 60.0
"""One that ran for so long begins at one second again."""

LOOK_S: Final = 5.0
"""Between two looks at how long the log is."""

LOG_BYTES: Final = 16 << 20
"""A log that is longer becomes `log.1`, and the one before is gone."""

COOKIE: Final = "RHINO_SERVICE"
"""In the environment of a service's processes and of all that they start: its name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Definition:
    """What is kept running: its command, and a directory of its own for what is known of it. `user`
    is whose processes they are, empty for those of who starts them."""

    name: str
    argv: tuple[str, ...]
    directory: str
    user: str = ""
    log_bytes: int = LOG_BYTES

    @property
    def log(self) -> Path:
        return Path(self.directory, "log")

    @property
    def record(self) -> Path:
        return Path(self.directory, "state.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """What is known of a service: pids with their start times in clock ticks since boot, 0 for a
    process that is not there; since when it runs, or does not, in seconds since 1970; how often it
    was started again; how it ended the last time, if it did and if that is known: negative for the
    number of a signal."""

    supervisor: int = 0
    supervisor_born: int = 0
    child: int = 0
    child_born: int = 0
    since: float = 0.0
    restarts: int = 0
    exit_code: int | None = None


def read_record(definition: Definition) -> Record:
    """What is known; nothing if it cannot be read."""
    try:
        record: Record = codec.loads(Record, definition.record.read_bytes())
    except (OSError, codec.CodecError):
        return Record()
    return record


def pause_s(failures: int) -> float:
    """How long to wait before a start, after so many ends in a row that came soon."""
    return min(PAUSE_MAX_S, PAUSE_MIN_S * 2.0 ** min(max(failures - 1, 0), 10))


class Kept:
    """A process that is kept: one that we started, or one that we found."""

    def __init__(self, pid: int, process: "subprocess.Popen[bytes] | None" = None) -> None:
        self.pid = pid
        self.born = born(pid) or 0
        self.handle = os.pidfd_open(pid)
        self._process = process

    def send(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.handle, number)

    def ended(self) -> bool:
        return bool(select.select([self.handle], [], [], 0)[0])

    def close(self) -> int | None:
        """Let go of one that has ended; how it ended, if that is known."""
        os.close(self.handle)
        return None if self._process is None else self._process.wait()


class Supervisor:
    """The loop. It is asked to end by SIGTERM or SIGINT, which it hands on."""

    def __init__(self, definition: Definition) -> None:
        self._definition = definition
        self._asked = False
        self._ours = {"supervisor": os.getpid(), "supervisor_born": born(os.getpid()) or 0}
        self._restarts = 0
        self._failures = 0
        self._woken, waker = os.pipe()
        for end in (self._woken, waker):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._ask)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        self._asked = True

    def run(self) -> None:
        """Keep the process until asked to end. It is nobody's turn if another supervisor runs."""
        with open(Path(self._definition.directory, "lock"), "ab") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return
            child, since = self._found() or (self._start(), time.time())
            while True:
                self._tell(child, since)
                code = self._keep(child)
                self._tell(None, time.time(), code)
                if not self._asked:
                    self._pause(time.time() - since)
                if self._asked:
                    return
                self._restarts += 1
                child, since = self._start(), time.time()

    def _found(self) -> tuple[Kept, float] | None:
        """The process of a supervisor that was killed, and since when it runs."""
        known = read_record(self._definition)
        if known.child == 0 or born(known.child) != known.child_born:
            return None
        try:
            child = Kept(known.child)
        except ProcessLookupError:
            return None
        self._restarts = known.restarts
        return child, known.since

    def _start(self) -> Kept:
        definition = self._definition
        with open(definition.log, "ab") as log:
            process = subprocess.Popen(
                definition.argv,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=definition.directory,
                start_new_session=True,
            )
        return Kept(process.pid, process)

    def _keep(self, child: Kept) -> int | None:
        """Wait for its end; when we are asked to, it is asked to. How it ended."""
        told = False
        while not child.ended():
            if self._asked and not told:
                child.send(signal.SIGTERM)
                told = True
            self._wait([child.handle, self._woken], LOOK_S)
            rotate(self._definition)
        return child.close()

    def _pause(self, ran_s: float) -> None:
        self._failures = 1 if ran_s >= STEADY_S else self._failures + 1
        until = time.monotonic() + pause_s(self._failures)
        while not self._asked and (left := until - time.monotonic()) > 0:
            self._wait([self._woken], left)

    def _wait(self, handles: list[int], seconds: float) -> None:
        select.select(handles, [], [], seconds)
        with suppress(BlockingIOError):
            os.read(self._woken, 64)

    def _tell(self, child: Kept | None, since: float, code: int | None = None) -> None:
        """It need not be durable: after a crash of the host, no process is what it names."""
        of_child = {"child": child.pid, "child_born": child.born} if child is not None else {}
        last = read_record(self._definition).exit_code if child is not None else code
        record = Record(
            **self._ours, **of_child, since=since, restarts=self._restarts, exit_code=last
        )
        new = self._definition.record.with_suffix(".new")
        new.write_bytes(codec.dumps(record))
        os.replace(new, self._definition.record)


def rotate(definition: Definition) -> None:
    """Keep a log within its bound. It is copied and emptied, since the process has it open, which
    loses what is written in between; a pipe through us would end the process with us."""
    log = definition.log
    if not log.exists() or log.stat().st_size <= definition.log_bytes:
        return
    copy = log.with_name("log.new")
    shutil.copyfile(log, copy)
    os.replace(copy, log.with_name("log.1"))
    os.truncate(log, 0)


def main(argv: list[str]) -> int:
    definition = codec.loads(Definition, Path(argv[0]).read_bytes())
    Supervisor(definition).run()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
