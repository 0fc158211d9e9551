"""What one worker can run: slots, open files and memory, checked before they are hit.

Each instance is a process with a limit of open files, of which every vnode's database takes some
(design, section 5), and with caches whose size is known. A limit that nobody has told is no limit.
A failover is not checked: heirs at their ceiling are better than none.
"""

from collections import Counter
from collections.abc import Iterable, Mapping

from rhinoctl import limits
from rhinoctl.control.fleet import Fleet
from rhinoctl.errors import CeilingExceeded
from rhinoctl.ids import InstanceId, WorkerId
from rhinoctl.protocol.epochs import Epoch
from rhinoctl.protocol.messages import WorkerReport
from rhinoctl.protocol.sizes import size


def check_ceilings(
    fleet: Fleet,
    instances: Mapping[InstanceId, WorkerId],
    owners: Iterable[InstanceId],
    others: Iterable[Epoch] = (),
    before: Mapping[InstanceId, WorkerId] | None = None,
) -> None:
    """Raise CeilingExceeded if a worker could not run a layout: `instances` are those of a job,
    `before` those that it has now, `owners` the owner of each of its vnodes; `others` are the
    layouts of the other jobs."""
    vnodes = Counter(owners)
    beside = Counter(worker for epoch in others for worker in epoch.instances.values())
    here = Counter(instances.values())
    now = Counter((before or {}).values())
    for worker, slots in fleet.slots(()).items():
        if here[worker] > now[worker] and here[worker] + beside[worker] > slots:
            raise CeilingExceeded(
                f"worker {worker} would run {here[worker] + beside[worker]} instances; the"
                f" inventory gives it {slots} slots",
                remedy="ask for fewer instances, or give it more slots and deploy again",
            )
    for instance, worker in sorted(instances.items()):
        seen = fleet.workers.get(worker)
        if seen is None or seen.report is None:
            continue
        _check_files(worker, seen.report, instance, vnodes[instance])
        _check_memory(worker, seen.report, here[worker] + beside[worker])


def _check_files(worker: WorkerId, report: WorkerReport, instance: InstanceId, vnodes: int) -> None:
    needed = limits.FILES_BASE + vnodes * limits.FILES_A_VNODE
    if report.open_files and needed > report.open_files:
        raise CeilingExceeded(
            f"instance {instance} on worker {worker} would have {vnodes} vnodes and need {needed}"
            f" open files; its limit is {report.open_files}",
            remedy=f"raise the hard limit of open files on {worker} (`ulimit -Hn`) and start its"
            " agent again, or spread the vnodes over more instances: --instances",
        )


def _check_memory(worker: WorkerId, report: WorkerReport, instances: int) -> None:
    needed = instances * report.instance_bytes
    if report.memory_bytes and needed > report.memory_bytes * limits.MEMORY_SHARE:
        raise CeilingExceeded(
            f"worker {worker} would run {instances} instances of up to"
            f" {size(report.instance_bytes)} each; it has {size(report.memory_bytes)}"
            " of memory",
            remedy="ask for fewer instances, use more workers, or make the caches smaller",
        )
