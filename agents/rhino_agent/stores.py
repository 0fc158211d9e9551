"""What an instance needs of its host: databases for its vnodes, slices to read, a place for output.

Two narrow ports beside Wire and Clock, so that the very loop of the instance runs in a simulation.
Paths are those of the agent's messages: absolute on a real host.
"""

import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import BinaryIO, Protocol

from rhinoctl.protocol.ports import Store
from rhinoctl.state.rocks import RocksStore, RocksStores, StoreBudget


class VnodeStore(Store, Protocol):
    """One vnode's live database."""

    @property
    def state_bytes(self) -> int:
        """Bytes on disk and in memory."""
        ...

    @property
    def dirty_bytes(self) -> int:
        """Bytes in memory that `flush` would give back."""
        ...


class Stores(Protocol):
    """The live databases of one instance."""

    def open(self, live: str, base: str | None) -> VnodeStore:
        """A fresh database in the new directory `live`: empty, or with the state of a checkpoint.

        Raises CorruptFile or OSError if the base is not whole; nothing is left behind then.
        """
        ...

    def discard(self, live: str) -> None:
        """Remove a closed database; nothing happens if it is not there, or its disk is not."""
        ...


class Files(Protocol):
    """Slices of the worker log, and outputs."""

    def read(self, path: str, spans: Sequence[tuple[int, int]]) -> list[memoryview]:
        """Pieces of one file, each given as (offset, size); shorter only at the file's end."""
        ...

    def write(self, path: str, fill: Callable[[BinaryIO], None]) -> int:
        """A file that `fill` writes: whole under its name, or not there. Returns its bytes.

        Not durable: an output can be made again.
        """
        ...


class RocksVnodes:
    """`Stores` on RocksDB, within one budget."""

    def __init__(self, budget: StoreBudget) -> None:
        self._stores = RocksStores(budget)

    def open(self, live: str, base: str | None) -> RocksStore:
        return self._stores.open(live, base)

    def discard(self, live: str) -> None:
        shutil.rmtree(live, ignore_errors=True)


class HostFiles:
    """`Files` of this machine.

    Slices are read by pread, not mapped: the pages of a map would count as memory of an instance
    that is held to a budget, and every slice is read through once for its checksum anyway.
    """

    def read(self, path: str, spans: Sequence[tuple[int, int]]) -> list[memoryview]:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return [memoryview(_read_at(descriptor, offset, size)) for offset, size in spans]
        finally:
            os.close(descriptor)

    def write(self, path: str, fill: Callable[[BinaryIO], None]) -> int:
        temporary = f"{path}.tmp"
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        try:
            with open(temporary, "wb") as sink:
                fill(sink)
                size = sink.tell()
            os.replace(temporary, path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
        return size


def _read_at(descriptor: int, offset: int, size: int) -> bytes:
    pieces = []
    while size:
        piece = os.pread(descriptor, size, offset)
        if not piece:
            break
        pieces.append(piece)
        offset, size = offset + len(piece), size - len(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)
