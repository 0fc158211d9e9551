"""Failovers: from silence to heirs (design, section 8).

The verdict on a worker is `rhinoctl.protocol.liveness`'s, the plan `rhinoctl.protocol.failover`'s,
and the machine `rhinoctl.protocol.recovery`. This module gathers the evidence, persists what is
given up before it is offered, and tells people.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from rhinoctl import limits
from rhinoctl.control.fleet import Fleet, Seen
from rhinoctl.control.groups import Groups
from rhinoctl.control.jobs import Jobs
from rhinoctl.control.registry import FailoverDocument, JobDocument, Registry
from rhinoctl.errors import HealthyTarget, NoCopy, NoSuchWorkers, UnknownWorker, UsageError
from rhinoctl.ids import NO_OPERATION, BatchTime, InstanceId, JobUid, OpId, Vnode, WorkerId
from rhinoctl.protocol import handover as hm
from rhinoctl.protocol import recovery, views
from rhinoctl.protocol.epochs import Epoch
from rhinoctl.protocol.failover import Choice, CutPlan, GivenUp, plan_cut
from rhinoctl.protocol.liveness import (
    Evidence,
    Past,
    Patience,
    Verdict,
    beacons_count,
    brake,
    judge,
)
from rhinoctl.protocol.messages import JobReport
from rhinoctl.protocol.phrases import workers as named
from rhinoctl.protocol.ports import Clock
from rhinoctl.protocol.recovery import Failover
from rhinoctl.protocol.sizes import size
from rhinoctl.protocol.waiting import by_hand, listed

log = logging.getLogger("rhino.controller")


@dataclass(slots=True)
class Bereft:
    """Instances whose worker has nothing to open their vnodes from: its disk is lost, or what is
    on it is bad. Others have whole copies, and go on at once; a small one is fetched sooner."""

    clock: Clock
    since: dict[tuple[JobUid, InstanceId], float] = field(default_factory=dict)

    def failed(
        self, uid: JobUid, epoch: Epoch, reports: Mapping[WorkerId, JobReport]
    ) -> frozenset[InstanceId]:
        """Those that have been so for a while, if another live worker has each such vnode."""
        now, found = self.clock.monotonic(), set()
        for known in [key for key in self.since if key[0] == uid and key[1] not in epoch.instances]:
            del self.since[known]  # its name may be given again
        for instance, worker in epoch.instances.items():
            copies = reports[worker].vnodes if worker in reports else {}
            vnodes = [v for v in epoch.owned_by(instance) if v in copies and copies[v].bereft]
            held = all({*epoch.full_holders(v)} & {*reports} - {worker} for v in vnodes)
            if not vnodes or not held:
                self.since.pop((uid, instance), None)
            elif now - self.since.setdefault((uid, instance), now) >= limits.BEREFT_S:
                found.add(instance)
        return frozenset(found)


@dataclass(slots=True)
class Failovers:
    """Every job's failovers, and the verdicts on workers. `braked` says for which jobs the
    controller leaves it to a person, and why; `listening` asks a beacon, None if it is silent."""

    registry: Registry
    fleet: Fleet
    jobs: Jobs
    clock: Clock
    patience: Patience
    automatic: bool
    listening: Callable[[str], bool | None]
    braked: dict[JobUid, str] = field(default_factory=dict)
    bereft: Bereft = field(init=False)
    _started_at: float = 0.0
    _verdicts: dict[WorkerId, Verdict] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._started_at = self.clock.monotonic()
        self.bereft = Bereft(self.clock)

    # --- verdicts --------------------------------------------------------------------------------

    def look(self) -> None:
        """Judge every worker by what is known now."""
        for name, seen in self.fleet.workers.items():
            verdict = judge(self._evidence(name, seen), self.patience)
            if verdict is not self._verdicts.get(name, Verdict.ALIVE):
                log.info("worker-verdict worker=%s verdict=%s %s", name, verdict.value, seen.detail)
            self._verdicts[name] = verdict

    def verdict(self, worker: WorkerId) -> Verdict:
        """What a worker was last taken for."""
        return self._verdicts.get(worker, Verdict.ALIVE)

    def usable(self) -> frozenset[WorkerId]:
        """The workers that may hold copies: not lost, not given up, not to be empty."""
        given_up = {
            worker
            for document in self.registry.failovers.values()
            if not document.failover.ended
            for worker in document.failover.gone.workers
        }
        lost = {name for name in self.fleet.workers if self.verdict(name) is Verdict.LOST}
        return frozenset(self.fleet.workers) - lost - given_up - self.registry.draining

    def _evidence(self, name: WorkerId, seen: Seen) -> Evidence:
        now = self.clock.monotonic()
        beacons = seen.beacons()
        decided = [
            decided_at
            for document in self.registry.jobs.values()
            if name in self.jobs.epoch(document).voters()
            if (decided_at := self.jobs.presence(document.spec.uid).batch_at) is not None
        ]
        newest = max(decided, default=None)
        known = Evidence(
            silent_s=None if seen.heard_at is None else now - seen.heard_at,
            up_s=now - self._started_at,
            refused=seen.refused,
            instances=len(beacons),
            beacons=0,
            leaving=seen.report is not None and seen.report.leaving,
            decided_s=None if newest is None else now - newest,
        )
        return self._with_beacons(known, beacons) if beacons_count(known, self.patience) else known

    def _with_beacons(self, known: Evidence, beacons: Sequence[str]) -> Evidence:
        """What they add. A host of which nothing comes has not refused anything: it is silent."""
        alive = 0
        for beacon in beacons:
            answer = self.listening(beacon)
            if answer is None:
                return replace(known, refused=False)
            alive += answer
        return replace(known, beacons=alive)

    # --- by itself -------------------------------------------------------------------------------

    def tick(
        self,
        document: JobDocument,
        facts: hm.Facts,
        behind: Callable[[JobUid], Mapping[tuple[WorkerId, Vnode], int]],
    ) -> FailoverDocument | None:
        """Begin what has to begin, and go on with what is under way; returns that."""
        uid, epoch = document.spec.uid, facts.epoch
        lost = GivenUp(
            workers=self.lost(uid, epoch).workers,
            instances=self.bereft.failed(uid, epoch, self.fleet.reports(uid)),
        )
        running = self.registry.recovering(uid)
        gone = running.failover.gone if running is not None else GivenUp()
        if gone | lost != gone and self.automatic:
            running = self._begin_automatic(document, facts, lost, running)
        elif not lost:
            self.braked.pop(uid, None)
        if running is None:
            return None
        return self._step(running, facts, behind(uid))

    def _begin_automatic(
        self,
        document: JobDocument,
        facts: hm.Facts,
        gone: GivenUp,
        running: FailoverDocument | None,
    ) -> FailoverDocument | None:
        uid = document.spec.uid
        before = running.failover.gone if running is not None else GivenUp()
        both = before | gone
        plan = plan_cut(facts.epoch, both, taken=facts.planned)
        reason = brake(
            lost=len(both.workers),
            workers=len(facts.epoch.workers),
            decided=self._decided(uid),
            past=() if running is not None else self._past(uid),
        )
        if plan.stranded:
            reason = f"vnode {listed(plan.stranded)} has no other whole copy"
        if reason is not None:
            if self.braked.get(uid) != reason:
                log.warning("failover-braked job=%s lost=%s %s", uid, ",".join(gone.names), reason)
            self.braked[uid] = reason
            return running
        self.braked.pop(uid, None)
        new = GivenUp(
            workers=gone.workers - before.workers, instances=gone.instances - before.instances
        )
        reasons = [self._why(uid, worker) for worker in sorted(new.workers)]
        why = "; ".join([*reasons, *map(_no_copies, new.instances)])
        if running is None:
            return self._begin(document, gone, Choice(), why, plan)
        return self.registry.put_failover(
            recovery.with_more(running.failover, gone, why),
            replace(running.view, lost=(*running.view.lost, *new.names)),
        )

    def _why(self, uid: JobUid, worker: WorkerId) -> str:
        seen = self.fleet.workers[worker]
        if worker in self.fleet.unreadable(uid):
            return f"worker {worker} cannot read what it has of the job"
        if seen.refused:
            return f"nothing of worker {worker} is running"
        return f"worker {worker} has been silent for {self.patience.lease_s:.0f} s"

    def _decided(self, uid: JobUid) -> BatchTime | None:
        reports = self.fleet.reports(uid).values()
        return max((r.decided.position.time for r in reports if r.decided), default=None)

    def _fetched(self, state: Failover, epoch: Epoch | None) -> int:
        """Bytes of the vnodes' checkpoints that have come to their heirs, placed as in an epoch."""
        if epoch is None:
            return 0
        reports = self.fleet.reports(state.job)
        heirs = [(reports.get(epoch.owner_worker(vnode)), vnode) for vnode in state.heirs]
        return sum(
            report.vnodes[vnode].fetched_bytes
            for report, vnode in heirs
            if report is not None and vnode in report.vnodes
        )

    def _past(self, uid: JobUid) -> list[Past]:
        ended = [d.failover for d in self.registry.failovers.values() if d.failover.job == uid]
        ended.sort(key=lambda failover: min(failover.times.values()))
        return [Past(decided=failover.decided) for failover in ended]

    def _begin(
        self,
        document: JobDocument,
        gone: GivenUp,
        choice: Choice,
        why: str,
        plan: CutPlan,
        *,
        force: bool = False,
    ) -> FailoverDocument:
        now = self.clock.wall()
        uid = document.spec.uid
        state = Failover(
            op=self.registry.next_operation(),
            job=uid,
            gone=gone,
            why=why,
            decided=self._decided(uid),
            choice=choice,
            force=force,
            times={hm.Phase.ARMED.value: now},
        )
        view = self._view_of(document, state, plan)
        log.info("failover-begun op=%s job=%s why=%s", state.op, uid, why)
        return self.registry.put_failover(state, view)

    def _view_of(
        self, document: JobDocument, state: Failover, plan: CutPlan
    ) -> views.OperationView:
        epoch = self.jobs.epoch(document)
        view = views.OperationView(
            id=state.op,
            job=document.spec.name,
            kind=hm.Kind.FAILOVER,
            phase=state.phase,
            moves=plan.heirs,
            origins={v: epoch.routes[v].owner for v in plan.heirs},
            reason=state.why,
            times=state.times,
            marker=None,
            pause_ms=None,
            total_ms=None,
            bytes_moved=0,
            state_bytes=self._state_bytes(document.spec.uid, plan),
            progress="waiting for the cut",
            lost=state.gone.names,
        )
        return self._with_forfeit(view, state, plan.epoch.forfeited if plan.epoch else frozenset())

    def _with_forfeit(
        self, view: views.OperationView, state: Failover, vnodes: frozenset[Vnode]
    ) -> views.OperationView:
        """The view with the vnodes that begin empty, and what is lost with them as far as it is
        known when they are named first."""
        forfeited = tuple(sorted(vnodes))
        if forfeited == view.forfeited:
            return view
        seen = self._seen(state.gone)
        return replace(
            view,
            forfeited=forfeited,
            forfeited_bytes=self._size(state.job, forfeited),
            forfeited_seen=None if seen is None else self.clock.wall() - seen,
        )

    def _state_bytes(self, uid: JobUid, plan: CutPlan) -> int:
        reports = self.fleet.reports(uid).values()
        return sum(
            max((r.vnodes[v].state_bytes for r in reports if v in r.vnodes), default=0)
            for v in plan.heirs
        )

    # --- progress --------------------------------------------------------------------------------

    def _step(
        self,
        document: FailoverDocument,
        facts: hm.Facts,
        behind: Mapping[tuple[WorkerId, Vnode], int],
    ) -> FailoverDocument:
        before = document.failover
        if before.ended:
            return document
        if before.phase is hm.Phase.ARMED:  # what comes before the cut is not fetched for it
            before = replace(before, fetched=self._fetched(before, before.proposal))
        state = recovery.step(before, facts, behind, self.clock.wall())
        if state.phase is not before.phase:
            log.info("failover op=%s phase=%s epoch=%s", state.op, state.phase.value, state.epoch)
        view = self._view(document.view, state, facts, behind)
        if (state, view) == (document.failover, document.view):
            return document
        return self.registry.put_failover(state, view)

    def _view(
        self,
        view: views.OperationView,
        state: Failover,
        facts: hm.Facts,
        behind: Mapping[tuple[WorkerId, Vnode], int],
    ) -> views.OperationView:
        replayed = view.replayed_batches
        fetched = self._fetched(state, facts.epoch) - state.fetched
        heirs = {(facts.epoch.owner_worker(v), v) for v in state.heirs}
        if state.phase is hm.Phase.ARMED:
            placed = state.proposal.owner_worker if state.proposal is not None else None
            heirs = {(placed(v), v) for v in state.heirs} if placed is not None else set()
            replayed = max((behind.get(heir, 0) for heir in heirs), default=0)
        copies = [facts.copies[w][v] for w, v in heirs if v in facts.copies.get(w, {})]
        open_now = sum(copy.applied is not None for copy in copies)
        began = min(state.times.values())
        ended = state.times.get(state.phase.value) if state.ended else None
        return replace(
            self._with_forfeit(view, state, state.begin_empty),
            phase=state.phase,
            reason=state.why,
            moves=state.heirs or view.moves,
            origins=state.origins or view.origins,
            times=state.times,
            marker=state.marker,
            total_ms=None if ended is None else 1000 * (ended - began),
            replayed_batches=replayed,
            bytes_moved=0 if state.phase is hm.Phase.ARMED else max(0, fetched),
            progress=(
                "waiting for the cut"
                if state.phase is hm.Phase.ARMED
                else f"{open_now} of {len(state.heirs)} vnodes recovered"
            ),
        )

    def lost(self, uid: JobUid, epoch: Epoch) -> GivenUp:
        """The workers of an epoch that are lost, or are as good as lost for the job: what cannot
        be read takes no part in any batch."""
        return GivenUp(workers=frozenset(w for w in epoch.workers if self._is_lost(uid, w)))

    def _is_lost(self, uid: JobUid, worker: WorkerId) -> bool:
        return self.verdict(worker) is Verdict.LOST or worker in self.fleet.unreadable(uid)

    def stuck(self) -> Iterator[tuple[str, OpId, frozenset[WorkerId], str]]:
        """Failovers whose cut waits for workers that are lost, too: job, failover, workers, and
        what to type to give these up."""
        for document in self.registry.failovers.values():
            state = document.failover
            job = self.registry.jobs.get(state.job)
            if state.phase is hm.Phase.ARMED and state.proposal is not None and job is not None:
                voters = state.proposal.voters()
                lost = frozenset(w for w in voters if self._is_lost(state.job, w))
                gone = state.gone | GivenUp(workers=lost)
                if lost:
                    typed = by_hand(self.jobs.epoch(job), lost, gone)
                    yield document.view.job, state.op, lost, typed

    def measure(self) -> None:
        """The time to the first batch of every heir, once they have told it."""
        for document in list(self.registry.failovers.values()):
            state, view = document.failover, document.view
            if state.phase is not hm.Phase.COMPLETE or view.recover_ms is not None:
                continue
            began = min(state.times.values())
            firsts = [
                first_after(self._applies(state.job, heir), began)
                for heir in sorted(set(state.heirs.values()))
            ]
            if all(first is not None for first in firsts):
                last = max((f for f in firsts if f is not None), default=began)
                self.registry.put_failover(state, replace(view, recover_ms=1000 * (last - began)))

    def _applies(self, uid: JobUid, instance: InstanceId) -> Mapping[BatchTime, float]:
        known = self.fleet.applies.get((uid, instance))
        return known.at if known is not None else {}

    # --- asked for -------------------------------------------------------------------------------

    def request(
        self, request: views.FailoverRequest, groups: Groups
    ) -> tuple[views.OperationView, ...]:
        """Give a worker or an instance up in every job. Raises UnknownWorker, HealthyTarget, NoCopy
        and NoSuchWorkers; nothing is begun then."""
        if request.parallel is not None and request.parallel < 1:
            raise UsageError(
                "--parallel must be 1 or more", remedy="leave it out for as many as can inherit"
            )
        self._check_known(request.to)
        plans, refused = [], list[NoCopy]()
        for document in self.registry.jobs.values():
            if document.deleted or not document.installed:
                continue
            epoch = self.jobs.epoch(document)
            gone = self._target(request.target).within(epoch)
            if not gone or self._serves(request.target, document):
                continue
            self._check_dead(request.target, document, gone)
            choice = Choice(to=frozenset(request.to), parallel=request.parallel)
            self._check_heirs(document, epoch, choice)
            behind = groups.behind(document.spec.uid)
            running = self.registry.recovering(document.spec.uid)
            both = gone if running is None else gone | running.failover.gone
            plan = plan_cut(epoch, both, behind=behind, choice=choice)
            if plan.stranded and request.force:
                plan = plan_cut(epoch, both, behind=behind, force=True)
            if plan.epoch is None:
                refused.append(self._no_copy(document, epoch, both, plan, choice))
                continue
            plans.append((document, gone, choice, plan, request.force))
        if refused:
            raise _all_of(refused)
        if not plans and request.target not in self.fleet.workers:
            raise unknown_worker(request.target, self.fleet)
        if request.dry_run:
            return tuple(
                self._planned(document, gone, plan) for document, gone, _, plan, _ in plans
            )
        return tuple(self._asked(*each).view for each in plans)

    def _planned(self, document: JobDocument, gone: GivenUp, plan: CutPlan) -> views.OperationView:
        """What a dry run shows."""
        state = Failover(
            op=NO_OPERATION,
            job=document.spec.uid,
            gone=gone,
            why="asked for",
            decided=None,
            phase=hm.Phase.PLANNED,
        )
        return replace(self._view_of(document, state, plan), progress="planned")

    def _asked(
        self, document: JobDocument, gone: GivenUp, choice: Choice, plan: CutPlan, force: bool
    ) -> FailoverDocument:
        """Begin one, or give more up in the one that runs."""
        running, why = self.registry.recovering(document.spec.uid), "asked for"
        if running is None:
            return self._begin(document, gone, choice, why, plan, force=force)
        more = recovery.with_more(running.failover, gone, why)
        more = replace(more, force=more.force or force)
        return self.registry.put_failover(more, replace(running.view, lost=more.gone.names))

    def _check_known(self, names: tuple[str, ...]) -> None:
        """Raise UnknownWorker for a name that no worker and no instance has."""
        known: set[str] = set(self.fleet.workers)
        for document in self.registry.jobs.values():
            known |= {str(instance) for instance in self.jobs.epoch(document).instances}
        strange = [name for name in names if name not in known]
        if strange:
            raise unknown_worker(strange[0], self.fleet)

    def _target(self, target: str) -> GivenUp:
        if target in self.fleet.workers:
            return GivenUp(workers=frozenset({WorkerId(target)}))
        return GivenUp(instances=frozenset({InstanceId(target)}))

    def _serves(self, target: str, document: JobDocument) -> bool:
        """Whether a live worker that cannot read some job serves this one: it keeps it then."""
        report = (
            self.fleet.workers[WorkerId(target)].report if target in self.fleet.workers else None
        )
        fine = report is not None and document.spec.uid not in report.unreadable
        known = report.unreadable.keys() & self.registry.jobs.keys() if report is not None else ()
        return bool(known) and fine and self.verdict(WorkerId(target)) is Verdict.ALIVE

    def _check_dead(self, target: str, document: JobDocument, gone: GivenUp) -> None:
        """Raises HealthyTarget for what answers."""
        unread = self.fleet.unreadable(document.spec.uid)
        alive = any(self.verdict(w) is Verdict.ALIVE for w in gone.workers - unread.keys())
        reports = self.fleet.reports(document.spec.uid)
        alive |= any(
            report.instances[i].ready
            for report in reports.values()
            for i in gone.instances
            if i in report.instances
        )
        if alive:
            raise HealthyTarget(
                f"{target} answers: nothing was given up",
                remedy=f"`rhinoctl switchover {target}` moves what it owns while it runs"
                + ("" if gone.instances else f", `rhinoctl drain {target}` empties it"),
            )

    def _check_heirs(self, document: JobDocument, epoch: Epoch, choice: Choice) -> None:
        strange = sorted(choice.to - epoch.workers.keys() - epoch.instances.keys())
        if strange:
            raise NoSuchWorkers(
                f"job {document.spec.name} has nothing on {', '.join(strange)}",
                remedy=f"its workers are {', '.join(sorted(epoch.workers))}",
            )

    def _no_copy(
        self,
        document: JobDocument,
        epoch: Epoch,
        gone: GivenUp,
        plan: CutPlan,
        choice: Choice,
    ) -> NoCopy:
        """What is lost, or where there is a copy that the choice leaves out."""
        name, stranded = document.spec.name, plan.stranded
        elsewhere = plan_cut(epoch, gone)
        if choice.to and not elsewhere.stranded:
            holders = {w for v in stranded for w in epoch.full_holders(v)} - gone.workers
            return NoCopy(
                f"job {name}: {named(sorted(choice.to), 'has', 'have')} no whole copy of vnode"
                f" {listed(stranded)}",
                remedy=f"leave --to out, or name {', '.join(sorted(holders))}",
            )
        known = self._size(document.spec.uid, stranded)
        much = "of unknown size" if known is None else size(known)
        return NoCopy(
            f"job {name}: nobody else has a whole copy of vnode {listed(stranded)}"
            f" ({much}, {self._age(gone)}), which a failover would lose",
            remedy="bring the worker back: its state is on its disk, and the job goes on with it;"
            " if the disk is gone, --force lets those vnodes begin empty",
        )

    def _age(self, gone: GivenUp) -> str:
        """When what would be lost was seen last."""
        age = self._seen(gone)
        return (
            "not seen since the controller started" if age is None else f"last seen {age:.0f} s ago"
        )

    def _seen(self, gone: GivenUp) -> float | None:
        """Seconds since the workers given up were all seen; None if none was."""
        now, known = self.clock.monotonic(), self.fleet.workers
        ages = [now - at for w in gone.workers if w in known and (at := known[w].at) is not None]
        return max(ages, default=None)

    def _size(self, uid: JobUid, vnodes: tuple[Vnode, ...]) -> int | None:
        """Bytes of vnodes as last reported by anybody, however long ago; None if of none."""
        told: dict[Vnode, int] = {}
        for seen in self.fleet.workers.values():
            job = seen.report.jobs.get(uid) if seen.report is not None else None
            copies = job.vnodes if job is not None else {}
            for vnode in {*vnodes} & {*copies}:
                told[vnode] = max(told.get(vnode, 0), copies[vnode].state_bytes)
        return sum(told.values()) if told else None


def _no_copies(instance: InstanceId) -> str:
    return f"instance {instance} owns vnodes of which its worker has no whole copy any more"


def unknown_worker(name: str, fleet: Fleet) -> UnknownWorker:
    """The error for a worker, or an instance, that nobody knows."""
    return UnknownWorker(
        f"there is no worker and no job's instance {name!r}; workers are"
        f" {', '.join(fleet.workers) or 'none'}",
        remedy="see `rhinoctl status`, and `rhinoctl job show JOB` for the instances of a job",
    )


def first_after(applies: Mapping[BatchTime, float], moment: float) -> float | None:
    """When the first batch was applied after a moment, None if none is known."""
    return min((at for at in applies.values() if at > moment), default=None)


def _all_of(refused: Sequence[NoCopy]) -> NoCopy:
    """One refusal for all jobs; what is to be done is said once."""
    remedies = dict.fromkeys(each.remedy for each in refused)
    return NoCopy("; ".join(each.message for each in refused), remedy="; ".join(remedies))
