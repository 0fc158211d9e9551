"""Backups of a controller: whole, of one moment, and nobody else's."""

import hashlib
import os
import shutil
import sqlite3
import stat
import threading
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rhinoctl.config import backup
from rhinoctl.config import cluster as config
from rhinoctl.config.backup import ALONE
from rhinoctl.control.registry import Registry
from rhinoctl.errors import (
    AlreadyRunning,
    CorruptFile,
    ForeignManifest,
    NotRunning,
    Refused,
    UnwritableDirectory,
)
from rhinoctl.ids import OpId, WorkerId
from rhinoctl.protocol import codec
from rhinoctl.protocol.failover import GivenUp
from rhinoctl.protocol.ports import WriteBatch
from rhinoctl.protocol.recovery import Failover
from rhinoctl.state.locks import DatabaseLock
from rhinoctl.state.sqlite import SqliteStore
from tests.fakes import controller as fake
from tests.unit.control.test_registry import document, handover

W1 = frozenset({WorkerId("w1")})
KEY = b"cluster/draining"
VALUE = codec.dumps_checked("v")
TWO = (b"op/000000000007", b"failover/000000000007")


def cluster_in(directory: Path) -> Path:
    directory.mkdir()
    cluster = config.new_cluster(directory, cache_mb=1, buffer_mb=1)
    config.write_cluster(directory, cluster)
    config.make_token(cluster.token_file)
    return directory


def entries(directory: Path) -> dict[bytes, bytes]:
    store = SqliteStore(str(directory / backup.STORE))
    found = dict(store.scan())
    store.close()
    return found


def opened(directory: Path) -> SqliteStore:
    return SqliteStore(str(directory / backup.STORE))


def test_what_was_backed_up_is_there_again(tmp_path: Path) -> None:
    directory = cluster_in(tmp_path / "c")
    store = opened(directory)
    registry = Registry(store)
    registry.put_draining(W1)
    header = backup.write_backup(directory, tmp_path / "b", now=7.0)
    assert header.claim == replace(registry.claim, draining=frozenset())  # type: ignore[type-var]
    token = (directory / "token").read_bytes()
    before = dict(store.scan())
    registry.put_draining(frozenset())
    store.close()
    (directory / "token").write_text("another")
    assert backup.restore_backup(directory, tmp_path / "b") == header
    assert entries(directory) == before
    assert (directory / "token").read_bytes() == token
    assert Registry(opened(directory)).draining == W1


def test_a_backup_is_for_its_owner_s_eyes_only(tmp_path: Path) -> None:
    """The cluster's token is in it."""
    directory = cluster_in(tmp_path / "c")
    opened(directory).close()
    usual = os.umask(0)
    try:
        backup.write_backup(directory, tmp_path / "b", now=0.0)
        backup.restore_backup(directory, tmp_path / "b")
    finally:
        os.umask(usual)
    for path in (tmp_path / "b", directory / "token", directory / backup.STORE):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b", "c"], "no scratch is left"


def test_a_backup_is_of_one_moment_while_the_controller_writes(tmp_path: Path) -> None:
    """Two entries are always written together, and are equal in every backup."""
    directory = cluster_in(tmp_path / "c")
    store = opened(directory)
    over, started = threading.Event(), threading.Event()

    def write() -> None:
        number = 0
        while not over.is_set():
            number += 1
            own = {"op": "op-7"}
            image = {"handover": own, "failover": own, "at": str(number) * 3000}
            store.write(WriteBatch(TWO, [codec.dumps_checked(image)] * 2))
            started.set()

    thread = threading.Thread(target=write)
    thread.start()
    started.wait()
    for number in range(5):
        backup.write_backup(directory, tmp_path / f"b{number}", now=0.0)
    over.set()
    thread.join()
    store.close()
    for number in range(5):
        backup.restore_backup(directory, tmp_path / f"b{number}")
        found = entries(directory)
        assert found[TWO[0]] == found[TWO[1]]


def test_what_was_there_is_kept_beside_a_restored_store(tmp_path: Path) -> None:
    directory = cluster_in(tmp_path / "c")
    opened(directory).close()
    backup.write_backup(directory, tmp_path / "b", now=0.0)
    store = opened(directory)
    store.write(WriteBatch([KEY], [VALUE]))
    wal = (directory / f"{backup.STORE}-wal").read_bytes()  # as a kill leaves it
    store.close()
    (directory / f"{backup.STORE}-wal").write_bytes(wal)
    backup.restore_backup(directory, tmp_path / "b")
    assert entries(directory) == {}
    replaced = SqliteStore(str(directory / f"{backup.STORE}.replaced"))
    assert dict(replaced.scan()) == {KEY: VALUE}
    replaced.close()


def test_a_lost_store_s_log_is_not_taken_for_the_new_one_s(tmp_path: Path) -> None:
    """Only the database itself was removed."""
    directory = cluster_in(tmp_path / "c")
    store = opened(directory)
    store.write(WriteBatch([KEY], [VALUE]))
    wal = (directory / f"{backup.STORE}-wal").read_bytes()
    store.close()
    (directory / f"{backup.STORE}-wal").write_bytes(wal)
    (directory / backup.STORE).unlink()
    assert entries(directory) == {}


def test_nothing_is_restored_under_a_controller_that_runs(tmp_path: Path) -> None:
    directory = cluster_in(tmp_path / "c")
    store = opened(directory)
    backup.write_backup(directory, tmp_path / "b", now=0.0)
    with pytest.raises(AlreadyRunning) as caught:
        backup.restore_backup(directory, tmp_path / "b")
    assert caught.value.remedy
    store.write(WriteBatch([KEY], [VALUE]))
    store.close()
    assert entries(directory) == {KEY: VALUE}
    with DatabaseLock(str(directory / f"{backup.STORE}.lock")), pytest.raises(AlreadyRunning):
        backup.restore_backup(directory, tmp_path / "b")


def test_another_cluster_s_backup_is_refused(tmp_path: Path) -> None:
    one, other = cluster_in(tmp_path / "c1"), cluster_in(tmp_path / "c2")
    for directory in (one, other):
        opened(directory).close()
    backup.write_backup(one, tmp_path / "b", now=0.0)
    before = (other / "token").read_bytes(), (other / backup.STORE).read_bytes()
    with pytest.raises(ForeignManifest):
        backup.restore_backup(other, tmp_path / "b")
    assert ((other / "token").read_bytes(), (other / backup.STORE).read_bytes()) == before


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    root = tmp_path_factory.mktemp("backup")
    directory = cluster_in(root / "c")
    opened(directory).close()
    backup.write_backup(directory, root / "b", now=0.0)
    return (root / "b").read_bytes()


@given(at=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7), cut=st.booleans())
def test_a_backup_of_which_one_bit_or_the_end_is_lost_is_refused(
    sound: bytes, tmp_path_factory: pytest.TempPathFactory, at: float, bit: int, cut: bool
) -> None:
    place = int(at * len(sound))
    data = bytearray(sound)
    data[place] ^= 1 << bit
    path = tmp_path_factory.mktemp("damaged") / "b"
    path.write_bytes(sound[:place] if cut else data)
    with pytest.raises((CorruptFile, ForeignManifest)) as caught:
        backup.read_backup(path, store="store")
    assert str(path) in caught.value.message
    assert caught.value.remedy


def test_a_damaged_store_is_not_backed_up(tmp_path: Path) -> None:
    directory = cluster_in(tmp_path / "c")
    opened(directory).close()
    path = directory / backup.STORE
    path.write_bytes(path.read_bytes()[:100] + b"\xff" * 4000)
    with pytest.raises(CorruptFile):
        backup.write_backup(directory, tmp_path / "b", now=0.0)
    assert not (tmp_path / "b").exists()


ENTRIES = {
    f"job/{each}".encode(): codec.dumps_checked({"spec": {"uid": each}}) for each in ("a", "b")
}


def damage(path: Path, key: bytes, at: int) -> None:
    """Flip one bit of an entry, in a database that stays sound."""
    value = bytearray(ENTRIES[key])
    value[at] ^= 1
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("UPDATE entries SET v = ? WHERE k = ?", (bytes(value), key))


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = cluster_in(tmp_path_factory.mktemp("filled") / "c")
    store = opened(directory)
    store.write(WriteBatch(list(ENTRIES), list(ENTRIES.values())))
    store.close()
    return directory


@pytest.mark.parametrize("key", ENTRIES)
@pytest.mark.parametrize("at", range(len(ENTRIES[b"job/a"])))
def test_a_store_of_which_one_byte_of_an_entry_is_another_is_neither_backed_up_nor_put_back(
    filled: Path, tmp_path: Path, key: bytes, at: int
) -> None:
    directory, file = tmp_path / "c", tmp_path / "b"
    shutil.copytree(filled, directory)
    store = directory / backup.STORE
    damage(store, key, at)
    with pytest.raises(CorruptFile) as caught:
        backup.write_backup(directory, file, now=0.0)
    assert str(store) in caught.value.message
    assert key.decode() in caught.value.message
    assert f"move {store} away" in caught.value.remedy
    assert not file.exists()
    bad, there = store.read_bytes(), (filled / backup.STORE).read_bytes()
    store.write_bytes(there)
    with pytest.raises(CorruptFile) as caught:
        backup.put_image(store, bad)
    assert f"move {store} away" in caught.value.remedy
    assert store.read_bytes() == there


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """A cluster whose store has an entry of each kind, as the controller writes them."""
    directory = cluster_in(tmp_path / "written")
    store = opened(directory)
    registry = Registry(store)
    registry.put_job(document())
    registry.put_draining(W1)
    registry.put_operation(handover(12), fake.operation(id=OpId("op-12")))
    job, gone = document().spec.uid, GivenUp(workers=W1)
    lost = Failover(op=OpId("op-13"), job=job, gone=gone, why="", decided=None)
    registry.put_failover(lost, fake.operation(id=OpId("op-13")))
    store.close()
    return directory


@pytest.mark.parametrize(
    "key",
    ["job/clicks-1", "op/000000000012", "failover/000000000013", *sorted(map(bytes.decode, ALONE))],
)
def test_an_entry_under_another_key_is_neither_backed_up_nor_put_back(
    written: Path, tmp_path: Path, key: str
) -> None:
    """One bit of the key rotted, and the value has its checksum."""
    store = written / backup.STORE
    whole = backup.image_of(store)
    for at in range(len(key)):
        rotten = bytearray(key.encode())
        rotten[at] ^= 1
        store.write_bytes(whole)
        with closing(sqlite3.connect(store)) as database, database:
            done = database.execute(
                "UPDATE entries SET k = ? WHERE k = ?", (bytes(rotten), key.encode())
            )
            assert done.rowcount == 1
        with pytest.raises(CorruptFile) as caught:
            backup.write_backup(written, tmp_path / "b", now=0.0)
        assert rotten.decode() in caught.value.message
        bad = store.read_bytes()
        store.write_bytes(whole)
        with pytest.raises(CorruptFile):
            backup.put_image(store, bad)
        assert store.read_bytes() == whole


def test_a_backup_that_has_a_damaged_store_is_not_restored(filled: Path, tmp_path: Path) -> None:
    """As a release wrote it that did not look."""
    directory = tmp_path / "c"
    shutil.copytree(filled, directory)
    file, store = tmp_path / "b", directory / backup.STORE
    backup.write_backup(directory, file, now=0.0)
    data, value = file.read_bytes()[: -backup.SUM_BYTES], ENTRIES[b"job/b"]
    assert data.count(value) == 1
    data = data.replace(value, value.replace(b'"b"', b'"c"'))
    file.write_bytes(data + hashlib.sha256(data).hexdigest().encode() + b"\n")
    before = store.read_bytes(), (directory / "token").read_bytes()
    with pytest.raises(CorruptFile) as caught:
        backup.restore_backup(directory, file)
    assert str(file) in caught.value.message
    assert f"move {store} away" in caught.value.remedy
    assert (store.read_bytes(), (directory / "token").read_bytes()) == before


@pytest.mark.parametrize("there", [True, False])
def test_a_backup_that_cannot_be_written_is_to_go_elsewhere(tmp_path: Path, there: bool) -> None:
    directory = cluster_in(tmp_path / "c")
    opened(directory).close()
    place = tmp_path / "elsewhere"
    if there:
        place.write_text("no directory")
    with pytest.raises(UnwritableDirectory) as caught:
        backup.write_backup(directory, place / "b", now=0.0)
    assert str(place) in caught.value.message
    assert "name a file in another directory" in caught.value.remedy
    assert "--cluster" not in caught.value.remedy, "the cluster's directory is as it should be"
    assert ("make it first" in caught.value.remedy) is not there


def test_what_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(NotRunning):
        backup.write_backup(tmp_path, tmp_path / "b", now=0.0)
    with pytest.raises(NotRunning):
        backup.restore_backup(tmp_path, tmp_path / "b")
    directory = cluster_in(tmp_path / "c")
    with pytest.raises(NotRunning, match="store") as caught:
        backup.write_backup(directory, tmp_path / "b", now=0.0)
    assert "`rhinoctl controller recover`" in caught.value.remedy
    assert "`rhinoctl controller restore FILE`" in caught.value.remedy
    assert "--cluster" not in caught.value.remedy, "it is the right directory"
    opened(directory).close()
    with pytest.raises(Refused, match="cannot read"):
        backup.restore_backup(directory, tmp_path / "b")
    (tmp_path / "b").write_text("")
    with pytest.raises(Refused, match="already"):
        backup.write_backup(directory, tmp_path / "b", now=0.0)
