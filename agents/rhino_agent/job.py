"""One job on one worker: the worker machine's effects, and what follows from its decisions.

`rhinoctl.protocol.worker` decides; this module carries out, in order. What instances shall do is
worked out anew at every turn from the log, the epochs and the controller's wishes.

Invariants:

1. What the machine believes to hold, the log holds: an effect that fails takes the attempt back.
2. An output that is owed is made, whatever became of the process that was to make it.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import xxhash

from rhino_agent.ballast import FULL
from rhino_agent.files import read_value
from rhino_agent.instances import Instance, known_instances
from rhino_agent.outputs import Outputs
from rhino_agent.ports import Ports, event
from rhino_agent.throttle import Throttle
from rhinoctl import limits
from rhinoctl.ids import BASE, BatchTime, InstanceId, Vnode
from rhinoctl.protocol import codec, worker
from rhinoctl.protocol import messages as m
from rhinoctl.protocol.duties import Duty
from rhinoctl.protocol.epochs import Epoch
from rhinoctl.protocol.jobs import JobSpec
from rhinoctl.protocol.ports import Address, Envelope
from rhinoctl.protocol.records import DecisionRecord, Position, RecordId
from rhinoctl.state.disk import BROKEN
from rhinoctl.state.log import WorkerLog

Owners = dict[InstanceId, frozenset[Vnode]]
"""Instances of this worker, and the vnodes that each owns."""


class Job:
    """A job's durable state on this worker and the volatile view that its loop works with.

    `told` says that the controller's wishes are known: until then nothing is ended or removed for
    want of a wish. `damaged` says why this worker is to take no part in the job any more. `pressed`
    says that the disk has refused something: what may go should go. `is_full` tells whether a disk
    of the worker has no room for what its instances write. `fetched` counts the bytes of
    checkpoints that have come from other workers, by vnode, at the pace of `throttle`; owners here
    have applied `applied_bytes` of slices.
    """

    def __init__(
        self, ports: Ports, spec: JobSpec, *, is_full: Callable[[], bool] = lambda: False
    ) -> None:
        self.ports = ports
        self.spec = spec
        self.is_full = is_full
        self.root = f"jobs/{spec.uid}"
        self.log = WorkerLog(ports.disk, f"{self.root}/log")
        self.forfeits: list[DecisionRecord] = []
        self.released = BASE
        self.outputs = Outputs(ports, self.root)
        self.instances: dict[InstanceId, Instance] = {}
        self.desired = m.DesiredJob(spec=spec)
        self.told = self.pressed = False
        self.damaged = ""
        self.throttle = Throttle(ports.clock, ports.settings.replication_bytes_s)
        self.fetched: Counter[Vnode] = Counter()
        self.applied_bytes = 0
        self._epoch_starts: dict[int, BatchTime] = {}
        self._gaps = 0
        self._found: RecordId | None = None
        self._full_until = 0.0
        self._owed: list[tuple[Envelope, DecisionRecord, float]] = []
        self._owners: dict[int, tuple[Epoch, Owners]] = {}
        self.state = self._recover()

    # --- what outlives the process ---------------------------------------------------------------

    def _recover(self) -> worker.WorkerState:
        disk, settings = self.ports.disk, self.ports.settings
        disk.write_atomic(f"{self.root}/spec.json", codec.dumps(self.spec))
        session_path = f"{self.root}/session.json"
        session = 0
        if disk.size(session_path) is not None:
            session = read_value(disk, int, session_path)
        records = self.log.load()
        state, drops = worker.recovered(settings.worker, session, records)
        for drop in drops:
            self.log.drop(Position(*drop.time, drop.step), drop.attempt)
        for record in records:
            self._note_epoch(record)
        self._found = state.sealed.id if state.sealed is not None else None
        if state.sealed is not None and state.sealed.is_batch and state.decided is not None:
            self.released = state.decided.time
        elif state.decided is not None:
            self.released = _before(self.log, state.decided.time)
        known = known_instances(self.ports, self.spec, self.root, self.outputs.find)
        self.instances = {instance.id: instance for instance in known}
        for writer in self.outputs.instances():
            instance = self.instances.get(writer)
            if instance is None or not instance.alive:
                self.outputs.forget(writer)
        return state

    def _must_wait(self) -> bool:
        troubled = any(instance.fault for instance in self.instances.values())
        return self.is_full() or (troubled and self.disk_refuses())

    def disk_refuses(self) -> bool:
        """Whether a disk of the worker refuses to be written to: it will be again, or be lost, so
        that what comes to nothing meanwhile is not for good."""
        return self.ports.disk.refusal() is not None

    def renew(self, spec: JobSpec) -> None:
        """The job wishes for something else than before: kept, as its identity is."""
        if spec != self.spec:
            self.ports.disk.write_atomic(f"{self.root}/spec.json", codec.dumps(spec))
            self.spec = spec

    # --- the worker machine ----------------------------------------------------------------------

    def handle(self, envelope: Envelope) -> None:
        """Take one request of the batch protocol."""
        request: Any = envelope.message
        if isinstance(request, m.Put) and not _as_named(request, envelope):
            self._refuse(envelope, m.RefusalCode.FAULT, "the slices are not what their names say")
            return
        if isinstance(request, m.Open) and self.ports.clock.monotonic() < self._full_until:
            self._refuse(envelope, m.RefusalCode.FULL, "the disk has just refused something")
            return
        before = self.state
        self.state, effects = worker.step(before, request)
        if before.decided is not None and self.state.decided is None:
            self._gaps += 1
        try:
            for effect in effects:
                _EFFECTS[type(effect)](self, effect, envelope)
        except OSError as fault:
            event("effects-failed", job=self.spec.uid, fault=fault)
            self.pressed = True
            self._take_back(before, effects)
            code = m.RefusalCode.BUSY
            if fault.errno in FULL or fault.errno in BROKEN:
                code = m.RefusalCode.FULL
                self._full_until = self.ports.clock.monotonic() + limits.FULL_PAUSE_S
            self._refuse(envelope, code, f"the disk refuses: {fault}")

    def _take_back(self, before: worker.WorkerState, effects: tuple[worker.Effect, ...]) -> None:
        """The disk has refused, perhaps in the middle: believe in nothing that is not decided or
        sealed. A record whose fsync failed may not be durable whatever a second one says."""
        session_path = f"{self.root}/session.json"
        session = before.session
        if self.ports.disk.size(session_path) is not None:
            session = read_value(self.ports.disk, int, session_path)
        sealed = before.sealed
        dropped = [
            (Position(*one.time, 0), one.attempt)
            for one in (before.opened, self.state.opened)
            if one
        ]
        for effect in effects:
            if isinstance(effect, worker.DropAttempt) and sealed is not None:
                displaced = (Position(*effect.time, effect.step), effect.attempt)
                sealed = None if displaced == sealed.id else sealed
            if isinstance(effect, worker.SealRecord):
                dropped.append(effect.record.id)
        self.state = replace(
            before, session=max(session, before.session), sealed=sealed, opened=None, held=None
        )
        for position, attempt in dropped:
            self.log.drop(position, attempt)

    def _refuse(self, envelope: Envelope, code: m.RefusalCode, detail: str) -> None:
        refusal = m.Refusal(header=self._header(), code=code, detail=detail)
        self.ports.wire.reply(envelope, refusal)

    def _persist_session(self, effect: worker.PersistSession, envelope: Envelope) -> None:
        path = f"{self.root}/session.json"
        self.ports.disk.write_atomic(path, codec.dumps(effect.session))
        event("session", job=self.spec.uid, session=effect.session)

    def _drop_attempt(self, effect: worker.DropAttempt, envelope: Envelope) -> None:
        self.log.drop(Position(*effect.time, effect.step), effect.attempt)

    def _append_put(self, effect: worker.AppendPut, envelope: Envelope) -> None:
        put = envelope.message
        assert isinstance(put, m.Put)
        wanted = {name.vnode for name in effect.slices}
        bodies = [
            body
            for name, body in zip(put.slices, envelope.payload, strict=True)
            if name.vnode in wanted
        ]
        position = Position(*effect.time, 0)
        key = (effect.channel, effect.task_attempt)
        self.log.append_put(position, effect.attempt, key, effect.slices, bodies)

    def _forward_put(self, effect: worker.ForwardPut, envelope: Envelope) -> None:
        put = envelope.message
        assert isinstance(put, m.Put)
        by_vnode = {n.vnode: body for n, body in zip(put.slices, envelope.payload, strict=True)}
        bodies = [by_vnode[name.vnode] for name in effect.put.slices]
        self._forward(effect, bodies)

    def _forward_held(self, effect: worker.ForwardHeld, envelope: Envelope) -> None:
        assert envelope.message is not None
        held = worker.held_forwards(self.state.worker, effect.attempt, envelope.message.header)
        position = Position(*effect.attempt.time, 0)
        for forward in held:
            key = (forward.put.channel, forward.put.task_attempt)
            bodies = [
                self.log.open_bytes(position, effect.attempt.attempt, key, name.vnode)
                for name in forward.put.slices
            ]
            self._forward(forward, bodies)

    def _forward(self, forward: worker.ForwardPut, bodies: list[memoryview]) -> None:
        """A lost forward is found at the seal, by name, and asked for again there."""
        epoch = self.state.epoch()
        assert epoch is not None
        address = Address(epoch.workers[forward.worker])
        self.ports.ask(
            address, forward.put, lambda _: None, bodies, timeout_s=limits.FETCH_TIMEOUT_S
        )

    def _seal_record(self, effect: worker.SealRecord, envelope: Envelope) -> None:
        decided = self.state.decided
        if decided is None or decided.id != effect.record.after:
            self._gaps += 1
        self.log.seal(effect.record)

    def _decide(self, effect: worker.Decide, envelope: Envelope) -> None:
        record = effect.record
        if record.id == self._found:  # of which the log may have a piece only
            self._gaps += 1
        self._note_epoch(record)
        if record.is_marker:
            event(
                "marker", job=self.spec.uid, epoch=record.next_epoch.number, after=record.position
            )

    def _note_epoch(self, record: DecisionRecord) -> None:
        if record.is_marker and record.next_epoch.forfeited:  # once: batches of that epoch count
            self.forfeits.append(record)
        if record.is_marker:
            self._epoch_starts[record.next_epoch.number] = record.time

    def _release(self, effect: worker.Release, envelope: Envelope) -> None:
        if effect.time > self.released:
            self.released = effect.time
            self.outputs.release(effect.time)

    def learn_released(self, time: BatchTime) -> None:
        """A checkpoint here has a batch, so that it is released: the log alone does not tell this
        after a restart."""
        self.released = max(self.released, time)

    def _reply(self, effect: worker.Reply, envelope: Envelope) -> None:
        self.ports.wire.reply(envelope, effect.message)

    def _reply_when_applied(self, effect: worker.ReplyWhenApplied, envelope: Envelope) -> None:
        for instance in self.instances.values():
            instance.refusal = None
        self._owed.append((envelope, effect.record, self.ports.clock.monotonic()))

    def _give_up(self, effect: worker.GiveUp, envelope: Envelope) -> None:
        self.damaged = effect.fault

    def note_whole(self, vnodes: frozenset[Vnode]) -> None:
        """Tell the machine of which vnodes this worker, not a full member yet, has a whole copy."""
        if vnodes != self.state.whole:
            self.state = replace(self.state, whole=vnodes)

    # --- what is decided, and by whom it is applied -----------------------------------------------

    @property
    def decided_time(self) -> BatchTime:
        """The newest batch that is known to be decided."""
        return self.state.decided.time if self.state.decided is not None else BASE

    @property
    def batch_under_way(self) -> bool:
        """Whether rows are staged here, or somebody waits until they are applied."""
        return self.state.opened is not None or bool(self._owed)

    def epoch(self) -> Epoch | None:
        """The epoch that holds now, as far as this worker knows."""
        return self.state.epoch()

    def owners_now(self) -> Owners:
        """This worker's instances and their vnodes under the newest epoch."""
        return self._local_owners(self.epoch())

    def _local_owners(self, epoch: Epoch | None) -> Owners:
        """Worked out once an epoch; an undecided one may be followed by another of its number."""
        if epoch is None:
            return {}
        known = self._owners.get(epoch.number)
        if known is None or known[0] is not epoch:
            here = self.ports.settings.worker
            mine = [i for i, worker_id in epoch.instances.items() if worker_id == here]
            known = (epoch, {instance: frozenset(epoch.owned_by(instance)) for instance in mine})
            self._owners = {
                number: one for number, one in self._owners.items() if number >= epoch.number - 1
            }
            self._owners[epoch.number] = known
        return known[1]

    def unmade(self) -> tuple[Duty, ...]:
        """What instances here owe of the output of the newest decided batch and have not made."""
        time = self.decided_time
        if time <= self.released or time.batch < 0:
            return ()
        made = self.outputs.of(time)
        return tuple(d for d in self._duties(time) or () if (d.instance, d.part) not in made)

    def _made(self, time: BatchTime) -> tuple[m.OutputName, ...]:
        """The parts of a batch's output that are here to be fetched. What an instance has made that
        was given up since, an heir makes again, here or elsewhere: it counts no more."""
        made, owed = self.outputs.of(time), self._duties(time)
        keys = made.keys() if owed is None else {(d.instance, d.part) for d in owed} & made.keys()
        return tuple(made[key] for key in sorted(keys))

    def _duties(self, time: BatchTime) -> tuple[Duty, ...] | None:
        """The duties of this worker's instances for a batch, as the newest decided record has them;
        None if that is of another batch."""
        decided = self.state.decided
        if decided is None or decided.time != time:
            return None
        here = self.ports.settings.worker
        return tuple(duty for duty in decided.owed if duty.worker == here)

    def answer_applied(self) -> None:
        """Answer every `Apply` whose batch all owners here have applied, or one cannot. Who waits
        for want of room hears so now and then; and who waits in an older session, that it is one:
        a cut of the newer may have made owners here the heirs of a part that it has from others."""
        if not self._owed:
            return
        waiting, self._owed = self._owed, []
        long_ago = self.ports.clock.monotonic() - limits.FULL_SAID_S
        unmade = self.unmade()
        owing = [self.instances.get(duty.instance) for duty in unmade]
        refusals = [one.refusal for one in owing if one is not None and one.refusal]
        for envelope, record, since in waiting:
            released = record.time <= self.released
            assert envelope.message is not None
            if envelope.message.header.session < self.state.session:
                self._refuse(envelope, m.RefusalCode.FENCED, "a newer session has come meanwhile")
            elif not released and refusals:
                self._refuse(envelope, *refusals[0])
            elif not released and unmade and since < long_ago and self._must_wait():
                detail = f"its disk has no room, or refuses, to apply batch {record.time}"
                self._refuse(envelope, m.RefusalCode.FULL, detail)
            elif not released and unmade:
                self._owed.append((envelope, record, since))
            else:
                answer = m.ApplyAnswer(
                    header=self._header(),
                    record=record.id,
                    outputs=() if released else self._made(record.time),
                    applied_at=self.ports.clock.wall(),
                    released=released and record.time.batch >= 0,
                )
                self.ports.wire.reply(envelope, answer)

    def _header(self) -> m.Header:
        epoch = self.epoch()
        return self.ports.header(
            self.spec.uid, self.state.session, epoch.number if epoch is not None else 0
        )

    def continuity(self) -> tuple[int, int]:
        """Changes whenever what the log has of a vnode may have stopped to be contiguous: another
        epoch, a record whose predecessor is not here, or a decided one that was missed."""
        epoch = self.epoch()
        return (epoch.number if epoch is not None else 0, self._gaps)

    def epoch_start(self) -> BatchTime | None:
        """The batch whose record made the newest decided epoch hold, as far as the log shows."""
        if self.state.decided is None:
            return None
        return self._epoch_starts.get(self.state.decided.next_epoch.number, self.decided_time)

    def trim_log(self, through: BatchTime) -> int:
        """Remove batches up to one; returns the bytes freed.

        The newest batch's record stays, and the one before it, which it shows to be decided.
        """
        decided = self.state.decided
        if decided is None:
            return 0
        newest = self.log.record(decided.time) or decided
        oldest = min(newest.epoch, decided.epoch)
        for number in [number for number in self._epoch_starts if number < oldest]:
            self._epoch_starts.pop(number)
        return self.log.trim(BatchTime(through.generation, through.batch + 1), newest.position)

    # --- instances -------------------------------------------------------------------------------

    def instance(self, name: InstanceId) -> Instance:
        """The instance of a name, made known if it is not yet."""
        if name not in self.instances:
            self.instances[name] = Instance(
                self.ports, self.spec, self.root, name, self.outputs.find
            )
        return self.instances[name]

    def wanted_instances(self) -> frozenset[InstanceId]:
        """Those that the newest epoch, an output that is due, or the controller wants here. None
        once the job has gone on without this worker."""
        if self.is_past(self.desired.left):
            return frozenset()
        owing = {duty.instance for duty in self.unmade()}
        return frozenset(self.owners_now()) | owing | set(self.desired.instances)

    def is_past(self, left: int | None) -> bool:
        """Whether the job has nothing more for this worker since an epoch, as far as the worker
        itself knows: `left` may be old news, and it may have been taken in again since."""
        epoch = self.epoch()
        if left is None or (epoch is not None and epoch.number > left):
            return False
        here = self.ports.settings.worker
        return epoch is None or epoch.number < left or here not in epoch.listeners()

    def reconcile_instances(self) -> None:
        """Start what is wanted and stop what is not."""
        wanted = self.wanted_instances()
        for name in sorted(wanted):
            instance = self.instance(name)
            try:
                instance.ensure_running()
            except OSError as fault:
                instance.set_back(f"it cannot be started: {fault}")
        if self.told:
            for name in [n for n in self.instances if n not in wanted]:
                self.instances.pop(name).stop()

    def drop(self) -> None:
        """The job leaves this worker: end its instances for good."""
        for instance in self.instances.values():
            instance.stop()


def _as_named(put: m.Put, envelope: Envelope) -> bool:
    """Whether a put's payload is what its names promise: nobody would find out before the apply."""
    if len(put.slices) != len(envelope.payload):
        return False
    return all(
        len(body) == name.size and xxhash.xxh3_64_intdigest(body) == name.checksum
        for name, body in zip(put.slices, envelope.payload, strict=True)
    )


def _before(log: WorkerLog, time: BatchTime) -> BatchTime:
    """The batch before `time` in the log: the newest that is surely released after a restart."""
    record = log.record(time)
    return record.link.after if record is not None else BASE


_EFFECTS: dict[type, Callable[[Job, Any, Envelope], None]] = {
    worker.PersistSession: Job._persist_session,
    worker.DropAttempt: Job._drop_attempt,
    worker.AppendPut: Job._append_put,
    worker.ForwardPut: Job._forward_put,
    worker.ForwardHeld: Job._forward_held,
    worker.SealRecord: Job._seal_record,
    worker.Decide: Job._decide,
    worker.Release: Job._release,
    worker.Reply: Job._reply,
    worker.ReplyWhenApplied: Job._reply_when_applied,
    worker.GiveUp: Job._give_up,
}
