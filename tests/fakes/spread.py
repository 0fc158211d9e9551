"""A disk made of several, without the list and the markers that an agent keeps of them."""

from collections.abc import Iterable, Sequence

from rhinoctl.ids import DiskId
from rhinoctl.protocol.disks import DiskState
from rhinoctl.protocol.ports import Buffer
from rhinoctl.state.disk import RoomyDisk, Stamp, StampingDisk
from rhinoctl.state.spread import Member, SpreadDisk


def spread(disks: Sequence[RoomyDisk]) -> SpreadDisk:
    """The disks d1, d2 … as one."""
    whole = SpreadDisk(disks[0], "d1")
    for number, disk in enumerate(disks[1:], start=2):
        name = DiskId(f"d{number}")
        member = Member(name=name, path=name, mark=name, state=DiskState.IN_USE, disk=disk)
        whole.members.append(member)
    whole.look()
    return whole


class Below:
    """A directory of a disk, as a disk of its own."""

    def __init__(self, disk: StampingDisk, directory: str) -> None:
        self._disk = disk
        self._directory = directory

    def _below(self, path: str) -> str:
        return f"{self._directory}/{path}"

    def path_of(self, path: str) -> str:
        return self._disk.path_of(self._below(path))

    def append(self, path: str, buffers: Sequence[Buffer]) -> int:
        return self._disk.append(self._below(path), buffers)

    def truncate(self, path: str, size: int) -> None:
        self._disk.truncate(self._below(path), size)

    def sync(self, paths: Iterable[str]) -> None:
        self._disk.sync(map(self._below, paths))

    def read(self, path: str, offset: int = 0, length: int | None = None) -> memoryview:
        return self._disk.read(self._below(path), offset, length)

    def size(self, path: str) -> int | None:
        return self._disk.size(self._below(path))

    def stamp(self, path: str) -> Stamp | None:
        return self._disk.stamp(self._below(path))

    def write_atomic(self, path: str, data: Buffer) -> None:
        self._disk.write_atomic(self._below(path), data)

    def link(self, source: str, target: str) -> None:
        self._disk.link(self._below(source), self._below(target))

    def rename(self, source: str, target: str) -> None:
        self._disk.rename(self._below(source), self._below(target))

    def list(self, path: str) -> list[str]:
        return self._disk.list(self._below(path) if path else self._directory)

    def remove(self, path: str) -> None:
        self._disk.remove(self._below(path))
