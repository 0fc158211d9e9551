"""Turning the choice of the next command into a message, and the answer into facts."""

from typing import Protocol

from rhino_agent.instances import Instance
from rhino_agent.job import Job
from rhino_agent.ports import event
from rhinoctl import limits
from rhinoctl.ids import BASE, BatchTime, Vnode
from rhinoctl.protocol import feeding
from rhinoctl.protocol import messages as m
from rhinoctl.protocol.ports import Envelope


class Bases(Protocol):
    """Where vnodes can be opened from, and which are to be checkpointed: the agent's upkeep."""

    def base(self, vnode: Vnode) -> tuple[str, BatchTime] | None:
        """The newest local checkpoint that may be opened: its directory ("" for nothing) and
        coverage; None if this worker has no contiguous copy."""
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
        for instance in self._job.instances.values():
            if instance.ready and not instance.busy and not instance.fault:
                command = feeding.next_command(self._view(instance))
                if command is not None:
                    self._give(instance, command)

    def _view(self, instance: Instance) -> feeding.Feed:
        job = self._job
        owned = job.owners_now().get(instance.id, frozenset())
        unmade = job.unmade().get(instance.id)
        if unmade is not None:
            owned |= unmade
        follow = frozenset(w.vnode for w in job.desired.warm if w.instance == instance.id)
        closed = follow - instance.applied.keys()
        base = {v: at[1] for v in closed if (at := self._bases.base(v)) is not None}
        floor = min(instance.applied.values(), default=BASE)
        return feeding.Feed(
            applied=instance.applied,
            owned=owned,
            follow=follow,
            base=base,
            batches=job.log.batches(floor, job.decided_time),
            released=job.released,
            pending=None if unmade is None else (job.decided_time, unmade),
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
            return
        directory, covers = base
        message = m.OpenVnode(
            header=self._header(instance), vnode=vnode, base=directory, covers=covers
        )

        def opened(envelope: Envelope) -> None:
            if isinstance(envelope.message, m.Done):
                instance.applied[vnode] = covers
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
        disk = job.ports.disk
        parts = tuple(
            m.SegmentPart(path=disk.path_of(path), places=places)
            for path, _, places in job.log.places(command.time, command.vnodes)
        )
        output = ""
        if command.owned:
            output = disk.path_of(f"{job.root}/out/{_folder(command.time)}/{instance.id}")
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

        def applied(envelope: Envelope) -> None:
            if isinstance(envelope.message, m.BatchApplied):
                self._applied(instance, command, envelope.message)
            else:
                self._failed(instance, envelope, f"batch {command.time}")

        instance.command(message, applied, timeout_s=limits.COMMAND_DEADLINE_S)

    def _applied(
        self, instance: Instance, command: feeding.ApplyCommand, answer: m.BatchApplied
    ) -> None:
        for vnode in command.vnodes:
            instance.applied[vnode] = command.time
        instance.state_bytes.update(answer.state_bytes)
        instance.rss_bytes = answer.rss_bytes
        if command.owned:
            instance.applies.append((command.time, answer.applied_at))
            self._job.output_made(instance.id, command.time, answer.rows, answer.size)

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
                event("checkpoint-failed", instance=instance.id, vnode=vnode)

        instance.command(message, written, timeout_s=limits.COMMAND_DEADLINE_S)

    def _failed(self, instance: Instance, envelope: Envelope, what: str) -> None:
        """A refusal stops the instance's feeding until the driver asks again; silence is told by
        the process: `Instance` finds out whether it lives."""
        if isinstance(envelope.message, m.Refusal):
            instance.fault = f"{what} at {instance.id}: {envelope.message.detail}"
        event("command-failed", instance=instance.id, what=what, detail=envelope.detail)


def _folder(time: BatchTime) -> str:
    return f"{time.generation}-{time.batch}"
