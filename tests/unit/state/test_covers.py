"""How far checkpoints reach, and what may be trimmed."""

from pathlib import Path

import pytest

from rhinoctl.errors import CorruptFile
from rhinoctl.ids import BASE, BatchTime, JobUid, Vnode
from rhinoctl.state.covers import BASE_ID, Covers
from rhinoctl.state.disk import LocalDisk
from rhinoctl.state.leases import Leases
from rhinoctl.state.manifests import Identity, Manifest, encode_checked
from tests.fakes.disk import FakeDisk

V = Vnode(7)


def manifest(checkpoint_id: str, batch: int) -> Manifest:
    return Manifest(
        identity=Identity(cluster="c", job=JobUid("j"), operator="o", vnode=V),
        operator_version="1",
        vnodes=64,
        checkpoint_id=checkpoint_id,
        last_batch=BASE,
        covers=BatchTime(0, batch),
        epoch=1,
    )


def test_an_untouched_vnode_moves_on_without_io(tmp_path: Path) -> None:
    covers = Covers(LocalDisk(str(tmp_path)), "covers.json")
    for batch in range(100):
        covers.advance(V, "c1", BatchTime(0, batch))
    covers.advance(V, "c1", BatchTime(0, 3))
    assert list(tmp_path.iterdir()) == []
    assert covers.of(manifest("c1", 5)) == BatchTime(0, 99)
    assert covers.of(manifest("c2", 5)) == BatchTime(0, 5)
    assert covers.of_base(V) == BASE


def test_the_log_is_trimmed_by_what_is_durable() -> None:
    """A crash must not bring back an older `covers` whose following batches are gone."""
    disk = FakeDisk()
    covers = Covers(disk, "covers.json")
    checkpoints = [manifest("c2", 8), manifest("c1", 5)]
    covers.advance(V, "c1", BatchTime(0, 7))
    assert covers.floor(V, checkpoints) == BatchTime(0, 5)
    covers.persist()
    assert covers.floor(V, checkpoints) == BatchTime(0, 7)
    covers.advance(V, "c1", BatchTime(0, 9))
    disk.crash()
    again = Covers(disk, "covers.json")
    assert again.of(manifest("c1", 5)) == again.floor(V, checkpoints) == BatchTime(0, 7)


def test_trimming_behind_the_newest_only_is_not_possible() -> None:
    """Seeded bug of the design's section 10: trim behind the newest checkpoint."""
    covers = Covers(FakeDisk(), "covers.json")
    checkpoints = [manifest("c3", 9), manifest("c2", 6), manifest("c1", 2)]
    assert covers.floor(V, checkpoints) == BatchTime(0, 6)
    assert covers.floor(V, checkpoints[:1]) == BASE
    assert covers.floor(V, checkpoints[:1], keep=1) == BatchTime(0, 9)
    covers.advance(V, BASE_ID, BatchTime(0, 1))
    covers.persist()
    assert covers.floor(V, checkpoints[:1]) == covers.of_base(V) == BatchTime(0, 1)


def test_persist_writes_only_what_moved() -> None:
    disk = FakeDisk()
    covers = Covers(disk, "covers.json")
    covers.persist()
    assert disk.size("covers.json") is None
    covers.advance(V, "c1", BatchTime(1, 2))
    covers.persist()
    stamp = disk.stamp("covers.json")
    covers.persist()
    assert disk.stamp("covers.json") == stamp


def test_removed_checkpoints_are_forgotten() -> None:
    disk = FakeDisk()
    covers = Covers(disk, "covers.json")
    for name in ("c1", "c2", BASE_ID):
        covers.advance(V, name, BatchTime(0, 5))
    covers.advance(Vnode(8), "c1", BatchTime(0, 5))
    covers.forget(V, ["c2"])
    covers.persist()
    again = Covers(disk, "covers.json")
    assert again.of(manifest("c1", 0)) == BatchTime(0, 0)
    assert again.of(manifest("c2", 0)) == BatchTime(0, 5)
    assert again.of_base(V) == BatchTime(0, 5)


@pytest.mark.parametrize(
    "data", [b"", b"{}", encode_checked({}), encode_checked({"covers": [[1, "c", 2]]})]
)
def test_a_corrupt_file_is_named(data: bytes) -> None:
    disk = FakeDisk()
    disk.write_atomic("covers.json", data)
    with pytest.raises(CorruptFile, match=r"covers\.json"):
        Covers(disk, "covers.json")


def test_leases_end_at_their_deadline() -> None:
    """Invariant 12: every wait has a deadline."""
    leases = Leases()
    leases.take(V, "c1", "w2", until=10.0)
    leases.take(V, "c1", "w3", until=20.0)
    leases.take(V, "c2", "w2", until=10.0)
    leases.take(V, "c2", "w2", until=15.0)
    leases.expire(12.0)
    assert leases.held(V, "c1")
    assert leases.held(V, "c2")
    leases.release("w3")
    assert not leases.held(V, "c1")
    leases.expire(15.0)
    assert not leases.held(V, "c2")
