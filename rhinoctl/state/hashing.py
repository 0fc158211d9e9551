"""Content hashes in slices: a single-threaded loop hashes a large file between its other work.

A file's identity is its BLAKE3 hash, never its name and size (design, section 5).
"""

from collections.abc import Generator
from typing import TypeVar

import blake3

from rhinoctl.protocol.ports import Buffer, Disk

T = TypeVar("T")

Steps = Generator[int, None, T]
"""Work in slices: each ``next`` does one bounded piece and yields the bytes that it read; the
generator's return value is the result. `finish` runs one to its end; closing one midway is safe."""

SLICE_BYTES = 4 << 20
"""Read and hashed in 2–4 ms, so that a loop between two slices still answers in time."""


def finish(steps: Steps[T]) -> T:
    """Run all slices at once; returns the result."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result


def content_hash(*buffers: Buffer) -> str:
    """The hash of the buffers one after another, as 64 hex digits."""
    hasher = Hasher()
    for buffer in buffers:
        hasher.update(buffer)
    return hasher.hexdigest()


def hash_file(disk: Disk, path: str, slice_bytes: int = SLICE_BYTES) -> Steps[str]:
    """The hash of a file, at most `slice_bytes` a step. Raises FileNotFoundError."""
    hasher = Hasher()
    while piece := disk.read(path, hasher.size, slice_bytes):
        hasher.update(piece)
        yield len(piece)
    return hasher.hexdigest()


class Hasher:
    """A hash that grows with the chunks of a file as they arrive; `size` is the bytes so far."""

    def __init__(self) -> None:
        self.size = 0
        self._state = blake3.blake3()

    def update(self, data: Buffer) -> None:
        self._state.update(data)
        self.size += memoryview(data).nbytes

    def hexdigest(self) -> str:
        return self._state.hexdigest()
