"""Files that survive: the Disk port over one directory, and the project's one atomic write.

Invariants:

1. What `sync`, `write_atomic` and `rename` returned for is there after a power loss, with its name.
2. A name never shows half a file: `write_atomic` and a copy in place of a link rename a whole one.
3. No path leaves the root.

One process writes under a root, from one thread; it may be read and linked from by others.
"""

import errno
import logging
import os
import shutil
import stat
import tempfile
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Sequence
from contextlib import suppress
from typing import NamedTuple, Protocol

from rhinoctl.errors import DiskNotMounted, UnwritableDirectory
from rhinoctl.protocol.ports import Buffer, Disk

_log = logging.getLogger(__name__)

LinkFunction = Callable[[str, str], None]

OPEN_FILES_MAX = 64
"""Descriptors that `append` keeps: a worker log appends to a few segments of each job at a time."""

CLEAN_DIRECTORIES_MAX = 4096
"""Directories known to be durable; beyond that all are forgotten, which costs fsyncs only."""

IO_VECTORS_MAX = 1024
"""IOV_MAX of Linux."""

INODE_BITS = 64
"""Of an inode's number, which is unique in one file system only."""

LINK_REFUSALS = frozenset({errno.EXDEV, errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK})
"""How file systems say that they cannot link, although a copy would do."""

BROKEN = frozenset({errno.EROFS, errno.EIO})
"""How a disk refuses every write, whatever its room: what a file system turns to after a fault."""

UNWRITABLE = frozenset({errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST})
"""How a directory refuses to be made or written in; EEXIST: a file has its name."""


class Stamp(NamedTuple):
    """What changes when a file is replaced or written to, without reading it.

    Not ctime, which a hard link to the file changes: every checkpoint links the files of the last.
    """

    inode: int
    size: int
    mtime_ns: int

    def __str__(self) -> str:
        return f"{self.inode}:{self.size}:{self.mtime_ns}"


class StampingDisk(Disk, Protocol):
    """A Disk that also knows stamps and absolute paths: what checkpoints are kept on."""

    def stamp(self, path: str) -> Stamp | None:
        """The file's stamp, or None if there is no such file."""
        ...

    def path_of(self, path: str) -> str:
        """The absolute path, for RocksDB and for other processes."""
        ...


class RoomyDisk(StampingDisk, Protocol):
    """A disk that says how much room it has."""

    def free_bytes(self) -> int:
        """Bytes that may still be written."""
        ...

    def volume(self) -> Hashable:
        """The file system: two disks on one share its room."""
        ...

    def refusal(self) -> OSError | None:
        """Why nothing can be written, for another reason than want of room; None if it can."""
        ...

    def close(self) -> None:
        """Give back what is kept open."""
        ...


def write_atomic(path: str, data: Buffer, *, mode: int = 0o644) -> None:
    """Replace a file: after a crash it has the old bytes or the new, durably.

    Raises UnwritableDirectory where the directory refuses, OSError where the disk fails.
    """
    path = os.path.abspath(path)
    directory, name = os.path.split(path)
    try:
        descriptor, temporary = tempfile.mkstemp(prefix=f".{name}.", suffix=".tmp", dir=directory)
    except OSError as error:
        raise _as_refused(error, directory) from error
    try:
        try:
            os.fchmod(descriptor, mode)
            _write_all(descriptor, [data])
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
    _sync_path(directory)


def link_or_copy(source: str, target: str, *, link: LinkFunction = os.link) -> OSError | None:
    """Give a file a second name, or copy it whole where the file system refuses to link.

    Returns the refusal if it was a copy. Neither is durable before a sync. Raises FileExistsError
    if the target exists.
    """
    try:
        link(source, target)
    except OSError as error:
        if error.errno not in LINK_REFUSALS:
            raise
        copy_file(source, target)
        return error
    return None


def copy_file(source: str, target: str) -> None:
    """Copy a file's bytes to a new name, which shows the whole file or nothing."""
    if os.path.lexists(target):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), target)
    directory, name = os.path.split(target)
    descriptor, temporary = tempfile.mkstemp(prefix=f".{name}.", suffix=".tmp", dir=directory)
    os.close(descriptor)
    try:
        shutil.copyfile(source, temporary)
        os.chmod(temporary, stat.S_IMODE(os.stat(source).st_mode))
        os.rename(temporary, target)
    except BaseException:
        os.unlink(temporary)
        raise


def is_temporary(name: str) -> bool:
    """Whether a name is what a killed `write_atomic` or copy leaves behind."""
    return name.startswith(".") and name.endswith(".tmp")


def parts_of(path: str) -> list[str]:
    """The components of a relative path; raises ValueError for one that could leave its root.

    Checked by words alone: links inside the root are made by this package only, and resolving them
    at each call would cost more than the call.
    """
    parts = path.split("/")
    if any(part in ("", ".", "..") or "\0" in part for part in parts):
        raise ValueError(f"not a path below the root: {path!r}")
    return parts


def as_unwritable(error: OSError, directory: str) -> UnwritableDirectory | OSError:
    """The error to raise: one for a person, where it is the directory that refuses."""
    if error.errno not in UNWRITABLE:
        return error
    return UnwritableDirectory(
        f"cannot write in {directory}: {error.strerror}",
        remedy=f"give this user the right to write in {directory}, or name another directory",
    )


def _as_refused(error: OSError, directory: str) -> UnwritableDirectory | OSError:
    """The error of a write to a disk that is in use: that it has become read-only is no matter of
    rights, and whoever bears a disk that refuses bears that."""
    return error if error.errno in BROKEN else as_unwritable(error, directory)


def check_mounted(directory: str, process: str) -> None:
    """Raise DiskNotMounted if a directory for a process's state that was made once is not there: an
    empty one in its place would be taken for a process that has lost everything."""
    if not os.path.isdir(directory):
        raise DiskNotMounted(
            f"{directory} was there and is gone",
            remedy=f"mount its disk, then `rhinoctl restart {process}`; if its state is lost for"
            " good, make the directory by hand: see docs/operations/errors.md",
        )


class LocalDisk:
    """The Disk port over a directory of this machine.

    `copies` counts the links that became copies; the first is announced in the log. `number` tells
    the stamps of a worker's several disks apart. Raises UnwritableDirectory at once if nothing can
    be written under `root`.
    """

    def __init__(self, root: str, *, link: LinkFunction = os.link, number: int = 1) -> None:
        self.root = os.path.abspath(root)
        self._numbered = (number - 1) << INODE_BITS
        self.copies = 0
        self._announced = False
        self._link = link
        self._open: OrderedDict[str, int] = OrderedDict()
        self._clean: set[str] = set()
        self._rooted: set[str] = set()
        try:
            os.makedirs(self.root, exist_ok=True)
            self._probe()
        except OSError as error:
            raise as_unwritable(error, self.root) from error
        _sync_path(os.path.dirname(self.root))

    def free_bytes(self) -> int:
        """Bytes free on the file system."""
        return shutil.disk_usage(self.root).free

    def volume(self) -> Hashable:
        """The file system's device."""
        return os.stat(self.root).st_dev

    def refusal(self) -> OSError | None:
        """Why nothing can be written, found by trying: not every file system that has turned
        read-only after a fault says so of its mount."""
        try:
            if os.statvfs(self.root).f_flag & os.ST_RDONLY:
                return OSError(errno.EROFS, os.strerror(errno.EROFS), self.root)
            self._probe()
        except OSError as error:
            return error if error.errno in BROKEN else None
        return None

    def _probe(self) -> None:
        descriptor, probe = tempfile.mkstemp(prefix=".probe.", suffix=".tmp", dir=self.root)
        os.close(descriptor)
        os.unlink(probe)

    def path_of(self, path: str) -> str:
        """The absolute path, for RocksDB and for other processes."""
        return os.path.join(self.root, *parts_of(path))

    def append(self, path: str, buffers: Sequence[Buffer]) -> int:
        """Write at the end (creating file and directories); returns the offset it was written at.

        All or nothing short of a crash: where the disk is full the file is cut back before OSError
        is raised. Not durable before `sync`.
        """
        descriptor = self._appender(path)
        offset = os.lseek(descriptor, 0, os.SEEK_END)
        try:
            _write_all(descriptor, buffers)
        except OSError:
            with suppress(OSError):
                os.ftruncate(descriptor, offset)
            self._forget_open(path)
            raise
        return offset

    def truncate(self, path: str, size: int) -> None:
        """Cut a file to `size` bytes; raises ValueError if it is shorter."""
        absolute = self.path_of(path)
        if size > os.stat(absolute).st_size:
            raise ValueError(f"{absolute} is shorter than {size} bytes")
        os.truncate(absolute, size)

    def sync(self, paths: Iterable[str]) -> None:
        """Make the files' bytes, names and parent directories durable.

        After an OSError the kernel may have dropped the bytes: treat what was appended since the
        last sync as lost, a second sync would succeed without them.
        """
        paths = list(dict.fromkeys(paths))
        for path in paths:
            cached = self._open.get(path)
            if cached is None:
                _sync_path(self.path_of(path))
                continue
            try:
                os.fsync(cached)
            except OSError:
                self._forget_open(path)
                raise
        for path in paths:
            self._sync_parents(path)

    def read(self, path: str, offset: int = 0, length: int | None = None) -> memoryview:
        """Bytes of a file; fewer than `length` only at its end.

        A copy by pread, not a map: a map of a file that is cut afterwards kills the process with
        SIGBUS, and its pages count as memory of an instance that is held to a budget.
        """
        descriptor = os.open(self.path_of(path), os.O_RDONLY | os.O_CLOEXEC)
        try:
            left = max(0, os.fstat(descriptor).st_size - offset)
            wanted = left if length is None else min(left, length)
            piece = os.pread(descriptor, wanted, offset)
            if len(piece) == wanted:
                return memoryview(piece)
            pieces = [piece]
            while piece and (wanted := wanted - len(piece)):
                offset += len(piece)
                piece = os.pread(descriptor, wanted, offset)
                pieces.append(piece)
            return memoryview(b"".join(pieces))
        finally:
            os.close(descriptor)

    def size(self, path: str) -> int | None:
        """Size in bytes, or None if there is no such file."""
        stamp = self.stamp(path)
        return None if stamp is None else stamp.size

    def stamp(self, path: str) -> Stamp | None:
        """The file's stamp, or None if there is no such file."""
        try:
            status = os.stat(self.path_of(path))
        except (FileNotFoundError, NotADirectoryError):
            return None
        if not stat.S_ISREG(status.st_mode):
            return None
        return Stamp(status.st_ino + self._numbered, status.st_size, status.st_mtime_ns)

    def write_atomic(self, path: str, data: Buffer) -> None:
        """Replace a file: after a crash it has the old bytes or the new, durably."""
        self._make_parents(path)
        self._forget_open(path)
        write_atomic(self.path_of(path), data)
        self._durable(path.rpartition("/")[0])
        self._sync_parents(path)

    def link(self, source: str, target: str) -> None:
        """A hard link; where the file system refuses (EXDEV, EPERM, EOPNOTSUPP, EMLINK), a copy."""
        self._make_parents(target)
        refusal = link_or_copy(self.path_of(source), self.path_of(target), link=self._link)
        self._named(target)
        if refusal is None:
            return
        self.copies += 1
        self.announce(refusal)

    def announce(self, refusal: OSError) -> None:
        """Tell the log that links are refused here; once, however many become copies."""
        if not self._announced:
            self._announced = True
            reason = errno.errorcode[refusal.errno or 0]
            _log.warning(
                "disk.links_become_copies root=%s reason=%s: a checkpoint takes the room of all its"
                " files, and they are written and hashed again",
                self.root,
                reason,
            )

    def rename(self, source: str, target: str) -> None:
        """Rename a file or directory and make the new name durable. What is not there raises
        FileNotFoundError, and nothing is made for it."""
        os.lstat(self.path_of(source))
        self._make_parents(target)
        os.rename(self.path_of(source), self.path_of(target))
        for path in (source, target):
            self._forget_tree(path)
            self._named(path)
            self._sync_parents(path)

    def list(self, path: str) -> list[str]:
        """Names of the entries of a directory, sorted; empty if there is none.

        ``""`` is the root. What a killed write left behind is not shown.
        """
        absolute = self.path_of(path) if path else self.root
        try:
            names = os.listdir(absolute)
        except (FileNotFoundError, NotADirectoryError):
            return []
        return sorted(name for name in names if not is_temporary(name))

    def remove(self, path: str) -> None:
        """Remove a file or a whole tree; nothing happens if it is not there, or somebody else is
        just removing it.

        Not durable: a power loss may bring some of it back. What must not come back in part is
        renamed first.
        """
        absolute = self.path_of(path)
        self._forget_tree(path)
        try:
            os.unlink(absolute)
        except IsADirectoryError:
            _remove_tree(absolute)
        except (FileNotFoundError, NotADirectoryError):
            return

    def close(self) -> None:
        """Close the kept descriptors; the disk can be used on."""
        for path in list(self._open):
            self._forget_open(path)

    def _appender(self, path: str) -> int:
        descriptor = self._open.get(path)
        if descriptor is not None:
            self._open.move_to_end(path)
            return descriptor
        absolute = self.path_of(path)
        flags = os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC
        try:
            descriptor = os.open(absolute, flags)
        except FileNotFoundError:
            descriptor = self._created(path, flags)
        except OSError as error:
            raise _as_refused(error, os.path.dirname(absolute)) from error
        self._open[path] = descriptor
        if len(self._open) > OPEN_FILES_MAX:
            _, oldest = self._open.popitem(last=False)
            os.close(oldest)
        return descriptor

    def _created(self, path: str, flags: int) -> int:
        self._make_parents(path)
        absolute = self.path_of(path)
        try:
            descriptor = os.open(absolute, flags | os.O_CREAT, 0o644)
        except OSError as error:
            raise _as_refused(error, os.path.dirname(absolute)) from error
        self._named(path)
        return descriptor

    def _make_parents(self, path: str) -> None:
        parents = parts_of(path)[:-1]
        if os.path.isdir(os.path.join(self.root, *parents)):
            return
        for depth in range(1, len(parents) + 1):
            directory = "/".join(parents[:depth])
            try:
                os.mkdir(self.path_of(directory))
            except FileExistsError:
                continue
            except OSError as error:
                raise _as_refused(error, self.path_of(directory)) from error
            self._named(directory)

    def _named(self, path: str) -> None:
        """The directory of `path` has a name that is not durable."""
        self._clean.discard(path.rpartition("/")[0])

    def _sync_parents(self, path: str) -> None:
        """Make the names up to the root durable. A directory that is met for the first time may be
        another process's work (RocksDB makes that of a checkpoint), and so a name in its parent
        that we do not know of."""
        unknown, met = False, []
        while path:
            path = path.rpartition("/")[0]
            if unknown or path not in self._clean:
                _sync_path(self.path_of(path) if path else self.root)
                self._durable(path)
            unknown = path not in self._rooted
            met.append(path)
        self._rooted.update(met)

    def _durable(self, directory: str) -> None:
        if len(self._clean) >= CLEAN_DIRECTORIES_MAX:
            self._clean.clear()
            self._rooted.clear()
        self._clean.add(directory)

    def _forget_open(self, path: str) -> None:
        descriptor = self._open.pop(path, None)
        if descriptor is not None:
            os.close(descriptor)

    def _forget_tree(self, path: str) -> None:
        below = path + "/"
        for name in [name for name in self._open if name == path or name.startswith(below)]:
            self._forget_open(name)
        for known in (self._clean, self._rooted):
            known -= {name for name in known if name == path or name.startswith(below)}


def _write_all(descriptor: int, buffers: Sequence[Buffer]) -> None:
    views = [memoryview(buffer) for buffer in buffers]
    pending = [view.cast("B") for view in views if view.nbytes]
    start = 0
    while start < len(pending):
        written = os.writev(descriptor, pending[start : start + IO_VECTORS_MAX])
        while start < len(pending) and written >= len(pending[start]):
            written -= len(pending[start])
            start += 1
        if written:
            pending[start] = pending[start][written:]


def _remove_tree(path: str) -> None:
    """Each time somebody else was quicker there is less of it, so that this ends."""
    while os.path.lexists(path):
        with suppress(FileNotFoundError):
            shutil.rmtree(path)


def _sync_path(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
