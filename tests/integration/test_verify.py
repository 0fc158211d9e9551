"""Verification of real processes: RocksDB's files on a real disk, read by the agents' processes."""

import time
from pathlib import Path

import pytest

from rhinoctl.ops import checkpoint, verify
from rhinoctl.protocol.verification import Checked
from rhinoctl.protocol.views import VerifyView
from tests.integration.running import JOB, Running, starting

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(300)]

MENDS_WITHIN_S = 60.0


def verified(job: Running, *, deep: bool = False) -> VerifyView:
    return verify.verify(str(job.cluster), JOB, vnodes=None, deep=deep, show=lambda _: None)


def table_of(job: Running, worker: str, vnode: int) -> Path:
    """A table of the newest checkpoint that a worker has of a vnode."""
    found = (job.cluster / "workers" / worker).glob(f"**/ckpt/{vnode}/*/*.sst")
    return max(
        (path for path in found if "." not in path.parent.name), key=lambda p: p.stat().st_size
    )


def test_copies_are_compared_and_a_flipped_byte_is_named_and_mended(tmp_path: Path) -> None:
    with starting(tmp_path) as make:
        job = make(workers=2, seconds=25, rate=1000, replication=1, vnodes=4)
        job.start()
        job.until(lambda e: e["event"] == "clock")
        job.batches(3)
        checkpoint.checkpoint(str(job.cluster), JOB, show=lambda _: None)
        view = verified(job, deep=True)
        assert verify.error_of(view) is None
        assert {one.state for c in view.copies for one in c.checkpoints} == {Checked.WHOLE}
        assert {each.vnode for each in verify.compared(view)} == set(range(4))
        assert all(one.entries for c in view.copies for one in c.checkpoints if one.digest)

        table = table_of(job, "w2", 1)
        data = bytearray(table.read_bytes())
        data[len(data) // 2] ^= 1
        with open(table, "r+b") as file:
            file.write(data)
        found = verify.bad(verified(job))
        assert {(each.worker, each.vnode) for each in found} == {("w2", 1)}
        assert table.name in {each.file for each in found}
        deadline = time.monotonic() + MENDS_WITHIN_S
        while verify.error_of(verified(job, deep=True)) is not None:
            assert time.monotonic() < deadline
        assert job.result()["oracle"]["equal"]
