"""`op revert`: the layout before a complete operation, by another operation."""

from dataclasses import dataclass

from rhinoctl.control.failovers import Failovers
from rhinoctl.control.jobs import Jobs
from rhinoctl.control.operations import Operations
from rhinoctl.control.registry import JobDocument, OperationDocument, Registry
from rhinoctl.errors import CannotRevert
from rhinoctl.ids import OpId, Vnode
from rhinoctl.protocol import handover as hm
from rhinoctl.protocol import views
from rhinoctl.protocol.reverting import Way, plan_revert
from rhinoctl.protocol.waiting import listed


@dataclass(slots=True)
class Reverts:
    """Reads what an operation did, and begins one that does the opposite."""

    registry: Registry
    jobs: Jobs
    failovers: Failovers
    operations: Operations

    def revert(self, op: str, request: views.RevertRequest) -> views.OperationView:
        """Move back what an operation has moved. Raises UnknownOperation, CannotRevert, Busy and
        Refused; nothing is begun then."""
        self._check_kind(op)
        done = self.registry.operation(op)
        self._check_complete(done)
        document = self.operations.idle(done.view.job, dry_run=request.dry_run)
        self._check_job(done, document)
        epoch = self.jobs.epoch(document)
        way = plan_revert(epoch, done.handover, done.view.origins, self.failovers.usable())
        if way.elsewhere:
            raise self._moved_on(done, way.elsewhere)
        if way.stays and not way.plan.moves:
            raise CannotRevert(
                f"nothing of {op} can go back: {_why(way)}",
                remedy="let a drained worker have vnodes again (`rhinoctl drain WORKER --undo`),"
                f" or choose instances: `rhinoctl handover {done.view.job} --vnodes LIST --to I`",
            )
        rescaled = done.handover.kind is hm.Kind.RESCALE
        return self.operations.begin(
            *(document, epoch, hm.Kind.RESCALE if rescaled else hm.Kind.HANDOVER, way.plan),
            dry_run=request.dry_run,
            reverts=done.view.id,
            reason=f"not all of {op} goes back: {_why(way)}" if way.stays else "",
        )

    def _check_kind(self, op: str) -> None:
        failover = self.registry.failovers.get(OpId(op))
        if failover is not None:
            raise CannotRevert(
                f"failover {op} cannot be reverted: it gave up {', '.join(failover.view.lost)},"
                " and whoever comes back begins with nothing of its own",
                remedy="once the worker is back, `rhinoctl rescale` adds instances again and"
                " `rhinoctl handover` moves vnodes to it",
            )

    def _check_complete(self, done: OperationDocument) -> None:
        view = done.view
        if view.phase is hm.Phase.ABORTED:
            raise CannotRevert(
                f"{view.kind.value} {view.id} was aborted: it has moved nothing",
                remedy=f"there is nothing to do; see `rhinoctl op show {view.id}`",
            )
        if view.phase is not hm.Phase.COMPLETE:
            raise CannotRevert(
                f"{view.kind.value} {view.id} is {view.phase.value}, not complete",
                remedy=f"end it at the old layout: `rhinoctl op abort {view.id}`",
            )

    def _check_job(self, done: OperationDocument, document: JobDocument) -> None:
        if document.spec.uid != done.handover.job:
            raise CannotRevert(
                f"{done.view.id} was of another job {done.view.job}, which is deleted",
                remedy=f"see `rhinoctl job show {done.view.job}` for what there is now",
            )

    def _moved_on(self, done: OperationDocument, vnodes: tuple[Vnode, ...]) -> CannotRevert:
        """The error that names who has moved a vnode since."""
        first = vnodes[0]
        later = [
            view
            for view in self.registry.views()
            if view.job == done.view.job
            and view.phase is hm.Phase.COMPLETE
            and first in view.moves
            and _number(view.id) > _number(done.view.id)
        ]
        which = listed(vnodes)
        if not later:
            return CannotRevert(
                f"vnode {which} of {done.view.id} is not where it was moved to",
                remedy=f"see `rhinoctl job show {done.view.job}`; `rhinoctl handover` moves vnodes",
            )
        last = later[0]
        back = f"`rhinoctl op revert {last.id}`"
        if last.kind is hm.Kind.FAILOVER:
            back = f"`rhinoctl handover {last.job} --vnodes {first} --to INSTANCE`"
        return CannotRevert(
            f"vnode {which} of {done.view.id} was moved on by {last.kind.value} {last.id},"
            f" to {last.moves[first]}",
            remedy=f"take that back first: {back}",
        )


def _number(op: str) -> int:
    return int(op.removeprefix("op-"))


def _why(way: Way) -> str:
    """Which vnodes stay, and why."""
    reasons: dict[str, list[Vnode]] = {}
    for vnode, reason in way.stays.items():
        reasons.setdefault(reason, []).append(vnode)
    return "; ".join(f"vnode {listed(vnodes)}: {why}" for why, vnodes in reasons.items())
