"""The contract of the Store port, over RocksDB, SQLite and the fake."""

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rhinoctl.protocol.ports import Store, WriteBatch
from rhinoctl.state.rocks import RocksStores
from rhinoctl.state.sqlite import SqliteStore
from tests.fakes.store import FakeStore

Opener = Callable[[str], Store]


def restored(store: Store, directory: Path) -> Store:
    """The store that a checkpoint in `directory` describes; the checkpoint stays as it is."""
    if isinstance(store, FakeStore):
        return FakeStore.restore(str(directory))
    if isinstance(store, SqliteStore):
        return SqliteStore.restore(str(directory / "../restored.db"), str(directory))
    return RocksStores().open(str(directory / "../restored"), base=str(directory))


@pytest.fixture(params=["rocks", "sqlite", "fake"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    opened: Store
    if request.param == "rocks":
        opened = RocksStores().open(str(tmp_path / "db"))
    elif request.param == "sqlite":
        opened = SqliteStore(str(tmp_path / "db"))
    else:
        opened = FakeStore()
    yield opened
    opened.close()


def put(store: Store, **values: bytes) -> None:
    store.write(WriteBatch(keys=[name.encode() for name in values], values=list(values.values())))


def test_an_empty_store(store: Store) -> None:
    assert store.get_many([]) == []
    assert store.get_many([b"a", b""]) == [None, None]
    assert list(store.scan()) == []
    store.write(WriteBatch())
    store.flush()


def test_values_come_in_the_order_of_the_keys(store: Store) -> None:
    put(store, a=b"1", b=b"", c=b"3")
    assert store.get_many([b"c", b"x", b"a", b"b", b"c"]) == [b"3", None, b"1", b"", b"3"]


def test_keys_are_any_bytes_in_byte_order(store: Store) -> None:
    keys = [b"", b"\0", b"\0\0", b"\x7f", b"\x80", b"a", b"a\0", b"ab", b"b", b"\xff", b"\xff\xff"]
    shuffled = random.Random(1).sample(keys, len(keys))
    store.write(WriteBatch(keys=shuffled, values=[key + b"!" for key in shuffled]))
    assert list(store.scan()) == [(key, key + b"!") for key in sorted(keys)]
    assert store.get_many(keys) == [key + b"!" for key in keys]


def test_many_keys_in_one_call(store: Store) -> None:
    keys = [b"%08d" % number for number in range(5000)]
    store.write(WriteBatch(keys=keys, values=[key * 3 for key in keys]))
    wanted = random.Random(2).sample(keys, 3000)
    assert store.get_many(wanted) == [key * 3 for key in wanted]
    assert sum(1 for _ in store.scan()) == 5000


def test_the_order_in_a_batch_is_ranges_then_deletes_then_puts(store: Store) -> None:
    put(store, a=b"old", b=b"old", c=b"old", d=b"old")
    store.write(
        WriteBatch(
            keys=[b"b", b"d"],
            values=[b"new", b"new"],
            deletes=[b"d", b"absent"],
            delete_ranges=[(b"a", b"d")],
        )
    )
    assert list(store.scan()) == [(b"b", b"new"), (b"d", b"new")]


def test_the_last_of_equal_keys_in_a_batch_wins(store: Store) -> None:
    store.write(WriteBatch(keys=[b"a", b"a"], values=[b"1", b"2"]))
    assert store.get_many([b"a"]) == [b"2"]


def test_a_range_is_half_open_and_may_be_empty(store: Store) -> None:
    put(store, a=b"1", b=b"2", c=b"3")
    store.write(WriteBatch(delete_ranges=[(b"b", b"b"), (b"c", b"a"), (b"x", b"z")]))
    assert len(list(store.scan())) == 3
    store.write(WriteBatch(delete_ranges=[(b"a", b"c")]))
    assert list(store.scan()) == [(b"c", b"3")]


def test_scan_bounds(store: Store) -> None:
    put(store, a=b"1", b=b"2", c=b"3", d=b"4")
    assert [key for key, _ in store.scan(b"b", b"d")] == [b"b", b"c"]
    assert [key for key, _ in store.scan(b"bb")] == [b"c", b"d"]
    assert [key for key, _ in store.scan(hi=b"c")] == [b"a", b"b"]
    assert list(store.scan(b"c", b"c")) == []
    assert list(store.scan(b"d", b"a")) == []


def test_a_scan_is_of_the_moment_it_was_asked_for(store: Store) -> None:
    put(store, a=b"1", b=b"2")
    scan = store.scan()
    put(store, a=b"changed", c=b"3")
    store.write(WriteBatch(deletes=[b"b"]))
    assert list(scan) == [(b"a", b"1"), (b"b", b"2")]
    assert next(scan, None) is None
    assert [key for key, _ in store.scan()] == [b"a", b"c"]


def test_two_scans_at_a_time(store: Store) -> None:
    put(store, a=b"1", b=b"2")
    assert list(zip(store.scan(), store.scan(b"b"), strict=False)) == [((b"a", b"1"), (b"b", b"2"))]


def test_keys_without_values_are_refused_whole(store: Store) -> None:
    with pytest.raises(ValueError, match="2 keys but 1 values"):
        store.write(WriteBatch(keys=[b"a", b"b"], values=[b"1"]))
    assert list(store.scan()) == []


def test_a_checkpoint_is_of_one_moment_and_the_store_goes_on(store: Store, tmp_path: Path) -> None:
    put(store, a=b"1", b=b"2")
    store.checkpoint(str(tmp_path / "image"))
    put(store, a=b"later", c=b"later")
    files = {path.name: path.read_bytes() for path in (tmp_path / "image").iterdir()}
    copy = restored(store, tmp_path / "image")
    assert list(copy.scan()) == [(b"a", b"1"), (b"b", b"2")]
    put(copy, a=b"own", z=b"own")
    copy.flush()
    copy.close()
    assert store.get_many([b"a", b"z"]) == [b"later", None]
    assert {path.name: path.read_bytes() for path in (tmp_path / "image").iterdir()} == files


def test_a_checkpoint_needs_a_new_directory(store: Store, tmp_path: Path) -> None:
    (tmp_path / "image").mkdir()
    with pytest.raises(FileExistsError):
        store.checkpoint(str(tmp_path / "image"))


def test_a_closed_store_raises_on_use(store: Store, tmp_path: Path) -> None:
    put(store, a=b"1", b=b"2")
    store.close()
    store.close()
    for call in (
        lambda: store.get_many([b"a"]),
        lambda: put(store, a=b"1"),
        lambda: store.scan(),
        lambda: store.flush(),
        lambda: store.checkpoint(str(tmp_path / "image")),
    ):
        with pytest.raises(ValueError, match="closed"):
            call()
    assert not (tmp_path / "image").exists()


KEYS = st.binary(max_size=3)
BATCHES = st.builds(
    lambda entries, deletes, ranges: WriteBatch(
        keys=list(entries), values=list(entries.values()), deletes=deletes, delete_ranges=ranges
    ),
    st.dictionaries(KEYS, st.binary(max_size=5), max_size=5),
    st.lists(KEYS, max_size=3),
    st.lists(st.tuples(KEYS, KEYS), max_size=2),
)


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.lists(st.tuples(BATCHES, st.booleans()), max_size=6), KEYS, KEYS)
def test_it_is_a_sorted_mapping(
    store: Store, batches: list[tuple[WriteBatch, bool]], lo: bytes, hi: bytes
) -> None:
    model: dict[bytes, bytes] = {}
    store.write(WriteBatch(deletes=[key for key, _ in store.scan()]))
    for batch, flush in batches:
        store.write(batch)
        for low, high in batch.delete_ranges:
            model = {key: value for key, value in model.items() if not low <= key < high}
        for key in batch.deletes:
            model.pop(key, None)
        model.update(zip(batch.keys, batch.values, strict=True))
        if flush:
            store.flush()
    assert list(store.scan()) == sorted(model.items())
    assert [key for key, _ in store.scan(lo, hi)] == sorted(key for key in model if lo <= key < hi)
    assert store.get_many([lo, hi, *model]) == [model.get(lo), model.get(hi), *model.values()]
