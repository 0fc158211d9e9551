"""Operations: handovers and rescales from request to end (Rhino's Handover Manager, section 3.3).

The machine is `rhinoctl.protocol.handover`. This module persists each of its states before anything
is offered or wished because of it, and asks it again whenever workers have reported.
"""

import itertools
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

from rhinoctl import limits
from rhinoctl.control.ceilings import check_ceilings
from rhinoctl.control.failovers import Failovers, unknown_worker
from rhinoctl.control.fleet import Fleet
from rhinoctl.control.groups import Groups, room_for_copies, room_for_one
from rhinoctl.control.jobs import Jobs, check_parallelism
from rhinoctl.control.registry import (
    FailoverDocument,
    JobDocument,
    OperationDocument,
    Registry,
)
from rhinoctl.errors import (
    Busy,
    CannotPause,
    DiskFull,
    NoSuchWorkers,
    Refused,
    UnknownInstance,
    UnknownVnode,
)
from rhinoctl.ids import NO_OPERATION, BatchTime, InstanceId, JobUid, OpId, Vnode, WorkerId
from rhinoctl.protocol import handover as hm
from rhinoctl.protocol import views
from rhinoctl.protocol.epochs import Epoch
from rhinoctl.protocol.phrases import workers as named
from rhinoctl.protocol.placement import Plan, plan_rescale, plan_switchover
from rhinoctl.protocol.ports import Clock
from rhinoctl.protocol.recovery import stops
from rhinoctl.protocol.sizes import size
from rhinoctl.protocol.starting import start_again

log = logging.getLogger("rhino.controller")


@dataclass(slots=True)
class Operations:
    """The Handover Manager, and the Replication Manager's care for redundancy after it."""

    registry: Registry
    fleet: Fleet
    jobs: Jobs
    groups: Groups
    failovers: Failovers
    clock: Clock

    # --- requests --------------------------------------------------------------------------------

    def handover(self, name: str, request: views.HandoverRequest) -> views.OperationView:
        """Move vnodes to an instance. Raises UnknownVnode, UnknownInstance, Busy."""
        document = self.idle(name, dry_run=request.dry_run)
        epoch = self.jobs.epoch(document)
        strange = [v for v in request.vnodes if not 0 <= v < len(epoch.routes)]
        if strange or not request.vnodes:
            raise UnknownVnode(
                f"job {name} has no vnode {strange[0] if strange else '(none given)'}",
                remedy=f"its vnodes are 0 to {len(epoch.routes) - 1}",
            )
        if request.to not in epoch.instances:
            raise UnknownInstance(
                f"job {name} has no instance {request.to!r};"
                f" it has {', '.join(sorted(epoch.instances))}",
                remedy=f"see `rhinoctl job show {name}`; `rhinoctl rescale` adds instances",
            )
        moves = {v: request.to for v in request.vnodes if epoch.routes[v].owner != request.to}
        plan = Plan(before=epoch.instances, instances=epoch.instances, moves=moves)
        return self.begin(document, epoch, hm.Kind.HANDOVER, plan, dry_run=request.dry_run)

    def rescale(self, name: str, request: views.RescaleRequest) -> views.OperationView:
        """Another number of instances. Raises ParallelismOutOfRange, Busy, NoSuchWorkers."""
        document = self.idle(name, dry_run=request.dry_run)
        check_parallelism(request.instances, document.spec.vnodes)
        workers = self._able(document, self._targets())
        if not workers:
            raise NoSuchWorkers(
                "no worker of the inventory answers",
                remedy="see `rhinoctl status`; start the agents, then repeat the command",
            )
        epoch = self.jobs.epoch(document)
        slots = self.fleet.slots(self.jobs.layouts(document.spec.uid))
        plan = plan_rescale(epoch, request.instances, workers, slots)
        if plan.empty and not request.dry_run:
            self._asked_for(document, request.instances)
        return self.begin(document, epoch, hm.Kind.RESCALE, plan, dry_run=request.dry_run)

    def _asked_for(self, document: JobDocument, instances: int) -> None:
        """So many instances are what people want from now on."""
        if document.instances != instances:
            self.registry.put_job(replace(document, instances=instances))

    def switchover(self, request: views.SwitchoverRequest) -> tuple[views.OperationView, ...]:
        """Move what a worker or an instance owns to holders of copies, in every job. Raises
        UnknownWorker, UnknownInstance, Busy, Refused; nothing is begun then."""
        kind, targets = hm.Kind.SWITCHOVER, self._targets()
        return self._emptied(kind, request.target, request.to, targets, dry_run=request.dry_run)

    def drain(self, request: views.DrainRequest) -> tuple[views.OperationView, ...]:
        """Move what a worker owns, retire its instances, and keep copies away from it."""
        if request.worker not in self.fleet.workers:
            raise unknown_worker(request.worker, self.fleet)
        draining = self.registry.draining - {request.worker}
        if not request.undo:
            draining |= {request.worker}
            if not set(self.fleet.workers) - draining:
                raise Refused(
                    f"worker {request.worker} is the last one that is not drained",
                    remedy="let another one have vnodes again: `rhinoctl drain WORKER --undo`",
                )
        begun: tuple[views.OperationView, ...] = ()
        if not request.undo:
            targets = [worker for worker in self.fleet.live() if worker not in draining]
            kind, dry_run = hm.Kind.DRAIN, request.dry_run
            begun = self._emptied(kind, request.worker, None, targets, dry_run=dry_run)
        if not request.dry_run:
            self.registry.put_draining(draining)
        return begun

    def _emptied(
        self,
        kind: hm.Kind,
        target: str,
        to: str | None,
        targets: Sequence[WorkerId],
        *,
        dry_run: bool,
    ) -> tuple[views.OperationView, ...]:
        """Plan for every job before the first one begins."""
        known = {i for d in self.registry.jobs.values() for i in self.jobs.epoch(d).instances}
        for name in (target, *(() if to is None else (to,))):
            if name not in self.fleet.workers and name not in known:
                raise unknown_worker(name, self.fleet)
        plans = []
        for job in self.registry.jobs.values():
            if job.deleted:
                continue
            epoch = self.jobs.epoch(job)
            origins = frozenset(i for i, w in epoch.instances.items() if target in (i, w))
            owned = any(epoch.owned_by(i) for i in origins)
            if not owned and (kind is hm.Kind.SWITCHOVER or not origins):
                continue
            document = self.idle(job.spec.name, dry_run=dry_run)
            plan = plan_switchover(
                epoch,
                origins,
                self._able(document, targets),
                to=to,
                retire=kind is hm.Kind.DRAIN,
                behind=self.groups.behind(document.spec.uid),
            )
            if plan is None:
                raise self._nowhere(document, origins, target, to)
            plans.append((document, epoch, plan))
        return tuple(self.begin(d, epoch, kind, p, dry_run=dry_run) for d, epoch, p in plans)

    def _nowhere(
        self, document: JobDocument, origins: frozenset[InstanceId], target: str, to: str | None
    ) -> Refused:
        """Why what a target owns cannot go where it should."""
        epoch, other = self.jobs.epoch(document), "name another one with --to"
        home = epoch.instances.get(InstanceId(to or ""), WorkerId(to or ""))
        if home in {epoch.instances[i] for i in origins}:
            return Refused(
                f"what {target} owns of job {document.spec.name} is on worker {home} already",
                remedy=f"{other}, or leave --to out",
            )
        if home in self.registry.draining:
            return Refused(
                f"worker {home} is drained: it gets no vnodes",
                remedy=f"{other}, or let it have vnodes again: `rhinoctl drain {home} --undo`",
            )
        return Refused(
            f"job {document.spec.name} has no other worker or instance for what {target} owns"
            + (f": {to}" if to else ""),
            remedy=f"{other}, or add workers to the cluster",
        )

    def _able(self, document: JobDocument, workers: Iterable[WorkerId]) -> list[WorkerId]:
        """Those that take part in a job: not who cannot read what it has of it."""
        unread = self.fleet.unreadable(document.spec.uid)
        return [worker for worker in workers if worker not in unread]

    def _targets(self) -> list[WorkerId]:
        """The live workers that may get vnodes."""
        usable = self.failovers.usable()
        return [worker for worker in self.fleet.live() if worker in usable]

    def pause(self, op: str) -> views.OperationView:
        """Keep an operation before its marker for now. Raises CannotPause for one whose marker may
        be decided, and for a failover."""
        document = self._movable(op, "paused")
        if document.handover.phase is hm.Phase.PAUSED:
            return document.view
        if not hm.may_pause(document.handover):
            view, ended = document.view, document.handover.ended
            raise CannotPause(
                f"{view.kind.value} {op} is {view.phase.value}"
                + ("" if ended else ": its marker may be decided already"),
                remedy=f"see `rhinoctl op show {op}`"
                if ended
                else f"follow it to its end (`rhinoctl op watch {op}`), or ask for the old layout:"
                f" `rhinoctl op abort {op}`",
            )
        return self._step(document, hm.PauseAsked()).view

    def resume(self, op: str) -> views.OperationView:
        """Go on with a paused operation; nothing to do for one that runs. Raises CannotPause."""
        document = self._movable(op, "resumed")
        if document.handover.ended:
            view = document.view
            raise CannotPause(
                f"{view.kind.value} {op} has ended: it is {view.phase.value}"
                + (f" ({view.reason})" if view.reason else ""),
                remedy=f"see `rhinoctl op show {op}`; begin it anew if it is still wanted",
            )
        if document.handover.phase is not hm.Phase.PAUSED:
            return document.view
        return self._step(document, hm.ResumeAsked()).view

    def _movable(self, op: str, what: str) -> OperationDocument:
        if op in self.registry.failovers:
            raise CannotPause(
                f"failover {op} cannot be {what}: batches wait for its heirs",
                remedy=f"it ends by itself: `rhinoctl op watch {op}`",
            )
        return self.registry.operation(op)

    def abort(self, op: str, request: views.AbortRequest) -> views.OperationView:
        """Ask for the old layout; what is past its marker completes instead, and what has ended
        stays as it is. Raises Refused for a failover, which has no way back."""
        failover = self.registry.failovers.get(OpId(op))
        if failover is not None:
            if failover.failover.ended:
                return failover.view
            raise Refused(
                f"failover {op} has no way back: the cut may be decided already",
                remedy="it ends by itself; `rhinoctl switchover` moves vnodes back after it",
            )
        document = self.registry.operation(op)
        event = hm.AbortAsked(reason=request.reason or "asked for")
        return self._step(document, event).view

    def idle(self, name: str, *, dry_run: bool) -> JobDocument:
        """The job of a name, of which no operation runs (which a dry run does not mind). Raises
        Busy, naming what runs, and Refused."""
        document = self.registry.job(name)
        uid = document.spec.uid
        recovering = self.registry.recovering(uid)
        if recovering is not None and not dry_run:
            raise Busy(
                f"failover {recovering.view.id} of job {name} is {recovering.view.phase.value}",
                remedy=f"wait for it: `rhinoctl op watch {recovering.view.id}`",
            )
        running = self.registry.running(uid)
        if running is not None and not dry_run:
            view = running.view
            raise Busy(
                f"{view.kind.value} {view.id} of job {name} is {view.phase.value}",
                remedy=f"let it go on (`rhinoctl op resume {view.id}`),"
                f" or end it: `rhinoctl op abort {view.id}`"
                if view.phase is hm.Phase.PAUSED
                else f"wait for it (`rhinoctl op watch {view.id}`),"
                f" or end it: `rhinoctl op abort {view.id}`",
            )
        if not document.installed:
            raise Refused(
                f"job {name} is not installed on its workers yet",
                remedy="see `rhinoctl status`; it needs every worker of its first epoch",
            )
        return document

    def begin(
        self,
        document: JobDocument,
        epoch: Epoch,
        kind: hm.Kind,
        plan: Plan,
        *,
        dry_run: bool,
        reverts: OpId = NO_OPERATION,
        reason: str = "",
    ) -> views.OperationView:
        """Persist a plan as an operation, or only show it. Raises Refused if a worker that it
        needs does not answer."""
        concerned = {plan.instances[i] for i in plan.moves.values()}
        concerned |= {epoch.owner_worker(vnode) for vnode in plan.moves}
        addresses = self.fleet.addresses()
        down = sorted(concerned - set(self.fleet.live()))
        if down:
            raise Refused(
                f"{named(down, 'does', 'do')} not answer, and the move is from there or to there",
                remedy=f"start what is silent: {start_again(down, addresses.get(down[0], ''))}",
            )
        self._check_room(document.spec.uid, epoch, plan)
        owners = [plan.moves.get(Vnode(v), epoch.routes[v].owner) for v in epoch.vnodes()]
        others = self.jobs.layouts(document.spec.uid)
        check_ceilings(self.fleet, plan.instances, owners, others, epoch.instances)
        now = self.clock.wall()
        idle = dry_run or plan.empty
        op = NO_OPERATION if idle else self.registry.next_operation()
        state = hm.Handover(
            op=op,
            kind=kind,
            job=document.spec.uid,
            moves=plan.moves,
            instances=plan.instances,
            before=plan.before,
            reason=reason,
            workers={w: addresses[w] for w in set(plan.instances.values()) if w in addresses},
            deadline=now + limits.HANDOVER_DEADLINE_S,
            phase=hm.Phase.COMPLETE if plan.empty else hm.Phase.PLANNED,
            times={hm.Phase.PLANNED.value: now},
        )
        view = views.OperationView(
            id=op,
            job=document.spec.name,
            kind=kind,
            phase=state.phase,
            moves=plan.moves,
            origins={v: epoch.routes[v].owner for v in plan.moves},
            reason=reason,
            times=state.times,
            marker=None,
            pause_ms=None,
            total_ms=None,
            bytes_moved=0,
            state_bytes=self._state_bytes(document.spec.uid, epoch, plan.moves),
            progress="nothing to move" if plan.empty else "planned",
            reverts=reverts,
        )
        if idle:
            return view
        return self.registry.put_operation(state, view).view

    def _check_room(self, uid: JobUid, epoch: Epoch, plan: Plan) -> None:
        """Raise DiskFull if a target has no room for the copies that would come to it."""
        coming: dict[WorkerId, list[Vnode]] = {}
        for vnode, target in plan.moves.items():
            worker = plan.instances[target]
            if worker not in epoch.holders(vnode):
                coming.setdefault(worker, []).append(vnode)
        for worker, vnodes in sorted(coming.items()):
            report = self.fleet.workers[worker].report
            coming_bytes = self._state_bytes(uid, epoch, dict.fromkeys(vnodes, InstanceId("")))
            if report is not None and coming_bytes > room_for_copies(report):
                raise DiskFull(
                    f"worker {worker} has {size(report.free_bytes)} free, and"
                    f" {size(coming_bytes)} would come to it; a share of it stays for log and"
                    " compaction",
                    remedy="make room on its file system, or move to another worker",
                )
            if report is not None:
                self._check_each(uid, epoch, worker, vnodes, room_for_one(report))

    def _check_each(
        self, uid: JobUid, epoch: Epoch, worker: WorkerId, vnodes: Iterable[Vnode], room: int
    ) -> None:
        """Raise DiskFull if no disk of a worker has room for one of the vnodes."""
        for vnode in vnodes:
            needed = self._state_bytes(uid, epoch, {vnode: InstanceId("")})
            if needed > room:
                raise DiskFull(
                    f"vnode {vnode} has {size(needed)}, and no disk of worker {worker} may"
                    f" take more than {size(room)}",
                    remedy="make room on one of them, see `rhinoctl disk list`; add a larger one,"
                    " `rhinoctl disk add`; or move to another worker",
                )

    def _state_bytes(self, uid: JobUid, epoch: Epoch, moves: Mapping[Vnode, InstanceId]) -> int:
        reports = self.fleet.reports(uid)
        total = 0
        for vnode in moves:
            report = reports.get(epoch.owner_worker(vnode))
            if report is not None and vnode in report.vnodes:
                total += report.vnodes[vnode].state_bytes
        return total

    # --- progress --------------------------------------------------------------------------------

    def tick(self) -> None:
        """Ask each running operation's machine again, and lower redundancy where none runs."""
        for document in list(self.registry.jobs.values()):
            if not document.installed or document.deleted:
                continue
            uid = document.spec.uid
            facts = self.facts(document)
            if facts.epoch.number > document.epoch.number:
                since = dict.fromkeys(sorted(facts.epoch.forfeited), facts.epoch_from)
                forfeited = {**document.forfeited, **since}
                document = self.registry.put_job(
                    replace(
                        document,
                        epoch=facts.epoch,
                        epoch_from=facts.epoch_from,
                        forfeited=forfeited,
                    )
                )
            recovering = self.failovers.tick(document, facts, self.groups.behind)
            running = self.registry.running(uid)
            lost = recovering.failover if recovering is not None else None
            if running is not None and lost is not None and stops(lost.gone, running.handover):
                running = self._step(running, hm.AbortAsked(reason=lost.why))
            if running is not None and not running.handover.ended:
                running = self._step(running, hm.Observed(facts=facts))
            self._offer(document, facts, running, recovering)
        self.failovers.measure()
        for done in list(self.registry.operations.values()):
            view = done.view
            if view.phase is hm.Phase.COMPLETE and view.pause_ms is None and view.live:
                self._measure(done)

    def facts(self, document: JobDocument) -> hm.Facts:
        """What is known of a job; the epoch never goes back, whatever workers report."""
        uid = document.spec.uid
        epoch, epoch_from = document.epoch, document.epoch_from
        newest = self.fleet.newest_epoch(uid)
        if newest is not None and newest[0].number > epoch.number:
            epoch, epoch_from = newest
        reports = self.fleet.reports(uid)
        presence, running = self.jobs.presence(uid), self.registry.running(uid)
        return hm.Facts(
            epoch=epoch,
            epoch_from=epoch_from,
            reached={w: r.epoch.number for w, r in reports.items() if r.epoch is not None},
            driver_epoch=presence.epoch if self.jobs.may_be_live(uid) else None,
            copies={worker: report.vnodes for worker, report in reports.items()},
            ready=frozenset(
                i for report in reports.values() for i, r in report.instances.items() if r.ready
            ),
            planned=frozenset(running.handover.instances if running is not None else ()),
        )

    def _step(self, document: OperationDocument, event: hm.Event) -> OperationDocument:
        state = hm.step(document.handover, event, self.clock.wall())
        if state.phase is not document.handover.phase:
            log.info(
                "handover op=%s job=%s phase=%s armed=%s marker=%s reason=%s",
                *(state.op, state.job, state.phase.value, state.armed, state.marker, state.reason),
            )
        view = self._view(state, document.view)
        if isinstance(event, hm.Observed) and state.phase is hm.Phase.ARMED:
            routes = event.facts.epoch.routes  # which a failover may have changed since the plan
            view = replace(view, origins={v: routes[v].owner for v in state.moves})
        if (state, view) == (document.handover, document.view):
            return document
        rescaled = self.registry.jobs.get(state.job)
        if rescaled is not None and (state.kind, state.phase) == _RESCALED:
            self._asked_for(rescaled, len(state.instances))
        return self.registry.put_operation(state, view, kept=self._kept(state))

    def _kept(self, state: hm.Handover) -> frozenset[WorkerId]:
        """The worker of an aborted drain. It is at the old layout, so it may have vnodes and copies
        again."""
        document = self.registry.jobs.get(state.job)
        aborted = state.kind is hm.Kind.DRAIN and state.phase is hm.Phase.ABORTED
        if document is None or not aborted:
            return frozenset()
        before = self.jobs.epoch(document).instances
        return frozenset(worker for i, worker in before.items() if i not in state.instances)

    def _view(self, state: hm.Handover, view: views.OperationView) -> views.OperationView:
        moved, of = 0, 0
        reports = self.fleet.reports(state.job)
        following = 0
        for vnode, target in state.moves.items():
            report = reports.get(state.instances[target])
            copy = report.vnodes.get(vnode) if report is not None else None
            if copy is not None:
                moved, of = moved + copy.copied_bytes, of + copy.copy_bytes
                following += copy.instance == target and copy.lag_batches == 0
        ended = state.times.get(state.phase.value) if state.ended else None
        total = None if ended is None else (ended - min(state.times.values())) * 1000
        marked = state.phase in (hm.Phase.MARKED, hm.Phase.COMPLETE)
        return replace(
            view,
            live=view.live and (not marked or self.jobs.may_be_live(state.job)),
            phase=state.phase,
            reason=state.reason,
            times=state.times,
            marker=state.marker,
            total_ms=total,
            bytes_moved=max(view.bytes_moved, moved),
            progress=_progress(state, moved, of, following),
        )

    def _measure(self, document: OperationDocument) -> None:
        """The pause, once the targets' first apply after the marker has been reported."""
        state, view = document.handover, document.view
        known = self.registry.jobs.get(state.job)
        if state.marker is None or known is None:
            return
        pauses = [0.0]
        for vnode, target in state.moves.items():
            origin = view.origins[vnode]
            before = self._applies(state.job, origin)
            if origin in known.epoch.instances and state.marker not in before:
                before = {}  # it will be told
            pause = pause_s(before, self._applies(state.job, target), state.marker)
            if pause is None:
                return
            pauses.append(pause)
        self.registry.put_operation(state, replace(view, pause_ms=1000 * max(pauses)))

    def _applies(self, uid: JobUid, instance: InstanceId) -> Mapping[BatchTime, float]:
        known = self.fleet.applies.get((uid, instance))
        return known.at if known is not None else {}

    def _offer(
        self,
        document: JobDocument,
        facts: hm.Facts,
        running: OperationDocument | None,
        recovering: FailoverDocument | None,
    ) -> None:
        """What the holder of the session is offered; without a live one, the controller writes."""
        uid = document.spec.uid
        proposal: Epoch | None
        if recovering is not None and recovering.failover.phase is hm.Phase.ARMED:
            proposal, active = self.registry.cut(uid), True
        elif running is not None and not running.handover.ended:
            proposal = running.handover.proposal
            paused = running.handover.phase is hm.Phase.PAUSED
            active = proposal is not None or not paused
        elif recovering is not None and not recovering.failover.ended:
            proposal, active = None, False  # the heirs come first: copies would take their network
        else:
            proposal = self.groups.next(document, facts.epoch)
            active = proposal is not None
            if not self._is_released(uid, facts):
                proposal = None
        self.jobs.offer(uid, proposal, active=active)
        follows = proposal is not None and proposal.number == facts.epoch.number + 1
        if proposal is not None and follows and not self.jobs.may_be_live(uid):
            self.jobs.change_epoch(uid, proposal)

    def _is_released(self, uid: JobUid, facts: hm.Facts) -> bool:
        """Whether nobody owes an output from before the epoch: its workers say that the batch which
        began it is released. Who left before that would take its output away (invariant 14)."""
        reports = self.fleet.reports(uid)
        return all(
            (report := reports.get(worker)) is not None and report.released >= facts.epoch_from
            for worker in facts.epoch.listeners()
        )


_RESCALED = (hm.Kind.RESCALE, hm.Phase.COMPLETE)


def _progress(state: hm.Handover, moved: int, of: int, following: int) -> str:
    """A few words for people; the phase itself is in the phase field."""
    count = len(state.moves)
    if state.phase in (hm.Phase.WARMING, hm.Phase.PAUSED):
        if of and moved < of:
            return f"copied {moved >> 20} of {of >> 20} MB"
        return f"{following} of {count} vnodes follow"
    if state.phase is hm.Phase.ARMED:
        return "waiting for the marker"
    return f"{count} vnodes"


def pause_s(
    before: Mapping[BatchTime, float], after: Mapping[BatchTime, float], marker: BatchTime
) -> float | None:
    """The gap over the marker beyond the usual one (design, section 13), in seconds.

    `before` are the origin's apply times, `after` the target's; the usual gap is the median of the
    10 batches before the marker, and before the first batch nothing pauses. None while one of the
    two is not known. An origin that is gone may not have told its last apply: then the gap is over
    more batches, and usual for each of them.
    """
    if marker.batch < 0:
        return 0.0
    past = sorted(time for time in before if time <= marker)
    future = min((time for time in after if time > marker), default=None)
    if not past or future is None or not marker.may_precede(future):
        return None
    recent = [before[time] for time in past[-11:]]
    gaps = [b - a for a, b in itertools.pairwise(recent)]
    same = past[-1].generation == marker.generation
    steps = 1 + (marker.batch - past[-1].batch if same else 0)
    return max(0.0, after[future] - recent[-1] - steps * (median(gaps) if gaps else 0.0))
