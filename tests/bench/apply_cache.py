"""What the apply of a batch costs in one instance, on RocksDB. Run by hand; prints figures.

    .venv/bin/python -m tests.bench.apply_cache [--keys 50000] [--text] [--cache-mb 32] …

Every batch brings each key twice, pre-aggregated by two tasks; `RunningAggregate` of count and sum.
"""

import argparse
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable

import numpy as np
import pyarrow as pa

from rhinoctl.ids import KEY_GROUPS, BatchTime, Vnode
from rhinoctl.operators import KEY_GROUP, BatchContext, BoundOperator, RunningAggregate, Slice
from rhinoctl.operators.hashing import key_groups
from rhinoctl.state.rocks import RocksStores, StoreBudget

TASKS = 2


def batch(bound: BoundOperator, numbers: np.ndarray, vnodes: int, seed: int) -> list[Slice]:
    """The slices of one batch that has each key once a task."""
    random = np.random.default_rng(seed)
    slices: list[Slice] = []
    for _ in range(TASKS):
        shuffled = pa.array(random.permutation(numbers))
        if pa.types.is_string(bound.wire_schema.field("k").type):
            shuffled = pa.array([f"user-{number:012d}-of-the-shop" for number in shuffled.tolist()])
        values = pa.array(random.integers(0, 1000, len(numbers)))
        groups = pa.array(key_groups([shuffled]), pa.int32())
        wire = bound.pre_aggregate(pa.table({"k": shuffled, "v": values, KEY_GROUP: groups}))
        owners = wire[KEY_GROUP].to_numpy() * vnodes // KEY_GROUPS
        for vnode in range(vnodes):
            rows = wire.filter(pa.array(owners == vnode)).combine_chunks()
            slices += [(Vnode(vnode), piece) for piece in rows.to_batches()]
    return slices


def milliseconds(work: Callable[[], object]) -> float:
    begin = time.perf_counter()
    work()
    return (time.perf_counter() - begin) * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for option, default in (("keys", 50_000), ("vnodes", 32), ("batches", 8), ("cache-mb", 32)):
        parser.add_argument(f"--{option}", type=int, default=default)
    parser.add_argument("--text", action="store_true", help="keys of 29 characters, not longs")
    args = parser.parse_args()
    pa.set_cpu_count(1)  # as in an instance
    schema = pa.schema([("k", pa.string() if args.text else pa.int64()), ("v", pa.int64())])
    aggregates = {"n": "count", "total": ("sum", "v")}
    bound = RunningAggregate(keys=["k"], aggregates=aggregates).bind(schema)
    state = bound.state(args.cache_mb << 20)
    root = tempfile.mkdtemp(prefix="apply-cache-")
    stores = RocksStores(StoreBudget(cache_bytes=args.cache_mb << 20))
    vnodes = [Vnode(vnode) for vnode in range(args.vnodes)]
    opened = {vnode: stores.open(f"{root}/{vnode}") for vnode in vnodes}

    def apply(numbers: np.ndarray, number: int) -> float:
        slices = batch(bound, numbers, args.vnodes, number)
        context = BatchContext(time=BatchTime(0, number), vnodes=frozenset(vnodes))
        return milliseconds(lambda: bound.apply(slices, state, context))

    def spill() -> None:
        for vnode in vnodes:
            opened[vnode].write(state.spill(vnode))

    try:
        for vnode, store in opened.items():
            state.attach(vnode, store)
        numbers = np.arange(args.keys) * 7919
        print(f"{args.keys:,} new keys      {apply(numbers, 0):7.1f} ms")
        known = [apply(numbers, number) for number in range(1, args.batches + 1)]
        print(f"{args.keys:,} known keys    {statistics.median(known):7.1f} ms (median)")
        print(f"spill of all vnodes  {milliseconds(spill):7.1f} ms")
        for vnode in vnodes:
            state.detach(vnode)
            state.attach(vnode, opened[vnode])
        print(f"{args.keys:,} from RocksDB  {apply(numbers, args.batches + 1):7.1f} ms")
    finally:
        stores.close()
        shutil.rmtree(root)


if __name__ == "__main__":
    main()
