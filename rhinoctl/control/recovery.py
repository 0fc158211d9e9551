"""A store made anew from the workers: what is taken over, and what is not.

The reasons are in docs/protocol/controller-loss.md.

Invariants:

1. A session or an operation gets no number that an older store may have given out.
2. A job is taken over with the newest epoch known to be decided, and its query stays its own.
3. What an older store gave up stays given up until an epoch without it is decided.
"""

import uuid
from collections.abc import Iterable
from dataclasses import dataclass, field

from rhinoctl import limits
from rhinoctl.control.failovers import unknown_worker
from rhinoctl.control.fleet import Fleet
from rhinoctl.control.registry import FailoverDocument, JobDocument, Registry, Taken
from rhinoctl.errors import Refused
from rhinoctl.ids import BASE, BatchTime, JobUid, OpId, WorkerId
from rhinoctl.protocol import messages as m
from rhinoctl.protocol import views
from rhinoctl.protocol.claims import Claim, Keepsake, Memo
from rhinoctl.protocol.epochs import Epoch
from rhinoctl.protocol.failover import GivenUp, plan_cut
from rhinoctl.protocol.handover import Kind, Phase
from rhinoctl.protocol.phrases import workers as named
from rhinoctl.protocol.ports import Clock
from rhinoctl.protocol.recovery import Failover

_NO_MEMO = Memo(session=0, given=0, generation=0, query_id="", run_id="", instances=0)


@dataclass(slots=True)
class Recovery:
    """One recovery: the workers' reports, and what is made of them."""

    registry: Registry
    fleet: Fleet
    clock: Clock
    operation: int = 0
    _left_out: list[JobUid] = field(default_factory=list)
    _failovers: list[FailoverDocument] = field(default_factory=list)

    @property
    def refused(self) -> bool:
        """Whether some worker does not listen to the store as it is."""
        return bool(self.fleet.objections())

    def silent(self, without: Iterable[WorkerId]) -> list[WorkerId]:
        """The workers that have not told what they have, besides those that need not."""
        told = {name for name, report in self._reports().items() if self._is_whole(report)}
        return sorted(set(self.fleet.workers) - told - set(without))

    def check(self, request: views.RecoverRequest) -> None:
        """Raise UnknownWorker, and Refused for a worker that is left out though it answers."""
        for name in request.without:
            if name not in self.fleet.workers:
                raise unknown_worker(name, self.fleet)
        answers = sorted(set(request.without) & set(self.fleet.live()))
        if answers:
            raise Refused(
                f"{named(answers, 'answers', 'answer')}, and may know more than the others",
                remedy=f"leave out {' '.join(f'--without {name}' for name in answers)}",
            )

    def plan(self, request: views.RecoverRequest) -> tuple[views.RecoveryView, Taken]:
        """What is taken over. Raises Refused while a worker is silent; see also `check`."""
        self.check(request)
        silent = self.silent(request.without)
        if silent and self.refused:
            without = " ".join(f"--without {name}" for name in silent)
            raise Refused(
                f"{named(silent, 'does', 'do')} not answer: what is known only there would be lost",
                remedy=f"start what is silent; or go on without, if it is lost for good: {without}",
            )
        rulers = [one.ruler for one in self._reports().values() if one.ruler is not None]
        own = self.registry.claim
        known = [*rulers, *([own] if own is not None else [])]
        self.operation = max((claim.operation for claim in known), default=0)
        newest = max(rulers, key=lambda claim: claim.age, default=own)
        uids = {uid for report in self._reports().values() for uid in report.jobs}
        if not self.refused:
            uids -= self.registry.jobs.keys()
        jobs = [(d, v) for uid in sorted(uids) for d, v in self._job(uid)]
        number = max((claim.number for claim in known), default=0) + 1
        claim = Claim(
            reign=max((claim.reign for claim in known), default=0) + self.refused,
            store=uuid.uuid4().hex,
            run="recovery",
            number=number,
            operation=self.operation,
            draining=(newest.draining if newest is not None else frozenset())
            & frozenset(self.fleet.workers),
        )
        view = views.RecoveryView(
            needed=self.refused or bool(jobs),
            reign=claim.reign,
            objections=self.fleet.objections(),
            jobs=tuple(shown for _, shown in jobs),
            silent=tuple(sorted(request.without)),
            draining=tuple(sorted(claim.draining)),
            left_out=tuple(self._left_out),
            operation=self.operation,
        )
        return view, Taken(
            claim=claim, jobs=[document for document, _ in jobs], failovers=self._failovers
        )

    # --- what the workers tell -------------------------------------------------------------------

    def _reports(self) -> dict[WorkerId, m.WorkerReport]:
        known = ((name, self.fleet.workers[name].report) for name in self.fleet.live())
        return {name: report for name, report in known if report is not None}

    def _is_whole(self, report: m.WorkerReport) -> bool:
        known = set() if self.refused else self.registry.jobs.keys()
        return report.jobs.keys() - known <= report.keepsakes.keys()

    def _keepsakes(self, uid: JobUid) -> list[Keepsake]:
        """What the workers keep of a job, from the one that heard the newest claim on."""
        told = [
            (report.ruler.age if report.ruler is not None else (0, 0), name)
            for name, report in self._reports().items()
            if uid in report.keepsakes
        ]
        reports = self._reports()
        return [reports[name].keepsakes[uid] for _, name in sorted(told, reverse=True)]

    # --- one job ---------------------------------------------------------------------------------

    def _job(self, uid: JobUid) -> Iterable[tuple[JobDocument, views.RecoveredJob]]:
        """The job as it is taken over, or nothing if no worker has sealed anything of it."""
        keepsakes, reports = self._keepsakes(uid), self.fleet.reports(uid)
        begun = self._epoch(uid, keepsakes)
        if begun is None or not keepsakes:
            self._left_out.append(uid)
            return
        epoch, epoch_from, installed = begun
        memo = next((each.memo for each in keepsakes if each.memo is not None), _NO_MEMO)
        decided = [r.decided.position.time for r in reports.values() if r.decided is not None]
        newest = self.fleet.generation(uid)
        session = max(memo.session, self.fleet.session(uid))
        document = JobDocument(
            spec=keepsakes[0].spec,
            epoch=epoch,
            epoch_from=epoch_from,
            installed=installed,
            generation=memo.generation if memo.query_id else newest,
            session=session,
            query_id=memo.query_id,
            run_id=memo.run_id,
            instances=memo.instances,
            given=max(session, memo.given) + limits.SESSIONS_UNSEEN,
            forfeited={**memo.forfeited, **dict.fromkeys(sorted(epoch.forfeited), epoch_from)},
        )
        gone = memo.gone.within(epoch)
        if gone:
            self._failovers.append(self._failover(document, gone, max(decided, default=None)))
        yield (
            document,
            views.RecoveredJob(
                name=document.spec.name,
                uid=uid,
                epoch=epoch.number,
                batch=max((time for time in decided if time.batch >= 0), default=None),
                session=session,
                instances=len(epoch.instances),
                replication=document.spec.replication,
                query_id=memo.query_id,
                workers=tuple(sorted(reports)),
                gone=gone.names,
                note=self._note(epoch, memo, newest, reports.keys()),
            ),
        )

    def _epoch(
        self, uid: JobUid, keepsakes: list[Keepsake]
    ) -> tuple[Epoch, BatchTime, bool] | None:
        """The newest epoch, from where it holds, and whether the job was installed: after the loss
        of everybody's power the first record may be sealed and not known to be decided."""
        decided = self.fleet.newest_epoch(uid)
        if decided is not None:
            return (*decided, True)
        sealed = [
            (each.sealed, each.sealed_from)
            for each in keepsakes
            if each.sealed is not None and each.sealed_from is not None
        ]
        if not sealed:
            return None
        epoch, time = max(sealed, key=lambda found: (found[0].number, found[1]))
        return epoch, time, epoch.number > 1 or time > BASE

    def _note(self, epoch: Epoch, memo: Memo, newest: int, there: Iterable[WorkerId]) -> str:
        lacking = sorted((epoch.listeners() & self._reports().keys()) - set(there))
        notes = []
        if lacking:
            notes.append(f"{named(lacking, 'has', 'have')} nothing of it: was it being deleted?")
        if not memo.query_id:
            notes.append("its query is not known: the next one that starts is taken for it")
        elif newest > memo.generation:
            told = "a query that is not known has opened a new stream: the next one that starts"
            notes.append(f"{told}, and is not {memo.query_id}, is taken for it")
        return "; ".join(notes)

    def _failover(
        self, document: JobDocument, gone: GivenUp, decided: BatchTime | None
    ) -> FailoverDocument:
        """The failover that was under way: what it gave up may have been cut off already."""
        self.operation += 1
        now = self.clock.wall()
        plan = plan_cut(document.epoch, gone)
        state = Failover(
            op=OpId(f"op-{self.operation}"),
            job=document.spec.uid,
            gone=gone,
            why="given up before the controller lost its store",
            decided=decided,
            times={Phase.ARMED.value: now},
        )
        view = views.OperationView(
            id=state.op,
            job=document.spec.name,
            kind=Kind.FAILOVER,
            phase=state.phase,
            moves=plan.heirs,
            origins={v: document.epoch.routes[v].owner for v in plan.heirs},
            reason=state.why,
            times=state.times,
            marker=None,
            pause_ms=None,
            total_ms=None,
            bytes_moved=0,
            state_bytes=0,
            progress="waiting for the cut",
            lost=gone.names,
        )
        return FailoverDocument(failover=state, view=view)
