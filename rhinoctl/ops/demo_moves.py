"""What the demo does to its job while it runs: out, a few single vnodes, in again, and a worker
that is killed.

Each step waits for its time and for the one before it; what cannot be begun is a fault of the run.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from rhinoctl.control.client import ControlClient
from rhinoctl.errors import DeadlineExceeded, NotRunning, Refused, RhinoError
from rhinoctl.ids import JobName, OpId, Vnode
from rhinoctl.ops.demo_kill import Accident, failover_of, kill_worker
from rhinoctl.protocol.handover import ENDED, Kind, Phase
from rhinoctl.protocol.views import HandoverRequest, JobView, OperationView, RescaleRequest

INSTANCES_FIRST = 2
INSTANCES_MOST = 4
INSTANCES_LAST = 3

SINGLES = 3
"""Vnodes of the handover in the middle."""

Begin = Callable[[ControlClient, JobName], OperationView | Accident]


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A step of the demo: at which part of its time, what it is, and how it is begun. What begins
    with an accident is the failover that comes of it."""

    at: float
    what: str
    begin: Begin


def _rescale_to(instances: int) -> Begin:
    return lambda client, job: client.rescale(job, RescaleRequest(instances=instances))


def _single_vnodes(client: ControlClient, job: JobName) -> OperationView:
    return client.handover(job, single_moves(client.job(job)))


MOVES: tuple[Step, ...] = (
    Step(at=0.20, what=f"rescale to {INSTANCES_MOST}", begin=_rescale_to(INSTANCES_MOST)),
    Step(at=0.40, what="handover of single vnodes", begin=_single_vnodes),
    Step(at=0.60, what=f"rescale to {INSTANCES_LAST}", begin=_rescale_to(INSTANCES_LAST)),
)


def steps_of(cluster: Path) -> tuple[Step, ...]:
    """The demo's steps on the cluster in a directory."""

    def kill(client: ControlClient, job: JobName) -> Accident:
        return kill_worker(cluster, client, job)

    return (*MOVES, Step(at=0.80, what="loss of a worker", begin=kill))


def single_moves(job: JobView) -> HandoverRequest:
    """A few vnodes to one instance: one from an instance of the same worker, if the target has such
    a neighbour, the others from other workers, if there are any. Raises Refused without a second
    instance."""
    best: tuple[int, HandoverRequest] | None = None
    for target in job.instances:
        others = [i for i in job.instances if i.id != target.id and i.vnodes]
        near = [i for i in others if i.worker == target.worker]
        far = [i for i in others if i.worker != target.worker]
        chosen: list[Vnode] = []
        if near:
            chosen.append(max(near, key=lambda i: len(i.vnodes)).vnodes[-1])
        for donor in sorted(far, key=lambda i: -len(i.vnodes)) or near:
            free = [v for v in donor.vnodes if v not in chosen]
            chosen += free[: SINGLES - len(chosen)]
        request = HandoverRequest(vnodes=tuple(sorted(chosen)), to=target.id)
        worth = 2 * bool(near) + bool(far)
        if chosen and (best is None or worth > best[0]):
            best = (worth, request)
    if best is None:
        raise Refused("the job has one instance only", remedy="rescale it first")
    return best[1]


@dataclass(slots=True)
class Moves:
    """The steps so far: those begun, in order, as last seen, and what went wrong. `accident` is the
    one that has happened."""

    client: ControlClient
    job: JobName
    steps: tuple[Step, ...]
    accident: Accident | None = None
    begun: list[OperationView] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    _next: int = 0

    @property
    def running(self) -> bool:
        awaited = self.accident is not None and self._failover is None
        return awaited or (bool(self.begun) and self.begun[-1].phase not in ENDED)

    @property
    def _failover(self) -> OperationView | None:
        return next((view for view in self.begun if view.kind is Kind.FAILOVER), None)

    def advance(self, passed: float) -> None:
        """Look at the running step; begin the next one if it is due at this part of the time."""
        self._look()
        if self.running or self._next == len(self.steps) or passed < self.steps[self._next].at:
            return
        step = self.steps[self._next]
        self._next += 1
        try:
            view = step.begin(self.client, self.job)
        except RhinoError as fault:
            self.faults.append(f"{step.what}: {fault.message}")
            return
        if isinstance(view, Accident):
            self.accident = view
        elif view.id:
            self.begun.append(view)
            self._judge(view)

    def finish(self) -> None:
        """Take what became known after the end of each, and name the steps that never began."""
        for number, view in enumerate(self.begun):
            self.begun[number] = self.client.operation(view.id)
        for step in self.steps[self._next :]:
            self.faults.append(f"{step.what}: not begun, as the one before it took too long")
        if self.accident is not None and self._failover is None:
            self.faults.append(f"worker {self.accident.worker} was lost, and nothing came of it")
        elif self.running:
            view = self.begun[-1]
            self.faults.append(f"{view.kind.value} {view.id}: still {view.phase.value} at the end")

    def _look(self) -> None:
        if not self.running:
            return
        try:
            if self.accident is not None and self._failover is None:
                found = failover_of(self.client, self.accident)
                if found is None:
                    return
                self.begun.append(found)
            op: OpId = self.begun[-1].id
            self.begun[-1] = self.client.operation(op)
        except (NotRunning, DeadlineExceeded):
            return  # asked again at the next look; a controller that stays away is found out there
        self._judge(self.begun[-1])

    def _judge(self, view: OperationView) -> None:
        if view.phase is Phase.ABORTED:
            self.faults.append(f"{view.kind.value} {view.id} was aborted: {view.reason}")
