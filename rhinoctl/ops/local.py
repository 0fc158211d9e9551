"""A cluster on this machine, as processes: up, down and how it is.

`plan_up` is pure: from what is in the directory and what runs, it says what to start. So `up` after
anything, a kill in the middle included, starts exactly what is missing.
"""

import os
import signal
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from rhinoctl import __version__
from rhinoctl.config import cluster as config
from rhinoctl.config.backup import STORE
from rhinoctl.config.cluster import CONTROLLER, ClusterFile
from rhinoctl.control.client import ControlClient, error_from, local_directory
from rhinoctl.errors import (
    AlreadyRunning,
    DeadlineExceeded,
    Exit,
    NotRunning,
    Refused,
    RhinoError,
    UsageError,
)
from rhinoctl.ids import WorkerId
from rhinoctl.ops.endings import problem_in
from rhinoctl.protocol import codec
from rhinoctl.protocol.phrases import workers as named
from rhinoctl.protocol.views import Health, StatusView, WorkerView
from rhinoctl.remote import local as remote
from rhinoctl.remote.local import Processes, ProcessName

Say = Callable[[str], None]

WORKERS = 3
"""Enough for two copies besides the owner's."""

CACHE_MB = 64
BUFFER_MB = 64

WORKERS_MAX = 64
"""Of processes on one machine; more is a typing error."""

DISKS_MAX = 16
"""Of directories of a worker, likewise."""

UP_S = 60.0
"""Python, Arrow and RocksDB are imported by each process, on a machine that may be loaded."""

DOWN_S = 10.0
"""An orderly end of an agent, with its instances; after it they are killed."""

T = TypeVar("T")

SEE = " its store was lost or is an old copy; see `rhinoctl status` for what to do"

LOOK_S = 0.1
"""Between two looks whether the cluster is up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UpRequest:
    """What `local up` is asked for. None stands for what the directory's cluster has, or else the
    default. With `parent`, the processes end when that one does."""

    directory: Path
    workers: int | None = None
    disks: int | None = None
    port: int | None = None
    cache_mb: int | None = None
    buffer_mb: int | None = None
    replay_target_s: float | None = None
    lease_s: float | None = None
    replication_mb_s: int | None = None
    auto_failover: bool | None = None
    require_hardlink: bool | None = None
    parent: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class UpPlan:
    """A cluster and those of its processes that have to be started."""

    cluster: ClusterFile
    start: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalProcess:
    """A process of a local cluster; `log` is the file of its output."""

    name: str
    pid: int
    alive: bool
    log: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalView:
    """A local cluster: OK with all processes, DOWN without any. `started` and `ended` are what the
    command did, by name."""

    directory: str
    cluster: str
    controller: str
    health: Health
    processes: tuple[LocalProcess, ...]
    started: tuple[str, ...] = ()
    ended: tuple[str, ...] = ()


def directory_of(cluster: str | None) -> Path:
    """The directory that is meant: named, or in RHINO_CONTROLLER, or the default. Raises UsageError
    for an address."""
    named = cluster or os.environ.get("RHINO_CONTROLLER") or str(local_directory())
    if "://" in named:
        raise UsageError(
            f"{named} is an address, and a local cluster is named by its directory",
            remedy="give --cluster DIR",
        )
    return Path(named).expanduser().absolute()


# --- up ------------------------------------------------------------------------------------------


def up(request: UpRequest, say: Say, processes: Processes | None = None) -> LocalView:
    """Start what is missing of a cluster and wait until its workers report.

    If they do not, what was started is ended again. Raises AlreadyRunning if nothing is missing,
    UnwritableDirectory, ForeignManifest, PortInUse, NotRunning for a process that ends at once.
    """
    processes = processes or Processes()
    directory = request.directory
    with config.claimed(directory):
        known = config.read_cluster(directory)
        plan = plan_up(request, known, _alive(known, processes))
        cluster = plan.cluster
        try:
            _prepare(request, plan)
            again = ", which had ended" if plan.start != cluster.names() else ""
            say(f"starting {', '.join(plan.start)}{again}")
            for name in plan.start:
                module, settings = _module_of(name, directory, cluster)
                process = processes.start_module(module, settings, log=_log(directory, name))
                cluster = replace(cluster, processes={**cluster.processes, name: process})
                config.write_cluster(directory, cluster)
            status = _await_workers(directory, cluster, processes)
        except BaseException:
            _end(directory, cluster, plan.start, processes)
            if known is None:
                with suppress(OSError):  # it goes only if nothing was written in it
                    directory.rmdir()
            raise
        view = replace(_view(directory, cluster, processes), started=plan.start)
        if status.refused_by:
            say(f"{named(status.refused_by, 'does', 'do')} not listen to this controller:{SEE}")
            return replace(view, health=Health.DEGRADED)
        return view


def plan_up(request: UpRequest, known: ClusterFile | None, alive: frozenset[str]) -> UpPlan:
    """What to start. Raises UsageError, ForeignManifest, AlreadyRunning and Refused."""
    directory = request.directory
    if known is not None:
        config.check_version(directory, known)
    count = request.workers or (len(known.workers) if known else WORKERS)
    if known is not None and alive >= set(known.names()):
        raise AlreadyRunning(
            f"cluster {known.cluster} runs in {directory}",
            remedy="look at it with `rhinoctl local status`, or end it with `rhinoctl local down`",
        )
    if known is not None and count < len(known.workers):
        raise Refused(
            f"the cluster in {directory} has {len(known.workers)} workers, which may hold state",
            remedy=f"leave --workers out, or give {len(known.workers)} or more",
        )
    had = config.disks_of(known)
    if (request.disks or had) < had:
        raise Refused(
            f"the workers of the cluster in {directory} have {had} disks, which may hold state",
            remedy=f"leave --disks out, or give {had} or more; `rhinoctl disk retire` empties one",
        )
    cluster = known or config.new_cluster(directory, cache_mb=CACHE_MB, buffer_mb=BUFFER_MB)
    controller = cluster.controller if request.port is None else config.at_port(request.port)
    grows = count > len(cluster.workers) or (request.disks or had) > had
    if alive and (grows or controller != cluster.controller):
        raise Refused(
            f"--workers, --disks and --port cannot change while a part of the cluster in"
            f" {directory} runs",
            remedy="end it with `rhinoctl local down`, then bring it up with the new ones",
        )
    cluster = replace(
        config.with_workers(cluster, directory, count, request.disks),
        version=__version__,
        controller=controller,
        cache_mb=request.cache_mb or cluster.cache_mb,
        buffer_mb=request.buffer_mb or cluster.buffer_mb,
        replay_target_s=request.replay_target_s or cluster.replay_target_s,
        lease_s=request.lease_s or cluster.lease_s,
        replication_mb_s=_or(request.replication_mb_s, cluster.replication_mb_s),
        auto_failover=_or(request.auto_failover, cluster.auto_failover),
        require_hardlink=_or(request.require_hardlink, cluster.require_hardlink),
        processes={name: p for name, p in cluster.processes.items() if name in alive},
    )
    return UpPlan(
        cluster=cluster, start=tuple(name for name in cluster.names() if name not in alive)
    )


def _or(asked: T | None, known: T) -> T:
    """What is asked for, which may be nothing at all, or what there is."""
    return known if asked is None else asked


def _prepare(request: UpRequest, plan: UpPlan) -> None:
    """Files and directories that the processes need; refuses before anything is started."""
    cluster, directory = plan.cluster, request.directory
    for name in plan.start:
        remote.check_free(
            cluster.controller if name == CONTROLLER else cluster.workers[WorkerId(name)].address
        )
    remote.make_run_directory(cluster.run)
    config.make_token(cluster.token_file)
    config.write_cluster(directory, cluster)
    for worker, entry in cluster.workers.items():
        with config.writing_in(directory):
            Path(entry.disk).mkdir(parents=True, exist_ok=True)
        settings = _agent_settings(cluster, worker, request.parent)
        config.replace_file(Path(entry.settings), codec.dumps(settings))
    config.replace_file(
        _controller_settings_path(directory),
        codec.dumps(_controller_settings(cluster, directory, request.parent)),
    )


def _agent_settings(cluster: ClusterFile, worker: WorkerId, parent: int) -> Mapping[str, object]:
    """The fields of `rhino_agent.settings.AgentSettings`, which cannot be imported from here."""
    entry = cluster.workers[worker]
    return {
        "cluster": cluster.cluster,
        "worker": worker,
        "disk": entry.disk,
        "disks": list(entry.disks),
        "run": cluster.run,
        "listen": entry.address,
        "token_file": cluster.token_file,
        "cache_bytes": cluster.cache_mb << 20,
        "buffer_bytes": cluster.buffer_mb << 20,
        "replay_target_s": cluster.replay_target_s,
        "replication_bytes_s": cluster.replication_mb_s << 20,
        "require_hardlink": cluster.require_hardlink,
        "parent": parent,
    }


def _controller_settings(
    cluster: ClusterFile, directory: Path, parent: int
) -> Mapping[str, object]:
    """The fields of `rhinoctl.control.settings.ControllerSettings`."""
    return {
        "cluster": cluster.cluster,
        "store": str(directory / STORE),
        "listen": cluster.controller,
        "token_file": cluster.token_file,
        "workers": {worker: entry.address for worker, entry in cluster.workers.items()},
        "lease_s": cluster.lease_s,
        "auto_failover": cluster.auto_failover,
        "parent": parent,
    }


def _await_workers(directory: Path, cluster: ClusterFile, processes: Processes) -> StatusView:
    """Wait until the controller answers and every worker has reported to it."""
    deadline = time.monotonic() + UP_S
    missing = "the controller"
    with ControlClient(cluster.controller, cluster.token_file) as client:
        while time.monotonic() < deadline:
            try:
                status = client.status()
                workers = status.workers
            except NotRunning:
                workers = ()
            away = not_back(workers)
            if workers and not away:
                return status
            missing = ", ".join(away) or missing
            for name in cluster.names():
                if not processes.alive(ProcessName(*cluster.processes[name])):
                    raise _ended_at_once(directory, name)
            time.sleep(LOOK_S)
    raise DeadlineExceeded(
        f"{missing} did not report within {UP_S:.0f} s",
        remedy=f"look into the logs in {directory / 'logs'}, and try again",
    )


def not_back(workers: Iterable[WorkerView]) -> list[WorkerId]:
    """Who has not reported; one that cannot read some job has, and `status` tells of that."""
    poor = (worker for worker in workers if worker.health is not Health.OK)
    return [worker.id for worker in poor if not worker.unreadable]


def _ended_at_once(directory: Path, name: str) -> RhinoError:
    """Why a process did not stay: the error that it ended with, if it has told one."""
    log = _log(directory, name)
    said = remote.last_line(log)
    problem = problem_in(said)
    if problem is not None:
        message = f"{name} ended as soon as it was started: {problem.message}"
        return error_from(replace(problem, message=message, remedy=f"{problem.remedy}; log: {log}"))
    return NotRunning(
        f"{name} ended as soon as it was started" + (f": {said}" if said else ""),
        remedy=f"see its log: {log}",
    )


# --- down and status -----------------------------------------------------------------------------


def down(directory: Path, say: Say, processes: Processes | None = None) -> LocalView:
    """End the cluster's processes, instances included; state stays. Nothing to do is no error.

    Raises NotRunning if the directory has no cluster.
    """
    processes = processes or Processes()
    known = config.read_cluster(directory)
    if known is None:
        raise _no_cluster(directory)
    with config.claimed(directory):
        cluster = config.read_cluster(directory) or known
        say(f"ending the cluster in {directory}")
        ended = _end(directory, cluster, cluster.names(), processes)
        return replace(_view(directory, replace(cluster, processes={}), processes), ended=ended)


def status(directory: Path) -> LocalView:
    """The cluster's processes. Raises NotRunning if the directory has no cluster."""
    known = config.read_cluster(directory)
    if known is None:
        raise _no_cluster(directory)
    return _view(directory, known, Processes())


def exit_of_local(view: LocalView) -> Exit:
    """As for any verb: down is refused, a part of it is degraded."""
    return {Health.OK: Exit.DONE, Health.DEGRADED: Exit.DEGRADED, Health.DOWN: Exit.REFUSED}[
        view.health
    ]


def _end(
    directory: Path, cluster: ClusterFile, names: tuple[str, ...], processes: Processes
) -> tuple[str, ...]:
    """End the named processes and, with an agent, the instances that it started."""
    started = {n: ProcessName(*p) for n, p in cluster.processes.items() if n in names}
    whole = set(cluster.processes) <= set(names)  # then no agent need say farewell
    first = signal.SIGINT if whole else signal.SIGTERM
    running = set(processes.end(started.values(), patience_s=DOWN_S, first=first))
    ended = [name for name, process in started.items() if process in running]
    for worker, entry in cluster.workers.items():
        if worker in names:
            instances = remote.instance_processes(Path(entry.disk))
            gone = processes.end(instances, patience_s=0.0)
            ended += [f"instance of {worker} (pid {process.pid})" for process in gone]
    rest = {name: p for name, p in cluster.processes.items() if name not in names}
    if config.read_cluster(directory) is not None:
        config.write_cluster(directory, replace(cluster, processes=rest))
    if not rest:
        remote.remove_run_directory(cluster.run)
    return tuple(ended)


def _no_cluster(directory: Path) -> NotRunning:
    return NotRunning(
        f"there is no cluster in {directory}",
        remedy="start one with `rhinoctl local up`, or name the right directory with --cluster",
    )


def _view(directory: Path, cluster: ClusterFile, processes: Processes) -> LocalView:
    alive = _alive(cluster, processes)
    health = Health.OK if alive >= set(cluster.names()) else Health.DEGRADED
    return LocalView(
        directory=str(directory),
        cluster=cluster.cluster,
        controller=cluster.controller,
        health=health if alive else Health.DOWN,
        processes=tuple(
            LocalProcess(
                name=name,
                pid=cluster.processes[name][0] if name in alive else 0,
                alive=name in alive,
                log=str(_log(directory, name)),
            )
            for name in cluster.names()
        ),
    )


def _alive(cluster: ClusterFile | None, processes: Processes) -> frozenset[str]:
    started = cluster.processes.items() if cluster is not None else ()
    return frozenset(name for name, p in started if processes.alive(ProcessName(*p)))


def _module_of(name: str, directory: Path, cluster: ClusterFile) -> tuple[str, str]:
    if name == CONTROLLER:
        return "rhinoctl.control", str(_controller_settings_path(directory))
    return "rhino_agent", cluster.workers[WorkerId(name)].settings


def _controller_settings_path(directory: Path) -> Path:
    return directory / "controller.json"


def _log(directory: Path, name: str) -> Path:
    return directory / "logs" / f"{name}.log"
