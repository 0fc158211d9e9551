"""Logical digests, and checkpoints that are read in their place."""

import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rhinoctl.errors import CorruptFile
from rhinoctl.protocol.ports import WriteBatch
from rhinoctl.state import digests
from rhinoctl.state.digests import logical_digest
from rhinoctl.state.rocks import RocksImage, RocksStores, sweep_scratch

ENTRIES = st.dictionaries(st.binary(max_size=4), st.binary(max_size=4), max_size=8)


@given(ENTRIES, ENTRIES)
def test_it_is_equal_for_equal_entries_only(
    one: dict[bytes, bytes], other: dict[bytes, bytes]
) -> None:
    found = [logical_digest(sorted(entries.items())) for entries in (one, other)]
    assert (found[0] == found[1]) == (one == other)
    assert [each.entries for each in found] == [len(one), len(other)]


def test_no_byte_may_move_from_a_key_to_its_value() -> None:
    assert logical_digest([(b"ab", b"c")]) != logical_digest([(b"a", b"bc")])
    assert logical_digest([(b"a", b""), (b"b", b"")]) != logical_digest([(b"a", b"b")])


def test_chunks_are_all_read(monkeypatch: pytest.MonkeyPatch) -> None:
    entries = [(b"%04d" % n, b"x" * (n % 7)) for n in range(1000)]
    assert logical_digest(entries) != logical_digest(entries[:-1])
    monkeypatch.setattr(digests, "CHUNK", 64)
    assert logical_digest(entries).entries == 1000
    assert logical_digest(entries) != logical_digest(entries[:-1])


def written(stores: RocksStores, live: Path, batches: list[range]) -> None:
    """A checkpoint `live`.c of a database that was flushed after each batch."""
    store = stores.open(str(live))
    for numbers in batches:
        keys = [b"%06d" % n for n in numbers]
        store.write(WriteBatch(keys, [key * 20 for key in keys]))
        store.flush()
    store.checkpoint(f"{live}.c")
    store.close()


def content(directory: str) -> dict[str, tuple[bytes, int]]:
    """The files, and when each was written last: nobody may find one half written."""
    files = [Path(directory, name) for name in sorted(os.listdir(directory))]
    return {file.name: (file.read_bytes(), file.stat().st_mtime_ns) for file in files}


def test_files_do_not_matter_and_nothing_is_written(tmp_path: Path) -> None:
    stores = RocksStores()
    written(stores, tmp_path / "a", [range(3000)])
    written(stores, tmp_path / "b", [range(2000, 3000), range(1000), range(1000, 2000)])
    written(stores, tmp_path / "c", [range(2999)])
    found = []
    for name in "abc":
        directory = str(tmp_path / f"{name}.c")
        before = content(directory)
        with RocksImage(directory) as image:
            found.append(logical_digest(image.scan()))
        assert content(directory) == before
    assert content(str(tmp_path / "a.c")).keys() != content(str(tmp_path / "b.c")).keys()
    assert found[0] == found[1] != found[2]
    assert found[0].entries == 3000


def test_nothing_is_left_of_an_image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither of one that was read, nor of one that could not be, nor of one whose reader died."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    written(RocksStores(), tmp_path / "a", [range(30)])
    with RocksImage(str(tmp_path / "a.c")) as image:
        assert logical_digest(image.scan()).entries == 30
    (tmp_path / "a.c" / "CURRENT").write_bytes(b"rotten")
    with pytest.raises((CorruptFile, OSError), match=r"a\.c"):
        RocksImage(str(tmp_path / "a.c"))
    assert list(scratch.iterdir()) == []
    left = scratch / "rhino-image-x"
    left.mkdir()
    sweep_scratch()
    assert left.exists()
    os.utime(left, (0, 0))
    sweep_scratch()
    assert not left.exists()


def test_a_rotten_block_is_an_error_and_no_end(tmp_path: Path) -> None:
    stores = RocksStores()
    written(stores, tmp_path / "a", [range(20000)])
    (table,) = (tmp_path / "a.c").glob("*.sst")
    data = bytearray(table.read_bytes())
    data[len(data) // 3] ^= 1
    table.write_bytes(data)
    with pytest.raises(CorruptFile), RocksImage(str(tmp_path / "a.c")) as image:
        logical_digest(image.scan())
