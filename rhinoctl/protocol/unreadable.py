"""A worker that has something of a job and cannot read it: what that means, and what to type.

Its agent starts, answers and serves its other jobs. Of this one it takes part in nothing, so that
for the job it is as good as lost, though it is seen (docs/protocol/failover.md).
"""

from rhinoctl.ids import JobUid, Vnode, WorkerId
from rhinoctl.protocol.epochs import Epoch
from rhinoctl.protocol.evidence import ClusterEvidence
from rhinoctl.protocol.failover import GivenUp
from rhinoctl.protocol.messages import Unreadable
from rhinoctl.protocol.waiting import by_hand, listed


def cannot_read(cluster: ClusterEvidence, uid: JobUid) -> dict[WorkerId, Unreadable]:
    """The live workers that cannot read what they have of a job, and why."""
    return {
        worker.id: worker.report.unreadable[uid]
        for worker in cluster.workers
        if worker.live and worker.report is not None and uid in worker.report.unreadable
    }


def stranger_remedy(worker: WorkerId, uid: JobUid) -> str:
    """What to do about something unreadable of a job that the controller does not know."""
    return (
        f"if nobody misses it, move jobs/{uid} on worker {worker} away and start its agent again;"
        " if its job was left out of a recovery, mend it first: it may be the only copy"
    )


def cost_of(epoch: Epoch, worker: WorkerId) -> str:
    """What it costs while the worker cannot read it."""
    if worker in epoch.voters():
        owned = [v for v in epoch.vnodes() if epoch.owner_worker(Vnode(v)) == worker]
        owns = f": it owns vnode {listed(owned)}" if owned else ": it has whole copies"
        return f"batches wait for it{owns}"
    return "one place less for copies of this job"


def remedy_for(epoch: Epoch, worker: WorkerId, uid: JobUid, unread: Unreadable) -> str:
    """What to type, or what comes by itself."""
    if worker in epoch.workers:
        typed = by_hand(epoch, (worker,), GivenUp(workers=frozenset({worker})))
        return (
            f"unless a failover does it by itself, give up what it has of the job: {typed}; or put"
            f" its files back as they were (jobs/{uid}) and start its agent again"
        )
    if unread.damaged:
        return (
            "nothing of it is needed: with the next batches of the job's query its files are set"
            f" aside (bad/{uid}), and copies are made anew by themselves"
        )
    return (
        f"nothing of it is needed: move its directory jobs/{uid} away, start its agent again, and"
        " copies are made anew by themselves"
    )
