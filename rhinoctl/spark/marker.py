"""The bell of a job's marker stream: how the driver makes Spark run a batch now.

The marker stream has no rows; its offset is a counter. Whoever needs a batch (a handover to be
marked, last windows to be closed) rings; the stream's reader, which Spark polls every 10 ms in a
Python process of its own, then reports a higher offset, and Spark runs a batch for it, whatever the
job's own source does. The counter only grows and decides nothing: what a batch marks is in its
decision record.

    driver                        Unix socket                        reader's process
    MarkerBell.ring() ──▶  b"1764295000123 1764295000001\\n"  ──▶  MarkerListener.seen

The second number is that of the last *due* ring: one without which something would stay undone for
ever, such as windows that are over. A query with the trigger availableNow heeds only those, so that
it ends.

1. A counter that was sent is never followed by a lower one, also over restarts of the driver.
2. Nobody waits for a peer: a reader that does not take its bytes is cut off and connects again.
3. Losing the socket loses nothing but the wake-up; offsets that Spark has logged need no bell.

pyspark is not imported here.
"""

import contextlib
import os
import selectors
import shutil
import socket
import tempfile
import threading
import time
from types import TracebackType
from typing import Final, Self

from rhinoctl.errors import Refused, UsageError

LINE_BYTES_MAX: Final = 64
"""Two counters and a newline: 64 bits have 20 digits."""

RETRY_FIRST_S: Final = 0.05
RETRY_MAX_S: Final = 2.0
"""A reader's pauses between attempts to connect double from the first to the last of these."""

CONNECT_TIMEOUT_S: Final = 1.0
SOCKET_PATH_BYTES_MAX: Final = 107
"""What a Unix socket address holds on Linux, without its closing zero byte."""


class MarkerBell:
    """The driver's end: owns the socket, counts, and tells every reader. Thread-safe.

    The socket is `path`, in a new directory of mode 0700 under `directory` (the system's directory
    for temporary files by default). Every counter is above `above`, which a driver with a clock
    that may have been set back takes from the offset that Spark logged last.

    Raises UsageError if the path is longer than a socket's may be, Refused if it cannot be made.
    """

    def __init__(self, *, directory: str | None = None, above: int = 0) -> None:
        self._counter = above
        self._due = 0
        self._closed = False
        self._lock = threading.Lock()
        self._readers: set[socket.socket] = set()
        try:
            self._directory = tempfile.mkdtemp(prefix="rhino-bell-", dir=directory)
        except OSError as error:
            raise Refused(
                f"no directory for the marker stream's socket: {error}",
                remedy="set TMPDIR to a directory that this user can write",
            ) from error
        self.path = os.path.join(self._directory, "bell")
        try:
            self._server = self._listen()
        except BaseException:
            shutil.rmtree(self._directory, ignore_errors=True)
            raise
        self._wake, self._waker = socket.socketpair()
        self._thread = threading.Thread(target=self._serve, name="rhino-marker-bell", daemon=True)
        self._thread.start()

    def _listen(self) -> socket.socket:
        if len(os.fsencode(self.path)) > SOCKET_PATH_BYTES_MAX:
            raise UsageError(
                f"the path of the marker stream's socket has more than {SOCKET_PATH_BYTES_MAX} "
                f"bytes: {self.path}",
                remedy="set TMPDIR to a directory with a shorter path",
            )
        server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            server.bind(self.path)
            server.listen(64)
        except OSError as error:
            server.close()
            raise Refused(
                f"the marker stream's socket {self.path} cannot be opened: {error}",
                remedy="set TMPDIR to a directory on a local file system",
            ) from error
        server.setblocking(False)
        return server

    def ring(self, *, due: bool = False) -> int:
        """Raise the counter, tell all readers, and return it. Never blocks.

        The counter is the wall clock in milliseconds where that is higher than the last counter.
        On a closed bell nothing happens: threads that ring need not know of the driver's end.
        """
        with self._lock:
            if self._closed:
                return self._counter
            self._counter = max(self._counter + 1, time.time_ns() // 1_000_000)
            if due:
                self._due = self._counter
            for reader in self._readers:
                self._tell(reader)
            return self._counter

    def _tell(self, reader: socket.socket) -> None:
        """Send the counter; the lock is held."""
        line = b"%d %d\n" % (self._counter, self._due)
        try:
            told = reader.send(line) == len(line)
        except OSError:
            told = False
        if not told:  # the serving thread sees the end of the connection, and forgets it
            with contextlib.suppress(OSError):
                reader.shutdown(socket.SHUT_RDWR)

    def _serve(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._server, selectors.EVENT_READ)
            selector.register(self._wake, selectors.EVENT_READ)
            while not self._closed:
                for key, _ in selector.select():
                    if key.fileobj is self._server:
                        self._accept(selector)
                    elif key.fileobj is not self._wake:
                        self._forget_if_gone(selector, key.fileobj)  # type: ignore[arg-type]

    def _accept(self, selector: selectors.BaseSelector) -> None:
        try:
            reader, _ = self._server.accept()
        except OSError:  # the reader has gone again, or no descriptor is left: do not spin
            time.sleep(RETRY_FIRST_S)
            return
        reader.setblocking(False)
        selector.register(reader, selectors.EVENT_READ)
        with self._lock:
            self._readers.add(reader)
            self._tell(reader)

    def _forget_if_gone(self, selector: selectors.BaseSelector, reader: socket.socket) -> None:
        """A reader never writes, so one that can be read from has gone."""
        try:
            gone = not reader.recv(LINE_BYTES_MAX)
        except BlockingIOError:
            gone = False
        except OSError:
            gone = True
        if gone:
            selector.unregister(reader)
            with self._lock:
                self._readers.discard(reader)
            reader.close()

    def raise_above(self, counter: int) -> None:
        """Later counters are above this one too: that which Spark logged last, say. Its clock may
        have been ahead of ours."""
        with self._lock:
            self._counter = max(self._counter, counter)

    def close(self) -> None:
        """Cut all readers off and remove the socket and its directory. May be called again."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self._waker.send(b".")
        self._thread.join()
        for end in (*self._readers, self._server, self._wake, self._waker):
            end.close()
        shutil.rmtree(self._directory, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def due_at(path: str, timeout_s: float = CONNECT_TIMEOUT_S) -> int:
    """The last due counter of the bell at `path` as of now; 0 if there is none, or no answer."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as bell:
            bell.settimeout(timeout_s)
            bell.connect(path)
            with bell.makefile("rb") as lines:
                return int(lines.readline(LINE_BYTES_MAX).split()[1])
    except (OSError, ValueError, IndexError):  # no bell there, it has gone, or it is not a bell
        return 0


class MarkerListener:
    """A reader's end: a daemon thread that holds the highest counter heard. Nothing here raises.

    While there is no bell at `path` it tries again, after pauses of up to RETRY_MAX_S.
    """

    def __init__(self, path: str) -> None:
        self.seen = 0
        """The highest counter heard so far; 0 before the first."""
        self._path = path
        self._stopped = threading.Event()
        self._thread = threading.Thread(
            target=self._listen, name="rhino-marker-listener", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """Let the thread end: at once while it is pausing, else with its next line."""
        self._stopped.set()

    def _listen(self) -> None:
        pause_s = RETRY_FIRST_S
        while not self._stopped.is_set():
            if self._hear():
                pause_s = RETRY_FIRST_S
            self._stopped.wait(pause_s)
            pause_s = min(2 * pause_s, RETRY_MAX_S)

    def _hear(self) -> bool:
        """Take counters until the connection ends; whether there was one."""
        connected = False
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as bell:
                bell.settimeout(CONNECT_TIMEOUT_S)
                bell.connect(self._path)
                bell.settimeout(None)
                connected = True
                with bell.makefile("rb") as lines:
                    while line := lines.readline(LINE_BYTES_MAX):
                        if self._stopped.is_set() or not line.endswith(b"\n"):
                            break
                        self.seen = max(self.seen, int(line.split()[0]))
        except (OSError, ValueError, IndexError):  # no bell there, it has gone, or it is not a bell
            pass
        return connected
