"""`rhinoctl check`: every host of an inventory is looked at, and nothing on it is changed; with
`--apply`, what is safe to mend is mended, and they are looked at again."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from rhinoctl import limits
from rhinoctl.config.deployment import agent_port
from rhinoctl.config.inventory import Inventory
from rhinoctl.config.rates import Drift, Rate, Rates, drifts, whole
from rhinoctl.errors import Busy, Exit, RhinoError, UnwritableDirectory
from rhinoctl.ops.deployed import Deployed, Seen, read_deployed, see
from rhinoctl.ops.host_checks import (
    HostFinding,
    Part,
    Verdict,
    judge_drifts,
    judge_fleet,
    judge_host,
    judge_network,
)
from rhinoctl.ops.hosts import fleet_of
from rhinoctl.ops.mending import (
    HostMend,
    Mend,
    carry_out,
    drift_words,
    plan_mends,
    words,
)
from rhinoctl.ops.mending import HostState as HostState
from rhinoctl.ops.parts import parts_of
from rhinoctl.remote.facts import HostFacts
from rhinoctl.remote.fleet import Fleet
from rhinoctl.remote.host import Host
from rhinoctl.remote.network import Stop, Stretch, measure
from rhinoctl.remote.packages import fit_python
from rhinoctl.remote.ssh import Login

PROBE_AFTER: Final = limits.BEACON_PORTS
"""The port on which the network is measured, after the agent's: the last that has to be open
between workers, and free unless a host runs as many instances."""

Tell = Callable[[str], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckMeans:
    """What a check acts through: hosts, the measurement between them, the time of day."""

    open_fleet: Callable[[Inventory, Login], Fleet[Host]] = fleet_of
    measure: Callable[[Fleet[Host], tuple[Stop, ...]], tuple[Stretch, ...]] = measure
    now: Callable[[], float] = time.time


REAL: Final = CheckMeans()


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckView:
    """What was found: for each host its checks in order, or one that says why there are none.
    `looked_at` are the hosts that answered; `mends` is what `--apply` would mend, or what became of
    it, `run` the account of that."""

    file: str
    cluster: str
    hosts: tuple[str, ...]
    looked_at: tuple[str, ...]
    findings: tuple[HostFinding, ...]
    mends: tuple[HostMend, ...] = ()
    run: str = ""
    dry_run: bool = False

    def count(self, verdict: Verdict) -> int:
        """How many findings are of a kind."""
        return sum(finding.verdict is verdict for finding in self.findings)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Look:
    """One look at all hosts: what each said, or why it did not, and what that comes to."""

    answers: Mapping[str, Seen | RhinoError]
    stretches: tuple[Stretch, ...]
    findings: tuple[HostFinding, ...]
    plans: Mapping[str, tuple[Mend, ...]]
    rates: Rates
    drifts: tuple[Drift, ...]

    @property
    def seen(self) -> dict[str, Seen]:
        return {name: each for name, each in self.answers.items() if isinstance(each, Seen)}


def check(file: Path, login: Login, tell: Tell, means: CheckMeans = REAL) -> CheckView:
    """Look at all hosts at once. Before a cluster is deployed, what is measured of the network is
    kept here. Raises NoInventory, InvalidInventory and ForeignManifest."""
    cluster = read_deployed(file)
    with means.open_fleet(cluster.inventory, login) as fleet:
        look = _look(cluster, fleet, means)
    _keep_first(cluster, look.rates, tell)
    return _view(cluster, look)


def apply(
    file: Path,
    login: Login,
    tell: Tell,
    agree: Callable[[CheckView], object],
    means: CheckMeans = REAL,
    *,
    dry_run: bool = False,
) -> CheckView:
    """Mend what is safe to, and look again. `agree` sees what was found and what is to be mended
    before anything is changed, and may raise. Raises what `check` does, Busy, and
    UnwritableDirectory."""
    cluster = read_deployed(file)
    with cluster.home.claimed(), means.open_fleet(cluster.inventory, login) as fleet:
        look = _look(cluster, fleet, means)
        view = replace(_view(cluster, look), dry_run=dry_run)
        if dry_run:
            return view
        if not cluster.home.members() and look.rates.workers:
            cluster.home.keep_rates(look.rates)
        if not view.mends:
            return view
        agree(view)
        run, mends = carry_out(cluster, fleet, look.seen, look.plans, tell)
        if look.drifts:
            cluster.home.keep_rates(look.rates)
            mends += tuple(replace(each, state=HostState.DONE) for each in _drifted(look))
        again = _look(cluster, fleet, means, look.stretches)
    return replace(_view(cluster, again), mends=mends, run=run)


def exit_of(view: CheckView) -> Exit:
    """Partial if hosts could not be looked at, or not be mended; changes only for a dry run;
    unhealthy if a check failed."""
    unmended = any(each.state is HostState.FAILED for each in view.mends)
    if len(view.looked_at) < len(view.hosts) or unmended:
        return Exit.PARTIAL
    if view.dry_run and view.mends:
        return Exit.HAS_CHANGES
    return Exit.DEGRADED if view.count(Verdict.FAIL) else Exit.DONE


# --- the look ------------------------------------------------------------------------------------


def _look(
    cluster: Deployed,
    fleet: Fleet[Host],
    means: CheckMeans,
    stretches: tuple[Stretch, ...] | None = None,
) -> _Look:
    """Look at all hosts; the network is measured unless that was done just before."""
    parts = parts_of(cluster.inventory)
    known = cluster.home.read()
    identity = "" if known is None else known.identity
    answers = fleet.each(lambda host: see(host, cluster, identity), parts)
    facts = {name: each.facts for name, each in answers.items() if isinstance(each, Seen)}
    if stretches is None:
        stretches = means.measure(fleet, stops_of(cluster.inventory, facts))
    hosts = (*_judged(parts, answers), *judge_fleet(facts))
    rates = rates_of(cluster.inventory, stretches, means.now())
    drifted = _drifts(cluster, rates)
    return _Look(
        answers=answers,
        stretches=stretches,
        findings=(*hosts, *judge_network(stretches), *judge_drifts(drifted)),
        plans=_plans(cluster, answers, hosts),
        rates=rates,
        drifts=drifted,
    )


def _plans(
    cluster: Deployed, answers: Mapping[str, Seen | RhinoError], findings: tuple[HostFinding, ...]
) -> dict[str, tuple[Mend, ...]]:
    plans = {
        name: plan_mends(
            cluster, cluster.places[name], each, [f for f in findings if f.host == name]
        )
        for name, each in answers.items()
        if isinstance(each, Seen)
    }
    return {name: plan for name, plan in plans.items() if plan}


def _view(cluster: Deployed, look: _Look) -> CheckView:
    hosts = tuple(
        HostMend(host=name, what=words(step, look.seen[name]))
        for name, plan in look.plans.items()
        for step in plan
    )
    return CheckView(
        file=cluster.file,
        cluster=cluster.inventory.cluster,
        hosts=tuple(look.answers),
        looked_at=tuple(look.seen),
        findings=look.findings,
        mends=(*hosts, *_drifted(look)),
    )


def _drifted(look: _Look) -> tuple[HostMend, ...]:
    return tuple(HostMend(host=each.worker, what=drift_words(each)) for each in look.drifts)


def _judged(
    parts: Mapping[str, Part], answers: Mapping[str, Seen | RhinoError]
) -> tuple[HostFinding, ...]:
    found: list[HostFinding] = []
    for name, answer in answers.items():
        if isinstance(answer, RhinoError):
            found.append(
                HostFinding(
                    host=name,
                    check="ssh",
                    verdict=Verdict.FAIL,
                    seen=f"{answer.message.removeprefix(f'{name}: ')} ({answer.code})",
                    remedy=answer.remedy,
                )
            )
        else:
            found += judge_host(parts[name], answer.facts, answer.ours)
    return tuple(found)


# --- the network ---------------------------------------------------------------------------------


def stops_of(inventory: Inventory, facts: Mapping[str, HostFacts]) -> tuple[Stop, ...]:
    """The workers between which the network is measured: those that can run what measures it."""
    stops = []
    for worker in inventory.workers:
        known = facts.get(worker.id)
        python = fit_python(known) if known is not None else None
        if python is not None:
            port = min(agent_port(inventory, worker) + PROBE_AFTER, 65535)
            stops.append(
                Stop(name=worker.id, python=python[1], address=worker.peer_address, port=port)
            )
    return tuple(stops)


def rates_of(inventory: Inventory, stretches: tuple[Stretch, ...], now: float) -> Rates:
    """What each worker's network can do: the better of what came to it and what it sent, since
    either may be slow for the sake of the worker at the other end."""
    best: dict[str, float] = {}
    for each in stretches:
        for name in (each.sender, each.receiver):
            best[name] = max(best.get(name, 0.0), each.bytes_s or 0.0)
    return Rates(
        measured_at=now,
        workers={
            worker.id: Rate(address=worker.peer_address, bytes_s=best[worker.id])
            for worker in inventory.workers
            if best.get(worker.id)
        },
    )


def _drifts(cluster: Deployed, now: Rates) -> tuple[Drift, ...]:
    """Where a deployed cluster places copies for another network than there is, by a measurement of
    all its workers."""
    if not cluster.home.members() or not whole(cluster.inventory, now):
        return ()
    return drifts(cluster.inventory, cluster.home.rates(), now)


def _keep_first(cluster: Deployed, rates: Rates, tell: Tell) -> None:
    """Keep what was measured before there is a cluster that counts with it: from then on a person
    says when it is to count with something else."""
    if not rates.workers:
        return
    try:
        with cluster.home.claimed():
            if not cluster.home.members():
                cluster.home.keep_rates(rates)
    except (Busy, UnwritableDirectory) as fault:
        tell(f"what was measured of the network is not kept: {fault.message}")
