"""Workers' disks: what they tell of them, and what a person asks of one, handed on to its agent.

The controller keeps nothing of this: a worker's disks are its agent's own affair, so that an answer
that is lost leaves a person to look, and no wish that comes again (style, rule 7).
"""

import os.path
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from rhinoctl.control.fleet import Fleet
from rhinoctl.errors import (
    DeadlineExceeded,
    DiskRefused,
    UnknownWorker,
    WorkerUnreachable,
    error_of,
)
from rhinoctl.ids import WorkerId
from rhinoctl.protocol import messages as m
from rhinoctl.protocol import views
from rhinoctl.protocol.disks import (
    DiskAction,
    DiskList,
    DiskReport,
    DiskRequest,
    DiskState,
    DiskView,
    cost_of_refusal,
    remedy_for_refusal,
)
from rhinoctl.protocol.ports import Address, Clock, Envelope, Outcome, Wire
from rhinoctl.protocol.rooms import give_up_lost
from rhinoctl.protocol.starting import start_again

ANSWER_S = 5.0
"""An agent answers between two turns of its loop; a new disk takes some writes."""


@dataclass(slots=True)
class Asked:
    """A request on its way, and its answer."""

    worker: WorkerId
    answer: Envelope | None = None


@dataclass(slots=True)
class DiskDesk:
    """Requests under way, by their number."""

    cluster: str
    fleet: Fleet
    wire: Wire
    clock: Clock
    asked: dict[int, Asked] = field(default_factory=dict)

    def list(self) -> DiskList:
        """All disks, as workers told of them last."""
        live = set(self.fleet.live())
        return DiskList(
            disks=tuple(
                DiskView(worker=name, live=name in live, disk=disk)
                for name, seen in self.fleet.workers.items()
                if seen.report is not None
                for disk in seen.report.disks
            )
        )

    def ask(self, request: DiskRequest) -> Callable[[], DiskList | None]:
        """Hand a request on. Returns what gives the answer (None: not yet) or raises what the agent
        refuses with. Raises UnknownWorker and WorkerUnreachable."""
        worker = request.worker
        seen = self.fleet.workers.get(worker)
        if seen is None:
            raise UnknownWorker(
                f"there is no worker {worker}: the workers are {', '.join(self.fleet.workers)}",
                remedy="see `rhinoctl status`",
            )
        if worker not in self.fleet.live():
            raise _unreachable(worker)
        if request.action is DiskAction.ADD:
            self._check_apart(worker, request.path)
        message = m.ChangeDisks(header=m.Header(cluster=self.cluster), request=request)
        number = self.wire.send(Address(seen.address), message, timeout_s=ANSWER_S)
        asked = self.asked[number] = Asked(worker)

        def ready() -> DiskList | None:
            return None if asked.answer is None else _answered(worker, asked.answer)

        return ready

    def _check_apart(self, worker: WorkerId, path: str) -> None:
        """Refuse a directory that is a disk of another worker on the host, or inside or around one,
        as far as they have told of theirs; a worker's own are its agent's affair."""
        host = _host_of(self.fleet.workers[worker].address)
        for name, seen in self.fleet.workers.items():
            if name == worker or seen.report is None or _host_of(seen.address) != host:
                continue
            for disk in seen.report.disks:
                how = _overlap(path, disk.path)
                if how is not None and disk.state is not DiskState.EMPTY:
                    raise DiskRefused(
                        f"{path} cannot be a disk of worker {worker}: it is {how}{disk.path},"
                        f" disk {disk.disk} of worker {name} on the same host",
                        remedy="see `rhinoctl disk list`; name a directory apart from all of these",
                    )

    def deliver(self, envelope: Envelope) -> bool:
        """Take an answer; whether the envelope was one."""
        asked = None if envelope.request is None else self.asked.pop(envelope.request, None)
        if asked is not None:
            asked.answer = envelope
        return asked is not None


def _host_of(address: str) -> str:
    """The host that an agent is reached on; empty for a socket of this machine."""
    return urlsplit(address).hostname or ""


def _overlap(path: str, disk: str) -> str | None:
    """How a directory has to do with that of a disk, in a word before that one: empty if it is the
    same, None if it is apart."""
    if not os.path.isabs(disk) or not os.path.isabs(path):
        return None
    path, disk = os.path.normpath(path), os.path.normpath(disk)
    whole = os.path.commonpath([path, disk])
    if path == disk:
        return ""
    return {disk: "inside ", path: "around "}.get(whole)


def disk_findings(fleet: Fleet) -> Iterator[views.Finding]:
    """Disks that are lost, that cannot be written to, and that cannot be emptied."""
    for worker in fleet.live():
        report = fleet.workers[worker].report
        for disk in report.disks if report is not None else ():
            if disk.state is DiskState.LOST:
                yield views.Finding(
                    what=f"worker {worker}: disk {disk.disk} ({disk.path}) is lost: {disk.fault}",
                    remedy="what was on it is fetched from other holders by itself; a vnode without"
                    f" another copy waits for the disk: {give_up_lost(worker, disk.disk)}",
                )
            elif disk.refuses:
                yield views.Finding(
                    what=f"worker {worker}: disk {disk.disk} ({disk.path}) refuses: {disk.fault};"
                    f" {cost_of_refusal(disk)}",
                    remedy=remedy_for_refusal(worker, disk),
                )
            elif disk.state is DiskState.RETIRING and disk.fault:
                yield views.Finding(
                    what=f"worker {worker}: disk {disk.disk} is not emptied: {disk.fault}",
                    remedy="it is tried again by itself; if there is no room elsewhere, add a disk:"
                    f" `rhinoctl disk add {worker} DIRECTORY`",
                )


def _answered(worker: WorkerId, envelope: Envelope) -> DiskList:
    """What the agent has said, as a list of disks or as the error that it refuses with."""
    answer = envelope.message
    if isinstance(answer, m.DisksChanged):
        if answer.code:
            raise error_of(answer.code, answer.message, remedy=answer.remedy)
        return DiskList(disks=tuple(_view(worker, disk) for disk in answer.disks))
    if envelope.outcome is Outcome.NOT_DONE:
        raise _unreachable(worker)
    detail = answer.detail if isinstance(answer, m.Refusal) else envelope.detail
    raise DeadlineExceeded(
        f"worker {worker} was asked and has not said what it has done: {detail}",
        remedy="see `rhinoctl disk list` before you repeat it",
    )


def _view(worker: WorkerId, disk: DiskReport) -> DiskView:
    return DiskView(worker=worker, live=True, disk=disk)


def _unreachable(worker: WorkerId) -> WorkerUnreachable:
    return WorkerUnreachable(
        f"worker {worker} does not answer: nothing was done",
        remedy=f"bring it back: {start_again([worker])}, then repeat the command",
    )
