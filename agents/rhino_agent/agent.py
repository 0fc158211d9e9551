"""The agent's loop: one thread over the ports, for all jobs of its worker."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from rhino_agent import ballast
from rhino_agent.allegiance import Allegiance
from rhino_agent.copies import Copies
from rhino_agent.disks import DiskCare
from rhino_agent.feeder import Feeder
from rhino_agent.files import read_value
from rhino_agent.holdings import Holdings
from rhino_agent.instances import known_instances
from rhino_agent.job import Job
from rhino_agent.ports import Ports, event
from rhino_agent.replication import Replication
from rhino_agent.report import job_report, keepsake
from rhino_agent.scrub import Scrub
from rhino_agent.serving import SERVED, Serving
from rhino_agent.upkeep import Upkeep
from rhino_agent.verification import Verification
from rhinoctl import limits
from rhinoctl.errors import CorruptFile, ForeignManifest, RhinoError
from rhinoctl.ids import JobUid
from rhinoctl.protocol import codec
from rhinoctl.protocol import messages as m
from rhinoctl.protocol.disks import DiskReport
from rhinoctl.protocol.jobs import JobSpec
from rhinoctl.protocol.ports import Envelope
from rhinoctl.state.disk import RoomyDisk, is_temporary
from rhinoctl.state.disks import Disks

_BATCH_PROTOCOL = (m.Fence, m.Open, m.Put, m.Resend, m.Seal, m.Apply)

_GONE = ".gone"
"""What a job's directory is called while it is removed."""

_LEFT = "left"
"""Where the names of jobs are that have left while a disk was away that may have files of them."""

_ASIDE = "bad"
"""Where directories of jobs are that could not be read, the last of each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostLimits:
    """How many files a process here may open, and the host's memory; 0: not known. `links_refused`
    is how its file system refuses hard links, by the name of the error; empty if it makes them."""

    open_files: int
    memory_bytes: int
    links_refused: str = ""


UNKNOWN_HOST = HostLimits(open_files=0, memory_bytes=0)


def next_incarnation(disk: RoomyDisk) -> int:
    """The number of this start; durable before anything else is done. Raises DiskFull."""
    path = "incarnation.json"
    number = 1 if disk.size(path) is None else read_value(disk, int, path) + 1
    ballast.in_any_case(disk, lambda: disk.write_atomic(path, codec.dumps(number)))
    return number


def _has_no_files(disk: RoomyDisk, path: str) -> bool:
    """Whether a directory is what the first step of taking on a job leaves if it is cut short."""
    for name in disk.list(path):
        below = f"{path}/{name}"
        if is_temporary(name) or (disk.size(below) is None and _has_no_files(disk, below)):
            continue
        return False
    return True


@dataclass(frozen=True, slots=True)
class Desk:
    """Everything the agent runs for one job."""

    job: Job
    upkeep: Upkeep
    copies: Copies
    feeder: Feeder
    serving: Serving
    replication: Replication
    scrub: Scrub
    verification: Verification

    @property
    def has_work(self) -> bool:
        """Whether the next turn should come at once."""
        return self.upkeep.has_work or self.verification.has_work

    def drop(self) -> None:
        """The job leaves this worker."""
        self.verification.drop()
        self.copies.drop()
        self.replication.drop()
        self.job.drop()

    def affairs(self) -> tuple[Callable[[], None], ...]:
        """What is looked at in every turn, in this order."""
        return (
            self.job.reconcile_instances,
            self.upkeep.tick,
            self.copies.tick,
            self.note_whole,
            self.replication.tick,
            self.feeder.feed,
            self.job.answer_applied,
            self.upkeep.step,
            self.verification.tick,
            self.verification.step,
            self.scrub.step,
        )

    def note_whole(self) -> None:
        """Tell the worker machine which copies are whole."""
        self.job.note_whole(self.copies.whole())


class Agent:
    """Takes messages, then lets every job look at its own affairs.

    What goes wrong with one job is told and stays with it: `mishaps` counts how often.
    """

    def __init__(
        self, ports: Ports, disks: Disks, *, pid: int, host: HostLimits = UNKNOWN_HOST
    ) -> None:
        self.mishaps = 0
        self._host = host
        self._ports = ports
        self._disk = disk = disks.spread
        self._pid = pid
        self._leaving_until: float | None = None
        self._ballast_at = 0.0
        self._desks: dict[JobUid, Desk] = {}
        self._unreadable: dict[JobUid, str] = {}
        self._damaged: set[JobUid] = set()
        self._allegiance = Allegiance(disk)
        self._care = DiskCare(ports, disks, self._desks)
        names, left = disk.list("jobs"), disk.list(_LEFT)
        for name in names:
            path = f"jobs/{name}"
            going = f"{name}{_GONE}" in names or name in left
            half_gone = going and not disk.first.list(path)
            if name.endswith(_GONE) or half_gone or _has_no_files(disk, path):
                disk.remove(path)
            elif not disk.first.list(path) and disk.list(f"{_ASIDE}/{name}"):
                disk.rename(path, f"{_ASIDE}/{name}")  # a start before this one did not get to it
            else:
                self._take_up(JobUid(name), f"{path}/spec.json")
        if self._has_every_disk():
            disk.remove(_LEFT)

    def _has_every_disk(self) -> bool:
        return all(member.usable for member in self._disk.members)

    def _take_up(self, uid: JobUid, path: str) -> None:
        """Go on with a job that was here before. One that cannot be read keeps the others going,
        and its files stay: nobody knows what is in them that nobody else has."""
        try:
            if self._disk.size(path) is None:
                raise ForeignManifest(
                    f"{path} is not there, beside files of a job",
                    remedy="nothing of it is touched; put it back, or move the directory away",
                )
            self._take_on(read_value(self._disk, JobSpec, path))
        except RhinoError as fault:
            self._unreadable[uid] = f"{fault.message}; {fault.remedy}"
            if isinstance(fault, CorruptFile):
                self._damaged.add(uid)
            event("job-unreadable", job=uid, fault=fault.message)

    @property
    def desks(self) -> Mapping[JobUid, Desk]:
        """The jobs of this worker."""
        return self._desks

    @property
    def has_work(self) -> bool:
        """Whether the next turn should come at once."""
        return self._care.has_work or any(desk.has_work for desk in self._desks.values())

    def disks(self) -> tuple[DiskReport, ...]:
        """Every disk of this worker, as it is."""
        return self._care.reports()

    def leave(self) -> None:
        """End soon: once the controller has been told, so that it does not take this for a loss, or
        has not asked for a while."""
        if self._leaving_until is None:
            self._leaving_until = self._ports.clock.monotonic() + limits.FAREWELL_S

    @property
    def left(self) -> bool:
        """Whether the loop shall end."""
        until = self._leaving_until
        return until is not None and self._ports.clock.monotonic() >= until

    def step(self, timeout_s: float) -> None:
        """One turn: whatever has come, then each job's affairs."""
        envelope = self._ports.wire.receive(0 if self.has_work else timeout_s)
        taken = 0
        while envelope is not None:
            self._try("message", "", self._take, envelope)
            taken += 1
            envelope = self._ports.wire.receive(0) if taken < limits.MESSAGES_A_TURN else None
        for uid, desk in list(self._desks.items()):
            for affair in desk.affairs():
                self._try("turn of job", uid, affair)
        self._try("care for the disks", "", self._care.step)
        now = self._ports.clock.monotonic()
        if now >= self._ballast_at:
            self._ballast_at = now + limits.BALLAST_LOOK_S
            ballast.lay(self._disk.first, self._ports.settings.ballast_bytes)

    def _try(self, what: str, of: str, act: Callable[..., None], *given: Any) -> None:
        """A full or failing disk, or a damaged file, is told and does not end the turn: whoever
        asked gets no answer, which every sender bears."""
        try:
            act(*given)
        except (RhinoError, OSError) as fault:
            self.mishaps += 1
            event("turn-failed", what=f"{what} {of}".rstrip(), fault=fault)

    def _is_full(self) -> bool:
        usable = [member for member in self._disk.members if member.usable]
        return any(member.room() < limits.DISK_FULL_BYTES for member in usable)

    def _take_on(self, spec: JobSpec) -> Desk:
        job = Job(self._ports, spec, is_full=self._is_full)
        upkeep = Upkeep(job, Holdings(job, self._disk))
        scrub = Scrub(job, upkeep)
        desk = Desk(
            job=job,
            upkeep=upkeep,
            copies=Copies(job, upkeep),
            feeder=Feeder(job, upkeep),
            serving=Serving(job, upkeep),
            replication=Replication(job, upkeep),
            scrub=scrub,
            verification=Verification(job, upkeep, scrub),
        )
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
        elif isinstance(message, m.ChangeDisks):
            self._care.handle(envelope)
        else:
            self._take_for_job(message, envelope)

    def _take_for_job(self, message: m.Message, envelope: Envelope) -> None:
        uid = message.header.job
        desk = self._desks.get(uid)
        if uid in self._unreadable:
            # As good as silent: who asks waits for a failover, and no query ends for it.
            self._refuse(envelope, m.RefusalCode.BUSY, self._unreadable[uid])
        elif desk is None:
            detail = f"job {uid} is not known to {self._ports.settings.worker}"
            self._refuse(envelope, m.RefusalCode.UNKNOWN_JOB, detail)
        elif isinstance(message, _BATCH_PROTOCOL):
            desk.job.handle(envelope)
            if desk.job.damaged:
                self._give_up(desk)
        elif isinstance(message, SERVED):
            desk.serving.handle(envelope)
        elif isinstance(message, m.OfferCheckpoint):
            desk.replication.handle(envelope)
        elif isinstance(message, m.StoredCheckpoint):
            desk.replication.stored(envelope)
        else:
            detail = f"a worker takes no {type(message).__name__}"
            self._refuse(envelope, m.RefusalCode.FOREIGN, detail)

    def _give_up(self, desk: Desk) -> None:
        """The log lacks what it had: go on as if it could not have been read at the start."""
        uid, fault = desk.job.spec.uid, desk.job.damaged
        desk.drop()
        del self._desks[uid]
        self._unreadable[uid] = fault
        self._damaged.add(uid)
        event("job-unreadable", job=uid, fault=fault)

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
        if message.claim is not None:
            hearing = self._allegiance.hear(message.claim)
            if hearing.objection:
                self._refuse(envelope, m.RefusalCode.STALE_STORE, hearing.objection)
                return
            if not hearing.late:
                self._take_wishes(message)
        self._report(message, envelope)

    def _take_wishes(self, message: m.Heartbeat) -> None:
        """Do as is wished; of a job that is not named nothing is."""
        named = {wish.spec.uid for wish in message.jobs}
        for wish in message.jobs:
            self._try("wish for job", wish.spec.uid, self._wish, wish)
        for uid, desk in self._desks.items():
            if uid not in named:
                desk.job.desired, desk.job.told = m.DesiredJob(spec=desk.job.spec), True

    def _report(self, message: m.Heartbeat, envelope: Envelope) -> None:
        """Tell what is here; of jobs that the asker may not know, also what is kept for it."""
        settings, no_log = self._ports.settings, self._care.no_log()
        named = {wish.spec.uid for wish in message.jobs}
        report = m.WorkerReport(
            header=self._ports.header(),
            worker=settings.worker,
            pid=self._pid,
            wall=self._ports.clock.wall(),
            free_bytes=self._disk.free_bytes(),
            jobs={
                uid: job_report(desk.job, desk.upkeep, desk.copies, desk.verification, desk.scrub)
                for uid, desk in self._desks.items()
                if not no_log
            },
            leaving=self._leaving_until is not None,
            open_files=self._host.open_files,
            memory_bytes=self._host.memory_bytes,
            links_refused=self._host.links_refused,
            instance_bytes=settings.cache_bytes
            + settings.buffer_bytes
            + limits.INSTANCE_BASE_BYTES,
            ruler=self._allegiance.ruler,
            keepsakes={
                uid: keepsake(desk.job, self._allegiance.memo(uid))
                for uid, desk in self._desks.items()
                if uid not in named
            },
            disks=self.disks(),
            unreadable={
                uid: m.Unreadable(fault=fault, damaged=uid in self._damaged)
                for uid, fault in self._unreadable.items()
            }
            | {uid: m.Unreadable(fault=no_log, damaged=False) for uid in self._desks if no_log},
        )
        self._ports.wire.reply(envelope, report)
        if report.leaving:
            self._leaving_until = self._ports.clock.monotonic()

    def _wish(self, wish: m.DesiredJob) -> None:
        uid = wish.spec.uid
        desk = self._desks.get(uid)
        if wish.aside == self._ports.incarnation and uid in self._damaged:
            self._set_aside(wish.spec)
            return
        if wish.dropped or (wish.left is not None and not wish.keep):
            if wish.dropped or (desk is not None and desk.job.is_past(wish.left)):
                self._drop(wish.spec, desk)
        elif wish.left is not None:
            if desk is not None:
                self._desire(desk, wish)
        elif uid not in self._unreadable:
            if desk is None:
                desk = self._take_on(wish.spec)
            self._desire(desk, wish)

    def _desire(self, desk: Desk, wish: m.DesiredJob) -> None:
        desk.job.desired, desk.job.told = wish, True
        desk.job.renew(wish.spec)
        if wish.memo is not None:
            self._allegiance.keep(wish.spec.uid, wish.memo)

    def _set_aside(self, spec: JobSpec) -> None:
        """What cannot be read is needed by nobody, as the controller knows of this very start, in
        which it had no part in any batch. Nothing is deleted but what was set aside before; copies
        are made anew as on an empty worker."""
        uid = spec.uid
        for instance in known_instances(self._ports, spec, f"jobs/{uid}", lambda _: None):
            instance.stop()
        self._allegiance.forget(uid)
        aside = f"{_ASIDE}/{uid}"
        self._remove_aside(uid)
        self._disk.rename(f"jobs/{uid}", aside)
        self._damaged.discard(uid)
        fault = self._unreadable.pop(uid)
        event("job-set-aside", job=uid, path=self._disk.path_of(aside), fault=fault)

    def _remove_aside(self, uid: JobUid) -> None:
        """Remove what was set aside of a job before, if there is something."""
        aside = f"{_ASIDE}/{uid}"
        if self._disk.list(aside):
            self._disk.remove(aside)
            event("aside-removed", job=uid, path=aside)

    def _drop(self, spec: JobSpec, desk: Desk | None) -> None:
        """The job is deleted, or has left this worker: end its instances and remove everything.

        The new name is durable before anything is removed: no crash brings part of it back. Nor
        does a disk that is away now: when it is back, it is known that the job has left."""
        uid = spec.uid
        self._remove_aside(uid)
        if desk is not None:
            desk.drop()
            del self._desks[uid]
        elif uid in self._unreadable:
            del self._unreadable[uid]
            self._damaged.discard(uid)
            for instance in known_instances(self._ports, spec, f"jobs/{uid}", lambda _: None):
                instance.stop()
        else:
            return
        self._allegiance.forget(uid)
        if not self._has_every_disk():
            self._disk.write_atomic(f"{_LEFT}/{uid}", b"")
        gone = f"jobs/{uid}{_GONE}"
        self._disk.remove(gone)
        self._disk.rename(f"jobs/{uid}", gone)
        self._disk.remove(gone)
        event("job-dropped", job=uid)

    def stop_instances(self) -> None:
        """End every instance: this worker ends on purpose."""
        for desk in self._desks.values():
            desk.verification.drop()
            for instance in desk.job.instances.values():
                instance.let_go()
