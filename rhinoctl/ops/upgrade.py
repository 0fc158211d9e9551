"""`rhinoctl upgrade`: another release on every host of a cluster, while jobs run.

Nothing but the release is changed. Hosts are judged before anything is done; then the release is
installed everywhere, and processes are restarted, the controller first, then agents in waves, each
while all is well and every copy is full (`rhinoctl.ops.rollout`).
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Final

from rhinoctl.config.deployment import Role, StartService, differs_besides, started_from
from rhinoctl.config.runs import Journal, RunFile, check_latest, new_run
from rhinoctl.errors import CannotUpgrade, Exit, RhinoError
from rhinoctl.ops.deployed import (
    Deployed,
    bare_host,
    check_members,
    deployed_of,
    found_on,
    read_deployed,
)
from rhinoctl.ops.rollout import (
    REAL,
    Deployment,
    HostSeen,
    Means,
    Rollout,
    Waves,
    one_by_one,
)
from rhinoctl.ops.rollout_views import DeployView, Progress
from rhinoctl.ops.running import check_deployed
from rhinoctl.remote.spoken import Spoken, spoken_by
from rhinoctl.remote.ssh import Login

COMMAND: Final = "upgrade"


class By(Enum):
    """Which agents are restarted at once."""

    HOST = "host"
    RACK = "rack"


class Verdict(Enum):
    """What may be done to a host."""

    NOTHING = "nothing to do"
    CAN = "can be upgraded"
    CANNOT = "cannot be upgraded"


@dataclass(frozen=True, slots=True, kw_only=True)
class UpgradeRequest:
    """What is asked for. `limit` are hosts, none of them for all; `back`: an older release may take
    a newer one's place."""

    inventory: Path
    by: By = By.HOST
    limit: tuple[str, ...] = ()
    back: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseView:
    """A release on hosts, and what it speaks."""

    name: str
    speaks: Spoken


@dataclass(frozen=True, slots=True, kw_only=True)
class UpgradeHost:
    """A host that was judged: what runs there and what would, None if that is not known; why it
    cannot be upgraded, if so."""

    host: str
    roles: tuple[str, ...]
    verdict: Verdict
    runs: ReleaseView | None = None
    would: ReleaseView | None = None
    code: str = ""
    reason: str = ""
    remedy: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class UpgradeView:
    """What an upgrade would do, and what it would wait for: `waves` are the agents that would be
    restarted at once, in their order, `troubles` what is not well, operations that are under way
    among it. `silent` says why the controller does not answer, if so."""

    file: str
    cluster: str
    identity: str
    by: By
    hosts: tuple[UpgradeHost, ...]
    waves: tuple[tuple[str, ...], ...]
    troubles: tuple[str, ...] = ()
    silent: str = ""

    def of(self, verdict: Verdict) -> list[UpgradeHost]:
        """The hosts of a verdict."""
        return [host for host in self.hosts if host.verdict is verdict]


# --- the verbs -----------------------------------------------------------------------------------


def check_upgrade(
    request: UpgradeRequest, login: Login, progress: Progress, means: Means = REAL
) -> UpgradeView:
    """Judge every host, and look at how the cluster is; no host is changed.

    Raises NoInventory, InvalidInventory, UnknownHost, NotRunning, Busy, and Refused for an
    inventory that leaves out a worker that was deployed.
    """
    cluster = read_deployed(request.inventory)
    with _judged(cluster, request, login, progress, means) as (deployment, hosts):
        troubles, silent = frozenset[str](), ""
        try:
            troubles = deployment.health.troubles()
        except RhinoError as fault:
            silent = fault.message
        return UpgradeView(
            file=cluster.file,
            cluster=cluster.inventory.cluster,
            identity=deployment.view().identity,
            by=request.by,
            hosts=hosts,
            waves=_waves(cluster, request.by, deployment, hosts),
            troubles=tuple(sorted(troubles)),
            silent=silent,
        )


def exit_of_check(view: UpgradeView) -> Exit:
    """Partial if a host cannot be upgraded; changes if one can."""
    if view.of(Verdict.CANNOT):
        return Exit.PARTIAL
    return Exit.HAS_CHANGES if view.of(Verdict.CAN) else Exit.DONE


def upgrade(
    request: UpgradeRequest,
    login: Login,
    progress: Progress,
    agree: Callable[[DeployView], object],
    means: Means = REAL,
) -> DeployView:
    """Bring every host to this release. `agree` sees the plan before a host is changed, and may
    raise.

    Raises what `check_upgrade` does, and CannotUpgrade, with nothing changed, if a host cannot be
    upgraded, or if the cluster is not well and does not become so. What is wrong with a host later
    is in the view.
    """
    cluster = read_deployed(request.inventory)
    return _upgrade(cluster, request, login, progress, agree, means)


def resume_upgrade(
    old: RunFile,
    login: Login,
    progress: Progress,
    agree: Callable[[DeployView], object],
    means: Means = REAL,
) -> DeployView:
    """Go on with an upgrade where it stopped, with the inventory that it was begun with. Raises
    Busy if another inventory was deployed since, and what `upgrade` does."""
    cluster = deployed_of(old.file, old.inventory)
    check_latest(cluster.home.runs, old)
    request = UpgradeRequest(
        inventory=Path(old.file), by=By(old.by), limit=old.limit, back=old.back
    )
    return _upgrade(cluster, request, login, progress, agree, means, resumes=old.id)


def _upgrade(
    cluster: Deployed,
    request: UpgradeRequest,
    login: Login,
    progress: Progress,
    agree: Callable[[DeployView], object],
    means: Means,
    resumes: str = "",
) -> DeployView:
    with _judged(cluster, request, login, progress, means) as (deployment, hosts):
        _check_hosts(hosts)
        view = deployment.view()
        if not deployment.unfinished():
            return view
        _check_well(deployment, hosts)
        agree(view)
        run = new_run(
            command=COMMAND,
            cluster=cluster.inventory.cluster,
            file=cluster.file,
            inventory=cluster.text,
            limit=request.limit,
            resumes=resumes,
            by=request.by.value,
            back=request.back,
        )
        return deployment.carry_out(Journal(cluster.home.runs, run))


def _check_hosts(hosts: Sequence[UpgradeHost]) -> None:
    """Raise CannotUpgrade if any cannot be upgraded: then none is."""
    cannot = [each for each in hosts if each.verdict is Verdict.CANNOT]
    if cannot:
        first, *others = cannot
        more = f" (and {len(others)} more: see `rhinoctl upgrade --check`)" if others else ""
        raise CannotUpgrade(
            f"{first.host}: {first.reason}{more}; nothing was changed", remedy=first.remedy
        )


def _check_well(deployment: Deployment, hosts: Sequence[UpgradeHost]) -> None:
    """Raise CannotUpgrade if the cluster is not well, and does not become so. Where something does
    not run, such as what an earlier release has left down, it cannot be: that is started first."""
    if any(_starts(deployment.seen(each.host), anew=False) for each in hosts):
        return
    worse = deployment.await_well()
    if worse:
        raise CannotUpgrade(
            f"the cluster is not well: {', '.join(sorted(worse))}; nothing was changed",
            remedy="see `rhinoctl status` and `rhinoctl doctor`, and repeat the command once all is"
            " well; `rhinoctl deploy` asks for no more than what was well before",
        )


# --- judging hosts -------------------------------------------------------------------------------


@contextmanager
def _judged(
    cluster: Deployed,
    request: UpgradeRequest,
    login: Login,
    progress: Progress,
    means: Means,
) -> Iterator[tuple[Deployment, tuple[UpgradeHost, ...]]]:
    """The hosts, looked at and judged, for as long as nobody else may change them."""
    wanted = cluster.selected(request.limit)
    check_deployed(cluster)
    rollout = Rollout(waves=waves_of(cluster, request.by), strict=True, back=request.back)
    with cluster.home.claimed(), means.open_fleet(cluster.inventory, login) as fleet:
        check_members(cluster)
        deployment = Deployment(cluster, fleet, progress, means, rollout)
        first = next(name for name, place in cluster.places.items() if place.controller)
        deployment.look([first, *wanted])
        for name in (first, *wanted):
            fault = obstacle_of(name, deployment.seen(name))
            if fault is not None:
                deployment.refuse(name, fault)
        if first not in wanted:
            _controller_first(deployment, first, wanted)
        _racks_apart(deployment, waves_of(cluster, request.by), wanted)
        yield deployment, tuple(_host_of(cluster, name, deployment.seen(name)) for name in wanted)


def obstacle_of(name: str, seen: HostSeen) -> RhinoError | None:
    """Why a host cannot be upgraded, whatever the others are like."""
    if seen.fault is not None or seen.looked is None or seen.plan is None:
        return seen.fault
    found = found_on(seen.looked)
    if seen.bare:
        return bare_host(name)
    others = list(differs_besides(seen.plan, found))
    if others:
        return CannotUpgrade(
            f"{name}: more than its release differs from the inventory: {'; '.join(others)}",
            remedy="`rhinoctl deploy` first, with the version that runs there: an upgrade changes"
            " the release, and nothing else",
        )
    return None


def _controller_first(deployment: Deployment, first: str, wanted: Iterable[str]) -> None:
    """Without the controller, agents are upgraded only if it is done already."""
    controller = deployment.seen(first)
    deployment.leave_out(first)
    if controller.fault is None and controller.plan is not None and not controller.plan.steps:
        return
    why = f": {controller.fault.message}" if controller.fault is not None else ""
    for name in wanted:
        if _is_planned(deployment.seen(name)):
            fault = CannotUpgrade(
                f"{name}: the controller comes first, and has another release{why}",
                remedy="leave out `--limit`, or add `--limit controller`",
            )
            deployment.refuse(name, fault)


def _racks_apart(deployment: Deployment, waves: Waves, wanted: Iterable[str]) -> None:
    """Agents that hold all full copies of a vnode are not to be away together."""
    again = [name for name in wanted if _starts(deployment.seen(name), anew=True)]
    for wave in waves(again):
        try:
            stranded = deployment.health.stranded(wave) if len(wave) > 1 else frozenset()
        except RhinoError:
            return  # it is looked at again before each wave, and the check tells of it
        for name in wave if stranded else ():
            fault = CannotUpgrade(
                f"{name}: not with its whole rack: {', '.join(sorted(stranded))}",
                remedy="`--by host`; or give its vnodes copies in other racks, see"
                " `rhinoctl groups show JOB`",
            )
            deployment.refuse(name, fault)


def _is_planned(seen: HostSeen) -> bool:
    return seen.fault is None and seen.plan is not None and bool(seen.plan.steps)


def _starts(seen: HostSeen, *, anew: bool) -> bool:
    """Whether an agent is to be restarted, or any process started that does not run."""
    steps = seen.plan.steps if seen.plan is not None and seen.fault is None else ()
    starts = [step for step in steps if isinstance(step, StartService)]
    if anew:
        return any(step.anew and step.service.role is Role.AGENT for step in starts)
    return any(not step.anew for step in starts)


def _host_of(cluster: Deployed, name: str, seen: HostSeen) -> UpgradeHost:
    fault = seen.fault
    verdict = Verdict.CAN if _is_planned(seen) else Verdict.NOTHING
    return UpgradeHost(
        host=name,
        roles=tuple(role.value for role in cluster.places[name].roles),
        verdict=verdict if fault is None else Verdict.CANNOT,
        runs=_running(seen),
        would=None
        if seen.environment is None
        else ReleaseView(name=seen.environment.name, speaks=seen.environment.speaks),
        code="" if fault is None else fault.code,
        reason="" if fault is None else fault.message.removeprefix(f"{name}: "),
        remedy="" if fault is None else fault.remedy,
    )


def _running(seen: HostSeen) -> ReleaseView | None:
    """The release that processes were started from; the current one if that is not known."""
    if seen.looked is None or not seen.looked.deployed.current:
        return None
    releases, name = seen.looked.deployed.releases, seen.looked.deployed.current
    if seen.plan is not None:
        target, found = seen.plan.target, found_on(seen.looked)
        started = (started_from(target, found, role) for role in found.services)
        name = next((each for each in started if each not in ("", target.environment)), name)
    return ReleaseView(name=name, speaks=releases.get(name) or spoken_by(name))


# --- waves ---------------------------------------------------------------------------------------


def waves_of(cluster: Deployed, by: By) -> Waves:
    """Which agents may be away at once."""
    return one_by_one if by is By.HOST else partial(by_rack, cluster)


def _waves(
    cluster: Deployed, by: By, deployment: Deployment, hosts: Iterable[UpgradeHost]
) -> tuple[tuple[str, ...], ...]:
    """The agents that would be restarted, in their order."""
    again = [each.host for each in hosts if _starts(deployment.seen(each.host), anew=True)]
    return tuple(waves_of(cluster, by)(again))


def by_rack(cluster: Deployed, hosts: Sequence[str]) -> Sequence[tuple[str, ...]]:
    """The agents of a rack at once, those of unknown racks one by one."""
    racks: dict[tuple[str, str], tuple[str, ...]] = {}
    for name in hosts:
        worker = cluster.places[name].worker
        rack = ("host", name) if worker is None or not worker.rack else ("rack", worker.rack)
        racks[rack] = (*racks.get(rack, ()), name)
    return tuple(racks.values())
