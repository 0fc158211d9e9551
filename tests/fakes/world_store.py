"""An instance's databases and files on a `FakeDisk`: checkpoints of several files, linked as
RocksDB's tables are."""

import errno
import io
import os
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import BinaryIO

from rhino_agent.digests import Digested
from rhinoctl.errors import CorruptFile
from rhinoctl.protocol.ports import Disk, WriteBatch
from rhinoctl.state.digests import logical_digest
from tests.fakes.store import SIZES, FakeStore

TABLES = 3
CURRENT = "CURRENT"


class LiveStore(FakeStore):
    """A vnode's database whose checkpoints lie on a disk of the world."""

    def __init__(self, disk: Disk, live: str) -> None:
        super().__init__()
        self._disk = disk
        self._live = live
        self.dirty_bytes = 0

    def write(self, batch: WriteBatch) -> None:
        super().write(batch)
        self.dirty_bytes += sum(map(len, batch.keys)) + sum(map(len, batch.values))

    def flush(self) -> None:
        super().flush()
        self.dirty_bytes = 0

    @property
    def state_bytes(self) -> int:
        return sum(len(key) + len(value) for key, value in self.scan())

    def checkpoint(self, directory: str) -> None:
        """Tables whose content did not change since the last time are links to the same file."""
        if self._disk.list(directory):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), directory)
        self.flush()
        names = []
        for number in range(TABLES):
            image = _table(self, number)
            name = f"{number}-{zlib.crc32(image):08x}.sst"
            if self._disk.size(f"{self._live}/{name}") is None:
                self._disk.append(f"{self._live}/{name}", [image])
            self._disk.link(f"{self._live}/{name}", f"{directory}/{name}")
            names.append(name)
        listed = "\n".join(names).encode()
        self._disk.append(f"{directory}/{CURRENT}", [b"%08x\n" % zlib.crc32(listed), listed])
        for old in self._disk.list(self._live):
            if old not in names:
                self._disk.remove(f"{self._live}/{old}")


def _table(store: FakeStore, number: int) -> bytes:
    chosen = ((k, v) for k, v in store.scan() if zlib.crc32(k) % TABLES == number)
    return b"".join(SIZES.pack(len(k), len(v)) + k + v for k, v in chosen)


class DiskStores:
    """`rhino_agent.stores.Stores` on a disk of the world."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk

    def open(self, live: str, base: str | None) -> LiveStore:
        store = LiveStore(self._disk, live)
        if base is None:
            return store
        for name, image in _tables(self._disk, base):
            self._disk.link(f"{base}/{name}", f"{live}/{name}")
            store.write(entries_of(image))
        store.flush()
        return store

    def discard(self, live: str) -> None:
        with suppress(OSError):  # on a disk that is gone nothing is there
            self._disk.remove(live)


def image_of(disk: Disk, base: str) -> Iterator[tuple[bytes, bytes]]:
    """The entries of a checkpoint."""
    for _, image in _tables(disk, base):
        batch = entries_of(image)
        yield from zip(batch.keys, batch.values, strict=True)


def _tables(disk: Disk, base: str) -> Iterator[tuple[str, bytes]]:
    checksum, _, listed = bytes(disk.read(f"{base}/{CURRENT}")).partition(b"\n")
    _check(f"{base}/{CURRENT}", listed, checksum.decode(errors="replace"))
    for name in listed.decode().split("\n"):
        image = bytes(disk.read(f"{base}/{name}"))
        _check(f"{base}/{name}", image, name.partition("-")[2].removesuffix(".sst"))
        yield name, image


def _check(path: str, data: bytes, checksum: str) -> None:
    if f"{zlib.crc32(data):08x}" != checksum:
        raise CorruptFile(f"{path}: bad checksum", remedy="use another checkpoint")


def entries_of(image: bytes) -> WriteBatch:
    """What a table has in it."""
    keys, values, at = [], [], 0
    while at < len(image):
        key_size, value_size = SIZES.unpack_from(image, at)
        middle = at + SIZES.size + key_size
        keys.append(image[at + SIZES.size : middle])
        values.append(image[middle : middle + value_size])
        at = middle + value_size
    return WriteBatch(keys, values)


class DiskDigester:
    """`rhino_agent.digests.Digester` on a disk of the world; it answers at the second poll."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._begun = self._polled = ""

    def begin(self, directory: str) -> None:
        self._begun = directory

    def poll(self) -> Digested | None:
        if self._polled != self._begun:
            self._polled = self._begun
            return None
        try:
            found = logical_digest(sorted(image_of(self._disk, self._begun)))
        except CorruptFile as fault:
            return Digested(fault=fault.message, corrupt=True)
        except OSError as fault:
            return Digested(fault=str(fault))
        return Digested(digest=found.digest, entries=found.entries)

    def end(self) -> None:
        self._begun = self._polled = ""


class DiskFiles:
    """`rhino_agent.stores.Files` on a disk of the world."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk

    def read(self, path: str, spans: Sequence[tuple[int, int]]) -> list[memoryview]:
        return [self._disk.read(path, offset, size) for offset, size in spans]

    def write(self, path: str, fill: Callable[[BinaryIO], None]) -> int:
        sink = io.BytesIO()
        fill(sink)
        self._disk.remove(f"{path}.tmp")
        self._disk.append(f"{path}.tmp", [sink.getvalue()])
        self._disk.rename(f"{path}.tmp", path)
        return len(sink.getvalue())
