"""What a worker tells the controller of a job: observed state, complete each time."""

from rhino_agent.copies import Copies
from rhino_agent.holdings import Holdings
from rhino_agent.instances import Instance
from rhino_agent.job import Job
from rhino_agent.scrub import Scrub
from rhino_agent.upkeep import Upkeep
from rhino_agent.verification import Verification
from rhinoctl.ids import InstanceId, Vnode
from rhinoctl.protocol import messages as m
from rhinoctl.protocol.claims import Keepsake, Memo
from rhinoctl.protocol.jobs import VnodeUse
from rhinoctl.protocol.records import NO_WATERMARKS, offsets_digest
from rhinoctl.protocol.verification import BadCheckpoint


def job_report(
    job: Job, upkeep: Upkeep, copies: Copies, verification: Verification, scrub: Scrub
) -> m.JobReport:
    """The job as it stands on this worker."""
    state = job.state
    epoch = state.decided.next_epoch if state.decided is not None else None
    started = job.epoch_start()
    return m.JobReport(
        session=state.session,
        sealed=state.sealed.id if state.sealed is not None else None,
        decided=state.decided.id if state.decided is not None else None,
        epoch=epoch,
        epoch_from=started,
        released=job.released,
        log_bytes=job.log.size(),
        vnodes=_vnodes(job, upkeep.holdings, copies),
        instances={name: _instance(one, upkeep) for name, one in job.instances.items()},
        watermarks=state.decided.watermarks if state.decided is not None else NO_WATERMARKS,
        fetched_bytes=job.fetched.total(),
        applied_bytes=job.applied_bytes,
        verified=verification.report(),
        bad=tuple(
            BadCheckpoint(vnode=vnode, checkpoint=name, fault=fault)
            for (vnode, name), fault in sorted(upkeep.bad().items())
        ),
        found_bad=upkeep.found_bad,
        scrubbed_bytes=scrub.bytes,
        offsets=offsets_digest(state.decided.end_offsets) if state.decided is not None else "",
    )


def keepsake(job: Job, memo: Memo | None) -> Keepsake:
    """What is kept of a job for a controller that has lost its store."""
    record = job.state.sealed
    return Keepsake(
        spec=job.spec,
        memo=memo,
        sealed=record.next_epoch if record is not None else None,
        sealed_from=record.time if record is not None else None,
    )


def _instance(instance: Instance, upkeep: Upkeep) -> m.InstanceReport:
    speed = upkeep.speed(instance.id)
    return m.InstanceReport(
        pid=instance.pid,
        incarnation=instance.incarnation,
        ready=instance.ready,
        applied=min(instance.applied.values(), default=None),
        applies=tuple(instance.applies),
        rss_bytes=instance.rss_bytes,
        fault=instance.fault,
        replay_cost=speed.cost if speed.batches else None,
        beacon=instance.beacon,
        poison=instance.poison,
    )


def _vnodes(job: Job, holdings: Holdings, copies: Copies) -> dict[Vnode, m.VnodeReport]:
    here = job.ports.settings.worker
    epoch = job.epoch()
    held = set(epoch.held_by(here)) if epoch is not None else set()
    held |= {wish.vnode for wish in job.desired.hold}
    warm = {wish.vnode: wish.instance for wish in job.desired.warm}
    owner = {v: i for i, vnodes in job.owners_now().items() for v in vnodes}
    return {
        vnode: _vnode(job, holdings, copies, vnode, owner.get(vnode), warm.get(vnode))
        for vnode in sorted(held | warm.keys())
    }


def _vnode(
    job: Job,
    holdings: Holdings,
    copies: Copies,
    vnode: Vnode,
    owner: InstanceId | None,
    target: InstanceId | None,
) -> m.VnodeReport:
    manifest = holdings.newest(vnode)
    on_disk = manifest.total_bytes if manifest is not None else 0
    instance = job.instances.get(target or owner or InstanceId(""))
    applied = instance.applied.get(vnode) if instance is not None else None
    whole = applied is not None or holdings.base(vnode) is not None
    if target is not None and target != owner:
        use = VnodeUse.COPYING
        if whole:
            use = VnodeUse.FOLLOWING if applied is not None else VnodeUse.READY
    elif owner is not None:
        use = VnodeUse.OWNED
    else:
        use = VnodeUse.HELD if whole else VnodeUse.COPYING
    lag = 0
    if applied is not None:
        lag = len(job.log.links(applied, job.decided_time))
    copied, total = copies.progress(vnode)
    rows, size = holdings.waiting(vnode)
    live = instance.state_bytes.get(vnode, 0) if instance is not None else 0
    return m.VnodeReport(
        use=use,
        instance=(target or owner) if applied is not None else None,
        covers=holdings.reach(vnode),
        applied=applied,
        lag_batches=lag,
        state_bytes=max(live, on_disk),
        copied_bytes=copied,
        copy_bytes=total,
        replay_rows=rows,
        replay_bytes=size,
        fetched_bytes=job.fetched[vnode],
        bereft=owner is not None and not whole and job.state.decided is not None,
    )
