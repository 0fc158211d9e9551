"""The state of an aggregation in an instance: one row of slots for each key.

An operator finds rows, works on columns, and puts the changed rows back; bytes are made only for
what comes from the vnodes' stores or goes there. Changes are gathered here until `spill` hands them
over: what a store has is the state as of the last spill, and the worker log has the rest.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise

import numpy as np
import pyarrow as pa

from rhinoctl.errors import UnknownVnode
from rhinoctl.ids import Vnode
from rhinoctl.operators.base import OperatorState
from rhinoctl.operators.keys import RESERVED, KeyCodec, time_bound
from rhinoctl.operators.values import ValueCodec
from rhinoctl.protocol.ports import Store, WriteBatch

SCAN_ROWS = 65_536
"""Rows that are decoded at a time: as many as Spark is told to put into one Arrow batch."""


@dataclass(frozen=True, slots=True)
class KeyRows:
    """Distinct keys, ascending by vnode. `times` are int64 microseconds, for timed keys; `columns`
    the key columns (`normalised`; text and bytes as large_binary)."""

    vnodes: np.ndarray
    groups: np.ndarray
    columns: Sequence[pa.Array]
    times: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.vnodes)


@dataclass(frozen=True, slots=True)
class Held:
    """What the state has for some keys: a row of slots each, all null where there is none."""

    keys: KeyRows
    encoded: list[bytes]
    slots: list[pa.Array]


def runs_of(vnodes: np.ndarray) -> list[tuple[Vnode, int, int]]:
    """Vnode, first row and end of each run of an ascending column."""
    edges = np.flatnonzero(np.diff(vnodes, prepend=-1, append=-1)).tolist()
    return [(Vnode(int(vnodes[start])), start, end) for start, end in pairwise(edges)]


class StateTable(OperatorState):
    """Rows of `values` by `keys`, in the stores of the attached vnodes."""

    def __init__(self, keys: KeyCodec, values: ValueCodec) -> None:
        self._keys = keys
        self._values = values
        self._stores: dict[Vnode, Store] = {}
        self._changed: dict[Vnode, dict[bytes, bytes]] = {}
        self._expired: dict[Vnode, int] = {}

    @property
    def vnodes(self) -> frozenset[Vnode]:
        return frozenset(self._stores)

    def attach(self, vnode: Vnode, store: Store) -> None:
        self._stores[vnode] = store

    def detach(self, vnode: Vnode) -> None:
        del self._stores[vnode]
        self._changed.pop(vnode, None)
        self._expired.pop(vnode, None)

    def find(self, keys: KeyRows) -> Held:
        """The rows of some keys. Raises UnknownVnode for one of a vnode that is not attached."""
        encoded = self._keys.encode(keys.groups, keys.columns, keys.times)
        found: list[bytes | None] = []
        for vnode, start, end in runs_of(keys.vnodes):
            self.spilled(vnode)
            found += self._store(vnode).get_many(encoded[start:end])
        return Held(keys, encoded, self._values.decode(found))

    def put(self, held: Held, slots: Sequence[pa.Array]) -> None:
        """Put a row for each key that was found."""
        values = self._values.encode(slots)
        for vnode, start, end in runs_of(held.keys.vnodes):
            changed = self._changed.setdefault(vnode, {})
            changed.update(zip(held.encoded[start:end], values[start:end], strict=True))

    def between(self, vnode: Vnode, since_us: int, until_us: int) -> tuple[KeyRows, list[pa.Array]]:
        """All rows of a vnode with since <= time < until, in the order of their keys."""
        self.spilled(vnode)
        entries = list(self._store(vnode).scan(time_bound(since_us), time_bound(until_us)))
        groups, columns, times = self._keys.decode([key for key, _ in entries])
        keys = KeyRows(np.full(len(entries), vnode, np.int64), groups, columns, times)
        return keys, self._values.decode([value for _, value in entries])

    def expire(self, vnode: Vnode, before_us: int) -> None:
        """Remove every row of a vnode with an earlier time."""
        self._expired[vnode] = max(before_us, self._expired.get(vnode, before_us))

    def dirty_bytes(self, vnode: Vnode) -> int:
        changed = self._changed.get(vnode, {})
        return sum(len(key) + len(value) for key, value in changed.items())

    def spill(self, vnode: Vnode) -> WriteBatch:
        changed = self._changed.pop(vnode, {})
        expired = self._expired.pop(vnode, None)
        ranges = []
        if expired is not None:
            bound = time_bound(expired)
            ranges.append((b"", bound))
            changed = {key: value for key, value in changed.items() if key >= bound}
        return WriteBatch(
            keys=list(changed), values=list(changed.values()), delete_ranges=tuple(ranges)
        )

    def spilled(self, vnode: Vnode) -> None:
        """Bring a vnode's store up to date, if it is not."""
        if vnode in self._changed or vnode in self._expired:
            self._store(vnode).write(self.spill(vnode))

    def _store(self, vnode: Vnode) -> Store:
        store = self._stores.get(vnode)
        if store is None:
            raise UnknownVnode(
                f"rows of vnode {vnode} came to an instance that has no store of it",
                remedy="rhinoctl status shows the owner of each vnode",
            )
        return store


def scanned(
    store: Store, keys: KeyCodec, values: ValueCodec
) -> Iterator[tuple[KeyRows, list[pa.Array]]]:
    """All rows of a store, in key order, a chunk at a time; the vnode of the keys is 0."""
    entries = store.scan(hi=RESERVED)
    while chunk := list(islice(entries, SCAN_ROWS)):
        groups, columns, times = keys.decode([key for key, _ in chunk])
        rows = KeyRows(np.zeros(len(chunk), np.int64), groups, columns, times)
        yield rows, values.decode([value for _, value in chunk])
