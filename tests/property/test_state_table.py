"""The columnar cache equals the table without one, whatever is found, put, expired, spilled and
closed in between, however little memory it has and however poor its hash is."""

from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from rhinoctl.ids import Vnode
from rhinoctl.operators.arrow_types import solid
from rhinoctl.operators.cached import CachedTable
from rhinoctl.operators.direct import DirectTable
from rhinoctl.operators.keys import RESERVED, TIME_MAX, KeyCodec
from rhinoctl.operators.row_hashes import Hashes, RowHasher
from rhinoctl.operators.table import Held, KeyRows, StateTable
from rhinoctl.operators.values import ValueCodec
from rhinoctl.protocol.ports import WriteBatch
from tests.fakes.store import FakeStore

VNODES = 3
GROUPS = 10
"""Of a vnode, here."""

KEY_TYPES = [pa.int64(), pa.string(), pa.float64()]
KEYS: list[tuple[int | None, str | None, float | None]] = [
    (1, None, 0.5),
    (None, None, None),
    (None, "", None),
    (1, "", 0.0),
    (1, "\0", 0.0),
    (1, "eight by", float("nan")),
    (1, "eight by\0", float("nan")),
    (-(2**63), "more than sixteen bytes of text", None),
    (-1, "more than sixteen bytes of text!", -1.5),
]
SLOT_TYPES = [pa.int64(), pa.float64(), pa.decimal128(20, 2), pa.uint8()]
SLOTS = st.tuples(
    st.none() | st.integers(-(2**63), 2**63 - 1),
    st.none() | st.floats(),
    st.none() | st.sampled_from([Decimal("-0.01"), Decimal("123456789012345678.00")]),
    st.none() | st.integers(0, 255),
)
TIMES = st.integers(-2, 3) | st.sampled_from([-(2**63), TIME_MAX])
SPANS = st.tuples(TIMES, TIMES) | st.sampled_from([(-1, 3), (-(2**63), TIME_MAX)])
BUDGETS = st.sampled_from([0, 1000, 3000, 10**6])

Key = tuple[int, int, int]
"""Group, time, number in `KEYS`; the vnode is the group's."""


POOLS = st.lists(
    st.tuples(st.sampled_from([0, 3, 10, 20]), TIMES, st.integers(0, len(KEYS) - 1)),
    min_size=1,
    max_size=12,
    unique=True,
)
"""Few keys, so that one is met again."""


class PoorHasher:
    """The first hash says next to nothing: only the second tells keys apart."""

    def __init__(self) -> None:
        self._hasher = RowHasher()

    def __call__(self, *key: Any) -> Hashes:
        first, second = self._hasher(*key)
        return first & np.uint64(1), second


class Machine(RuleBasedStateMachine):
    """Both tables have stores of their own; `images` are what a vnode's checkpoint has."""

    timed: bool

    @initialize(budget=BUDGETS, poor=st.booleans(), pool=POOLS)
    def begin(self, budget: int, poor: bool, pool: list[Key]) -> None:
        self.pool = sorted(pool, key=lambda key: key[0] // GROUPS)
        if not self.timed:
            self.pool = sorted({(group, 0, number) for group, _, number in pool})
        codecs = KeyCodec(KEY_TYPES, timed=self.timed), ValueCodec(SLOT_TYPES)
        hasher = PoorHasher() if poor else None
        self.tables: tuple[StateTable, StateTable] = (
            CachedTable(*codecs, budget, hasher=hasher),
            DirectTable(*codecs),
        )
        self.values = codecs[1]
        self.images: dict[Vnode, list[tuple[bytes, bytes]]] = {}
        self.stores: dict[Vnode, tuple[FakeStore, FakeStore]] = {}
        for vnode in map(Vnode, range(VNODES)):
            self.images[vnode] = []
            self.open(vnode)

    def open(self, vnode: Vnode) -> None:
        self.stores[vnode] = FakeStore(), FakeStore()
        for table, store in zip(self.tables, self.stores[vnode], strict=True):
            keys, values = zip(*self.images[vnode], strict=True) if self.images[vnode] else ((), ())
            store.write(WriteBatch(keys, values))
            table.attach(vnode, store)

    def some_keys(self, data: st.DataObject) -> list[Key]:
        chosen = data.draw(st.integers(0, 2 ** len(self.pool) - 1))
        return [key for at, key in enumerate(self.pool) if chosen >> at & 1]

    def key_rows(self, keys: list[Key]) -> KeyRows:
        groups = np.array([group for group, _, _ in keys], np.int64)
        columns = [
            solid(pa.array([KEYS[number][at] for _, _, number in keys], held))
            for at, held in enumerate(KEY_TYPES)
        ]
        times = np.array([time for _, time, _ in keys], np.int64) if self.timed else None
        return KeyRows(groups // GROUPS, groups, columns, times)

    def found(self, keys: list[Key]) -> tuple[Held, Held]:
        rows = self.key_rows(keys)
        cached, direct = (table.find(rows) for table in self.tables)
        assert self.values.encode(cached.slots) == self.values.encode(direct.slots)
        return cached, direct

    def put(self, held: tuple[Held, Held], data: st.DataObject) -> None:
        rows = len(held[0].keys)
        drawn = data.draw(st.lists(SLOTS, min_size=rows, max_size=rows))
        slots = [pa.array([row[at] for row in drawn], t) for at, t in enumerate(SLOT_TYPES)]
        for table, each in zip(self.tables, held, strict=True):
            table.put(each, slots)

    @rule(data=st.data())
    def find_and_put(self, data: st.DataObject) -> None:
        self.put(self.found(self.some_keys(data)), data)

    @rule(data=st.data())
    def only_find(self, data: st.DataObject) -> None:
        self.found(self.some_keys(data))

    @rule(data=st.data(), before=TIMES)
    def put_after_others_were_found_and_expired(self, data: st.DataObject, before: int) -> None:
        held = self.found(self.some_keys(data))
        others = self.found(self.some_keys(data))
        if self.timed:
            for table in self.tables:
                table.expire(Vnode(0), before)
        self.put(held, data)
        if before % 2:
            self.put(others, data)

    @rule(vnode=st.integers(0, VNODES - 1), span=SPANS)
    def between(self, vnode: int, span: tuple[int, int]) -> None:
        if self.timed:
            since, until = span
            cached, direct = (t.between(Vnode(vnode), since, until) for t in self.tables)
            assert plain(cached[0]) == plain(direct[0])
            assert self.values.encode(cached[1]) == self.values.encode(direct[1])

    @rule(vnode=st.integers(0, VNODES - 1), before=TIMES)
    def expire(self, vnode: int, before: int) -> None:
        if self.timed:
            for table in self.tables:
                table.expire(Vnode(vnode), before)

    @rule(vnode=st.integers(0, VNODES - 1), last=st.binary(max_size=1))
    def spill(self, vnode: int, last: bytes) -> None:
        for table, store in zip(self.tables, self.stores[Vnode(vnode)], strict=True):
            store.write(table.spill(Vnode(vnode)))
            store.write(WriteBatch([RESERVED + b"last"], [last]))
            assert table.dirty_bytes(Vnode(vnode)) == 0
            assert table.spill(Vnode(vnode)) == WriteBatch([], [])
        cached, direct = (list(store.scan()) for store in self.stores[Vnode(vnode)])
        assert cached == direct
        self.images[Vnode(vnode)] = direct

    @rule(vnode=st.integers(0, VNODES - 1))
    def close_and_open_from_the_last_checkpoint(self, vnode: int) -> None:
        for table in self.tables:
            table.detach(Vnode(vnode))
        assert self.tables[0].vnodes == {Vnode(other) for other in range(VNODES)} - {vnode}
        self.open(Vnode(vnode))

    @invariant()
    def changes_are_counted(self) -> None:
        cached = self.tables[0] if hasattr(self, "tables") else None
        if isinstance(cached, CachedTable):
            dirty = [cached.dirty_bytes(Vnode(vnode)) for vnode in range(VNODES)]
            assert min(dirty) >= 0
            assert sum(dirty) <= cached.cached_bytes


def plain(rows: KeyRows) -> str:
    assert rows.times is not None
    columns = [column.to_pylist() for column in rows.columns]
    return repr((rows.vnodes.tolist(), rows.groups.tolist(), rows.times.tolist(), columns))


class Timed(Machine):
    timed = True


class Untimed(Machine):
    timed = False


TestTimed = Timed.TestCase
TestTimed.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestUntimed = Untimed.TestCase
TestUntimed.settings = settings(max_examples=30, stateful_step_count=30, deadline=None)
