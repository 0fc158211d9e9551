"""Jobs at the controller: made known, given sessions, offered epochs (design, sections 3 and 4)."""

import logging
import re
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace

from rhinoctl import limits
from rhinoctl.control.ceilings import check_ceilings
from rhinoctl.control.fleet import Fleet
from rhinoctl.control.registry import JobDocument, Registry, session_after
from rhinoctl.errors import (
    Busy,
    DeadlineExceeded,
    IdentityChanged,
    NoSuchWorkers,
    ParallelismOutOfRange,
    Refused,
    SecondSession,
    UsageError,
    WorkerUnreachable,
)
from rhinoctl.ids import BASE, BatchTime, JobUid, WorkerId
from rhinoctl.protocol import batches, views
from rhinoctl.protocol.epochs import Epoch, Member, Role
from rhinoctl.protocol.groups import Host, plan_groups
from rhinoctl.protocol.jobs import JobSpec
from rhinoctl.protocol.phrases import workers as named
from rhinoctl.protocol.placement import first_epoch
from rhinoctl.protocol.ports import Clock, Envelope, Wire
from rhinoctl.protocol.sessions import Lineage
from rhinoctl.wire.holder import BatchRun

log = logging.getLogger("rhino.controller")


NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
"""A job's name: it is in paths, in keys and in commands."""


@dataclass(slots=True)
class Presence:
    """A live driver as its polls show it, and what it is offered. Not persisted: `seen_at` is None
    until this controller has heard of a driver, `batch_at` until one has decided a batch since."""

    seen_at: float | None = None
    epoch: int = 0
    batch: BatchTime | None = None
    batch_at: float | None = None
    revision: int = 0
    proposal: Epoch | None = None
    wake: int = 0
    woken_at: float = float("-inf")


class Jobs:
    """Registration, sessions and offers, over the registry and the fleet."""

    def __init__(
        self, cluster: str, registry: Registry, fleet: Fleet, wire: Wire, clock: Clock
    ) -> None:
        self._cluster = cluster
        self._registry = registry
        self._fleet = fleet
        self._wire = wire
        self._clock = clock
        self._started_at = clock.monotonic()
        self._presence: dict[JobUid, Presence] = {}
        self._not_before: dict[JobUid, float] = {}
        self._written: dict[JobUid, int] = {}
        self.changes: dict[JobUid, BatchRun] = {}
        self._questions: dict[JobUid, BatchRun] = {}

    # --- registration ----------------------------------------------------------------------------

    def register(self, request: views.RegisterJob) -> JobDocument:
        """Make a job known, or find the one that is; the epoch is installed by `tick`."""
        known = self._registry.find(request.name)
        if known is not None:
            return self._same(known, request)
        check_name(request.name)
        check_vnodes(request.vnodes)
        self._check_inventory()
        self._check_strangers(request.name)
        wanted = request.instances
        instances = min(len(self._fleet.workers), request.vnodes) if wanted is None else wanted
        check_parallelism(instances, request.vnodes)
        check_replication(request.replication)
        spec = JobSpec(
            uid=JobUid(f"{request.name}-{uuid.uuid4().hex[:8]}"),
            name=request.name,
            vnodes=request.vnodes,
            replication=request.replication,
            operator=request.operator,
        )
        addresses = self._fleet.addresses()
        epoch = first_epoch(
            vnodes=request.vnodes,
            instances=instances,
            workers={worker: addresses[worker] for worker in self.placeable()},
            slots=self._fleet.slots(self.layouts()),
        )
        owners = [route.owner for route in epoch.routes]
        check_ceilings(self._fleet, epoch.instances, owners, self.layouts())
        copied = self._with_copies(epoch, spec)
        return self._registry.put_job(JobDocument(spec=spec, epoch=copied, instances=instances))

    def layouts(self, but: JobUid | None = None) -> tuple[Epoch, ...]:
        """The layouts of all jobs but one."""
        documents = self._registry.jobs.values()
        return tuple(self.epoch(d) for d in documents if not d.deleted and d.spec.uid != but)

    def _with_copies(self, epoch: Epoch, spec: JobSpec) -> Epoch:
        """The first epoch with its members, who are full from the beginning: each has the empty
        checkpoint. Fewer workers than copies asked for: as many as there are."""
        addresses = self._fleet.addresses()
        known = self._fleet.capacities
        hosts = {
            worker: Host(rack=known[worker].rack) if worker in known else Host()
            for worker in self.placeable()
        }
        plan = plan_groups(epoch, spec.replication, hosts, {})
        routes = tuple(
            replace(route, members=tuple(Member(worker=w, role=Role.FULL) for w in members))
            for route, members in zip(epoch.routes, plan.members.values(), strict=True)
        )
        used = {member.worker for route in routes for member in route.members}
        named = {**epoch.workers, **{worker: addresses[worker] for worker in sorted(used)}}
        return replace(epoch, workers=named, routes=routes)

    def placeable(self) -> tuple[WorkerId, ...]:
        """The workers of the inventory that may get something, by name."""
        return tuple(w for w in sorted(self._fleet.workers) if w not in self._registry.draining)

    def _check_inventory(self) -> None:
        """Raise NoSuchWorkers unless all workers are there: the first instances go to all."""
        if not self._fleet.workers:
            raise NoSuchWorkers(
                "the inventory of the cluster has no worker",
                remedy="start the cluster with workers: `rhinoctl local up --workers N`",
            )
        absent = sorted(set(self._fleet.workers) - set(self._fleet.live()))
        if absent:
            raise NoSuchWorkers(
                f"{named(absent, 'has', 'have')} not reported, of those in the inventory",
                remedy="see `rhinoctl status`; start what is silent, or take it out of the"
                " inventory",
            )

    def _check_strangers(self, name: str) -> None:
        """Raise Refused if workers have a job of this name that the controller does not know: a new
        one would begin empty, in the middle of the query's rows."""
        for uid, workers in self._fleet.strangers(self._registry.jobs).items():
            if uid.rpartition("-")[0] == name:
                raise Refused(
                    f"{named(workers, 'has', 'have')} a job {uid}, which this controller does not"
                    f" know; a new job {name} would begin without its state",
                    remedy="take it over with `rhinoctl controller recover`; then go on with it, or"
                    f" delete it: `rhinoctl job delete {name}`",
                )

    def _same(self, known: JobDocument, request: views.RegisterJob) -> JobDocument:
        spec = known.spec
        if spec.operator.digest != request.operator.digest:
            raise IdentityChanged(
                f"job {spec.name} has operator {spec.operator.digest}, this query declares"
                f" {request.operator.digest}: other keys, columns, types or aggregates",
                remedy="use the declaration of the running job, or another job name",
            )
        if spec.vnodes != request.vnodes:
            raise IdentityChanged(
                f"job {spec.name} has {spec.vnodes} vnodes, this query asks for {request.vnodes}",
                remedy=f"declare vnodes={spec.vnodes}; the number is fixed for a job's life",
            )
        return known

    def is_ready(self, document: JobDocument) -> bool:
        """Whether epoch 1 is sealed and every instance of the newest epoch answers. Raises
        UnknownJob if the job was deleted meanwhile."""
        known = self._registry.job(document.spec.name)
        if not known.installed:
            return False
        reports = self._fleet.reports(known.spec.uid)
        ready = {i for r in reports.values() for i, one in r.instances.items() if one.ready}
        return set(self.epoch(known).instances) <= ready

    def forget(self, uid: JobUid) -> None:
        """The job is deleted: let go of what was under way for it."""
        self.changes.pop(uid, None)
        self._questions.pop(uid, None)
        self._presence.pop(uid, None)
        self._not_before.pop(uid, None)
        self._written.pop(uid, None)

    # --- sessions --------------------------------------------------------------------------------

    def presence(self, uid: JobUid) -> Presence:
        """What is known of the job's driver."""
        if uid not in self._presence:
            start = int(self._clock.wall() * 1000)
            self._presence[uid] = Presence(revision=start, wake=start)
        return self._presence[uid]

    def is_live(self, uid: JobUid) -> bool:
        """Whether the holder of the job's session has polled lately."""
        seen_at = self.presence(uid).seen_at
        return seen_at is not None and self._clock.monotonic() - seen_at < limits.SESSION_LIVE_S

    def may_be_live(self, uid: JobUid) -> bool:
        """As `is_live`; and a controller that has just started gives a driver time to be heard."""
        if self.presence(uid).seen_at is not None:
            return self.is_live(uid)
        had_one = bool(self._registry.jobs[uid].run_id)
        return had_one and self._clock.monotonic() - self._started_at < limits.SESSION_LIVE_S

    def take_session(
        self, name: str, request: views.TakeSession, *, asked_at: float
    ) -> views.SessionGrant | None:
        """Give the next session number to a run of the job's query (invariants 10 and 11).

        None while it is not known whether another run still lives: that one is refused which polls
        after `asked_at`, and not one that was killed a moment ago and is started again.
        """
        document = self._registry.job(name)
        generation = self._generation_for(document, request)
        other_run = document.run_id not in ("", request.run_id) and not request.takeover
        if other_run and self.may_be_live(document.spec.uid):
            seen_at = self.presence(document.spec.uid).seen_at
            if seen_at is None or seen_at <= asked_at:
                return None
            raise SecondSession(
                f"run {document.run_id} of job {name} is live and holds session {document.session}",
                remedy="stop that query first, or start with takeover=True",
            )
        return self._grant(document, request, generation)

    def _generation_for(self, document: JobDocument, request: views.TakeSession) -> int:
        """The generation of the session's batches. Raises IdentityChanged for another query.

        If the workers have batches of a later one, the store has lost who opened it, as an old copy
        has: the next query that starts is taken for it, and its offsets show whether it is.
        """
        name = document.spec.name
        decided = self._fleet.generation(document.spec.uid)
        if document.query_id != request.query_id and decided > document.generation:
            return decided
        if document.query_id in ("", request.query_id):
            return document.generation
        if not document.new_stream:
            raise IdentityChanged(
                f"job {name} belongs to query {document.query_id}, this is query"
                f" {request.query_id}: its checkpoint directory is new or lost its metadata",
                remedy=f"restore the checkpoint directory, or accept a new stream over the"
                f" same state: `rhinoctl job bind {name} --new-stream`",
            )
        return document.generation + 1

    def _grant(
        self, document: JobDocument, request: views.TakeSession, generation: int
    ) -> views.SessionGrant:
        document = self._registry.put_job(
            replace(
                document,
                session=session_after(document, self._fleet.session(document.spec.uid)),
                generation=generation,
                query_id=request.query_id,
                run_id=request.run_id,
                new_stream=False,
            )
        )
        presence = self.presence(document.spec.uid)
        presence.seen_at = self._clock.monotonic()
        presence.epoch, presence.batch = 0, None
        return views.SessionGrant(
            cluster=self._cluster,
            job=document.spec.uid,
            session=document.session,
            generation=generation,
            epoch=self.epoch(document),
            workers=self._fleet.addresses(),
            cut=self._registry.cut(document.spec.uid),
        )

    def epoch(self, document: JobDocument) -> Epoch:
        """The newest epoch that is known of a job."""
        newest = self._fleet.newest_epoch(document.spec.uid)
        if newest is not None and newest[0].number >= document.epoch.number:
            return newest[0]
        return document.epoch

    def bind(self, name: str, request: views.BindRequest) -> views.Acknowledged:
        """Allow the next session to be of another query, or allow it no more."""
        document = self._registry.job(name)
        if self.may_be_live(document.spec.uid):
            raise SecondSession(
                f"job {name} has a live query, or had one a moment ago",
                remedy=f"stop the query, then bind after {limits.SESSION_LIVE_S:.0f} s",
            )
        self._registry.put_job(replace(document, new_stream=request.new_stream))
        detail = f"job {name} belongs to its query as before"
        if request.new_stream:
            detail = (
                f"the next start of job {name} may be a new stream: it opens generation"
                f" {document.generation + 1} over the state as it is"
            )
        return views.Acknowledged(detail=detail)

    # --- offers ----------------------------------------------------------------------------------

    def offer(self, uid: JobUid, proposal: Epoch | None, *, active: bool) -> None:
        """What the driver shall be offered from now on; an active operation wakes an idle job."""
        presence = self.presence(uid)
        if presence.proposal != proposal:
            presence.proposal = proposal
            presence.revision += 1
        now = self._clock.monotonic()
        if active and now - presence.woken_at >= limits.WAKE_EVERY_S:
            presence.woken_at = now
            presence.wake += 1
            presence.revision += 1

    def hear(self, name: str, report: views.DriverReport) -> None:
        """A driver's poll has come. One of an older session is no sign of life."""
        document = self._registry.job(name)
        if report.session == document.session:
            presence = self.presence(document.spec.uid)
            presence.seen_at = self._clock.monotonic()
            if presence.batch is not None and report.batch != presence.batch:
                presence.batch_at = self._clock.monotonic()
            presence.epoch, presence.batch = report.epoch, report.batch

    def news(self, name: str, report: views.DriverReport) -> views.Offer | None:
        """The answer to a driver's poll: None while there is nothing that it has not seen."""
        document = self._registry.job(name)
        live = report.session == document.session
        if live and report.revision == self.presence(document.spec.uid).revision:
            return None
        return self.offer_now(document, live=live)

    def offer_now(self, document: JobDocument, *, live: bool) -> views.Offer:
        """The offer as it stands. A cut that was offered is, also by a controller that has just
        started."""
        uid = document.spec.uid
        presence = self.presence(uid)
        return views.Offer(
            revision=presence.revision,
            proposal=(presence.proposal or self._registry.cut(uid)) if live else None,
            wake=presence.wake,
            live=live,
        )

    # --- epoch records by the controller ---------------------------------------------------------

    def change_epoch(self, uid: JobUid, change: Epoch) -> None:
        """Write an epoch record under a session of the controller's own, for want of a driver. A
        cut does not wait for another change, which may wait for whom it gives up."""
        under_way = self.changes.get(uid)
        if change.is_cut and under_way is not None and under_way.state.task.change != change:
            del self.changes[uid]
        if uid in self._questions and not change.is_cut:
            return
        if uid in self.changes or self._clock.monotonic() < self._not_before.get(uid, 0.0):
            return
        if change.number <= self._written.get(uid, 0):
            return  # it is decided, though not reported yet
        document = self._registry.jobs[uid]
        session = self._registry.next_session(uid, self._fleet.session(uid))
        lineage = Lineage(
            cluster=self._cluster, job=uid, session=session, epoch=self.epoch(document)
        )
        task = batches.Task(time=BASE, change=change)
        self.changes[uid] = BatchRun(
            wire=self._wire,
            clock=self._clock,
            lineage=lineage,
            task=task,
            addresses=self._fleet.addresses(),
        )

    def ask_decided(self, document: JobDocument) -> Callable[[], views.DecidedView | None]:
        """Find the last decided record by a fence under a session of the controller's own, which no
        older run of the query outlives. Returns what tells it (None: not yet), or raises
        WorkerUnreachable. Raises SecondSession while a query may live, and Busy."""
        uid, name = document.spec.uid, document.spec.name
        if self.may_be_live(uid):
            raise SecondSession(
                f"job {name} has a live query, or had one a moment ago",
                remedy=f"stop the query, then ask again after {limits.SESSION_LIVE_S:.0f} s",
            )
        if uid in self.changes or uid in self._questions:
            raise Busy(
                f"an epoch record of job {name} is being written, or its workers are being asked",
                remedy="try again in a moment",
            )
        session = self._registry.next_session(uid, self._fleet.session(uid))
        lineage = Lineage(
            cluster=self._cluster, job=uid, session=session, epoch=self.epoch(document)
        )
        run = self._questions[uid] = BatchRun(
            wire=self._wire,
            clock=self._clock,
            lineage=lineage,
            task=batches.Task(time=BASE),  # no batch: it ends where the fence has placed it
            addresses=self._fleet.addresses(),
        )
        return lambda: _decided_view(document, run.state) if run.ended else None

    def deliver(self, envelope: Envelope) -> bool:
        """Give an answer to the epoch change, or the question, that asked for it."""
        runs = [*self.changes.values(), *self._questions.values()]
        return any(run.deliver(envelope) for run in runs)

    def tick(self) -> None:
        """Install new jobs, and go on with epoch records under way."""
        for document in list(self._registry.jobs.values()):
            uid = document.spec.uid
            if not document.installed and not document.deleted and uid not in self.changes:
                self.change_epoch(uid, document.epoch)
        for uid, run in list(self._questions.items()):
            run.tick()
            if run.ended:
                del self._questions[uid]
        for uid, run in list(self.changes.items()):
            run.tick()
            if run.ended:
                del self.changes[uid]
                self._changed(uid, run.state)

    def _changed(self, uid: JobUid, state: batches.BatchState) -> None:
        """An epoch change has ended; one that failed is tried again after a pause."""
        document = self._registry.jobs.get(uid)
        if document is None:
            return  # deleted meanwhile
        if state.phase is batches.Phase.DONE:
            self._written[uid] = state.lineage.epoch.number
            if not document.installed:
                self._registry.put_job(replace(document, installed=True))
            return
        self._not_before[uid] = self._clock.monotonic() + limits.CHANGE_PAUSE_S
        fault = state.fault
        log.warning("epoch-change-failed job=%s fault=%s", uid, fault)


def _decided_view(document: JobDocument, state: batches.BatchState) -> views.DecidedView:
    """What a fence has shown. Raises WorkerUnreachable if it did not come to an end."""
    last, fault = state.lineage.last, state.fault
    if not state.lineage.fenced:
        raise WorkerUnreachable(
            f"job {document.spec.name}: {fault.detail if fault is not None else 'no answer'}"
            + (f" from {named(fault.workers)}" if fault and fault.workers else ""),
            remedy="all workers of the job's epoch must answer: see `rhinoctl status`",
        )
    return views.DecidedView(
        job=document.spec.name,
        query_id=document.query_id,
        generation=document.generation,
        batch=last.time if last is not None and last.time.batch >= 0 else None,
        start_offsets=last.start_offsets if last is not None else "",
        end_offsets=last.end_offsets if last is not None else "",
        batch_time_ms=last.batch_time_ms if last is not None else 0,
    )


def check_name(name: str) -> None:
    """Raise UsageError unless the name can be in a path and on a command line."""
    if not NAME.fullmatch(name):
        raise UsageError(
            f"{name[:80]!r} is no name of a job", remedy="use 1 to 64 letters, digits, - and _"
        )


def check_replication(replication: int) -> None:
    """Raise UsageError for a negative number of copies."""
    if replication < 0:
        raise UsageError(
            f"replication {replication}: a number of copies is 0 or more",
            remedy="use 1 to survive the loss of one worker, 2 of two",
        )


def check_vnodes(vnodes: int) -> None:
    """Raise UsageError unless the number is a power of two in range."""
    if not 1 <= vnodes <= 32768 or vnodes & (vnodes - 1):
        raise UsageError(
            f"{vnodes} vnodes: the number must be a power of two from 1 to 32768",
            remedy="use 64 unless the job shall ever have more instances than that",
        )


def check_parallelism(instances: int, vnodes: int) -> None:
    """Raise ParallelismOutOfRange, naming the bounds."""
    if not 1 <= instances <= vnodes:
        raise ParallelismOutOfRange(
            f"{instances} instances: a job with {vnodes} vnodes runs 1 to {vnodes}",
            remedy=f"ask for 1 to {vnodes} instances",
        )


def not_ready(document: JobDocument) -> DeadlineExceeded:
    """The error of a start that waited in vain."""
    return DeadlineExceeded(
        f"job {document.spec.name}: not every instance answered within {limits.START_WAIT_S:.0f} s",
        remedy="see `rhinoctl status` and the agents' logs, then start the query again",
    )
