"""The demo's accident: a worker of its cluster is killed, agent and instances, unwarned."""

import os
import signal
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from rhinoctl.config import cluster as config
from rhinoctl.control.client import ControlClient
from rhinoctl.errors import NotRunning, Refused
from rhinoctl.ids import JobName, WorkerId
from rhinoctl.ops import local
from rhinoctl.protocol.handover import Kind
from rhinoctl.protocol.views import JobView, OperationView
from rhinoctl.remote.local import instance_processes
from rhinoctl.remote.proc import born


@dataclass(frozen=True, slots=True, kw_only=True)
class Accident:
    """A worker that was killed, and when, in wall seconds."""

    worker: WorkerId
    at: float


def victim_of(job: JobView) -> WorkerId:
    """The worker that owns the most vnodes. Raises Refused if nobody has a copy of them."""
    if not job.replication or len({i.worker for i in job.instances}) < 2:
        raise Refused(
            "the job has no copies on another worker", remedy="run the demo with 2 workers or more"
        )
    owned: dict[WorkerId, int] = {}
    for instance in job.instances:
        owned[instance.worker] = owned.get(instance.worker, 0) + len(instance.vnodes)
    return min(owned, key=lambda worker: (-owned[worker], worker))


def kill_worker(cluster: Path, client: ControlClient, name: JobName) -> Accident:
    """SIGKILL an agent and every instance that it has started, retired ones too, by their ids."""
    victim = victim_of(client.job(name))
    agents = [p.pid for p in local.status(cluster).processes if p.name == victim and p.alive]
    known = config.read_cluster(cluster)
    if not agents or known is None:
        raise NotRunning(f"worker {victim} does not run", remedy="see the logs of the demo")
    started = instance_processes(Path(known.workers[victim].disk))
    instances = [process.pid for process in started if born(process.pid) == process.born]
    at = time.time()
    for pid in (*agents, *instances):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return Accident(worker=victim, at=at)


def failover_of(client: ControlClient, accident: Accident) -> OperationView | None:
    """The failover that the loss has led to, once there is one."""
    for view in client.operations().operations:
        if view.kind is Kind.FAILOVER and accident.worker in view.lost:
            return view
    return None
