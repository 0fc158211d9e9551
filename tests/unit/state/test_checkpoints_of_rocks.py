"""A vnode's way: written, checkpointed, copied to another worker, opened there."""

import random
from pathlib import Path

import pytest

from rhinoctl.ids import BatchTime, JobUid, Vnode
from rhinoctl.protocol.ports import WriteBatch
from rhinoctl.state.checkpoints import Level, VnodeCheckpoints
from rhinoctl.state.disk import LocalDisk
from rhinoctl.state.hashing import finish
from rhinoctl.state.leases import Leases
from rhinoctl.state.manifests import Identity, Manifest
from rhinoctl.state.rocks import RocksStore, RocksStores

IDENTITY = Identity(cluster="c", job=JobUid("j"), operator="counts", vnode=Vnode(7))


class Worker:
    """One worker's disk, checkpoints and instance."""

    def __init__(self, root: Path) -> None:
        self.disk = LocalDisk(str(root))
        self.checkpoints = VnodeCheckpoints(self.disk, "ckpt/7", IDENTITY)
        self.stores = RocksStores()

    def open(self, name: str, checkpoint_id: str) -> RocksStore:
        base = self.disk.path_of(self.checkpoints.path_of(checkpoint_id))
        return self.stores.open(self.disk.path_of(name), base=base)

    def take(self, store: RocksStore, batch: int) -> tuple[Manifest, int]:
        """The checkpoint, and how many bytes had to be read to hash it."""
        making = self.checkpoints.begin(f"c{batch}")
        store.checkpoint(self.disk.path_of(making))
        time = BatchTime(0, batch)
        steps = self.checkpoints.finish(
            Manifest(
                identity=IDENTITY,
                operator_version="1",
                vnodes=64,
                checkpoint_id=f"c{batch}",
                last_batch=time,
                covers=time,
                epoch=1,
            )
        )
        read = sum(steps)
        return self.checkpoints.complete()[0], read

    def receive(self, manifest: Manifest, origin: "Worker") -> int:
        sent = 0
        for entry in self.checkpoints.missing(manifest):
            path = f"{origin.checkpoints.path_of(manifest.checkpoint_id)}/{entry.name}"
            for offset in range(0, entry.size or 1, 50_000):
                chunk = origin.disk.read(path, offset, 50_000)
                self.disk.append(self.checkpoints.incoming(manifest, entry), [chunk])
                sent += len(chunk)
        finish(self.checkpoints.adopt(manifest))
        return sent


@pytest.fixture
def workers(tmp_path: Path) -> tuple[Worker, Worker]:
    return Worker(tmp_path / "w1"), Worker(tmp_path / "w2")


def write(store: RocksStore, start: int, stop: int) -> None:
    keys = [b"%08d" % number for number in range(start, stop)]
    store.write(WriteBatch(keys=keys, values=[random.Random(key).randbytes(200) for key in keys]))


def test_only_what_changed_is_hashed_sent_and_kept(workers: tuple[Worker, Worker]) -> None:
    one, two = workers
    store = one.stores.open(one.disk.path_of("live/7"))
    write(store, 0, 10_000)
    first, read_first = one.take(store, 1)
    assert read_first == first.total_bytes > 2_000_000
    assert two.receive(first, one) == first.total_bytes

    write(store, 10_000, 10_100)
    second, read_second = one.take(store, 2)
    assert second.total_bytes > first.total_bytes
    assert read_second < 60_000
    assert two.receive(second, one) < 60_000

    for worker in workers:
        for manifest in worker.checkpoints.complete():
            finish(worker.checkpoints.verify(manifest.checkpoint_id, Level.HASHES))
    copy = two.open("live/7", "c2")
    assert list(copy.scan()) == list(store.scan())
    write(copy, 20_000, 20_100)
    third, read_third = two.take(copy, 3)
    assert read_third < 60_000
    assert one.receive(third, two) < 60_000
    for worker in workers:
        worker.checkpoints.retain(Leases(), keep=1)
        assert worker.disk.list("ckpt/7") == ["c3"]
        worker.stores.close()
    back = one.open("live/7-again", "c3")
    assert len(list(back.scan())) == 10_200
    back.close()
    assert one.disk.copies == two.disk.copies == 0


def test_a_checkpoint_survives_that_its_store_is_thrown_away(
    workers: tuple[Worker, Worker],
) -> None:
    one, _ = workers
    store = one.stores.open(one.disk.path_of("live/7"))
    write(store, 0, 1000)
    one.take(store, 1)
    write(store, 0, 1000)
    store.close()
    one.disk.remove("live/7")
    again = Worker(Path(one.disk.root))
    finish(again.checkpoints.verify("c1", Level.HASHES))
    reopened = again.open("live/7", "c1")
    assert len(list(reopened.scan())) == 1000
    again.stores.close()
    finish(again.checkpoints.verify("c1", Level.STAMPS))
