"""The agent's loop: one thread over the ports, for all jobs of its worker."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from rhino_agent.copies import Copies
from rhino_agent.feeder import Feeder
from rhino_agent.job import Job
from rhino_agent.ports import Ports, event
from rhino_agent.report import job_report
from rhino_agent.serving import SERVED, Serving
from rhino_agent.upkeep import Upkeep
from rhinoctl import limits
from rhinoctl.ids import JobUid
from rhinoctl.protocol import codec
from rhinoctl.protocol import messages as m
from rhinoctl.protocol.jobs import JobSpec
from rhinoctl.protocol.ports import Envelope
from rhinoctl.state.disk import StampingDisk

_BATCH_PROTOCOL = (m.Fence, m.Open, m.Put, m.Resend, m.Seal, m.Apply)


class WorkerDisk(StampingDisk, Protocol):
    """A replica disk that also says how much room it has."""

    def free_bytes(self) -> int:
        """Bytes that may still be written."""
        ...


def next_incarnation(disk: WorkerDisk) -> int:
    """The number of this start of the agent; durable before anything else is done."""
    path = "incarnation.json"
    number = 1 if disk.size(path) is None else codec.loads(int, disk.read(path)) + 1
    disk.write_atomic(path, codec.dumps(number))
    return number


@dataclass(frozen=True, slots=True)
class Desk:
    """Everything the agent runs for one job."""

    job: Job
    upkeep: Upkeep
    copies: Copies
    feeder: Feeder
    serving: Serving


class Agent:
    """Takes messages, then lets every job look at its own affairs."""

    def __init__(self, ports: Ports, disk: WorkerDisk, *, pid: int) -> None:
        self._ports = ports
        self._disk = disk
        self._pid = pid
        self._desks: dict[JobUid, Desk] = {}
        for uid in disk.list("jobs"):
            path = f"jobs/{uid}/spec.json"
            if disk.size(path) is None:
                disk.remove(f"jobs/{uid}")
                continue
            self._take_on(codec.loads(JobSpec, disk.read(path)))

    def step(self, timeout_s: float) -> None:
        """One turn: whatever has come, then each job's affairs, then a slice of background work."""
        envelope = self._ports.wire.receive(0 if self.has_work else timeout_s)
        taken = 0
        while envelope is not None:
            self._take(envelope)
            taken += 1
            envelope = self._ports.wire.receive(0) if taken < limits.MESSAGES_A_TURN else None
        for desk in self._desks.values():
            desk.job.reconcile_instances()
            desk.upkeep.tick()
            desk.copies.tick()
            desk.job.note_whole(desk.copies.whole())
            desk.feeder.feed()
            desk.job.answer_applied()
            desk.upkeep.step()

    @property
    def desks(self) -> Mapping[JobUid, Desk]:
        """The jobs of this worker."""
        return self._desks

    @property
    def has_work(self) -> bool:
        """Whether the next turn should come at once."""
        return any(desk.upkeep.has_work for desk in self._desks.values())

    def _take_on(self, spec: JobSpec) -> Desk:
        job = Job(self._ports, spec)
        upkeep = Upkeep(job, self._disk)
        desk = Desk(job, upkeep, Copies(job, upkeep), Feeder(job, upkeep), Serving(job, upkeep))
        self._desks[spec.uid] = desk
        event("job-taken-on", job=spec.uid, session=job.state.session)
        return desk

    # --- messages --------------------------------------------------------------------------------

    def _take(self, envelope: Envelope) -> None:
        if envelope.request is not None:
            self._ports.answered(envelope)
            return
        message = envelope.message
        if message is None:
            return
        if message.header.cluster != self._ports.settings.cluster:
            detail = f"this worker belongs to cluster {self._ports.settings.cluster}"
            self._refuse(envelope, m.RefusalCode.FOREIGN, detail)
        elif isinstance(message, m.Heartbeat):
            self._heartbeat(message, envelope)
        else:
            self._take_for_job(message, envelope)

    def _take_for_job(self, message: m.Message, envelope: Envelope) -> None:
        desk = self._desks.get(message.header.job)
        if desk is None:
            detail = f"job {message.header.job} is not known to {self._ports.settings.worker}"
            self._refuse(envelope, m.RefusalCode.UNKNOWN_JOB, detail)
        elif isinstance(message, _BATCH_PROTOCOL):
            desk.job.handle(envelope)
        elif isinstance(message, SERVED):
            desk.serving.handle(envelope)
        else:
            detail = f"a worker takes no {type(message).__name__}"
            self._refuse(envelope, m.RefusalCode.FOREIGN, detail)

    def _refuse(self, envelope: Envelope, code: m.RefusalCode, detail: str) -> None:
        refusal = m.Refusal(header=self._ports.header(), code=code, detail=detail)
        self._ports.wire.reply(envelope, refusal)

    def _heartbeat(self, message: m.Heartbeat, envelope: Envelope) -> None:
        """Take the controller's wishes, and report."""
        settings = self._ports.settings
        if message.worker != settings.worker:
            detail = f"this is worker {settings.worker}, not {message.worker}"
            self._refuse(envelope, m.RefusalCode.FOREIGN, detail)
            return
        for wish in message.jobs:
            self._wish(wish)
        report = m.WorkerReport(
            header=self._ports.header(),
            worker=settings.worker,
            pid=self._pid,
            wall=self._ports.clock.wall(),
            free_bytes=self._disk.free_bytes(),
            jobs={
                uid: job_report(desk.job, desk.upkeep, desk.copies)
                for uid, desk in self._desks.items()
            },
        )
        self._ports.wire.reply(envelope, report)

    def _wish(self, wish: m.DesiredJob) -> None:
        desk = self._desks.get(wish.spec.uid)
        if wish.dropped:
            if desk is not None:
                self._drop(desk)
            return
        if desk is None:
            desk = self._take_on(wish.spec)
        desk.job.desired = wish

    def _drop(self, desk: Desk) -> None:
        """The job is deleted: end its instances and remove everything of it."""
        for instance in desk.job.instances.values():
            instance.stop()
        uid = desk.job.spec.uid
        del self._desks[uid]
        self._disk.remove(f"jobs/{uid}")
        event("job-dropped", job=uid)

    def stop_instances(self) -> None:
        """End every instance, for a cluster that goes down as a whole."""
        for desk in self._desks.values():
            for instance in desk.job.instances.values():
                instance.let_go()
