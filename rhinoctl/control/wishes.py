"""What is wished of each worker: instances, copies, checkpoints (design, section 3).

A wish is complete each time and made anew from what is persisted and reported, so that a lost one
is as good as a late one.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from rhinoctl import limits
from rhinoctl.control.fleet import Fleet
from rhinoctl.control.groups import Groups, sources_of
from rhinoctl.control.jobs import Jobs
from rhinoctl.control.registry import JobDocument, OperationDocument, Registry
from rhinoctl.control.verification import Verifications
from rhinoctl.errors import Refused
from rhinoctl.ids import BASE, BatchTime, InstanceId, JobUid, Vnode, WorkerId
from rhinoctl.protocol import handover as hm
from rhinoctl.protocol import messages as m
from rhinoctl.protocol import views
from rhinoctl.protocol.claims import NOBODY_GIVEN_UP, Memo
from rhinoctl.protocol.epochs import Epoch, Role
from rhinoctl.protocol.jobs import VnodeUse
from rhinoctl.protocol.phrases import workers as named
from rhinoctl.protocol.ports import Clock


@dataclass(slots=True)
class Wishes:
    """The wishes for every worker; `asked` are the checkpoints that people asked for, up to which
    batch and until when."""

    registry: Registry
    fleet: Fleet
    jobs: Jobs
    groups: Groups
    verifications: Verifications
    clock: Clock
    asked: dict[JobUid, tuple[BatchTime, float]] = field(default_factory=dict)

    def checkpoint(
        self, document: JobDocument, request: views.CheckpointRequest
    ) -> views.CheckpointView:
        """Ask for a checkpoint of every vnode that has changed, or how far they are. A checkpoint
        never has an unreleased batch, so it is asked up to the newest released one."""
        uid, epoch = document.spec.uid, self.jobs.epoch(document)
        reports = self.fleet.reports(uid)
        silent = sorted(set(epoch.instances.values()) - reports.keys())
        if silent or not self.jobs.may_be_live(uid):
            who = named(silent, "does not answer", "do not answer") if silent else "no query runs"
            raise Refused(
                f"job {document.spec.name}: {who}; checkpoints are taken between its batches",
                remedy="see `rhinoctl status`; ask again once the job runs",
            )
        through = request.through
        if through is None:
            through = max((r.released for r in reports.values()), default=BASE)
        self.asked[uid] = (through, self.clock.monotonic() + limits.CHECKPOINT_WISH_S)

        def covered(worker: WorkerId, vnode: Vnode) -> bool:
            report = reports.get(worker)
            copy = report.vnodes.get(vnode) if report is not None else None
            return copy is not None and copy.covers is not None and copy.covers >= through

        vnodes = [Vnode(v) for v in epoch.vnodes()]
        return views.CheckpointView(
            job=document.spec.name,
            through=through,
            vnodes=len(vnodes),
            done=sum(covered(epoch.owner_worker(v), v) for v in vnodes),
            replicated=sum(all(covered(w, v) for w in epoch.full_holders(v)) for v in vnodes),
        )

    def of(self, worker: WorkerId) -> tuple[m.DesiredJob, ...]:
        """All that is wished of a worker, complete each time."""
        wished = []
        for document in self.registry.jobs.values():
            spec, epoch = document.spec, self.jobs.epoch(document)
            if document.deleted:
                wished.append(m.DesiredJob(spec=spec, dropped=True))
            elif self._has_left(document, worker):
                wished.append(self._farewell(document, epoch, worker))
            elif worker in self._concerned(document):
                wished.append(self._wish(document, worker))
            elif self._is_outcast(document, worker):
                wished.append(m.DesiredJob(spec=spec, left=epoch.number, keep=True))
        memos = {uid: self._memo(document) for uid, document in self.registry.jobs.items()}
        return tuple(
            replace(wish, memo=memos[wish.spec.uid]) if not wish.dropped else wish
            for wish in wished
        )

    def _farewell(self, document: JobDocument, epoch: Epoch, worker: WorkerId) -> m.DesiredJob:
        """What is wished of a worker that has left. What it cannot read it sets aside, if it is of
        no use: the start that has reported it has had no part in the job, so none can be lost."""
        unread = self.fleet.unreadable(document.spec.uid).get(worker)
        return m.DesiredJob(
            spec=document.spec,
            left=epoch.number,
            keep=unread is not None or self.groups.wants(document, epoch, worker),
            aside=self.fleet.start_of(worker) if unread is not None and unread.damaged else None,
        )

    def _memo(self, document: JobDocument) -> Memo:
        """What a controller that loses its store has to be told of the job."""
        recovering = self.registry.recovering(document.spec.uid)
        return Memo(
            session=document.session,
            given=document.given,
            generation=document.generation,
            query_id=document.query_id,
            run_id=document.run_id,
            instances=document.instances,
            gone=recovering.failover.gone if recovering is not None else NOBODY_GIVEN_UP,
            forfeited=document.forfeited,
        )

    def _is_outcast(self, document: JobDocument, worker: WorkerId) -> bool:
        """Whether a worker is back that was given up: it shall run nothing, and keep its files
        until it is known whether they are of use."""
        return worker in self.fleet.reports(document.spec.uid)

    def _concerned(self, document: JobDocument) -> set[WorkerId]:
        epoch = self.jobs.epoch(document)
        running = self.registry.running(document.spec.uid)
        more = set(running.handover.workers) if running is not None else set()
        return set(epoch.workers) | set(document.epoch.workers) | more

    def _has_left(self, document: JobDocument, worker: WorkerId) -> bool:
        """Whether a worker has a job's state for nothing: it has no part in the epoch, and every
        worker that has one knows a batch after it. So no fence will ask for the former's seal, and
        nobody for its output."""
        uid, epoch = document.spec.uid, self.jobs.epoch(document)
        reports = self.fleet.reports(uid)
        idle = worker not in epoch.listeners() and self.registry.running(uid) is None
        known = worker in reports or worker in self.fleet.unreadable(uid)
        if not known or not idle or epoch.number > document.epoch.number:
            return False
        decided = [one.decided for w in epoch.listeners() if (one := reports.get(w)) is not None]
        return len(decided) == len(epoch.listeners()) and all(
            record is not None and record.position.time > document.epoch_from for record in decided
        )

    def _wish(self, document: JobDocument, worker: WorkerId) -> m.DesiredJob:
        spec = document.spec
        epoch = self.jobs.epoch(document)
        placed = {i for i, w in epoch.instances.items() if w == worker}
        running = self.registry.running(spec.uid)
        warm: tuple[m.Warm, ...] = ()
        checkpoint: tuple[Vnode, ...] = ()
        if running is not None:
            state = running.handover
            placed |= {i for i, w in state.instances.items() if w == worker}
            placed |= self._origins_on(worker, running)
            warm = tuple(
                m.Warm(vnode=vnode, instance=target, sources=sources_of(epoch, vnode, worker))
                for vnode, target in sorted(hm.warm_wishes(state).items())
                if state.instances[target] == worker
            )
            checkpoint = self._copied_from(worker, epoch, hm.warm_wishes(state), state)
        return m.DesiredJob(
            spec=spec,
            instances=tuple(sorted(placed)),
            warm=warm,
            hold=self.groups.holds(epoch, worker),
            checkpoint=(*checkpoint, *self._fresh(spec.uid, epoch, worker)),
            verify=self.verifications.wish(spec.uid),
        )

    def _fresh(self, uid: JobUid, epoch: Epoch, worker: WorkerId) -> tuple[Vnode, ...]:
        """Vnodes owned on a worker that somebody is about to copy, or has asked a checkpoint of."""
        through, until = self.asked.get(uid, (BASE, 0.0))
        report = self.fleet.reports(uid).get(worker)
        if report is not None and self.clock.monotonic() < until:
            return tuple(
                v
                for v, copy in sorted(report.vnodes.items())
                if epoch.owner_worker(v) == worker and (copy.covers or BASE) < through
            )
        copied = {
            vnode
            for other in epoch.listeners()
            for vnode in epoch.held_by(other)
            if epoch.role_of(other, vnode) is Role.JOINING
        }
        return tuple(v for v in sorted(copied) if epoch.owner_worker(v) == worker)

    def _origins_on(self, worker: WorkerId, running: OperationDocument) -> set[InstanceId]:
        """Origins here, retired ones too: they stay to tell when they applied the marker's batch,
        where the pause begins."""
        report = self.fleet.reports(running.handover.job).get(worker)
        here = set(report.instances) if report is not None else set()
        return here & set(running.view.origins.values())

    def _copied_from(
        self,
        worker: WorkerId,
        epoch: Epoch,
        moves: Mapping[Vnode, InstanceId],
        state: hm.Handover,
    ) -> tuple[Vnode, ...]:
        """Vnodes owned on a worker that a target is about to copy: a fresh checkpoint saves it
        the batches since the last."""
        copying = []
        for vnode, target in sorted(moves.items()):
            reports = self.fleet.reports(state.job)
            there = reports.get(state.instances[target])
            copy = there.vnodes.get(vnode) if there is not None else None
            new = copy is not None and copy.use is VnodeUse.COPYING and copy.copy_bytes == 0
            if new and epoch.owner_worker(vnode) == worker:
                copying.append(vnode)
        return tuple(copying)
