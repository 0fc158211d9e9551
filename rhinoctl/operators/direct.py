"""State whose rows are bytes only: for slots of text and bytes, which no numpy column holds.

Every find asks the stores, and what was put before is written to them first.
"""

from collections.abc import Collection, Sequence

import numpy as np
import pyarrow as pa

from rhinoctl.ids import Vnode
from rhinoctl.operators.keys import KeyCodec, time_bound
from rhinoctl.operators.table import Held, KeyRows, StateTable, runs_of
from rhinoctl.operators.values import ValueCodec
from rhinoctl.protocol.ports import Store, WriteBatch

ENTRY_BYTES = 180
"""Of a key and a value in a dict, besides their bytes: two objects and a slot."""


def entry_bytes(keys: Collection[bytes], values: Collection[bytes]) -> int:
    """About how much memory entries take that wait to be spilled."""
    return sum(map(len, keys)) + sum(map(len, values)) + ENTRY_BYTES * len(keys)


class EncodedHeld(Held):
    """With the bytes of the keys."""

    __slots__ = ("encoded",)

    def __init__(self, keys: KeyRows, slots: list[pa.Array], encoded: list[bytes]) -> None:
        super().__init__(keys, slots)
        self.encoded = encoded


class DirectTable(StateTable):
    """A `StateTable` that keeps no rows."""

    def __init__(self, keys: KeyCodec, values: ValueCodec) -> None:
        super().__init__(keys, values)
        self._changed: dict[Vnode, dict[bytes, bytes]] = {}
        self._expired: dict[Vnode, int] = {}

    def attach(self, vnode: Vnode, store: Store) -> None:
        super().attach(vnode, store)
        self._changed[vnode] = {}

    def detach(self, vnode: Vnode) -> None:
        super().detach(vnode)
        del self._changed[vnode]
        self._expired.pop(vnode, None)

    def find(self, keys: KeyRows) -> Held:
        encoded = self._keys.encode(keys.groups, keys.columns, keys.times)
        found: list[bytes | None] = []
        for vnode, start, end in runs_of(keys.vnodes):
            found += self._spilled(vnode).get_many(encoded[start:end])
        return EncodedHeld(keys, self._values.decode(found), encoded)

    def put(self, held: Held, slots: Sequence[pa.Array]) -> None:
        assert isinstance(held, EncodedHeld)
        values = self._values.encode(slots)
        for vnode, start, end in runs_of(held.keys.vnodes):
            rows = zip(held.encoded[start:end], values[start:end], strict=True)
            self._changed[vnode].update(rows)

    def between(self, vnode: Vnode, since_us: int, until_us: int) -> tuple[KeyRows, list[pa.Array]]:
        store = self._spilled(vnode)
        entries = list(store.scan(time_bound(since_us), time_bound(until_us)))
        groups, columns, times = self._keys.decode([key for key, _ in entries])
        keys = KeyRows(np.full(len(entries), vnode, np.int64), groups, columns, times)
        return keys, self._values.decode([value for _, value in entries])

    def expire(self, vnode: Vnode, before_us: int) -> None:
        self._spilled(vnode)
        self._expired[vnode] = before_us

    def dirty_bytes(self, vnode: Vnode) -> int:
        changed = self._changed[vnode]
        return entry_bytes(changed.keys(), changed.values())

    def spill(self, vnode: Vnode) -> WriteBatch:
        changed, self._changed[vnode] = self._changed[vnode], {}
        expired = self._expired.pop(vnode, None)
        ranges = () if expired is None else ((b"", time_bound(expired)),)
        return WriteBatch(keys=list(changed), values=list(changed.values()), delete_ranges=ranges)

    def _spilled(self, vnode: Vnode) -> Store:
        """A vnode's store, up to date."""
        store = self._store(vnode)
        if self._changed[vnode] or vnode in self._expired:
            store.write(self.spill(vnode))
        return store
