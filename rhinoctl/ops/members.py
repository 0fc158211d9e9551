"""`rhinoctl hosts add` and `hosts remove`: a worker joins a deployed cluster, or leaves it.

Both change the inventory and the hosts. To add, the inventory is written first, so that whatever
breaks off later is finished by `rhinoctl deploy`. To remove, it is written last: until then the
same command finds what is left to do, and nothing of it is done twice.
"""

import os
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rhinoctl.config.cluster import replace_file
from rhinoctl.config.deployment import Role
from rhinoctl.config.inventory import CONTROLLER, Worker
from rhinoctl.config.inventory_edit import Edited, with_worker, without_worker
from rhinoctl.config.inventory_edit import NewWorker as NewWorker
from rhinoctl.errors import (
    Busy,
    DeadlineExceeded,
    Exit,
    NotRunning,
    Refused,
    UnknownHost,
    UnwritableDirectory,
    error_of,
)
from rhinoctl.ids import WorkerId
from rhinoctl.ops.cluster import connect
from rhinoctl.ops.deploy import (
    REAL,
    DeployRequest,
    DeployView,
    HostState,
    Means,
    Progress,
    deploy_cluster,
)
from rhinoctl.ops.deploy import exit_of as exit_of_deploy
from rhinoctl.ops.deployed import Deployed, deployed_of, read_deployed
from rhinoctl.ops.running import check_deployed
from rhinoctl.ops.undeploy import UndeployRequest, UndeployView, undeploy
from rhinoctl.ops.unused import check_unused
from rhinoctl.protocol.views import DrainRequest
from rhinoctl.remote.ssh import Login

UNDONE: Final = (HostState.FAILED, HostState.UNREACHABLE, HostState.NOT_TRIED)


def set_draining(cluster: Deployed, worker: str, *, undo: bool) -> None:
    """Have no vnodes and copies placed on a worker that has none; with `undo`, let it have some.
    Raises Refused, NotRunning and their like."""
    with connect(str(cluster.home.directory)) as client:
        client.drain(DrainRequest(worker=WorkerId(worker), undo=undo))


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberMeans:
    """What adding and removing act through."""

    deploy: Means = REAL
    set_draining: Callable[..., None] = set_draining


@dataclass(frozen=True, slots=True, kw_only=True)
class AddRequest:
    """A worker that is to join."""

    inventory: Path
    worker: NewWorker
    dry_run: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AddView:
    """A worker that has joined, or would. `lines` are those of the inventory, `written` whether
    they are in it, `deployment` what was done on its host and the controller's."""

    file: str
    cluster: str
    worker: str
    host: str
    lines: tuple[str, ...]
    written: bool
    deployment: DeployView


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveRequest:
    """A worker that is to leave, by its name or its host's; `lost`: its host is gone for good, and
    is not asked for anything."""

    inventory: Path
    worker: str
    dry_run: bool = False
    wipe_data: bool = False
    lost: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RemovePlan:
    """What is to be done for a worker to leave, in this order; `lines` go out of the inventory."""

    file: str
    cluster: str
    worker: str
    host: str
    lost: bool
    wipe_data: bool
    steps: tuple[str, ...]
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveView:
    """How far a removal has come: what was removed from the host (None: nothing was tried there),
    what was deployed to the controller's (None: not tried), and whether the inventory is without
    the worker."""

    plan: RemovePlan
    dry_run: bool = False
    undeployed: UndeployView | None = None
    deployment: DeployView | None = None
    written: bool = False


# --- joining --------------------------------------------------------------------------------------


def add_host(
    request: AddRequest,
    login: Login,
    progress: Progress,
    agree: Callable[[DeployView], object],
    means: MemberMeans | None = None,
) -> AddView:
    """Write a worker into the inventory and bring it up. `agree` sees the plan before anything is
    written or changed, and may raise.

    Raises NoInventory, InvalidInventory, NotRunning, AlreadyInInventory, CannotEditInventory, Busy,
    and HostError's leaves for a host that cannot be deployed to; nothing is changed then.
    """
    means = means or MemberMeans()
    old, text = _read(request.inventory)
    check_deployed(old)
    new = request.worker
    edited = with_worker(old.file, text, new)
    cluster = _after(old, edited)
    written = False

    def write(plan: DeployView | None) -> None:
        nonlocal written
        if plan is not None:
            _check_plan(plan)
            agree(plan)
        _write(request.inventory, text, edited)
        written = True
        progress.say(f"worker {new.id} is in {old.file} now")

    limited = _limited(request.inventory, CONTROLLER, new.id, dry_run=request.dry_run)
    deployment = deploy_cluster(cluster, limited, login, progress, write, means.deploy)
    if not request.dry_run and not written:
        write(None)  # its host and the controller were as they are to be
    if written and not deployment.of(*UNDONE):
        _admit(cluster, new.id, means)
    return AddView(
        file=old.file,
        cluster=old.inventory.cluster,
        worker=new.id,
        host=new.host,
        lines=edited.lines,
        written=written,
        deployment=deployment,
    )


def exit_of_add(view: AddView) -> Exit:
    """That of its deployment; a dry run has changes in any case, those of the inventory."""
    ended = exit_of_deploy(view.deployment)
    return Exit.HAS_CHANGES if view.deployment.dry_run and ended is Exit.DONE else ended


def _check_plan(plan: DeployView) -> None:
    """Raise why a host of the plan cannot be deployed to; the first one's reason."""
    for host in plan.of(*UNDONE):
        raise error_of(
            host.code,
            f"{host.host}: {host.reason}; {plan.file} was not changed",
            remedy=host.remedy,
        )


def _admit(cluster: Deployed, worker: str, means: MemberMeans) -> None:
    """Let a worker have vnodes that was drained under the same name before."""
    status = means.deploy.status(cluster)
    if any(each.id == worker and each.draining for each in status.workers):
        means.set_draining(cluster, worker, undo=True)


# --- leaving --------------------------------------------------------------------------------------


def remove_host(
    request: RemoveRequest,
    login: Login,
    progress: Progress,
    agree: Callable[[RemovePlan], object],
    means: MemberMeans | None = None,
) -> RemoveView:
    """Take a worker that holds nothing off its host and out of the inventory. `agree` sees the plan
    before anything is changed, and may raise. To repeat it goes on where it stopped.

    Raises NoInventory, InvalidInventory, UnknownHost, CannotEditInventory, NotRunning, Busy,
    WorkerInUse, HealthyTarget, and Refused for a worker on the controller's host.
    """
    means = means or MemberMeans()
    cluster, text = _read(request.inventory)
    check_deployed(cluster)
    worker = _worker(cluster, request.worker)
    edited = without_worker(cluster.file, text, worker.id)
    _check_apart(cluster, worker)
    _check_unused(cluster, worker, request, means)
    plan = _plan(cluster, request, worker, edited)
    if request.dry_run:
        return RemoveView(plan=plan, dry_run=True)
    agree(plan)
    if _check_unused(cluster, worker, request, means):
        means.set_draining(cluster, worker.id, undo=False)
        _check_unused(cluster, worker, request, means)
    undeployed = None
    if request.lost:
        with cluster.home.claimed():
            cluster.home.let_go(worker.id, Role.AGENT, remembered=True)
    else:
        undeployed = _undeploy(cluster, request, worker, login, progress, means)
        if undeployed.faults:
            return RemoveView(plan=plan, undeployed=undeployed)
    without, limited = _after(cluster, edited), _limited(request.inventory, CONTROLLER)
    agreed: list[DeployView] = []
    deployment = deploy_cluster(without, limited, login, progress, agreed.append, means.deploy)
    done = not deployment.of(*UNDONE)
    if done:
        _write(request.inventory, text, edited)
    return RemoveView(plan=plan, undeployed=undeployed, deployment=deployment, written=done)


def exit_of_remove(view: RemoveView) -> Exit:
    """Partial unless the inventory is without the worker; changes only for a dry run."""
    if view.dry_run:
        return Exit.HAS_CHANGES
    return Exit.DONE if view.written else Exit.PARTIAL


def _check_unused(
    cluster: Deployed, worker: Worker, request: RemoveRequest, means: MemberMeans
) -> bool:
    """Raise what `check_unused` does; whether the controller knows the worker. One that has been
    taken off its host already is not asked about if the controller does not answer: an earlier
    removal may have broken off while it was restarted."""
    try:
        status = means.deploy.status(cluster)
    except (NotRunning, DeadlineExceeded):
        members = cluster.home.members()
        if not members or worker.id in members:
            raise
        return False
    check_unused(status, worker.id, lost=request.lost)
    return any(each.id == worker.id for each in status.workers)


def _worker(cluster: Deployed, name: str) -> Worker:
    workers = cluster.inventory.workers
    for worker in workers:
        if name in (worker.id, worker.host):
            return worker
    raise UnknownHost(
        f"no worker {name} is in {cluster.file}",
        remedy=f"there are {', '.join(each.id for each in workers)}",
    )


def _check_apart(cluster: Deployed, worker: Worker) -> None:
    if cluster.places[worker.id].controller is not None:
        raise Refused(
            f"worker {worker.id} is on the controller's host, which would be undeployed with it",
            remedy=f"by hand, with a cluster that stands still meanwhile: `rhinoctl undeploy --host"
            f" {worker.id}` keeps the controller's store, take the worker out of {cluster.file},"
            " then `rhinoctl deploy`",
        )


def _plan(cluster: Deployed, request: RemoveRequest, worker: Worker, edited: Edited) -> RemovePlan:
    state = "with its state" if request.wipe_data else "but not its state"
    undeploys = f"remove what was deployed on {worker.host}, {state}"
    return RemovePlan(
        file=cluster.file,
        cluster=cluster.inventory.cluster,
        worker=worker.id,
        host=worker.host,
        lost=request.lost,
        wipe_data=request.wipe_data,
        steps=(
            *(() if request.lost else (undeploys,)),
            "deploy the controller without it, which is restarted",
            f"take it out of {cluster.file}",
        ),
        lines=edited.lines,
    )


def _undeploy(
    cluster: Deployed,
    request: RemoveRequest,
    worker: Worker,
    login: Login,
    progress: Progress,
    means: MemberMeans,
) -> UndeployView:
    asked = UndeployRequest(
        inventory=request.inventory,
        confirmed=cluster.inventory.cluster,
        hosts=(worker.id,),
        wipe_data=request.wipe_data,
    )
    return undeploy(asked, login, progress.say, means.deploy.open_fleet, means.deploy.status)


# --- the file -------------------------------------------------------------------------------------


def _read(file: Path) -> tuple[Deployed, str]:
    """The cluster of an inventory, and its text with the ends of lines that it has."""
    cluster = read_deployed(file)
    return cluster, file.read_bytes().decode("utf-8")


def _after(cluster: Deployed, edited: Edited) -> Deployed:
    """The cluster as it is once the edit is written; its text as it is read then."""
    return deployed_of(cluster.file, edited.text.replace("\r\n", "\n"))


def _limited(file: Path, *hosts: str, dry_run: bool = False) -> DeployRequest:
    return DeployRequest(inventory=file, limit=hosts, dry_run=dry_run)


def _write(file: Path, before: str, edited: Edited) -> None:
    """Replace an inventory, through links and with its mode. Raises Busy if somebody has changed it
    meanwhile, and UnwritableDirectory."""
    target = Path(os.path.realpath(file))
    if not target.is_file() or target.read_bytes() != before.encode():
        raise Busy(
            f"{file} was changed by somebody else meanwhile, and was not touched",
            remedy="repeat the command: it begins with what is there now",
        )
    try:
        replace_file(target, edited.text.encode(), stat.S_IMODE(target.stat().st_mode))
    except UnwritableDirectory as fault:
        raise UnwritableDirectory(
            fault.message, remedy=f"make it writable for you, or edit {file} by hand"
        ) from None
