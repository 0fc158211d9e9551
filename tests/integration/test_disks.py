"""Two disks a worker with RocksDB's files: spread, retired and added while a query runs."""

from pathlib import Path

import pytest

from rhinoctl.ops import checkpoint, disks, verify
from rhinoctl.protocol.disks import DiskList, DiskReport, DiskState
from tests.integration.running import JOB, Running, ignore, starting

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(300)]


def told(job: Running, worker: str) -> dict[str, DiskReport]:
    """A worker's disks, as `disk list` has them."""
    found = disks.list_disks(str(job.cluster), worker)
    return {view.disk.disk: view.disk for view in found.disks}


def vnodes_in(directory: Path) -> set[str]:
    """The vnodes with checkpoints in a disk's directory."""
    return {path.parent.name for path in directory.glob("jobs/*/ckpt/*/*")}


def quiet(_: DiskList) -> None:
    ignore("")


def test_a_disk_is_retired_and_another_added_while_a_query_runs(tmp_path: Path) -> None:
    with starting(tmp_path) as make:
        job = make(workers=2, disks=2, seconds=25, rate=1000, replication=1, vnodes=8)
        job.start()
        job.until(lambda e: e["event"] == "clock")
        job.batches(3)
        checkpoint.checkpoint(str(job.cluster), JOB, show=lambda _: None)
        first, second = job.cluster / "workers/w1", job.cluster / "disks/w1-2"
        assert len(vnodes_in(first)) == len(vnodes_in(second)) == 4
        assert {disk.shares for disk in told(job, "w1").values()} == {"d1"}
        shared = [path for path in second.glob("jobs/*/live/**/*.sst") if path.stat().st_nlink > 1]
        assert shared, "live databases and checkpoints of a vnode are linked on its disk"

        scrubbed = disks.scrub(str(job.cluster), "w1", wait=True, show=quiet)
        assert disks.error_of_scrub(scrubbed, waited=True) is None
        assert all(view.disk.scrub.files > 0 for view in scrubbed.disks)

        retired = disks.retire(str(job.cluster), "w1:d2", wait=True, show=quiet)
        assert [view.disk.state for view in retired.disks] == [DiskState.EMPTY]
        assert vnodes_in(second) == set()
        assert len(vnodes_in(first)) == 8
        assert not list(second.glob("jobs/*/live/**/*.sst"))
        assert (
            verify.error_of(
                verify.verify(str(job.cluster), JOB, vnodes=None, deep=True, show=lambda _: None)
            )
            is None
        )

        (added,) = disks.add(str(job.cluster), "w1", str(tmp_path / "third")).disks
        assert (added.disk.disk, added.disk.state) == ("d3", DiskState.IN_USE)
        assert job.result()["oracle"]["equal"]
        assert told(job, "w1")["d3"].state is DiskState.IN_USE
