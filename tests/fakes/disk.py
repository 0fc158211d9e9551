"""A Disk in memory that loses at a crash what was not made durable, as a real one may."""

import errno
import itertools
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from random import Random

from rhinoctl.protocol.ports import Buffer
from rhinoctl.state.disk import Stamp, parts_of

ROOM_BYTES = 1 << 40
"""What is free on a disk without bounds."""


@dataclass(eq=False)
class _File:
    inode: int
    data: bytearray = field(default_factory=bytearray)
    durable: bytes = b""
    changed: int = 0


@dataclass(eq=False)
class _Directory:
    entries: dict[str, "_File | _Directory"] = field(default_factory=dict)
    durable: dict[str, "_File | _Directory"] = field(default_factory=dict)


class FakeDisk:
    """The Disk port in memory; `crash` is a power loss.

    `capacity_bytes` bounds the bytes of all appends and atomic writes (a full disk); `copies`
    counts links that became copies while `link_refusal` holds an errno. `tally` counts what was
    done to files: how many lost bytes in a crash, how many of them were torn, and how many writes a
    full disk refused. Absolute paths begin with `mount`; a disk that is `gone` answers nothing but
    errors, as one whose cable was pulled, and one that is `read_only` refuses every change.
    """

    def __init__(
        self, *, capacity_bytes: int | None = None, mount: str = "", number: int = 1
    ) -> None:
        self.capacity_bytes = capacity_bytes
        self.mount = mount
        self.gone = False
        self.read_only = False
        self.link_refusal: int | None = None
        self.copies = 0
        self.tally: Counter[str] = Counter()
        self._root = _Directory()
        self._numbers = itertools.count(1 + ((number - 1) << 64))

    def path_of(self, path: str) -> str:
        parts_of(path)
        return self.mount + path

    def volume(self) -> int:
        return id(self)

    def close(self) -> None: ...

    def append(self, path: str, buffers: Sequence[Buffer]) -> int:
        data = b"".join(buffers)
        self._check_writable()
        self._charge(len(data))
        file = self._find(path)
        if file is None:
            file = self._new_file(path)
        if isinstance(file, _Directory):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        offset = len(file.data)
        file.data += data
        file.changed = next(self._numbers)
        return offset

    def truncate(self, path: str, size: int) -> None:
        self._check_writable()
        file = self._file(path)
        if size > len(file.data):
            raise ValueError(f"{path} is shorter than {size} bytes")
        del file.data[size:]
        file.changed = next(self._numbers)

    def sync(self, paths: Iterable[str]) -> None:
        for path in paths:
            node = self._find(path)
            if node is None:
                raise _missing(path)
            if isinstance(node, _File):
                node.durable = bytes(node.data)
            else:
                node.durable = dict(node.entries)
            self._sync_parents(path)

    def read(self, path: str, offset: int = 0, length: int | None = None) -> memoryview:
        data = self._file(path).data
        end = len(data) if length is None else offset + length
        return memoryview(bytes(data[offset:end]))

    def size(self, path: str) -> int | None:
        stamp = self.stamp(path)
        return None if stamp is None else stamp.size

    def stamp(self, path: str) -> Stamp | None:
        file = self._find(path)
        if not isinstance(file, _File):
            return None
        return Stamp(file.inode, len(file.data), file.changed)

    def write_atomic(self, path: str, data: Buffer) -> None:
        self._check_writable()
        self._charge(len(data))
        content = bytes(data)
        parent, name = self._parent(path)
        file = _File(next(self._numbers), bytearray(content), content, next(self._numbers))
        parent.entries[name] = file
        self._sync_parents(path)

    def link(self, source: str, target: str) -> None:
        self._check_writable()
        file = self._file(source)
        parent, name = self._parent(target)
        if name in parent.entries:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), target)
        if self.link_refusal is None:
            parent.entries[name] = file
            return
        self.copies += 1
        copy = _File(next(self._numbers), bytearray(file.data), b"", next(self._numbers))
        parent.entries[name] = copy

    def rename(self, source: str, target: str) -> None:
        node = self._find(source)
        if node is None:
            raise _missing(source)
        self._check_writable()
        parent, name = self._parent(target)
        there = parent.entries.get(name)
        if isinstance(there, _Directory) and there.entries:
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), target)
        old_parent, old_name = self._parent(source)
        del old_parent.entries[old_name]
        parent.entries[name] = node
        self._sync_parents(target)
        self._sync_parents(source)

    def list(self, path: str) -> list[str]:
        self._check_there()
        node = self._find(path) if path else self._root
        return sorted(node.entries) if isinstance(node, _Directory) else []

    def remove(self, path: str) -> None:
        self._check_writable()
        node = self._find(path)
        if node is None:
            return
        if isinstance(node, _Directory):
            for name in list(node.entries):
                self.remove(f"{path}/{name}")
        parent, name = self._parent(path)
        del parent.entries[name]

    # --- what tests do to it ----------------------------------------------------------------------

    def crash(self, keep: Random | None = None) -> None:
        """A power loss: what was made durable stays; of the rest each name change stays or not
        and each file keeps part of its new bytes, or zeros in their place, as `keep` draws.
        None keeps nothing that was not durable."""
        self._crash(self._root, keep, set())

    def corrupt(self, path: str, data: bytes) -> None:
        """Put other bytes into a file in place, durably: its stamp changes, its inode does not."""
        file = self._file(path)
        file.data[:] = data
        file.durable = data
        file.changed = next(self._numbers)

    def durable(self, path: str) -> bytes | None:
        """What a power loss now would surely leave of a file, if its name is durable, too."""
        node: _File | _Directory | None = self._root
        for part in parts_of(path):
            if not isinstance(node, _Directory):
                return None
            node = node.durable.get(part)
        return node.durable if isinstance(node, _File) else None

    def files(self, under: str = "") -> Iterator[str]:
        """The paths of all files below a directory, sorted."""
        for name in self.list(under):
            path = f"{under}/{name}" if under else name
            if isinstance(self._find(path), _Directory):
                yield from self.files(path)
            else:
                yield path

    def rot(self, path: str, position: int) -> None:
        """Flip a byte on the platter: not even the stamp changes."""
        file = self._file(path)
        file.data[position] ^= 0xFF
        file.durable = bytes(file.data)

    def _crash(self, directory: _Directory, keep: Random | None, seen: set[int]) -> None:
        survivors = dict(directory.durable)
        for name in sorted({*directory.entries, *directory.durable}):
            now, before = directory.entries.get(name), directory.durable.get(name)
            if now is before or keep is None or keep.random() < 0.5:
                continue
            if now is None:
                del survivors[name]
            else:
                survivors[name] = now
        directory.entries, directory.durable = survivors, dict(survivors)
        for name in sorted(survivors):
            node = survivors[name]
            if id(node) in seen:
                continue
            seen.add(id(node))
            if isinstance(node, _Directory):
                self._crash(node, keep, seen)
            else:
                self.tally[_tear(node, keep)] += 1

    def _charge(self, size: int) -> None:
        if self.capacity_bytes is None:
            return
        if self.bytes_used() + size > self.capacity_bytes:
            self.tally["refused"] += 1
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def free_bytes(self) -> int:
        """Bytes that may still be written."""
        self._check_there()
        if self.capacity_bytes is None:
            return ROOM_BYTES
        return max(0, self.capacity_bytes - self.bytes_used())

    def bytes_used(self) -> int:
        """Bytes of all files, each counted once."""
        files: dict[int, int] = {}
        pending = [self._root]
        while pending:
            for node in pending.pop().entries.values():
                if isinstance(node, _Directory):
                    pending.append(node)
                else:
                    files[node.inode] = len(node.data)
        return sum(files.values())

    def _find(self, path: str) -> "_File | _Directory | None":
        self._check_there()
        node: _File | _Directory | None = self._root
        for part in parts_of(path):
            if not isinstance(node, _Directory):
                return None
            node = node.entries.get(part)
        return node

    def _file(self, path: str) -> _File:
        node = self._find(path)
        if node is None:
            raise _missing(path)
        if isinstance(node, _Directory):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        return node

    def _check_there(self) -> None:
        if self.gone:
            raise OSError(errno.EIO, os.strerror(errno.EIO), self.mount)

    def _check_writable(self) -> None:
        if self.read_only:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), self.mount)

    def refusal(self) -> OSError | None:
        """Why it cannot be written to."""
        try:
            self._check_there()
            self._check_writable()
        except OSError as error:
            return error
        return None

    def _parent(self, path: str) -> tuple[_Directory, str]:
        self._check_there()
        *parents, name = parts_of(path)
        node = self._root
        for part in parents:
            child = node.entries.setdefault(part, _Directory())
            if isinstance(child, _File):
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
            node = child
        return node, name

    def _new_file(self, path: str) -> _File:
        parent, name = self._parent(path)
        file = _File(next(self._numbers))
        parent.entries[name] = file
        return file

    def _sync_parents(self, path: str) -> None:
        node = self._root
        for part in parts_of(path):
            node.durable = dict(node.entries)
            child = node.entries.get(part)
            if not isinstance(child, _Directory):
                return
            node = child


def _tear(file: _File, keep: Random | None) -> str:
    """Lose bytes that were not synced: a prefix of the new ones stays, the rest of it as zeros.
    Returns what became of the file: whole, lost (what was new), or torn."""
    now, before = bytes(file.data), file.durable
    if keep is None or now == before:
        survivor = before
    elif now[: len(before)] != before:
        survivor = keep.choice((before, now))
    else:
        length = keep.choice((len(before), keep.randint(len(before), len(now)), len(now)))
        written = keep.choice((length, keep.randint(len(before), length)))
        survivor = now[:written] + bytes(length - written)
    file.data = bytearray(survivor)
    file.durable = survivor
    if survivor == now:
        return "whole"
    return "lost" if survivor == before else "torn"


def _missing(path: str) -> FileNotFoundError:
    return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
