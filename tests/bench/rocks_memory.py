"""Memory of a process that holds 64 vnodes with 1 GB of state. Run by hand; prints figures.

    .venv/bin/python tests/bench/rocks_memory.py [--mb 1024] [--vnodes 64] [--cache-mb 64] …

It fills, reads, updates, scans, checkpoints and opens from checkpoints as an instance does, and
ends with exit code 1 if the peak is above cache + buffers + 250 MB (issue 2).
"""

import argparse
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from rhinoctl.protocol.ports import WriteBatch
from rhinoctl.state.rocks import RocksStore, RocksStores, StoreBudget

VALUE_BYTES = 1000
BATCH_KEYS = 200
ALLOWANCE_MB = 250


def memory_mb() -> dict[str, float]:
    fields = dict(line.split(":") for line in Path("/proc/self/status").read_text().splitlines())
    return {name: int(fields[name].split()[0]) / 1024 for name in ("VmRSS", "VmHWM")}


class Load:
    """Updates of random keys over all vnodes, half of each value compressible."""

    def __init__(
        self, stores: RocksStores, opened: list[RocksStore], total_bytes: int, dirty_bytes: int
    ) -> None:
        self.stores = stores
        self.dirty_bytes = dirty_bytes
        self.opened = opened
        self.keys = total_bytes // len(opened) // (VALUE_BYTES + 20)
        self.dirty_max = 0
        self._chance = random.Random(1)
        self._noise = self._chance.randbytes(1 << 20)

    def key(self, vnode: int, number: int) -> bytes:
        return vnode.to_bytes(2) + b"%016d" % number

    def write(self, vnode: int, numbers: list[int]) -> None:
        half = VALUE_BYTES // 2
        values = []
        for _ in numbers:
            at = self._chance.randrange(len(self._noise) - half)
            values.append(self._noise[at : at + half] + b"x" * half)
        keys = [self.key(vnode, number) for number in numbers]
        self.opened[vnode].write(WriteBatch(keys=keys, values=values))
        self.dirty_max = max(self.dirty_max, self.stores.dirty_bytes)
        self.relieve()

    def relieve(self) -> None:
        """Flush the largest first, as an instance does."""
        dirty = {store: store.dirty_bytes for store in self.opened}
        excess = sum(dirty.values()) - self.dirty_bytes
        for store in sorted(dirty, key=dirty.__getitem__, reverse=True):
            if excess <= 0:
                break
            store.flush()
            excess -= dirty[store]

    def fill(self) -> int:
        for start in range(0, self.keys, BATCH_KEYS):
            for vnode in range(len(self.opened)):
                self.write(vnode, list(range(start, min(start + BATCH_KEYS, self.keys))))
        return self.keys * len(self.opened)

    def some(self) -> tuple[int, list[int]]:
        vnode = self._chance.randrange(len(self.opened))
        return vnode, [self._chance.randrange(self.keys) for _ in range(BATCH_KEYS)]

    def read(self) -> int:
        for _ in range(300):
            vnode, numbers = self.some()
            found = self.opened[vnode].get_many([self.key(vnode, n) for n in numbers])
            assert all(value is not None for value in found)
        return 300 * BATCH_KEYS

    def update(self) -> int:
        for _ in range(1500):
            vnode, numbers = self.some()
            self.opened[vnode].get_many([self.key(vnode, n) for n in numbers])
            self.write(vnode, numbers)
        return 1500 * BATCH_KEYS

    def scan(self) -> int:
        return sum(1 for store in self.opened[:8] for _ in store.scan())


def timed(name: str, work: Callable[[], int]) -> None:
    begin = time.perf_counter()
    count = work()
    seconds = time.perf_counter() - begin
    rss = memory_mb()["VmRSS"]
    print(f"{name:12} {count:>9,} in {seconds:6.2f} s  {count / seconds:>10,.0f}/s  {rss:6.1f} MB")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    for option, default in (("mb", 1024), ("vnodes", 64), ("cache-mb", 64), ("dirty-mb", 64)):
        parser.add_argument(f"--{option}", type=int, default=default)
    parser.add_argument("--directory", help="where to put the databases (default: a temporary one)")
    args = parser.parse_args()
    root = tempfile.mkdtemp(prefix="rocks-memory-", dir=args.directory)
    print(f"interpreter and imports: {memory_mb()['VmRSS']:.1f} MB")
    stores = RocksStores(StoreBudget(cache_bytes=args.cache_mb << 20))
    opened: list[RocksStore] = []

    def open_all() -> int:
        opened.extend(stores.open(f"{root}/live{vnode}") for vnode in range(args.vnodes))
        return args.vnodes

    def checkpoint_all() -> int:
        for vnode, store in enumerate(opened):
            store.checkpoint(f"{root}/ckpt{vnode}")
        return args.vnodes

    def open_from_checkpoints() -> int:
        for vnode in range(args.vnodes):
            opened[vnode].close()
            opened[vnode] = stores.open(f"{root}/next{vnode}", base=f"{root}/ckpt{vnode}")
        return args.vnodes

    try:
        timed("open", open_all)
        load = Load(stores, opened, args.mb << 20, args.dirty_mb << 20)
        for name in ("fill", "read", "update", "scan"):
            timed(name, getattr(load, name))
        timed("checkpoint", checkpoint_all)
        timed("move", open_from_checkpoints)
        timed("update", load.update)
        descriptors = len(list(Path("/proc/self/fd").iterdir()))
        print(f"unflushed at most {load.dirty_max / 2**20:.1f} MB, {descriptors} descriptors")
        timed("close", lambda: stores.close() or args.vnodes)
    finally:
        shutil.rmtree(root)
    peak = memory_mb()["VmHWM"]
    budgeted = args.cache_mb + args.dirty_mb
    print(f"peak {peak:.1f} MB = cache + buffers ({budgeted} MB) + {peak - budgeted:.1f} MB")
    return int(peak > budgeted + ALLOWANCE_MB)


if __name__ == "__main__":
    sys.exit(main())
