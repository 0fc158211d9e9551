"""What people are shown of the cluster: built from reports at the moment of the question."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from rhinoctl import limits
from rhinoctl.control.disks import disk_findings
from rhinoctl.control.failovers import Failovers
from rhinoctl.control.fleet import Fleet, Seen
from rhinoctl.control.groups import Groups
from rhinoctl.control.jobs import Jobs
from rhinoctl.control.registry import JobDocument, Registry
from rhinoctl.ids import InstanceId, JobUid, OpId, Vnode, WorkerId
from rhinoctl.protocol import messages as m
from rhinoctl.protocol import views
from rhinoctl.protocol.diagnosis import instance_remedy, poison_remedy
from rhinoctl.protocol.disks import no_log
from rhinoctl.protocol.epochs import Epoch
from rhinoctl.protocol.liveness import Verdict
from rhinoctl.protocol.phrases import workers as named
from rhinoctl.protocol.ports import Clock
from rhinoctl.protocol.records import Watermarks
from rhinoctl.protocol.rooms import low_rooms, make_room
from rhinoctl.protocol.sizes import size
from rhinoctl.protocol.starting import start_again, start_silent
from rhinoctl.protocol.unreadable import cost_of, remedy_for, stranger_remedy
from rhinoctl.protocol.waiting import by_hand


@dataclass(slots=True)
class Overview:
    """Views over the registry and the fleet; changes nothing. `store_fault` says why the store
    could not be written last, empty if it could."""

    cluster: str
    registry: Registry
    fleet: Fleet
    jobs: Jobs
    groups: Groups
    failovers: Failovers
    clock: Clock
    store_fault: str = ""

    def status(self) -> views.StatusView:
        """The whole cluster, with what is wrong and what to type next."""
        workers = tuple(self._worker(name, seen) for name, seen in self.fleet.workers.items())
        jobs = self.job_list().jobs
        away = {worker.id for worker in workers if worker.health is views.Health.DOWN}
        findings = (
            *_store_findings(self.store_fault),
            *_objections(self.fleet),
            *_unknown_jobs(self.fleet, self.registry),
            *_worker_findings(workers, self.fleet),
            *self._unreadable(),
            *_room_findings(workers, self.fleet),
            *disk_findings(self.fleet),
            *_job_findings(jobs, away),
            *_poison_findings(jobs),
            *self._copies(jobs),
            *self._bad(),
            *self._braked(),
            *self._stuck(),
        )
        down = sum(worker.health is views.Health.DOWN for worker in workers)
        health = views.Health.OK
        if findings:
            health = views.Health.DOWN if down == len(workers) else views.Health.DEGRADED
        return views.StatusView(
            cluster=self.cluster,
            health=health,
            workers=workers,
            jobs=jobs,
            operations=tuple(o for o in self.operation_list().operations if not _over(o)),
            findings=findings,
            refused_by=tuple(sorted(self.fleet.objections())),
        )

    def _copies(self, jobs: Iterable[views.JobView]) -> Iterable[views.Finding]:
        for job in jobs:
            if job.lacking:
                copies = "copy is" if job.lacking == 1 else "copies are"
                yield views.Finding(
                    what=f"job {job.name}: {job.lacking} {copies} lacking of"
                    f" {job.vnodes * job.replication} besides the owners'",
                    remedy=f"they are made by themselves if there is a place: see"
                    f" `rhinoctl groups show {job.name}`",
                )

    def _bad(self) -> Iterable[views.Finding]:
        """What of copies is bad and not replaced yet, as their workers tell."""
        for document in self.registry.jobs.values():
            for worker, report in sorted(self.fleet.reports(document.spec.uid).items()):
                if report.bad and not document.deleted:
                    more = f" (and {len(report.bad) - 1} more)" if len(report.bad) > 1 else ""
                    yield views.Finding(
                        what=f"job {document.spec.name}: bad copy on worker {worker}:"
                        f" {report.bad[0].fault}{more}",
                        remedy="it serves nobody, and another one comes in its place by itself; if"
                        f" there are more of them, look at the disk of {worker}",
                    )

    def _unreadable(self) -> Iterable[views.Finding]:
        """Workers that have something of a job and cannot read it."""
        for uid, document in self.registry.jobs.items():
            epoch, unread = self.jobs.epoch(document), self.fleet.unreadable(uid)
            for worker, one in unread.items() if not document.deleted else ():
                if self._has_no_log(worker):
                    continue  # its disk is named
                yield views.Finding(
                    what=f"worker {worker} cannot read what it has of job {document.spec.name}:"
                    f" {one.fault}; {cost_of(epoch, worker)}",
                    remedy=remedy_for(epoch, worker, uid, one),
                )
        for worker in self.fleet.live():
            report = self.fleet.workers[worker].report
            for uid, one in report.unreadable.items() if report is not None else ():
                if uid not in self.registry.jobs:
                    yield views.Finding(
                        what=f"worker {worker} cannot read what it has of {uid}, which the"
                        f" controller does not know: {one.fault}",
                        remedy=stranger_remedy(worker, uid),
                    )

    def _has_no_log(self, worker: WorkerId) -> bool:
        report = self.fleet.workers[worker].report
        return report is not None and no_log(report.disks)

    def _braked(self) -> Iterable[views.Finding]:
        for uid, reason in self.failovers.braked.items():
            document = self.registry.jobs.get(uid)
            if document is not None and not document.deleted:
                epoch = self.jobs.epoch(document)
                lost = self.failovers.lost(uid, epoch)
                typed = by_hand(epoch, lost.workers, lost) or "`rhinoctl failover WORKER`"
                yield views.Finding(
                    what=f"job {document.spec.name}: no failover by itself: {reason}",
                    remedy=f"bring the workers back, or go on by hand: {typed}",
                )

    def _stuck(self) -> Iterable[views.Finding]:
        for job, op, lost, typed in self.failovers.stuck():
            yield views.Finding(
                what=f"job {job}: failover {op} waits for {named(sorted(lost))}, which should"
                f" inherit or vote and {'does' if len(lost) == 1 else 'do'} not answer either",
                remedy=f"bring any of them back: {self._start_again(lost)}, or give it up: {typed}",
            )

    def _start_again(self, workers: Iterable[WorkerId]) -> str:
        names, addresses = sorted(workers), self.fleet.addresses()
        return start_again(names, next((addresses[n] for n in names if n in addresses), ""))

    def job_list(self) -> views.JobList:
        """All jobs, by name."""
        known = [d for d in self.registry.jobs.values() if not d.deleted]
        return views.JobList(
            jobs=tuple(self.job(d) for d in sorted(known, key=lambda d: d.spec.name))
        )

    def operation_list(self) -> views.OperationList:
        """All operations that are kept, the newest first."""
        return views.OperationList(operations=self.registry.views())

    def job(self, document: JobDocument) -> views.JobView:
        """One job, with its instances and chains as last reported."""
        spec = document.spec
        epoch = self.jobs.epoch(document)
        reports = self.fleet.reports(spec.uid)
        decided = [r.decided.position.time for r in reports.values() if r.decided is not None]
        batch = max((time for time in decided if time.batch >= 0), default=None)
        marks = max((r.watermarks for r in reports.values()), key=_event_time, default=None)
        return views.JobView(
            name=spec.name,
            uid=spec.uid,
            operator=spec.operator.name,
            vnodes=spec.vnodes,
            replication=spec.replication,
            generation=document.generation,
            session=document.session,
            live=self.jobs.is_live(spec.uid),
            epoch=epoch.number,
            batch=batch,
            watermark_ms=marks.evict_ms if marks is not None and any(marks.max_event_ms) else None,
            instances=tuple(
                _instance(epoch, instance, reports.get(worker))
                for instance, worker in sorted(epoch.instances.items())
            ),
            members={
                Vnode(v): tuple(member.worker for member in epoch.routes[v].members)
                for v in epoch.vnodes()
                if epoch.routes[v].members
            },
            operation=self._under_way(spec.uid),
            query_id=document.query_id,
            lacking=self.groups.lacking(document, epoch),
            losses=self.groups.losses(document, epoch),
            fetched_bytes=sum(r.fetched_bytes for r in reports.values()),
            applied_bytes=sum(r.applied_bytes for r in reports.values()),
            instances_asked=document.instances,
            forfeited=document.forfeited,
        )

    def chains(self, document: JobDocument, request: views.GroupsRequest) -> views.GroupsView:
        """The chains of a job as they are and as planned."""
        shown = self.groups.view(document, self.jobs.epoch(document), request)
        return replace(shown, waits_for_batch=self._waits_for_batch(document))

    def _waits_for_batch(self, document: JobDocument) -> bool:
        """Whether the chains can change with the next batch only. The last batch's output may still
        be owed (invariant 14), and only a query could say that it is not."""
        uid, epoch = document.spec.uid, self.jobs.epoch(document)
        told = [r for w, r in self.fleet.reports(uid).items() if w in epoch.listeners()]
        owed = any(report.released < document.epoch_from for report in told)
        return owed and not self.jobs.may_be_live(uid)

    def _under_way(self, uid: JobUid) -> OpId | None:
        recovering, running = self.registry.recovering(uid), self.registry.running(uid)
        if recovering is not None:
            return recovering.failover.op
        return running.handover.op if running is not None else None

    def _worker(self, name: WorkerId, seen: Seen) -> views.WorkerView:
        now = self.clock.monotonic()
        age = None if seen.at is None else now - seen.at
        verdict = self.failovers.verdict(name)
        alive = age is not None and age < limits.WORKER_DOWN_S and verdict is not Verdict.LOST
        health = views.Health.OK if alive else views.Health.DOWN
        if alive and verdict is Verdict.SUSPECT:
            health = views.Health.DEGRADED
        report = seen.report if alive else None
        unread = tuple(report.unreadable) if report is not None else ()
        if unread:
            health = views.Health.DEGRADED
        known = [d for d in self.registry.jobs.values() if not d.deleted]
        owned = sum(
            len([v for v in epoch.vnodes() if epoch.owner_worker(Vnode(v)) == name])
            for epoch in map(self.jobs.epoch, known)
        )
        held = sum(len(self.jobs.epoch(d).held_by(name)) for d in known)
        return views.WorkerView(
            id=name,
            address=seen.address,
            health=health,
            seen_s=age,
            pid=report.pid if report is not None else 0,
            free_bytes=report.free_bytes if report is not None else None,
            instances=sum(len(j.instances) for j in report.jobs.values()) if report else 0,
            vnodes_owned=owned,
            log_bytes=sum(j.log_bytes for j in report.jobs.values()) if report else None,
            vnodes_held=held - owned,
            draining=name in self.registry.draining,
            room_low=report is not None and report.lowest_room < limits.ROOM_LOW_BYTES,
            found_bad=sum(j.found_bad for j in report.jobs.values()) if report else 0,
            links_refused=report.links_refused if report is not None else "",
            unreadable=unread,
        )


def _event_time(marks: Watermarks) -> int:
    return marks.evict_ms


def _over(operation: views.OperationView) -> bool:
    return operation.phase.value in ("complete", "aborted")


def _instance(epoch: Epoch, instance: InstanceId, report: m.JobReport | None) -> views.InstanceView:
    mine = report.instances.get(instance) if report is not None else None
    vnodes = epoch.owned_by(instance)
    copies = report.vnodes if report is not None else {}
    return views.InstanceView(
        id=instance,
        worker=epoch.instances[instance],
        pid=mine.pid if mine is not None else 0,
        ready=mine is not None and mine.ready,
        vnodes=vnodes,
        state_bytes=sum(copies[v].state_bytes for v in vnodes if v in copies),
        rss_bytes=mine.rss_bytes if mine is not None else 0,
        applied=mine.applied if mine is not None else None,
        poison=mine.poison if mine is not None else "",
        fault=mine.fault if mine is not None else "",
    )


def _store_findings(fault: str) -> tuple[views.Finding, ...]:
    if not fault:
        return ()
    return (
        views.Finding(
            what=f"the controller cannot write its store: {fault}; operations wait, batches go on",
            remedy="make room on the controller's disk; it goes on by itself",
        ),
    )


def _room_findings(workers: Iterable[views.WorkerView], fleet: Fleet) -> Iterable[views.Finding]:
    for worker in workers:
        report = fleet.workers[worker.id].report
        for low in low_rooms(report) if worker.room_low and report is not None else ():
            disk = f"{low.name} ({low.path})" if low.disk else "its disk"
            cost = "once it is full, batches wait for it"
            yield views.Finding(
                what=f"worker {worker.id}: {disk} has {size(low.free_bytes)} left;"
                f" {cost if low.matters else 'no vnode is on it, and no batch waits for it'}",
                remedy=make_room(low),
            )


def store_refused(objections: Mapping[WorkerId, str]) -> str:
    """What it means that workers do not listen to the controller's store, for people."""
    deaf, reasons = sorted(objections), "; ".join(sorted(set(objections.values())))
    return (
        f"{named(deaf, 'does', 'do')} not listen to this controller: {reasons}. Nothing is"
        " proposed, and no session is given; batches of running queries go on"
    )


RECOVER = (
    "see that no second controller runs; then `rhinoctl controller recover --dry-run` shows what"
    " the workers have, and without --dry-run the store is made anew from it"
)


def _objections(fleet: Fleet) -> Iterable[views.Finding]:
    objections = fleet.objections()
    if objections:
        yield views.Finding(what=store_refused(objections), remedy=RECOVER)


def _unknown_jobs(fleet: Fleet, registry: Registry) -> Iterable[views.Finding]:
    if fleet.objections():
        return  # said already
    for uid, workers in fleet.strangers(registry.jobs).items():
        yield views.Finding(
            what=f"{named(workers, 'has', 'have')} a job {uid} that the controller does not know",
            remedy="take it over with `rhinoctl controller recover`; if it was deleted while the"
            " worker was away, delete it again after that",
        )


def _worker_findings(
    workers: Iterable[views.WorkerView], fleet: Fleet
) -> tuple[views.Finding, ...]:
    found = []
    apart = fleet.apart()
    for worker in workers:
        said = worker.unreadable and worker.health is views.Health.DEGRADED
        if worker.health is views.Health.OK or said:
            continue
        since = "never" if worker.seen_s is None else f"{worker.seen_s:.0f} s ago"
        reason = " ".join(fleet.workers[worker.id].detail.partition("; last")[0].split())[:120]
        needed = worker.vnodes_owned + worker.vnodes_held
        if worker.id in apart:
            found.append(
                views.Finding(
                    what=f"worker {worker.id} is of another version: {reason}",
                    remedy="bring the older side up with `rhinoctl upgrade`, one version after the"
                    " other",
                )
            )
            continue
        state = "is down" if worker.health is views.Health.DOWN else "does not answer now"
        found.append(
            views.Finding(
                what=f"worker {worker.id} {state}, last seen {since} ({worker.vnodes_owned} vnodes"
                f" owned, {worker.vnodes_held} copies){': ' + reason if reason else ''}",
                remedy=f"start its agent again: {start_silent(worker.id, worker.address)};"
                + (" the jobs that need it wait" if needed else " no job waits for it"),
            )
        )
    return tuple(found)


def _job_findings(jobs: Iterable[views.JobView], down: set[WorkerId]) -> tuple[views.Finding, ...]:
    """Instances that are not ready or fail at something, be there a query or not, but for those of
    workers that are down and for poison: said already."""
    return tuple(
        views.Finding(
            what=f"instance {instance.id} of job {job.name} on worker {instance.worker}"
            f" {'is set back' if instance.ready else 'is not ready'}"
            f"{': ' + instance.fault if instance.fault else ''}",
            remedy=instance_remedy(instance.id, instance.worker),
        )
        for job in jobs
        for instance in job.instances
        if instance.worker not in down and _held_up(instance)
    )


def _held_up(instance: views.InstanceView) -> bool:
    return not instance.ready or bool(instance.fault and not instance.poison)


def _poison_findings(jobs: Iterable[views.JobView]) -> Iterable[views.Finding]:
    for job in jobs:
        for instance in job.instances:
            if instance.poison:
                yield views.Finding(
                    what=f"job {job.name} cannot go on: a decided batch cannot be applied:"
                    f" {instance.poison}",
                    remedy=poison_remedy(job.name),
                )
