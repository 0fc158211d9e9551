"""What lies on disks in the format before ours is read, and what is newer is refused unharmed."""

import os
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from rhinoctl.errors import ForeignManifest
from rhinoctl.protocol.ports import WriteBatch
from rhinoctl.protocol.versions import FORMATS, Span, since
from rhinoctl.state.disk import StampingDisk
from rhinoctl.state.log import WorkerLog, format_of, parse_segment_name, segment_name
from rhinoctl.state.manifests import Manifest
from rhinoctl.state.sqlite import SqliteStore, Step
from tests.fakes.disk import FakeDisk
from tests.unit.state.test_log import ONE, ROOT, at, contents, filled, seal_batch
from tests.unit.state.test_manifests import IDENTITY, MANIFEST

OURS = FORMATS.newest
AFTER = Span(newest=OURS + 1, oldest=OURS)
LATER = Span(newest=OURS + 2, oldest=OURS + 1)


def test_a_span_of_formats_in_words() -> None:
    assert str(AFTER) == f"{OURS}–{OURS + 1}"


# --- the worker log ------------------------------------------------------------------------------


def names_in(disk: StampingDisk) -> list[str]:
    return disk.list(ROOT)


@pytest.mark.parametrize("piece", [0, 3])
@pytest.mark.parametrize("version", [1, 2, 17])
def test_a_segments_name_tells_its_format(piece: int, version: int) -> None:
    name = segment_name(at(-1, 1), ONE, piece, version)
    assert (parse_segment_name(name), format_of(name)) == ((at(-1, 1), ONE), version)
    assert ("~" in name) is (version > 1), "what was written before there were formats is 1"


def test_a_log_goes_on_in_the_format_after() -> None:
    """Each segment stays in the format in which it was written."""
    disk = FakeDisk()
    _, ids = filled(disk, 3)
    before = {name: bytes(disk.read(f"{ROOT}/{name}")) for name in names_in(disk)}
    log = WorkerLog(disk, ROOT, AFTER)
    assert [record.id for record in log.load()] == ids
    ids.append(seal_batch(log, 3, ids[-1]))
    again = WorkerLog(disk, ROOT, AFTER)
    assert [record.id for record in again.load()] == ids
    assert contents(again, 3, {0, 1, 3}) == contents(log, 3, {0, 1, 3}) != []
    assert contents(again, 2, {0, 1, 3}) != []
    assert before.items() <= {n: bytes(disk.read(f"{ROOT}/{n}")) for n in names_in(disk)}.items()
    assert [n for n in names_in(disk) if n not in before] == [
        segment_name(at(3), ONE, version=AFTER.newest)
    ]


@pytest.mark.parametrize("formats", [FORMATS, AFTER])
def test_a_log_with_a_newer_segment_is_refused_and_nothing_is_removed(formats: Span) -> None:
    """Not even what was never sealed: it may be read by the version that wrote it."""
    disk = FakeDisk()
    _, ids = filled(disk, 2)
    newer = WorkerLog(disk, ROOT, Span(newest=OURS + 2, oldest=OURS))
    newer.load()
    seal_batch(newer, 2, ids[-1])
    disk.append(f"{ROOT}/{segment_name(at(3), ONE)}", [b"never sealed"])
    before = names_in(disk)
    with pytest.raises(ForeignManifest, match=f"format {OURS + 2}") as caught:
        WorkerLog(disk, ROOT, formats).load()
    assert caught.value.remedy
    assert names_in(disk) == before


def test_a_log_of_two_formats_before_is_refused() -> None:
    disk = FakeDisk()
    filled(disk, 2)
    before = names_in(disk)
    with pytest.raises(ForeignManifest, match=f"format {OURS}, this version reads"):
        WorkerLog(disk, ROOT, LATER).load()
    assert names_in(disk) == before


# --- manifests -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class NextManifest(Manifest):
    """With a field that comes with the format after ours."""

    colour: str = field(default="", metadata=since(OURS + 1))


def decode(kind: type[Manifest], data: bytes, formats: Span) -> Manifest:
    return kind.decode(data, path="manifest.json", expected=IDENTITY, formats=formats)


def of(kind: type[Manifest], version: int, **more: object) -> Manifest:
    parts = {name: getattr(MANIFEST, name) for name in Manifest.__dataclass_fields__}
    return kind(**{**parts, "format_version": version, **more})


def test_a_manifest_of_the_format_before_is_read_and_handed_on_as_it_is() -> None:
    old = decode(NextManifest, MANIFEST.encode(), AFTER)
    assert old == of(NextManifest, OURS)
    assert old.encode() == MANIFEST.encode()
    assert decode(Manifest, old.encode(), FORMATS) == MANIFEST


def test_a_manifest_of_the_format_after_is_refused() -> None:
    newer = of(NextManifest, OURS + 1, colour="red")
    assert decode(NextManifest, newer.encode(), AFTER) == newer
    with pytest.raises(ForeignManifest, match=f"format {OURS + 1}"):
        decode(Manifest, newer.encode(), FORMATS)
    with pytest.raises(ForeignManifest, match=f"format {OURS}, this version reads {LATER}"):
        decode(NextManifest, MANIFEST.encode(), LATER)


# --- the controller's store ----------------------------------------------------------------------

ENTRIES = {b"%03d" % number: b"value %d" % number for number in range(50)}


@pytest.fixture
def path(tmp_path: Path) -> str:
    """A store in our format."""
    store = SqliteStore(str(tmp_path / "db"))
    store.write(WriteBatch(keys=list(ENTRIES), values=list(ENTRIES.values())))
    store.close()
    return store.path


def state(path: str) -> tuple[int, dict[bytes, bytes]]:
    """Format and entries, as they are."""
    connection = sqlite3.connect(path)
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    entries = dict(connection.execute("SELECT k, v FROM entries"))
    connection.close()
    return version, entries


def shout(connection: sqlite3.Connection) -> None:
    connection.execute("UPDATE entries SET v = CAST(upper(CAST(v AS TEXT)) AS BLOB)")


def double(connection: sqlite3.Connection) -> None:
    connection.execute("UPDATE entries SET v = CAST(v || v AS BLOB)")


def no_room(connection: sqlite3.Connection) -> None:
    double(connection)
    raise OSError("made up: the disk is full")


STEPS: Mapping[int, Step] = {OURS: shout, OURS + 1: double}
SHOUTED = {key: value.upper() for key, value in ENTRIES.items()}


def test_a_store_of_the_format_before_is_migrated_when_it_is_opened(path: str) -> None:
    store = SqliteStore(path, formats=AFTER, migrations=STEPS)
    assert dict(store.scan()) == SHOUTED
    store.write(WriteBatch(keys=[b"new"], values=[b"lower"]))
    store.close()
    assert state(path) == (OURS + 1, {**SHOUTED, b"new": b"lower"})
    again = SqliteStore(path, formats=AFTER, migrations=STEPS)
    assert dict(again.scan()) == {**SHOUTED, b"new": b"lower"}, "once"
    again.close()


def test_all_steps_are_one_transaction(path: str) -> None:
    both = Span(newest=OURS + 2, oldest=OURS)
    with pytest.raises(OSError, match="made up"):
        SqliteStore(path, formats=both, migrations={**STEPS, OURS + 1: no_room})
    assert state(path) == (OURS, ENTRIES)
    SqliteStore(path).close()
    store = SqliteStore(path, formats=both, migrations=STEPS)
    assert dict(store.scan()) == {key: value * 2 for key, value in SHOUTED.items()}
    store.close()
    assert state(path)[0] == OURS + 2


def test_a_migration_that_is_killed_has_not_been(path: str) -> None:
    """In a child, which ends without a word within the second step."""
    child = os.fork()
    if child == 0:

        def die(connection: sqlite3.Connection) -> None:
            double(connection)
            os._exit(9)

        both = Span(newest=OURS + 2, oldest=OURS)
        SqliteStore(path, formats=both, migrations={**STEPS, OURS + 1: die})
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    store = SqliteStore(path)
    assert dict(store.scan()) == ENTRIES
    store.close()
    assert state(path)[0] == OURS


def test_a_store_of_the_format_after_is_refused_and_unchanged(path: str) -> None:
    SqliteStore(path, formats=AFTER, migrations=STEPS).close()
    before = Path(path).read_bytes()
    with pytest.raises(ForeignManifest, match=f"format {OURS + 1}; expected"):
        SqliteStore(path)
    assert Path(path).read_bytes() == before


def test_a_store_of_two_formats_before_is_refused_and_unchanged(path: str) -> None:
    before = Path(path).read_bytes()
    with pytest.raises(ForeignManifest, match=f"format {OURS}; expected"):
        SqliteStore(path, formats=LATER, migrations=STEPS)
    assert Path(path).read_bytes() == before


def test_a_new_store_is_in_the_newest_format(tmp_path: Path) -> None:
    store = SqliteStore(str(tmp_path / "new"), formats=AFTER, migrations=STEPS)
    store.close()
    assert state(store.path) == (AFTER.newest, {})


def test_a_checkpoint_of_the_format_before_is_migrated_once_it_is_restored(
    path: str, tmp_path: Path
) -> None:
    """As a backup is: it stays as it is."""
    store = SqliteStore(path)
    store.checkpoint(str(tmp_path / "image"))
    store.close()
    os.rename(tmp_path / "image/store.db", tmp_path / "db2")
    SqliteStore(str(tmp_path / "db2"), formats=AFTER, migrations=STEPS).close()
    assert state(str(tmp_path / "db2")) == (OURS + 1, SHOUTED)
    assert state(path) == (OURS, ENTRIES)
