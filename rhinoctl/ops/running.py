"""What runs on a cluster's hosts: listed, started, ended, started anew, and its logs."""

import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

from rhinoctl.config.deployment import Role, check_identity
from rhinoctl.errors import (
    Exit,
    HostLost,
    HostUnreachable,
    JumpFailed,
    NotRunning,
    NotTried,
    RhinoError,
)
from rhinoctl.ops.deployed import (
    Deployed,
    bare_host,
    check_at_home,
    read_deployed,
    words_about,
)
from rhinoctl.ops.hosts import fleet_of
from rhinoctl.ops.processes import Process, process_of
from rhinoctl.ops.steps import SETTLE_S, Health, read_status
from rhinoctl.ops.steps import Tell as Tell
from rhinoctl.protocol.views import StatusView
from rhinoctl.remote.deployed import DeployedFacts, ask_deployed
from rhinoctl.remote.facts import ask_facts
from rhinoctl.remote.fleet import Fleet
from rhinoctl.remote.host import Command, Host
from rhinoctl.remote.ssh import Login
from rhinoctl.remote.supervised import Log

T = TypeVar("T")

OpenFleet = Callable[..., Fleet[Host]]
Status = Callable[[Deployed], StatusView]
Selected = Mapping[str, tuple[Role, ...]]

AGENTS_LAST: Final = (Role.CONTROLLER, Role.AGENT)
"""The controller is first to start, since agents report to it, and first to end, so that it does
not take a cluster that is ended for one that fails."""

SILENT_S: Final = 10.0
"""Agents are started after the controller has answered; one that does not is not waited for by each
of them."""

FOLLOW_S: Final = 1.0
"""Between two looks at a log that is followed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessView:
    """A process of a host; `since` is in seconds of the epoch, None if it does not run. `words` are
    the last that one said that does not stay."""

    host: str
    role: str
    release: str
    kind: str
    running: bool
    pid: int = 0
    since: float | None = None
    restarts: int = 0
    exit_code: int | None = None
    words: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostFault:
    """A host of which nothing is known, or on which what was asked for was not done."""

    host: str
    code: str
    reason: str
    remedy: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HostsView:
    """The processes of a cluster's hosts; `former` tells of machines that were let go."""

    file: str
    cluster: str
    processes: tuple[ProcessView, ...]
    faults: tuple[HostFault, ...]
    former: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LogView:
    """The end of a process's log."""

    host: str
    role: str
    lines: tuple[str, ...]


def exit_of(view: HostsView) -> Exit:
    """Partial if a host could not be asked, or what was asked for was not done there."""
    return Exit.PARTIAL if view.faults else Exit.DONE


def exit_of_list(view: HostsView) -> Exit:
    """Degraded if a process does not run; refused if nothing is deployed anywhere."""
    if view.faults and not view.processes and {f.code for f in view.faults} == {NotRunning.code}:
        return Exit.REFUSED
    if view.faults:
        return Exit.PARTIAL
    return Exit.DONE if all(each.running for each in view.processes) else Exit.DEGRADED


# --- the verbs -----------------------------------------------------------------------------------


def list_hosts(
    file: Path, names: Sequence[str], login: Login, open_fleet: OpenFleet = fleet_of
) -> HostsView:
    """The processes as they are. Raises NoInventory, InvalidInventory, UnknownHost."""
    cluster = read_deployed(file)
    with open_fleet(cluster.inventory, login) as fleet:
        return _view(cluster, fleet, cluster.selected(names), {})


def start(
    file: Path,
    names: Sequence[str],
    login: Login,
    tell: Tell,
    open_fleet: OpenFleet = fleet_of,
    status: Status = read_status,
) -> HostsView:
    """Start what does not run, and wait until it does its part. Raises what `list_hosts` does, and
    Busy."""

    def on(host: Host, process: Process, at: "At") -> None:
        if not process.state(host).running:
            tell(f"{host.name}: starting the {at.role.value}")
            process.start(host)
        at.health.wait(host, process, at.cluster.places[host.name], at.role, at.controller)

    return _change(file, names, login, on, open_fleet, status=status, tell=tell)


def stop(
    file: Path, names: Sequence[str], login: Login, tell: Tell, open_fleet: OpenFleet = fleet_of
) -> HostsView:
    """End what runs, an agent's instances, too. Raises what `list_hosts` does, and Busy."""

    def on(host: Host, process: Process, at: "At") -> None:
        tell(f"{host.name}: ending the {at.role.value}")
        process.stop(host)

    return _change(file, names, login, on, open_fleet)


def restart(
    file: Path,
    names: Sequence[str],
    login: Login,
    tell: Tell,
    open_fleet: OpenFleet = fleet_of,
    status: Status = read_status,
) -> HostsView:
    """End and start one process after the other, each until it does its part, and the next once
    all is as well as before the first; those after one that fails are named as not tried. Raises
    what `list_hosts` does, and Busy."""

    def on(host: Host, process: Process, at: "At") -> None:
        tell(f"{host.name}: restarting the {at.role.value}")
        process.stop(host)
        process.start(host)
        at.health.wait(host, process, at.cluster.places[host.name], at.role)

    return _change(file, names, login, on, open_fleet, rolling=True, status=status, tell=tell)


def follow_logs(
    file: Path,
    name: str,
    lines: int,
    login: Login,
    open_fleet: OpenFleet = fleet_of,
    pause: Callable[[float], object] = time.sleep,
) -> Generator[LogView, None, None]:
    """The end of the log of a host's process, its agent's unless the controller is named; then what
    is written to it, for as long as that is asked for. Raises UnknownHost, and HostError's leaves,
    also once the host is not there any more."""
    cluster = read_deployed(file)
    ((host, roles),) = list(cluster.selected([name]).items())[:1]
    role = roles[-1]

    def look(there: Host) -> tuple[Process, Log]:
        process, _ = process_at(there, cluster, role)
        return process, process.logs(there, lines)

    def look_again(there: Host) -> Log:
        return process.logs(there, lines, log.cursor)

    with open_fleet(cluster.inventory, login) as fleet:
        process, log = of_one(fleet.each(look, [host]))
        yield LogView(host=host, role=role.value, lines=log.lines)
        while True:
            pause(FOLLOW_S)
            log = of_one(fleet.each(look_again, [host]))
            if log.lines:
                yield LogView(host=host, role=role.value, lines=log.lines)


def of_one(found: Mapping[str, T | RhinoError]) -> T:
    """What the one host that was asked has answered. Raises why it has not."""
    (answer,) = found.values()
    if isinstance(answer, RhinoError):
        raise answer
    return answer


# --- running commands ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Executed:
    """A command on a host: how it ended and what it printed."""

    host: str
    exit_code: int
    stdout: str
    stderr: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecView:
    """A command on many hosts."""

    command: str
    hosts: tuple[Executed, ...]
    faults: tuple[HostFault, ...]


def execute(
    file: Path,
    names: Sequence[str],
    command: Command,
    login: Login,
    open_fleet: OpenFleet = fleet_of,
) -> ExecView:
    """Run a command on hosts, all at once. Raises NoInventory, InvalidInventory, UnknownHost."""
    cluster = read_deployed(file)

    def run(host: Host) -> Executed:
        done = host.run(command)
        return Executed(
            host=host.name,
            exit_code=done.exit_code,
            stdout=done.text,
            stderr=done.stderr.decode("utf-8", "replace"),
        )

    with open_fleet(cluster.inventory, login) as fleet:
        found = fleet.each(run, cluster.selected(names))
    return ExecView(
        command=str(command),
        hosts=tuple(each for each in found.values() if isinstance(each, Executed)),
        faults=faults_of(found),
    )


def exit_of_exec(view: ExecView) -> Exit:
    """Partial if it failed anywhere."""
    failed = view.faults or any(each.exit_code for each in view.hosts)
    return Exit.PARTIAL if failed else Exit.DONE


# --- how -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class At:
    """Where a process is that is dealt with; `controller` is why that one's part was not done."""

    cluster: Deployed
    role: Role
    health: Health
    controller: RhinoError | None


Do = Callable[[Host, Process, At], None]
Faults = dict[str, RhinoError]
Act = Callable[[Role, Sequence[str], RhinoError | None], Faults]
"""Does it with the processes of a role; the error is why the controller's part was not done."""


def _change(
    file: Path,
    names: Sequence[str],
    login: Login,
    do: Do,
    open_fleet: OpenFleet,
    *,
    rolling: bool = False,
    status: Status = read_status,
    tell: Tell = lambda text: None,
) -> HostsView:
    """Do something with processes, the controller before the agents; `rolling`: one by one."""
    cluster = read_deployed(file)
    selected = cluster.selected(names)
    check_deployed(cluster)
    with cluster.home.claimed(), open_fleet(cluster.inventory, login) as fleet:
        health = Health(cluster, fleet.interrupted, status, silent_s=SILENT_S, tell=tell)

        def act(role: Role, hosts: Sequence[str], controller: RhinoError | None) -> Faults:
            at = At(cluster=cluster, role=role, health=health, controller=controller)
            found = fleet.each(_on(cluster, do, at), hosts)
            return {n: each for n, each in found.items() if isinstance(each, RhinoError)}

        faults = _one_by_one(selected, act, health) if rolling else _by_role(selected, act)
        return _view(cluster, fleet, selected, faults)


def _by_role(selected: Selected, act: Act) -> Faults:
    faults: Faults = {}
    for role in AGENTS_LAST:
        # Only the controller was dealt with when there are faults here already.
        controller = next(iter(faults.values()), None)
        hosts = [name for name, roles in selected.items() if role in roles and name not in faults]
        faults |= act(role, hosts, controller)
    return faults


def _one_by_one(selected: Selected, act: Act, health: Health) -> Faults:
    """None after one that has failed, nor while something is worse than before: what is not back
    would be away twice."""
    before = _troubles(health)
    order = [(role, name) for role in AGENTS_LAST for name in selected if role in selected[name]]
    for number, (role, name) in enumerate(order):
        worse = _worse(health, before) if before is not None and role is Role.AGENT else ()
        left = [other for _, other in order[number:]]
        if worse:
            return _not_restarted(left, ", ".join(sorted(worse)), "see `rhinoctl status`; once")
        faults = act(role, [name], None)
        if faults:
            who = "the controller" if role is Role.CONTROLLER else name
            others = [other for other in left if other != name]
            why = f"it comes after {who}, which failed"
            return faults | _not_restarted(others, why, f"see to {who}; once")
    return {}


def _worse(health: Health, before: frozenset[str]) -> frozenset[str]:
    try:
        return health.worse(before, SETTLE_S)
    except RhinoError as fault:
        return frozenset([fault.message])


def _not_restarted(names: Sequence[str], why: str, first: str) -> Faults:
    return {
        name: NotTried(
            f"{name}: what runs there was not restarted: {why}",
            remedy=f"{first} that is well, `rhinoctl restart {' '.join(names)}`",
        )
        for name in names
    }


def _troubles(health: Health) -> frozenset[str] | None:
    """What is not well before the first restart; None where the controller does not tell."""
    try:
        return health.troubles()
    except RhinoError:
        return None


def _on(cluster: Deployed, do: Do, at: At) -> Callable[[Host], None]:
    def on(host: Host) -> None:
        process, _ = process_at(host, cluster, at.role)
        do(host, process, at)

    return on


def check_deployed(cluster: Deployed) -> None:
    """Raise NotRunning for a cluster that this machine does not know."""
    if cluster.home.read() is None:
        raise NotRunning(
            f"cluster {cluster.inventory.cluster} was not deployed from this machine",
            remedy="`rhinoctl deploy` it, or type this where it was deployed",
        )


def process_at(host: Host, cluster: Deployed, role: Role) -> tuple[Process, DeployedFacts]:
    """A process of a host that is the cluster's. Raises ForeignManifest, NotRunning."""
    place, top = cluster.places[host.name], cluster.inventory.install_dir
    deployed = ask_deployed(host, top, (), ())
    known = cluster.home.read()
    identity = known.identity if known else f"{cluster.inventory.cluster}, not deployed from here"
    check_identity(host.name, top, identity, deployed.identity)
    if not deployed.identity or not deployed.current:
        raise bare_host(host.name)
    facts = ask_facts(host, (), ())
    check_at_home(cluster, place, facts.machine_id)
    return process_of(cluster.inventory, place, role, facts), deployed


AWAY: Final = (HostUnreachable, JumpFailed, HostLost)
"""Of a host that has just failed so, nothing else is asked: it would be waited for again."""


def _view(
    cluster: Deployed, fleet: Fleet[Host], selected: Selected, faults: Mapping[str, RhinoError]
) -> HostsView:
    def look(host: Host) -> list[ProcessView]:
        return [_seen(host, cluster, role) for role in selected[host.name]]

    away = {name for name, fault in faults.items() if isinstance(fault, AWAY)}
    found = fleet.each(look, [name for name in selected if name not in away])
    failed = {name: faults.get(name, found.get(name)) for name in selected}
    return HostsView(
        file=cluster.file,
        cluster=cluster.inventory.cluster,
        processes=tuple(
            each for views in found.values() if isinstance(views, list) for each in views
        ),
        faults=faults_of(failed),
        former=tuple(map(words_about, cluster.home.former())),
    )


def _seen(host: Host, cluster: Deployed, role: Role) -> ProcessView:
    process, deployed = process_at(host, cluster, role)
    state = process.state(host)
    return ProcessView(
        host=host.name,
        role=role.value,
        release=deployed.current,
        kind=process.kind,
        running=state.running,
        pid=state.pid,
        since=state.since or None,
        restarts=state.restarts,
        exit_code=state.exit_code,
        words=state.last_line,
    )


def faults_of(found: Mapping[str, object]) -> tuple[HostFault, ...]:
    """The hosts that ended with an error, one reason each."""
    return tuple(
        HostFault(
            host=name,
            code=each.code,
            reason=each.message.removeprefix(f"{name}: "),
            remedy=each.remedy,
        )
        for name, each in found.items()
        if isinstance(each, RhinoError)
    )


def hosts_of(names: Iterable[str]) -> tuple[str, ...]:
    """Names as typed, with commas or without."""
    return tuple(part for name in names for part in name.split(",") if part)


def command_of(argv: Sequence[str], *, timeout_s: float, root: bool) -> Command:
    """A command that a person has typed; it may change the host."""
    return Command(
        argv=tuple(argv),
        what=f"run {argv[0]}",
        timeout_s=timeout_s,
        changes=True,
        root=root,
        longer="--timeout",
    )
