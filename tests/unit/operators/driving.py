"""The ways of Spark's tasks and of an instance, without either: route, apply, write."""

from collections.abc import Iterable, Sequence

import numpy as np
import pyarrow as pa

from rhinoctl.ids import KEY_GROUPS, Vnode
from rhinoctl.operators import KEY_GROUP, Applied, BoundOperator, Slice
from rhinoctl.operators.hashing import key_groups
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

    def apply(self, slices: Sequence[Slice]) -> Applied:
        """Apply and write."""
        applied = self.bound.apply(slices, self.stores)
        for vnode, batch in applied.writes.items():
            self.stores[vnode].write(batch)
        return applied

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
