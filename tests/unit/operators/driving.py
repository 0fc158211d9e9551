"""The ways of Spark's tasks and of an instance, without either: route, apply, write."""

from collections.abc import Iterable, Sequence

import numpy as np
import pyarrow as pa

from rhinoctl.ids import BASE, KEY_GROUPS, Vnode
from rhinoctl.operators import KEY_GROUP, Applied, BatchContext, BoundOperator, Slice
from rhinoctl.operators.hashing import key_groups
from rhinoctl.protocol.ports import WriteBatch
from rhinoctl.protocol.records import NO_WATERMARKS, Watermarks
from tests.fakes.store import FakeStore


def with_key_group(table: pa.Table, keys: Sequence[str]) -> pa.Table:
    """What Spark's JVM adds to a frame."""
    groups = key_groups([table[key] for key in keys])
    return table.append_column(KEY_GROUP, pa.array(groups, pa.int32()))


def routed(wire: pa.Table, vnodes: int) -> list[Slice]:
    """Rows of the wire cut by vnode, ascending."""
    owners = wire[KEY_GROUP].to_numpy() * vnodes // KEY_GROUPS
    return [
        (Vnode(vnode), wire.filter(pa.array(owners == vnode)).combine_chunks().to_batches()[0])
        for vnode in np.unique(owners).tolist()
    ]


class Instance:
    """Stores of all vnodes of one bound operator."""

    def __init__(self, bound: BoundOperator, vnodes: int) -> None:
        self.bound = bound
        self.vnodes = vnodes
        self.stores = {Vnode(vnode): FakeStore() for vnode in range(vnodes)}
        self.held = bound.state()
        self.written: dict[Vnode, WriteBatch] = {}
        for vnode, store in self.stores.items():
            self.held.attach(vnode, store)

    def apply(self, slices: Sequence[Slice], watermarks: Watermarks = NO_WATERMARKS) -> Applied:
        """Apply and write."""
        context = BatchContext(time=BASE, vnodes=frozenset(self.stores), watermarks=watermarks)
        applied = self.bound.apply(slices, self.held, context)
        self.spill()
        return applied

    def spill(self) -> None:
        """Bring the stores up to date; `written` has what they got."""
        self.written = {}
        for vnode, store in self.stores.items():
            batch = self.held.spill(vnode)
            store.write(batch)
            if batch.keys or batch.delete_ranges:
                self.written[vnode] = batch

    def run(self, channels: Iterable[pa.Table]) -> Applied:
        """One batch, of which each channel pre-aggregates its rows (which have key groups)."""
        slices: list[Slice] = []
        for channel in channels:
            slices += routed(self.bound.pre_aggregate(channel), self.vnodes)
        return self.apply(slices)

    def state(self) -> pa.Table:
        """The results of all keys, by vnode and key."""
        batches = [batch for store in self.stores.values() for batch in self.bound.scan(store)]
        return pa.Table.from_batches(batches, self.bound.result_schema)
