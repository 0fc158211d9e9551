"""The controller's store: durable, ours, and alone."""

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from rhinoctl.errors import (
    AlreadyRunning,
    CorruptFile,
    ForeignManifest,
    StoreGone,
    UnwritableDirectory,
)
from rhinoctl.protocol.ports import WriteBatch
from rhinoctl.state.sqlite import APPLICATION_ID, SqliteStore


def filled(path: Path, entries: int = 2000) -> str:
    store = SqliteStore(str(path))
    keys = [b"%08d" % number for number in range(entries)]
    store.write(WriteBatch(keys=keys, values=[key * 10 for key in keys]))
    store.close()
    return str(path)


def test_what_is_written_is_there_again(tmp_path: Path) -> None:
    store = SqliteStore(filled(tmp_path / "db", 10))
    assert [key for key, _ in store.scan()] == [b"%08d" % number for number in range(10)]
    store.close()


def test_a_second_opener_is_refused_and_told_who(tmp_path: Path) -> None:
    store = SqliteStore(str(tmp_path / "db"))
    with pytest.raises(AlreadyRunning, match=str(os.getpid())):
        SqliteStore(str(tmp_path / "db"))
    store.close()
    SqliteStore(str(tmp_path / "db")).close()


def test_a_refused_file_is_not_kept_locked(tmp_path: Path) -> None:
    (tmp_path / "db").write_bytes(b"not a database" * 1000)
    for _ in range(2):
        with pytest.raises(CorruptFile):
            SqliteStore(str(tmp_path / "db"))


def test_an_empty_file_is_a_lost_one(tmp_path: Path) -> None:
    """Design, section 14: all files 0 bytes; not a new and empty controller."""
    (tmp_path / "db").write_bytes(b"")
    with pytest.raises(CorruptFile, match="empty") as caught:
        SqliteStore(str(tmp_path / "db"))
    assert caught.value.remedy


def test_a_damaged_page_is_found_when_it_is_opened(tmp_path: Path) -> None:
    path = Path(filled(tmp_path / "db"))
    data = bytearray(path.read_bytes())
    data[3 * 4096 : 4 * 4096] = bytes(4096)
    path.write_bytes(data)
    with pytest.raises(CorruptFile, match="db"):
        SqliteStore(str(path))


def test_a_cut_file_is_found_when_it_is_opened(tmp_path: Path) -> None:
    path = filled(tmp_path / "db")
    os.truncate(path, os.path.getsize(path) // 2)
    with pytest.raises(CorruptFile):
        SqliteStore(path)


@pytest.mark.parametrize(
    "change", ["PRAGMA application_id = 7", "PRAGMA user_version = 2", "PRAGMA user_version = 0"]
)
def test_anothers_database_is_refused_and_unchanged(tmp_path: Path, change: str) -> None:
    path = Path(filled(tmp_path / "db"))
    connection = sqlite3.connect(path)
    connection.execute(change)
    connection.commit()
    connection.close()
    before = path.read_bytes()
    with pytest.raises(ForeignManifest, match=f"{APPLICATION_ID:#x}"):
        SqliteStore(str(path))
    assert path.read_bytes() == before


def test_an_unwritable_directory_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(UnwritableDirectory, match="file"):
        SqliteStore(str(tmp_path / "file/db"))


def test_a_failed_batch_changes_nothing(tmp_path: Path) -> None:
    store = SqliteStore(str(tmp_path / "db"))
    store.write(WriteBatch(keys=[b"a"], values=[b"1"]))
    with pytest.raises(sqlite3.Error):
        store.write(
            WriteBatch(keys=[b"b", object()], values=[b"2", b"3"], deletes=[b"a"])  # type: ignore[list-item]
        )
    assert list(store.scan()) == [(b"a", b"1")]
    store.write(WriteBatch(keys=[b"c"], values=[b"4"]))
    assert store.get_many([b"b", b"c"]) == [None, b"4"]
    store.close()


def test_a_checkpoint_is_one_sound_file(tmp_path: Path) -> None:
    store = SqliteStore(filled(tmp_path / "db"))
    scan = store.scan()
    next(scan)
    store.checkpoint(str(tmp_path / "made/image"))
    store.close()
    with pytest.raises(ValueError, match="closed"):
        next(scan)
    assert os.listdir(tmp_path / "made/image") == ["store.db"]
    copy = SqliteStore.restore(str(tmp_path / "copy"), str(tmp_path / "made/image"))
    assert len(list(copy.scan())) == 2000
    copy.close()
    with pytest.raises(FileExistsError):
        SqliteStore.restore(str(tmp_path / "copy"), str(tmp_path / "made/image"))


def copied(path: Path) -> None:
    """The same bytes in another file: what is open is not it."""
    data = path.read_bytes()
    path.unlink()
    path.write_bytes(data)


@pytest.mark.parametrize(
    "lose",
    [
        lambda path: path.unlink(),
        lambda path: path.with_name("db-wal").unlink(),
        lambda path: path.with_name("db-shm").unlink(),
        lambda path: path.rename(path.with_name("away")),
        lambda path: path.parent.rename(path.parent.with_name("away")),
        lambda path: shutil.rmtree(path.parent),
        copied,
    ],
)
def test_an_open_store_that_is_gone_is_missed(tmp_path: Path, lose: Callable[[Path], None]) -> None:
    path = tmp_path / "controller/db"
    store = SqliteStore(filled(path, 10))
    store.write(WriteBatch(keys=[b"a"], values=[b"1"]))
    list(store.scan())
    store.check_there()
    lose(path)
    with pytest.raises(StoreGone, match="db") as caught:
        store.check_there()
    assert "controller recover" in caught.value.remedy
    store.close()


def test_a_store_that_was_moved_away_whole_is_whole(tmp_path: Path) -> None:
    """So that it can be put back: nothing is lost of it when it is closed."""
    store = SqliteStore(filled(tmp_path / "controller/db", 10))
    store.write(WriteBatch(keys=[b"a"], values=[b"1"]))
    (tmp_path / "controller").rename(tmp_path / "away")
    store.close()
    (tmp_path / "away").rename(tmp_path / "controller")
    again = SqliteStore(str(tmp_path / "controller/db"))
    assert again.get_many([b"a"]) == [b"1"]
    again.check_there()
    again.close()


WRITER = """
import sys
from rhinoctl.protocol.ports import WriteBatch
from rhinoctl.state.sqlite import SqliteStore

store = SqliteStore(sys.argv[1])
for number in range(1, 1_000_000):
    text = b"%08d" % number
    old = b"%08d" % (number - 20)
    store.write(WriteBatch(keys=[b"a", text], values=[text, text * 50], deletes=[old]))
    print(number, flush=True)
"""

FULL = """
import os, resource, sys
from rhinoctl.protocol.ports import WriteBatch
from rhinoctl.state.sqlite import SqliteStore

store = SqliteStore(sys.argv[1])
store.write(WriteBatch(keys=[b"kept"], values=[b"1"]))
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))
try:
    store.write(WriteBatch(keys=[b"lost"], values=[os.urandom(1_000_000)]))
except OSError as error:
    print("refused")
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
store.write(WriteBatch(keys=[b"new"], values=[b"2"]))
print([key.decode() for key, _ in store.scan()])
store.close()
"""


def test_what_was_written_survives_a_kill(tmp_path: Path) -> None:
    command = [sys.executable, "-c", WRITER, str(tmp_path / "db")]
    writer = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert writer.stdout is not None
    for _ in range(100):
        written = int(writer.stdout.readline())
    writer.send_signal(signal.SIGKILL)
    lines = [line for line in writer.stdout if line.endswith("\n")]
    written = int(lines[-1]) if lines else written
    writer.wait()
    writer.stdout.close()
    store = SqliteStore(str(tmp_path / "db"))
    entries = dict(store.scan())
    last = int(entries.pop(b"a"))
    assert last in (written, written + 1)
    texts = [b"%08d" % number for number in range(max(1, last - 19), last + 1)]
    assert entries == {text: text * 50 for text in texts}
    store.close()


def test_a_disk_that_refuses_heals(tmp_path: Path) -> None:
    """Design, section 14: full disk that never heals. (A limit on file sizes stands in for it.)"""
    command = [sys.executable, "-c", FULL, str(tmp_path / "db")]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.stdout == "refused\n['kept', 'new']\n", run.stderr
