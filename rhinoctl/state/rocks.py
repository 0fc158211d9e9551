"""The state of vnodes in RocksDB: one database per vnode, one opener per process.

Invariants:

1. What survives a kill is a prefix of the written batches. There is no write-ahead log: the worker
   log replays the rest (design, section 5).
2. A checkpoint's directory is never opened for writing: a live database is a directory of its own,
   with hard links to the tables and copies of all else.
3. No handle of rocksdict leaves a store, and none outlives `close`: a living iterator or checkpoint
   object would keep the LOCK.
4. Caches are shared. Unflushed bytes are the owner's to bound: it sees them and flushes.

Facts of rocksdict 0.3.29 that shape this: a write that stalls fails at once (`no_slowdown`) but
has consumed its batch, so the retry builds it again; `set_iterate_lower_bound` sets the *upper*
bound, and an upper bound is a pointer into the caller's bytes, so scans seek and compare here;
`Rdict.items` ends silently at a corrupt block, so scans ask `RdictIter.status`; a database that
exists is opened with the options in its own file, and a block cache of its own of 8 MB, unless they
are named for the column family too; errors are plain `Exception` with RocksDB's text. Where a
checkpoint's links are refused with EXDEV or EOPNOTSUPP it copies; with EPERM or EMLINK it fails.
"""

import errno
import os
import resource
import shutil
import tempfile
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self, cast

from rocksdict import (
    AccessType,
    BlockBasedOptions,
    Cache,
    Checkpoint,
    DBCompressionType,
    Options,
    Rdict,
    RdictIter,
    WriteOptions,
)
from rocksdict import WriteBatch as RocksBatch

from rhinoctl.errors import AlreadyRunning, CorruptFile, DeadlineExceeded
from rhinoctl.protocol.ports import WriteBatch
from rhinoctl.state.disk import (
    LINK_REFUSALS,
    LinkFunction,
    copy_file,
    is_temporary,
    link_or_copy,
)
from rhinoctl.state.manifests import MANIFEST, STAMPS

SCRATCH = "rhino-image-"
SCRATCH_S = 86_400.0
"""No image is read for so long."""

LINKED = (".sst", ".blob")
"""Tables are never changed; RocksDB writes to everything else, or links it to a live file."""

NOT_COPIED = frozenset({MANIFEST, STAMPS, "LOCK", "LOG"})

ARENA_BYTES = 64 << 10
"""Memtables grow by this. RocksDB's default, an eighth of the write buffer, would count, and hold,
512 KB for each of 64 vnodes that a batch touched with one row."""

_ERRNOS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EMFILE, errno.ENFILE, errno.EROFS)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreBudget:
    """What the databases of one process may use.

    Measured with 64 databases and 1 GB of state (tests/bench/rocks_memory.py): the process stays
    within `cache_bytes` + unflushed bytes + about 60 MB, the interpreter's 25 MB included.
    """

    cache_bytes: int = 64 << 20
    """One block cache for all; indexes and filters are in it, not beside it."""

    write_buffer_bytes: int = 4 << 20
    """A memtable that is larger is flushed by RocksDB itself."""

    open_files_max: int = 24
    """Descriptors for tables per database (RocksDB takes 10 of them for itself), besides about 7
    others: 64 databases fit 2048."""

    background_jobs_max: int = 2
    """Flushes and compactions at a time; the threads are shared by all databases of a process."""

    stall_deadline_s: float = 30.0
    """How long a write backs off while flushes and compactions catch up."""


class WriteStalled(Exception):
    """RocksDB refused a write until a flush is done; nothing was written. Retried here."""


class RocksStore:
    """The Store port over one database; made by `RocksStores`.

    `write` waits while RocksDB is behind, and raises DeadlineExceeded, with nothing written, if
    that lasts. Any call raises CorruptFile where a checksum does not match and OSError where the
    disk refuses (ENOSPC …): close the store then and open it anew from a checkpoint; a database
    whose flush failed takes no writes any more. A closed store raises ValueError.
    """

    def __init__(
        self,
        directory: str,
        options: Options,
        *,
        stall_deadline_s: float,
        sleep: Callable[[float], None],
        link: LinkFunction = os.link,
    ) -> None:
        self.directory = directory
        self._options = options
        self._errors = _RocksErrors(directory)
        self._stall_deadline_s = stall_deadline_s
        self._sleep = sleep
        self._link = link
        self._cursors: weakref.WeakSet[_Cursor] = weakref.WeakSet()
        self._write_options = WriteOptions()
        # a method in the stubs of 0.3.29, an attribute in truth
        self._write_options.disable_wal = True  # type: ignore[method-assign, assignment]
        self._write_options.no_slowdown = True
        self._rdict: Rdict | None = None
        self._open()

    def _open(self) -> None:
        with self._errors:
            self._rdict = Rdict(self.directory, self._options, {"default": self._options})

    @property
    def closed(self) -> bool:
        return self._rdict is None

    @property
    def dirty_bytes(self) -> int:
        """Memory of the memtables: what a kill would lose and a flush gives back."""
        return self._number("rocksdb.cur-size-all-mem-tables")

    @property
    def state_bytes(self) -> int:
        """Bytes on disk of the tables in use, and the memtables."""
        return self._number("rocksdb.live-sst-files-size") + self.dirty_bytes

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """The values, in the order of `keys`, by one call that lets other threads run."""
        with self._errors:
            values = cast("list[bytes | None]", self._database.get(list(keys)))
        return values

    def write(self, batch: WriteBatch) -> None:
        """Apply a batch atomically; durable with the next `flush`."""
        database = self._database
        if len(batch.keys) != len(batch.values):
            raise ValueError(f"{len(batch.keys)} keys but {len(batch.values)} values")

        def attempt() -> None:
            image = _image(batch)
            with self._errors:
                database.write(image, self._write_options)

        if batch.keys or batch.deletes or batch.delete_ranges:
            retry_stalled(attempt, deadline_s=self._stall_deadline_s, sleep=self._sleep)

    def scan(self, lo: bytes = b"", hi: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        """Entries with lo <= key < hi as of now, in key order.

        The iterator pins memory until it ends, is closed or dropped; it dies with the store.
        """
        cursor = _Cursor(self._database.iter(), lo, hi, self._errors)
        self._cursors.add(cursor)
        return cursor

    def flush(self) -> None:
        """Make all that was written so far durable; lets other threads run meanwhile."""
        with self._errors:
            self._database.flush()

    def checkpoint(self, directory: str) -> None:
        """An image in a new directory: hard links to the tables, so the time does not grow with
        the state. Flushes first, because RocksDB's own flush in there would hold the GIL.

        Where the file system refuses a link, that table is copied; scans under way may end then.
        """
        self.flush()
        if os.path.lexists(directory):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), directory)
        os.makedirs(os.path.dirname(os.path.abspath(directory)), exist_ok=True)
        image = Checkpoint(self._database)
        try:
            with self._errors:
                image.create_checkpoint(directory)
            return
        except OSError as error:
            if error.errno not in LINK_REFUSALS:
                raise
        finally:
            del image
        self._checkpoint_closed(directory)

    def _checkpoint_closed(self, directory: str) -> None:
        """The image of a database that is closed for the moment: of an open one, compactions would
        remove files while they are copied."""
        self.close()
        try:
            os.mkdir(directory)
            _clone(self.directory, directory, self._link)
        except BaseException:
            shutil.rmtree(directory, ignore_errors=True)
            raise
        finally:
            self._open()

    def close(self) -> None:
        """Flush and release every handle and the LOCK, also if the flush fails. Idempotent."""
        database, self._rdict = self._rdict, None
        if database is None:
            return
        for cursor in list(self._cursors):
            cursor.close()
        with self._errors:
            database.close()

    @property
    def _database(self) -> Rdict:
        if self._rdict is None:
            raise ValueError(f"the store {self.directory} is closed")
        return self._rdict

    def _number(self, name: str) -> int:
        with self._errors:
            value = self._database.property_int_value(name)
        return value or 0


class RocksImage:
    """A checkpoint that is read; nothing in its directory changes. Raises, as a store does,
    CorruptFile and OSError; close it, or use it in a ``with``.

    It is opened in a scratch directory, with symbolic links to the tables and copies of all else:
    rocksdict writes its own settings file anew also for who only reads, through hard links into
    every checkpoint that shares the file, and who hashes it meanwhile finds it empty.
    """

    def __init__(self, directory: str) -> None:
        self._scratch = tempfile.TemporaryDirectory(prefix=SCRATCH)
        self._errors = _RocksErrors(directory, self._scratch.name)
        self._cursors: weakref.WeakSet[_Cursor] = weakref.WeakSet()
        options = _options(StoreBudget(), Cache(8 << 20), create=False)
        try:
            _clone(os.path.abspath(directory), self._scratch.name, os.symlink)
            with self._errors:
                self._rdict = Rdict(
                    self._scratch.name,
                    options,
                    {"default": options},
                    access_type=AccessType.read_only(),
                )
        except BaseException:
            self._scratch.cleanup()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def scan(self) -> Iterator[tuple[bytes, bytes]]:
        """All entries, in key order. Each block's checksum is checked."""
        cursor = _Cursor(self._rdict.iter(), b"", None, self._errors)
        self._cursors.add(cursor)
        return cursor

    def close(self) -> None:
        """Release every handle."""
        for cursor in list(self._cursors):
            cursor.close()
        self._rdict.close()
        self._scratch.cleanup()


def sweep_scratch(older_than_s: float = SCRATCH_S) -> None:
    """Remove what images of processes that were killed have left in the temporary directory."""
    for scratch in Path(tempfile.gettempdir()).glob(f"{SCRATCH}*"):
        with suppress(OSError):
            if time.time() - scratch.stat().st_mtime > older_than_s:
                shutil.rmtree(scratch, ignore_errors=True)


class RocksStores:
    """The databases of one process: opens them, and shares one cache.

    Raises the process's soft limit of descriptors to its hard limit: the usual 1,024 are fewer
    than 64 databases need.
    """

    def __init__(
        self,
        budget: StoreBudget | None = None,
        *,
        link: LinkFunction = os.link,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.budget = budget or StoreBudget()
        self.copies = 0
        self._link = link
        self._sleep = sleep
        self._cache = Cache(self.budget.cache_bytes)
        self._stores: list[RocksStore] = []
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))

    def open(self, directory: str, base: str | None = None) -> RocksStore:
        """A fresh live database in a new directory: empty, or with the state of a checkpoint.

        What was opened before at `directory` must have been removed: raises FileExistsError. A
        base that is not whole raises CorruptFile or FileNotFoundError, and nothing is left behind.
        """
        directory = os.path.abspath(directory)
        os.makedirs(os.path.dirname(directory), exist_ok=True)
        os.mkdir(directory)
        try:
            if base is not None:
                self.copies += _clone(base, directory, self._link)
            return self._opened(directory, create=base is None)
        except BaseException:
            shutil.rmtree(directory, ignore_errors=True)
            raise

    def reopen(self, directory: str) -> RocksStore:
        """The live database that this or an earlier process closed. Raises FileNotFoundError where
        there is none, AlreadyRunning while somebody has it open."""
        if not os.path.isfile(os.path.join(directory, "CURRENT")):
            raise FileNotFoundError(errno.ENOENT, "no database", directory)
        return self._opened(os.path.abspath(directory), create=False)

    @property
    def stores(self) -> tuple[RocksStore, ...]:
        """The open ones."""
        self._stores = [store for store in self._stores if not store.closed]
        return tuple(self._stores)

    @property
    def dirty_bytes(self) -> int:
        """Unflushed bytes of all databases."""
        return sum(store.dirty_bytes for store in self.stores)

    @property
    def cache_used_bytes(self) -> int:
        """Bytes in the shared cache: blocks, indexes and filters."""
        return self._cache.get_usage()

    def close(self) -> None:
        """Close every store; the first failure is raised after all were tried."""
        failure: Exception | None = None
        for store in self.stores:
            try:
                store.close()
            except (CorruptFile, OSError) as error:
                failure = failure or error
        if failure is not None:
            raise failure

    def _opened(self, directory: str, *, create: bool) -> RocksStore:
        store = RocksStore(
            directory,
            _options(self.budget, self._cache, create=create),
            stall_deadline_s=self.budget.stall_deadline_s,
            sleep=self._sleep,
            link=self._link,
        )
        self._stores.append(store)
        return store


def _clone(base: str, directory: str, link: LinkFunction) -> int:
    """Link the tables of a database that nobody has open into another directory, and copy all
    else; returns how many tables were copied because they could not be linked."""
    copies = 0
    for name in sorted(os.listdir(base)):
        source, target = os.path.join(base, name), os.path.join(directory, name)
        if name in NOT_COPIED or is_temporary(name):
            continue
        if not name.endswith(LINKED):
            copy_file(source, target)
        elif link_or_copy(source, target, link=link) is not None:
            copies += 1
    return copies


def retry_stalled(
    attempt: Callable[[], None], *, deadline_s: float, sleep: Callable[[float], None]
) -> None:
    """Call until it is not stalled, backing off 1–64 ms outside of RocksDB, where the GIL is free.

    Raises DeadlineExceeded once the waits add up to `deadline_s`; then nothing was written.
    """
    pause_s, waited_s = 0.001, 0.0
    while True:
        try:
            attempt()
        except WriteStalled as stall:
            if waited_s >= deadline_s:
                raise DeadlineExceeded(
                    f"the disk did not keep up with flushes for {deadline_s:g} s: {stall}",
                    remedy="look for a slow or busy disk; the batch is applied again from the log",
                ) from stall
        else:
            return
        sleep(pause_s)
        waited_s += pause_s
        pause_s = min(2 * pause_s, 0.064)


class _Cursor(Iterator[tuple[bytes, bytes]]):
    """A scan. It holds the only reference to RocksDB's iterator, and drops it at the end."""

    def __init__(
        self, iterator: RdictIter, lo: bytes, hi: bytes | None, errors: "_RocksErrors"
    ) -> None:
        self._iterator: RdictIter | None = iterator
        self._hi = hi
        self._errors = errors
        self._ended = False
        iterator.seek(lo)

    def __next__(self) -> tuple[bytes, bytes]:
        iterator = self._iterator
        if iterator is None:
            if self._ended:
                raise StopIteration
            raise ValueError("the scan was closed")
        if iterator.valid():
            key: bytes = iterator.key()
            if self._hi is None or key < self._hi:
                value: bytes = iterator.value()
                iterator.next()
                return key, value
        else:
            with self._errors:
                iterator.status()
        self._ended = True
        self._iterator = None
        raise StopIteration

    def close(self) -> None:
        self._iterator = None


class _RocksErrors:
    """Turns RocksDB's errors, which are plain `Exception` with a text, into ours.

    A context manager, not an ``except Exception``: it looks at exactly that class, and everything
    else passes. `opened` is where it is open, if that is not the directory that people know.
    """

    def __init__(self, directory: str, opened: str = "") -> None:
        self._directory = directory
        self._opened = opened or directory

    def __enter__(self) -> None:
        return None

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is Exception:
            raise self._translated(str(error).replace(self._opened, self._directory)) from error

    def _translated(self, text: str) -> Exception:
        if "Write stall" in text:
            return WriteStalled(text)
        if "lock hold by current process" in text or "While lock file" in text:
            return AlreadyRunning(
                f"the database {self._directory} is open already: {text}",
                remedy="close it, or stop the process that has it open",
            )
        numbers = (*_ERRNOS, *LINK_REFUSALS) if "while link file" in text else _ERRNOS
        number = next((n for n in numbers if os.strerror(n) in text), None)
        if number is not None:
            return OSError(number, text, self._directory)
        if text.startswith(("Corruption", "Invalid argument")):
            return CorruptFile(
                f"the database {self._directory}: {text}",
                remedy="it is thrown away and opened anew from a checkpoint and the worker log",
            )
        return OSError(errno.EIO, text, self._directory)


def _image(batch: WriteBatch) -> RocksBatch:
    """The batch for RocksDB, which applies it in this order: ranges, deletes, puts."""
    image = RocksBatch(raw_mode=True)
    for lo, hi in batch.delete_ranges:
        if lo < hi:
            image.delete_range(lo, hi)
    deque(map(image.delete, batch.deletes), 0)
    deque(map(image.put, batch.keys, batch.values), 0)
    return image


def _options(budget: StoreBudget, cache: Cache, *, create: bool) -> Options:
    tables = BlockBasedOptions()
    tables.set_block_cache(cache)
    tables.set_cache_index_and_filter_blocks(True)
    tables.set_block_size(16 << 10)
    tables.set_bloom_filter(10, False)
    options = Options(raw_mode=True)
    options.create_if_missing(create)  # a base without its CURRENT must not become an empty store
    options.set_block_based_table_factory(tables)
    options.set_compression_type(DBCompressionType.lz4())
    options.set_write_buffer_size(budget.write_buffer_bytes)
    options.set_arena_block_size(ARENA_BYTES)
    options.set_max_write_buffer_number(3)
    options.set_max_open_files(budget.open_files_max)
    options.set_table_cache_num_shard_bits(2)
    options.set_max_background_jobs(budget.background_jobs_max)
    options.set_skip_stats_update_on_db_open(True)
    options.set_keep_log_file_num(2)
    options.set_max_log_file_size(1 << 20)
    options.set_stats_dump_period_sec(0)
    options.set_stats_persist_period_sec(0)
    options.set_manifest_preallocation_size(64 << 10)
    options.set_max_manifest_file_size(4 << 20)
    return options
