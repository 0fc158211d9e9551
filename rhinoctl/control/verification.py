"""Rounds of verification: asked for by people, wished of workers, gathered from their reports.

A round is in memory only. Whoever waits for it names it each time, so that a controller that has
been started again goes on with it (docs/protocol/verification.md).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from rhinoctl import limits
from rhinoctl.control.fleet import Fleet
from rhinoctl.control.jobs import Jobs
from rhinoctl.control.registry import JobDocument
from rhinoctl.errors import Busy, UnknownVnode
from rhinoctl.ids import JobUid, Vnode, WorkerId
from rhinoctl.protocol import messages as m
from rhinoctl.protocol import views
from rhinoctl.protocol.epochs import Epoch
from rhinoctl.protocol.ports import Clock
from rhinoctl.protocol.verification import VerifyReport, VerifyWish


@dataclass(frozen=True, slots=True)
class Asked:
    """A round that somebody waits for, until then."""

    wish: VerifyWish
    until: float


@dataclass(slots=True)
class Verifications:
    """One round a job; `begun` were begun here."""

    fleet: Fleet
    jobs: Jobs
    clock: Clock
    asked: dict[JobUid, Asked] = field(default_factory=dict)
    begun: int = 0

    def verify(self, document: JobDocument, request: views.VerifyRequest) -> views.VerifyView:
        """Begin a round, or go on with the one that is named, and tell how far it is. Raises
        UnknownVnode, and Busy if somebody waits for a round of something else."""
        uid, epoch = document.spec.uid, self.jobs.epoch(document)
        strange = [v for v in request.vnodes if not 0 <= v < len(epoch.routes)]
        if strange:
            raise UnknownVnode(
                f"job {document.spec.name} has no vnode {strange[0]}",
                remedy=f"its vnodes are 0 to {len(epoch.routes) - 1}",
            )
        wish = self._round(document, epoch, request)
        self.asked[uid] = Asked(wish, self.clock.monotonic() + limits.VERIFY_WISH_S)
        view = _view(document, epoch, wish, self.fleet.reports(uid))
        unread = self.fleet.unreadable(uid).items()
        return replace(view, unreadable={worker: one.fault for worker, one in unread})

    def _round(
        self, document: JobDocument, epoch: Epoch, request: views.VerifyRequest
    ) -> VerifyWish:
        """The round that a request is about: the one it names, one that is under way, a new one."""
        vnodes, current = tuple(sorted(set(request.vnodes))), self.wish(document.spec.uid)
        new = request.round or f"{self.clock.wall():.3f}-{self.begun + 1}"
        wish = VerifyWish(round=new, vnodes=vnodes, deep=request.deep)
        if current is not None and request.round != current.round:
            reports = self.fleet.reports(document.spec.uid)
            if not _view(document, epoch, current, reports).over:
                if request.round or (current.vnodes, current.deep) != (vnodes, request.deep):
                    raise _busy(document, current)
                return current
        self.begun += not request.round
        return wish

    def wish(self, uid: JobUid) -> VerifyWish | None:
        """The round that workers shall be at."""
        asked = self.asked.get(uid)
        if asked is None or self.clock.monotonic() >= asked.until:
            return None
        return asked.wish


def _busy(document: JobDocument, current: VerifyWish) -> Busy:
    what = f"{len(current.vnodes)} vnodes" if current.vnodes else "all vnodes"
    return Busy(
        f"job {document.spec.name} is being verified already: {what}"
        f"{', deep' if current.deep else ''}",
        remedy="wait for that command; if it was ended, repeat yours in"
        f" {limits.VERIFY_WISH_S:.0f} s",
    )


def _view(
    document: JobDocument,
    epoch: Epoch,
    wish: VerifyWish,
    reports: Mapping[WorkerId, m.JobReport],
) -> views.VerifyView:
    told = {
        worker: report.verified
        for worker, report in reports.items()
        if report.verified is not None and report.verified.round == wish.round
    }
    copies = tuple(
        _copy(vnode, worker, told.get(worker))
        for vnode in wish.vnodes or map(Vnode, epoch.vnodes())
        for worker in epoch.full_holders(vnode)
    )
    return views.VerifyView(
        job=document.spec.name,
        round=wish.round,
        deep=wish.deep,
        copies=copies,
        workers=tuple(
            views.VerifyingWorker(
                worker=worker,
                live=worker in reports,
                done_bytes=told[worker].done_bytes if worker in told else 0,
                total_bytes=told[worker].total_bytes if worker in told else 0,
            )
            for worker in sorted({copy.worker for copy in copies})
        ),
    )


def _copy(vnode: Vnode, worker: WorkerId, report: VerifyReport | None) -> views.VerifiedCopy:
    return views.VerifiedCopy(
        vnode=vnode,
        worker=worker,
        told=report is not None and vnode in report.vnodes,
        broken=report is not None and vnode in report.broken,
        checkpoints=report.vnodes.get(vnode, ()) if report is not None else (),
    )
