"""Verification of real processes: RocksDB's files on a real disk, read by the agents' processes."""

import os
import shutil
import signal
import time
from pathlib import Path

import pytest

from rhinoctl.ids import Vnode
from rhinoctl.ops import checkpoint, verify
from rhinoctl.protocol.verification import Checked
from rhinoctl.protocol.views import VerifyView
from rhinoctl.state.disk import LocalDisk
from rhinoctl.state.log import WorkerLog
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


def flip(path: Path, offset: int) -> None:
    with open(path, "r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 1]))


def rot_log(job: Running, worker: str, scratch: Path) -> int:
    """Flip a byte in each slice of each decided batch of a worker's log; how many there were. Where
    they lie is read from a copy, since an agent has the log open."""
    (log,) = (job.cluster / "workers" / worker).glob("**/jobs/*/log")
    shutil.copytree(log, scratch / "log")
    copy = WorkerLog(LocalDisk(str(scratch)), "log")
    every, flipped = frozenset(map(Vnode, range(4))), 0
    for record in copy.load():
        for path, _, places in copy.places(record.time, every) if record.is_batch else ():
            for place in places:
                if (log / Path(path).name).exists():
                    flip(log / Path(path).name, place.offset + place.size // 2)
                    flipped += 1
    return flipped


def test_rows_of_a_log_that_have_rotted_come_from_the_other_worker(tmp_path: Path) -> None:
    """An instance has to apply again what is not there any more as it was written."""
    with starting(tmp_path) as make:
        job = make(workers=2, seconds=30, rate=1000, replication=1, vnodes=4)
        job.start()
        job.until(lambda e: e["event"] == "clock")
        job.batches(6)
        assert rot_log(job, "w1", tmp_path / "copy") > 0
        (pid,) = {one.pid for one in job.client.job(JOB).instances if one.worker == "w1"}
        os.kill(pid, signal.SIGKILL)
        assert job.result()["oracle"]["equal"]
        told = "".join(log.read_text() for log in job.cluster.glob("**/*w1*.log"))
        assert "log-slice-bad" in told
