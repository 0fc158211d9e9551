"""The columnar cache: when it asks the store, and how much memory it takes.

That it says the same as a table without a cache is `tests/property/test_state_table.py`.
"""

import tracemalloc
from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pytest

from rhinoctl.errors import UnknownVnode
from rhinoctl.ids import Vnode
from rhinoctl.operators.cached import CachedTable, state_table
from rhinoctl.operators.direct import DirectTable
from rhinoctl.operators.keys import TIME_MAX, KeyCodec
from rhinoctl.operators.row_hashes import RowHasher
from rhinoctl.operators.row_index import RowIndex
from rhinoctl.operators.table import KeyRows
from rhinoctl.operators.values import ValueCodec
from tests.fakes.store import FakeStore

PLENTY = 1 << 30
SLOTS = [pa.int64(), pa.float64()]


class WatchedStore(FakeStore):
    """Counts the keys that it is asked for, and the scans."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0
        self.scans = 0

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        self.asked += len(keys)
        return super().get_many(keys)

    def scan(self, lo: bytes = b"", hi: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        self.scans += 1
        return super().scan(lo, hi)


def key_rows(numbers: Sequence[int], times: Sequence[int] | None = None) -> KeyRows:
    """Keys of vnode 0."""
    zeros = np.zeros(len(numbers), np.int64)
    held = None if times is None else np.array(times, np.int64)
    return KeyRows(zeros, zeros, [pa.array(numbers, pa.int64())], held)


def slots_of(numbers: Sequence[int]) -> list[pa.Array]:
    return [pa.array(numbers, held) for held in SLOTS]


def put(table: CachedTable, keys: KeyRows) -> None:
    numbers = keys.columns[0].to_pylist()
    table.put(table.find(keys), slots_of(numbers))


def cached(store: FakeStore, *, timed: bool = False, cache_bytes: int = PLENTY) -> CachedTable:
    table = CachedTable(KeyCodec([pa.int64()], timed=timed), ValueCodec(SLOTS), cache_bytes)
    table.attach(Vnode(0), store)
    return table


def spill(table: CachedTable, store: FakeStore) -> None:
    store.write(table.spill(Vnode(0)))


# --- when the store is asked ----------------------------------------------------------------------


def test_a_store_that_was_empty_is_not_asked() -> None:
    store = WatchedStore()
    table = cached(store)
    put(table, key_rows([1, 2, 3]))
    spill(table, store)
    assert table.find(key_rows([1, 4])).slots[0].to_pylist() == [1, None]
    assert store.asked == 0


def test_a_key_is_asked_for_once_also_if_there_is_none() -> None:
    store = WatchedStore()
    first = cached(store)
    put(first, key_rows([1, 2, 3]))
    spill(first, store)
    table = cached(store)
    for _ in range(2):
        assert table.find(key_rows([1, 4])).slots[0].to_pylist() == [1, None]
    assert store.asked == 2


def test_what_was_dropped_for_room_is_asked_for_again() -> None:
    store = WatchedStore()
    table = cached(store, cache_bytes=0)
    put(table, key_rows([1, 2, 3]))
    assert table.cached_bytes > 0, "dirty rows stay"
    spill(table, store)
    assert table.cached_bytes == 0
    assert table.find(key_rows([1, 4])).slots[0].to_pylist() == [1, None]
    assert store.asked == 2


def test_times_that_a_store_cannot_have_are_not_asked_for() -> None:
    store = WatchedStore()
    first = cached(store, timed=True)
    put(first, key_rows([1, 2, 3], [-5, 10, 20]))
    spill(first, store)
    table = cached(store, timed=True)
    store.scans = 0
    put(table, key_rows([1, 2], [21, TIME_MAX]))
    assert len(table.between(Vnode(0), 21, TIME_MAX)[0]) == 1
    assert (store.asked, store.scans) == (0, 0)
    keys, slots = table.between(Vnode(0), 10, 22)
    assert (keys.columns[0].to_pylist(), slots[0].to_pylist()) == ([2, 3, 1], [2, 3, 1])
    assert store.scans == 1
    table.expire(Vnode(0), 21)
    assert len(table.between(Vnode(0), -10, TIME_MAX)[0]) == 1
    assert table.find(key_rows([2], [10])).slots[0].to_pylist() == [None]
    assert (store.asked, store.scans) == (0, 1), "all that the store had is expired"


def test_a_range_is_only_deleted_where_something_may_be() -> None:
    store = FakeStore()
    table = cached(store, timed=True)
    put(table, key_rows([1], [30]))
    table.expire(Vnode(0), 20)
    assert table.spill(Vnode(0)).delete_ranges == ()
    table.expire(Vnode(0), 31)
    assert len(table.spill(Vnode(0)).delete_ranges) == 1
    assert table.dirty_bytes(Vnode(0)) == 0


def test_changed_rows_win_over_those_of_the_store() -> None:
    store = WatchedStore()
    table = cached(store, timed=True, cache_bytes=0)
    put(table, key_rows([1, 2, 3], [10, 20, 30]))
    spill(table, store)
    table.put(table.find(key_rows([2, 4], [20, 5])), slots_of([-2, 4]))
    keys, slots = table.between(Vnode(0), 0, 30)
    assert keys.columns[0].to_pylist() == [4, 1, 2]
    assert slots[0].to_pylist() == [4, 1, -2]


def test_what_is_expired_and_not_spilled_is_not_read_from_the_store() -> None:
    store = FakeStore()
    table = cached(store, timed=True, cache_bytes=0)
    put(table, key_rows([1, 2, 3], [10, 20, 30]))
    spill(table, store)
    table.expire(Vnode(0), 20)
    assert table.between(Vnode(0), 0, 40)[1][0].to_pylist() == [2, 3]
    assert table.find(key_rows([1, 2], [10, 20])).slots[0].to_pylist() == [None, 2]


def test_rows_of_a_former_find_are_not_dropped_for_those_that_are_put_with_them() -> None:
    store, empty = FakeStore(), FakeStore()
    put(first := cached(store), key_rows([1, 2, 3]))
    spill(first, store)
    table = cached(store, cache_bytes=0)
    table.attach(Vnode(1), empty)
    keys = key_rows([1, 2, 3, 4])
    held = table.find(KeyRows(np.array([0, 0, 0, 1]), keys.groups, keys.columns))
    other = key_rows([9])
    table.find(KeyRows(np.array([1]), other.groups, other.columns))
    table.put(held, slots_of([10, 20, 30, 40]))
    for vnode, owner in ((Vnode(0), store), (Vnode(1), empty)):
        owner.write(table.spill(vnode))
    assert table.find(keys).slots[0].to_pylist() == [10, 20, 30, None]
    one = KeyRows(np.array([1]), keys.groups[3:], [keys.columns[0].slice(3)])
    assert table.find(one).slots[0].to_pylist() == [40]


def test_keys_that_cannot_be_encoded_are_refused_before_anything_is_put() -> None:
    table = cached(FakeStore(), timed=True)
    with pytest.raises(ValueError, match="later than keys can hold"):
        table.find(key_rows([1], [TIME_MAX + 1]))
    keys = key_rows([1], [1])
    elsewhere = KeyRows(keys.vnodes + 1, keys.groups, keys.columns, keys.times)
    with pytest.raises(UnknownVnode):
        table.find(elsewhere)


def test_slots_without_a_fixed_width_have_no_columns() -> None:
    keys = KeyCodec([pa.int64()])
    assert isinstance(state_table(keys, ValueCodec([pa.large_binary()]), 0), DirectTable)
    assert isinstance(state_table(keys, ValueCodec([pa.decimal128(9)]), 0), CachedTable)


# --- memory ---------------------------------------------------------------------------------------


def test_the_rows_that_were_used_longest_ago_go_first() -> None:
    store = WatchedStore()
    table = cached(store)
    put(table, key_rows([1]))
    row_bytes = table.cached_bytes
    table = cached(store, cache_bytes=16 * row_bytes)
    for start in (0, 8):
        put(table, key_rows(range(start, start + 8)))
    table.find(key_rows(range(4)))
    spill(table, store)
    put(table, key_rows([100]))
    spill(table, store)
    assert table.cached_bytes <= 16 * row_bytes
    table.find(key_rows([0, 1, 2, 3, 100]))
    assert store.asked == 0
    table.find(key_rows(range(4, 8)))
    assert store.asked > 0


def test_the_estimate_of_memory_is_honest() -> None:
    count = 100_000
    keys = key_rows(range(count))
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        table = cached(FakeStore())
        put(table, keys)
        grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert 0.7 < grown / table.cached_bytes < 1.3
    assert table.dirty_bytes(Vnode(0)) == table.cached_bytes
    table.detach(Vnode(0))
    assert table.cached_bytes == 0


# --- hashes and the index -------------------------------------------------------------------------


def test_hashes_tell_nulls_zeros_empty_text_and_columns_apart() -> None:
    texts = [None, "", "a", "a\0", "a\0\0", "eight by", "eight by\0", None, "a", ""]
    others = ["a", None, None, "", "", "", "", None, "", ""]
    columns = [
        pa.array(each, pa.large_string()).cast(pa.large_binary()) for each in (texts, others)
    ]
    places = np.zeros(len(texts), np.int64)
    for half in RowHasher()(places, None, columns):
        assert len(np.unique(half)) == len(texts)
    numbers = [pa.array([0, None, 0, None]), pa.array([None, 0, 0, None])]
    for half in RowHasher()(np.zeros(4, np.int64), None, numbers):
        assert len(np.unique(half)) == 4


def test_hashes_do_not_depend_on_the_rows_beside() -> None:
    hasher = RowHasher()
    columns = [
        pa.array([None, b"x" * 30, b"", b"yz"], pa.large_binary()),
        pa.array([1.5, None, 0.0, float("nan")]),
        pa.array([None, 1, -1, 7], pa.decimal128(20, 0)),
    ]
    places, times = np.arange(4), np.arange(4) * 10
    whole = hasher(places, times, columns)
    for row in range(4):
        one = hasher(
            places[row : row + 1], times[row : row + 1], [c.slice(row, 1) for c in columns]
        )
        assert [half[0] for half in one] == [half[row] for half in whole]


@pytest.mark.parametrize("kept_bits", [0, 3, 64])
def test_the_index_finds_what_was_added_and_not_removed(kept_bits: int) -> None:
    random = np.random.default_rng(1)
    mask = np.uint64((1 << kept_bits) - 1)
    index, there = RowIndex(), dict[int, int]()
    index.resize(3000)
    hashes = [random.integers(0, 2**64, 3000, np.uint64) for _ in range(2)]
    hashes[0] &= mask
    rows = np.arange(3000)
    for _ in range(20):
        some = random.choice(rows, 100 if kept_bits < 64 else 1500, replace=False)
        out = np.array([row for row in some if row in there], np.int64)
        new = np.array([row for row in some if row not in there], np.int64)
        index.remove(out)
        index.add(new, (hashes[0][new], hashes[1][new]))
        for row in out:
            del there[row]
        there |= dict.fromkeys(new.tolist(), 1)
        found = index.find((hashes[0], hashes[1]))
        assert found.tolist() == [row if row in there else -1 for row in rows]
