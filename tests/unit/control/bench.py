"""A controller on fakes: workers that keep the batch protocol and report what a test wants.

    bench = Bench(workers=2)
    bench.register()
    driver = bench.driver()
    op = bench.call(lambda c: c.rescale(NAME, RescaleRequest(instances=3))).id
    bench.until(lambda: bench.operation(op).phase is Phase.COMPLETE)

The controller's loop and its driver of epoch records are the real ones, and so is the machine of
the workers; made up are instances and copies, which are ready and follow unless told otherwise.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from rhinoctl import limits
from rhinoctl.control.controller import Controller, Waiting
from rhinoctl.control.settings import ControllerSettings
from rhinoctl.ids import BASE, BatchTime, InstanceId, JobName, JobUid, OpId, Vnode, WorkerId
from rhinoctl.protocol import batches, views
from rhinoctl.protocol import messages as m
from rhinoctl.protocol import worker as machine
from rhinoctl.protocol.epochs import Epoch
from rhinoctl.protocol.jobs import OperatorSpec, VnodeUse
from rhinoctl.protocol.placement import Capacity
from rhinoctl.protocol.ports import Address, Envelope, Store
from rhinoctl.protocol.records import DecisionRecord
from rhinoctl.protocol.sessions import Lineage
from rhinoctl.wire.holder import BatchRun
from tests.fakes.clock import FakeClock
from tests.fakes.schedule import Schedule
from tests.fakes.store import FakeStore
from tests.fakes.wire import FakeNetwork, FakeWire

NAME = JobName("clicks")
SPEC = OperatorSpec(name="running", spec="{}", digest="d1")


def registration(**changes: Any) -> views.RegisterJob:
    fields = {"name": NAME, "vnodes": 4, "instances": 2, "replication": 0, "operator": SPEC}
    return views.RegisterJob(**{**fields, **changes})


# --- workers -------------------------------------------------------------------------------------


@dataclass
class Desk:
    """One job on one worker."""

    state: machine.WorkerState
    epoch_from: BatchTime = BASE
    released: BatchTime = BASE
    records: list[DecisionRecord] = field(default_factory=list)
    applies: dict[InstanceId, dict[BatchTime, float]] = field(default_factory=dict)


class Worker:
    """An agent without disk and instances. `use` is what it reports of copies that it is to warm,
    `ready` and `fault` of instances, and it tells of applies up to `told_until`. `silent`: it takes
    nothing and answers nothing; `mute`: it does not answer the controller; `apart`: it does, but is
    of another version. `host` is what its host allows."""

    def __init__(self, name: WorkerId, wire: FakeWire, clock: FakeClock) -> None:
        self.host: dict[str, Any] = {"free_bytes": 1 << 30}
        self.name = name
        self.desks: dict[JobUid, Desk] = {}
        self.desired: dict[JobUid, m.DesiredJob] = {}
        self.use = VnodeUse.FOLLOWING
        self.ready = True
        self.fault = ""
        self.told_until = BatchTime(1 << 30, 0)
        self.silent = False
        self.mute = False
        self.apart = False
        self._wire = wire
        self._clock = clock

    def step(self, timeout_s: float) -> None:
        while not self.silent and (envelope := self._wire.receive(0)) is not None:
            if isinstance(envelope.message, m.Heartbeat):
                self._heartbeat(envelope, envelope.message)
            elif envelope.message is not None:
                self._take(envelope)

    def restart(self) -> None:
        """Know no more than the log tells: its newest record may not be decided."""
        for desk in self.desks.values():
            desk.state, _ = machine.recovered(self.name, desk.state.session, tuple(desk.records))

    def _heartbeat(self, envelope: Envelope, message: m.Heartbeat) -> None:
        if self.mute:
            return
        if self.apart:
            detail = "w.sock speaks version 4 of the protocol, this process 1"
            code = m.RefusalCode.VERSION
            self._wire.reply(envelope, m.Refusal(header=message.header, code=code, detail=detail))
            return
        for wish in message.jobs:
            uid = wish.spec.uid
            if wish.dropped or (wish.left is not None and not wish.keep):
                self.desks.pop(uid, None)
                self.desired.pop(uid, None)
                continue
            self.desired[uid] = wish
            self.desks.setdefault(uid, Desk(machine.WorkerState(worker=self.name)))
        report = m.WorkerReport(
            header=message.header,
            worker=self.name,
            pid=7,
            wall=self._clock.wall(),
            **self.host,
            jobs={uid: self._report(uid, desk) for uid, desk in self.desks.items()},
        )
        self._wire.reply(envelope, report)

    def _report(self, uid: JobUid, desk: Desk) -> m.JobReport:
        state, wish = desk.state, self.desired[uid]
        epoch = state.decided.next_epoch if state.decided is not None else None
        mine = {i for i, w in epoch.instances.items() if w == self.name} if epoch else set()
        vnodes = {
            vnode: m.VnodeReport(use=VnodeUse.OWNED, state_bytes=1000)
            for instance in mine
            if epoch is not None
            for vnode in epoch.owned_by(instance)
        }
        for warm in wish.warm:
            vnodes[warm.vnode] = m.VnodeReport(use=self.use, instance=warm.instance)
        return m.JobReport(
            session=state.session,
            sealed=state.sealed.id if state.sealed is not None else None,
            decided=state.decided.id if state.decided is not None else None,
            epoch=epoch,
            epoch_from=desk.epoch_from if epoch is not None else None,
            released=desk.released,
            log_bytes=10,
            vnodes=vnodes,
            instances={
                i: m.InstanceReport(
                    pid=1,
                    incarnation=1,
                    ready=self.ready,
                    fault=self.fault,
                    applied=None,
                    applies=tuple(
                        item
                        for item in desk.applies.get(i, {}).items()
                        if item[0] <= self.told_until
                    ),
                )
                for i in sorted(mine | set(wish.instances))
            },
        )

    def _take(self, envelope: Envelope) -> None:
        message: Any = envelope.message
        desk = self.desks.get(message.header.job)
        if desk is None:
            code = m.RefusalCode.UNKNOWN_JOB
            self._wire.reply(envelope, m.Refusal(header=message.header, code=code, detail=""))
            return
        warm = {warm.vnode for warm in self.desired[message.header.job].warm}
        whole = frozenset(warm if self.use is not VnodeUse.COPYING else ())
        desk.state, effects = machine.step(replace(desk.state, whole=whole), message)
        for effect in effects:
            self._carry_out(desk, effect, envelope)

    def _carry_out(self, desk: Desk, effect: machine.Effect, envelope: Envelope) -> None:
        if isinstance(effect, machine.Decide):
            if effect.record.is_marker:
                desk.epoch_from = effect.record.time
        elif isinstance(effect, machine.SealRecord):
            desk.records.append(effect.record)
        elif isinstance(effect, machine.Release):
            desk.released = max(desk.released, effect.time)
        elif isinstance(effect, machine.Reply):
            self._wire.reply(envelope, effect.message)
        elif isinstance(effect, machine.ReplyWhenApplied):
            self._applied(desk, effect.record.time, envelope)

    def _applied(self, desk: Desk, time: BatchTime, envelope: Envelope) -> None:
        request: Any = envelope.message
        now = self._clock.wall()
        wish = self.desired[request.header.job]
        for instance in wish.instances:
            desk.applies.setdefault(instance, {}).setdefault(time, now)
        answer = m.ApplyAnswer(
            header=request.header, record=request.record, outputs=(), applied_at=now
        )
        self._wire.reply(envelope, answer)


# --- a driver ------------------------------------------------------------------------------------


class Driver:
    """One run of the query: it polls when told to, and decides empty batches."""

    def __init__(self, bench: "Bench", grant: views.SessionGrant) -> None:
        self.bench = bench
        self.lineage = Lineage(
            cluster=grant.cluster, job=grant.job, session=grant.session, epoch=grant.epoch
        )
        self.generation = grant.generation
        self.addresses = grant.workers
        self.revision = 0
        self.proposal: Epoch | None = None
        self.offer: views.Offer | None = None
        self.batch = -1
        self._wire = bench.network.wire(None, origin=Address("driver"))

    def poll(self) -> views.Offer:
        """One poll, however long it takes."""
        last = self.lineage.last
        report = views.DriverReport(
            session=self.lineage.session,
            epoch=self.lineage.epoch.number if self.lineage.fenced else 0,
            batch=last.time if last is not None else None,
            revision=self.revision,
        )
        offer: views.Offer = self.bench.call(lambda c: c.poll(NAME, report))
        self.offer, self.revision, self.proposal = offer, offer.revision, offer.proposal
        return offer

    def decide(self) -> batches.BatchState:
        """The next batch, empty, with the proposal that was heard last."""
        self.batch += 1
        run = BatchRun(
            wire=self._wire,
            clock=self.bench.clock,
            lineage=self.lineage,
            task=batches.Task(
                time=BatchTime(self.generation, self.batch),
                start_offsets=str(self.batch) if self.batch else "",
                end_offsets=str(self.batch + 1),
                operator=SPEC.digest,
            ),
            addresses=self.addresses,
            stage=lambda stage: batches.Staged(attempt=stage.attempt, receipts=()),
            proposal=lambda: self.proposal,
        )
        state = run.run()
        self.lineage = state.lineage
        return state

    def go_on(self, batches_: int = 1) -> None:
        """Poll and decide in turn."""
        for _ in range(batches_):
            self.poll()
            state = self.decide()
            assert state.phase is batches.Phase.DONE, state.fault


# --- the whole -----------------------------------------------------------------------------------


class Bench:
    """A controller over `store`, and `workers` that answer it."""

    def __init__(
        self,
        *,
        workers: int = 2,
        store: Store | None = None,
        capacities: Mapping[WorkerId, Capacity] | None = None,
    ) -> None:
        self.capacities = capacities or {}
        self.clock = FakeClock()
        self.network = FakeNetwork(Random(1), self.clock)
        self.schedule = Schedule(self.network, Random(2))
        self.store = store or FakeStore()
        self.workers: dict[WorkerId, Worker] = {}
        for number in range(workers):
            name = WorkerId(f"w{number + 1}")
            wire = self.network.wire(Address(f"{name}.sock"))
            self.workers[name] = Worker(name, wire, self.clock)
            self.schedule.add(name, wire, self.workers[name])
        self.controller = self._started()

    def _started(self) -> Controller:
        wire = self.network.wire(None, origin=Address("controller"))
        settings = ControllerSettings(
            cluster="c",
            store="",
            listen="",
            token_file="",
            workers={name: f"{name}.sock" for name in self.workers},
            capacities=self.capacities,
        )
        controller = Controller(settings, clock=self.clock, wire=wire, store=self.store)
        self.schedule.add("controller", wire, controller, tick_s=limits.CONTROLLER_WAIT_S)
        return controller

    def restart_controller(self) -> None:
        """kill -9 and a new one over the same store."""
        self.schedule.remove("controller")
        self.controller = self._started()

    def run(self, seconds: float) -> None:
        self.schedule.run(seconds)

    def until(self, held: Callable[[], bool], within_s: float = 60.0) -> None:
        assert self.schedule.run(within_s, until=held), "it does not come to that"

    def submit(self, function: Callable[[Controller], Any]) -> "Call":
        return Call(self.controller.submit(lambda: function(self.controller)))

    def call(self, function: Callable[[Controller], Any]) -> Any:
        """A call of the API: what it returns, at once or later, or raises."""
        call = self.submit(function)
        self.until(lambda: call.ended, within_s=limits.START_WAIT_S + 10)
        return call.result()

    def register(self, **changes: Any) -> views.JobView:
        view: views.JobView = self.call(lambda c: c.register(registration(**changes)))
        return view

    def session(self, run: str = "r1", **changes: Any) -> views.SessionGrant:
        fields = {"query_id": "q1", "run_id": run, "batch": 0}
        request = views.TakeSession(**{**fields, **changes})
        grant: views.SessionGrant = self.call(lambda c: c.take_session(NAME, request))
        return grant

    def driver(self, run: str = "r1", **changes: Any) -> Driver:
        return Driver(self, self.session(run, **changes))

    def handover(self, *vnodes: int, to: str, dry_run: bool = False) -> views.OperationView:
        request = views.HandoverRequest(
            vnodes=tuple(map(Vnode, vnodes)), to=InstanceId(to), dry_run=dry_run
        )
        view: views.OperationView = self.call(lambda c: c.handover(NAME, request))
        return view

    def rescale(self, instances: int, *, dry_run: bool = False) -> views.OperationView:
        request = views.RescaleRequest(instances=instances, dry_run=dry_run)
        view: views.OperationView = self.call(lambda c: c.rescale(NAME, request))
        return view

    def abort(self, op: OpId) -> views.OperationView:
        request = views.AbortRequest(reason="enough")
        view: views.OperationView = self.call(lambda c: c.abort(op, request))
        return view

    def operation(self, op: OpId) -> views.OperationView:
        return self.controller.operation(op)

    def job(self) -> views.JobView:
        return self.controller.job(NAME)


@dataclass
class Call:
    """A call of the API on its way."""

    future: Any

    @property
    def ended(self) -> bool:
        if not self.future.done() or self.future.exception() is not None:
            return bool(self.future.done())
        found = self.future.result()
        return not isinstance(found, Waiting) or found.answer.done()

    def result(self) -> Any:
        found = self.future.result(0)
        return found.answer.result(0) if isinstance(found, Waiting) else found
