"""The state of an aggregation in an instance: one row of slots for each key.

An operator finds rows, works on columns, and puts the changed rows back. Changes are gathered until
`spill` hands them over: what a store has is the state as of the last spill, and the worker log has
the rest. Rows of a fixed width are kept in columns (`cached`); others go to the stores as bytes
(`direct`).
"""

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise

import numpy as np
import pyarrow as pa

from rhinoctl.errors import UnknownVnode
from rhinoctl.ids import Vnode
from rhinoctl.operators.base import OperatorState
from rhinoctl.operators.keys import RESERVED, KeyCodec
from rhinoctl.operators.values import ValueCodec
from rhinoctl.protocol.ports import Store

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

    def take(self, rows: np.ndarray) -> "KeyRows":
        """Some of them, given as ascending positions."""
        return KeyRows(
            vnodes=self.vnodes[rows],
            groups=self.groups[rows],
            columns=[column.take(pa.array(rows)) for column in self.columns],
            times=None if self.times is None else self.times[rows],
        )


class Held:
    """What the state has for some keys: a row of slots each, all null where there is none."""

    __slots__ = ("keys", "slots")

    def __init__(self, keys: KeyRows, slots: list[pa.Array]) -> None:
        self.keys = keys
        self.slots = slots


def runs_of(vnodes: np.ndarray) -> list[tuple[Vnode, int, int]]:
    """Vnode, first row and end of each run of an ascending column."""
    edges = np.flatnonzero(np.diff(vnodes, prepend=-1, append=-1)).tolist()
    return [(Vnode(int(vnodes[start])), start, end) for start, end in pairwise(edges)]


class StateTable(OperatorState):
    """Rows of `values` by `keys`, in the stores of the attached vnodes.

    Every call that names keys or a vnode raises UnknownVnode for one that is not attached.
    """

    def __init__(self, keys: KeyCodec, values: ValueCodec) -> None:
        self._keys = keys
        self._values = values
        self._stores: dict[Vnode, Store] = {}

    @property
    def vnodes(self) -> frozenset[Vnode]:
        return frozenset(self._stores)

    def attach(self, vnode: Vnode, store: Store) -> None:
        self._stores[vnode] = store

    def detach(self, vnode: Vnode) -> None:
        del self._stores[vnode]

    @abstractmethod
    def find(self, keys: KeyRows) -> Held:
        """The rows of some keys."""

    @abstractmethod
    def put(self, held: Held, slots: Sequence[pa.Array]) -> None:
        """Put a row for each key that was found. It does not fail."""

    @abstractmethod
    def between(self, vnode: Vnode, since_us: int, until_us: int) -> tuple[KeyRows, list[pa.Array]]:
        """All rows of a vnode with since <= time < until, in the order of their keys."""

    @abstractmethod
    def expire(self, vnode: Vnode, before_us: int) -> None:
        """Remove every row that a vnode has now with an earlier time."""

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
