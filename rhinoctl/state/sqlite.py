"""The controller's store in SQLite: what `write` returned for is durable.

One table of keys and values. The database is locked by `DatabaseLock` in a file beside it: SQLite
alone would let a second controller write between our writes. What it has open goes on when it is
not at its path any more, without a word: `check_there` looks. The format of disks in which it is
written is its `user_version`; one of the format before is migrated when it is opened.
"""

import errno
import logging
import os
import sqlite3
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType

from rhinoctl.errors import CorruptFile, ForeignManifest, StoreGone
from rhinoctl.protocol.ports import WriteBatch
from rhinoctl.protocol.versions import FORMATS, Span
from rhinoctl.state.disk import copy_file
from rhinoctl.state.locks import DatabaseLock

log = logging.getLogger("rhino.store")

APPLICATION_ID = 0x52484E4F
"""“RHNO” in SQLite's header: a database with another number is somebody else's."""

Step = Callable[[sqlite3.Connection], None]
"""Makes a store of one format into one of the next. It neither begins nor ends a transaction, nor
calls `executescript`, which ends one: it runs within that of the whole migration."""

MIGRATIONS: Mapping[int, Step] = {}
"""The step from each format that is still read to the next one; none is missing, says a test."""

IMAGE = "store.db"
"""The one file of a checkpoint."""


def renewal(path: str) -> str:
    """What to do about a store that cannot be read."""
    return (
        f"restore a backup with `rhinoctl controller restore FILE`; or move {path} away, start the"
        " controller, and have it made anew from the workers with `rhinoctl controller recover`"
    )


ENDINGS = ("", "-wal", "-shm")
"""Of the files that SQLite has open from first to last."""

KEYS_PER_SELECT = 500
"""Fewer than the parameters that any build of SQLite takes."""


_REFUSED = tuple(
    f"SQLITE_{name}" for name in ("IOERR", "READONLY", "BUSY", "LOCKED", "CANTOPEN", "PERM")
)


class SqliteStore:
    """The Store port over one SQLite file, for a single process.

    Raises AlreadyRunning if another process has it open, UnwritableDirectory, CorruptFile, and
    ForeignManifest for a database that another program or a newer version wrote, or one that is too
    old for `migrations`. A full disk is OSError (ENOSPC) and leaves the store as it was. A closed
    store raises ValueError. Use from one thread at a time.
    """

    def __init__(
        self, path: str, *, formats: Span = FORMATS, migrations: Mapping[int, Step] = MIGRATIONS
    ) -> None:
        self.path = os.path.abspath(path)
        self._formats = formats
        self._migrations = migrations
        self._cursors: weakref.WeakSet[_Cursor] = weakref.WeakSet()
        self._errors = _SqliteErrors(self.path)
        self._open: sqlite3.Connection | None = None
        self._lock = DatabaseLock(self.path + ".lock")
        self._lock.acquire()
        try:
            with self._errors:
                if not os.path.lexists(self.path):
                    _create(self.path, formats.newest)
                self._open = _connection(self.path)
                self._check(self._open)
                self._files = {f"{self.path}{end}": _file_at(self.path + end) for end in ENDINGS}
        except BaseException:
            self.close()
            raise

    @classmethod
    def restore(cls, path: str, checkpoint: str) -> "SqliteStore":
        """A store at a new path with the entries of a checkpoint, which stays as it is."""
        copy_file(os.path.join(checkpoint, IMAGE), os.path.abspath(path))
        return cls(path)

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        found: dict[bytes, bytes] = {}
        connection = self._connection
        with self._errors:
            for start in range(0, len(keys), KEYS_PER_SELECT):
                some = keys[start : start + KEYS_PER_SELECT]
                marks = ",".join("?" * len(some))
                found.update(
                    connection.execute(f"SELECT k, v FROM entries WHERE k IN ({marks})", some)
                )
        return [found.get(key) for key in keys]

    def write(self, batch: WriteBatch) -> None:
        """Apply a batch atomically and durably."""
        connection = self._connection
        if len(batch.keys) != len(batch.values):
            raise ValueError(f"{len(batch.keys)} keys but {len(batch.values)} values")
        with self._errors, connection:
            connection.execute("BEGIN IMMEDIATE")
            connection.executemany(
                "DELETE FROM entries WHERE k >= ? AND k < ?", batch.delete_ranges
            )
            connection.executemany(
                "DELETE FROM entries WHERE k = ?", ((key,) for key in batch.deletes)
            )
            connection.executemany(
                "INSERT OR REPLACE INTO entries VALUES (?, ?)",
                zip(batch.keys, batch.values, strict=True),
            )

    def scan(self, lo: bytes = b"", hi: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        """Entries with lo <= key < hi as of now, in key order; dies with the store."""
        _ = self._connection
        with self._errors:
            cursor = _Cursor(_connection(self.path), lo, hi, self._errors)
        self._cursors.add(cursor)
        return cursor

    def flush(self) -> None:
        """Nothing to do: what is written is durable."""
        _ = self._connection

    def checkpoint(self, directory: str) -> None:
        """An image in a new directory, durable on return."""
        connection = self._connection
        os.makedirs(os.path.dirname(os.path.abspath(directory)), exist_ok=True)
        os.mkdir(directory)
        image = sqlite3.connect(os.path.join(directory, IMAGE))
        try:
            with self._errors:
                connection.backup(image)
                image.execute("PRAGMA journal_mode = DELETE")
        finally:
            image.close()
        for path in (os.path.join(directory, IMAGE), directory, os.path.dirname(directory) or "."):
            _sync(path)

    def check_there(self) -> None:
        """Raise StoreGone if what is at the store's path is not what was opened. A path that cannot
        be looked at is left to the next write."""
        for path, opened in self._files.items():
            try:
                found = _file_at(path)
            except OSError:
                continue
            if found != opened:
                raise StoreGone(
                    f"{path} was moved, removed or replaced while the store was open, and what was"
                    " written since may be lost",
                    remedy="if the store's files are to be had, stop the controller, put all of"
                    " them back and start it; otherwise start it without them, and have the store"
                    " made anew from the workers with `rhinoctl controller recover`, or restore a"
                    " backup with `rhinoctl controller restore FILE`",
                )

    def close(self) -> None:
        """Release the file and its lock. Idempotent."""
        for cursor in list(self._cursors):
            cursor.close()
        connection, self._open = self._open, None
        if connection is not None:
            connection.close()
        self._lock.release()

    @property
    def _connection(self) -> sqlite3.Connection:
        if self._open is None:
            raise ValueError(f"the store {self.path} is closed")
        return self._open

    def _check(self, connection: sqlite3.Connection) -> None:
        if os.stat(self.path).st_size == 0:
            raise sqlite3.DatabaseError("the file is empty")
        (application,) = connection.execute("PRAGMA application_id").fetchone()
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if application != APPLICATION_ID or version not in self._formats:
            raise ForeignManifest(
                f"{self.path} is not this version's: application {application:#x}, format"
                f" {version}; expected {APPLICATION_ID:#x}, format {self._formats}",
                remedy="name another directory, or use the version of rhinoctl that wrote it",
            )
        connection.execute("PRAGMA journal_mode = WAL")
        (verdict,) = connection.execute("PRAGMA quick_check(1)").fetchone()
        if verdict != "ok":
            raise sqlite3.DatabaseError(verdict)
        if version != self._formats.newest:
            self._migrate(connection, version)

    def _migrate(self, connection: sqlite3.Connection, version: int) -> None:
        """Bring the store to our format: all steps, or none if one fails or the power does."""
        newest = self._formats.newest
        with connection:
            connection.execute("BEGIN IMMEDIATE")
            for number in range(version, newest):
                self._migrations[number](connection)
            connection.execute(f"PRAGMA user_version = {newest}")
        log.info("store-migrated path=%s from=%d to=%d", self.path, version, newest)


class _Cursor(Iterator[tuple[bytes, bytes]]):
    """A scan on a connection of its own: a read transaction sees one moment."""

    def __init__(
        self, connection: sqlite3.Connection, lo: bytes, hi: bytes | None, errors: "_SqliteErrors"
    ) -> None:
        self._connection: sqlite3.Connection | None = connection
        self._errors = errors
        self._ended = False
        connection.execute("BEGIN")
        self._rows = connection.execute(
            "SELECT k, v FROM entries WHERE k >= ? AND (? IS NULL OR k < ?) ORDER BY k",
            (lo, hi, hi),
        )
        self._first: tuple[bytes, bytes] | None = self._rows.fetchone()  # the snapshot begins here

    def __next__(self) -> tuple[bytes, bytes]:
        if self._connection is None:
            if self._ended:
                raise StopIteration
            raise ValueError("the scan was closed")
        with self._errors:
            row, self._first = self._first, self._rows.fetchone()
        if row is not None:
            return row
        self._ended = True
        self.close()
        raise StopIteration

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            self._rows.close()
            connection.close()

    def __del__(self) -> None:
        self.close()


class _SqliteErrors:
    """Turns SQLite's errors into ours."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __enter__(self) -> None:
        return None

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if type(error) not in (sqlite3.DatabaseError, sqlite3.OperationalError):
            return  # the other classes are mistakes of the caller
        name = str(getattr(error, "sqlite_errorname", ""))
        if name.startswith("SQLITE_FULL"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self._path) from error
        if name.startswith(_REFUSED):
            raise OSError(errno.EIO, f"{name}: {error}", self._path) from error
        raise CorruptFile(
            f"{self._path}: {error}",
            remedy=renewal(self._path),
        ) from error


def _connection(path: str) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=10.0, isolation_level=None, check_same_thread=False)
    connection.execute("PRAGMA synchronous = FULL")
    return connection


def _create(path: str, version: int) -> None:
    """An empty database, under its name only once it is whole: an empty file is a lost one.

    A write-ahead log without its database is of one that was moved away: SQLite would take it for
    the new one's."""
    making = path + ".new"
    for left in (making, path + "-wal", path + "-shm"):
        if os.path.lexists(left):
            os.unlink(left)
    connection = _connection(making)
    try:
        connection.executescript(
            "BEGIN IMMEDIATE;"
            "CREATE TABLE entries (k BLOB PRIMARY KEY, v BLOB NOT NULL) WITHOUT ROWID;"
            f"PRAGMA application_id = {APPLICATION_ID};"
            f"PRAGMA user_version = {version};"
            "COMMIT;"
        )
    finally:
        connection.close()
    os.replace(making, path)
    _sync(os.path.dirname(path))


def _file_at(path: str) -> tuple[int, int] | None:
    """Which file a path leads to; None if to none."""
    try:
        found = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return found.st_dev, found.st_ino


def _sync(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
