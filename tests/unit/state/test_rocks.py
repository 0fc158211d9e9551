"""RocksDB databases: what survives, what is shared, what is released."""

import contextlib
import errno
import itertools
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rhinoctl.errors import AlreadyRunning, CorruptFile, DeadlineExceeded
from rhinoctl.protocol.ports import WriteBatch
from rhinoctl.state.rocks import RocksStore, RocksStores, StoreBudget, WriteStalled, retry_stalled

SMALL = StoreBudget(cache_bytes=1 << 20, write_buffer_bytes=64 << 10)


@pytest.fixture
def stores() -> Iterator[RocksStores]:
    opener = RocksStores(SMALL)
    yield opener
    opener.close()


def fill(store: RocksStore, start: int, stop: int, size: int = 100) -> None:
    numbers = range(start, stop)
    store.write(
        WriteBatch(
            keys=[b"%08d" % number for number in numbers],
            values=[random.Random(number).randbytes(size) for number in numbers],
        )
    )


def image(directory: Path) -> dict[str, tuple[bytes, int]]:
    return {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in directory.iterdir()}


# --- opened from a checkpoint ---------------------------------------------------------------------


def test_a_base_is_linked_and_never_written_to(stores: RocksStores, tmp_path: Path) -> None:
    origin = stores.open(str(tmp_path / "origin"))
    fill(origin, 0, 1000)
    origin.checkpoint(str(tmp_path / "base"))
    (tmp_path / "base/manifest.json").write_bytes(b"ours")
    before = image(tmp_path / "base")

    live = stores.open(str(tmp_path / "deep/live"), base=str(tmp_path / "base"))
    tables = {path.name for path in (tmp_path / "base").glob("*.sst")}
    assert tables
    for path in (tmp_path / "base").iterdir():
        twin = tmp_path / "deep/live" / path.name
        assert (twin.exists() and twin.samefile(path)) == (path.name in tables)
    assert not (tmp_path / "deep/live/manifest.json").exists()
    assert stores.copies == 0

    fill(live, 500, 3000)
    live.write(WriteBatch(delete_ranges=[(b"00000000", b"00000100")]))
    live.flush()
    live.close()
    assert image(tmp_path / "base") == before
    assert len(list(origin.scan())) == 1000


def test_a_refused_link_is_copied(tmp_path: Path) -> None:
    def refuse(source: str, target: str) -> None:
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))

    stores = RocksStores(SMALL, link=refuse)
    origin = stores.open(str(tmp_path / "origin"))
    fill(origin, 0, 100)
    origin.checkpoint(str(tmp_path / "base"))
    live = stores.open(str(tmp_path / "live"), base=str(tmp_path / "base"))
    assert list(live.scan()) == list(origin.scan())
    assert stores.copies == 1
    stores.close()


REFUSED = """
import ctypes, os, platform, struct, sys
from rhinoctl.protocol.ports import WriteBatch
from rhinoctl.state.digests import logical_digest
from rhinoctl.state.rocks import RocksImage, RocksStores

def refuse_links(number):
    "From now on the kernel refuses this thread every hard link, whoever in the process asks."
    calls = {"x86_64": (86, 265), "aarch64": (37,)}[platform.machine()]
    lines = [(0x20, 0, 0, 0)]  # load the number of the system call
    lines += [(0x15, len(calls) - n, 0, call) for n, call in enumerate(calls)]
    lines += [(0x06, 0, 0, 0x7FFF0000), (0x06, 0, 0, 0x00050000 | number)]  # allow, or the error
    program = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *line) for line in lines))
    head = ctypes.create_string_buffer(struct.pack("HP", len(lines), ctypes.addressof(program)))
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    if prctl(38, 1, 0, 0, 0) or prctl(22, 2, ctypes.c_void_p(ctypes.addressof(head)), 0, 0):
        raise SystemExit("no seccomp here")

stores = RocksStores()
live = stores.open(sys.argv[1] + "/live")
for start in range(0, 3000, 1000):
    keys = [b"%06d" % n for n in range(start, start + 1000)]
    live.write(WriteBatch(keys, keys))
    live.flush()
live.checkpoint(sys.argv[1] + "/linked")
refuse_links(int(sys.argv[2]))
live.checkpoint(sys.argv[1] + "/image")
live.write(WriteBatch([b"later"], [b"1"]))
live.checkpoint(sys.argv[1] + "/later")
moved = [stores.open(sys.argv[1] + "/from-" + n, base=sys.argv[1] + "/" + n)
         for n in ("image", "later")]
print([len(list(store.scan())) for store in (live, *moved)])
links = {name: {os.stat(entry).st_nlink for entry in os.scandir(sys.argv[1] + "/" + name)}
         for name in ("image", "later", "from-image")}
print(links)
digests = []
for name in ("linked", "image"):
    with RocksImage(sys.argv[1] + "/" + name) as image:
        digests.append(logical_digest(image.scan()))
print(digests[0] == digests[1], digests[0].entries)
stores.close()
"""


@pytest.mark.parametrize("number", [errno.EXDEV, errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK])
def test_where_nothing_can_be_linked_all_is_copied(tmp_path: Path, number: int) -> None:
    """T9: RocksDB copies by itself for two of the refusals only, and gives up for the others. The
    digests are those of an image with links."""
    command = [sys.executable, "-c", REFUSED, str(tmp_path), str(number)]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    copied = "{'image': {1}, 'later': {1}, 'from-image': {1}}"
    assert run.stdout == f"[3001, 3000, 3001]\n{copied}\nTrue 3000\n", run.stderr


def filled_up(path: Path, links: Path) -> bool:
    """Link a file until the file system refuses; False if it goes on and on."""
    links.mkdir()
    for number in range(70_000):
        try:
            os.link(path, links / str(number))
        except OSError as refusal:
            if refusal.errno != errno.EMLINK:
                raise
            return True
    return False


def test_a_table_with_too_many_links_is_copied_alone(stores: RocksStores, tmp_path: Path) -> None:
    """T9: EMLINK, as ext4 says it at 65,000 links. The database goes on, and so do checkpoints."""
    live = stores.open(str(tmp_path / "live"))
    for start in (0, 1000):
        fill(live, start, start + 1000)
        live.flush()
    full, other = sorted((tmp_path / "live").glob("*.sst"))
    if not filled_up(full, tmp_path / "links"):
        pytest.skip("this file system has no such bound")
    for checkpoint in ("one", "two"):
        live.checkpoint(str(tmp_path / checkpoint))
        assert (tmp_path / checkpoint / full.name).read_bytes() == full.read_bytes()
        assert not (tmp_path / checkpoint / full.name).samefile(full)
        assert (tmp_path / checkpoint / other.name).samefile(other)
    fill(live, 2000, 3000)
    assert len(list(live.scan())) == 3000
    assert len(list(stores.open(str(tmp_path / "next"), base=str(tmp_path / "two")).scan())) == 2000


def break_nothing_there(base: Path) -> None:
    for path in base.iterdir():
        path.unlink()


def break_all_0_bytes(base: Path) -> None:
    for path in base.iterdir():
        path.write_bytes(b"")


def break_lost_table(base: Path) -> None:
    next(base.glob("*.sst")).unlink()


def break_short_table(base: Path) -> None:
    table = next(base.glob("*.sst"))
    data = table.read_bytes()
    table.unlink()
    table.write_bytes(data[:-1])


def break_lost_current(base: Path) -> None:
    (base / "CURRENT").unlink()


@pytest.mark.parametrize(
    "damage",
    [
        break_nothing_there,
        break_all_0_bytes,
        break_lost_table,
        break_short_table,
        break_lost_current,
    ],
)
def test_a_damaged_base_is_refused_and_leaves_nothing(
    stores: RocksStores, tmp_path: Path, damage: object
) -> None:
    """Design, section 14; and a base without CURRENT must not become an empty store."""
    origin = stores.open(str(tmp_path / "origin"))
    fill(origin, 0, 100)
    origin.checkpoint(str(tmp_path / "base"))
    origin.close()
    assert callable(damage)
    damage(tmp_path / "base")
    with pytest.raises(CorruptFile, match="live"):
        stores.open(str(tmp_path / "live"), base=str(tmp_path / "base"))
    assert not (tmp_path / "live").exists()
    assert stores.stores == ()


def test_a_missing_base_or_an_old_directory(stores: RocksStores, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        stores.open(str(tmp_path / "live"), base=str(tmp_path / "none"))
    with pytest.raises(FileNotFoundError):
        stores.reopen(str(tmp_path / "live"))
    assert not (tmp_path / "live").exists()
    stores.open(str(tmp_path / "live"))
    with pytest.raises(FileExistsError):
        stores.open(str(tmp_path / "live"))


def test_tables_of_the_same_name_do_not_mix_in_the_shared_cache(
    stores: RocksStores, tmp_path: Path
) -> None:
    """Design, section 14: same SST name and size, other content."""
    origin = stores.open(str(tmp_path / "origin"))
    fill(origin, 0, 100)
    origin.checkpoint(str(tmp_path / "base"))
    pair = [stores.open(str(tmp_path / name), base=str(tmp_path / "base")) for name in "ab"]
    for turn, store in itertools.product(range(3), pair):
        value = store.directory[-1].encode() * 50
        store.write(WriteBatch(keys=[b"k%d" % turn], values=[value]))
        store.flush()
    names = [{path.name for path in (tmp_path / name).glob("*.sst")} for name in "ab"]
    assert names[0] == names[1]
    for _, store in itertools.product(range(2), pair):
        value = store.directory[-1].encode() * 50
        assert store.get_many([b"k0", b"k1", b"k2"]) == [value] * 3


def test_a_database_that_existed_uses_the_shared_cache(stores: RocksStores, tmp_path: Path) -> None:
    """rocksdict would give it the options in its file, and 8 MB of cache of its own."""
    store = stores.open(str(tmp_path / "live"))
    fill(store, 0, 20_000)
    store.checkpoint(str(tmp_path / "base"))
    store.close()
    keys = [b"%08d" % number for number in range(20_000)]
    again, moved = RocksStores(), RocksStores()
    for opener, reopened in (
        (again, again.reopen(str(tmp_path / "live"))),
        (moved, moved.open(str(tmp_path / "next"), base=str(tmp_path / "base"))),
    ):
        reopened.get_many(keys)
        assert opener.cache_used_bytes > 1 << 20
        opener.close()


# --- released -------------------------------------------------------------------------------------


def test_close_releases_the_lock_whatever_is_still_held(
    stores: RocksStores, tmp_path: Path
) -> None:
    """Design, section 14: a RocksDB handle that keeps its LOCK."""
    directory = str(tmp_path / "live")
    store = stores.open(directory)
    fill(store, 0, 100)
    begun, untouched, ended = store.scan(), store.scan(), store.scan()
    next(begun)
    list(ended)
    (tmp_path / "image").mkdir()
    with pytest.raises(FileExistsError) as held:
        store.checkpoint(str(tmp_path / "image"))
    with pytest.raises(AlreadyRunning, match="live"):
        stores.reopen(directory)
    store.close()
    again = stores.reopen(directory)
    assert len(list(again.scan())) == 100
    for scan in (begun, untouched):
        with pytest.raises(ValueError, match="closed"):
            next(scan)
    assert list(ended) == []
    assert held.value.errno == errno.EEXIST


def test_another_process_is_kept_out_until_close(stores: RocksStores, tmp_path: Path) -> None:
    script = "import sys\nfrom rhinoctl.state.rocks import *\nRocksStores().reopen(sys.argv[1])"

    def other() -> str:
        command = [sys.executable, "-c", script, str(tmp_path / "live")]
        return subprocess.run(command, capture_output=True, text=True, check=False).stderr

    store = stores.open(str(tmp_path / "live"))
    assert "AlreadyRunning" in other()
    store.close()
    assert other() == ""


def test_closing_keeps_what_was_not_flushed(stores: RocksStores, tmp_path: Path) -> None:
    store = stores.open(str(tmp_path / "live"))
    fill(store, 0, 10)
    store.close()
    assert len(list(stores.reopen(str(tmp_path / "live")).scan())) == 10


def test_descriptors_return(stores: RocksStores, tmp_path: Path) -> None:
    def descriptors() -> int:
        """Those of files of the stores: another test's may be let go of meanwhile."""
        found = 0
        for entry in os.listdir("/proc/self/fd"):
            with contextlib.suppress(FileNotFoundError):  # the listing's own
                found += os.readlink(f"/proc/self/fd/{entry}").startswith(str(tmp_path))
        return found

    for number in range(8):
        store = stores.open(str(tmp_path / str(number)))
        fill(store, 0, 10)
        store.flush()
    assert 8 <= descriptors() <= 8 * 17
    stores.close()
    assert descriptors() == 0


# --- damaged while open ---------------------------------------------------------------------------


def test_a_corrupt_block_is_an_error_not_an_end(stores: RocksStores, tmp_path: Path) -> None:
    """Invariant 9: nothing is served that was not verified."""
    store = stores.open(str(tmp_path / "live"))
    fill(store, 0, 2000)
    store.close()
    (table,) = (tmp_path / "live").glob("*.sst")
    data = bytearray(table.read_bytes())
    data[len(data) // 2] ^= 0xFF
    table.write_bytes(data)
    again = stores.reopen(str(tmp_path / "live"))
    with pytest.raises(CorruptFile, match="live"):
        list(again.scan())
    with pytest.raises(CorruptFile):
        again.get_many([b"%08d" % number for number in range(2000)])


# --- bounds ---------------------------------------------------------------------------------------


def test_a_flush_gives_unflushed_bytes_back(tmp_path: Path) -> None:
    stores = RocksStores()
    opened = [stores.open(str(tmp_path / str(number))) for number in range(3)]
    for store, size in zip(opened, (100, 1500, 100), strict=True):
        fill(store, 0, 800, size)
    assert stores.dirty_bytes == sum(store.dirty_bytes for store in opened) > 1 << 20
    small = opened[0].dirty_bytes
    opened[1].flush()
    assert opened[1].dirty_bytes < 10_000
    assert opened[1].state_bytes > 1 << 20
    assert opened[0].dirty_bytes == small
    stores.close()


def test_there_is_no_log_to_write_to(stores: RocksStores, tmp_path: Path) -> None:
    store = stores.open(str(tmp_path / "live"))
    fill(store, 0, 300)
    assert [path.stat().st_size for path in (tmp_path / "live").glob("*.log")] == [0]


def test_a_stalled_write_is_made_again(tmp_path: Path) -> None:
    waits: list[float] = []

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        time.sleep(seconds)

    stores = RocksStores(SMALL, sleep=sleep)
    store = stores.open(str(tmp_path / "live"))
    written = 0
    while not waits and written < 5000:
        store.write(WriteBatch(keys=[b"%08d" % written], values=[bytes(60_000)]))
        written += 1
    assert waits
    assert [key for key, _ in store.scan()] == [b"%08d" % number for number in range(written)]
    stores.close()


def test_backing_off_ends_at_the_deadline() -> None:
    """Invariant 12: every wait has a deadline, every retry a bound."""
    waits: list[float] = []

    def stalled() -> None:
        raise WriteStalled("Result incomplete: Write stall")

    with pytest.raises(DeadlineExceeded):
        retry_stalled(stalled, deadline_s=1.0, sleep=waits.append)
    assert 1.0 <= sum(waits) < 1.1
    assert waits == sorted(waits)
    assert waits[0] == 0.001


# --- killed ---------------------------------------------------------------------------------------

WRITER = """
import random, sys
from rhinoctl.protocol.ports import WriteBatch
from rhinoctl.state.rocks import RocksStores, StoreBudget

stores = RocksStores(StoreBudget(write_buffer_bytes=64 << 10))
store = stores.open(sys.argv[1])
chance = random.Random(int(sys.argv[2]))
for number in range(1, 1_000_000):
    text = b"%08d" % number
    store.write(WriteBatch(keys=[b"a", b"b", b"c" + text[-2:]], values=[text, text, text * 50],
                           deletes=[b"c%02d" % chance.randrange(100)]))
    if chance.random() < 0.01:
        store.flush()
        print(number, flush=True)
"""


@pytest.mark.parametrize("seed", range(3))
def test_what_survives_a_kill_is_a_prefix(stores: RocksStores, tmp_path: Path, seed: int) -> None:
    """Invariant 1 of rocks.py: a prefix, and at least what was flushed."""
    command = [sys.executable, "-c", WRITER, str(tmp_path / "live"), str(seed)]
    writer = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert writer.stdout is not None
    flushed = [int(writer.stdout.readline()) for _ in range(10 + 7 * seed)]
    writer.send_signal(signal.SIGKILL)
    flushed += [int(line) for line in writer.stdout if line.endswith("\n")]
    writer.wait()
    writer.stdout.close()

    survivors = dict(stores.reopen(str(tmp_path / "live")).scan())
    last = int(survivors[b"a"])
    assert last >= flushed[-1]
    chance, model = random.Random(seed), dict[bytes, bytes]()
    for number in range(1, last + 1):
        model.pop(b"c%02d" % chance.randrange(100), None)
        text = b"%08d" % number
        model |= {b"a": text, b"b": text, b"c" + text[-2:]: text * 50}
        chance.random()
    assert survivors == model


FULL = """
import os, resource, sys
from rhinoctl.protocol.ports import WriteBatch
from rhinoctl.state.rocks import RocksStores

stores = RocksStores()
store = stores.open(sys.argv[1])
store.write(WriteBatch(keys=[b"kept"], values=[b"1"]))
store.flush()
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))
store.write(WriteBatch(keys=[b"lost"], values=[os.urandom(1_000_000)]))
for call in (store.flush, store.close):
    try:
        call()
    except OSError as error:
        print(error.errno)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
store = stores.reopen(sys.argv[1])
store.write(WriteBatch(keys=[b"new"], values=[b"2"]))
print([key.decode() for key, _ in store.scan()])
stores.close()
"""


def test_a_disk_that_refuses_heals_with_a_new_store(tmp_path: Path) -> None:
    """Design, section 14: full disk that never heals. (A limit on file sizes stands in for it.)"""
    command = [sys.executable, "-c", FULL, str(tmp_path / "live")]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.stdout == f"{errno.EFBIG}\n{errno.EFBIG}\n['kept', 'new']\n", run.stderr
