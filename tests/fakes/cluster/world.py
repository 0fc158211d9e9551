"""The model of a cluster: workers, drivers, one queue, Spark's checkpoint, and the oracle.

Everything that happens is a tick: one effect of one process, or the delivery of one event. A world
can be cloned between any two ticks, so that a test can try every fault at every place. Nothing here
is random unless the world is given a source of chance.
"""

import heapq
from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import dataclass
from random import Random
from typing import Any

from rhinoctl.ids import BASE, BatchTime, JobUid, Vnode, WorkerId
from rhinoctl.protocol import batches
from rhinoctl.protocol import messages as m
from rhinoctl.protocol import worker as machine
from rhinoctl.protocol.epochs import Epoch
from rhinoctl.protocol.failover import CutPlan, GivenUp, plan_cut
from rhinoctl.protocol.sessions import Lineage
from tests.fakes.cluster.drivers import Alarm, Answer, ModelDriver, Next, Role
from tests.fakes.cluster.inputs import Body, Workload
from tests.fakes.cluster.invariants import Broken, require
from tests.fakes.cluster.oracle import Oracle
from tests.fakes.cluster.workers import Base, ModelWorker, Request, Segment

LATENCY_S = 0.001
TICKS_MAX = 100_000
SESSIONS_MAX = 40
EXTRA_BATCHES_MAX = 600
DETECTED_S = 0.25
"""Silence after which the controller gives a worker up."""
OFFER_S = 0.1
"""How often the controller offers what is not taken yet."""


RESTARTED = frozenset({batches.FaultKind.UNREACHABLE, batches.FaultKind.ATTEMPTS})
OVERTAKEN = frozenset({batches.FaultKind.RELEASED, batches.FaultKind.WRONG_BATCH})
"""How a query learns that an older run, not yet fenced, has committed the batch that it began."""


Goal = Callable[[Epoch], Epoch | None]
"""What somebody wants of the layout: the next epoch towards it, None once it is reached."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochRecord:
    """A change that is to be sealed between two batches rather than with one, once a batch is
    decided, and perhaps not committed yet: by the query's own session, or (`live` False) by the
    controller while no query runs."""

    after: int
    goal: Goal
    live: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A job and what happens to it. `proposals` are (first batch, goal), taken in order."""

    name: str
    first: Epoch
    workload: Workload
    batches: int
    workers: tuple[WorkerId, ...] = (WorkerId("w1"), WorkerId("w2"), WorkerId("w3"))
    proposals: tuple[tuple[int, Goal], ...] = ()
    records: tuple[EpochRecord, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The machines under test, and what owners do: a seeded bug replaces one of them. `watchful`
    looks at promises when they are made, and not only at what comes of them."""

    batch_step: Callable[[batches.BatchState, batches.Event], batches.Step] = batches.step
    worker_step: Callable[[machine.WorkerState, Any], machine.Step] = machine.step
    recovered: Callable[..., tuple[machine.WorkerState, tuple[machine.DropAttempt, ...]]] = (
        machine.recovered
    )
    on_sealed: Callable[[ModelWorker, Segment], None] = lambda worker, segment: None
    plan_cut: Callable[[Epoch, GivenUp], CutPlan] = plan_cut
    watchful: bool = True


@dataclass(frozen=True, slots=True)
class Birth:
    """A driver starts."""

    role: Role


@dataclass(frozen=True, slots=True)
class Resume:
    """A paused driver goes on."""

    driver: int


@dataclass(frozen=True, slots=True)
class GiveUp:
    """The controller takes a worker for dead, and has persisted that."""

    worker: WorkerId


@dataclass(frozen=True, slots=True)
class OfferCut:
    """The controller offers a cut to whoever holds the session, or makes it if nobody does."""


Actor = ModelWorker | ModelDriver
Occurrence = Request | Answer | Alarm | Birth | Resume | GiveUp | OfferCut


class World:
    """One cluster with one job."""

    def __init__(
        self, scenario: Scenario, rules: Rules | None = None, chance: Random | None = None
    ) -> None:
        self.scenario, self.workload = scenario, scenario.workload
        self.rules = rules or Rules()
        self.chance = chance
        self.faults: set[batches.FaultKind] = set()
        self.taken: set[tuple[batches.Phase, type, batches.Phase]] = set()
        self.now, self.ticks, self._sequence = 0.0, 0, 0
        self.queue: list[tuple[float, int, Occurrence]] = []
        self.workers = {w: ModelWorker(w) for w in scenario.workers}
        self.drivers: list[ModelDriver] = []
        self.busy: tuple[str, Any] | None = None
        self.acted: tuple[str, Any] | None = None
        self.committed = -1
        self.initialised = False
        self.given_up: frozenset[WorkerId] = frozenset()
        self.newest = scenario.first
        self.oracle = Oracle(self.workload, watchful=self.rules.watchful)
        self.put(0.0, Birth(Role.QUERY))

    def clone(self) -> "World":
        """The same world, to go another way from here. What machines did is noted in both."""
        twin = copy(self)
        twin.queue = list(self.queue)
        twin.workers = {name: worker.clone() for name, worker in self.workers.items()}
        twin.drivers = [driver.clone() for driver in self.drivers]
        twin.oracle = self.oracle.clone()
        return twin

    def watch(self, kept: bool, invariant: int, promise: str) -> None:
        """A promise on which something may come to rely; looked at if the rules are watchful."""
        if self.rules.watchful:
            require(kept, invariant, promise)

    # --- time and messages -----------------------------------------------------------------------

    def put(self, delay_s: float, occurrence: Occurrence) -> None:
        """Let something happen after a delay."""
        self._sequence += 1
        heapq.heappush(self.queue, (self.now + delay_s, self._sequence, occurrence))

    def after(self, delay_s: float, make: Callable[[int], Occurrence]) -> int:
        """Let something that needs a number of its own happen after a delay."""
        number = self._sequence + 1
        self.put(delay_s, make(number))
        return number

    def latency(self) -> float:
        """How long a message takes: always the same, or by chance."""
        return LATENCY_S * (1 if self.chance is None else self.chance.choice((1, 1, 2, 5, 30)))

    def send(
        self,
        to: WorkerId,
        message: m.Message,
        bodies: Mapping[Vnode, Body],
        asker: int | None = None,
        delay_s: float = 0.0,
    ) -> int:
        """Send a message to a worker; returns its number."""
        return self.after(
            delay_s + self.latency(),
            lambda n: Request(to=to, message=message, bodies=bodies, asker=asker, number=n),
        )

    def answer(self, request: Request, message: m.Message | None) -> None:
        """Answer a request, or (None) let its sender know that no answer will come."""
        if request.asker is not None:
            answer = Answer(
                driver=request.asker, worker=request.to, number=request.number, message=message
            )
            self.put(self.latency(), answer)

    # --- ticks -----------------------------------------------------------------------------------

    def run(self) -> "World":
        """Run until nothing is left to do, and check the end."""
        while not self.ended:
            self.tick()
        self.oracle.verify(self)
        return self

    @property
    def ended(self) -> bool:
        """Whether nothing will happen any more, but for deadlines of what has ended."""
        return self.busy is None and all(
            isinstance(o, Alarm) and not self._due(o) for _, _, o in self.queue
        )

    def _due(self, alarm: Alarm) -> bool:
        driver = self.drivers[alarm.driver]
        return driver.alive and not driver.paused and driver.alarm == alarm.number

    def tick(self) -> None:
        """One effect, or one event."""
        self.ticks += 1
        require(self.ticks < TICKS_MAX, 12, "it does not end")
        if self.busy is not None:
            self.acted, actor = self.busy, self._actor(self.busy)
            actor.run_effect(self)
            if not actor.effects:
                self.busy = None
            return
        due, _, occurrence = heapq.heappop(self.queue)
        self.now = max(self.now, due)
        self.acted = None
        self.happen(occurrence)

    def _actor(self, key: tuple[str, Any]) -> Actor:
        return self.workers[key[1]] if key[0] == "worker" else self.drivers[key[1]]

    def happen(self, occurrence: Occurrence) -> None:
        """Deliver an event."""
        if isinstance(occurrence, Request):
            worker = self.workers[occurrence.to]
            if worker.up_at > self.now:
                self.answer(occurrence, None)
                return
            worker.take(self, occurrence)
            self._acted("worker", worker.name)
        elif isinstance(occurrence, Birth):
            self._birth(occurrence.role)
        elif isinstance(occurrence, Resume):
            self._resume(self.drivers[occurrence.driver])
        elif isinstance(occurrence, GiveUp):
            self.given_up |= {occurrence.worker}
            self.put(0.0, OfferCut())
        elif isinstance(occurrence, OfferCut):
            self._offer_cut()
        else:
            driver = self.drivers[occurrence.driver]
            if not driver.alive:
                return
            if driver.paused:
                driver.held = (*driver.held, occurrence)
                return
            if isinstance(occurrence, Answer):
                driver.hear(self, occurrence)
            else:
                driver.expire(self, occurrence)
            self._acted("driver", driver.index)

    def _acted(self, kind: str, name: Any) -> None:
        self.acted = (kind, name)
        if self._actor(self.acted).effects:
            self.busy = self.acted

    def _birth(self, role: Role) -> None:
        session = len(self.drivers) + 1
        require(session <= SESSIONS_MAX, 12, "sessions without end")
        lineage = Lineage(
            cluster="model",
            job=JobUid("j"),
            session=session,
            epoch=self.observed() if self.given_up else self.scenario.first,
        )
        self.drivers.append(ModelDriver(index=len(self.drivers), role=role, lineage=lineage))
        self._acted("driver", session - 1)

    def _resume(self, driver: ModelDriver) -> None:
        driver.paused = False
        held, driver.held = driver.held, ()
        for occurrence in held:
            self.put(0.0, occurrence)
        self._acted("driver", driver.index)

    # --- faults ----------------------------------------------------------------------------------

    @property
    def driver(self) -> ModelDriver:
        """The newest driver."""
        return self.drivers[-1]

    def kill_driver(self, *, in_flight_lost: bool) -> None:
        """The newest driver dies; what it has sent may arrive or not. Another is started."""
        driver = self.driver
        driver.alive, driver.effects = False, ()
        self._unbusy(("driver", driver.index))
        if in_flight_lost:
            self.queue = [
                entry
                for entry in self.queue
                if not (isinstance(entry[2], Request) and entry[2].asker == driver.index)
            ]
            heapq.heapify(self.queue)
        self.put(0.0, Birth(Role.QUERY))

    def pause_driver(self) -> int:
        """The newest driver is stopped as by SIGSTOP, and taken for dead. Returns its index."""
        driver = self.driver
        driver.paused = True
        self._unbusy(("driver", driver.index))
        self.put(0.0, Birth(Role.QUERY))
        return driver.index

    def crash_worker(
        self, name: WorkerId, *, down_s: float = 0.0, drops_survive: bool = True
    ) -> None:
        """A worker dies and starts again; who waits for its answer learns that none will come."""
        worker = self.workers[name]
        if worker.request is not None and worker.effects:
            self.answer(worker.request, None)
        self._unbusy(("worker", name))
        worker.up_at = self.now + down_s
        worker.crash(self, drops_survive=drops_survive)

    def lose_worker(self, name: WorkerId, *, crashed: bool, back_s: float) -> None:
        """A worker is gone, dead or cut off, for so long; the controller soon gives it up."""
        self.crash_worker(name, down_s=back_s) if crashed else self._cut_off(name, back_s)
        self.put(DETECTED_S, GiveUp(name))

    def _cut_off(self, name: WorkerId, back_s: float) -> None:
        """It goes on with what it is doing, but nothing reaches it."""
        self.workers[name].up_at = self.now + back_s

    def lose_next(self) -> None:
        """The event that comes next is lost; who waits for it learns so."""
        _, _, occurrence = heapq.heappop(self.queue)
        if isinstance(occurrence, Request):
            self.answer(occurrence, None)
        elif isinstance(occurrence, Answer) and occurrence.message is not None:
            lost = Answer(
                driver=occurrence.driver,
                worker=occurrence.worker,
                number=occurrence.number,
                message=None,
            )
            self.put(LATENCY_S, lost)

    def _unbusy(self, key: tuple[str, Any]) -> None:
        if self.busy == key:
            self.busy = None

    # --- Spark and the controller ----------------------------------------------------------------

    def give_task(self, driver: ModelDriver) -> None:
        """What a driver is to do next, seen from Spark's checkpoint and from the layout."""
        batch, records = self.committed + 1, self.scenario.records
        self.gather()
        if not self.initialised:
            self._change(driver, self.scenario.first)
            return
        cut = self._cut()
        if cut is not None:
            if driver.role is Role.CONTROLLER:
                self._change(driver, cut)
            elif batch < self.scenario.batches:
                driver.begin(self, self.task(batch), cut)
            else:
                self._end(driver, Role.CONTROLLER)
            return
        epoch = driver.lineage.epoch if driver.lineage.fenced else self.observed()
        history = self.oracle.history
        decided = history[-1].time.batch if history else -1
        for record in records:
            if record.live and driver.deferred:
                continue
            change = record.goal(epoch)
            if record.after <= decided and change is not None and self._is_ready(change):
                if record.live or driver.role is Role.CONTROLLER:
                    self._change(driver, change)
                else:
                    self._end(driver, Role.CONTROLLER)
                return
        if driver.role is Role.CONTROLLER:
            self._end(driver, Role.QUERY)
            return
        wanted = self._proposal(batch, epoch)
        unmet = any(goal(epoch) is not None for goal in self.goals())
        if batch >= self.scenario.batches and not unmet and decided < batch:
            driver.alive = False
            return
        require(batch < self.scenario.batches + EXTRA_BATCHES_MAX, 6, "a handover without end")
        driver.begin(self, self.task(batch), wanted)

    def goals(self) -> tuple[Goal, ...]:
        """All that is to be reached by the end."""
        proposed = (goal for _, goal in self.scenario.proposals)
        return (*proposed, *(record.goal for record in self.scenario.records))

    def _change(self, driver: ModelDriver, change: Epoch) -> None:
        driver.begin(self, batches.Task(time=BASE, change=change), None)

    def _end(self, driver: ModelDriver, successor: Role) -> None:
        driver.alive = False
        if driver is self.driver:
            self.put(LATENCY_S, Birth(successor))

    def task(self, batch: int) -> batches.Task:
        """The batch as Spark's offset log has it."""
        return batches.Task(
            time=BatchTime(0, batch),
            start_offsets=str(batch) if batch else "",
            end_offsets=str(batch + 1),
            batch_time_ms=1000 * batch,
            operator="count",
        )

    def observed(self) -> Epoch:
        """The newest epoch that any worker has ever reported as decided, or the first."""
        reached = [w for w in self.workers.values() if w.up_at <= self.now and w.state.decided]
        epochs = [w.state.decided.next_epoch for w in reached if w.state.decided]
        self.newest = max([self.newest, *epochs], key=lambda epoch: epoch.number)
        return self.newest

    def _cut(self) -> Epoch | None:
        """What the controller offers while somebody that it has given up has a part in the job."""
        return self.rules.plan_cut(self.observed(), GivenUp(workers=self.given_up)).epoch

    def _offer_cut(self) -> None:
        cut, driver = self._cut(), self.driver
        if cut is None:
            return
        if not driver.alive:
            self.put(0.0, Birth(Role.CONTROLLER))
        elif driver.paused or driver.state is None:
            pass  # it is offered again
        elif driver.role is Role.QUERY:
            driver.advance(self, batches.Proposed(epoch=cut))
            self._acted("driver", driver.index)
        elif self.initialised and driver.state.task.change != cut:
            self._end(driver, Role.CONTROLLER)  # a change may wait for whom the cut gives up
        self.put(OFFER_S, OfferCut())

    def _proposal(self, batch: int, epoch: Epoch) -> Epoch | None:
        wishes = (goal(epoch) for first, goal in self.scenario.proposals if first <= batch)
        return next((wish for wish in wishes if wish is not None and self._is_ready(wish)), None)

    def _is_ready(self, wish: Epoch) -> bool:
        """Whether every worker that the epoch makes full reports a whole copy."""
        epoch = self.observed()
        return all(
            worker.is_whole(vnode)
            for worker in self.workers.values()
            for vnode in wish.fully_held_by(worker.name)
            if vnode in worker.joining(epoch)
        )

    def gather(self) -> None:
        """Joining members copy what they lack from the owner's worker: a base as of now."""
        epoch = self.observed()
        for worker in self.workers.values():
            for vnode in worker.joining(epoch):
                holder = self.workers[epoch.owner_worker(vnode)]
                if holder.up_at <= self.now and holder.applied >= worker.applied:
                    worker.bases[vnode] = Base(holder.applied, holder.copy_of(vnode))
                    worker.copies.pop(vnode, None)
            worker.declare()

    def see_to_fault(self, driver: ModelDriver, state: batches.BatchState) -> None:
        """A task has failed: the query restarts, a stale plan is made anew, a zombie ends."""
        assert state.fault is not None
        self.faults.add(state.fault.kind)
        kind, driver.tried = state.fault.kind, driver.tried + 1
        overtaken = kind in OVERTAKEN and self.committed >= state.task.time.batch
        if driver is not self.driver:
            driver.alive = False
        elif kind is batches.FaultKind.FENCED:
            raise Broken(10, f"the newest session is fenced: {state.fault}")
        elif state.task.change is not None and driver.lineage.fenced:
            require(driver.tried < 5, 12, f"an epoch record in vain: {state.fault}")
            driver.deferred = kind is not batches.FaultKind.STALE_EPOCH
            driver.effects = (*driver.effects, Next())
        elif kind in RESTARTED or overtaken:
            self._end(driver, Role.QUERY)
        else:
            raise Broken(6, f"session {driver.lineage.session} failed: {state.fault}")

    def done(self, driver: ModelDriver, state: batches.BatchState) -> None:
        """A task has come to its end: the user gets the outputs, or an epoch record is decided."""
        if state.task.change is None:
            self.oracle.deliver_outputs(state)
        else:
            self.initialised = True
        if driver is self.driver:
            self.oracle.check_epoch(self, driver.lineage.epoch)
