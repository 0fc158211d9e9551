"""`FakeStore`: the Store port in memory, with a crash that a test can aim.

It writes no log of its own, as a vnode's RocksDB runs with its WAL off: what was written since the
last `flush` may be lost in a crash, always from the end.
"""

import struct
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from pathlib import Path

from rhinoctl.protocol.ports import WriteBatch

IMAGE = "image"
MAGIC = b"rhinoctl fake store 1\n"
SIZES = struct.Struct("<II")

Undo = list[tuple[bytes, bytes | None]]
"""Values before a batch, in the order in which to put them back; None where there was none."""


class FakeStore:
    """A sorted mapping of bytes.

    `written` and `flushed` count batches: a crash leaves a prefix between the two.
    """

    def __init__(self) -> None:
        self._data: dict[bytes, bytes] = {}
        self._order: list[bytes] | None = []
        self._undo: list[Undo] = []
        self._open = True
        self.written = 0
        self.flushed = 0

    @classmethod
    def restore(cls, directory: str) -> "FakeStore":
        """A store of its own with the entries of a checkpoint, which stays as it is."""
        store = cls()
        image = (Path(directory) / IMAGE).read_bytes()
        if not image.startswith(MAGIC):
            raise ValueError(f"{directory} is no checkpoint of a FakeStore")
        at = len(MAGIC)
        while at < len(image):
            key_size, value_size = SIZES.unpack_from(image, at)
            middle = at + SIZES.size + key_size
            store._data[image[at + SIZES.size : middle]] = image[middle : middle + value_size]
            at = middle + value_size
        store._order = None
        return store

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        self._check_open()
        return list(map(self._data.get, keys))

    def write(self, batch: WriteBatch) -> None:
        self._check_open()
        if len(batch.keys) != len(batch.values):
            raise ValueError(f"{len(batch.keys)} keys but {len(batch.values)} values")
        undo: Undo = []
        for lo, hi in batch.delete_ranges:
            self._delete(self._between(lo, hi), undo)
        self._delete(batch.deletes, undo)
        self._put(batch, undo)
        undo.reverse()
        self._undo.append(undo)
        self.written += 1

    def scan(self, lo: bytes = b"", hi: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        self._check_open()
        return iter([(key, self._data[key]) for key in self._between(lo, hi)])

    def flush(self) -> None:
        self._check_open()
        self._undo.clear()
        self.flushed = self.written

    def checkpoint(self, directory: str) -> None:
        self._check_open()
        Path(directory).mkdir()
        with (Path(directory) / IMAGE).open("xb") as image:
            image.write(MAGIC)
            for key, value in self.scan():
                image.write(SIZES.pack(len(key), len(value)) + key + value)

    def close(self) -> None:
        self._open = False

    def copied(self) -> "FakeStore":
        """A store of its own with the entries of this moment, as a copy of the file would be."""
        store = FakeStore()
        store._data, store._order = dict(self._data), None
        return store

    def crash(self, prefix: int | None = None) -> None:
        """A kill, and the store opened again with the first `prefix` batches of all that were
        written (default: `flushed`, the least that a kill may leave)."""
        prefix = self.flushed if prefix is None else prefix
        if not self.flushed <= prefix <= self.written:
            raise ValueError(f"a crash leaves between {self.flushed} and {self.written} batches")
        while self.written > prefix:
            for key, value in self._undo.pop():
                if value is None:
                    self._data.pop(key, None)
                else:
                    self._data[key] = value
            self.written -= 1
        self._order = None
        self._open = True

    def _between(self, lo: bytes, hi: bytes | None) -> list[bytes]:
        if self._order is None:
            self._order = sorted(self._data)
        end = len(self._order) if hi is None else bisect_left(self._order, hi)
        return self._order[bisect_left(self._order, lo) : end]

    def _delete(self, keys: Sequence[bytes], undo: Undo) -> None:
        for key in keys:
            if key in self._data:
                undo.append((key, self._data.pop(key)))
                self._order = None

    def _put(self, batch: WriteBatch, undo: Undo) -> None:
        undo += zip(batch.keys, map(self._data.get, batch.keys), strict=True)
        entries = len(self._data)
        self._data.update(zip(batch.keys, batch.values, strict=True))
        if len(self._data) != entries:
            self._order = None

    def _check_open(self) -> None:
        if not self._open:
            raise ValueError("the store is closed")
