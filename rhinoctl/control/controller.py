"""The controller's loop: one thread that takes answers from workers and calls from the API.

It is never on the path of a record. What it promises it has persisted; what it shows it observes.
"""

import logging
import queue
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from rhinoctl import limits
from rhinoctl.control.disks import ANSWER_S, DiskDesk
from rhinoctl.control.failovers import Failovers
from rhinoctl.control.fleet import Fleet
from rhinoctl.control.groups import Groups
from rhinoctl.control.jobs import Jobs, check_replication, not_ready
from rhinoctl.control.operations import Operations
from rhinoctl.control.overview import RECOVER, Overview, store_refused
from rhinoctl.control.recovery import Recovery
from rhinoctl.control.registry import Registry
from rhinoctl.control.repairs import Repairs
from rhinoctl.control.reverts import Reverts
from rhinoctl.control.settings import ControllerSettings
from rhinoctl.control.verification import Verifications
from rhinoctl.control.wishes import Wishes
from rhinoctl.errors import Busy, DeadlineExceeded, Degraded, RhinoError, StoreRefused
from rhinoctl.ids import JobUid
from rhinoctl.protocol import views
from rhinoctl.protocol.disks import DiskList, DiskRequest
from rhinoctl.protocol.evidence import ClusterEvidence
from rhinoctl.protocol.liveness import Patience
from rhinoctl.protocol.ports import Clock, Store, Wire
from rhinoctl.wire import beacon

log = logging.getLogger("rhino.controller")


Arguments = ParamSpec("Arguments")
Found = TypeVar("Found")


@dataclass(slots=True)
class Waiting:
    """A call whose answer comes later: `ready` gives it, or None for not yet; `late` at the
    deadline gives it all the same, or raises."""

    ready: Callable[[], Any]
    late: Callable[[], Any]
    deadline: float
    answer: "Future[Any]" = field(default_factory=Future)


def _acting(
    method: "Callable[Concatenate[Controller, Arguments], Found]",
) -> "Callable[Concatenate[Controller, Arguments], Found]":
    """A call that changes something, or relies on what the store says: refused while a worker
    objects to the store. Raises StoreRefused."""

    @wraps(method)
    def checked(self: "Controller", /, *args: Arguments.args, **more: Arguments.kwargs) -> Found:
        self.check_accepted()
        return method(self, *args, **more)

    return checked


class Controller:
    """Every call below `call` runs in the loop's thread."""

    def __init__(
        self,
        settings: ControllerSettings,
        *,
        clock: Clock,
        wire: Wire,
        store: Store,
        listening: Callable[[str], bool | None] | None = None,
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._wire = wire
        self._store = store
        self._listening = listening or beacon.Looking()
        self._calls: queue.Queue[tuple[Callable[[], Any], Future[Any]]] = queue.Queue(
            limits.CALLS_WAITING_MAX
        )
        self._waiting: list[Waiting] = []
        self._deleted_at: dict[JobUid, float] = {}
        self._take_up()

    def _take_up(self) -> None:
        """Go on from what the store has: at the start, and when it was made anew."""
        settings, clock, wire = self._settings, self._clock, self._wire
        self._registry = Registry(self._store, settings.store)
        self._fleet = Fleet(settings.cluster, settings.workers, wire, clock, settings.capacities)
        self._jobs = Jobs(settings.cluster, self._registry, self._fleet, wire, clock)
        self._failovers = Failovers(
            registry=self._registry,
            fleet=self._fleet,
            jobs=self._jobs,
            clock=clock,
            patience=Patience(lease_s=settings.lease_s, agent_restart_s=settings.agent_restart_s),
            automatic=settings.auto_failover,
            listening=self._listening,
        )
        self._groups = Groups(
            registry=self._registry,
            fleet=self._fleet,
            clock=clock,
            usable=self._failovers.usable,
        )
        self._operations = Operations(
            registry=self._registry,
            fleet=self._fleet,
            jobs=self._jobs,
            groups=self._groups,
            failovers=self._failovers,
            clock=clock,
        )
        self._disks = DiskDesk(settings.cluster, self._fleet, wire, clock)
        self._verifications = Verifications(fleet=self._fleet, jobs=self._jobs, clock=clock)
        self._reverts = Reverts(self._registry, self._jobs, self._failovers, self._operations)
        self._repairs = Repairs(
            *(settings.cluster, self._registry, self._fleet, self._jobs, self._groups),
            failovers=self._failovers,
            operations=self._operations,
            clock=clock,
        )
        self._wishes = Wishes(
            registry=self._registry,
            fleet=self._fleet,
            jobs=self._jobs,
            groups=self._groups,
            verifications=self._verifications,
            clock=clock,
        )
        self._overview = Overview(
            cluster=settings.cluster,
            registry=self._registry,
            fleet=self._fleet,
            jobs=self._jobs,
            groups=self._groups,
            failovers=self._failovers,
            clock=clock,
        )

    # --- from API threads ------------------------------------------------------------------------

    def call(self, function: Callable[[], Any]) -> Any:
        """Run a function in the loop and return what it returns, or what it waits for. Raises
        Busy if the loop did not come to it, DeadlineExceeded if it is not known to have ended."""
        answer = self.submit(function)
        try:
            found = answer.result(limits.CALL_WAIT_S)
            if isinstance(found, Waiting):
                return found.answer.result(limits.START_WAIT_S + limits.CALL_WAIT_S)
        except TimeoutError:
            if answer.cancel():
                raise Busy(
                    f"the controller did not come to the call in {limits.CALL_WAIT_S:.0f} s;"
                    " nothing was done",
                    remedy="try again in a moment; see the controller's log if it stays so",
                ) from None
            raise DeadlineExceeded(
                "the controller took the call, but has not answered it",
                remedy="see `rhinoctl status` and `rhinoctl op list` before you repeat it",
            ) from None
        return found

    def submit(self, function: Callable[[], Any]) -> "Future[Any]":
        """Have a function run in the loop; the result may be a `Waiting`. Raises Busy."""
        answer: Future[Any] = Future()
        try:
            self._calls.put_nowait((function, answer))
        except queue.Full:
            raise Busy(
                "the controller has too many calls waiting", remedy="try again in a moment"
            ) from None
        return answer

    # --- the loop --------------------------------------------------------------------------------

    def step(self, timeout_s: float) -> None:
        """Take what has come, then look at everything that is under way.

        Calls wait until it is known which workers answer: a controller that has just started would
        refuse what needs them. Nor does it act before, or while a worker objects to its store. What
        cannot be persisted has not happened, and is tried again.
        """
        envelope = self._wire.receive(timeout_s)
        while envelope is not None:
            if not (self._fleet.deliver(envelope) or self._disks.deliver(envelope)):
                self._jobs.deliver(envelope)
            envelope = self._wire.receive(0)
        if self._fleet.settled():
            self._take_calls()
        try:
            self._registry.begin()
            self._failovers.look()
            if self._fleet.settled() and not self._fleet.objections():
                self._act()
        except OSError as fault:
            self._not_persisted(str(fault))
        else:
            self._not_persisted("")
        self._fleet.tick(self._wishes.of, self._period_s(), self._registry.claim)
        self._answer_waiting()

    def _act(self) -> None:
        self._jobs.tick()
        self._operations.tick()
        self._drop_deleted()

    def _not_persisted(self, fault: str) -> None:
        if fault != self._overview.store_fault:
            log.warning("store-fault fault=%s", fault or "none")
            self._overview.store_fault = fault

    def _take_calls(self) -> None:
        while not self._calls.empty():
            function, answer = self._calls.get_nowait()
            if not answer.set_running_or_notify_cancel():
                continue
            try:
                found = function()
            except RhinoError as fault:
                answer.set_exception(fault)
                continue
            except OSError as fault:
                answer.set_exception(_cannot_persist(fault))
                continue
            if isinstance(found, Waiting):
                self._waiting.append(found)
            answer.set_result(found)

    def _answer_waiting(self) -> None:
        now = self._clock.monotonic()
        still = []
        for waiting in self._waiting:
            try:
                found = waiting.ready()
                if found is None and now >= waiting.deadline:
                    found = waiting.late()
            except RhinoError as fault:
                waiting.answer.set_exception(fault)
                continue
            except OSError as fault:
                waiting.answer.set_exception(_cannot_persist(fault))
                continue
            if found is None:
                still.append(waiting)
            else:
                waiting.answer.set_result(found)
        self._waiting = still

    def _period_s(self) -> float:
        moving = any(not d.handover.ended for d in self._registry.operations.values())
        moving |= any(not d.failover.ended for d in self._registry.failovers.values())
        starting = any(not d.installed for d in self._registry.jobs.values())
        busy = moving or starting or bool(self._waiting and starting)
        return limits.HEARTBEAT_BUSY_S if busy else limits.HEARTBEAT_S

    def _drop_deleted(self) -> None:
        """Forget a deleted job once every worker, told that it is, reports it no more."""
        for document in list(self._registry.jobs.values()):
            uid = document.spec.uid
            if not document.deleted:
                continue
            told = self._fleet.all_told_since(self._deleted_at.get(uid, float("-inf")))
            if told and not self._fleet.reports(uid):
                self._registry.drop_job(uid)
                self._jobs.forget(uid)
                self._fleet.forget(uid)
                self._deleted_at.pop(uid, None)
                log.info("job-forgotten job=%s", uid)

    # --- calls -----------------------------------------------------------------------------------

    def check_accepted(self) -> None:
        """Raise StoreRefused if a worker objects to this controller's store."""
        objections = self._fleet.objections()
        if objections:
            raise StoreRefused(store_refused(objections), remedy=RECOVER)

    def status(self) -> views.StatusView:
        return self._overview.status()

    def job_list(self) -> views.JobList:
        return self._overview.job_list()

    def job(self, name: str) -> views.JobView:
        return self._overview.job(self._registry.job(name))

    def recover(self, request: views.RecoverRequest) -> Waiting:
        """Make the store anew from what the workers have, if they object to it; or take over jobs
        that it has not. Raises Refused and UnknownWorker; nothing is written then, nor by a dry
        run."""
        recovery = Recovery(self._registry, self._fleet, self._clock)
        recovery.check(request)

        def ready() -> views.RecoveryView | None:
            waits = recovery.refused and recovery.silent(request.without)
            return None if waits else self._recover(request)

        return Waiting(
            ready=ready,
            late=lambda: self._recover(request),
            deadline=self._clock.monotonic() + limits.RECOVER_WAIT_S,
        )

    def _recover(self, request: views.RecoverRequest) -> views.RecoveryView:
        recovery = Recovery(self._registry, self._fleet, self._clock)
        view, taken = recovery.plan(request)
        if not view.needed or request.dry_run:
            return view
        if recovery.refused:
            self._registry.take(taken)
            self._take_up()
        else:
            for document in taken.jobs:
                self._registry.put_job(document)
            for lost in taken.failovers:
                self._registry.put_failover(lost.failover, lost.view)
        log.info("store-recovered reign=%d jobs=%d", view.reign, len(view.jobs))
        return view

    @_acting
    def register(self, request: views.RegisterJob) -> Waiting:
        """Answered once every instance of the job is ready."""
        document = self._jobs.register(request)

        def ready() -> views.JobView | None:
            return self.job(request.name) if self._jobs.is_ready(document) else None

        def late() -> views.JobView:
            raise not_ready(document)

        return Waiting(
            ready=ready, late=late, deadline=self._clock.monotonic() + limits.START_WAIT_S
        )

    @_acting
    def delete(self, name: str) -> views.Acknowledged:
        document = self._registry.job(name)
        uid = document.spec.uid
        if self._jobs.may_be_live(uid):
            raise Busy(
                f"job {name} has a live query, or had one a moment ago",
                remedy=f"stop the query, then delete the job after {limits.SESSION_LIVE_S:.0f} s",
            )
        running = self._registry.running(uid)
        if running is not None:
            raise Busy(
                f"{running.view.kind.value} {running.view.id} of job {name} is running",
                remedy=f"end it first: `rhinoctl op abort {running.view.id}`",
            )
        self._registry.put_job(replace(document, deleted=True))
        self._jobs.forget(uid)
        self._deleted_at[uid] = self._clock.monotonic()
        return views.Acknowledged(
            detail=f"job {name} is deleted; its workers remove state and log as they report"
        )

    @_acting
    def bind(self, name: str, request: views.BindRequest) -> views.Acknowledged:
        return self._jobs.bind(name, request)

    @_acting
    def take_session(self, name: str, request: views.TakeSession) -> views.SessionGrant | Waiting:
        """Answered at once, unless another run of the query may still be alive."""
        asked_at = self._clock.monotonic()

        def ready() -> views.SessionGrant | None:
            return self._jobs.take_session(name, request, asked_at=asked_at)

        found = ready()
        if found is not None:
            return found
        wait_s = limits.SESSION_LIVE_S + limits.POLL_WAIT_S
        return Waiting(ready=ready, late=ready, deadline=asked_at + wait_s)

    @_acting
    def poll(self, name: str, report: views.DriverReport) -> views.Offer | Waiting:
        """Answered when there is an offer that the driver has not seen, or after a while."""
        document = self._registry.job(name)
        self._jobs.hear(name, report)
        offer = self._jobs.news(name, report)
        if offer is not None:
            return offer
        return Waiting(
            ready=lambda: self._jobs.news(name, report),
            late=lambda: self._jobs.offer_now(document, live=True),
            deadline=self._clock.monotonic() + limits.POLL_WAIT_S,
        )

    @_acting
    def handover(self, name: str, request: views.HandoverRequest) -> views.OperationView:
        return self._operations.handover(name, request)

    @_acting
    def rescale(self, name: str, request: views.RescaleRequest) -> views.OperationView:
        return self._operations.rescale(name, request)

    @_acting
    def switchover(self, request: views.SwitchoverRequest) -> views.OperationList:
        return views.OperationList(operations=self._operations.switchover(request))

    @_acting
    def drain(self, request: views.DrainRequest) -> views.OperationList:
        return views.OperationList(operations=self._operations.drain(request))

    @_acting
    def failover(self, request: views.FailoverRequest) -> views.OperationList:
        return views.OperationList(operations=self._failovers.request(request, self._groups))

    @_acting
    def set_job(self, name: str, request: views.SetJob) -> views.Acknowledged:
        check_replication(request.replication)
        document = self._registry.job(name)
        spec = replace(document.spec, replication=request.replication)
        self._registry.put_job(replace(document, spec=spec))
        others = len(self._fleet.workers) - 1
        room = ""
        if request.replication > others:
            room = f" there are {others} other workers, so that copies will be lacking;"
        return views.Acknowledged(
            detail=f"job {name} has replication {request.replication} now;{room}"
            f" `rhinoctl groups show {name}` tells how far the copies are"
        )

    def groups(self, name: str, request: views.GroupsRequest) -> views.GroupsView:
        if request.replication is not None:
            check_replication(request.replication)
        document = self._registry.job(name)
        return self._overview.chains(document, request)

    @_acting
    def checkpoint(self, name: str, request: views.CheckpointRequest) -> views.CheckpointView:
        return self._wishes.checkpoint(self._registry.job(name), request)

    @_acting
    def verify(self, name: str, request: views.VerifyRequest) -> views.VerifyView:
        return self._verifications.verify(self._registry.job(name), request)

    def disks(self) -> DiskList:
        return self._disks.list()

    @_acting
    def change_disks(self, request: DiskRequest) -> Waiting:
        """Answered once the worker has."""
        ready = self._disks.ask(request)

        def late() -> DiskList:
            raise DeadlineExceeded(
                f"worker {request.worker} was asked and has not answered",
                remedy="see `rhinoctl disk list` before you repeat it",
            )

        deadline = self._clock.monotonic() + ANSWER_S + limits.HEARTBEAT_S
        return Waiting(ready=ready, late=late, deadline=deadline)

    @_acting
    def suspect(self, name: str, suspicion: views.Suspicion) -> views.Acknowledged:
        """A driver or a task did not get through to a worker: it is asked at once."""
        document = self._registry.job(name)
        if suspicion.session == document.session:
            self._fleet.suspect(suspicion.worker)
        return views.Acknowledged(detail=f"worker {suspicion.worker} is looked at")

    def operation_list(self) -> views.OperationList:
        return self._overview.operation_list()

    def operation(self, op: str) -> views.OperationView:
        return self._registry.view(op)

    @_acting
    def abort(self, op: str, request: views.AbortRequest) -> views.OperationView:
        return self._operations.abort(op, request)

    @_acting
    def decided(self, name: str) -> Waiting:
        """Answered once every worker of the job has been fenced."""
        document = self._operations.idle(name, dry_run=False)
        ready = self._jobs.ask_decided(document)

        def late() -> views.DecidedView:
            raise DeadlineExceeded(
                f"job {name}: its workers have not all answered",
                remedy="see `rhinoctl status`; nothing was changed",
            )

        deadline = self._clock.monotonic() + limits.FENCE_DEADLINE_S + limits.HEARTBEAT_S
        return Waiting(ready=ready, late=late, deadline=deadline)

    @_acting
    def repair(self, op: str) -> Waiting:
        """Answered once the operation's workers have, or have had the time to."""
        ready = self._repairs.repair(op)
        deadline = self._clock.monotonic() + limits.HEARTBEAT_TIMEOUT_S + limits.HEARTBEAT_S
        return Waiting(ready=ready, late=lambda: self._repairs.repaired(op), deadline=deadline)

    def evidence(self) -> ClusterEvidence:
        return self._repairs.evidence(self._overview.store_fault)

    @_acting
    def pause(self, op: str) -> views.OperationView:
        return self._operations.pause(op)

    @_acting
    def resume(self, op: str) -> views.OperationView:
        return self._operations.resume(op)

    @_acting
    def revert(self, op: str, request: views.RevertRequest) -> views.OperationView:
        return self._reverts.revert(op, request)


def _cannot_persist(fault: OSError) -> Degraded:
    return Degraded(
        f"the controller cannot write its store, so nothing was done: {fault}",
        remedy="make room on the controller's disk, then repeat the command",
    )
