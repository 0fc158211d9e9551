"""The steps of a deployment, each as what is done on a host; and whether what was started does its
part."""

import posixpath
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from threading import Event
from typing import Final, assert_never

from rhinoctl.config.deployment import (
    PRIVATE,
    InstallEnvironment,
    MakeDirectories,
    Place,
    Role,
    StartService,
    Step,
    SwitchEnvironment,
    WriteFiles,
    controller_url,
)
from rhinoctl.errors import (
    DeadlineExceeded,
    HostLost,
    NotRunning,
    NotTried,
    RhinoError,
    UnknownJob,
)
from rhinoctl.ops.cluster import connect
from rhinoctl.ops.deployed import Deployed, Looked
from rhinoctl.ops.groups import full_copies, is_good, wanted_copies
from rhinoctl.ops.local import not_back
from rhinoctl.ops.processes import Process
from rhinoctl.ops.vnodes import format_vnodes
from rhinoctl.protocol.phrases import workers as named
from rhinoctl.protocol.views import GroupsRequest, GroupsView, StatusView
from rhinoctl.remote.deployed import STARTED, make_directories
from rhinoctl.remote.environment import Environment
from rhinoctl.remote.host import Host, write_file
from rhinoctl.remote.packages import python_of
from rhinoctl.remote.releases import install_environment, remove_old, switch

Tell = Callable[[str], object]

HEALTH_S: Final = 30.0
"""Python, Arrow and RocksDB are imported within seconds; what is silent for so long is not well."""

LOOK_S: Final = 0.5
"""Between two looks at a process that was started."""

SETTLE_S: Final = 120.0
"""Between two restarts: instances start, catch up, and copies are full again."""

QUIET_S: Final = 5.0
REMIND_S: Final = 15.0
"""Who looks on hears what is waited for after so long, and again so long after that."""

STARTS_MAX: Final = 3
"""A process that was started so often by whoever keeps it running does not stay."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tools:
    """What the steps of one host need. All that needs root is making directories and services:
    the rest is the account's own."""

    cluster: Deployed
    looked: Looked
    environment: Environment


def perform(step: Step, host: Host, tools: Tools) -> None:
    """Do a step; it may have been done, wholly or in part. Raises HostError's leaves."""
    top = tools.cluster.inventory.install_dir
    match step:
        case MakeDirectories():
            user, root = tools.looked.deployed.user, tools.looked.place.sudo
            make_for_account(step, host, top, user, root=root)
        case InstallEnvironment():
            _, python = python_of(tools.looked.facts)
            install_environment(host, tools.environment, top, python=python, root=False)
        case WriteFiles(files=files):
            for file in files:
                path = PurePosixPath(file.path)
                write_file(host, path, file.content, file.mode, root=False)
        case SwitchEnvironment(environment=environment):
            switch(host, environment, top, root=False)
            remove_old(host, top, root=False)
        case StartService(service=service, started_with=started_with, anew=anew):
            process = tools.looked.processes[service.role]
            state = process.state(host)
            if anew or (state.kept and not state.running):
                process.stop(host)  # in the second case it waits to be started, as it did before
            process.start(host)
            path = PurePosixPath(posixpath.dirname(service.settings), STARTED)
            write_file(host, path, f"{started_with}\n".encode(), PRIVATE, root=False)
        case _:
            assert_never(step)


def make_for_account(
    step: MakeDirectories, host: Host, install_dir: str, user: str, *, root: bool
) -> None:
    """Make directories; which were new is written down in that of the installation. Raises
    HostError's leaves."""
    wanted = [(each.path, each.mode, each.state) for each in step.directories]
    make_directories(host, install_dir, user, wanted, root=root)


class Waiting:
    """Tells what is waited for, after `quiet_s`; again only if it is something else, or as long as
    it takes, every now and then."""

    def __init__(
        self,
        tell: Tell,
        *,
        quiet_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._tell = tell
        self._clock = clock
        self._next = clock() + quiet_s
        self._told: str | None = None

    def on(self, what: str) -> None:
        """It is still waited for that."""
        late = self._clock() >= self._next
        if late or (self._told is not None and what != self._told):
            self._tell(what)
            self._told = what
            self._next = self._clock() + REMIND_S


class Health:
    """Whether what was started does its part: the controller answers, an agent reports to it; with
    `groups`, whether every copy is there and full, too. While the controller does not answer,
    an agent is waited for `silent_s`; by default as long as else. `tell` hears what is waited for,
    from several threads."""

    def __init__(
        self,
        cluster: Deployed,
        interrupted: Event,
        status: Callable[[Deployed], StatusView],
        health_s: float = HEALTH_S,
        *,
        silent_s: float | None = None,
        groups: Callable[[Deployed], tuple[GroupsView, ...]] | None = None,
        tell: Tell = lambda text: None,
    ) -> None:
        self._cluster = cluster
        self._interrupted = interrupted
        self._status = status
        self._health_s = health_s
        self._silent_s = health_s if silent_s is None else silent_s
        self._groups = groups
        self._tell = tell
        self.controller = controller_url(cluster.inventory)

    def wait(
        self,
        host: Host,
        process: Process,
        place: Place,
        role: Role,
        controller: RhinoError | None = None,
    ) -> None:
        """Wait until a process does its part; an agent not at all if `controller` says why that one
        is known not to answer. Raises ServiceFailed if it does not stay, with its last words,
        DeadlineExceeded if it stays and is silent for too long, and NotRunning for an agent
        if it is the controller that is silent."""
        began = time.monotonic()
        silent_s = self._silent_s if controller is None else 0.0
        waiting = Waiting(self._tell, quiet_s=QUIET_S)
        while True:
            state = process.state(host)
            why, silence = self._why_not(place, role, state.pid, controller)
            if why is None:
                return
            if not state.kept or (state.restarts >= STARTS_MAX and not state.running):
                raise process.ended(state)
            waited_s = time.monotonic() - began
            if silence is not None and role is Role.AGENT and waited_s > silent_s:
                raise NotRunning(
                    f"{host.name}: the agent runs and has nobody to report to: {silence.message}",
                    remedy=f"it reports once the controller answers: {silence.remedy}",
                )
            if waited_s > self._health_s:
                raise DeadlineExceeded(
                    f"{host.name}: the {role.value} runs, but {why}",
                    remedy=f"if it hangs, `rhinoctl restart {host.name}`; else see its log,"
                    f" `rhinoctl logs {host.name}`, and that the ports of the inventory are open:"
                    " docs/operations/security.md",
                )
            waiting.on(f"{host.name}: waiting for the {role.value}: {why}")
            if self._interrupted.wait(LOOK_S):
                raise HostLost(
                    f"{host.name}: interrupted while the {role.value} was waited for",
                    remedy="repeat the command: it goes on where this one stopped",
                )

    def _why_not(
        self, place: Place, role: Role, pid: int, controller: RhinoError | None
    ) -> tuple[str | None, RhinoError | None]:
        """Why a process does not do its part, None if it does; and why the controller does not
        answer, if that is it."""
        if controller is not None:
            return "the controller does not answer", controller
        try:
            status = self._status(self._cluster)
        except (NotRunning, DeadlineExceeded) as fault:
            return f"from here {fault.message}", fault
        if role is Role.CONTROLLER or place.worker is None:
            return None, None
        known = [each for each in status.workers if each.id == place.worker.id]
        if not known:
            return (
                "the controller does not know its worker: its settings are of another inventory",
                None,
            )
        # What the one before it has said last may still be the newest that the controller knows.
        heard = all(each.pid == pid for each in known)
        well = heard and not not_back(known)
        return None if well else "it has not reported to the controller", None

    def silent(self, places: Sequence[Place], patience_s: float) -> dict[str, str]:
        """What is said to run and does not do its part, why by host; what still is after so long.
        If that is the controller, no agent is blamed that may be well."""
        deadline = time.monotonic() + patience_s
        waiting = Waiting(self._tell, quiet_s=QUIET_S)
        while True:
            found = self._silent(places)
            if not found or time.monotonic() > deadline:
                return found
            waiting.on(f"waiting: {', '.join(f'{host}: {why}' for host, why in found.items())}")
            if self._interrupted.wait(LOOK_S):
                return found

    def _silent(self, places: Sequence[Place]) -> dict[str, str]:
        try:
            workers = self._status(self._cluster).workers
        except RhinoError as fault:
            why = f"from here {fault.message}"
            blamed = [place.host for place in places if place.controller is not None]
            return dict.fromkeys(blamed or [place.host for place in places], why)
        well = {each.id for each in workers} - {*not_back(workers)}
        why = "its agent runs, and does not report to the controller"
        ours = {each.host: each.worker.id for each in places if each.worker is not None}
        return {host: why for host, worker in ours.items() if worker not in well}

    def unheard(self) -> tuple[str, ...]:
        """Who does not listen to the controller that answers, since its store lacks what they know;
        nothing where none does."""
        try:
            refused = self._status(self._cluster).refused_by
        except RhinoError:
            return ()
        why = "its store is new, or older than what they know: `rhinoctl controller recover`"
        who = named(refused, "does", "do")
        return (f"{who} not listen to this controller: {why}",) if refused else ()

    def addresses(self) -> dict[str, str]:
        """Where the controller looks for workers. Raises NotRunning and its like."""
        return {worker.id: worker.address for worker in self._status(self._cluster).workers}

    def troubles(self) -> frozenset[str]:
        """What the controller says is not as it is to be: workers, instances, copies, operations
        under way. Raises NotRunning and its like."""
        status = self._status(self._cluster)
        found = [unwell(name) for name in not_back(status.workers)]
        for job in status.jobs:
            if job.operation is not None:
                found.append(f"{job.operation} of job {job.name} is under way")
            if job.lacking:
                found.append(f"job {job.name} lacks copies")
            poor = [each.id for each in job.instances if not each.ready]
            found += [f"instance {each} of job {job.name} is not ready" for each in poor]
        for view in self._chains():
            if full_copies(view) < wanted_copies(view):
                found.append(f"job {view.job} lacks copies")
        return frozenset(found)

    def worse(
        self,
        before: frozenset[str],
        patience_s: float,
        *,
        quiet_s: float = QUIET_S,
    ) -> frozenset[str]:
        """Wait until nothing is worse than before; what still is after so long. Raises what
        `troubles` does."""
        deadline = time.monotonic() + patience_s
        waiting = Waiting(self._tell, quiet_s=quiet_s)
        while worse := self.troubles() - before:
            if time.monotonic() > deadline:
                return worse
            waiting.on(f"waiting: {', '.join(sorted(worse))}")
            self._interrupted.wait(LOOK_S)
        return frozenset()

    def stranded(self, workers: Sequence[str]) -> frozenset[str]:
        """The vnodes of jobs with copies that have no full copy, or owner, but on these workers.
        Raises NotRunning and its like."""
        found = set()
        for view in self._chains():
            lost = [
                group.vnode
                for group in view.groups
                if {group.worker, *(m.worker for m in group.members if is_good(m))} <= {*workers}
            ]
            if lost:
                found.add(
                    f"vnode {format_vnodes(lost)} of job {view.job} has no full copy but on"
                    f" {', '.join(workers)}"
                )
        return frozenset(found)

    def _chains(self) -> tuple[GroupsView, ...]:
        return () if self._groups is None else self._groups(self._cluster)

    def controller_is_silent(self) -> RhinoError | None:
        """Why the controller does not answer; None if it does."""
        try:
            self._status(self._cluster)
        except RhinoError as fault:
            return fault
        return None


def unwell(worker: str) -> str:
    """The trouble with a worker that does not report."""
    return f"worker {worker} is not well"


def read_status(cluster: Deployed) -> StatusView:
    """What the controller says, asked as the operator. Raises NotRunning and its like."""
    with connect(str(cluster.home.directory)) as client:
        return client.status()


def read_groups(cluster: Deployed) -> tuple[GroupsView, ...]:
    """The chains of all jobs that want copies and have had a batch, asked as the operator. Before
    the first one there is no state, and an agent that was restarted tells of no copies. Raises
    NotRunning and its like."""
    found = []
    with connect(str(cluster.home.directory)) as client:
        for job in client.jobs().jobs:
            if not job.replication or job.batch is None:
                continue
            try:
                found.append(client.groups(job.name, GroupsRequest()))
            except UnknownJob:
                continue  # it was deleted meanwhile
    return tuple(found)


def not_restarted(host: str, why: Iterable[str]) -> NotTried:
    """The error about a host on which what runs goes on as it is."""
    return NotTried(
        f"{host}: what runs there was not restarted: {', '.join(sorted(why))}",
        remedy="see `rhinoctl status`; once that is well, repeat the command: it goes on where this"
        " one stopped",
    )
