"""The four ports of every effect driver: Clock, Wire, Disk, Store (design, section 7).

The loops of the controller, the agent, the instance and the batch driver touch the world through
these only. Each port has a real implementation and a fake, and both pass one contract suite
(``tests/unit/contracts``), so that a simulator can run the very loops that production runs.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NewType, Protocol

from rhinoctl.protocol.messages import Message

Buffer = bytes | bytearray | memoryview
Address = NewType("Address", str)
"""Where a process listens: a Flight location, e.g. ``grpc+unix:///run/w1.sock``."""


class Clock(Protocol):
    """Time. `monotonic` is for deadlines, `wall` for people and for pauses across processes."""

    def monotonic(self) -> float:
        """Seconds; never goes back."""
        ...

    def wall(self) -> float:
        """Seconds since 1970; may jump."""
        ...


class Outcome(Enum):
    """What is known of a request whose answer did not come (style, rule 7)."""

    NOT_DONE = "not_done"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Envelope:
    """One delivered message.

    `request` is the number that `Wire.send` gave when this is the answer to it (or the news that
    no answer will come: then `message` is None and `outcome` says what is known). `handle` is what
    `Wire.reply` needs when this is somebody's request. `payload` are raw bytes beside the message:
    slices of rows or chunks of files.
    """

    message: Message | None
    payload: tuple[memoryview, ...] = ()
    request: int | None = None
    handle: int | None = None
    outcome: Outcome | None = None
    detail: str = ""


class Wire(Protocol):
    """Messages between processes. `send` and `reply` never block and never raise."""

    def send(
        self, to: Address, message: Message, payload: Sequence[Buffer] = (), *, timeout_s: float
    ) -> int:
        """Send a request; returns its number. Exactly one envelope with it arrives later:
        the answer, or an outcome once `timeout_s` has passed or the connection broke."""
        ...

    def reply(self, to: Envelope, message: Message, payload: Sequence[Buffer] = ()) -> None:
        """Answer a request that `receive` delivered. A second answer is ignored."""
        ...

    def receive(self, timeout_s: float) -> Envelope | None:
        """The next envelope, or None after `timeout_s`."""
        ...


class Disk(Protocol):
    """Files under one root; paths are relative, with ``/``. A missing one is FileNotFoundError."""

    def append(self, path: str, buffers: Sequence[Buffer]) -> int:
        """Write at the end (creating file and directories); returns the offset it was written at.
        Not durable before `sync`."""
        ...

    def truncate(self, path: str, size: int) -> None:
        """Cut a file to `size` bytes."""
        ...

    def sync(self, paths: Iterable[str]) -> None:
        """Make the files' bytes, names and parent directories durable."""
        ...

    def read(self, path: str, offset: int = 0, length: int | None = None) -> memoryview:
        """Bytes of a file; fewer than `length` only at its end."""
        ...

    def size(self, path: str) -> int | None:
        """Size in bytes, or None if there is no such file."""
        ...

    def write_atomic(self, path: str, data: Buffer) -> None:
        """Replace a file: after a crash it has the old bytes or the new, durably."""
        ...

    def link(self, source: str, target: str) -> None:
        """A hard link; where the file system refuses (EXDEV, EPERM, EOPNOTSUPP, EMLINK), a copy."""
        ...

    def rename(self, source: str, target: str) -> None:
        """Rename a file or directory and make the new name durable."""
        ...

    def list(self, path: str) -> list[str]:
        """Names of the entries of a directory, sorted; empty if there is none."""
        ...

    def remove(self, path: str) -> None:
        """Remove a file or a whole tree; nothing happens if it is not there."""
        ...


@dataclass(frozen=True, slots=True)
class WriteBatch:
    """Changes to a store, written all or none. `keys[i]` gets `values[i]`; ranges are [lo, hi)."""

    keys: Sequence[bytes] = ()
    values: Sequence[bytes] = ()
    deletes: Sequence[bytes] = ()
    delete_ranges: Sequence[tuple[bytes, bytes]] = field(default=())


class Store(Protocol):
    """Ordered keys and values of bytes: one vnode's state (RocksDB), or the controller's (SQLite).

    Order within a batch: delete ranges, deletes, puts. Whether a written batch survives a kill is
    the implementation's: SQLite's does, a vnode's only up to its last `flush` (the worker log
    replays the rest); but what survives is always a prefix of the written batches.
    """

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """The values, in the order of `keys`; None where there is none."""
        ...

    def write(self, batch: WriteBatch) -> None:
        """Apply a batch atomically."""
        ...

    def scan(self, lo: bytes = b"", hi: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        """Entries with lo <= key < hi in key order; `hi` None means to the end."""
        ...

    def flush(self) -> None:
        """Make all that was written so far durable."""
        ...

    def checkpoint(self, directory: str) -> None:
        """An image of the store in a new directory, which must not exist; the store goes on."""
        ...

    def close(self) -> None:
        """Release every handle; a closed store raises on use."""
        ...
