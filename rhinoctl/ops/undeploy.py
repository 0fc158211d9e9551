"""`rhinoctl undeploy`: nothing of ours is left on the hosts; state stays unless it is to go."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rhinoctl.config.deployment import Place, Role, check_identity
from rhinoctl.config.runs import HostState
from rhinoctl.errors import (
    DeadlineExceeded,
    DiskNotMounted,
    Exit,
    ForeignManifest,
    HostUnfit,
    NotRunning,
    Refused,
    RhinoError,
)
from rhinoctl.ops.deployed import (
    Deployed,
    check_at_home,
    check_members,
    forget,
    read_deployed,
)
from rhinoctl.ops.hosts import fleet_of
from rhinoctl.ops.processes import process_of
from rhinoctl.ops.running import HostFault, OpenFleet, Tell, faults_of
from rhinoctl.ops.steps import read_status
from rhinoctl.ops.unused import check_unused
from rhinoctl.protocol.views import StatusView
from rhinoctl.remote.deployed import DeployedFacts, ask_deployed, remove_deployed
from rhinoctl.remote.facts import HostFacts, ask_facts
from rhinoctl.remote.host import Host
from rhinoctl.remote.ssh import Login


@dataclass(frozen=True, slots=True, kw_only=True)
class UndeployRequest:
    """What is asked for. `confirmed` is the cluster's name, as a person has typed it; no `hosts`
    are all of them. `former`: only on machines that were let go."""

    inventory: Path
    confirmed: str
    hosts: tuple[str, ...] = ()
    wipe_data: bool = False
    former: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class UndeployedHost:
    """A host of which everything is gone. `kept` are its directories of state that have some still,
    `strange` those that the inventory names and that were never deployed, with something in them;
    UNCHANGED: nothing had to be removed. With `let_go`, where it was, nothing was removed there:
    the machine is lost."""

    host: str
    state: HostState
    kept: tuple[str, ...]
    strange: tuple[str, ...] = ()
    let_go: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class UndeployView:
    """What was removed, and where that was not possible."""

    file: str
    cluster: str
    wiped: bool
    hosts: tuple[UndeployedHost, ...]
    faults: tuple[HostFault, ...]


def undeploy(
    request: UndeployRequest,
    login: Login,
    tell: Tell,
    open_fleet: OpenFleet = fleet_of,
    status: Callable[[Deployed], StatusView] = read_status,
) -> UndeployView:
    """End all processes and remove what was deployed, the controller first. What identifies the
    cluster stays here while there is state of it. Machines that were let go are gone to, too,
    unless hosts are named.

    Raises NoInventory, InvalidInventory, UnknownHost, Busy, Refused if another name was typed, or
    for an inventory that leaves out a worker that was deployed, and WorkerInUse for a worker that
    has something, if its controller stays and says so.
    """
    cluster = read_deployed(request.inventory)
    check_confirmed(cluster.inventory.cluster, request.confirmed)
    wanted = {} if request.former else cluster.selected(request.hosts)
    _check_unused(cluster, wanted, status)
    with cluster.home.claimed():
        if not (request.hosts or request.former):
            check_members(cluster)
        found = _undeploy(cluster, wanted, request, login, tell, open_fleet)
        for former in () if request.hosts else cluster.home.former():
            there = cluster.with_former(former)
            answers = _undeploy(there, there.places, request, login, tell, open_fleet)
            found |= {f"{name} on {former.host}": each for name, each in answers.items()}
        view = _view(cluster, found, wiped=request.wipe_data)
        whole = request.wipe_data and not (request.hosts or request.former)
        if whole and exit_of(view) is Exit.DONE:
            cluster.home.forget()
        return view


def _undeploy(
    cluster: Deployed,
    wanted: Iterable[str],
    request: UndeployRequest,
    login: Login,
    tell: Tell,
    open_fleet: OpenFleet,
) -> dict[str, UndeployedHost | RhinoError]:
    """Remove what is on hosts, that of the controller first; those that were done are forgotten."""

    def on(host: Host) -> UndeployedHost:
        alone = bool(request.hosts)
        return _remove(cluster, host, tell, wipe=request.wipe_data, alone=alone)

    hosts = list(wanted)
    first = [name for name in hosts if cluster.places[name].controller is not None]
    if hosts:
        tell(f"hosts to look at: {', '.join(hosts)}")
    with open_fleet(cluster.inventory, login) as fleet:
        found: dict[str, UndeployedHost | RhinoError] = dict(fleet.each(on, first))
        found |= fleet.each(on, [name for name in hosts if name not in found])
    for name, each in found.items():
        # On a machine that was let go, what is kept would be found by nobody.
        if isinstance(each, UndeployedHost) and not (cluster.former and each.kept):
            forget(cluster, cluster.places[name])
    return found


def _check_unused(
    cluster: Deployed, hosts: Iterable[str], status: Callable[[Deployed], StatusView]
) -> None:
    """Raise what `check_unused` does, unless the controller goes, too, or does not answer."""
    taken = [cluster.places[name] for name in hosts]
    if any(place.controller for place in taken) or cluster.home.read() is None:
        return
    try:
        said = status(cluster)
    except (NotRunning, DeadlineExceeded):
        return
    for place in taken:
        if place.worker is not None:
            check_unused(said, place.worker.id, lost=False)


def check_confirmed(cluster: str, confirmed: str) -> None:
    """Raise Refused unless the cluster's name was typed."""
    if confirmed != cluster:
        raise Refused(
            f"the inventory is of cluster {cluster}, and {confirmed or 'nothing'} was typed",
            remedy="name the inventory of the cluster that is meant, with --inventory",
        )


def exit_of(view: UndeployView) -> Exit:
    """Partial if something may be left anywhere that was to go."""
    stays = view.wiped and any(host.kept or host.strange for host in view.hosts)
    return Exit.PARTIAL if view.faults or stays else Exit.DONE


def _remove(
    cluster: Deployed, host: Host, tell: Tell, *, wipe: bool, alone: bool
) -> UndeployedHost:
    """Remove what is in the host's own record, whatever the inventory says now."""
    place, top = cluster.places[host.name], cluster.inventory.install_dir
    deployed = ask_deployed(host, top, place.state(), ())
    own = deployed.own_state(place.state()) if deployed.identity else ()
    strange = deployed.strange(place.state())
    prepared = deployed.recorded and not deployed.identity and not deployed.installed
    if not (deployed.installed or prepared or (wipe and deployed.identity)):
        kept = tuple(path for path in own if path in deployed.holds)
        unchanged = HostState.UNCHANGED
        check_at_home(cluster, place, ask_facts(host, (), ()).machine_id)
        return UndeployedHost(host=host.name, state=unchanged, kept=kept, strange=strange)
    if not prepared:  # by `check --apply`: then nothing runs, and nobody has to know the cluster
        _check_ours(cluster, host, deployed)
        facts = ask_facts(host, (), ())
        check_at_home(cluster, place, facts.machine_id)
        if alone or cluster.former is not None:
            _check_alone(cluster, place, facts.machine_id, deployed)
        _end(cluster, host, deployed, facts, tell)
        _check_mounted(host, [path for path in own if path in deployed.gone])
    tell(f"{host.name}: removing what was installed{', and the state of all jobs' if wipe else ''}")
    kept = remove_deployed(host, top, own, wipe=wipe, root=place.sudo)
    return UndeployedHost(host=host.name, state=HostState.DONE, kept=kept, strange=strange)


def _check_ours(cluster: Deployed, host: Host, deployed: DeployedFacts) -> None:
    known = cluster.home.read()
    if known is None:
        raise ForeignManifest(
            f"{host.name}: cluster {deployed.identity or 'of no name'} was not deployed from this"
            " machine",
            remedy="type this where it was deployed; or remove it by hand:"
            " docs/operations/install.md",
        )
    check_identity(host.name, cluster.inventory.install_dir, known.identity, deployed.identity)


def _check_alone(cluster: Deployed, place: Place, machine: str, deployed: DeployedFacts) -> None:
    """Raise HostUnfit where more would go with a host than the inventory has on it, or was let
    go."""
    known = {*place.roles, *(f.role for f in cluster.home.former() if f.machine == machine)}
    more = [role for role in Role if role.value in deployed.started and role not in known]
    if more:
        raise HostUnfit(
            f"{place.host}: the {more[0].value} was deployed there, too, and the inventory has it"
            " elsewhere",
            remedy="put the lines of the inventory right; or undeploy the whole cluster",
        )


def _check_mounted(host: Host, gone: Sequence[str]) -> None:
    """Raise DiskNotMounted for state that was there and is gone: the record would lose it."""
    if gone:
        raise DiskNotMounted(
            f"{host.name}: {gone[0]} was there and is gone; what ran there has ended, and all files"
            " are left",
            remedy="mount its disk, then repeat the command; if its state is lost for good, make"
            " the directory by hand",
        )


def _end(
    cluster: Deployed, host: Host, deployed: DeployedFacts, facts: HostFacts, tell: Tell
) -> None:
    """End and remove the processes, also one that the inventory has elsewhere by now."""
    place = cluster.places[host.name]
    for role in Role:
        if role in place.roles or role.value in deployed.started:
            process = process_of(cluster.inventory, place, role, facts)
            tell(f"{host.name}: ending and removing the {role.value}")
            process.remove(host)


def _view(
    cluster: Deployed, found: Mapping[str, UndeployedHost | RhinoError], *, wiped: bool
) -> UndeployView:
    return UndeployView(
        file=cluster.file,
        cluster=cluster.inventory.cluster,
        wiped=wiped,
        hosts=tuple(
            replace(each, host=name)
            for name, each in found.items()
            if isinstance(each, UndeployedHost)
        ),
        faults=faults_of(found),
    )
