"""The batch driver: the holder of a job's session, inside the query's `foreachBatch` callback.

It takes a session from the controller, runs every batch through the batch machine, and hears from
the controller, on a thread of its own, which epoch is proposed. One lock orders the two; batches
themselves run in Spark's callback thread only.
"""

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from rhinoctl import limits
from rhinoctl.control.client import ControlClient
from rhinoctl.errors import (
    DeadlineExceeded,
    Fenced,
    IdentityChanged,
    NeedsRepair,
    NotRunning,
    PoisonBatch,
    RhinoError,
    WorkerUnreachable,
)
from rhinoctl.ids import BatchTime, JobName, WorkerId
from rhinoctl.protocol import batches, views, watermarks
from rhinoctl.protocol.diagnosis import poison_remedy
from rhinoctl.protocol.epochs import Epoch
from rhinoctl.protocol.messages import Header
from rhinoctl.protocol.ports import Clock, Wire
from rhinoctl.protocol.records import DecisionRecord
from rhinoctl.protocol.sessions import Lineage
from rhinoctl.spark.query import BatchFacts
from rhinoctl.wire.holder import BatchRun, StageFn

log = logging.getLogger("rhino.driver")


@dataclass(frozen=True, slots=True, kw_only=True)
class Decided:
    """A batch that is decided and applied, with where its time went, in seconds by phase."""

    state: batches.BatchState
    seconds: dict[str, float]


class BatchDriver:
    """One job's batches in one run of its query. `on_wake` makes Spark run a batch soon;
    `on_due` also one that would otherwise be the last."""

    def __init__(
        self,
        *,
        client: ControlClient,
        wire: Wire,
        clock: Clock,
        name: JobName,
        operator: str,
        delays_ms: tuple[int, ...],
        on_wake: Callable[[], object],
        on_due: Callable[[], object],
    ) -> None:
        self._client = client
        self._wire = wire
        self._clock = clock
        self._name = name
        self._operator = operator
        self._delays_ms = delays_ms
        self._on_wake = on_wake
        self._on_due = on_due
        self._lock = threading.Lock()
        self._lineage: Lineage | None = None
        self._run_id = ""
        self._generation = 0
        self._workers: Mapping[WorkerId, str] = {}
        self._proposal: Epoch | None = None
        self._revision = 0
        self._wake = 0
        self._superseded = False
        self._suspected: dict[WorkerId, float] = {}
        self._closing = threading.Event()
        self._ear: threading.Thread | None = None

    def header(self, stage: batches.Stage) -> Header:
        """The header of an attempt's puts."""
        lineage = self._lineage
        assert lineage is not None
        return replace(lineage.header(), session=stage.attempt.session, epoch=stage.epoch.number)

    def decide(
        self,
        facts: BatchFacts,
        prepare: Callable[[], object],
        stage: StageFn,
        *,
        takeover: bool,
    ) -> Decided:
        """Take one batch of Spark's to its end. Raises what `_error` names.

        `prepare` is called while the workers open the batch, unless it may be decided already.
        """
        for _ in range(limits.SESSIONS_A_BATCH):
            lineage = self._session(facts, takeover=takeover)
            task = batches.Task(
                time=BatchTime(self._generation, facts.batch),
                start_offsets=facts.start_offsets,
                end_offsets=facts.end_offsets,
                batch_time_ms=facts.batch_time_ms,
                operator=self._operator,
                delays_ms=self._delays_ms,
            )
            run = BatchRun(
                wire=self._wire,
                clock=self._clock,
                lineage=lineage,
                task=task,
                addresses=self._workers,
                stage=stage,
                proposal=self._offered,
                silent=self.suspect,
            )
            if run.state.phase is batches.Phase.OPENING:
                prepare()
            state = run.run()
            seconds = {phase.value: spent for phase, spent in run.seconds.items()}
            if state.phase is batches.Phase.DONE:
                self._advance(state.lineage)
                self._wake_for_eviction(state.record)
                if state.replayed:
                    log.info("batch-already-applied job=%s batch=%s", self._name, task.time)
                return Decided(state=state, seconds=seconds)
            assert state.fault is not None
            if state.fault.kind is not batches.FaultKind.FENCED:
                self._advance(replace(state.lineage, fenced=False))
                break
            log.info("session-fenced job=%s detail=%s", self._name, state.fault.detail)
            self._forget_session()
        assert state.fault is not None
        raise _error(self._name, state.fault)

    def _wake_for_eviction(self, record: DecisionRecord | None) -> None:
        """Ask for one more batch if the watermark rises with it: Spark's plan has no state, so that
        it would wait for rows (its own "no-data batch")."""
        assert record is not None
        if watermarks.rises(record.watermarks, self._delays_ms):
            self._on_due()

    # --- the session -----------------------------------------------------------------------------

    def _session(self, facts: BatchFacts, *, takeover: bool) -> Lineage:
        """The session's lineage; another run of the query takes another session."""
        if self._lineage is not None and self._run_id == facts.run_id:
            return self._lineage
        self._forget_session()
        request = views.TakeSession(
            query_id=facts.query_id, run_id=facts.run_id, batch=facts.batch, takeover=takeover
        )
        grant = self._client.take_session(self._name, request)
        lineage = Lineage(
            cluster=grant.cluster, job=grant.job, session=grant.session, epoch=grant.epoch
        )
        with self._lock:
            self._lineage = lineage
            self._run_id = facts.run_id
            self._generation = grant.generation
            self._workers = grant.workers
            self._proposal = grant.cut
            self._revision = 0
            self._superseded = False
        log.info("session job=%s session=%d batch=%d", self._name, grant.session, facts.batch)
        if self._ear is None:
            self._ear = threading.Thread(target=self._listen, name="rhino-poll", daemon=True)
            self._ear.start()
        return lineage

    def _forget_session(self) -> None:
        with self._lock:
            self._lineage = None
            self._proposal = None

    def _advance(self, lineage: Lineage) -> None:
        with self._lock:
            self._lineage = lineage

    # --- the controller's offers -----------------------------------------------------------------

    def _offered(self) -> Epoch | None:
        """The newest proposal, as the batch machine asks for it when rows are staged."""
        with self._lock:
            return self._proposal

    def suspect(self, worker: WorkerId) -> None:
        """A worker was not reached: have the controller look at it now, without waiting for that.
        One that is told already is not told again for a while."""
        now = self._clock.monotonic()
        with self._lock:
            lineage = self._lineage
            if lineage is None or now < self._suspected.get(worker, 0.0):
                return
            self._suspected[worker] = now + limits.SUSPECT_EVERY_S
        suspicion = views.Suspicion(session=lineage.session, worker=worker)
        threading.Thread(
            target=self._tell, args=(suspicion,), name="rhino-suspect", daemon=True
        ).start()

    def _tell(self, suspicion: views.Suspicion) -> None:
        try:
            self._client.suspect(self._name, suspicion)
        except RhinoError as fault:
            log.info("suspicion-not-told worker=%s code=%s", suspicion.worker, fault.code)

    def _listen(self) -> None:
        """Poll for offers until closed. While the controller is down batches go on without."""
        while not self._closing.is_set():
            report = self._report()
            if report is None:
                self._closing.wait(limits.POLL_PAUSE_S)
                continue
            try:
                self._hear(self._client.poll(self._name, report), report.session)
            except (NotRunning, DeadlineExceeded):
                self._closing.wait(limits.POLL_WAIT_S)
            except RhinoError as fault:
                log.warning("poll-refused job=%s code=%s", self._name, fault.code)
                self._closing.wait(limits.POLL_WAIT_S)

    def _report(self) -> views.DriverReport | None:
        with self._lock:
            lineage = self._lineage
            if lineage is None or self._superseded:
                return None
            return views.DriverReport(
                session=lineage.session,
                epoch=lineage.epoch.number if lineage.fenced else 0,
                batch=lineage.last.time if lineage.last is not None else None,
                revision=self._revision,
            )

    def _hear(self, offer: views.Offer, session: int) -> None:
        with self._lock:
            if self._lineage is None or self._lineage.session != session:
                return
            if not offer.live:
                self._superseded = True
            proposed = offer.proposal is not None and offer.proposal != self._proposal
            woken = offer.wake != self._wake and self._wake != 0
            self._proposal = offer.proposal
            self._revision = offer.revision
            self._wake = offer.wake
        if proposed or woken:
            self._on_wake()

    def close(self) -> None:
        """End the polling thread."""
        self._closing.set()
        if self._ear is not None:
            self._ear.join(limits.POLL_WAIT_S + 1.0)


def _error(name: JobName, fault: batches.Fault) -> RhinoError:
    """A batch's fault as an error with a remedy."""
    kinds = batches.FaultKind
    workers = ", ".join(fault.workers)
    match fault.kind:
        case kinds.UNREACHABLE:
            return WorkerUnreachable(
                f"job {name}: {fault.detail}; silent: worker {workers}",
                remedy="see `rhinoctl status`; bring the worker's agent back and start the query"
                " again: nothing was lost",
            )
        case kinds.FENCED:
            return Fenced(
                f"job {name}: another holder has fenced this session: {fault.detail}",
                remedy="only one query may write to a job; stop one of the two",
            )
        case kinds.OFFSETS_DIFFER:
            return IdentityChanged(
                f"job {name}: {fault.detail}",
                remedy="restore Spark's checkpoint directory as it was, or have the decided offsets"
                f" written into it: `rhinoctl job repair-offsets {name} --checkpoint DIR`",
            )
        case kinds.OTHER_OPERATOR:
            return IdentityChanged(
                f"job {name}: {fault.detail}",
                remedy="use the declaration of the running job, or another job name",
            )
        case kinds.WRONG_BATCH:
            return IdentityChanged(
                f"job {name}: {fault.detail}",
                remedy=f"restore Spark's checkpoint directory, or accept a new stream over the same"
                f" state: `rhinoctl job bind {name} --new-stream`",
            )
        case kinds.RELEASED:
            return IdentityChanged(
                f"job {name}: {fault.detail}",
                remedy="start the query again; if Spark asks for this batch once more, its log has"
                " lost the commit of it, and the batch is applied: have that written again with"
                f" `rhinoctl job repair-offsets {name} --checkpoint DIR`",
            )
        case kinds.POISON:
            return PoisonBatch(
                f"job {name}: {fault.detail}",
                remedy=poison_remedy(name),
            )
        case _:
            return NeedsRepair(
                f"job {name}: {fault.kind.value}: {fault.detail}",
                remedy="see `rhinoctl status` and the agents' logs; nothing was lost",
            )
