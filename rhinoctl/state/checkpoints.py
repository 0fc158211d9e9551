"""The checkpoints of one vnode on one disk: complete or not there at all (design, section 5).

A checkpoint is the directory ``<vnode>/<id>`` with the files that RocksDB made and a manifest.
Invariants (8 and 9 of the design's section 10 among them):

1. A directory with a plain name is complete: it is renamed into place after its manifest, and out
   of place before anything in it is removed. ``.tmp`` is being made, ``.gone`` being removed.
2. A file in a checkpoint has proved its hash: it was hashed here, or it has the stamp (inode,
   size, mtime) of a file that was and that a checkpoint here still holds. A copy has another inode
   and is hashed again.
3. What a lease, a transfer or one of the newest K refers to is never removed; the rest is, at the
   next `retain`.
4. A file whose content has changed since it was hashed here gets into no new checkpoint: not even
   by its new hash, which would make it look good.
5. What vanishes from under this process is bad like any other, and holds up nothing: there is only
   nothing left to set aside or to remove.

All work that reads whole files comes in slices (`Steps`), for single-threaded loops.
"""

import errno
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from enum import Enum
from typing import NamedTuple

from rhinoctl.errors import CorruptFile, ForeignManifest
from rhinoctl.state.disk import Stamp, StampingDisk
from rhinoctl.state.hashing import Steps, hash_file
from rhinoctl.state.leases import Leases
from rhinoctl.state.manifests import (
    MANIFEST,
    STAMPS,
    FileEntry,
    Identity,
    Manifest,
    checked_id,
    decode_checked,
    encode_checked,
    is_id,
)

KEEP = 2
"""Checkpoints that `retain` keeps: an older one serves when the newest is bad."""

_MAKING, _INCOMING, _GONE, _BAD = ".tmp", ".incoming", ".gone", ".bad"

_NOT_THERE = "it is not there"


class Level(Enum):
    """How much `verify` looks at: stamps cost a stat a file, hashes read everything."""

    STAMPS = "stamps"
    HASHES = "hashes"


class Flaw(NamedTuple):
    """What is wrong with a checkpoint, and in which file."""

    file: str
    why: str


class VnodeCheckpoints:
    """What is kept of one vnode under `directory` of a disk, which nobody else writes to.

    `damaged` says, by id, why a checkpoint was set aside, and `flaws` what `look` found. Loading
    removes what a crash left unfinished and sets aside a checkpoint whose manifest is corrupt; it
    raises ForeignManifest, having touched nothing of it, for one of another cluster, job, operator,
    vnode or format.
    """

    def __init__(self, disk: StampingDisk, directory: str, identity: Identity) -> None:
        self.directory = directory
        self.identity = identity
        self.damaged: dict[str, str] = {}
        self.flaws: dict[str, Flaw] = {}
        self._disk = disk
        self._complete: dict[str, Manifest] = {}
        self._sorted: Sequence[Manifest] | None = None
        self._stamps: dict[str, dict[Stamp, str]] = {}
        self._former: dict[Stamp, str] = {}
        self._under_way: set[str] = set()
        self._waiting = ""
        for name in disk.list(directory):
            self._load(name)

    @property
    def disk(self) -> StampingDisk:
        """Where they are kept."""
        return self._disk

    def complete(self) -> Sequence[Manifest]:
        """The complete checkpoints, newest first (by what their manifests cover)."""
        if self._sorted is None:
            self._sorted = sorted(
                self._complete.values(), key=lambda m: (m.covers, m.checkpoint_id), reverse=True
            )
        return self._sorted

    def path_of(self, checkpoint_id: str) -> str:
        """The directory of a checkpoint, relative to the disk. To read and link from only."""
        return f"{self.directory}/{checked_id(checkpoint_id)}"

    # --- a checkpoint that is taken here ----------------------------------------------------------

    def begin(self, checkpoint_id: str) -> str:
        """A directory, not there yet, for `Store.checkpoint` to write; then `finish` or `abandon`.

        Raises FileExistsError if the id is taken.
        """
        if checkpoint_id in self._complete:
            raise FileExistsError(errno.EEXIST, "checkpoint exists", checkpoint_id)
        making = self.path_of(checkpoint_id) + _MAKING
        self._disk.remove(making)
        self._under_way.add(checkpoint_id)
        return making

    def finish(self, manifest: Manifest) -> Steps[Manifest]:
        """Complete what was written since `begin`: hash, make durable, publish.

        `manifest` comes without files; the result has them. What fails leaves nothing behind.
        Raises CorruptFile for a file that was other content in a checkpoint that was set aside.
        """
        making = self.path_of(manifest.checkpoint_id) + _MAKING
        try:
            self._expect_own(manifest)
            names = self._disk.list(making)
            if not names:
                raise FileNotFoundError(errno.ENOENT, "nothing was written", making)
            entries, stamps, fresh = [], {}, []
            for name in names:
                stamp, known = self._stamp(f"{making}/{name}")
                digest = known or (yield from self._hash(f"{making}/{name}", stamp))
                if self._former.get(stamp, digest) != digest:
                    why = "its content is not what it was in a checkpoint that was set aside"
                    raise self._corrupt(manifest.checkpoint_id, name, why)
                entries.append(FileEntry(name=name, size=stamp.size, blake3=digest))
                stamps[stamp] = digest
                if known is None:
                    fresh.append(name)
            whole = replace(manifest, files=tuple(entries))
            yield from self._publish(whole, stamps, fresh)
        except BaseException:
            self.abandon(manifest.checkpoint_id)
            raise
        self._under_way.discard(manifest.checkpoint_id)
        return whole

    def abandon(self, checkpoint_id: str) -> None:
        """Give up a checkpoint that is being made or received; a complete one stays."""
        self._under_way.discard(checkpoint_id)
        for suffix in (_MAKING, _INCOMING):
            self._disk.remove(self.path_of(checkpoint_id) + suffix)

    # --- a checkpoint that comes from another worker ----------------------------------------------

    def missing(self, manifest: Manifest) -> list[FileEntry]:
        """The files whose content no checkpoint here has and that have not arrived whole yet.

        Begins, or resumes, a transfer: append what comes to `incoming`, then `adopt`, `abandon` or
        `rest`.
        """
        self._expect_own(manifest)
        if manifest.checkpoint_id in self._complete:
            return []
        self._under_way.add(manifest.checkpoint_id)
        here = {entry.blake3 for own in self._complete.values() for entry in own.files}
        wanted = {entry.blake3: entry for entry in manifest.files if entry.blake3 not in here}
        lacking = []
        for entry in wanted.values():
            arrived = self._disk.size(self.incoming(manifest, entry))
            if arrived is not None and arrived > entry.size:
                self._disk.remove(self.incoming(manifest, entry))
            if arrived != entry.size:
                lacking.append(entry)
        return lacking

    def incoming(self, manifest: Manifest, entry: FileEntry) -> str:
        """Where a file is received: append in order; a broken transfer resumes at its size."""
        return f"{self.path_of(manifest.checkpoint_id)}{_INCOMING}/{entry.blake3}"

    def rest(self, checkpoint_id: str) -> None:
        """A transfer has ended early. What came waits for the next one of the same checkpoint; no
        more than one waits, the last."""
        self._under_way.discard(checkpoint_id)
        self._waiting = checkpoint_id

    def adopt(self, manifest: Manifest) -> Steps[None]:
        """Complete a checkpoint of files that are here and files that were received.

        Every received file is hashed. Raises CorruptFile, naming the file, for other content: a
        received file is removed then, so that `missing` names it again; a file of a checkpoint
        here is for the caller to `set_aside`. Raises FileNotFoundError while files are missing, or
        where one of a checkpoint here has vanished: see `gone`.
        """
        self._expect_own(manifest)
        checkpoint_id = manifest.checkpoint_id
        if checkpoint_id in self._complete:
            raise FileExistsError(errno.EEXIST, "checkpoint exists", checkpoint_id)
        making = self.path_of(checkpoint_id) + _MAKING
        self._disk.remove(making)
        self._under_way.add(checkpoint_id)
        try:
            stamps, fresh = {}, []
            for entry in manifest.files:
                source, origin = self._source(manifest, entry)
                path = f"{making}/{entry.name}"
                if origin == checkpoint_id and self._disk.size(source) != entry.size:
                    raise FileNotFoundError(errno.ENOENT, "not received yet", entry.name)
                self._disk.link(source, path)
                stamp, known = self._stamp(path)
                digest = known or (yield from self._hash(path, stamp))
                if digest != entry.blake3:
                    if origin == checkpoint_id:
                        self._disk.remove(source)
                    raise self._corrupt(origin, entry.name, "its content is not what was promised")
                stamps[stamp] = digest
                if known is None:
                    fresh.append(entry.name)
            yield from self._publish(manifest, stamps, fresh)
        except BaseException:
            self._disk.remove(making)
            raise
        self.abandon(checkpoint_id)

    # --- what is kept, and whether it is good -----------------------------------------------------

    def verify(self, checkpoint_id: str, level: Level) -> Steps[None]:
        """Raises CorruptFile, naming vnode, checkpoint and file, if anything is not as written.

        A stamp that is not known (another disk, a restored directory) proves nothing, so at either
        level the file is hashed then.
        """
        flaw = yield from self.look(checkpoint_id, level)
        if flaw is not None:
            raise self._corrupt(checkpoint_id, *flaw)

    def look(
        self, checkpoint_id: str, level: Level, read: dict[Stamp, str] | None = None
    ) -> Steps[Flaw | None]:
        """The first thing that is not as written, as `verify` finds it. `read` has the hashes of
        files that were read just now, which are not read again, and takes those of more."""
        flaw = yield from self._look(checkpoint_id, level, {} if read is None else read)
        if flaw is not None and checkpoint_id in self._complete:
            self.flaws[checkpoint_id] = flaw
        return flaw

    def _look(self, checkpoint_id: str, level: Level, seen: dict[Stamp, str]) -> Steps[Flaw | None]:
        manifest = self._complete.get(checkpoint_id)
        if manifest is None:
            return Flaw(MANIFEST, _NOT_THERE)
        if level is Level.HASHES:
            fault = self._manifest_fault(manifest)
            if fault:
                return Flaw(MANIFEST, fault)
        for entry in manifest.files:
            path = f"{self.path_of(checkpoint_id)}/{entry.name}"
            stamp = self._disk.stamp(path)
            if stamp is None:
                return Flaw(entry.name, _NOT_THERE)
            if stamp.size != entry.size:
                return Flaw(entry.name, f"it has {stamp.size} bytes, not {entry.size}")
            if level is Level.STAMPS and self._known(stamp) == entry.blake3:
                continue
            if stamp not in seen:
                try:
                    seen[stamp] = yield from hash_file(self._disk, path)
                except OSError as error:
                    if error.errno not in (errno.EIO, errno.ENOENT):
                        raise
                    return Flaw(entry.name, f"it cannot be read: {error.strerror}")
            if seen[stamp] != entry.blake3:
                return Flaw(entry.name, "its content has changed")
            if checkpoint_id in self._stamps:
                self._stamps[checkpoint_id][stamp] = entry.blake3
        return None

    def _manifest_fault(self, manifest: Manifest) -> str:
        """Why a manifest on disk is not the one that is known, empty if it is."""
        path = f"{self.path_of(manifest.checkpoint_id)}/{MANIFEST}"
        try:
            return "" if self._read_manifest(path) == manifest else "it is another manifest"
        except (CorruptFile, ForeignManifest) as error:
            return error.message
        except FileNotFoundError:
            return _NOT_THERE

    def is_stamped(self, checkpoint_id: str) -> bool:
        """Whether every file of a complete checkpoint is the one that was hashed here before, by
        its stamp: what can be said without reading it."""
        return all(
            (stamp := self._disk.stamp(f"{self.path_of(checkpoint_id)}/{entry.name}")) is not None
            and stamp.size == entry.size
            and self._known(stamp) == entry.blake3
            for entry in self._complete[checkpoint_id].files
        )

    def gone(self) -> list[str]:
        """The complete checkpoints that lack a file, by the names alone: nothing is read."""
        return [
            checkpoint_id
            for checkpoint_id, manifest in self._complete.items()
            if not {MANIFEST, *(entry.name for entry in manifest.files)}.issubset(
                self._disk.list(self.path_of(checkpoint_id))
            )
        ]

    def has_nothing_of(self, checkpoint_id: str) -> bool:
        """Whether a checkpoint's whole directory is gone, or empty."""
        return not self._disk.list(self.path_of(checkpoint_id))

    def set_aside(self, checkpoint_id: str, why: str) -> None:
        """A complete checkpoint is bad: it is not listed any more, and removed by `retain`. Of one
        that has vanished nothing is left to be removed."""
        path = self.path_of(checkpoint_id)
        self._disk.remove(path + _BAD)
        with suppress(FileNotFoundError):
            self._disk.rename(path, path + _BAD)
        self._complete.pop(checkpoint_id, None)
        self._sorted = None
        self._former |= self._stamps.pop(checkpoint_id, {})
        self.damaged[checkpoint_id] = why

    def retain(self, leases: Leases, keep: int = KEEP) -> list[str]:
        """Remove all but the newest `keep`, what is leased and what is under way; returns the ids.

        Bad ones go once `keep` good ones are there: until then they are evidence, and perhaps the
        last copy of some file.
        """
        removed = []
        for manifest in self.complete()[keep:]:
            checkpoint_id = manifest.checkpoint_id
            if checkpoint_id in self._under_way or leases.held(self.identity.vnode, checkpoint_id):
                continue
            self._remove(checkpoint_id)
            removed.append(checkpoint_id)
        for name in self._disk.list(self.directory):
            checkpoint_id, suffix = _split(name)
            waits = suffix == _INCOMING and checkpoint_id == self._waiting
            stale = suffix in (_MAKING, _INCOMING) and checkpoint_id not in self._under_way
            bad = suffix == _BAD and len(self._complete) >= keep
            if (stale and not waits) or suffix == _GONE or bad:
                self._disk.remove(f"{self.directory}/{name}")
        if len(self._complete) >= keep:  # also of what had vanished, and left no directory
            self.damaged.clear()
            self.flaws.clear()
        return removed

    def remove(self) -> None:
        """The vnode leaves this disk, with all that is kept of it."""
        for checkpoint_id in list(self._complete):
            self._remove(checkpoint_id)
        self._disk.remove(self.directory)

    # --- within -----------------------------------------------------------------------------------

    def _load(self, name: str) -> None:
        checkpoint_id, suffix = _split(name)
        path = f"{self.directory}/{name}"
        if not is_id(checkpoint_id):
            return
        if suffix in (_MAKING, _GONE):
            self._disk.remove(path)
        elif suffix == _BAD:
            self.damaged[checkpoint_id] = "set aside before this process started"
            self._former |= self._read_stamps(f"{path}/{STAMPS}")
        elif not suffix and self._disk.size(f"{path}/{MANIFEST}") is None:
            self._disk.remove(path)
        elif not suffix:
            try:
                self._complete[checkpoint_id] = self._read_manifest(f"{path}/{MANIFEST}")
            except CorruptFile as error:
                self.set_aside(checkpoint_id, error.message)
            else:
                self._sorted = None
                self._stamps[checkpoint_id] = self._read_stamps(f"{path}/{STAMPS}")

    def _read_manifest(self, path: str) -> Manifest:
        return Manifest.decode(self._disk.read(path), path=path, expected=self.identity)

    def _read_stamps(self, path: str) -> dict[Stamp, str]:
        """Stamps are only a saving: without them files are hashed again."""
        try:
            body = decode_checked(self._disk.read(path), path=path)
        except (CorruptFile, FileNotFoundError):
            return {}
        return {Stamp(*map(int, text.split(":"))): digest for text, digest in body.items()}

    def _publish(
        self, manifest: Manifest, stamps: dict[Stamp, str], fresh: list[str]
    ) -> Steps[None]:
        """Make the files durable, then the manifest, then the name, in this order."""
        place = self.path_of(manifest.checkpoint_id)
        making = place + _MAKING
        body = {str(stamp): digest for stamp, digest in stamps.items()}
        self._disk.append(f"{making}/{STAMPS}", [encode_checked(body)])
        for name in [*fresh, STAMPS]:
            self._disk.sync([f"{making}/{name}"])
            yield 0
        lost = {entry.name for entry in manifest.files} - {*self._disk.list(making)}
        if lost:
            raise FileNotFoundError(errno.ENOENT, "it has vanished", f"{making}/{min(lost)}")
        self._disk.write_atomic(f"{making}/{MANIFEST}", manifest.encode())
        yield 0
        try:
            self._disk.rename(making, place)
        except OSError:  # the name may be there, and would be in the way of the next try
            with suppress(OSError):
                self._disk.rename(place, place + _GONE)
            raise
        self._complete[manifest.checkpoint_id] = manifest
        self._sorted = None
        self._stamps[manifest.checkpoint_id] = stamps
        for faults in (self.damaged, self.flaws):  # of the bad one that had this id
            faults.pop(manifest.checkpoint_id, None)

    def _source(self, manifest: Manifest, entry: FileEntry) -> tuple[str, str]:
        """Where a content is: its path, and the checkpoint that has it."""
        for own in self._complete.values():
            for there in own.files:
                if there.blake3 == entry.blake3:
                    return f"{self.path_of(own.checkpoint_id)}/{there.name}", own.checkpoint_id
        return self.incoming(manifest, entry), manifest.checkpoint_id

    def _stamp(self, path: str) -> tuple[Stamp, str | None]:
        """The file's stamp, and its hash if the stamp proves it."""
        stamp = self._disk.stamp(path)
        if stamp is None:
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        return stamp, self._known(stamp)

    def _known(self, stamp: Stamp) -> str | None:
        found = (stamps.get(stamp) for stamps in self._stamps.values())
        return next((digest for digest in found if digest is not None), None)

    def _hash(self, path: str, stamp: Stamp) -> Steps[str]:
        digest = yield from hash_file(self._disk, path)
        if self._disk.stamp(path) != stamp:
            raise CorruptFile(
                f"{path} changed while it was read",
                remedy="only one process may write under this directory; take a new checkpoint",
            )
        return digest

    def _remove(self, checkpoint_id: str) -> None:
        path = self.path_of(checkpoint_id)
        with suppress(FileNotFoundError):
            self._disk.rename(path, path + _GONE)
        del self._complete[checkpoint_id], self._stamps[checkpoint_id]
        self._sorted = None
        self._disk.remove(path + _GONE)

    def _expect_own(self, manifest: Manifest) -> None:
        if manifest.identity != self.identity:
            raise ForeignManifest(
                f"a manifest of {manifest.identity} was given to {self.identity}",
                remedy="this is a mistake in the program; nothing was changed",
            )

    def _corrupt(self, checkpoint_id: str, file: str, why: str) -> CorruptFile:
        vnode = self.identity.vnode
        return CorruptFile(
            f"vnode {vnode}, checkpoint {checkpoint_id}, file {file}: {why}",
            remedy="the checkpoint is set aside; an older one or another worker's copy serves",
        )


def _split(name: str) -> tuple[str, str]:
    checkpoint_id, dot, suffix = name.partition(".")
    return checkpoint_id, dot + suffix
