"""One Disk made of several: each vnode of a job has all its files on one of them.

Checkpoints and live databases of a vnode link each other's files, which only files of one file
system can; so a vnode's directories are kept together. Everything else is on the first disk.

Invariants:

1. A vnode is where its directory is: there is no other record of it that could be wrong.
2. A vnode that is on no disk yet goes to the one with the most room for each vnode that it has.
3. A disk that is being retired, or is lost, gets no vnode.
"""

import errno
import logging
import os
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

from rhinoctl.ids import DiskId
from rhinoctl.protocol.disks import FIRST, DiskState
from rhinoctl.protocol.ports import Buffer
from rhinoctl.state.disk import RoomyDisk, Stamp, parts_of

_log = logging.getLogger(__name__)

COPY_BYTES = 1 << 20
"""Read at once where a file is copied to another disk."""

MOVED = "moved"
"""Where a disk has what has left it and is being removed."""

MOVING = "moving"
"""Where a disk has what comes to it from another one and is not whole yet."""

MARKER = "disk.json"
"""What a disk other than the first is known by; its own, and not shown."""


class Place(NamedTuple):
    """A vnode of a job, as paths name them."""

    job: str
    vnode: str

    @property
    def directory(self) -> str:
        """Of its checkpoints, on whatever disk."""
        return f"jobs/{self.job}/ckpt/{self.vnode}"


@dataclass(eq=False, slots=True, kw_only=True)
class Member:
    """One of the disks. `mark` is in its marker, empty for the first; `disk` is None while it is
    lost, or empty and gone."""

    name: DiskId
    path: str
    mark: str
    state: DiskState
    disk: RoomyDisk | None
    fault: str = ""

    @property
    def usable(self) -> bool:
        """Whether vnodes may come to it."""
        return self.disk is not None and self.state is DiskState.IN_USE

    def room(self) -> int:
        """Bytes that may still be written; none on one that does not answer."""
        try:
            return 0 if self.disk is None else self.disk.free_bytes()
        except OSError:
            return 0


def first_member(disk: RoomyDisk, path: str) -> Member:
    """The disk that every worker has."""
    return Member(name=FIRST, path=path, mark="", state=DiskState.IN_USE, disk=disk)


class SpreadDisk:
    """The Disk port over the disks of a worker, of which the first is never lost or retired."""

    def __init__(self, first: RoomyDisk, path: str = "") -> None:
        self.first = first
        self.members = [first_member(first, path)]
        self.copies = 0
        self._where: dict[Place, Member] = {}

    # --- which disk ------------------------------------------------------------------------------

    def places(self, member: Member) -> list[Place]:
        """The vnodes of a disk; of the only one it is not known."""
        return sorted(place for place, at in self._where.items() if at is member)

    def member_of(self, place: Place) -> Member:
        """The disk of a vnode, the first if it is on none."""
        return self._where.get(place, self.members[0])

    def look(self) -> None:
        """See where every vnode is. Of two disks with the same vnode, one that is being retired has
        the newer state, and one that came back the older."""
        there = [member for member in self.members if member.state is not DiskState.EMPTY]
        order = sorted(there, key=_trust)
        found: dict[Place, Member] = {}
        for within in (("ckpt",), ("live",)):
            for member in order:
                if member.disk is not None:
                    for place in _found(member.disk, within):
                        found.setdefault(place, member)
        self._where = found

    def roomiest(self) -> Member:
        """Where the next vnode goes."""
        vnodes = Counter(member.name for member in self._where.values())
        usable = [member for member in self.members if member.usable]
        return max(usable, key=lambda member: member.room() / (vnodes[member.name] + 1))

    def put(self, place: Place, member: Member) -> None:
        """A vnode is on another disk from now on: all that is to be there is there."""
        self._where[place] = member

    def lose(self, member: Member) -> list[Place]:
        """A disk is gone; returns the vnodes that were on it, which are nowhere now."""
        lost = self.places(member)
        member.disk = None
        for place in lost:
            del self._where[place]
        return lost

    def _at(self, path: str) -> RoomyDisk:
        """Where a path is to be looked for."""
        place = None if len(self.members) == 1 else _place_of(path)
        member = self.members[0] if place is None else self.member_of(place)
        return member.disk or self.first

    def _to(self, path: str) -> RoomyDisk:
        """Where a path is to be written."""
        place = None if len(self.members) == 1 else _place_of(path)
        if place is not None and place not in self._where:
            self._where[place] = self.roomiest()
        return self._at(path)

    def _disks(self) -> Iterator[RoomyDisk]:
        return (member.disk for member in self.members if member.disk is not None)

    # --- the port --------------------------------------------------------------------------------

    def path_of(self, path: str) -> str:
        """The absolute path, for RocksDB and for other processes; a new vnode gets its disk."""
        return self._to(path).path_of(path)

    def append(self, path: str, buffers: Sequence[Buffer]) -> int:
        return self._to(path).append(path, buffers)

    def truncate(self, path: str, size: int) -> None:
        self._at(path).truncate(path, size)

    def sync(self, paths: Iterable[str]) -> None:
        by_disk: dict[RoomyDisk, list[str]] = {}
        for path in paths:
            by_disk.setdefault(self._at(path), []).append(path)
        for disk, mine in by_disk.items():
            disk.sync(mine)

    def read(self, path: str, offset: int = 0, length: int | None = None) -> memoryview:
        return self._at(path).read(path, offset, length)

    def size(self, path: str) -> int | None:
        return self._at(path).size(path)

    def stamp(self, path: str) -> Stamp | None:
        return self._at(path).stamp(path)

    def write_atomic(self, path: str, data: Buffer) -> None:
        self._to(path).write_atomic(path, data)

    def link(self, source: str, target: str) -> None:
        """A hard link; between two disks a copy, announced once."""
        there, here = self._at(source), self._to(target)
        if there is here:
            there.link(source, target)
            return
        if here.size(target) is not None or here.list(target):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), target)
        _copy(there, source, here, target)
        self.copies += 1
        if self.copies == 1:
            _log.warning("disk.link_became_copy target=%s reason=EXDEV", here.path_of(target))

    def rename(self, source: str, target: str) -> None:
        """Rename a file or directory and make the new name durable. On the first disk first: what
        is there decides what becomes of the rest after a crash."""
        parts_of(source), parts_of(target)
        if len(self.members) == 1 or not _spans(source):
            there = self._at(source)
            if there is not self._to(target):
                raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), target)
            there.rename(source, target)
            return
        renamed = 0
        for disk in self._disks():
            with suppress(FileNotFoundError):
                disk.rename(source, target)
                renamed += 1
        if not renamed:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), source)
        self.look()

    def list(self, path: str) -> list[str]:
        """Names of the entries of a directory, sorted, on whatever disk; empty if there is none."""
        if len(self.members) == 1 or not _spans(path):
            return (self._at(path) if path else self.first).list(path)
        names = {name for disk in self._disks() for name in disk.list(path)}
        return sorted(names if path else names - {MARKER, MOVED, MOVING})

    def remove(self, path: str) -> None:
        """Remove a file or a whole tree on all disks; nothing happens if it is not there."""
        place = _place_of(path)
        if len(self.members) == 1 or not (_spans(path) or (place and place.directory == path)):
            self._at(path).remove(path)
            return
        for disk in self._disks():
            disk.remove(path)
        for gone in [p for p in self._where if f"{p.directory}/".startswith(f"{path}/")]:
            del self._where[gone]

    def free_bytes(self) -> int:
        """Bytes that may still be written, over all disks that vnodes may come to."""
        volumes: dict[Hashable, int] = {}
        for member in self.members:
            if member.disk is not None and member.usable:
                with suppress(OSError):
                    volumes.setdefault(member.disk.volume(), member.disk.free_bytes())
        return sum(volumes.values())

    def refusal(self) -> OSError | None:
        """Why one of the disks cannot be written to; None if all can."""
        return next((why for disk in self._disks() if (why := disk.refusal()) is not None), None)

    def volume(self) -> Hashable:
        """That of the first disk."""
        return self.first.volume()

    def close(self) -> None:
        """Close what every disk keeps open."""
        for disk in self._disks():
            disk.close()


def _place_of(path: str) -> Place | None:
    """The vnode that a path belongs to."""
    if not path.startswith("jobs/"):
        return None
    parts = path.split("/", 6)
    if len(parts) > 3 and parts[2] == "ckpt":
        return Place(parts[1], parts[3])
    if len(parts) > 5 and parts[2] == "live":
        return Place(parts[1], parts[5])
    return None


def _spans(path: str) -> bool:
    """Whether directories of vnodes are below a path."""
    parts = path.split("/")
    if not path or path in ("jobs", "bad"):
        return True
    if parts[0] != "jobs":
        return parts[0] == "bad" and len(parts) == 2
    return (
        len(parts) == 2
        or (parts[2] == "ckpt" and len(parts) == 3)
        or (parts[2] == "live" and len(parts) <= 5)
    )


def _trust(member: Member) -> int:
    """Which of two disks has a vnode: the one of the lower number."""
    return {DiskState.RETIRING: 0, DiskState.IN_USE: 1}.get(member.state, 2)


def _found(disk: RoomyDisk, within: Iterable[str] = ("ckpt", "live")) -> set[Place]:
    """The vnodes that have directories on a disk: of checkpoints, or of live databases."""
    found = set()
    for job in disk.list("jobs"):
        below = f"jobs/{job}"
        if "ckpt" in within:
            found |= {Place(job, vnode) for vnode in disk.list(f"{below}/ckpt")}
        if "live" in within:
            found |= {Place(job, vnode) for vnode in _live(disk, f"{below}/live")}
    return found


def _live(disk: RoomyDisk, below: str) -> Iterator[str]:
    for instance in disk.list(below):
        for incarnation in disk.list(f"{below}/{instance}"):
            yield from disk.list(f"{below}/{instance}/{incarnation}")


def has_live(disk: RoomyDisk) -> bool:
    """Whether instances have databases on a disk."""
    return bool(_found(disk, ("live",)))


def _copy(there: RoomyDisk, source: str, here: RoomyDisk, target: str) -> None:
    """Copy a file to another disk, where its name shows the whole file or nothing."""
    directory, _, name = target.rpartition("/")
    temporary = f"{directory}/.{name}.tmp" if directory else f".{name}.tmp"
    here.remove(temporary)
    at, piece = 0, there.read(source, 0, COPY_BYTES)
    here.append(temporary, [piece])
    try:
        while len(piece):
            at += len(piece)
            piece = there.read(source, at, COPY_BYTES)
            here.append(temporary, [piece])
        here.rename(temporary, target)
    except BaseException:
        here.remove(temporary)
        raise
