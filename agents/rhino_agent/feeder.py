"""Turning the choice of the next command into a message, and the answer into facts."""

from collections.abc import Iterable
from typing import Protocol

from rhino_agent.instances import Instance
from rhino_agent.job import Job
from rhino_agent.outputs import PartKey
from rhino_agent.ports import event
from rhinoctl import limits
from rhinoctl.ids import BASE, BatchTime, Vnode
from rhinoctl.protocol import feeding
from rhinoctl.protocol import messages as m
from rhinoctl.protocol.duties import Duty
from rhinoctl.protocol.ports import Envelope


class Bases(Protocol):
    """Where vnodes can be opened from, and which are to be checkpointed: the agent's upkeep."""

    def base(self, vnode: Vnode) -> tuple[str, BatchTime] | None:
        """The newest local checkpoint that may be opened: its directory ("" for nothing) and
        coverage; None if this worker has no contiguous copy."""
        ...

    def awaits(self, vnode: Vnode) -> bool:
        """Whether a copy comes from another worker in the place of what is not whole here."""
        ...

    def sound(self, vnode: Vnode) -> bool:
        """Whether the base is known to be what its manifest says; if not, it is looked at."""
        ...

    def opening(self, instance: Instance, vnode: Vnode) -> None:
        """An instance is about to open the vnode from its base."""
        ...

    def opened(self, instance: Instance, vnode: Vnode, *, well: bool) -> None:
        """It has, or it could not."""
        ...

    def doubt_log(self, time: BatchTime, vnodes: Iterable[Vnode]) -> None:
        """A batch could not be applied to some vnodes: perhaps its rows in the log are damaged."""
        ...

    def is_tainted(self, instance: Instance, vnode: Vnode) -> bool:
        """Whether what an instance has open of the vnode links files that were found bad, and there
        is a base to open it anew from."""
        ...

    def applied(self, instance: Instance, rows: int, seconds: float) -> None:
        """An instance has applied so many rows in so much time."""
        ...

    def due(self, instance: Instance) -> tuple[Vnode, ...]:
        """Vnodes of an instance whose checkpoint is due, most urgent first."""
        ...

    def begin_checkpoint(self, vnode: Vnode, covers: BatchTime) -> tuple[str, str]:
        """An id, and the absolute directory for RocksDB to write the checkpoint into."""
        ...

    def checkpoint_written(
        self, vnode: Vnode, checkpoint_id: str, answer: m.Checkpointed | None
    ) -> None:
        """RocksDB has written it: hash it and let it count; None: it has not."""
        ...


class Feeder:
    """Keeps every instance of a job busy with the most urgent command."""

    def __init__(self, job: Job, bases: Bases) -> None:
        self._job = job
        self._bases = bases

    def feed(self) -> None:
        """Give each idle, ready instance its next command."""
        now = self._job.ports.clock.monotonic()
        for instance in self._job.instances.values():
            idle = instance.ready and not instance.busy and instance.refusal is None
            if idle and now >= instance.not_before:
                self._feed(instance)

    def _feed(self, instance: Instance) -> None:
        view = self._view(instance)
        if self._is_past(instance):
            return
        stranded = self._stranded(instance, view)
        command = feeding.next_command(view)
        if stranded:
            self._close(instance, stranded[0])
        elif command is not None:
            self._give(instance, command)

    def _stranded(self, instance: Instance, view: feeding.Feed) -> list[Vnode]:
        """The open vnodes that the log does not lead on from where they stand: they are opened anew
        from a copy that it does; what an owner has stays open until there is one. What is only
        followed goes at once: a batch that owners need would wait for it. So do tainted ones."""
        following = {at: feeding.successor(view.links, at) for at in {*instance.applied.values()}}
        has = self._job.log.has
        return sorted(
            vnode
            for vnode, at in instance.applied.items()
            if self._bases.is_tainted(instance, vnode)
            or (
                (link := following[at]) is not None
                and not (link.after == at and has(link.time, vnode))
                and (vnode not in view.owned or self._bases.base(vnode) is not None)
            )
        )

    def _owed(self, instance: Instance) -> list[Duty]:
        """What an instance owes of the newest batch's output and has not made."""
        return [duty for duty in self._job.unmade() if duty.instance == instance.id]

    def _is_past(self, instance: Instance) -> bool:
        """Whether an instance has applied the batch whose output it owes, and ends for it.

        It does not apply a batch again, so the next incarnation makes the output, from a checkpoint
        before the batch. There is one, since the batch is not released; if not, that is told. An
        heir only opens what it has followed anew.
        """
        time = self._job.decided_time
        owed = self._owed(instance)
        spent = [
            duty
            for duty in owed
            if any(instance.applied.get(vnode, BASE) >= time for vnode in duty.vnodes)
        ]
        if not spent:
            return False
        bases = [self._bases.base(vnode) for duty in spent for vnode in duty.vnodes]
        if not all(base is not None and base[1] < time for base in bases):
            detail = f"the output of batch {time} by {instance.id} is gone and cannot be made again"
            instance.refusal = (m.RefusalCode.FAULT, detail)
            return True
        if all(duty.part for duty in spent):
            return False
        instance.end(f"its output of batch {time} is gone")
        return True

    def _view(self, instance: Instance) -> feeding.Feed:
        job = self._job
        owned = job.owners_now().get(instance.id, frozenset())
        owed = tuple(duty.vnodes for duty in self._owed(instance))
        owned = owned.union(*owed)
        follow = frozenset(w.vnode for w in job.desired.warm if w.instance == instance.id)
        if not job.told:
            follow |= instance.applied.keys()
        closed = follow - instance.applied.keys()
        base = {v: at[1] for v in closed if (at := self._bases.base(v)) is not None}
        floor = min(instance.applied.values(), default=BASE)
        return feeding.Feed(
            applied=instance.applied,
            owned=owned,
            follow=follow,
            base=base,
            links=job.log.links(floor, job.decided_time),
            released=job.released,
            pending=(job.decided_time, owed) if owed else None,
            checkpoint=self._bases.due(instance),
        )

    def _give(self, instance: Instance, command: feeding.Command) -> None:
        if isinstance(command, feeding.OpenCommand):
            self._open(instance, command.vnode)
        elif isinstance(command, feeding.CloseCommand):
            self._close(instance, command.vnode)
        elif isinstance(command, feeding.ApplyCommand):
            self._apply(instance, command)
        else:
            self._checkpoint(instance, command.vnode)

    def _header(self, instance: Instance) -> m.Header:
        job = self._job
        return m.Header(
            cluster=job.ports.settings.cluster,
            job=job.spec.uid,
            session=job.state.session,
            incarnation=instance.incarnation,
        )

    def _open(self, instance: Instance, vnode: Vnode) -> None:
        base = self._bases.base(vnode)
        if base is None:
            self._lack(instance, vnode, f"there is no whole copy of vnode {vnode} here")
            return
        if not self._bases.sound(vnode):
            return
        directory, covers = base
        live = f"{self._job.root}/live/{instance.id}/{instance.incarnation}/{vnode}"
        message = m.OpenVnode(
            header=self._header(instance),
            vnode=vnode,
            base=directory,
            covers=covers,
            live=self._job.ports.disk.path_of(live),
        )
        self._bases.opening(instance, vnode)

        def opened(envelope: Envelope) -> None:
            well = isinstance(envelope.message, m.Done)
            self._bases.opened(instance, vnode, well=well or envelope.message is None)
            if well:
                instance.applied[vnode] = covers
                instance.went_well()
                event("vnode-open", instance=instance.id, vnode=vnode, covers=covers)
            else:
                self._failed(instance, envelope, f"open of vnode {vnode}")

        instance.command(message, opened, timeout_s=limits.COMMAND_DEADLINE_S)

    def _close(self, instance: Instance, vnode: Vnode) -> None:
        message = m.CloseVnode(header=self._header(instance), vnode=vnode)

        def closed(envelope: Envelope) -> None:
            if isinstance(envelope.message, m.Done):
                instance.applied.pop(vnode, None)
                instance.state_bytes.pop(vnode, None)
                event("vnode-closed", instance=instance.id, vnode=vnode)
            else:
                self._failed(instance, envelope, f"close of vnode {vnode}")

        instance.command(message, closed, timeout_s=limits.COMMAND_DEADLINE_S)

    def _apply(self, instance: Instance, command: feeding.ApplyCommand) -> None:
        job = self._job
        record = job.log.record(command.time)
        assert record is not None
        lacking = sorted(v for v in command.vnodes if not job.log.has(command.time, v))
        if lacking:
            vnode = lacking[0]
            self._lack(instance, vnode, f"the log lacks vnode {vnode} at batch {command.time}")
            return
        disk = job.ports.disk
        parts = tuple(
            m.SegmentPart(path=disk.path_of(path), places=places)
            for path, _, places in job.log.places(command.time, command.vnodes)
        )
        key = (instance.id, self._part_of(instance, command))
        output = disk.path_of(job.outputs.stem(key, command.time)) if command.owned else ""
        message = m.ApplyBatch(
            header=self._header(instance),
            time=command.time,
            vnodes=tuple(sorted(command.vnodes)),
            parts=parts,
            output=output,
            owned=tuple(sorted(command.owned)),
            watermarks=record.watermarks,
            batch_time_ms=record.batch_time_ms,
        )

        sizes = [place.size for part in parts for place in part.places]
        rows = sum(record.rows.get(vnode, 0) for vnode in command.vnodes)
        clock = job.ports.clock
        began = clock.monotonic()

        def applied(envelope: Envelope) -> None:
            if isinstance(envelope.message, m.BatchApplied):
                self._bases.applied(instance, rows, clock.monotonic() - began)
                self._applied(instance, command, envelope.message, key)
                job.applied_bytes += sum(sizes) if command.owned else 0
            else:
                if isinstance(envelope.message, m.Refusal):
                    self._bases.doubt_log(command.time, command.vnodes)
                self._failed(instance, envelope, f"batch {command.time}")

        instance.command(message, applied, timeout_s=limits.COMMAND_DEADLINE_S)

    def _part_of(self, instance: Instance, command: feeding.ApplyCommand) -> int:
        """Which part of the batch's output a command makes."""
        parts = [duty.part for duty in self._owed(instance) if duty.vnodes == command.owned]
        return parts[0] if parts else 0

    def _applied(
        self,
        instance: Instance,
        command: feeding.ApplyCommand,
        answer: m.BatchApplied,
        key: PartKey,
    ) -> None:
        for vnode in command.vnodes:
            instance.applied[vnode] = command.time
        instance.state_bytes.update(answer.state_bytes)
        instance.rss_bytes = answer.rss_bytes
        instance.poison = ""
        if command.owned:
            instance.applies.append((command.time, answer.applied_at))
            self._job.outputs.note(key, command.time, answer.rows, answer.size)
        instance.went_well()

    def _checkpoint(self, instance: Instance, vnode: Vnode) -> None:
        covers = instance.applied[vnode]
        checkpoint_id, directory = self._bases.begin_checkpoint(vnode, covers)
        message = m.CheckpointVnode(header=self._header(instance), vnode=vnode, directory=directory)

        def written(envelope: Envelope) -> None:
            answer = envelope.message
            if isinstance(answer, m.Checkpointed):
                self._bases.checkpoint_written(vnode, checkpoint_id, answer)
            else:
                self._bases.checkpoint_written(vnode, checkpoint_id, None)
                self._failed(instance, envelope, f"checkpoint of vnode {vnode}")

        instance.command(message, written, timeout_s=limits.COMMAND_DEADLINE_S)

    def _failed(self, instance: Instance, envelope: Envelope, what: str) -> None:
        """A command came to nothing.

        Silence is told by the process: `Instance` finds out whether it lives. What the instance
        refuses as not fitting what it has open makes us ask what it has. Anything else is tried
        again after a moment.
        """
        refusal = envelope.message
        if not isinstance(refusal, m.Refusal):
            event("command-lost", instance=instance.id, what=what, detail=envelope.detail)
            return
        self._set_back(instance, f"{what} at {instance.id}: {refusal.detail}", refusal.code)
        if refusal.code in _NOT_AS_BELIEVED:
            instance.ready = False

    def _lack(self, instance: Instance, vnode: Vnode, what: str) -> None:
        """What comes from another worker is waited for, or that one takes over: no batch fails."""
        if self._bases.awaits(vnode):
            instance.set_back(what)
        else:
            self._set_back(instance, what)

    def _set_back(
        self, instance: Instance, what: str, code: m.RefusalCode = m.RefusalCode.FAULT
    ) -> None:
        """Leave an instance alone for a moment. Whoever waits for its output is told at once if the
        batch is poison, and soon if it is the worker that fails."""
        instance.set_back(what)
        poison = code is m.RefusalCode.POISON
        if poison:
            instance.poison = what
        tried = instance.setbacks >= limits.SETBACKS_MAX and not self._job.disk_refuses()
        if self._owed(instance) and (poison or tried):
            instance.refusal = (m.RefusalCode.POISON if poison else m.RefusalCode.FAULT, what)


_NOT_AS_BELIEVED = (
    m.RefusalCode.STALE_ATTEMPT,
    m.RefusalCode.NOT_FOUND,
    m.RefusalCode.FENCED,
)
