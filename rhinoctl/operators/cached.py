"""The write-behind cache of an operator's state: rows of hot keys in columns, over all vnodes.

RocksDB is asked for keys that are not here, and written to when its owner spills or before a
checkpoint; the worker log makes that safe (docs/adr/0007-write-behind-cache.md).

Invariants:

1. A row that is here wins over the store's; a row that is not here is the store's, without those
   that are expired and not spilled.
2. Dirty rows are never dropped to make room; a spill takes all of a vnode's.
3. Every row of the store with a time from the vnode's *floor* on is here, too, so such a key that
   is not here is nowhere, and the store is not asked. (Without times, all keys have time 0.)
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rhinoctl.ids import KEY_GROUPS, Vnode
from rhinoctl.operators.arrow_types import is_bytes
from rhinoctl.operators.columns import Columns
from rhinoctl.operators.direct import DirectTable
from rhinoctl.operators.keys import RESERVED, TIME_MAX, KeyCodec, time_bound
from rhinoctl.operators.row_hashes import Hashes, RowHasher
from rhinoctl.operators.row_index import RowIndex
from rhinoctl.operators.table import Held, KeyRows, StateTable, runs_of
from rhinoctl.operators.values import ValueCodec
from rhinoctl.protocol.ports import Store, WriteBatch

Hasher: TypeAlias = Callable[[np.ndarray, np.ndarray | None, Sequence[pa.Array]], Hashes]

EVERY_TIME = -(2**63)
NO_TIME = TIME_MAX + 1

SLACK = 8
"""An eighth of the budget is freed at a time, so that not every batch has to."""


def state_table(keys: KeyCodec, values: ValueCodec, cache_bytes: int) -> StateTable:
    """A table that fits the slots: those of text and bytes have no fixed width."""
    if any(is_bytes(held) for held in values.types):
        return DirectTable(keys, values)
    return CachedTable(keys, values, cache_bytes)


class CachedHeld(Held):
    """With the hashes of the keys, and the numbers of their rows, −1 for a key that is nowhere;
    they hold as long as the table has the same `version`."""

    __slots__ = ("hashes", "rows", "version")

    def __init__(
        self, keys: KeyRows, slots: list[pa.Array], hashes: Hashes, rows: np.ndarray, version: int
    ) -> None:
        super().__init__(keys, slots)
        self.hashes = hashes
        self.rows = rows
        self.version = version


@dataclass(slots=True)
class _Vnode:
    """`expired`: the time before which the store's rows are gone with the next spill."""

    floor: int
    expired: int | None = None
    dirty_bytes: int = 0


class CachedTable(StateTable):
    """A `StateTable` for slots of a fixed width.

    Rows take at most `cache_bytes`, those of the last batch and dirty ones aside: the owner bounds
    them by spilling in time (`dirty_bytes`).
    """

    def __init__(
        self,
        keys: KeyCodec,
        values: ValueCodec,
        cache_bytes: int,
        *,
        hasher: Hasher | None = None,
    ) -> None:
        super().__init__(keys, values)
        self._budget = cache_bytes
        self._hashes: Hasher = hasher or RowHasher()
        self._columns = Columns(values)
        self._index = RowIndex()
        self._vnodes: dict[Vnode, _Vnode] = {}
        self._bytes = 0
        self._tick = 0
        self._version = 0

    @property
    def cached_bytes(self) -> int:
        """Memory of all rows."""
        return self._bytes

    def attach(self, vnode: Vnode, store: Store) -> None:
        newest = _newest_time(store, timed=self._keys.timed)
        super().attach(vnode, store)
        self._vnodes[vnode] = _Vnode(EVERY_TIME if newest is None else newest + 1)

    def detach(self, vnode: Vnode) -> None:
        super().detach(vnode)
        self._drop(self._columns.of_vnode(vnode))
        del self._vnodes[vnode]

    # --- rows by key -----------------------------------------------------------------------------

    def find(self, keys: KeyRows) -> Held:
        for vnode, _, _ in runs_of(keys.vnodes):
            self._store(vnode)
        self._keys.check(keys.groups, keys.times)
        self._tick += 1
        places = keys.vnodes.astype(np.int64) * KEY_GROUPS + keys.groups
        hashes = self._hashes(places, keys.times, keys.columns)
        rows = self._index.find(hashes)
        here = rows >= 0
        self._columns.used[rows[here]] = self._tick
        missing = np.flatnonzero(~here)
        unsure = missing[self._may_be_stored(keys.take(missing))] if len(missing) else missing
        if len(unsure):
            rows[unsure] = self._read(keys.take(unsure), hashes[0][unsure], hashes[1][unsure])
        return CachedHeld(keys, self._columns.slots(rows), hashes, rows, self._version)

    def put(self, held: Held, slots: Sequence[pa.Array]) -> None:
        assert isinstance(held, CachedHeld)
        rows, columns = held.rows, self._columns
        if held.version != self._version:
            rows = self._index.find(held.hashes)
        columns.used[rows[rows >= 0]] = self._tick  # rows of a former find are in use, too
        missing = np.flatnonzero(rows < 0)
        if len(missing):
            keys = held.keys.take(missing)
            encoded = self._keys.encode(keys.groups, keys.columns, keys.times)
            hashes = held.hashes[0][missing], held.hashes[1][missing]
            rows = rows.copy()
            rows[missing] = self._enter(keys, encoded, hashes)
        fresh = np.where(columns.dirty[rows], 0, columns.sizes[rows])
        for vnode, start, end in runs_of(held.keys.vnodes):
            self._vnodes[vnode].dirty_bytes += int(fresh[start:end].sum())
        columns.set_slots(rows, slots)
        columns.present[rows] = True
        columns.dirty[rows] = True

    def _may_be_stored(self, keys: KeyRows) -> np.ndarray:
        """Which keys that are not here the store may have."""
        times = np.zeros(len(keys), np.int64) if keys.times is None else keys.times
        may = np.zeros(len(keys), bool)
        for vnode, start, end in runs_of(keys.vnodes):
            at = self._vnodes[vnode]
            since = EVERY_TIME if at.expired is None else at.expired
            may[start:end] = (times[start:end] < at.floor) & (times[start:end] >= since)
        return may

    def _read(self, keys: KeyRows, *hashes: np.ndarray) -> np.ndarray:
        """New rows for keys that the stores are asked for, whether they have them or not."""
        encoded = self._keys.encode(keys.groups, keys.columns, keys.times)
        found: list[bytes | None] = []
        for vnode, start, end in runs_of(keys.vnodes):
            found += self._store(vnode).get_many(encoded[start:end])
        values = pa.array(found, pa.large_binary())
        slots = self._values.decode_rows(values)
        rows = self._enter(keys, encoded, (hashes[0], hashes[1]))
        self._columns.set_slots(rows, slots)
        self._columns.present[rows] = values.is_valid().to_numpy(zero_copy_only=False)
        return rows

    def _enter(self, keys: KeyRows, encoded: list[bytes], hashes: Hashes) -> np.ndarray:
        """New rows, clean and not present."""
        columns = self._columns
        sizes = columns.row_bytes(encoded)
        total = int(sizes.sum())
        self._make_room(total, used_before=self._tick)
        rows = columns.allocate(keys.vnodes)
        self._index.resize(columns.capacity)
        self._index.add(rows, hashes)
        self._bytes += total
        self._version += 1
        columns.times[rows] = 0 if keys.times is None else keys.times
        columns.keys[rows] = encoded
        columns.sizes[rows] = sizes
        columns.used[rows] = self._tick
        columns.dirty[rows] = False
        columns.present[rows] = False
        return rows

    # --- rows by time ----------------------------------------------------------------------------

    def between(self, vnode: Vnode, since_us: int, until_us: int) -> tuple[KeyRows, list[pa.Array]]:
        columns = self._columns
        rest = self._beyond(vnode, since_us, until_us)
        rows = columns.of_vnode(vnode)
        rows = rows[(columns.times[rows] >= since_us) & (columns.times[rows] < until_us)]
        if rest is not None:
            stored, values = rest
            here = pa.array(columns.keys[rows].tolist(), pa.large_binary())
            stored_only = pc.invert(pc.is_in(stored, value_set=here))
        rows = rows[columns.present[rows]]
        encoded = pa.array(columns.keys[rows].tolist(), pa.large_binary())
        slots = columns.slots(rows)
        if rest is not None:
            encoded = pa.concat_arrays([encoded, stored.filter(stored_only)])
            decoded = self._values.decode_rows(values.filter(stored_only))
            slots = [pa.concat_arrays(pair) for pair in zip(slots, decoded, strict=True)]
        order = pc.array_sort_indices(encoded)
        groups, key_columns, times = self._keys.decode(encoded.take(order).to_pylist())
        keys = KeyRows(np.full(len(order), vnode, np.int64), groups, key_columns, times)
        return keys, [slot.take(order) for slot in slots]

    def _beyond(
        self, vnode: Vnode, since_us: int, until_us: int
    ) -> tuple[pa.Array, pa.Array] | None:
        """Keys and values of the store in a range, as far as the cache may lack them."""
        store, at = self._store(vnode), self._vnodes[vnode]
        since = since_us if at.expired is None else max(since_us, at.expired)
        until = min(until_us, at.floor)
        if since >= until:
            return None
        entries = list(store.scan(time_bound(since), time_bound(until)))
        keys, values = ([entry[part] for entry in entries] for part in (0, 1))
        return pa.array(keys, pa.large_binary()), pa.array(values, pa.large_binary())

    def expire(self, vnode: Vnode, before_us: int) -> None:
        self._store(vnode)
        at, columns = self._vnodes[vnode], self._columns
        rows = columns.of_vnode(vnode)
        rows = rows[columns.times[rows] < before_us]
        if at.floor > EVERY_TIME or columns.present[rows].any():
            at.expired = before_us if at.expired is None else max(before_us, at.expired)
        if before_us >= at.floor:
            at.floor = EVERY_TIME
        at.dirty_bytes -= int(columns.sizes[rows[columns.dirty[rows]]].sum())
        self._drop(rows)

    # --- memory ----------------------------------------------------------------------------------

    def dirty_bytes(self, vnode: Vnode) -> int:
        return self._vnodes[vnode].dirty_bytes

    def spill(self, vnode: Vnode) -> WriteBatch:
        at, columns = self._vnodes[vnode], self._columns
        rows = columns.of_vnode(vnode)
        rows = rows[columns.dirty[rows]]
        ranges = () if at.expired is None else ((b"", time_bound(at.expired)),)
        batch = WriteBatch(
            keys=columns.keys[rows].tolist(),
            values=self._values.encode(columns.slots(rows)),
            delete_ranges=ranges,
        )
        columns.dirty[rows] = False
        at.expired, at.dirty_bytes = None, 0
        self._make_room(0, used_before=self._tick + 1)
        return batch

    def _make_room(self, incoming: int, *, used_before: int) -> None:
        """Drop clean rows, those first that were used longest ago, until more bytes fit."""
        wanted = self._bytes + incoming
        dirty = sum(at.dirty_bytes for at in self._vnodes.values())
        if wanted <= self._budget or dirty == self._bytes:
            return
        columns = self._columns
        rows = columns.every()
        rows = rows[~columns.dirty[rows] & (columns.used[rows] < used_before)]
        rows = rows[np.argsort(columns.used[rows], kind="stable")]
        freed = np.cumsum(columns.sizes[rows], dtype=np.int64)
        aim = wanted - self._budget + self._budget // SLACK
        rows = rows[: np.searchsorted(freed, aim) + 1]
        gone = rows[columns.present[rows]]
        vnodes = columns.vnodes[gone]
        for vnode in np.unique(vnodes).tolist():
            newest = int(columns.times[gone[vnodes == vnode]].max())
            at = self._vnodes[Vnode(vnode)]
            at.floor = max(at.floor, newest + 1)
        self._drop(rows)

    def _drop(self, rows: np.ndarray) -> None:
        if len(rows):
            self._bytes -= int(self._columns.sizes[rows].sum())
            self._index.remove(rows)
            self._columns.drop(rows)
            self._version += 1


def _newest_time(store: Store, *, timed: bool) -> int | None:
    """A time that no key of a store exceeds, and one has; None for an empty store. Some sixty
    seeks: once for each vnode that comes with state."""

    def first_from(time_us: int) -> int | None:
        entry = next(store.scan(time_bound(time_us) if timed else b"", RESERVED), None)
        if entry is None:
            return None
        return int.from_bytes(entry[0][:8], "big") - 2**63 if timed else 0

    newest = first_from(EVERY_TIME)
    if newest is None or not timed:
        return newest
    beyond = NO_TIME
    while newest + 1 < beyond:
        middle = (newest + beyond) // 2
        found = first_from(middle)
        if found is None:
            beyond = middle
        else:
            newest = found
    return newest
