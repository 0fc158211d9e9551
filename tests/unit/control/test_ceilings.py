"""What a worker can run is checked before it is asked to."""

import pytest

from rhinoctl.errors import CeilingExceeded, DiskFull, Exit
from rhinoctl.ids import DiskId, Vnode, WorkerId
from rhinoctl.protocol.disks import DiskReport, DiskState
from rhinoctl.protocol.placement import Capacity
from tests.unit.control.bench import Bench

W1, W2, W3 = WorkerId("w1"), WorkerId("w2"), WorkerId("w3")
FILES_OF_TWO_VNODES = 128 + 2 * 7


def test_a_job_that_would_run_out_of_open_files_is_refused() -> None:
    bench = Bench(workers=2)
    bench.workers[W2].host["open_files"] = FILES_OF_TWO_VNODES - 1
    bench.run(3.0)
    with pytest.raises(
        CeilingExceeded, match=r"i1 on worker w2 .* 2 vnodes and need 142"
    ) as caught:
        bench.register(vnodes=4)
    assert caught.value.exit_code is Exit.REFUSED
    bench.workers[W2].host["open_files"] = FILES_OF_TWO_VNODES
    bench.run(3.0)
    bench.register(vnodes=4)


def test_a_move_that_would_run_out_of_open_files_is_refused() -> None:
    bench = Bench(workers=2)
    bench.register(vnodes=4)
    bench.workers[W2].host["open_files"] = FILES_OF_TWO_VNODES
    bench.run(3.0)
    with pytest.raises(CeilingExceeded, match="3 vnodes"):
        bench.handover(0, to="i1")


def test_instances_of_all_jobs_count_for_a_worker_s_memory() -> None:
    bench = Bench(workers=2)
    bench.register(vnodes=4)
    for worker in bench.workers.values():
        worker.host |= {"memory_bytes": 5 << 30, "instance_bytes": 1 << 30}
    bench.run(3.0)
    bench.rescale(4)
    for worker in bench.workers.values():
        worker.host["memory_bytes"] = 2 << 30
    bench.run(3.0)
    with pytest.raises(
        CeilingExceeded, match=r"would run 2 instances of up to 1\.1 GB each; it has 2\.1 GB"
    ):
        bench.rescale(4, dry_run=True)


def test_a_move_that_would_fill_a_disk_is_refused() -> None:
    bench = Bench(workers=3)
    bench.register(vnodes=4, instances=2)
    bench.workers[W3].host["free_bytes"] = 1000
    bench.run(3.0)
    with pytest.raises(DiskFull, match="worker w3"):
        bench.rescale(3)


def test_a_vnode_for_which_no_single_disk_has_room_does_not_come() -> None:
    """Though the worker has room for it on all of them together."""
    bench = Bench(workers=3)
    bench.register(vnodes=4, instances=2)
    bench.workers[W3].host |= {"free_bytes": 1 << 30, "disks": (disk("d1"), disk("d2"))}
    bench.run(3.0)
    with pytest.raises(DiskFull, match="no disk of worker w3 may take more"):
        bench.rescale(3)
    bench.workers[W3].host |= {"disks": (disk("d1"), disk("d2", 1 << 29))}
    bench.run(3.0)
    bench.rescale(3)


def disk(name: str, free_bytes: int = 1000) -> DiskReport:
    return DiskReport(
        disk=DiskId(name),
        path=f"/{name}",
        state=DiskState.IN_USE,
        free_bytes=free_bytes,
        vnodes=0,
        bytes=0,
        shares=DiskId(name),
    )


def test_the_slots_of_the_inventory_bound_the_instances_of_all_jobs() -> None:
    slots = {W1: Capacity(instances=1), W2: Capacity(instances=2)}
    bench = Bench(workers=2, capacities=slots)
    bench.register(vnodes=4, instances=2)
    bench.rescale(3)
    with pytest.raises(
        CeilingExceeded, match=r"worker w1 would run 2 .* gives it 1 slot"
    ) as caught:
        bench.rescale(4, dry_run=True)
    assert caught.value.exit_code is Exit.REFUSED


def test_fewer_slots_than_instances_that_run_refuse_only_more_of_them() -> None:
    bench = Bench(workers=2, capacities={W1: Capacity(instances=0)})
    bench.register(vnodes=4, instances=1)
    assert [i.worker for i in bench.job().instances] == [W2], "where there is room"
    bench.rescale(2)
    assert {i.worker for i in bench.job().instances} == {W2}


def test_copies_are_kept_racks_apart() -> None:
    """As the inventory names racks, from the first epoch on."""
    racks = {W1: Capacity(rack="a"), W2: Capacity(rack="a"), W3: Capacity(rack="b")}
    bench = Bench(workers=3, capacities=racks)
    bench.register(vnodes=4, instances=1, replication=1)
    (instance,) = bench.job().instances
    assert instance.worker == W1
    epoch = bench.controller.evidence().jobs[0].epoch
    assert {w for v in epoch.vnodes() for w in epoch.full_holders(Vnode(v))} == {W1, W3}
