"""The disks of one host by their absolute paths, as its instance processes see them."""

from collections.abc import Iterable, Mapping, Sequence

from rhinoctl.protocol.ports import Buffer
from rhinoctl.state.disk import Stamp
from tests.fakes.disk import FakeDisk


class Mounts:
    """The Disk port over several: `further` by their directories, `first` for all other paths."""

    def __init__(self, first: FakeDisk, further: Mapping[str, FakeDisk]) -> None:
        self._first = first
        self._further = further

    def _at(self, path: str) -> tuple[FakeDisk, str]:
        for mount, disk in self._further.items():
            if path.startswith(f"{mount}/"):
                return disk, path[len(mount) + 1 :]
        return self._first, path

    def path_of(self, path: str) -> str:
        return path

    def volume(self) -> int:
        return id(self)

    def append(self, path: str, buffers: Sequence[Buffer]) -> int:
        disk, path = self._at(path)
        return disk.append(path, buffers)

    def truncate(self, path: str, size: int) -> None:
        disk, path = self._at(path)
        disk.truncate(path, size)

    def sync(self, paths: Iterable[str]) -> None:
        for path in paths:
            disk, below = self._at(path)
            disk.sync([below])

    def read(self, path: str, offset: int = 0, length: int | None = None) -> memoryview:
        disk, path = self._at(path)
        return disk.read(path, offset, length)

    def size(self, path: str) -> int | None:
        disk, path = self._at(path)
        return disk.size(path)

    def stamp(self, path: str) -> Stamp | None:
        disk, path = self._at(path)
        return disk.stamp(path)

    def write_atomic(self, path: str, data: Buffer) -> None:
        disk, path = self._at(path)
        disk.write_atomic(path, data)

    def link(self, source: str, target: str) -> None:
        """Between two disks the file is copied, as everywhere in the product."""
        (there, one), (here, two) = self._at(source), self._at(target)
        if there is here:
            there.link(one, two)
        else:
            here.copies += 1
            here.append(two, [there.read(one)])

    def rename(self, source: str, target: str) -> None:
        (there, one), (here, two) = self._at(source), self._at(target)
        assert there is here, "no rename goes from one file system to another"
        there.rename(one, two)

    def list(self, path: str) -> list[str]:
        disk, path = self._at(path)
        return disk.list(path)

    def remove(self, path: str) -> None:
        disk, path = self._at(path)
        disk.remove(path)

    def free_bytes(self) -> int:
        return self._first.free_bytes()

    def refusal(self) -> OSError | None:
        return self._first.refusal()
