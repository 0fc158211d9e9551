"""A backup of a cluster's controller: its store and its keys, in one file.

The file is a line that says what it is, a header of one line of JSON, the contents one after the
other, and the SHA-256 of all that as the last line.

Invariants:

1. The store in it is of one moment, whether its controller runs or not, and every entry of it has
   the checksum and the key that it was written with: when it is read, and again when it is put
   back.
2. Nothing is restored from a file of which one byte is not as it was written, nor from one of
   another cluster, nor under a controller that runs.
3. What was there before a restore is kept beside it, whatever happens in the middle: without a
   store a controller begins with an empty one, which its agents refuse.
"""

import fcntl
import hashlib
import json
import os
import sqlite3
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from rhinoctl import __version__
from rhinoctl.config.cluster import read_cluster, replace_file, writing_in
from rhinoctl.errors import AlreadyRunning, CorruptFile, ForeignManifest, NotRunning, Refused
from rhinoctl.protocol import codec
from rhinoctl.protocol.claims import Claim
from rhinoctl.protocol.starting import CONTROLLER, LOCAL, start_again

STORE = "controller.db"
"""The controller's store in a cluster's directory (`rhinoctl.state.sqlite`)."""

CLAIM = b"cluster/claim"
"""The store's entry of `rhinoctl.protocol.claims.Claim`."""

ALONE = frozenset({CLAIM, b"cluster/draining"})
"""The keys of which a store has one each."""

NAMED_BY = {"job": ("spec", "uid"), "op": ("handover", "op"), "failover": ("failover", "op")}
"""Where an entry has the name that follows its kind in its key: of an operation the number, with
twelve digits (`rhinoctl.control.registry` writes them)."""

KIND = b"rhinoctl backup of a controller, format "
FORMAT = b"1\n"
STORE_IMAGE = "store"
TOKEN = "token"
WHICH = (
    "name a local cluster's directory with --cluster, a deployed one's inventory with --inventory"
)
SUM_BYTES = 65
"""A SHA-256 in hexadecimal, and the end of the line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BackupHeader:
    """What a backup is of. `claim` is what its store says of itself, None if its controller never
    ran; `sizes` are those of the contents, in bytes, which follow in the order of their names;
    `written_at` is in wall seconds."""

    cluster: str
    version: str
    written_at: float
    claim: Claim | None
    sizes: Mapping[str, int]


def write_backup(directory: Path, file: Path, *, now: float) -> BackupHeader:
    """Write a backup of the cluster in a directory, for this user's eyes only.

    Raises NotRunning for a directory without a cluster or a store, CorruptFile if the store is
    damaged, Refused if the file is there already, UnwritableDirectory.
    """
    cluster = read_cluster(directory)
    store = directory / STORE
    if cluster is None:
        raise NotRunning(f"there is no cluster in {directory}", remedy=WHICH)
    if not store.exists():
        raise _no_store(store, LOCAL)
    check_new(file)
    contents = {STORE_IMAGE: image_of(store), TOKEN: _read(Path(cluster.token_file))}
    return keep(file, cluster.cluster, contents, now=now, store=str(store))


def check_new(file: Path) -> None:
    """Raise Refused for a file that is there."""
    if file.exists():
        raise Refused(
            f"{file} is there already", remedy="name another file; a backup replaces nothing"
        )


def keep(
    file: Path, cluster: str, contents: Mapping[str, bytes], *, now: float, store: str
) -> BackupHeader:
    """Write a backup of a cluster, by its identity, whose store is at `store`. Raises CorruptFile
    for a damaged image of it, and UnwritableDirectory."""
    header = BackupHeader(
        cluster=cluster,
        version=__version__,
        written_at=now,
        claim=claim_in(contents[STORE_IMAGE], store, store=store),
        sizes={name: len(contents[name]) for name in sorted(contents)},
    )
    head = KIND + FORMAT + codec.dumps(header) + b"\n"
    body = head + b"".join(contents[name] for name in sorted(contents))
    whole = body + hashlib.sha256(body).hexdigest().encode() + b"\n"
    replace_file(file, whole, otherwise="name a file in another directory")
    return header


def restore_backup(directory: Path, file: Path) -> BackupHeader:
    """Put store and token of a backup into the cluster's directory.

    Raises NotRunning for a directory without a cluster, ForeignManifest, CorruptFile,
    AlreadyRunning while a controller has the store open, UnwritableDirectory.
    """
    cluster = read_cluster(directory)
    if cluster is None:
        raise NotRunning(f"there is no cluster in {directory}", remedy=WHICH)
    header, contents = read_backup(file, store=str(directory / STORE))
    if header.cluster != cluster.cluster:
        raise ForeignManifest(
            f"{file} is a backup of cluster {header.cluster}, and {directory} is {cluster.cluster}",
            remedy="name the backup of this cluster, or the directory of that one with --cluster",
        )
    with _locked(directory / STORE):
        replace_file(Path(cluster.token_file), contents[TOKEN])
        _put(directory / STORE, contents[STORE_IMAGE])
    return header


def put_image(store: Path, image: bytes) -> None:
    """Put an image in a store's place; what was there is kept as `.replaced`. Raises CorruptFile
    for bytes that are no store, or a damaged one, AlreadyRunning while a controller has it open,
    and UnwritableDirectory."""
    claim_in(image, f"what was to become {store}", store=str(store))
    with _locked(store):
        _put(store, image)


def _put(store: Path, image: bytes) -> None:
    with writing_in(store.parent):
        for ending in ("-wal", "-shm", ""):  # so that no half of the old one is taken for whole
            if os.path.lexists(f"{store}{ending}"):
                os.replace(f"{store}{ending}", f"{store}.replaced{ending}")
    replace_file(store, image)


def read_backup(file: Path, *, store: str) -> tuple[BackupHeader, dict[str, bytes]]:
    """What is in a backup; `store` is where its store would go. Raises Refused, ForeignManifest and
    CorruptFile, for a store in it that was damaged before it was backed up, too."""
    data = _read(file)
    if not data.startswith(KIND):
        raise ForeignManifest(
            f"{file} is no backup of a controller",
            remedy="name a file that `rhinoctl controller backup` has written",
        )
    body, checksum = data[:-SUM_BYTES], data[-SUM_BYTES:]
    if checksum != hashlib.sha256(body).hexdigest().encode() + b"\n":
        raise _damaged(file, "its checksum is another", store=store)
    if not body.startswith(KIND + FORMAT):
        raise ForeignManifest(
            f"{file} is a backup in a format that this version does not read",
            remedy="use the version of rhinoctl that wrote it",
        )
    head, _, rest = body.removeprefix(KIND + FORMAT).partition(b"\n")
    try:
        header: BackupHeader = codec.loads(BackupHeader, head)
    except codec.CodecError as fault:
        raise _damaged(file, str(fault), store=store) from fault
    contents, at = {}, 0
    for name in sorted(header.sizes):
        contents[name] = rest[at : at + header.sizes[name]]
        at += len(contents[name])
    if STORE_IMAGE in contents:
        claim_in(contents[STORE_IMAGE], f"the store in {file}", store=store)
    return header, contents


def _no_store(store: Path, start: str) -> NotRunning:
    """The controller has never run, or its store is gone; `start` is what starts it."""
    return NotRunning(
        f"there is no store of a controller at {store}",
        remedy=f"if there was one, put its files back, or a backup: `rhinoctl controller restore"
        f" FILE`; else start the controller, {start}, and if workers have jobs, make the store anew"
        " from them: `rhinoctl controller recover`",
    )


def image_of(store: Path) -> bytes:
    """The whole database as of one moment, without a write-ahead log. Raises NotRunning if there is
    none, and CorruptFile if it, or one entry of it, is damaged."""
    if not store.exists():
        raise _no_store(store, start_again([CONTROLLER]))
    with tempfile.TemporaryDirectory(prefix="rhino-backup-") as scratch:
        copy = Path(scratch) / STORE
        try:
            with (
                closing(sqlite3.connect(f"{store.as_uri()}?mode=ro", uri=True)) as source,
                closing(sqlite3.connect(copy)) as image,
            ):
                source.backup(image)
                image.execute("PRAGMA journal_mode = DELETE")
        except sqlite3.Error as fault:
            raise _damaged(store, str(fault), store=str(store)) from fault
        found = copy.read_bytes()
    claim_in(found, store, store=str(store))
    return found


def claim_in(image: bytes, named: Path | str, *, store: str) -> Claim | None:
    """What a store's image claims; None if its controller never ran. Raises CorruptFile for an
    image of which any page or entry is damaged, by what it is named and where its `store` is."""
    claim = None
    try:
        with closing(sqlite3.connect(":memory:")) as database:
            database.deserialize(image)
            (verdict,) = database.execute("PRAGMA quick_check(1)").fetchone()
            if verdict != "ok":
                raise sqlite3.DatabaseError(verdict)
            for key, value in database.execute("SELECT k, v FROM entries"):
                fault = _fault_of(key, value)
                if fault:
                    raise _damaged(named, f"entry {_shown(key)}: {fault}", store=store)
                if key == CLAIM:
                    claim = codec.loads_checked(Claim, value)
    except (sqlite3.Error, codec.CodecError) as fault:
        raise _damaged(named, str(fault), store=store) from fault
    return claim


def _fault_of(key: object, value: object) -> str:
    """Why an entry of a store is not as it was written; empty if it is."""
    if not isinstance(value, bytes):
        return f"it is a {type(value).__name__}"
    try:
        codec.check(value)
    except codec.CodecError as fault:
        return str(fault)
    return "" if key in ALONE else _misplaced(_shown(key), value)


def _misplaced(key: str, value: bytes) -> str:
    """Why a sound entry is not under the key that it was written under; empty if it is."""
    kind = key.partition("/")[0]
    if kind not in NAMED_BY:
        return "nothing has such a key"
    try:
        image, _ = json.JSONDecoder().raw_decode(value.decode())  # the checksum is behind it
        for field in NAMED_BY[kind]:
            image = image[field]
    except (KeyError, TypeError, ValueError):
        return f"no {kind} is in it"
    own = str(image) if kind == "job" else str(image).removeprefix("op-").zfill(12)
    return "" if key == f"{kind}/{own}" else f"it is what {kind}/{own} was"


def _shown(key: object) -> str:
    return key.decode(errors="replace") if isinstance(key, bytes) else repr(key)


@contextmanager
def _locked(store: Path) -> Iterator[None]:
    """Hold the lock of the store (`rhinoctl.state.locks.DatabaseLock`): no controller has it."""
    with writing_in(store.parent):
        descriptor = os.open(f"{store}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as fault:
            raise AlreadyRunning(
                f"a controller runs over {store}",
                remedy="end it first; on a local cluster with `rhinoctl local down`",
            ) from fault
        yield
    finally:
        os.close(descriptor)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as fault:
        raise Refused(
            f"cannot read {path}: {fault.strerror}",
            remedy="correct the name, or its owner and mode",
        ) from fault


def _damaged(what: Path | str, reason: str, *, store: str) -> CorruptFile:
    return CorruptFile(
        f"{what} is damaged: {reason}",
        remedy=f"restore another backup (`rhinoctl controller restore FILE`); without one, move"
        f" {store} away and start the controller: `rhinoctl controller recover` then makes it anew"
        " from the workers",
    )
