"""A cluster on hosts, as a command finds it: its inventory, its secrets, and what each host has.

Every verb that works on hosts begins here: one look at each host, all at once.
"""

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from rhinoctl.config.clusters import ClusterHome, Former, Member, blank_papers
from rhinoctl.config.deployment import (
    DirectoryFound,
    FileFound,
    Found,
    HostTarget,
    Place,
    Role,
    ServiceFound,
    agent_port,
    directories_of,
    holder,
    places,
    target_of,
)
from rhinoctl.config.inventory import (
    CONTROLLER,
    Inventory,
    invalid,
    parse_inventory,
    read_inventory,
)
from rhinoctl.config.rates import bandwidths
from rhinoctl.control.client import state_directory
from rhinoctl.errors import (
    CommandFailed,
    HostUnfit,
    NotRunning,
    Refused,
    RhinoError,
    SudoRefused,
    UnknownHost,
    UnsupportedHost,
)
from rhinoctl.ops.host_checks import HostFinding, Ours, Part, Verdict, judge_fleet, judge_host
from rhinoctl.ops.parts import parts_of
from rhinoctl.ops.processes import Process, process_of
from rhinoctl.remote.deployed import DeployedFacts, ask_deployed
from rhinoctl.remote.facts import HostFacts, ask_facts
from rhinoctl.remote.host import Host
from rhinoctl.remote.spoken import Spoken, obstacle, spoken_by
from rhinoctl.remote.supervised import ServiceState

WHILE_RUNNING: Final = frozenset({"platform", "python", "user", "machine"})
"""Checks that stop a deployment also where our processes run already, as those of ports and of
further directories do; the others have a start that went well against them."""

NEVER: Final = frozenset({"spark"})
"""A check that is about Spark, which comes and goes without us."""


def clusters_directory() -> Path:
    """Where the directories of clusters on hosts are, by the clusters' names."""
    return state_directory() / "clusters"


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployed:
    """A cluster that a command is about: `text` is that of the inventory, as it was written. With a
    `former`, the inventory has its process where that was."""

    file: str
    text: str
    inventory: Inventory
    home: ClusterHome
    places: Mapping[str, Place]
    former: Former | None = None

    def selected(self, names: Iterable[str]) -> dict[str, tuple[Role, ...]]:
        """The hosts and processes that are meant, all without a name: `controller`, a worker, or
        what is on a host. Raises UnknownHost."""
        wanted = list(dict.fromkeys(names))
        found: dict[str, set[Role]] = {}
        for name in wanted:
            for place, role in self.called(name):
                found.setdefault(place.host, set()).add(role)
        if not wanted:
            found = {name: set(place.roles) for name, place in self.places.items()}
        return {
            name: tuple(role for role in place.roles if role in found[name])
            for name, place in self.places.items()
            if name in found
        }

    def at_home(self, place: Place) -> list[tuple[str, Member]]:
        """Where the processes of a place were deployed, by their names. Raises ForeignManifest."""
        if self.former is not None:
            there = Member(host=self.former.host, machine=self.former.machine)
            return [(self.former.name, there)]
        names = [(holder(place, role), role) for role in place.roles]
        known = [(name, self.home.deployed_on(name, role)) for name, role in names]
        return [(name, there) for name, there in known if there is not None]

    @property
    def controller_s_host(self) -> str:
        """The name of the host that the controller is on."""
        return next(name for name, place in self.places.items() if place.controller is not None)

    def with_former(self, former: Former) -> "Deployed":
        """The cluster as it was while a process was where it was let go, and of it only that. What
        its line says else is that of today, or of the first worker if it has none any more."""
        inventory = self.inventory
        if former.role is Role.CONTROLLER:
            controller = inventory.controller.model_copy(update={"host": former.host})
            place = Place(host=CONTROLLER, controller=controller)
            changed: dict[str, object] = {"controller": controller}
        else:
            lines = {each.id: each for each in inventory.workers}
            line = lines.get(former.name, inventory.workers[0])
            moved = line.model_copy(update={"host": former.host, "name": former.name})
            place = Place(host=former.name, worker=moved)
            changed = {"workers": [*lines.values(), moved]}
        return replace(
            self,
            inventory=inventory.model_copy(update=changed),
            places={place.host: place},
            former=former,
        )

    def called(self, name: str) -> list[tuple[Place, Role]]:
        """The processes that a name means. Raises UnknownHost."""
        found = []
        for place in self.places.values():
            if place.controller and name in (CONTROLLER, place.controller.host):
                found.append((place, Role.CONTROLLER))
            if place.worker and name in (place.worker.id, place.worker.host):
                found.append((place, Role.AGENT))
        if not found:
            raise UnknownHost(
                f"no host {name} is in {self.file}",
                remedy=f"there are {', '.join(dict.fromkeys([CONTROLLER, *self.places]))}",
            )
        return found


def read_deployed(file: Path) -> Deployed:
    """The cluster of an inventory's file. Raises NoInventory and InvalidInventory."""
    inventory = read_inventory(file)
    return _deployed(str(file), file.read_text(encoding="utf-8"), inventory)


def deployed_of(file: str, text: str) -> Deployed:
    """The cluster of an inventory that was kept. Raises InvalidInventory."""
    inventory, mistakes = parse_inventory(text)
    if inventory is None:
        raise invalid(Path(file), mistakes)
    return _deployed(file, text, inventory)


def _deployed(file: str, text: str, inventory: Inventory) -> Deployed:
    home = ClusterHome(clusters_directory() / inventory.cluster, inventory.cluster)
    return Deployed(file=file, text=text, inventory=inventory, home=home, places=places(inventory))


# --- a look at a host ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Looked:
    """What a host is like, what is deployed there, and how its processes are."""

    place: Place
    facts: HostFacts
    deployed: DeployedFacts
    processes: Mapping[Role, Process]
    states: Mapping[Role, ServiceState]

    @property
    def runs(self) -> bool:
        """Whether any process of ours runs there."""
        return any(state.running for state in self.states.values())

    @property
    def bare(self) -> bool:
        """Whether nothing is deployed there, but for state that was kept."""
        return not (self.deployed.identity and self.deployed.current)


def bare_host(name: str) -> NotRunning:
    """The error about a host without anything of a cluster."""
    return NotRunning(
        f"{name}: nothing is deployed there", remedy="`rhinoctl deploy` begins with it"
    )


def look(host: Host, cluster: Deployed, target: HostTarget) -> Looked:
    """Look at a host; nothing on it is changed. Raises HostError's leaves."""
    place = cluster.places[host.name]
    part = part_of(cluster, place)
    facts = ask_facts(host, (part.install_dir, *part.disks), part.ports)
    deployed = ask_deployed(
        host,
        target.install_dir,
        [each.path for each in target.directories],
        [each.path for each in target.files()],
    )
    processes = {role: process_of(cluster.inventory, place, role, facts) for role in place.roles}
    return Looked(
        place=place,
        facts=facts,
        deployed=deployed,
        processes=processes,
        states={role: process.state(host) for role, process in processes.items()},
    )


def look_at_all(
    cluster: Deployed,
    wanted: Iterable[str],
    each: Callable[[Callable[[Host], Looked], Iterable[str]], Mapping[str, Looked | RhinoError]],
) -> dict[str, Looked | RhinoError]:
    """Look at hosts by a fleet's `each`; one machine under two names is refused as both."""
    targets = {name: outline(cluster, cluster.places[name]) for name in wanted}

    def look_at(host: Host) -> Looked:
        return look(host, cluster, targets[host.name])

    found = dict(each(look_at, targets))
    facts = {name: one.facts for name, one in found.items() if isinstance(one, Looked)}
    for finding in judge_fleet(facts):
        if finding.verdict is Verdict.FAIL:
            found[finding.host] = unfit([finding])
    return found


def outline(cluster: Deployed, place: Place) -> HostTarget:
    """Which directories and files a host is to have; what is in them is made once it is known that
    the host is the right one. Raises ForeignManifest and UnwritableDirectory."""
    return target_of(
        cluster.inventory,
        place,
        identity=cluster.home.make().identity,
        environment="",
        papers={role: blank_papers(role) for role in place.roles},
    )


def target(
    cluster: Deployed,
    place: Place,
    environment: str,
    addresses: Mapping[str, str] | None = None,
) -> HostTarget:
    """What a host is to have, with a release. `addresses` are of workers that stay where they are.
    Raises ForeignManifest and UnwritableDirectory."""
    known = cluster.home.make()
    rates = None if place.controller is None else cluster.home.rates()
    return target_of(
        cluster.inventory,
        place,
        identity=known.identity,
        environment=environment,
        papers={role: cluster.home.papers(place, role) for role in place.roles},
        bandwidths=bandwidths(cluster.inventory, rates, addresses or ()),
        addresses=addresses,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What `check` sees of a host: less than a deployment, and nothing is made here for it."""

    facts: HostFacts
    deployed: DeployedFacts
    ours: Ours


def see(host: Host, cluster: Deployed, identity: str) -> Seen:
    """Look at a host of the cluster of an identity, empty before there is one; nothing is changed,
    there or here. Raises HostError's leaves."""
    place = cluster.places[host.name]
    part = part_of(cluster, place)
    facts = ask_facts(host, (part.install_dir, *part.disks), part.ports)
    directories = [each.path for each in directories_of(cluster.inventory, place)]
    deployed = ask_deployed(host, part.install_dir, directories, ())
    foreign = "" if deployed.identity == identity else deployed.identity
    states: dict[Role, ServiceState] = {}
    if deployed.installed and not foreign and facts.ports_taken:
        # What cannot be asked counts as somebody: other checks say what is wrong with the host.
        with suppress(CommandFailed, SudoRefused, UnsupportedHost):
            for role in place.roles:
                states[role] = process_of(cluster.inventory, place, role, facts).state(host)
    ours = Ours(
        listens=own_ports(cluster.inventory, place, states),
        installed=deployed.installed,
        known=deployed.made | deployed.had,
        strange=frozenset(deployed.strange(place.state())) if not foreign else frozenset(),
        foreign=foreign,
    )
    return Seen(facts=facts, deployed=deployed, ours=ours)


def own_ports(
    inventory: Inventory, place: Place, states: Mapping[Role, ServiceState]
) -> dict[int, str]:
    """The ports on which our own processes listen, and which of them: nobody has taken those."""
    ports = {Role.CONTROLLER: inventory.ports.controller}
    if place.worker is not None:
        ports[Role.AGENT] = agent_port(inventory, place.worker)
    return {ports[role]: role.value for role, state in states.items() if state.running}


def part_of(cluster: Deployed, place: Place) -> Part:
    """What `check` knows a host as."""
    return parts_of(cluster.inventory)[place.host]


def found_on(looked: Looked) -> Found:
    """What was seen, for the plan."""
    deployed = looked.deployed
    return Found(
        user=deployed.user,
        identity=deployed.identity,
        current=deployed.current,
        environments=frozenset(deployed.releases),
        known=deployed.made | deployed.had,
        state=deployed.state,
        directories={
            path: DirectoryFound(owner=owner, mode=mode)
            for path, (mode, owner) in deployed.directories.items()
        },
        files={
            path: FileFound(digest=digest, mode=mode)
            for path, (mode, digest) in deployed.files.items()
        },
        services={
            role: ServiceFound(
                running=state.running,
                kept=state.kept,
                started_with=deployed.started.get(role.value, ""),
            )
            for role, state in looked.states.items()
        },
    )


# --- whether it is the same ----


def check_members(cluster: Deployed) -> None:
    """Raise Refused if the inventory leaves out a worker that was deployed."""
    workers = {worker.id for worker in cluster.inventory.workers}
    gone = {n: each.host for n, each in cluster.home.members().items() if n not in workers}
    if gone:
        named = ", ".join(f"{name} (on {host})" for name, host in gone.items())
        raise Refused(
            f"the inventory leaves out what was deployed, and may have state: worker {named}",
            remedy="put it back; to let it go, `rhinoctl drain` it, then `rhinoctl hosts remove`"
            " it, which takes it out",
        )


def check_machine(cluster: Deployed, looked: Looked) -> None:
    """Raise HostUnfit for a process that was deployed on another machine, where its state is; and
    for a machine that another worker has, whose place it would take."""
    _check_seat(cluster, looked)
    worker = looked.place.worker
    if worker is None:
        return
    members = cluster.home.members()
    member = members.get(worker.id)
    for name, other in members.items():
        if name != worker.id and other.machine == looked.facts.machine_id != "":
            remedy = "name another host: a machine is one worker, with as many disks as it has"
            if member is not None:
                remedy = (
                    f"put its line in the inventory right: {looked.place.host} is on {member.host}"
                )
            raise HostUnfit(
                f"{looked.place.host}: it is the machine of worker {name}, on {other.host}",
                remedy=remedy,
            )
    if member is not None and member.machine != looked.facts.machine_id:
        raise HostUnfit(
            f"{looked.place.host}: it is another machine than worker {looked.place.host} was"
            f" deployed on, {member.host}, where its state is",
            remedy="name that machine; if it is gone for good, or is this one installed anew,"
            f" `rhinoctl undeploy --host {looked.place.host} --lost` first",
        )


def _check_seat(cluster: Deployed, looked: Looked) -> None:
    """Raise HostUnfit for a controller that was deployed on another machine: it would begin anew,
    without its store, beside the one there; and for a host that still has one of before."""
    place = looked.place
    seat = None if place.controller is None else cluster.home.seat()
    if seat is not None and seat.machine != looked.facts.machine_id:
        raise HostUnfit(
            f"{place.host}: it is another machine than the controller was deployed on,"
            f" {seat.host}, where its store is",
            remedy=f"name that machine; if it is gone for good, or was installed anew,"
            f" `rhinoctl undeploy --host {CONTROLLER} --lost` first",
        )
    for former in cluster.home.former():
        if former.machine == looked.facts.machine_id and former.role not in place.roles:
            raise HostUnfit(
                f"{place.host}: the {former.role.value} that was let go with this machine,"
                f" {former.name}, is there still",
                remedy="`rhinoctl undeploy --former --wipe-data` removes it",
            )


def check_at_home(cluster: Deployed, place: Place, machine: str) -> None:
    """Raise HostUnfit if what is to be done to a process would be done to another machine than the
    one that it was deployed on."""
    members = cluster.home.members()
    for name, there in cluster.at_home(place):
        if machine not in ("", there.machine):
            others = [name for name, each in members.items() if each.machine == machine]
            whose = f"the machine of worker {others[0]}" if others else "another machine"
            raise HostUnfit(
                f"{place.host}: it is {whose}: {name} was deployed on {there.host}",
                remedy=f"put its line in the inventory right: {name} is on {there.host}; if that"
                " machine is gone for good, or was installed anew, `rhinoctl undeploy --host"
                f" {name} --lost` lets it go",
            )


def check_release(looked: Looked, ours: Spoken, *, back: bool = False) -> None:
    """Raise HostUnfit where ours may not take the place of the release that is there: we may not
    read what that has written, or not be understood by what runs elsewhere."""
    current = looked.deployed.current
    there = looked.deployed.releases.get(current, spoken_by(current))
    found = obstacle(there, ours, back=back) if current else None
    if found is not None:
        raise HostUnfit(f"{looked.place.host}: {found.why}", remedy=found.remedy)


def remember(cluster: Deployed, looked: Looked, role: Role) -> None:
    """Keep where a process is, from before its first start on: afterwards there may be state.
    Raises UnwritableDirectory."""
    place, machine = looked.place, looked.facts.machine_id
    if role is Role.CONTROLLER and place.controller is not None:
        cluster.home.take_seat(Member(host=place.controller.host, machine=machine))
    if role is Role.AGENT and place.worker is not None:
        cluster.home.join(place.worker.id, Member(host=place.worker.host, machine=machine))
    cluster.home.clear(machine, role)


def words_about(former: Former) -> str:
    """What a person has to know of a machine that was let go."""
    return (
        f"{former.host} was let go with the {former.role.value} of {former.name} on it: once it is"
        " back, `rhinoctl undeploy --former`"
        if former.role is Role.AGENT
        else f"{former.host} was let go with the controller on it: once it is back,"
        " `rhinoctl undeploy --former`"
    )


def forget(cluster: Deployed, place: Place) -> None:
    """Nothing that was deployed on a host is there any more. Raises UnwritableDirectory."""
    if cluster.former is not None:
        cluster.home.clear(cluster.former.machine)
        return
    if place.controller is not None:
        cluster.home.leave_seat()
    if place.worker is not None and cluster.home.members():
        cluster.home.leave(place.worker.id)


# --- whether it is fit ---------------------------------------------------------------------------


def check_fit(cluster: Deployed, looked: Looked) -> None:
    """Raise HostUnfit if what `check` finds would keep our processes from working there."""
    part = part_of(cluster, looked.place)
    ours = Ours(
        listens=own_ports(cluster.inventory, looked.place, looked.states),
        strange=frozenset(looked.deployed.strange(looked.place.state())),
    )
    known = {part.install_dir, *looked.deployed.own_state(looked.place.state())}
    tried = {f"directory {path}" for path in known} if looked.runs else set()
    found = [
        finding
        for finding in judge_host(part, looked.facts, ours)
        if finding.verdict is Verdict.FAIL and finding.check not in NEVER
        if not looked.runs or _counts_while_running(finding.check, tried)
    ]
    if found:
        raise unfit(found)


def _counts_while_running(check: str, tried: set[str]) -> bool:
    """Whether what runs says nothing against it; it does for directories that are `tried`."""
    new = check.startswith("directory") and check not in tried
    return new or check in WHILE_RUNNING or check.startswith("port")


def unfit(findings: Iterable[HostFinding]) -> HostUnfit:
    """One reason, whatever the number of findings."""
    first, *others = findings
    more = f" (and {len(others)} more: see `rhinoctl check`)" if others else ""
    return HostUnfit(
        f"{first.host}: {first.check}: {first.seen}{more}",
        remedy=first.remedy or "see `rhinoctl check`",
    )
