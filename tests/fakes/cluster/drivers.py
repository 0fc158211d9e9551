"""A session holder of the model: the real batch machine, Spark's tasks, and a query's life.

A driver runs tasks that the world plans for it, one after the other, until there are none. Its
effects are carried out one at a time. It keeps to what `batches` asks of a shell: an answer counts
only if it answers a request of this phase and attempt; a deadline replaces the one before;
`BatchState.lineage` is carried into the next task, whatever became of the last one.
"""

from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, Any

from rhinoctl.ids import Attempt, Vnode, WorkerId
from rhinoctl.protocol import batches
from rhinoctl.protocol import messages as m
from rhinoctl.protocol.epochs import Epoch
from rhinoctl.protocol.sessions import Lineage
from tests.fakes.cluster.inputs import Body, name_of

if TYPE_CHECKING:
    from tests.fakes.cluster.world import World

FIRST_TRY, WINNER = 0, 1
"""Task attempts: the first pushes to one worker and dies, the second wins."""


class Role(Enum):
    """Whose driver it is: the query's, or the controller's that writes one epoch record."""

    QUERY = "query"
    CONTROLLER = "controller"


@dataclass(frozen=True, slots=True)
class Next:
    """Begin the next task."""


@dataclass(frozen=True, slots=True)
class Finish:
    """The task has ended: hand over its outputs, or see to its fault."""


@dataclass(frozen=True, slots=True)
class Commit:
    """Spark notes in its checkpoint that the batch is done."""

    batch: int


Effect = batches.Effect | Next | Finish | Commit


@dataclass(frozen=True, slots=True, kw_only=True)
class Staging:
    """The Spark job under way: pushes not yet answered, what was pushed, and what failed."""

    attempt: Attempt
    pending: frozenset[int]
    receipts: tuple[batches.Receipt, ...]
    failures: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A worker's answer to a driver, None if it is known that none will come."""

    driver: int
    worker: WorkerId
    number: int
    message: m.Message | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Alarm:
    """A deadline of a driver's phase."""

    driver: int
    number: int


@dataclass
class ModelDriver:
    """One run of the query, with its session; or the controller for one epoch record."""

    index: int
    role: Role
    lineage: Lineage
    state: batches.BatchState | None = None
    effects: tuple[Effect, ...] = (Next(),)
    asked: frozenset[int] = frozenset()
    alarm: int = 0
    staging: Staging | None = None
    alive: bool = True
    paused: bool = False
    held: tuple[Answer | Alarm, ...] = ()
    tried: int = 0
    deferred: bool = False

    def clone(self) -> "ModelDriver":
        """The same driver in another world."""
        return copy(self)

    # --- events ----------------------------------------------------------------------------------

    def hear(self, world: "World", answer: Answer) -> None:
        """An answer: to a push of the Spark job, or to a request of the machine."""
        staging = self.staging
        if staging is not None and answer.number in staging.pending:
            failures = staging.failures
            if not isinstance(answer.message, m.Done):
                failures = (*failures, f"push to {answer.worker} failed")
            pending = staging.pending - {answer.number}
            self.staging = replace(staging, pending=pending, failures=failures)
            self._staged(world)
        elif answer.number in self.asked:
            self.asked -= {answer.number}
            if answer.message is None:
                self.advance(world, batches.Lost(worker=answer.worker, detail="lost"))
            else:
                self.advance(world, batches.Answered(worker=answer.worker, message=answer.message))

    def expire(self, world: "World", alarm: Alarm) -> None:
        """The newest deadline has passed; an older one means nothing."""
        if alarm.number == self.alarm:
            self.advance(world, batches.Expired())

    def advance(self, world: "World", event: batches.Event) -> None:
        """Let the machine take a step; its effects follow one by one."""
        if self.state is None or self.state.ended:
            return
        before = self.state
        self.entered(world, world.rules.batch_step(before, event))
        assert self.state is not None
        world.taken.add((before.phase, type(event), self.state.phase))

    def begin(self, world: "World", task: batches.Task, proposal: Epoch | None) -> None:
        """Begin a task where the last one left the lineage."""
        self.entered(world, batches.begin(self.lineage, task, proposal))

    def entered(self, world: "World", step: batches.Step) -> None:
        before, (self.state, effects) = self.state, step
        now = (self.state.phase, self.state.attempt)
        if before is None or (before.phase, before.attempt) != now:
            self.asked = frozenset()
        self.lineage = self.state.lineage
        self.effects = (*self.effects, *effects)
        if now[0] is batches.Phase.APPLYING and (before is None or before.phase is not now[0]):
            assert self.state.record is not None
            world.oracle.learn_decided(
                world.workers,
                self.state.record,
                f"session {self.lineage.session}",
                world.given_up,
            )
        if self.state.ended:
            self.effects = (*self.effects, Finish())

    # --- effects ---------------------------------------------------------------------------------

    def run_effect(self, world: "World") -> None:
        """Carry out the next effect."""
        effect, self.effects = self.effects[0], self.effects[1:]
        _EFFECTS[type(effect)](self, world, effect)

    def _send(self, world: "World", effect: batches.Send) -> None:
        number = world.send(effect.worker, effect.message, {}, self.index, effect.delay_s)
        self.asked |= {number}

    def _deadline(self, world: "World", effect: batches.Deadline) -> None:
        self.alarm = world.after(effect.after_s, lambda n: Alarm(driver=self.index, number=n))

    def _stage(self, world: "World", effect: batches.Stage) -> None:
        """Every channel pushes once per owner's worker. The first channel's first task attempt
        pushes to one worker and dies: what it pushed loses."""
        split = world.workload.split(effect.time.batch, effect.attempt)
        pending: set[int] = set()
        receipts: list[batches.Receipt] = []
        for channel, parts in split.items():
            by_worker: dict[WorkerId, dict[Vnode, Body]] = {}
            for vnode, body in parts.items():
                by_worker.setdefault(effect.epoch.owner_worker(vnode), {})[vnode] = body
            if channel == min(split):
                worker, bodies = min(by_worker.items())
                self._push(world, effect, (channel, FIRST_TRY), worker, bodies)
            for worker, bodies in by_worker.items():
                pending.add(self._push(world, effect, (channel, WINNER), worker, bodies))
            names = tuple(name_of(vnode, body) for vnode, body in parts.items())
            receipts.append(batches.Receipt(channel=channel, task_attempt=WINNER, slices=names))
        self.staging = Staging(
            attempt=effect.attempt, pending=frozenset(pending), receipts=tuple(receipts)
        )
        self._staged(world)

    def _push(
        self,
        world: "World",
        stage: batches.Stage,
        key: tuple[int, int],
        worker: WorkerId,
        bodies: Mapping[Vnode, Body],
    ) -> int:
        put = m.Put(
            header=self.lineage.header(),
            time=stage.time,
            attempt=stage.attempt,
            channel=key[0],
            task_attempt=key[1],
            slices=tuple(name_of(vnode, body) for vnode, body in bodies.items()),
        )
        return world.send(worker, put, bodies, self.index)

    def _staged(self, world: "World") -> None:
        staging = self.staging
        if staging is not None and not staging.pending:
            self.staging = None
            event = batches.Staged(
                attempt=staging.attempt, receipts=staging.receipts, failures=staging.failures
            )
            self.advance(world, event)

    def _next(self, world: "World", effect: Next) -> None:
        world.give_task(self)

    def _finish(self, world: "World", effect: Finish) -> None:
        state = self.state
        assert state is not None
        self.alarm = 0
        if state.phase is batches.Phase.FAILED:
            world.see_to_fault(self, state)
            return
        self.tried, self.deferred = 0, False
        world.done(self, state)
        if state.task.change is None:
            self.effects = (*self.effects, Commit(state.task.time.batch))
        self.effects = (*self.effects, Next())

    def _commit(self, world: "World", effect: Commit) -> None:
        world.committed = max(world.committed, effect.batch)


_EFFECTS: dict[type, Any] = {
    batches.Send: ModelDriver._send,
    batches.Deadline: ModelDriver._deadline,
    batches.Stage: ModelDriver._stage,
    Next: ModelDriver._next,
    Finish: ModelDriver._finish,
    Commit: ModelDriver._commit,
}
