"""A deployment on its way: hosts are looked at, what is missing becomes a plan, the plan is done.

All that touches no process is done on all hosts at once, then the controller is started, then the
agents. A host that fails is left where it is and named; the others go on, or are left as they are
where that would take away twice what is to be there. Nothing is taken back.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Final

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
from rhinoctl.config.runs import HostState, Journal, RunState
from rhinoctl.errors import DeadlineExceeded, NotTried, RhinoError
from rhinoctl.ops.access import write_accesses
from rhinoctl.ops.addresses import changed, deployed_addresses, not_without_controller
from rhinoctl.ops.deployed import (
    Deployed,
    Looked,
    check_fit,
    check_machine,
    check_release,
    clusters_directory,
    found_on,
    look_at_all,
    outline,
    remember,
    target,
    words_about,
)
from rhinoctl.ops.hosts import fleet_of
from rhinoctl.ops.rollout_views import DeployView, HostView, Progress
from rhinoctl.ops.steps import (
    HEALTH_S,
    SETTLE_S,
    Health,
    Tools,
    not_restarted,
    perform,
    read_groups,
    read_status,
    unwell,
)
from rhinoctl.protocol.views import GroupsView, StatusView
from rhinoctl.remote.environment import Environment, build_environment
from rhinoctl.remote.fleet import Fleet
from rhinoctl.remote.host import Audited, Host, Stoppable
from rhinoctl.remote.packages import Platform, platform_of
from rhinoctl.remote.ssh import Login

UNREACHED: Final = frozenset(
    {"host-unreachable", "host-lost", "jump-failed", "login-refused", "login-shell-ended"}
    | {"host-key-unknown", "host-key-changed"}
)
"""Codes of errors after which a host is unreachable; with any other it has failed."""


LOOK_BACK_S: Final = 10.0
"""What was not touched is waited for so long, once: it may just have been started by somebody."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Means:
    """What a deployment acts through: hosts, the making of releases, the controller's word."""

    open_fleet: Callable[[Inventory, Login], Fleet[Host]] = fleet_of
    build: Callable[[Platform, Path, Callable[[str], None]], Environment] = build_environment
    status: Callable[[Deployed], StatusView] = read_status
    groups: Callable[[Deployed], tuple[GroupsView, ...]] = read_groups
    health_s: float = HEALTH_S
    settle_s: float = SETTLE_S
    look_back_s: float = LOOK_BACK_S


REAL: Final = Means()

Waves = Callable[[Sequence[str]], Sequence[tuple[str, ...]]]
"""Agents that are to be restarted, as those that may be away at once, one such wave after the
other."""


def one_by_one(hosts: Sequence[str]) -> Sequence[tuple[str, ...]]:
    """The waves of a deployment: no two agents are away at once."""
    return [(host,) for host in hosts]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """How what runs is restarted. `strict`: only while all is well and every copy is full, and not
    only as well as before; agents only after the controller, and none after one that failed.
    `back`: an older release may take a newer one's place, if it understands what that wrote."""

    waves: Waves = one_by_one
    strict: bool = False
    back: bool = False


DEPLOY: Final = Rollout()


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSeen:
    """What is known of a host before it is changed: how it is, the release for it, the plan, and
    why it cannot be deployed to; each None if there is none."""

    looked: Looked | None
    environment: Environment | None
    plan: HostPlan | None
    fault: RhinoError | None

    @property
    def bare(self) -> bool:
        """Whether it is known that nothing is deployed there."""
        return self.looked is not None and self.looked.bare


class Deployment:
    """The hosts of one deployment, each with its plan, or the error that it ended with."""

    def __init__(
        self,
        cluster: Deployed,
        fleet: Fleet[Host],
        progress: Progress,
        means: Means,
        rollout: Rollout = DEPLOY,
    ) -> None:
        self._cluster = cluster
        self._fleet = fleet
        self._progress = progress
        self._means = means
        self._rollout = rollout
        self._began = time.monotonic()
        self._looked: dict[str, Looked] = {}
        self._environments: dict[str, Environment] = {}
        self._plans: dict[str, HostPlan] = {}
        self._faults: dict[str, RhinoError] = {}
        self._addresses: dict[str, str] = {}
        self._done: set[str] = set()
        self._ended: dict[str, float] = {}
        self._hosts: tuple[str, ...] = ()
        self._unwell: tuple[str, ...] = ()
        self._journal: Journal | None = None
        self._lock = Lock()
        self.health = Health(
            cluster,
            fleet.interrupted,
            means.status,
            means.health_s,
            groups=means.groups if rollout.strict else None,
            tell=progress.say,
        )

    # --- the plan --------------------------------------------------------------------------------

    def look(self, hosts: Iterable[str]) -> None:
        """Look at the hosts, and plan what is missing on each."""
        self._hosts = tuple(dict.fromkeys(hosts))
        self._progress.say(f"hosts to look at: {len(self._hosts)}")
        if any(self._cluster.places[name].controller is not None for name in self._hosts):
            self._tell_rates()
        for former in self._cluster.home.former():
            self._progress.say(words_about(former))
        found = look_at_all(self._cluster, self._hosts, self._fleet.each)
        self._looked = {name: each for name, each in found.items() if isinstance(each, Looked)}
        self._faults = {name: each for name, each in found.items() if isinstance(each, RhinoError)}
        platforms: dict[Platform, Environment | RhinoError] = {}
        for name, looked in self._looked.items():
            try:
                self._plans[name] = self._plan(looked, platforms)
            except RhinoError as fault:
                self._faults[name] = fault
        self._addresses = deployed_addresses(self._cluster, self._fleet)
        self._keep_addresses()
        self._keep_seat()

    def _keep_addresses(self) -> None:
        """Let the controller find workers where they are that are not deployed to, and leave an
        agent where it is if the controller is not."""
        first = self._cluster.controller_s_host
        others = changed(self._cluster.inventory, self._addresses)
        if not self._goes_on(first):
            for name in filter(self._goes_on, others):
                self._faults[name] = not_without_controller(name, others[name], (first, name))
            return
        kept = {name: there for name, there in others.items() if not self._goes_on(name)}
        if kept:
            looked, environment = self._looked[first], self._environments[first]
            wanted = target(self._cluster, looked.place, environment.name, kept)
            self._plans[first] = plan_host(wanted, found_on(looked))
        for name, there in kept.items():
            self._progress.say(
                f"{name} is not deployed to: the controller still finds it at {there}"
            )

    def _keep_seat(self) -> None:
        """Leave all as it is if the controller's line names another machine than it is on: no agent
        is to look for it there."""
        seat, wanted = self._cluster.home.seat(), self._cluster.inventory.controller.host
        if seat is None:
            return
        looked = self._looked.get(self._cluster.controller_s_host)
        there = looked.facts.machine_id == seat.machine if looked else wanted == seat.host
        for name in () if there else filter(self._goes_on, self._hosts):
            self._faults[name] = NotTried(
                f"{name}: the inventory has the controller on {wanted}, and it was deployed on"
                f" {seat.host}",
                remedy="put its line in the inventory right; if it has another name now, deploy to"
                " its host, too",
            )

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
        bare = outline(cluster, place)
        check_identity(place.host, bare.install_dir, bare.identity, looked.deployed.identity)
        check_machine(cluster, looked)
        check_fit(cluster, looked)
        platform = platform_of(looked.facts)
        if platform not in platforms:
            platforms[platform] = self._build(platform)
        environment = platforms[platform]
        if isinstance(environment, RhinoError):
            raise environment
        self._environments[place.host] = environment
        check_release(looked, environment.speaks, back=self._rollout.back)
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

    def seen(self, name: str) -> HostSeen:
        """What is known of a host that was looked at."""
        return HostSeen(
            looked=self._looked.get(name),
            environment=self._environments.get(name),
            plan=self._plans.get(name),
            fault=self._faults.get(name),
        )

    def refuse(self, name: str, fault: RhinoError) -> None:
        """Leave a host as it is, for a reason that a look has shown."""
        self._faults[name] = fault

    def leave_out(self, name: str) -> None:
        """A host was looked at for the sake of others only."""
        self._hosts = tuple(each for each in self._hosts if each != name)
        self._plans.pop(name, None)
        self._faults.pop(name, None)

    def await_well(self, before: frozenset[str] = frozenset()) -> frozenset[str]:
        """Wait until nothing is worse than before; what still is after the time for that. Raises
        NotRunning and its like."""
        return self.health.worse(before, self._means.settle_s, quiet_s=0.0)

    # --- doing it --------------------------------------------------------------------------------

    def carry_out(self, journal: Journal) -> DeployView:
        """Do what was planned. Ctrl-C ends it within seconds, and the account says so."""
        self._journal = journal
        self._progress.began(journal.run.id)
        for name in list(self._faults):
            self._settle(name)
        ended = RunState.INTERRUPTED
        try:
            if all(Role.CONTROLLER not in self._roles(name) for name in self._faults):
                write_accesses(self._cluster)
            before, moving = self._before(), self._moving()
            self._at_once(self._with_steps(), self._prepare)
            self._start_controller(before)
            self._start_agents(before, moving)
            self._await_well_again()
            self.look_back()
            ended = RunState.PARTIAL if self._faults else RunState.DONE
        finally:
            journal.close(ended)
        return replace(self.view(), run=journal.run.id)

    def _with_steps(self) -> list[str]:
        return [name for name, plan in self._plans.items() if plan.steps and self._goes_on(name)]

    def _goes_on(self, name: str) -> bool:
        return name in self._plans and name not in self._faults

    def _start_controller(self, before: frozenset[str]) -> None:
        """Start it where that was planned, and see that it answers before any agent is started."""
        hosts = [name for name in self._with_steps() if self._starts(name, Role.CONTROLLER)]
        down = any(self._starts_down(name) for name in self._with_steps())
        waits = self._rollout.strict and hosts and not down  # what is down has to come back first
        if not waits or self._may_restart(self._with_steps(), before):
            self._at_once(hosts, partial(self._start, role=Role.CONTROLLER))

    def _before(self) -> frozenset[str]:
        """What need not be well when something is restarted: what is not well now, as far as the
        controller tells."""
        if self._rollout.strict:
            return frozenset()
        try:
            return self.health.troubles()
        except RhinoError:
            return frozenset()

    def _moving(self) -> frozenset[str]:
        """The workers that the controller that runs looks for elsewhere than it will."""
        try:
            known = self.health.addresses()
        except RhinoError:
            known = self._addresses
        return frozenset(changed(self._cluster.inventory, known))

    def _start_agents(self, before: frozenset[str], moving: frozenset[str]) -> None:
        """Those that do not run all at once, and with them those that are `moving`: the controller
        has lost them anyway until they are started. The others one wave after the other, each once
        all is as well as `before`."""
        starting = [name for name in self._with_steps() if self._starts(name, Role.AGENT)]
        fault = self._controller_fault() if starting else None
        if fault is not None:
            for name in starting:
                self._fail(name, _not_started(name, fault))
            return
        again = [
            name
            for name in starting
            if self._starts(name, Role.AGENT, anew=True) and name not in moving
        ]
        done = [name for name in starting if name not in again]
        start = partial(self._start, role=Role.AGENT)
        self._at_once(done, start)
        if not self._rollout.strict:
            before |= {unwell(name) for name in self._faults}
            again.sort(key=lambda name: unwell(name) not in before)  # who is away anyway is first
        waves = self._rollout.waves(again)
        for number, wave in enumerate(waves):
            left = [name for later in waves[number:] for name in later]
            if not self._may_restart(left, before, wave, done):
                return
            self._at_once(wave, start)
            done += wave

    def _controller_fault(self) -> RhinoError | None:
        """Why no agent may be started: nobody would answer it, for a reason of the controller's
        host if there is one; or the controller is not the first to be restarted."""
        failed = (self._faults.get(n) for n in self._hosts if Role.CONTROLLER in self._roles(n))
        first = next((fault for fault in failed if fault is not None), None)
        if self._rollout.strict and first is not None:
            return first
        silent = self.health.controller_is_silent()
        return silent if first is None or silent is None else first

    def _may_restart(
        self,
        left: Sequence[str],
        before: frozenset[str],
        wave: Sequence[str] = (),
        done: Sequence[str] = (),
    ) -> bool:
        """Wait until all is as well as `before`; whether it is, and a `wave` may go. If not, those
        that are `left` are not tried: what is not back, or a copy with it, would be away twice."""
        failed = [name for name in done if name in self._faults] if self._rollout.strict else []
        try:
            why = frozenset(f"{name} has failed" for name in failed)
            why = why or self.await_well(before)
            why = why or (self.health.stranded(wave) if len(wave) > 1 else frozenset())
        except RhinoError as fault:
            why = frozenset([fault.message])
        for name in left if why else ():
            self._fail(name, not_restarted(name, why))
        return not why

    def look_back(self) -> None:
        """See that what was left as it is does its part, too: a process that hangs still runs; and
        that the controller is listened to."""
        same = [name for name in self._hosts if self._state(name) is HostState.UNCHANGED]
        for name in same:
            for role in self._roles(name):
                remember(self._cluster, self._looked[name], role)
        places = [self._cluster.places[name] for name in same]
        silent = self.health.silent(places, self._means.look_back_s) if places else {}
        for name, why in silent.items():
            fault = DeadlineExceeded(
                f"{name}: it is as the inventory says, but {why}",
                remedy=f"see the log, `rhinoctl logs {name}`; a process that hangs is ended and"
                f" started by `rhinoctl restart {name}`",
            )
            self._fail(name, fault)
        self._unwell += self.health.unheard()

    def _await_well_again(self) -> None:
        """After an upgrade, wait until all is well again."""
        if self._rollout.strict and self._done and not self._faults:
            try:
                self._unwell = tuple(sorted(self.await_well()))
            except RhinoError as fault:
                self._unwell = (fault.message,)

    def _starts(self, name: str, role: Role, *, anew: bool = False) -> bool:
        return any(
            isinstance(step, StartService) and step.service.role is role and step.anew >= anew
            for step in self._plans[name].steps
        )

    def _starts_down(self, name: str) -> bool:
        """Whether something is to be started that does not run."""
        steps = self._plans[name].steps
        return any(isinstance(step, StartService) and not step.anew for step in steps)

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
            self.health.wait(host, process, self._cluster.places[host.name], role)
        if role is [first, *others][-1]:
            self._finish(host.name)

    def _do(self, host: Host, step: Step) -> None:
        looked = self._looked[host.name]
        if isinstance(step, StartService):
            with self._lock:
                remember(self._cluster, looked, step.service.role)
        tools = Tools(
            cluster=self._cluster,
            looked=looked,
            environment=self._environments[host.name],
        )
        with self._step(host.name, words(step)):
            perform(step, host, tools)

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
            controller=self.health.controller,
            hosts=tuple(self._view_of(name) for name in self._hosts),
            seconds=time.monotonic() - self._began,
            unwell=self._unwell,
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


def _not_started(name: str, fault: RhinoError) -> NotTried:
    return NotTried(
        f"{name}: its agent was not started, for the controller comes first: {fault.message}",
        remedy=fault.remedy,
    )
