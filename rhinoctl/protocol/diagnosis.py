"""`rhinoctl doctor`'s judgement: from evidence to findings, and nothing else.

A finding says what is inconsistent, by which evidence, what it costs, and what to type. One with a
`fix` may be mended without a person; which may, and why, is in docs/operations/doctor.md.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from rhinoctl import limits
from rhinoctl.ids import InstanceId, JobName, Vnode, WorkerId
from rhinoctl.protocol.disks import DiskState, cost_of_refusal, no_log, remedy_for_refusal
from rhinoctl.protocol.evidence import ClusterEvidence, JobEvidence, OffsetLog, WorkerEvidence
from rhinoctl.protocol.failover import GivenUp, plan_cut
from rhinoctl.protocol.findings import Check, Finding, Fix, State
from rhinoctl.protocol.handover import Kind, Phase
from rhinoctl.protocol.jobs import VnodeUse
from rhinoctl.protocol.liveness import Verdict
from rhinoctl.protocol.messages import InstanceReport, JobReport, WorkerReport
from rhinoctl.protocol.offset_findings import newest_decided, offset_findings
from rhinoctl.protocol.pacing import batches_between
from rhinoctl.protocol.phrases import workers as named
from rhinoctl.protocol.rooms import give_up_lost, low_rooms, make_room
from rhinoctl.protocol.starting import start_silent
from rhinoctl.protocol.unreadable import cannot_read, cost_of, remedy_for, stranger_remedy
from rhinoctl.protocol.waiting import by_hand, listed


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What is judged: the controller's evidence, of some jobs only if they are named, and the
    offset logs of those whose checkpoint directory was given."""

    cluster: ClusterEvidence
    offset_logs: Mapping[JobName, OffsetLog] = field(default_factory=dict)


RECOVER = "make the store anew from the workers: `rhinoctl controller recover`"


def diagnose(facts: Facts) -> tuple[Finding, ...]:
    """All findings, the worst first."""
    cluster = facts.cluster
    found = [*_store(cluster), *_workers(cluster), *_operations(cluster)]
    for job in cluster.jobs:
        if job.deleted:
            continue
        reports = _reports(cluster, job)
        found += [
            *_epochs(cluster, job, reports),
            *_instances(job, reports),
            *_poison(job, reports),
        ]
        found += [*_unreadable(cluster, job), *_copies(job, reports)]
        found += [*_logs(job, reports), *_replay(cluster, job, reports), *_braked(cluster, job)]
        log = facts.offset_logs.get(job.name)
        if log is not None:
            found += offset_findings(job, reports, log)
    severity = list(State)
    return tuple(sorted(found, key=lambda finding: -severity.index(finding.state)))


def _reports(cluster: ClusterEvidence, job: JobEvidence) -> dict[WorkerId, JobReport]:
    """What live workers report of a job."""
    return {
        worker.id: worker.report.jobs[job.uid]
        for worker in cluster.workers
        if worker.live and worker.report is not None and job.uid in worker.report.jobs
    }


# --- the controller ------------------------------------------------------------------------------


def _store(cluster: ClusterEvidence) -> Iterator[Finding]:
    if cluster.store_fault:
        yield Finding(
            check=Check.STORE_FAULT,
            state=State.BROKEN,
            what="the controller cannot write its store",
            evidence=cluster.store_fault,
            cost="batches go on; operations, failovers and new sessions wait",
            remedy="make room on the controller's disk; it goes on by itself",
        )
    if cluster.objections:
        said = [f"{worker}: {why}" for worker, why in sorted(cluster.objections.items())]
        yield Finding(
            check=Check.STORE_REFUSED,
            state=State.BROKEN,
            what=f"{named(sorted(cluster.objections), 'does', 'do')} not listen to this controller",
            evidence="; ".join(said),
            cost="batches of running queries go on; no operation, failover or new session does",
            remedy=RECOVER,
        )
    known = {job.uid for job in cluster.jobs}
    for worker in cluster.workers:
        if not worker.live or worker.report is None:
            continue
        for uid, report in worker.report.jobs.items():
            if uid not in known:
                yield Finding(
                    check=Check.UNKNOWN_JOB,
                    state=State.BROKEN,
                    what=f"worker {worker.id} has job {uid}, which the controller does not know",
                    evidence=f"session {report.session}, {len(report.vnodes)} vnodes,"
                    f" {report.log_bytes} bytes of log",
                    cost="its query gets no session, and nobody fails it over",
                    remedy="make the store anew from the workers: `rhinoctl controller recover`; do"
                    " not remove the worker's directory: the state is there",
                )


def _epochs(
    cluster: ClusterEvidence, job: JobEvidence, reports: Mapping[WorkerId, JobReport]
) -> Iterator[Finding]:
    ahead = {w: r for w, r in reports.items() if r.session > job.session}
    newer = {
        w: r.epoch.number
        for w, r in reports.items()
        if r.epoch is not None and r.epoch.number > job.kept
    }
    if ahead or newer:
        sessions = [f"{w} has session {r.session}" for w, r in sorted(ahead.items())]
        epochs = [f"{w} has epoch {number}" for w, number in sorted(newer.items())]
        yield Finding(
            check=Check.STORE_OLD,
            state=State.BROKEN if ahead else State.DEGRADED,
            what=f"job {job.name}: the controller's store is older than its workers",
            evidence=f"the store has session {job.session} and epoch {job.kept};"
            f" {', '.join(sessions + epochs)}",
            cost="sessions that the controller gives out are refused by the workers"
            if ahead
            else "until the store can be written, a restart of the controller starts from there",
            remedy=RECOVER
            if ahead or cluster.objections
            else "see `rhinoctl status` for why the store cannot be written",
        )
    behind = [
        w
        for w in sorted(job.epoch.listeners())
        if w in reports and (e := reports[w].epoch) is not None and e.number < job.epoch.number
    ]
    if behind and not job.operation:
        yield Finding(
            check=Check.EPOCH_BEHIND,
            state=State.DEGRADED,
            what=f"job {job.name}: {named(behind, 'does', 'do')} not know the newest epoch",
            evidence=f"epoch {job.epoch.number} is decided since batch {job.epoch_from}",
            cost="none while the others live; it learns of it with the next batch",
            remedy=f"start the query of {job.name}, or wait for its next batch",
        )


# --- workers -------------------------------------------------------------------------------------


def _workers(cluster: ClusterEvidence) -> Iterator[Finding]:
    for worker in cluster.workers:
        yield from _silent(cluster, worker)
        yield from _not_empty(cluster, worker)
        if worker.live and worker.report is not None:
            yield from _low_disks(worker.report)
            yield from _lost_disks(worker, worker.report)
            yield from _strange(cluster, worker.id, worker.report)


def _strange(cluster: ClusterEvidence, worker: WorkerId, report: WorkerReport) -> Iterator[Finding]:
    """What cannot be read of jobs that the controller does not know either."""
    for uid in sorted(report.unreadable.keys() - {job.uid for job in cluster.jobs}):
        yield Finding(
            check=Check.JOB_UNREADABLE,
            state=State.DEGRADED,
            what=f"worker {worker} cannot read what it has of {uid}, which the controller does not"
            " know",
            evidence=report.unreadable[uid].fault,
            cost="disk; nothing uses it",
            remedy=stranger_remedy(worker, uid),
        )


def _unreadable(cluster: ClusterEvidence, job: JobEvidence) -> Iterator[Finding]:
    """Workers that have something of a job and cannot read it."""
    logless = {w.id for w in cluster.workers if w.report is not None and no_log(w.report.disks)}
    for worker, unread in cannot_read(cluster, job.uid).items():
        if worker in logless:
            continue  # its disk is named
        yield Finding(
            check=Check.JOB_UNREADABLE,
            state=State.BROKEN if worker in job.epoch.voters() else State.DEGRADED,
            what=f"worker {worker} cannot read what it has of job {job.name}",
            evidence=unread.fault,
            cost=cost_of(job.epoch, worker),
            remedy=remedy_for(job.epoch, worker, job.uid, unread),
        )


def _low_disks(report: WorkerReport) -> Iterator[Finding]:
    for low in low_rooms(report):
        yield Finding(
            check=Check.DISK_LOW,
            state=State.BROKEN if low.full else State.DEGRADED,
            what=f"worker {report.worker}: {low.name} is {'full' if low.full else 'nearly full'}",
            evidence=f"{low.free_bytes >> 20} MB are free",
            cost="batches wait when a record cannot be written; copies are not taken"
            if low.matters
            else "none: no vnode is on it, and no batch waits for it",
            remedy=make_room(low),
        )


def _lost_disks(worker: WorkerEvidence, report: WorkerReport) -> Iterator[Finding]:
    for disk in report.disks:
        if disk.refuses:
            yield Finding(
                check=Check.DISK_LOST,
                state=State.BROKEN if no_log([disk]) else State.DEGRADED,
                what=f"worker {worker.id}: disk {disk.disk} cannot be written to",
                evidence=f"{disk.path}: {disk.fault}",
                cost=cost_of_refusal(disk),
                remedy=remedy_for_refusal(worker.id, disk),
            )
        if disk.state is DiskState.LOST:
            yield Finding(
                check=Check.DISK_LOST,
                state=State.DEGRADED,
                what=f"worker {worker.id}: disk {disk.disk} is lost",
                evidence=f"{disk.path}: {disk.fault}",
                cost="what was on it is fetched from other holders; without one, its vnodes wait",
                remedy=give_up_lost(worker.id, disk.disk),
            )


def _silent(cluster: ClusterEvidence, worker: WorkerEvidence) -> Iterator[Finding]:
    if worker.live and worker.verdict is Verdict.ALIVE:
        return
    jobs = [j for j in cluster.jobs if not j.deleted]
    owned = sum(len(_owned(job, worker.id)) for job in jobs)
    votes = any(worker.id in job.epoch.voters() for job in jobs)
    seen = "never" if worker.seen_s is None else f"{worker.seen_s:.0f} s ago"
    yield Finding(
        check=Check.WORKER_SILENT,
        state=State.BROKEN if votes else State.DEGRADED,
        what=f"worker {worker.id} is {'silent' if worker.live else 'down'}"
        if worker.verdict is not Verdict.LOST
        else f"worker {worker.id} is lost",
        evidence=f"last seen {seen}; {worker.detail or 'no answer'}",
        cost=f"batches wait for it: it owns {owned} vnodes or votes" if votes else "one place less",
        remedy=f"start its agent again: {start_silent(worker.id, _address(jobs, worker.id))}"
        + (_give_up(cluster, jobs, worker.id) if votes else ""),
    )


def _address(jobs: Iterable[JobEvidence], worker: WorkerId) -> str:
    """Where a worker is reached; empty if no job has anything on it."""
    return next((job.epoch.workers[worker] for job in jobs if worker in job.epoch.workers), "")


def _lost(cluster: ClusterEvidence) -> frozenset[WorkerId]:
    return frozenset(w.id for w in cluster.workers if w.verdict is Verdict.LOST)


def _give_up(cluster: ClusterEvidence, jobs: Iterable[JobEvidence], worker: WorkerId) -> str:
    """What to type to give a worker up, with what would be lost of each job."""
    gone = GivenUp(workers=_lost(cluster) | {worker})
    only_here = {
        job.name: [
            v for v in plan_cut(job.epoch, gone).stranded if worker in job.epoch.full_holders(v)
        ]
        for job in jobs
    }
    parts = [
        f"vnode {listed(vnodes)} of job {name}" for name, vnodes in only_here.items() if vnodes
    ]
    if not parts:
        return f", or give it up: `rhinoctl failover {worker}`"
    return (
        f"; only if its disk is lost for good, `rhinoctl failover {worker} --force`:"
        f" {'; '.join(parts)} would begin EMPTY, since nobody else has a whole copy"
    )


def _not_empty(cluster: ClusterEvidence, worker: WorkerEvidence) -> Iterator[Finding]:
    if not worker.draining:
        return
    for job in cluster.jobs:
        owned = () if job.deleted else _owned(job, worker.id)
        if owned and not job.operation:
            yield Finding(
                check=Check.WORKER_NOT_EMPTY,
                state=State.DEGRADED,
                what=f"worker {worker.id} is drained, and still has vnodes of job {job.name}",
                evidence=f"it owns vnode {listed(owned)}, and no operation runs",
                cost="it cannot be taken away yet",
                remedy=f"begin it again: `rhinoctl drain {worker.id}`",
            )


def _owned(job: JobEvidence, worker: WorkerId) -> tuple[Vnode, ...]:
    epoch = job.epoch
    return tuple(Vnode(v) for v in epoch.vnodes() if epoch.owner_worker(Vnode(v)) == worker)


# --- instances and copies ------------------------------------------------------------------------


def _instances(job: JobEvidence, reports: Mapping[WorkerId, JobReport]) -> Iterator[Finding]:
    for instance, worker in sorted(job.epoch.instances.items()):
        report = reports.get(worker)
        if report is None:
            continue  # its worker is silent, which is said already
        mine = report.instances.get(instance)
        if mine is not None and mine.ready:
            yield from _set_back(job, instance, worker, mine)
            continue
        missing = mine is None
        fault = mine.fault if mine is not None else "its agent does not report it"
        yield Finding(
            check=Check.INSTANCE_MISSING if missing else Check.INSTANCE_NOT_READY,
            state=State.BROKEN,
            what=f"instance {instance} of job {job.name} on worker {worker}"
            f" {'is missing' if missing else 'is not ready'}",
            evidence=fault or f"process {mine.pid if mine else '-'} has not opened its vnodes",
            cost=f"batches wait: it owns {len(job.epoch.owned_by(instance))} vnodes",
            remedy=instance_remedy(instance, worker),
        )


def _set_back(
    job: JobEvidence, instance: InstanceId, worker: WorkerId, mine: InstanceReport
) -> Iterator[Finding]:
    """An instance that runs, and fails at the same thing again and again."""
    if mine.fault and not mine.poison:  # said already
        yield Finding(
            check=Check.INSTANCE_SET_BACK,
            state=State.BROKEN,
            what=f"instance {instance} of job {job.name} on worker {worker} is set back",
            evidence=mine.fault,
            cost=f"batches wait: it owns {len(job.epoch.owned_by(instance))} vnodes",
            remedy=instance_remedy(instance, worker),
        )


def instance_remedy(instance: InstanceId, worker: WorkerId) -> str:
    """What helps an instance that is not ready, or fails."""
    return (
        f"its agent tries again by itself; if it stays so, see its log on {worker}, or move what it"
        f" owns: `rhinoctl failover {instance}`"
    )


def _poison(job: JobEvidence, reports: Mapping[WorkerId, JobReport]) -> Iterator[Finding]:
    for instance, worker in sorted(job.epoch.instances.items()):
        report = reports.get(worker)
        mine = report.instances.get(instance) if report is not None else None
        if mine is not None and mine.poison:
            yield Finding(
                check=Check.POISON_BATCH,
                state=State.BROKEN,
                what=f"job {job.name}: instance {instance} on worker {worker} cannot apply a"
                " decided batch",
                evidence=mine.poison,
                cost="no batch is applied any more: each run of the query meets this one first",
                remedy=poison_remedy(job.name),
            )


def poison_remedy(job: JobName) -> str:
    """What gets a job going again whose decided batch the operator cannot apply: its rows are in
    the log, and the declaration is part of the job's identity."""
    return (
        "the state is as it was before the batch, whose rows are in the log: to filter them or to"
        " start a new stream does not help. Run agents of a release whose operator can apply it,"
        f" or begin anew without the state: `rhinoctl job delete {job}`, then start the query with"
        " a new checkpoint directory and a source or a declaration that avoids the fault"
    )


_WHOLE = (VnodeUse.OWNED, VnodeUse.HELD, VnodeUse.READY, VnodeUse.FOLLOWING)


def _copies(job: JobEvidence, reports: Mapping[WorkerId, JobReport]) -> Iterator[Finding]:
    epoch = job.epoch
    empty: list[Vnode] = []
    broken: dict[WorkerId, list[Vnode]] = {}
    for v in epoch.vnodes():
        vnode, (head, *members) = Vnode(v), epoch.full_holders(Vnode(v))
        for worker in (head, *members):
            report = reports.get(worker)
            copy = report.vnodes.get(vnode) if report is not None else None
            lacks = copy is None or copy.use not in _WHOLE
            if worker == head and copy is not None:
                lacks |= copy.covers is None and copy.applied is None
            if report is not None and lacks:
                (empty if worker == head else broken.setdefault(worker, [])).append(vnode)
    if empty:
        yield Finding(
            check=Check.OWNER_NOT_WHOLE,
            state=State.BROKEN,
            what=f"job {job.name}: the owner's worker has no whole copy of vnode {listed(empty)}",
            evidence="it reports neither a checkpoint to go on from nor an open database",
            cost="batches wait for these vnodes",
            remedy="its agent fetches them from other holders by itself; if there are none, bring"
            " back a worker that had them",
        )
    for worker, vnodes in sorted(broken.items()):
        yield Finding(
            check=Check.COPY_NOT_WHOLE,
            state=State.DEGRADED,
            what=f"job {job.name}: worker {worker} has no whole copy of vnode {listed(vnodes)}",
            evidence=f"epoch {epoch.number} names it as a full member",
            cost="these vnodes have a copy less than it seems",
            remedy="its agent fetches them again by itself; see `rhinoctl groups show"
            f" {job.name} --vnodes`",
        )
    if job.lacking:
        yield Finding(
            check=Check.COPIES_LACKING,
            state=State.DEGRADED,
            what=f"job {job.name}: {job.lacking} copies are lacking",
            evidence=f"it wishes for {job.replication} besides the owner's, on usable workers",
            cost="what has no other copy waits for its worker if that dies",
            remedy=f"they are made by themselves where there is a place: `rhinoctl groups plan"
            f" {job.name}` says where, or why not",
        )
    yield from _bad(job, reports)


def _bad(job: JobEvidence, reports: Mapping[WorkerId, JobReport]) -> Iterator[Finding]:
    for worker, report in sorted(reports.items()):
        for bad in report.bad:
            yield Finding(
                check=Check.BAD_CHECKPOINT,
                state=State.DEGRADED,
                what=f"job {job.name}: a copy of vnode {bad.vnode} on worker {worker} was bad",
                evidence=f"{bad.checkpoint}: {bad.fault}",
                cost="an older one is used, or a copy is fetched; the disk may be failing",
                remedy=f"a newer one takes its place: `rhinoctl checkpoint {job.name}`; look at the"
                f" disk of {worker}",
                fix=Fix.CHECKPOINT if job.live else None,
                target=job.name,
            )


# --- log and replay ------------------------------------------------------------------------------


def _logs(job: JobEvidence, reports: Mapping[WorkerId, JobReport]) -> Iterator[Finding]:
    decided = newest_decided(reports)
    for worker, report in sorted(reports.items()):
        if report.log_bytes <= limits.LOG_BYTES_AIM:
            continue
        reach = {
            (copy.covers, vnode) for vnode, copy in report.vnodes.items() if copy.covers is not None
        }
        since, vnode = min(reach, default=(report.released, None))
        who = f"vnode {vnode}, whose newest checkpoint here covers {since}"
        if vnode is None:
            who = f"what is not released: the newest that is, is {since}"
        yield Finding(
            check=Check.LOG_HELD_BACK,
            state=State.DEGRADED,
            what=f"job {job.name}: the log of worker {worker} has grown",
            evidence=f"{report.log_bytes >> 20} MB of {limits.LOG_BYTES_AIM >> 20} MB; held back by"
            f" {who}; decided is {decided}",
            cost="disk, and a longer replay after a loss",
            remedy=f"`rhinoctl checkpoint {job.name}`, while its query runs; a silent or slow"
            " member keeps the log, too",
            fix=Fix.CHECKPOINT if job.live else None,
            target=job.name,
        )


def _replay(
    cluster: ClusterEvidence, job: JobEvidence, reports: Mapping[WorkerId, JobReport]
) -> Iterator[Finding]:
    decided = newest_decided(reports)
    lag = {
        (batches_between(copy.covers, decided), worker, vnode)
        for worker, report in reports.items()
        for vnode, copy in report.vnodes.items()
        if copy.covers is not None and decided is not None
    }
    most, worker, vnode = max(lag, default=(0, WorkerId(""), Vnode(0)))
    bound = limits.CHECKPOINTS_RETAINED * limits.CHECKPOINT_ROUND_BATCHES
    slow = job.replay_s is not None and job.replay_s > 4 * cluster.replay_target_s
    if most <= bound and not slow:
        return
    took = "" if job.replay_s is None else f"; that would take {job.replay_s:.1f} s"
    yield Finding(
        check=Check.REPLAY_LONG,
        state=State.DEGRADED,
        what=f"job {job.name}: a successor would have much to replay",
        evidence=f"{most} batches at most (vnode {vnode} on {worker}); the bound is {bound}{took}",
        cost="a failover or a restart of an instance takes that much longer",
        remedy=f"`rhinoctl checkpoint {job.name}`",
        fix=Fix.CHECKPOINT if job.live else None,
        target=job.name,
    )


# --- operations ----------------------------------------------------------------------------------


def _operations(cluster: ClusterEvidence) -> Iterator[Finding]:
    for running in cluster.operations:
        view = running.view
        late = running.deadline is not None and cluster.wall > running.deadline
        if not late or view.phase is Phase.PAUSED:
            continue
        failover = view.kind is Kind.FAILOVER
        yield Finding(
            check=Check.OPERATION_LATE,
            state=State.BROKEN if failover else State.DEGRADED,
            what=f"{view.kind.value} {view.id} of job {view.job} is {view.phase.value}, and late",
            evidence=f"it should have ended {cluster.wall - (running.deadline or 0):.0f} s ago;"
            f" it waits for {'; '.join(running.waits_for) or 'a look at its workers'}",
            cost="batches wait for its heirs" if failover else "no other operation of the job runs",
            remedy=f"`rhinoctl op repair {view.id}`",
            fix=Fix.REPAIR,
            target=view.id,
        )


def _braked(cluster: ClusterEvidence, job: JobEvidence) -> Iterator[Finding]:
    if job.braked:
        lost = (_lost(cluster) | cannot_read(cluster, job.uid).keys()) & job.epoch.workers.keys()
        typed = by_hand(job.epoch, lost, GivenUp(workers=lost)) or "`rhinoctl failover WORKER`"
        yield Finding(
            check=Check.FAILOVER_BRAKED,
            state=State.BROKEN,
            what=f"job {job.name}: no failover by itself",
            evidence=job.braked,
            cost="batches wait until somebody decides",
            remedy=f"bring the workers back, or go on by hand: {typed}",
        )
