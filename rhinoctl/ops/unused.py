"""Whether a worker may be taken away: only one that nothing is placed on."""

from collections.abc import Mapping

from rhinoctl.errors import Busy, HealthyTarget, WorkerInUse
from rhinoctl.protocol.handover import Phase
from rhinoctl.protocol.views import Health, StatusView


def check_unused(status: StatusView, worker: str, *, lost: bool) -> None:
    """Raise WorkerInUse while a worker runs instances or holds copies that count, Busy while an
    operation runs that may give it some, and HealthyTarget for a `lost` one that reports."""
    health = next((each.health for each in status.workers if each.id == worker), Health.DOWN)
    if lost and health is not Health.DOWN:
        raise HealthyTarget(
            f"worker {worker} is not lost: it reports to the controller",
            remedy=f"`rhinoctl drain {worker}`, then `rhinoctl hosts remove {worker}`",
        )
    held = held_by(status, worker)
    if held:
        jobs = ", ".join(f"{number} of job {job}" for job, number in held.items())
        takes_over = f"`rhinoctl failover {worker}` lets copies take over"
        empties = f"`rhinoctl drain {worker}` moves all of it"
        raise WorkerInUse(
            f"worker {worker} still has vnodes, copies or instances: {jobs}",
            remedy=takes_over if health is Health.DOWN else empties,
        )
    if status.operations:
        first = status.operations[0]
        paused = first.phase is Phase.PAUSED
        raise Busy(
            f"operation {first.id} is {'paused' if paused else 'under way'}, and may need worker"
            f" {worker}",
            remedy=f"let it go on (`rhinoctl op resume {first.id}`), or end it:"
            f" `rhinoctl op abort {first.id}`"
            if paused
            else "wait until it has ended: `rhinoctl op list`",
        )


def held_by(status: StatusView, worker: str) -> Mapping[str, int]:
    """How many vnodes and instances a worker has, owned or as copies, by job; none with none."""
    found = {}
    for job in status.jobs:
        copies = {vnode for vnode, members in job.members.items() if worker in members}
        mine = [each for each in job.instances if each.worker == worker]
        number = len(copies.union(*(each.vnodes for each in mine))) or len(mine)
        if number:
            found[str(job.name)] = number
    return found
