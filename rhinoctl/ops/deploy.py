"""`rhinoctl deploy`: from an inventory to a cluster that runs.

Hosts are looked at, what is missing becomes a plan, the plan is shown, then done: everything that
touches no process on all hosts at once, then the controller, then the agents. A host that fails is
left where it is and named; the others go on. Nothing is taken back: the same command goes on.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Final, Protocol

from rhinoctl.config.deployment import (
    HostPlan,
    Role,
    StartService,
    Step,
    SwitchEnvironment,
    check_identity,
    plan_host,
    words,
)
from rhinoctl.config.inventory import Inventory
from rhinoctl.config.rates import ago
from rhinoctl.config.runs import HostState as HostState
from rhinoctl.config.runs import Journal, RunState, check_latest, find_run, new_run
from rhinoctl.errors import Exit, NotTried, RhinoError, UnknownRun
from rhinoctl.ops.access import write_accesses
from rhinoctl.ops.deployed import (
    Deployed,
    Looked,
    check_fit,
    check_machine,
    check_members,
    check_release,
    clusters_directory,
    deployed_of,
    found_on,
    look_at_all,
    member_of,
    read_deployed,
    target,
)
from rhinoctl.ops.hosts import fleet_of
from rhinoctl.ops.steps import HEALTH_S, SETTLE_S, Health, Tools, perform, read_status, unwell
from rhinoctl.protocol.views import StatusView
from rhinoctl.remote.environment import Environment, build_environment
from rhinoctl.remote.fleet import Fleet
from rhinoctl.remote.host import Audited, Host, Stoppable
from rhinoctl.remote.packages import Platform, platform_of
from rhinoctl.remote.ssh import Login

COMMAND: Final = "deploy"

UNREACHED: Final = frozenset(
    {"host-unreachable", "host-lost", "jump-failed", "login-refused", "login-shell-ended"}
    | {"host-key-unknown", "host-key-changed"}
)
"""Codes of errors after which a host is unreachable; with any other it has failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Means:
    """What a deployment acts through: hosts, the making of releases, the controller's word."""

    open_fleet: Callable[[Inventory, Login], Fleet[Host]] = fleet_of
    build: Callable[[Platform, Path, Callable[[str], None]], Environment] = build_environment
    status: Callable[[Deployed], StatusView] = read_status
    health_s: float = HEALTH_S
    settle_s: float = SETTLE_S


REAL: Final = Means()


@dataclass(frozen=True, slots=True, kw_only=True)
class DeployRequest:
    """What is asked for. `limit` are hosts, none of them for all. `renew`: with new keys and
    certificates for every process; `renew_access`: for people and drivers, too, and new tokens."""

    inventory: Path
    limit: tuple[str, ...] = ()
    dry_run: bool = False
    renew: bool = False
    renew_access: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class HostView:
    """A host of a deployment: its steps, and one reason with its remedy if it was not done.
    `restarts`: a process that runs is, or was, ended and started; `seconds`: when it was done."""

    host: str
    roles: tuple[str, ...]
    state: HostState
    steps: tuple[str, ...] = ()
    restarts: bool = False
    code: str = ""
    reason: str = ""
    remedy: str = ""
    seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DeployView:
    """A deployment, planned or done. `run` names its account, empty if nothing had to be done."""

    file: str
    cluster: str
    identity: str
    controller: str
    hosts: tuple[HostView, ...]
    run: str = ""
    dry_run: bool = False
    seconds: float = 0.0

    def of(self, *states: HostState) -> list[HostView]:
        """The hosts in some states."""
        return [host for host in self.hosts if host.state in states]


class Progress(Protocol):
    """Who hears how far it is; called from several threads."""

    def say(self, text: str) -> None:
        """Something about all of it."""

    def began(self, run: str) -> None:
        """It is being carried out, under this name."""

    def at(self, host: str, what: str) -> None:
        """A step on a host has begun."""

    def ended(self, host: HostView) -> None:
        """A host has come to its end."""


def deploy(
    request: DeployRequest,
    login: Login,
    progress: Progress,
    agree: Callable[[DeployView], object],
    means: Means = REAL,
) -> DeployView:
    """Bring every host to what the inventory says. `agree` sees the plan before a host is changed,
    and may raise.

    Raises NoInventory, InvalidInventory, UnknownHost, Busy, and Refused for an inventory that
    leaves out a worker that was deployed. What is wrong with a host is in the view.
    """
    cluster = read_deployed(request.inventory)
    return deploy_cluster(cluster, request, login, progress, agree, means)


def resume(
    run: str,
    login: Login,
    progress: Progress,
    agree: Callable[[DeployView], object],
    means: Means = REAL,
) -> DeployView:
    """Go on with a run where it stopped, with the inventory that it was begun with. Raises
    UnknownRun, Busy if another inventory was deployed since, and what `deploy` does."""
    old = find_run(clusters_directory(), run)
    if old.command != COMMAND:
        raise UnknownRun(
            f"run {run} is of `rhinoctl {old.command}`, and deployed nothing",
            remedy="repeat that command; a run to go on with is named by `rhinoctl deploy`",
        )
    cluster = deployed_of(old.file, old.inventory)
    check_latest(cluster.home.runs, old)
    request = DeployRequest(inventory=Path(old.file), limit=old.limit)
    return deploy_cluster(cluster, request, login, progress, agree, means, resumes=old.id)


def exit_of(view: DeployView) -> Exit:
    """Partial if any host was not done; changes only for a dry run."""
    if view.of(HostState.FAILED, HostState.UNREACHABLE, HostState.NOT_TRIED):
        return Exit.PARTIAL
    return Exit.HAS_CHANGES if view.of(HostState.PLANNED) else Exit.DONE


def deploy_cluster(
    cluster: Deployed,
    request: DeployRequest,
    login: Login,
    progress: Progress,
    agree: Callable[[DeployView], object],
    means: Means,
    resumes: str = "",
) -> DeployView:
    """`deploy`, of a cluster that was read already: `request` names its file no more."""
    wanted = cluster.selected(request.limit)
    with cluster.home.claimed(), means.open_fleet(cluster.inventory, login) as fleet:
        check_members(cluster)
        if request.renew and not request.dry_run:
            cluster.home.renew(access=request.renew_access)
        deployment = Deployment(cluster, fleet, progress, means)
        deployment.look(wanted)
        view = replace(deployment.view(), dry_run=request.dry_run)
        if request.dry_run or not deployment.unfinished():
            return view
        agree(view)
        run = new_run(
            command=COMMAND,
            cluster=cluster.inventory.cluster,
            file=cluster.file,
            inventory=cluster.text,
            limit=request.limit,
            resumes=resumes,
        )
        return deployment.carry_out(Journal(cluster.home.runs, run))


class Deployment:
    """The hosts of one deployment, each with its plan, or the error that it ended with."""

    def __init__(
        self, cluster: Deployed, fleet: Fleet[Host], progress: Progress, means: Means
    ) -> None:
        self._cluster = cluster
        self._fleet = fleet
        self._progress = progress
        self._means = means
        self._began = time.monotonic()
        self._looked: dict[str, Looked] = {}
        self._environments: dict[str, Environment] = {}
        self._plans: dict[str, HostPlan] = {}
        self._faults: dict[str, RhinoError] = {}
        self._done: set[str] = set()
        self._ended: dict[str, float] = {}
        self._hosts: tuple[str, ...] = ()
        self._journal: Journal | None = None
        self._lock = Lock()
        self._health = Health(cluster, fleet.interrupted, means.status, means.health_s)

    # --- the plan --------------------------------------------------------------------------------

    def look(self, hosts: Iterable[str]) -> None:
        """Look at the hosts, and plan what is missing on each."""
        self._hosts = tuple(dict.fromkeys(hosts))
        self._progress.say(f"looking at {len(self._hosts)} hosts")
        if any(self._cluster.places[name].controller is not None for name in self._hosts):
            self._tell_rates()
        found = look_at_all(self._cluster, self._hosts, self._fleet.each)
        self._looked = {name: each for name, each in found.items() if isinstance(each, Looked)}
        self._faults = {name: each for name, each in found.items() if isinstance(each, RhinoError)}
        platforms: dict[Platform, Environment | RhinoError] = {}
        for name, looked in self._looked.items():
            try:
                self._plans[name] = self._plan(looked, platforms)
            except RhinoError as fault:
                self._faults[name] = fault

    def _tell_rates(self) -> None:
        rates = self._cluster.home.rates()
        if rates is not None:
            when = ago(rates.days_old(time.time()))
            self._progress.say(f"copies are placed for the network as measured {when}")

    def _plan(
        self, looked: Looked, platforms: dict[Platform, Environment | RhinoError]
    ) -> HostPlan:
        """Raises what says that the host cannot be deployed to: then nothing on it is changed."""
        cluster, place = self._cluster, looked.place
        bare = target(cluster, place)
        check_identity(place.host, bare.install_dir, bare.identity, looked.deployed.identity)
        check_machine(cluster, looked)
        check_fit(cluster, looked)
        platform = platform_of(looked.facts)
        if platform not in platforms:
            platforms[platform] = self._build(platform)
        environment = platforms[platform]
        if isinstance(environment, RhinoError):
            raise environment
        check_release(looked, environment.speaks)
        self._environments[place.host] = environment
        return plan_host(target(cluster, place, environment.name), found_on(looked))

    def _build(self, platform: Platform) -> Environment | RhinoError:
        cache = clusters_directory().parent / "environments"
        try:
            return self._means.build(platform, cache, self._progress.say)
        except RhinoError as fault:
            return fault

    def unfinished(self) -> bool:
        """Whether there is anything to do, or a host that could not be asked."""
        return bool(self._faults) or any(plan.steps for plan in self._plans.values())

    # --- doing it --------------------------------------------------------------------------------

    def carry_out(self, journal: Journal) -> DeployView:
        """Do what was planned. Ctrl-C ends it within seconds, and the account says so."""
        self._journal = journal
        self._progress.began(journal.run.id)
        for name in list(self._faults):
            self._settle(name)
        ended = RunState.INTERRUPTED
        try:
            write_accesses(self._cluster)
            before = self._troubles()
            self._at_once(self._with_steps(), self._prepare)
            self._start_controller()
            self._start_agents(before)
            ended = RunState.PARTIAL if self._faults else RunState.DONE
        finally:
            journal.close(ended)
        return replace(self.view(), run=journal.run.id)

    def _with_steps(self) -> list[str]:
        return [name for name, plan in self._plans.items() if plan.steps and self._goes_on(name)]

    def _goes_on(self, name: str) -> bool:
        return name in self._plans and name not in self._faults

    def _start_controller(self) -> None:
        """Start it where that was planned, and see that it answers before any agent is started."""
        hosts = [name for name in self._with_steps() if self._starts(name, Role.CONTROLLER)]
        self._at_once(hosts, partial(self._start, role=Role.CONTROLLER))

    def _troubles(self) -> frozenset[str]:
        """What is not well before anything is restarted, as far as the controller tells."""
        try:
            return self._health.troubles()
        except RhinoError:
            return frozenset()

    def _start_agents(self, before: frozenset[str]) -> None:
        """Those that do not run all at once; those that do one after the other, each once all is as
        well as `before`, so that no more than one worker is away at a time."""
        starting = [name for name in self._with_steps() if self._starts(name, Role.AGENT)]
        if starting:
            silent = self._health.controller_is_silent()
            if silent is not None:
                for name in starting:
                    self._fail(name, _not_tried(name, silent))
                return
        again = [name for name in starting if self._starts(name, Role.AGENT, anew=True)]
        start = partial(self._start, role=Role.AGENT)
        self._at_once([name for name in starting if name not in again], start)
        known = before | {unwell(name) for name in self._faults}
        for name in again:
            try:
                self._health.settle(name, known, self._means.settle_s)
            except RhinoError as fault:
                self._fail(name, fault)
            else:
                self._at_once([name], start)

    def _starts(self, name: str, role: Role, *, anew: bool = False) -> bool:
        return any(
            isinstance(step, StartService) and step.service.role is role and step.anew >= anew
            for step in self._plans[name].steps
        )

    def _roles(self, name: str) -> tuple[Role, ...]:
        return self._cluster.places[name].roles

    def _at_once(self, hosts: Iterable[str], do: Callable[[Host], None]) -> None:
        self._fleet.each(self._kept(do), hosts)

    def _kept(self, do: Callable[[Host], None]) -> Callable[[Host], None]:
        """The same with every command written down, and none begun after Ctrl-C."""
        journal = self._journal
        assert journal is not None

        def on(host: Host) -> None:
            kept = Audited(Stoppable(host, self._fleet.interrupted), journal.audit)
            try:
                do(kept)
            except RhinoError as fault:
                self._fail(host.name, fault)  # at once: others may take longer

        return on

    def _prepare(self, host: Host) -> None:
        """All that no process notices; with nothing to start, that is all there is."""
        starts = [role for role in Role if self._starts(host.name, role)]
        for step in self._plans[host.name].steps:
            if not isinstance(step, StartService) and not (
                starts and isinstance(step, SwitchEnvironment)
            ):
                self._do(host, step)
        if not starts:
            self._finish(host.name)

    def _start(self, host: Host, role: Role) -> None:
        """Start the process of a role, and wait until it does its part. The release is switched
        just before, since an agent that still runs must not start instances of another one."""
        first, *others = [each for each in Role if self._starts(host.name, each)]
        for step in self._plans[host.name].steps:
            ours = isinstance(step, StartService) and step.service.role is role
            if ours or (isinstance(step, SwitchEnvironment) and role is first):
                self._do(host, step)
        with self._step(host.name, f"wait for the {role.value}"):
            process = self._looked[host.name].processes[role]
            self._health.wait(host, process, self._cluster.places[host.name], role)
        if role is [first, *others][-1]:
            self._finish(host.name)

    def _do(self, host: Host, step: Step) -> None:
        looked = self._looked[host.name]
        if isinstance(step, StartService) and step.service.role is Role.AGENT:
            self._join(looked)
        tools = Tools(
            cluster=self._cluster,
            looked=looked,
            environment=self._environments[host.name],
        )
        with self._step(host.name, words(step)):
            perform(step, host, tools)

    def _join(self, looked: Looked) -> None:
        """From before its first start on: afterwards there may be state."""
        member = member_of(looked)
        if member is not None and looked.place.worker is not None:
            with self._lock:
                self._cluster.home.join(looked.place.worker.id, member)

    @contextmanager
    def _step(self, host: str, what: str) -> Iterator[None]:
        journal = self._journal
        assert journal is not None
        self._progress.at(host, what)
        journal.begin(host, what)
        try:
            yield
        except RhinoError as fault:
            journal.end(host, fault.message)
            raise
        journal.end(host)

    # --- how it ended ----------------------------------------------------------------------------

    def _finish(self, name: str) -> None:
        self._done.add(name)
        self._settle(name)

    def _fail(self, name: str, fault: RhinoError) -> None:
        self._faults[name] = fault
        self._settle(name)

    def _settle(self, name: str) -> None:
        self._ended[name] = time.monotonic()
        view = self._view_of(name)
        if self._journal is not None:
            self._journal.settle(name, view.state, view.reason)
        self._progress.ended(view)

    def view(self) -> DeployView:
        """All hosts as they are now."""
        inventory = self._cluster.inventory
        known = self._cluster.home.make()
        return DeployView(
            file=self._cluster.file,
            cluster=inventory.cluster,
            identity=known.identity,
            controller=self._health.controller,
            hosts=tuple(self._view_of(name) for name in self._hosts),
            seconds=time.monotonic() - self._began,
        )

    def _view_of(self, name: str) -> HostView:
        plan, fault = self._plans.get(name), self._faults.get(name)
        return HostView(
            host=name,
            roles=tuple(role.value for role in self._roles(name)),
            state=self._state(name),
            steps=tuple(map(words, plan.steps)) if plan is not None else (),
            restarts=plan is not None and plan.restarts,
            code="" if fault is None else fault.code,
            reason="" if fault is None else fault.message.removeprefix(f"{name}: "),
            remedy="" if fault is None else fault.remedy,
            seconds=self._ended.get(name, time.monotonic()) - self._began,
        )

    def _state(self, name: str) -> HostState:
        fault = self._faults.get(name)
        if fault is None:
            if name in self._done:
                return HostState.DONE
            plan = self._plans.get(name)
            return HostState.PLANNED if plan is None or plan.steps else HostState.UNCHANGED
        if isinstance(fault, NotTried):
            return HostState.NOT_TRIED
        return HostState.UNREACHABLE if fault.code in UNREACHED else HostState.FAILED


def _not_tried(name: str, fault: RhinoError) -> NotTried:
    return NotTried(
        f"{name}: its agent was not started, for the controller does not answer: {fault.message}",
        remedy=fault.remedy,
    )
