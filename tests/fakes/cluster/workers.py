"""A worker of the model: the real machine, a disk that loses what was not made durable, and owners.

Effects are carried out one at a time, so that a test can crash the worker between any two. What an
instance would do is a few lines: rows of decided batches are applied, in order, to a copy of each
vnode that the worker holds; the copies are lost at a crash and made again from base and log.
"""

from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from rhinoctl.ids import BASE, Attempt, BatchTime, Vnode, WorkerId
from rhinoctl.protocol import messages as m
from rhinoctl.protocol import worker as machine
from rhinoctl.protocol.duties import Duty
from rhinoctl.protocol.epochs import Epoch, Role
from rhinoctl.protocol.records import ORIGIN, DecisionRecord, Position, RecordId
from tests.fakes.cluster.inputs import Body, Row, name_of
from tests.fakes.cluster.invariants import require

if TYPE_CHECKING:
    from tests.fakes.cluster.world import World

Puts = Mapping[machine.PutKey, Mapping[Vnode, Body]]


class Applied(NamedTuple):
    """What one batch did to a copy."""

    time: BatchTime
    attempt: Attempt
    rows: tuple[Row, ...]


class Base(NamedTuple):
    """A durable image of a vnode: what a checkpoint, or a bulk copy, contains."""

    covers: BatchTime
    content: tuple[Applied, ...]


@dataclass(frozen=True, slots=True)
class Segment:
    """A durable segment of the worker log."""

    record: DecisionRecord
    puts: Puts


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A message on its way to a worker. `asker` is the index of the driver that awaits an answer
    to `number`; None for what one worker forwards to another."""

    to: WorkerId
    message: m.Message
    bodies: Mapping[Vnode, Body]
    asker: int | None
    number: int


class ModelWorker:
    """One agent with its disk. Everything below `state` is lost at a crash."""

    def __init__(self, name: WorkerId) -> None:
        self.name = name
        self.session = 0
        self.segments: dict[RecordId, Segment] = {}
        self.bases: dict[Vnode, Base] = {}
        self.removed: dict[RecordId, Segment] = {}
        self.incarnation = 1
        self.up_at = 0.0
        self.state = machine.WorkerState(worker=name)
        self.puts: dict[tuple[BatchTime, Attempt], Puts] = {}
        self.copies: dict[Vnode, tuple[Applied, ...]] = {}
        self.applied = BASE
        self.epochs: dict[int, Epoch] = {}
        self.released = BASE
        self.effects: tuple[machine.Effect, ...] = ()
        self.request: Request | None = None

    def clone(self) -> "ModelWorker":
        """The same worker in another world; values are immutable, containers are copied."""
        twin = copy(self)
        for name in ("segments", "bases", "removed", "puts", "copies", "epochs"):
            setattr(twin, name, dict(getattr(self, name)))
        return twin

    # --- life ------------------------------------------------------------------------------------

    def crash(self, world: "World", *, drops_survive: bool = True) -> None:
        """Lose all that is volatile and start again from the disk.

        With `drops_survive` False the removals of files since the beginning come undone, as a power
        loss may do to removals that no directory sync followed.
        """
        if not drops_survive:
            self.segments = {**self.removed, **self.segments}
        records = tuple(segment.record for segment in self.segments.values())
        self.state, drops = world.rules.recovered(self.name, self.session, records)
        self.incarnation += 1
        self.puts, self.copies, self.epochs = {}, {}, {}
        self.applied, self.released = BASE, BASE
        self.effects, self.request = (), None
        for drop in drops:
            self._drop_attempt(world, drop)
        for record in records:
            if record.id in self.segments and record != self.state.sealed:
                self.epochs[record.next_epoch.number] = record.next_epoch
        if self.state.decided is not None:
            self._apply_through(self.state.decided)
        self.declare()

    def holds(self, record: RecordId) -> bool:
        """Whether a record is durable here with every slice that it names."""
        segment = self.segments.get(record)
        return segment is not None and all(
            name_of(name.vnode, self._body(segment, w.channel, w.task_attempt, name.vnode)) == name
            for w in segment.record.winners
            for name in w.slices
        )

    @staticmethod
    def _body(segment: Segment, channel: int, task_attempt: int, vnode: Vnode) -> Body:
        put = segment.puts.get((channel, task_attempt), {})
        return put.get(vnode, Body(segment.record.attempt, ()))

    # --- one request -----------------------------------------------------------------------------

    def take(self, world: "World", request: Request) -> None:
        """Decide on a request; its effects follow one by one."""
        before = self.state
        self.state, self.effects = world.rules.worker_step(before, request.message)
        self.request = request
        world.watch(
            request.message.header.session >= before.session
            or (self.state == before and [type(e) for e in self.effects] == [machine.Reply]),
            1,
            f"{self.name} did more than refuse a message of an older session",
        )
        require(
            self.state.opened is None or self.state.sealed is None,
            13,
            f"{self.name} has an attempt open beside an undecided record",
        )
        self.declare()

    def run_effect(self, world: "World") -> None:
        """Carry out the next effect."""
        effect, self.effects = self.effects[0], self.effects[1:]
        _EFFECTS[type(effect)](self, world, effect)

    def _persist_session(self, world: "World", effect: machine.PersistSession) -> None:
        require(effect.session > self.session, 1, "a session went back")
        self.session = effect.session

    def _drop_attempt(self, world: "World", effect: machine.DropAttempt) -> None:
        self.puts.pop((effect.time, effect.attempt), None)
        for key in list(self.segments):
            position, attempt = key
            if (position.time, position.step, attempt) == (
                effect.time,
                effect.step,
                effect.attempt,
            ):
                epoch = world.oracle.epoch()
                voter = epoch is not None and self.name in epoch.voters()
                world.watch(
                    not voter or key not in world.oracle.decided.values(),
                    13,
                    f"{self.name} drops {key}, which is decided",
                )
                self.removed[key] = self.segments.pop(key)

    def _append_put(self, world: "World", effect: machine.AppendPut) -> None:
        assert self.request is not None
        where, key = (effect.time, effect.attempt), (effect.channel, effect.task_attempt)
        fresh = {name.vnode: self.request.bodies[name.vnode] for name in effect.slices}
        puts = self.puts.get(where, {})
        self.puts[where] = {**puts, key: {**puts.get(key, {}), **fresh}}

    def _forward_put(self, world: "World", effect: machine.ForwardPut) -> None:
        assert self.request is not None
        bodies = {name.vnode: self.request.bodies[name.vnode] for name in effect.put.slices}
        world.send(effect.worker, effect.put, bodies)

    def _forward_held(self, world: "World", effect: machine.ForwardHeld) -> None:
        assert self.request is not None
        attempt = effect.attempt
        held = self.puts.get((attempt.time, attempt.attempt), {})
        sealed = self.segments.get(RecordId(Position(*attempt.time, 0), attempt.attempt))
        if sealed is not None:
            held = sealed.puts
        header = self.request.message.header
        for forward in machine.held_forwards(self.name, attempt, header):
            put = held[forward.put.channel, forward.put.task_attempt]
            bodies = {name.vnode: put[name.vnode] for name in forward.put.slices}
            world.send(forward.worker, forward.put, bodies)

    def _seal_record(self, world: "World", effect: machine.SealRecord) -> None:
        record = effect.record
        puts = self.puts.pop((record.time, record.attempt), {}) if record.is_batch else {}
        self.segments[record.id] = segment = Segment(record, puts)
        world.rules.on_sealed(self, segment)

    def _decide(self, world: "World", effect: machine.Decide) -> None:
        world.oracle.learn_decided(world.workers, effect.record, self.name, world.given_up)
        self.epochs[effect.record.next_epoch.number] = effect.record.next_epoch
        self._apply_through(effect.record)

    def _release(self, world: "World", effect: machine.Release) -> None:
        require(
            effect.time.batch <= world.committed,
            14,
            f"{effect.time} is released before Spark has committed it",
        )
        self.released = max(self.released, effect.time)

    def _reply(self, world: "World", effect: machine.Reply) -> None:
        assert self.request is not None
        answer = effect.message
        if not isinstance(answer, m.Refusal):
            world.watch(
                self.session >= self.request.message.header.session,
                1,
                f"{self.name} answers before its session is durable",
            )
        if isinstance(answer, m.SealAnswer) and not answer.missing:
            world.watch(
                self.holds(answer.record),
                4,
                f"{self.name} acknowledges {answer.record} before it is durable",
            )
        world.answer(self.request, answer)

    def _reply_when_applied(self, world: "World", effect: machine.ReplyWhenApplied) -> None:
        assert self.request is not None
        time = effect.record.time
        released = BASE < time <= self.released
        owed = () if released else self.duties_at(time)
        for duty in owed:
            for vnode in duty.vnodes:
                world.oracle.acknowledge(world, self, duty.instance, vnode, time)
        answer = m.ApplyAnswer(
            header=self.request.message.header,
            record=effect.record.id,
            outputs=tuple(
                m.OutputName(
                    worker=self.name, instance=d.instance, time=time, rows=0, size=0, part=d.part
                )
                for d in owed
            ),
            applied_at=world.now,
            released=released,
        )
        world.answer(self.request, answer)

    # --- owners and followers --------------------------------------------------------------------

    def _apply_through(self, record: DecisionRecord) -> None:
        """Apply what the log has of decided batches after the last applied one."""
        ready = [
            segment
            for key, segment in sorted(self.segments.items())
            if key.position.step == 0 and self.applied < key.position.time <= record.time
        ]
        for segment in ready:
            self.apply(segment)
        self.applied = max(self.applied, record.time)

    def apply(self, segment: Segment) -> None:
        """One batch's winning slices, in (channel, sequence) order, to every copy here."""
        record = segment.record
        rows: dict[Vnode, tuple[Row, ...]] = {}
        for winner in sorted(record.winners, key=lambda w: w.channel):
            for name in winner.slices:
                body = self._body(segment, winner.channel, winner.task_attempt, name.vnode)
                rows[name.vnode] = (*rows.get(name.vnode, ()), *body.rows)
        for vnode, new in rows.items():
            base = self.bases.get(vnode, Base(BASE, ()))
            if record.time > base.covers:
                done = Applied(record.time, record.attempt, new)
                self.copies[vnode] = (*self.copy_of(vnode), done)

    def copy_of(self, vnode: Vnode) -> tuple[Applied, ...]:
        """All that was applied to this worker's copy of a vnode."""
        return self.copies.get(vnode, self.bases.get(vnode, Base(BASE, ())).content)

    def duties_at(self, time: BatchTime) -> tuple[Duty, ...]:
        """What instances here owe of a batch's output, as the newest decided record has it."""
        decided = self.state.decided
        if decided is None or decided.time != time:
            return ()
        return tuple(duty for duty in decided.owed if duty.worker == self.name)

    # --- joining ---------------------------------------------------------------------------------

    def joining(self, epoch: Epoch) -> tuple[Vnode, ...]:
        """The vnodes whose copy this worker gathers in an epoch."""
        held = epoch.held_by(self.name)
        return tuple(v for v in held if epoch.role_of(self.name, v) is Role.JOINING)

    def declare(self) -> None:
        """Tell the machine of which vnodes the copy is whole: a base, and the log since."""
        whole = frozenset(v for v in self.bases if self.is_whole(v))
        if whole != self.state.whole:
            self.state = replace(self.state, whole=whole)

    def is_whole(self, vnode: Vnode) -> bool:
        """Whether nothing is missing between the base of a vnode and the newest record."""
        state, base = self.state, self.bases.get(vnode)
        newest = state.sealed or state.decided
        if base is None or (newest is None and state.opened is None):
            return False
        after = newest.id if newest is not None else ORIGIN
        if state.opened is not None:
            after = state.opened.after
        have = {key.position.batch for key in self.segments if key.position.step == 0}
        return set(range(base.covers.batch + 1, after.position.batch + 1)) <= have

    def _give_up(self, world: "World", effect: machine.GiveUp) -> None:
        """Nothing rots here, so that only one may lack a decided record without which it was
        decided: it is given up, and back before the cut that says so. It is busy from now on."""
        require(self.name in world.given_up, 4, effect.fault)


_EFFECTS: dict[type, Any] = {
    machine.PersistSession: ModelWorker._persist_session,
    machine.DropAttempt: ModelWorker._drop_attempt,
    machine.AppendPut: ModelWorker._append_put,
    machine.ForwardPut: ModelWorker._forward_put,
    machine.ForwardHeld: ModelWorker._forward_held,
    machine.SealRecord: ModelWorker._seal_record,
    machine.Decide: ModelWorker._decide,
    machine.Release: ModelWorker._release,
    machine.Reply: ModelWorker._reply,
    machine.ReplyWhenApplied: ModelWorker._reply_when_applied,
    machine.GiveUp: ModelWorker._give_up,
}
