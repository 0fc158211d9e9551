"""What an instance needs of its host: one contract for the real thing and for the world's."""

from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import pytest

from rhino_agent.stores import Files, HostFiles, RocksVnodes, Stores
from rhinoctl.errors import CorruptFile
from rhinoctl.protocol.ports import WriteBatch
from rhinoctl.state.rocks import StoreBudget
from tests.fakes.disk import FakeDisk
from tests.fakes.world_process import Process, ProcessDisk
from tests.fakes.world_store import DiskFiles, DiskStores


class Place:
    """Stores and files, and a directory that they may use."""

    def __init__(self, kind: str, directory: Path) -> None:
        self.root = str(directory) if kind == "host" else "here"
        self.disk = FakeDisk()
        fake = ProcessDisk(self.disk, Process("a test"))
        self.files: Files = HostFiles() if kind == "host" else DiskFiles(fake)
        self.stores: Stores = RocksVnodes(StoreBudget()) if kind == "host" else DiskStores(fake)
        self._kind = kind

    def path(self, name: str) -> str:
        return f"{self.root}/{name}"

    def there(self, name: str) -> bool:
        if self._kind == "host":
            return Path(self.path(name)).exists()
        return self.disk.size(self.path(name)) is not None or bool(self.disk.list(self.path(name)))

    def damage(self, directory: str) -> None:
        """Put other bytes into every file of a directory."""
        if self._kind == "host":
            for file in Path(self.path(directory)).iterdir():
                file.write_bytes(b"something else altogether")
            return
        for name in self.disk.list(self.path(directory)):
            self.disk.corrupt(f"{self.path(directory)}/{name}", b"something else altogether")


@pytest.fixture(params=["host", "world"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    return Place(request.param, tmp_path)


def writing(data: bytes) -> Callable[[BinaryIO], None]:
    def fill(sink: BinaryIO) -> None:
        sink.write(data)

    return fill


def test_a_file_is_read_in_pieces_shorter_only_at_its_end(place: Place) -> None:
    place.files.write(place.path("out/a.arrow"), writing(b"0123456789"))
    pieces = place.files.read(place.path("out/a.arrow"), [(0, 3), (8, 5), (4, 0)])
    assert [bytes(piece) for piece in pieces] == [b"012", b"89", b""]


def test_writing_returns_the_bytes_and_replaces(place: Place) -> None:
    assert place.files.write(place.path("out/a"), writing(b"one")) == 3
    assert place.files.write(place.path("out/a"), writing(b"three")) == 5
    (piece,) = place.files.read(place.path("out/a"), [(0, 9)])
    assert bytes(piece) == b"three"


def test_what_cannot_be_written_whole_is_not_there(place: Place) -> None:
    def fails(sink: BinaryIO) -> None:
        sink.write(b"half")
        raise ValueError("no more")

    with pytest.raises(ValueError, match="no more"):
        place.files.write(place.path("out/a"), fails)
    assert not place.there("out/a")
    assert not place.there("out/a.tmp")


def test_a_missing_file_is_an_oserror(place: Place) -> None:
    with pytest.raises(FileNotFoundError):
        place.files.read(place.path("none"), [(0, 1)])


def test_a_store_begins_empty_or_with_the_state_of_a_checkpoint(place: Place) -> None:
    one = place.stores.open(place.path("live/1"), None)
    assert one.get_many([b"k"]) == [None]
    one.write(WriteBatch([b"k", b"l"], [b"1", b"2"]))
    one.checkpoint(place.path("base"))
    one.write(WriteBatch([b"k"], [b"changed"]))
    two = place.stores.open(place.path("live/2"), place.path("base"))
    assert list(two.scan()) == [(b"k", b"1"), (b"l", b"2")]
    assert two.state_bytes > 0
    one.close()
    two.close()


def test_a_discarded_store_leaves_nothing_and_its_place_can_be_used_again(place: Place) -> None:
    store = place.stores.open(place.path("live/1"), None)
    store.write(WriteBatch([b"k"], [b"1"]))
    store.checkpoint(place.path("base"))
    store.close()
    place.stores.discard(place.path("live/1"))
    place.stores.discard(place.path("live/1"))
    assert not place.there("live/1")
    again = place.stores.open(place.path("live/1"), None)
    assert again.get_many([b"k"]) == [None]
    again.close()


def test_a_base_that_is_not_whole_is_an_error_and_leaves_nothing(place: Place) -> None:
    store = place.stores.open(place.path("live/1"), None)
    store.write(WriteBatch([b"k"], [b"1"]))
    store.checkpoint(place.path("base"))
    store.close()
    place.damage("base")
    with pytest.raises((CorruptFile, OSError)):
        place.stores.open(place.path("live/2"), place.path("base"))
    assert not place.there("live/2")
    with pytest.raises((CorruptFile, OSError)):
        place.stores.open(place.path("live/2"), place.path("no base"))


def test_written_bytes_are_dirty_until_a_flush(place: Place) -> None:
    store = place.stores.open(place.path("live/1"), None)
    clean = store.dirty_bytes
    store.write(WriteBatch([b"k"], [b"1" * 100_000]))
    assert store.dirty_bytes >= 100_000
    store.flush()
    assert store.dirty_bytes <= clean + 10_000
    store.close()
