"""Processes of the world: each has its own view of disk, wire and store, which it loses by a kill.

`Process.touch` is called before and after everything that a process does to the world, so that a
test can kill it, or do anything else, exactly there: a `Trap`.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from rhinoctl.protocol.messages import Message
from rhinoctl.protocol.ports import Address, Buffer, Envelope, WriteBatch
from rhinoctl.state.disk import Stamp
from tests.fakes.disk import FakeDisk
from tests.fakes.mounts import Mounts
from tests.fakes.store import FakeStore
from tests.fakes.wire import FakeWire

_PHASE = re.compile(rb'"phase":\s*"(\w+)"')


class Killed(BaseException):
    """The process ends here. Not an `Exception`: no handler of the product may outlive it."""


@dataclass(eq=False, kw_only=True)
class Trap:
    """When a process is about to do something (or, with `after`, has done it): act.

    `step` is the beginning of what it does, e.g. ``disk.sync jobs/`` or ``send Seal``; `holding`
    a text that has to occur in it. The `skip` first times are let pass. It springs once.
    """

    process: str
    step: str
    then: Callable[[], object]
    holding: str = ""
    after: bool = False
    skip: int = 0
    sprung: bool = False

    def matches(self, process: str, step: str, *, after: bool) -> bool:
        """Whether it springs now."""
        if self.sprung or after != self.after or process != self.process:
            return False
        if not step.startswith(self.step) or self.holding not in step:
            return False
        self.skip -= 1
        self.sprung = self.skip < 0
        return self.sprung


@dataclass(eq=False)
class Process:
    """One process: `w1` is worker w1's agent, `w1/i0` an instance on it."""

    name: str
    traps: list[Trap] = field(default_factory=list)
    alive: bool = True
    watch: Callable[["Process", str, bool], None] | None = None

    def touch(self, step: str, *, after: bool = False) -> None:
        """The process does something; raises Killed if it is dead, or dies of it. `watch`, which is
        told first, may let time pass before it goes on."""
        if self.alive:
            if self.watch is not None:
                self.watch(self, step, after)
            for trap in self.traps:
                if trap.process == self.name and trap.matches(self.name, step, after=after):
                    trap.then()
        if not self.alive:
            raise Killed(f"{self.name} at {step}")


class ProcessDisk:
    """A process's view of its host's disk."""

    def __init__(self, disk: FakeDisk | Mounts, process: Process) -> None:
        self._disk = disk
        self._process = process

    def path_of(self, path: str) -> str:
        return self._disk.path_of(path)

    def append(self, path: str, buffers: Sequence[Buffer]) -> int:
        self._process.touch(f"disk.append {path}")
        offset = self._disk.append(path, [bytes(buffer) for buffer in buffers])
        self._process.touch(f"disk.append {path}", after=True)
        return offset

    def truncate(self, path: str, size: int) -> None:
        self._process.touch(f"disk.truncate {path}")
        self._disk.truncate(path, size)

    def sync(self, paths: Iterable[str]) -> None:
        paths = list(paths)
        self._process.touch(f"disk.sync {' '.join(paths)}")
        self._disk.sync(paths)
        self._process.touch(f"disk.sync {' '.join(paths)}", after=True)

    def read(self, path: str, offset: int = 0, length: int | None = None) -> memoryview:
        self._process.touch(f"disk.read {path}")
        return self._disk.read(path, offset, length)

    def size(self, path: str) -> int | None:
        return self._disk.size(path)

    def stamp(self, path: str) -> Stamp | None:
        return self._disk.stamp(path)

    def write_atomic(self, path: str, data: Buffer) -> None:
        self._process.touch(f"disk.write_atomic {path}")
        self._disk.write_atomic(path, data)
        self._process.touch(f"disk.write_atomic {path}", after=True)

    def link(self, source: str, target: str) -> None:
        self._process.touch(f"disk.link {target}")
        self._disk.link(source, target)

    def rename(self, source: str, target: str) -> None:
        self._process.touch(f"disk.rename {target}")
        self._disk.rename(source, target)
        self._process.touch(f"disk.rename {target}", after=True)

    def list(self, path: str) -> list[str]:
        return self._disk.list(path)

    def remove(self, path: str) -> None:
        """Does nothing in a dead process, whose generators may clean up when they are collected."""
        if self._process.alive:
            self._process.touch(f"disk.remove {path}")
            self._disk.remove(path)

    def free_bytes(self) -> int:
        return self._disk.free_bytes()

    def volume(self) -> int:
        return self._disk.volume()

    def refusal(self) -> OSError | None:
        return self._disk.refusal()

    def close(self) -> None: ...


class ProcessWire:
    """A process's wire. Nobody else has a turn while it looks for a message without waiting."""

    def __init__(self, wire: FakeWire, process: Process) -> None:
        self.inner = wire
        self._process = process

    def send(
        self, to: Address, message: Message, payload: Sequence[Buffer] = (), *, timeout_s: float
    ) -> int:
        kind = type(message).__name__
        self._process.touch(f"send {kind} {to}")
        number = self.inner.send(to, message, payload, timeout_s=timeout_s)
        self._process.touch(f"send {kind} {to}", after=True)
        return number

    def reply(self, to: Envelope, message: Message, payload: Sequence[Buffer] = ()) -> None:
        kind = type(message).__name__
        self._process.touch(f"reply {kind}")
        self.inner.reply(to, message, payload)
        self._process.touch(f"reply {kind}", after=True)

    def receive(self, timeout_s: float) -> Envelope | None:
        self._process.touch("receive")
        if not timeout_s and not self.inner.waiting():
            return None
        return self.inner.receive(timeout_s)

    def close(self) -> None:
        self.inner.close()


class ProcessStore:
    """The controller's view of its store; what is written is durable."""

    def __init__(self, store: FakeStore, process: Process) -> None:
        self._store = store
        self._process = process

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return self._store.get_many(keys)

    def write(self, batch: WriteBatch) -> None:
        """The step names the keys, and the phase of an operation that is written."""
        what = " ".join(key.decode() for key in [*batch.keys, *batch.deletes])
        for value in batch.values:
            phase = _PHASE.search(value)
            what += f" phase={phase[1].decode()}" if phase is not None else ""
        self._process.touch(f"store.write {what}")
        self._store.write(batch)
        self._process.touch(f"store.write {what}", after=True)

    def scan(self, lo: bytes = b"", hi: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        return self._store.scan(lo, hi)

    def flush(self) -> None:
        self._store.flush()

    def checkpoint(self, directory: str) -> None:
        self._store.checkpoint(directory)

    def close(self) -> None:
        self._store.close()
