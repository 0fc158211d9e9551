"""Which disks a worker has: a list on the first, and a marker on each of the others.

Invariants:

1. A directory is a disk if its marker is the one in the list: an empty mount point is none, nor is
   another disk in its place.
2. Nothing is written in a directory that has anything of somebody else in it.
3. What a disk is, or is no more, is durable before anybody acts on it.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol

from rhinoctl.errors import CorruptFile, DiskFull, DiskRefused, RhinoError, UnknownDisk
from rhinoctl.ids import DiskId
from rhinoctl.protocol import codec
from rhinoctl.protocol.disks import FIRST, DiskState
from rhinoctl.protocol.sizes import size
from rhinoctl.state.disk import RoomyDisk
from rhinoctl.state.manifests import decode_checked, encode_checked
from rhinoctl.state.spread import MARKER, MOVED, MOVING, Member, Place, SpreadDisk, has_live

LIST = "disks.json"

_INCARNATION = "incarnation.json"
"""On each first disk: what an agent writes before anything else (`next_incarnation`)."""

_READ_MAX = 1 << 16
"""A file of somebody else that has the name of one of ours is not read in whole."""

_HARMLESS = frozenset({"lost+found", MARKER})
"""What an empty file system has, and what a broken off `add` leaves."""


class Opener(Protocol):
    """How a directory becomes a disk."""

    def __call__(self, path: str, number: int, *, fresh: bool) -> RoomyDisk:
        """The disk in a directory, which is made if it is `fresh`. Raises OSError if it is not
        there, and UnwritableDirectory."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """Whose disks they are. `incarnation` is the number of the agent's start."""

    cluster: str
    worker: str
    incarnation: int


@dataclass(frozen=True, slots=True)
class _Listed:
    """A disk in the list on the first."""

    name: DiskId
    path: str
    mark: str
    state: DiskState


class Disks:
    """The disks of one worker, as `spread` has them.

    `configured` are directories that are made disks if they never were. A disk that is not there
    is lost, and so is what was on it: `spread` goes on without. Raises DiskRefused, naming it, for
    a configured directory that cannot become one.
    """

    def __init__(
        self, spread: SpreadDisk, opener: Opener, owner: Owner, configured: Sequence[str] = ()
    ) -> None:
        self.spread = spread
        self._opener = opener
        self._owner = owner
        self._configured = {os.path.realpath(path) for path in configured}
        listed = self._read_list()
        for member in map(self._open, listed):
            self._take(member)
        known = {member.path for member in spread.members}
        for path in sorted(self._configured - known):
            self.add(path, asked=False)
        if len(spread.members) > 1 or listed:
            spread.look()
            for member in spread.members:
                self._clear(member)
            self._write_list()

    # --- what there is at the start --------------------------------------------------------------

    def _read_list(self) -> tuple[_Listed, ...]:
        if self.spread.first.size(LIST) is None:
            return ()
        try:
            body = decode_checked(self.spread.first.read(LIST), path=LIST)
            listed: tuple[_Listed, ...] = codec.from_json(tuple[_Listed, ...], body.get("disks"))
        except (CorruptFile, codec.CodecError) as fault:
            path = self.spread.first.path_of(LIST)
            raise CorruptFile(
                f"the list of the disks of worker {self._owner.worker} cannot be read: {path}:"
                f" {fault}",
                remedy="put it back from a backup; or remove it, start without the further disks,"
                " and add them again, emptied: what was on them is fetched from other workers",
            ) from fault
        return listed

    def _write_list(self) -> None:
        more = self.spread.members[1:]
        body = [_Listed(each.name, each.path, each.mark, each.state) for each in more]
        self.spread.first.write_atomic(LIST, encode_checked({"disks": codec.to_json(body)}))

    def _open(self, listed: _Listed) -> Member:
        member = Member(
            name=listed.name,
            path=listed.path,
            mark=listed.mark,
            state=listed.state,
            disk=None,
        )
        try:
            disk = self._opener(listed.path, _number(listed.name), fresh=False)
            member.fault = self._stranger(disk, member) or _refused_by(disk)
            member.disk = None if member.fault else disk
        except (OSError, RhinoError) as fault:
            member.disk, member.fault = None, f"it cannot be used: {_said(fault)}"
        return member

    def _take(self, member: Member) -> None:
        """Put a listed disk among the members, but for an empty one that was taken away for good:
        one that is configured stays known, or it would be made a disk again."""
        if member.disk is None and member.state is not DiskState.EMPTY:
            member.state = DiskState.LOST
        if member.disk is not None or member.state is DiskState.LOST or self._stays(member):
            self.spread.members.append(member)

    def _stays(self, member: Member) -> bool:
        return member.path in self._configured

    def _clear(self, member: Member) -> None:
        """Remove what a crash has left of moves, and what another disk has newer."""
        if member.disk is None:
            return
        for left_over in (MOVED, MOVING):
            member.disk.remove(left_over)
        for job in member.disk.list("jobs"):
            for vnode in member.disk.list(f"jobs/{job}/ckpt"):
                place = Place(job, vnode)
                if self.spread.member_of(place) is not member:
                    member.disk.remove(place.directory)
        if member.state is DiskState.LOST:
            member.state = DiskState.IN_USE

    def _stranger(self, disk: RoomyDisk, member: Member) -> str:
        """Why what is in a directory is not the disk that was there; empty if it is."""
        if disk.size(MARKER) is None:
            return "its marker is not there; is it mounted?"
        try:
            mark = decode_checked(disk.read(MARKER), path=MARKER)
        except CorruptFile as fault:
            return fault.message
        return "" if mark.get("mark") == member.mark else "another disk is in its place"

    def lost(self) -> list[Member]:
        """The disks that are not there."""
        return [member for member in self.spread.members if member.state is DiskState.LOST]

    # --- what changes ----------------------------------------------------------------------------

    def member(self, name: DiskId) -> Member:
        """A disk by its name. Raises UnknownDisk."""
        for member in self.spread.members:
            if member.name == name:
                return member
        names = ", ".join(member.name for member in self.spread.members)
        raise UnknownDisk(
            f"worker {self._owner.worker} has no disk {name}: it has {names}",
            remedy="see `rhinoctl disk list`",
        )

    def add(self, path: str, *, asked: bool = True) -> Member:
        """Make a directory a disk. Raises DiskRefused and UnwritableDirectory; nothing is written
        then."""
        if not os.path.isabs(path):
            raise self._refused(path, "it is no absolute path", "give it as the worker sees it")
        path = os.path.realpath(path)
        self._check_apart(path)
        number = 1 + max(_number(member.name) for member in self.spread.members)
        name = DiskId(f"d{number}")
        try:
            disk = self._opener(path, number, fresh=True)
            self._check_empty(disk, path)
            mark = f"{self._owner.worker}-{name}-{self._owner.incarnation}"
            body = {"cluster": self._owner.cluster, "worker": self._owner.worker, "mark": mark}
            disk.write_atomic(MARKER, encode_checked(body))
        except OSError as fault:
            raise self._refused(
                path, f"it cannot be used: {_said(fault)}", "look at the disk, or name another"
            ) from fault
        member = Member(name=name, path=path, mark=mark, state=DiskState.IN_USE, disk=disk)
        before = list(self.spread.members)
        self.spread.members = [each for each in before if each.path != path] + [member]
        try:
            self._write_list()
        except OSError:
            self.spread.members = before
            raise
        if asked:
            self.spread.look()
        return member

    def _check_apart(self, path: str) -> None:
        for member in self.spread.members:
            there = os.path.realpath(member.path)
            if path == there and member.state is DiskState.LOST:
                why = f"it is disk {member.name}, which is lost: {member.fault}"
                raise self._refused(path, why, "bring it back, and start the agent again")
            if path == there and member.state is not DiskState.EMPTY:
                why = f"it is disk {member.name} of worker {self._owner.worker} already"
                raise self._refused(path, why, "see `rhinoctl disk list`; name another directory")
            if path != there and os.path.commonpath([path, there]) in (path, there):
                inside = "inside" if path.startswith(there) else "around"
                why = f"it is {inside} {there}, disk {member.name} of this worker"
                raise self._refused(path, why, "name a directory beside it")
        around = _disk_around(path)
        if around:
            why = f"it is inside {around}, a disk of another worker"
            raise self._refused(path, why, "name a directory beside it")

    def _check_empty(self, disk: RoomyDisk, path: str) -> None:
        names = set(disk.list(""))
        own = [m for m in self.spread.members if (m.path, m.state) == (path, DiskState.EMPTY)]
        if own and not self._stranger(disk, own[0]):
            disk.remove("jobs")
            for left_over in (MOVED, MOVING):
                disk.remove(left_over)
            return
        remedy = "name an empty directory, or empty this one if nobody needs what is in it"
        if MARKER in names:
            try:
                mark = decode_checked(disk.read(MARKER), path=MARKER)
            except CorruptFile:
                mark = {}
            cluster, worker = mark.get("cluster"), mark.get("worker")
            if (cluster, worker) != (self._owner.cluster, self._owner.worker):
                why = f"it is a disk of worker {worker} of cluster {cluster}"
                raise self._refused(path, why, remedy)
        if names - _HARMLESS:
            some = ", ".join(sorted(names - _HARMLESS)[:3])
            raise self._refused(path, f"it is not empty: {some}", remedy)

    def _refused(self, path: str, why: str, remedy: str) -> DiskRefused:
        worker = self._owner.worker
        return DiskRefused(f"{path} cannot be a disk of worker {worker}: {why}", remedy=remedy)

    def retire(self, name: DiskId, needed: int) -> Member:
        """A disk gets no vnode any more, and those on it, of so many bytes, are to leave it. To one
        that is retired already nothing happens. Raises UnknownDisk, DiskRefused and DiskFull."""
        member = self.member(name)
        if member.name == FIRST:
            raise DiskRefused(
                f"disk {name} of worker {self._owner.worker} has its log, and cannot be retired",
                remedy="take all off the worker, `rhinoctl drain`, to replace this disk",
            )
        if member.state is DiskState.LOST:
            raise DiskRefused(
                f"disk {name} of worker {self._owner.worker} is lost: there is nothing to move",
                remedy="copies of what was on it are made anew by themselves; if it does not come"
                f" back, give it up: `rhinoctl disk retire {self._owner.worker}:{name} --lost`",
            )
        if member.state is DiskState.IN_USE:
            room = self._room_without(member)
            if needed > room:
                raise DiskFull(
                    f"disk {name} has {size(needed)}, and the other disks of worker"
                    f" {self._owner.worker} have room for {size(room)} of them",
                    remedy="add a disk first, `rhinoctl disk add`, or take vnodes off the worker",
                )
            self._become(member, DiskState.RETIRING)
        return member

    def give_up(self, name: DiskId) -> Member:
        """A lost disk does not come back: should it do so, what is on it is removed. Raises
        UnknownDisk, and DiskRefused for one that is not lost."""
        member = self.member(name)
        if member.state is not DiskState.LOST:
            raise DiskRefused(
                f"disk {name} of worker {self._owner.worker} is {member.state.value}, not lost",
                remedy="leave --lost out: what is on it is moved to the other disks",
            )
        self._become(member, DiskState.EMPTY)
        member.fault = ""
        return member

    def _room_without(self, member: Member) -> int:
        """Bytes that the other disks may take."""
        state, member.state = member.state, DiskState.RETIRING
        room = self.spread.free_bytes()
        member.state = state
        return room

    def moved(self, place: Place, staged: str, to: Member) -> None:
        """All that a vnode has is whole in a directory of another disk: it is there from now on,
        and leaves the old one. A crash in between leaves it on the old one."""
        source = self.spread.member_of(place)
        assert source.disk is not None
        assert to.disk is not None
        to.disk.remove(place.directory)
        if to.disk.list(staged):
            to.disk.rename(staged, place.directory)
        gone = f"{MOVED}/{place.job}-{place.vnode}"
        source.disk.remove(gone)
        if source.disk.list(place.directory):
            source.disk.rename(place.directory, gone)
        else:
            source.disk.remove(place.directory)
        self.spread.put(place, to)
        source.disk.remove(gone)

    def find_empty(self) -> list[Member]:
        """The disks that have nothing left on them since the last time."""
        found = []
        for member in self.spread.members:
            retiring = member.state is DiskState.RETIRING and member.disk is not None
            if retiring and not self.spread.places(member):
                assert member.disk is not None
                if not has_live(member.disk):
                    self._become(member, DiskState.EMPTY)
                    found.append(member)
        return found

    def find_refusing(self) -> dict[DiskId, str]:
        """The disks that refuse every write, and why. To an empty one nothing is written."""
        return {
            member.name: why
            for member in self.spread.members
            if member.disk is not None and member.state is not DiskState.EMPTY
            if (why := _refused_by(member.disk))
        }

    def find_lost(
        self, refusing: Mapping[DiskId, str] = MappingProxyType({})
    ) -> list[tuple[Member, list[Place]]]:
        """The disks that are not there any more, or have been `refusing` for too long, and the
        vnodes that were on them."""
        found = []
        for member in self.spread.members[1:]:
            if member.disk is None:
                continue
            try:
                fault = self._stranger(member.disk, member) or refusing.get(member.name, "")
            except OSError as error:
                fault = f"it cannot be read: {_said(error)}"
            if fault and member.state is DiskState.EMPTY:
                member.disk, member.fault = None, fault
                if not self._stays(member):
                    self.spread.members.remove(member)
                    self._write_list()
            elif fault:
                self._become(member, DiskState.LOST)
                member.fault = fault
                found.append((member, self.spread.lose(member)))
        return found

    def _become(self, member: Member, state: DiskState) -> None:
        before, member.state = member.state, state
        try:
            self._write_list()
        except OSError:
            member.state = before
            raise


def _disk_around(path: str) -> str:
    """The nearest directory above that some worker has for a disk; empty if there is none."""
    above = os.path.dirname(path)
    while above != path:
        if any(_is_ours(f"{above}/{name}") for name in (MARKER, _INCARNATION)):
            return above
        path, above = above, os.path.dirname(above)
    return ""


def _is_ours(file: str) -> bool:
    """Whether a file is there that an agent has written, and nobody else with that name."""
    try:
        with open(file, "rb") as content:
            data = content.read(_READ_MAX)
        decode_checked(data, path=file) if file.endswith(MARKER) else codec.loads(int, data)
    except (OSError, CorruptFile, codec.CodecError):
        return False
    return True


def _number(name: DiskId) -> int:
    return int(name[1:])


def _refused_by(disk: RoomyDisk) -> str:
    """Why a disk cannot be written to; empty if it can."""
    why = disk.refusal()
    return "" if why is None else f"it cannot be written to: {_said(why)}"


def _said(fault: OSError | RhinoError) -> str:
    if isinstance(fault, RhinoError):
        return fault.message
    return fault.strerror or str(fault)
