"""`rhinoctl undeploy --host NAME --lost`: a process loses its place, since its machine is gone.

Nothing is done on any host but to see that the machine does not answer. That is remembered: when it
is back, what was deployed there is there, too, and `rhinoctl undeploy --former` removes it.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

from rhinoctl.config.clusters import Former
from rhinoctl.config.deployment import CONTROLLER, Role
from rhinoctl.config.runs import HostState
from rhinoctl.errors import (
    DeadlineExceeded,
    HealthyTarget,
    HostUnreachable,
    NotRunning,
    RhinoError,
)
from rhinoctl.ops.deployed import Deployed, read_deployed
from rhinoctl.ops.hosts import fleet_of
from rhinoctl.ops.running import OpenFleet, Tell, check_deployed, faults_of
from rhinoctl.ops.steps import read_status
from rhinoctl.ops.undeploy import UndeployedHost, UndeployView, check_confirmed
from rhinoctl.ops.unused import check_unused
from rhinoctl.protocol.views import StatusView
from rhinoctl.remote.facts import ask_facts
from rhinoctl.remote.host import Host
from rhinoctl.remote.ssh import Login


def let_go(
    file: Path,
    confirmed: str,
    names: Sequence[str],
    login: Login,
    tell: Tell,
    open_fleet: OpenFleet = fleet_of,
    status: Callable[[Deployed], StatusView] = read_status,
) -> UndeployView:
    """Let processes go whose machines are lost. A machine that answers is in the view's faults.

    Raises NoInventory, InvalidInventory, UnknownHost, NotRunning for a cluster that was not
    deployed from here, Refused if another name was typed, Busy, and HealthyTarget and WorkerInUse
    for what the controller says is well or has something.
    """
    cluster = read_deployed(file)
    check_confirmed(cluster.inventory.cluster, confirmed)
    check_deployed(cluster)
    wanted = {
        CONTROLLER if role is Role.CONTROLLER else place.host: role
        for name in names
        for place, role in cluster.called(name)
    }
    _check_lost(cluster, wanted, status)
    found: dict[str, UndeployedHost | RhinoError] = {}
    with cluster.home.claimed():
        for name, role in wanted.items():
            there = cluster.home.deployed_on(name, role)
            if there is None:
                unchanged = HostState.UNCHANGED
                found[name] = UndeployedHost(host=name, state=unchanged, kept=())
                continue
            former = Former(name=name, role=role, host=there.host, machine=there.machine)
            tell(f"{name}: seeing whether {there.host} answers")
            answer = _machine(cluster.with_former(former), login, open_fleet)
            if isinstance(answer, RhinoError) and not isinstance(answer, HostUnreachable):
                found[name] = answer
            elif answer == there.machine:
                found[name] = _answers(former)
            else:  # it is away, or what answers was installed anew
                cluster.home.let_go(name, role, remembered=isinstance(answer, RhinoError))
                done = HostState.DONE
                found[name] = UndeployedHost(host=name, state=done, kept=(), let_go=there.host)
    return UndeployView(
        file=cluster.file,
        cluster=cluster.inventory.cluster,
        wiped=False,
        hosts=tuple(each for each in found.values() if isinstance(each, UndeployedHost)),
        faults=faults_of(found),
    )


def _check_lost(
    cluster: Deployed,
    wanted: dict[str, Role],
    status: Callable[[Deployed], StatusView],
) -> None:
    """Raise HealthyTarget for what the controller shows to be well, if it answers, and WorkerInUse
    for a worker that has something."""
    try:
        said = status(cluster)
    except (NotRunning, DeadlineExceeded):
        return
    if CONTROLLER in wanted:
        raise HealthyTarget(
            "the controller is not lost: it answers",
            remedy="name its machine in the inventory; to move it, `rhinoctl undeploy --host"
            f" {CONTROLLER}` there first",
        )
    for name in wanted:
        check_unused(said, name, lost=True)


def _machine(cluster: Deployed, login: Login, open_fleet: OpenFleet) -> str | RhinoError:
    """The id of the machine that answers where a process was, or why none does."""

    def ask(host: Host) -> str:
        return ask_facts(host, (), ()).machine_id

    with open_fleet(cluster.inventory, login) as fleet:
        (answer,) = fleet.each(ask, cluster.places).values()
    return answer


def _answers(former: Former) -> HealthyTarget:
    name = former.name
    return HealthyTarget(
        f"{name}: {former.host}, where it was deployed, is not lost: it answers",
        remedy=f"name that machine in the inventory; `rhinoctl undeploy --host {name}` removes it"
        " there",
    )
