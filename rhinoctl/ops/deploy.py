"""`rhinoctl deploy`: from an inventory to a cluster that runs.

The plan is shown, then done (`rhinoctl.ops.rollout`). Nothing is taken back when it breaks off: the
same command goes on.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from rhinoctl.config.runs import HostState as HostState
from rhinoctl.config.runs import Journal, check_latest, find_run, new_run
from rhinoctl.errors import Exit, NotRunning, UnknownRun
from rhinoctl.ops.deployed import (
    Deployed,
    bare_host,
    check_members,
    clusters_directory,
    deployed_of,
    read_deployed,
)
from rhinoctl.ops.rollout import REAL as REAL
from rhinoctl.ops.rollout import Deployment
from rhinoctl.ops.rollout import Means as Means
from rhinoctl.ops.rollout_views import DeployView as DeployView
from rhinoctl.ops.rollout_views import HostView as HostView
from rhinoctl.ops.rollout_views import Progress as Progress
from rhinoctl.ops.running import check_deployed
from rhinoctl.remote.ssh import Login

COMMAND: Final = "deploy"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeployRequest:
    """What is asked for. `limit` are hosts, none of them for all. `renew`: with new keys and
    certificates for every process; `renew_access`: for people and drivers, too, and new tokens."""

    inventory: Path
    limit: tuple[str, ...] = ()
    dry_run: bool = False
    renew: bool = False
    renew_access: bool = False


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
    leaves out a worker that was deployed; to `renew`, NotRunning if nothing was. What is wrong with
    a host is in the view.
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
    if view.unwell:
        return Exit.DEGRADED
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
        deployment = Deployment(cluster, fleet, progress, means)
        if request.renew and not request.dry_run:
            _check_there(cluster, deployment, wanted)
            cluster.home.renew(access=request.renew_access)
        deployment.look(wanted)
        if request.renew:
            _leave_bare(deployment, wanted)
        view = replace(deployment.view(), dry_run=request.dry_run)
        if request.dry_run:
            return view
        if not deployment.unfinished():
            deployment.look_back()
            return deployment.view()
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


def _check_there(cluster: Deployed, deployment: Deployment, wanted: Iterable[str]) -> None:
    """Raise NotRunning if nothing is deployed, on any host that answers: there are no keys yet."""
    check_deployed(cluster)
    deployment.look(wanted)
    found = [each for each in map(deployment.seen, wanted) if each.looked is not None]
    if found and all(each.bare for each in found):
        raise NotRunning(
            f"nothing is deployed on the hosts of {cluster.file}",
            remedy="`rhinoctl deploy` begins with it, and gives every process its first keys",
        )


def _leave_bare(deployment: Deployment, wanted: Iterable[str]) -> None:
    """What has no keys gets none: to deploy a host is not what was asked for."""
    for name in wanted:
        seen = deployment.seen(name)
        if seen.bare and seen.fault is None:
            deployment.refuse(name, bare_host(name))
