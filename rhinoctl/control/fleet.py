"""The workers as the controller sees them: what it wishes of each, and what each last reported."""

import logging
from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass, field

from rhinoctl import limits
from rhinoctl.ids import BatchTime, InstanceId, JobUid, WorkerId
from rhinoctl.protocol import messages as m
from rhinoctl.protocol.claims import Claim, objection
from rhinoctl.protocol.epochs import Epoch
from rhinoctl.protocol.placement import Capacity
from rhinoctl.protocol.ports import Address, Clock, Envelope, Outcome, Wire
from rhinoctl.wire.beacon import reached

log = logging.getLogger("rhino.controller")

Wishes = Callable[[WorkerId], tuple[m.DesiredJob, ...]]


@dataclass(slots=True)
class Seen:
    """What is known of one worker; times are of the monotonic clock. `report` came `at`, as the
    answer to wishes that were sent at `told_at`; `asking` are the questions under way, and when
    they were sent; `tried` once it has answered, or has not; then
    `refused` says that nothing listens at its address. While it is `suspect` it is asked often.
    `apart_at` is when it was last found to be of a version that is not spoken here.
    `objection` is why it does not listen to this controller's store, which stays known when it
    falls silent; `told_number` the number of the store with which it was asked last."""

    address: str
    report: m.WorkerReport | None = None
    at: float | None = None
    told_at: float | None = None
    asked_at: float | None = None
    asking: dict[int, float] = field(default_factory=dict)
    tried: bool = False
    refused: bool = False
    suspect: bool = False
    apart_at: float | None = None
    detail: str = ""
    objection: str = ""
    told_number: int = 0

    @property
    def heard_at(self) -> float | None:
        """When it answered last, be it in a version that is not understood: that is no silence."""
        return max((at for at in (self.at, self.apart_at) if at is not None), default=None)

    def beacons(self) -> list[str]:
        """Addresses at which its instances listen as long as they live."""
        jobs = self.report.jobs.values() if self.report is not None else ()
        told = [one.beacon for job in jobs for one in job.instances.values() if one.beacon]
        return [reached(beacon, self.address) for beacon in told]


@dataclass(slots=True)
class Applies:
    """Apply times of one instance by batch, in wall seconds: enough for a handover's pause."""

    at: dict[BatchTime, float] = field(default_factory=dict)

    def add(self, applies: tuple[tuple[BatchTime, float], ...]) -> None:
        """Take what a report has; the oldest go beyond the bound."""
        self.at.update(applies)
        for time in sorted(self.at)[: -4 * limits.APPLIES_KEPT]:
            del self.at[time]


class Fleet:
    """Heartbeats to every worker of the inventory. One that is not answered does not keep the next
    from being sent: a lost message is no silence."""

    def __init__(
        self,
        cluster: str,
        workers: Mapping[WorkerId, str],
        wire: Wire,
        clock: Clock,
        capacities: Mapping[WorkerId, Capacity] | None = None,
    ) -> None:
        self.capacities = dict(capacities or {})
        self._cluster = cluster
        self._wire = wire
        self._clock = clock
        self.workers = {name: Seen(address=workers[name]) for name in sorted(workers)}
        self.applies: dict[tuple[JobUid, InstanceId], Applies] = {}
        self._ticked_at = clock.monotonic()
        self._claim: Claim | None = None

    def slots(self, others: Iterable[Epoch]) -> dict[WorkerId, int]:
        """How many instances of a job each worker may have, beside those of the other layouts."""
        beside = Counter(worker for epoch in others for worker in epoch.instances.values())
        return {
            worker: max(0, capacity.instances - beside[worker])
            for worker, capacity in self.capacities.items()
            if capacity.instances is not None
        }

    def addresses(self) -> dict[WorkerId, str]:
        """The inventory."""
        return {name: seen.address for name, seen in self.workers.items()}

    def settled(self) -> bool:
        """Whether it is known of every worker if it answers: not just after the start."""
        return all(seen.tried for seen in self.workers.values())

    def live(self) -> list[WorkerId]:
        """Workers that reported within the bound, in order of their names."""
        now = self._clock.monotonic()
        return [
            name
            for name, seen in self.workers.items()
            if seen.at is not None and now - seen.at < limits.WORKER_DOWN_S
        ]

    def apart(self) -> frozenset[WorkerId]:
        """Workers that were found within that bound to be of a version not spoken here."""
        now = self._clock.monotonic()
        return frozenset(
            name
            for name, seen in self.workers.items()
            if seen.apart_at is not None and now - seen.apart_at < limits.WORKER_DOWN_S
        )

    def reports(self, job: JobUid) -> dict[WorkerId, m.JobReport]:
        """The live workers' reports of a job."""
        found = {}
        for name in self.live():
            report = self.workers[name].report
            if report is not None and job in report.jobs:
                found[name] = report.jobs[job]
        return found

    def unreadable(self, job: JobUid) -> dict[WorkerId, m.Unreadable]:
        """The live workers that cannot read what they have of a job, and why."""
        found = {}
        for name in self.live():
            report = self.workers[name].report
            if report is not None and job in report.unreadable:
                found[name] = report.unreadable[job]
        return found

    def start_of(self, worker: WorkerId) -> int:
        """The number of the agent's start that reported last; 0 if none has."""
        report = self.workers[worker].report
        return report.header.incarnation if report is not None else 0

    def newest_epoch(self, job: JobUid) -> tuple[Epoch, BatchTime] | None:
        """The newest epoch that a live worker reports as decided, and from which record it holds.

        It may be older than one that was reported before: a worker that was started again does not
        know that its newest record is decided. Nor does it know, once its log is trimmed, where an
        old epoch began, and names a later batch: the earliest that is named counts.
        """
        known = [
            (report.epoch, report.epoch_from)
            for report in self.reports(job).values()
            if report.epoch is not None and report.epoch_from is not None
        ]
        return max(known, key=lambda k: (k[0].number, -k[1].generation, -k[1].batch), default=None)

    def all_told_since(self, moment: float) -> bool:
        """Whether every worker of the inventory is live and has answered wishes sent after that."""
        told = [self.workers[name].told_at for name in self.live()]
        return len(told) == len(self.workers) and all(t is not None and t > moment for t in told)

    def objections(self) -> dict[WorkerId, str]:
        """The workers that do not listen to this controller's store, and why."""
        found = ((name, seen.objection) for name, seen in self.workers.items())
        return {name: why for name, why in found if why}

    def strangers(self, known: Container[JobUid]) -> dict[JobUid, list[WorkerId]]:
        """Jobs that live workers report and that are not among the known ones, with the workers."""
        found: dict[JobUid, list[WorkerId]] = {}
        for name in self.live():
            report = self.workers[name].report
            for uid in report.jobs if report is not None else ():
                if uid not in known:
                    found.setdefault(uid, []).append(name)
        return dict(sorted(found.items()))

    def session(self, job: JobUid) -> int:
        """The highest session that a live worker has persisted for a job."""
        return max((report.session for report in self.reports(job).values()), default=0)

    def generation(self, job: JobUid) -> int:
        """The newest generation of batches of which a live worker knows one to be decided."""
        reports = self.reports(job).values()
        return max((r.decided.position.time.generation for r in reports if r.decided), default=0)

    def forget(self, job: JobUid) -> None:
        """The job is no more."""
        for key in [key for key in self.applies if key[0] == job]:
            del self.applies[key]

    def suspect(self, name: WorkerId) -> None:
        """Somebody did not get through to a worker: ask it at once."""
        seen = self.workers.get(name)
        if seen is not None:
            seen.suspect = True

    def tick(self, wishes: Wishes, period_s: float, claim: Claim | None) -> None:
        """Ask every worker whose time has come, telling it all that is wished of it; without a
        claim, or if somebody objects to it, only look. The time in which nobody was here to hear an
        answer does not count as silence."""
        now = self._clock.monotonic()
        if claim is not None:
            self._claim = claim
        said = None if self.objections() else claim
        number = said.number if said is not None else 0
        absent_s = now - self._ticked_at
        self._ticked_at = now
        for name, seen in self.workers.items():
            if absent_s > limits.HEARTBEAT_S and seen.at is not None:
                seen.at += absent_s
            if absent_s > limits.HEARTBEAT_S and seen.apart_at is not None:
                seen.apart_at += absent_s
            news = seen.suspect or number > seen.told_number
            period = min(period_s, limits.HEARTBEAT_BUSY_S) if news else period_s
            due = seen.asked_at is None or now - seen.asked_at >= period
            if due and len(seen.asking) < limits.HEARTBEATS_AT_ONCE:
                heartbeat = m.Heartbeat(
                    header=m.Header(cluster=self._cluster),
                    worker=name,
                    jobs=wishes(name) if said is not None else (),
                    claim=said,
                )
                seen.asked_at, seen.told_number = now, number
                number = self._wire.send(
                    Address(seen.address), heartbeat, timeout_s=limits.HEARTBEAT_TIMEOUT_S
                )
                seen.asking[number] = now

    def deliver(self, envelope: Envelope) -> bool:
        """Take a report; whether the envelope was one."""
        for name, seen in self.workers.items():
            if envelope.request is not None and envelope.request in seen.asking:
                asked_at, seen.tried = seen.asking.pop(envelope.request), True
                self._take(name, seen, envelope, asked_at)
                return True
        return False

    def _take(self, name: WorkerId, seen: Seen, envelope: Envelope, asked_at: float) -> None:
        """Take an answer, or that there is none; what a later question has brought stays."""
        if seen.told_at is not None and asked_at < seen.told_at:
            return
        message = envelope.message
        if not isinstance(message, m.WorkerReport):
            refusal = message.detail if isinstance(message, m.Refusal) else envelope.detail
            seen.detail = refusal
            code = message.code if isinstance(message, m.Refusal) else None
            if code is m.RefusalCode.STALE_STORE:
                self._object(name, seen, refusal)
            if code is m.RefusalCode.VERSION:
                seen.apart_at = self._clock.monotonic()
            seen.refused = envelope.outcome is Outcome.NOT_DONE
            seen.suspect = True
            return
        seen.refused = seen.suspect = False
        seen.apart_at = None
        if message.worker != name:
            seen.detail = f"answers as worker {message.worker}"
            return
        if self._claim is not None:
            self._object(name, seen, objection(message.ruler, self._claim))
        seen.report, seen.at, seen.detail = message, self._clock.monotonic(), ""
        seen.told_at = asked_at
        for uid, job in message.jobs.items():
            for instance, report in job.instances.items():
                known = self.applies.setdefault((uid, instance), Applies())
                known.add(report.applies)

    def _object(self, name: WorkerId, seen: Seen, why: str) -> None:
        if why != seen.objection:
            log.warning("store-objection worker=%s %s", name, why or "none any more")
            seen.objection = why
