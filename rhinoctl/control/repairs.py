"""What doctor and repair need of the controller: the evidence, and a fresh look at an operation."""

from collections.abc import Callable
from dataclasses import dataclass

from rhinoctl import limits
from rhinoctl.control.failovers import Failovers
from rhinoctl.control.fleet import Fleet
from rhinoctl.control.groups import Groups
from rhinoctl.control.jobs import Jobs
from rhinoctl.control.operations import Operations
from rhinoctl.control.registry import FailoverDocument, JobDocument, OperationDocument, Registry
from rhinoctl.ids import OpId, WorkerId
from rhinoctl.protocol import evidence as seen_of
from rhinoctl.protocol import views
from rhinoctl.protocol.ports import Clock
from rhinoctl.protocol.waiting import failover_waits_for, waits_for


@dataclass(slots=True)
class Repairs:
    """Reads registry and fleet; all it changes is when workers are asked next."""

    cluster: str
    registry: Registry
    fleet: Fleet
    jobs: Jobs
    groups: Groups
    failovers: Failovers
    operations: Operations
    clock: Clock

    # --- an operation ----------------------------------------------------------------------------

    def repair(self, op: str) -> Callable[[], views.RepairView | None]:
        """Ask the workers of an operation again. Returns what tells how it stands once they have
        answered (None: not yet). Raises UnknownOperation."""
        before = self.registry.view(op)
        document = self.registry.find(before.job)
        if document is None or self._has_ended(op):
            return lambda: self._repaired(op, frozenset())
        asked = self.jobs.epoch(document).listeners() & self.fleet.workers.keys()
        asked_at = self.clock.monotonic()
        for worker in asked:
            self.fleet.suspect(worker)

        def ready() -> views.RepairView | None:
            told = [self.fleet.workers[worker].told_at for worker in asked]
            answered = all(at is not None and at > asked_at for at in told)
            return self._repaired(op, asked) if answered else None

        return ready

    def repaired(self, op: str) -> views.RepairView:
        """How an operation stands, though not all workers have answered."""
        document = self.registry.find(self.registry.view(op).job)
        asked = self.jobs.epoch(document).listeners() if document is not None else frozenset()
        return self._repaired(op, asked & self.fleet.workers.keys())

    def _has_ended(self, op: str) -> bool:
        failover = self.registry.failovers.get(OpId(op))
        if failover is not None:
            return failover.failover.ended
        return self.registry.operation(op).handover.ended

    def _repaired(self, op: str, asked: frozenset[WorkerId]) -> views.RepairView:
        live = set(self.fleet.live())
        return views.RepairView(
            operation=self.registry.view(op),
            asked=tuple(sorted(asked)),
            silent=tuple(sorted(asked - live)),
            waits_for=self._waits_for(op),
        )

    def _waits_for(self, op: str) -> tuple[str, ...]:
        failover = self.registry.failovers.get(OpId(op))
        held = failover or self.registry.operation(op)
        document = self.registry.find(held.view.job)
        return () if document is None else self._of(held, document)

    def _of(
        self, held: FailoverDocument | OperationDocument, document: JobDocument
    ) -> tuple[str, ...]:
        facts = self.operations.facts(document)
        if isinstance(held, FailoverDocument):
            return failover_waits_for(held.failover, facts)
        return waits_for(held.handover, facts)

    # --- everything ------------------------------------------------------------------------------

    def evidence(self, store_fault: str) -> seen_of.ClusterEvidence:
        """All that is known now."""
        running = [d for d in self.registry.operations.values() if not d.handover.ended]
        failing = [d for d in self.registry.failovers.values() if not d.failover.ended]
        under_way: list[OperationDocument | FailoverDocument] = [*running, *failing]
        return seen_of.ClusterEvidence(
            cluster=self.cluster,
            wall=self.clock.wall(),
            store_fault=store_fault,
            replay_target_s=limits.REPLAY_TARGET_S,
            workers=tuple(map(self._worker, self.fleet.workers)),
            jobs=tuple(map(self._job, self.registry.jobs.values())),
            operations=tuple(map(self._running, under_way)),
            objections=self.fleet.objections(),
        )

    def _running(self, held: OperationDocument | FailoverDocument) -> seen_of.OperationEvidence:
        if isinstance(held, FailoverDocument):
            deadline = max(held.failover.times.values()) + limits.FAILOVER_LATE_S
        else:
            deadline = held.handover.deadline
        waits = self._waits_for(held.view.id)
        return seen_of.OperationEvidence(view=held.view, deadline=deadline, waits_for=waits)

    def _worker(self, name: WorkerId) -> seen_of.WorkerEvidence:
        seen = self.fleet.workers[name]
        return seen_of.WorkerEvidence(
            id=name,
            seen_s=None if seen.at is None else self.clock.monotonic() - seen.at,
            live=name in self.fleet.live(),
            verdict=self.failovers.verdict(name),
            detail=" ".join(seen.detail.split())[:200],
            draining=name in self.registry.draining,
            report=seen.report,
        )

    def _job(self, document: JobDocument) -> seen_of.JobEvidence:
        uid, epoch = document.spec.uid, self.jobs.epoch(document)
        running, recovering = self.registry.running(uid), self.registry.recovering(uid)
        under_way = recovering or running
        losses = self.groups.losses(document, epoch)
        return seen_of.JobEvidence(
            name=document.spec.name,
            uid=uid,
            deleted=document.deleted,
            live=self.jobs.may_be_live(uid),
            session=document.session,
            generation=document.generation,
            query_id=document.query_id,
            replication=document.spec.replication,
            kept=document.epoch.number,
            epoch=epoch,
            epoch_from=document.epoch_from,
            lacking=self.groups.lacking(document, epoch),
            replay_s=max((loss.seconds for loss in losses if loss.seconds), default=None),
            operation=under_way.view.id if under_way is not None else "",
            braked=self.failovers.braked.get(uid, ""),
        )
