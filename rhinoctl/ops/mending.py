"""What `rhinoctl check --apply` mends: little, and nothing by which anything could be lost.

Invariants:

1. Directories are those that a deployment would make, made by the same command and written down in
   the same record, and only where there is nothing. One for state that was there once is not made
   again: its disk may not be mounted.
2. What a check fails for is not mended around: it keeps its remedy.
3. To do it again does nothing. What was not done stands in the way of nothing else.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, assert_never

from rhinoctl.config.deployment import Directory, MakeDirectories, Place, directories_of
from rhinoctl.config.rates import Drift
from rhinoctl.config.runs import HostState as HostState
from rhinoctl.config.runs import Journal, RunState, new_run
from rhinoctl.errors import RhinoError
from rhinoctl.ops.deployed import Deployed, Seen
from rhinoctl.ops.host_checks import HostFinding, Verdict, lacks_linger
from rhinoctl.ops.steps import make_for_account
from rhinoctl.protocol.sizes import size
from rhinoctl.remote.fleet import Fleet
from rhinoctl.remote.host import Audited, Host, Stoppable
from rhinoctl.remote.services import enable_linger

COMMAND: Final = "check"

HANDS_OFF: Final = frozenset({"cluster", "machine", "platform", "user"})
"""A host that fails one of these is left as it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Linger:
    """Let systemd look after services of an account also while nobody is logged in with it."""

    user: str


Mend = MakeDirectories | Linger


@dataclass(frozen=True, slots=True, kw_only=True)
class HostMend:
    """Something that is mended, or would be; with a reason and a remedy if it could not be."""

    host: str
    what: str
    state: HostState = HostState.PLANNED
    code: str = ""
    reason: str = ""
    remedy: str = ""


def plan_mends(
    cluster: Deployed, place: Place, seen: Seen, findings: Iterable[HostFinding]
) -> tuple[Mend, ...]:
    """What can be mended of a host, from what was seen of it and found about it."""
    failed = {each.check for each in findings if each.verdict is Verdict.FAIL}
    if HANDS_OFF & failed:
        return ()
    mends: list[Mend] = []
    directories = _missing(cluster, place, seen, failed)
    if directories:
        mends.append(MakeDirectories(directories=directories))
    if lacks_linger(place.sudo, seen.facts):
        mends.append(Linger(user=seen.facts.user))
    return tuple(mends)


def _missing(
    cluster: Deployed, place: Place, seen: Seen, failed: set[str]
) -> tuple[Directory, ...]:
    """The installation's directory and those for state, as far as they can be made; none without
    the first, which has the record of what was made."""
    facts = {each.path: each for each in seen.facts.directories}
    top = cluster.inventory.install_dir

    def makes(path: str) -> bool:
        return f"directory {path}" not in failed and (place.sudo or facts[path].writable)

    if not makes(top):
        return ()
    return tuple(
        each
        for each in directories_of(cluster.inventory, place)
        if each.state or each.path == top
        if facts[each.path].missing and makes(each.path)
        if not (each.state and each.path in seen.ours.known)
    )


def words(step: Mend, seen: Seen) -> str:
    """A mend, for people."""
    match step:
        case MakeDirectories(directories=directories):
            mounts = {each.path: each.mount for each in seen.facts.directories}
            return "make " + ", ".join(
                f"{each.path} (in {mounts[each.path]})" for each in directories
            )
        case Linger(user=user):
            return f"let services of {user} go on while nobody is logged in"
        case _:
            assert_never(step)


def drift_words(drift: Drift) -> str:
    """The same of a network's rate, which is kept here."""
    return f"place copies for {size(round(drift.now))}/s of network"


def mend(step: Mend, host: Host, cluster: Deployed, seen: Seen) -> None:
    """Mend one thing. Raises HostError's leaves."""
    place, user = cluster.places[host.name], seen.facts.user
    match step:
        case MakeDirectories():
            make_for_account(step, host, cluster.inventory.install_dir, user, root=place.sudo)
        case Linger(user=account):
            enable_linger(host, account)
        case _:
            assert_never(step)


def carry_out(
    cluster: Deployed,
    fleet: Fleet[Host],
    seen: Mapping[str, Seen],
    plans: Mapping[str, Sequence[Mend]],
    tell: Callable[[str], object],
) -> tuple[str, tuple[HostMend, ...]]:
    """Mend what was planned, on all hosts at once, every command written down. Returns the run's
    name, and what became of each. Raises UnwritableDirectory."""
    run = new_run(
        command=COMMAND,
        cluster=cluster.inventory.cluster,
        file=cluster.file,
        inventory=cluster.text,
        limit=tuple(plans),
    )
    journal = Journal(cluster.home.runs, run)

    def on(host: Host) -> list[HostMend]:
        kept = Audited(Stoppable(host, fleet.interrupted), journal.audit)
        found = [_kept(step, kept, cluster, seen[host.name], journal) for step in plans[host.name]]
        for each in found:
            tell(f"{host.name}: {each.what}: {each.state.value}")
        failed = [each for each in found if each.state is HostState.FAILED]
        state = HostState.FAILED if failed else HostState.DONE
        journal.settle(host.name, state, failed[0].reason if failed else "")
        return found

    ended = RunState.INTERRUPTED
    try:
        answers = fleet.each(on, plans)
        mends = tuple(
            each for found in answers.values() if isinstance(found, list) for each in found
        )
        failed = any(each.state is HostState.FAILED for each in mends)
        ended = RunState.PARTIAL if failed else RunState.DONE
    finally:
        journal.close(ended)
    return run.id, mends


def _kept(step: Mend, host: Host, cluster: Deployed, seen: Seen, journal: Journal) -> HostMend:
    what = words(step, seen)
    journal.begin(host.name, what)
    try:
        mend(step, host, cluster, seen)
    except RhinoError as fault:
        journal.end(host.name, fault.message)
        return HostMend(
            host=host.name,
            what=what,
            state=HostState.FAILED,
            code=fault.code,
            reason=fault.message.removeprefix(f"{host.name}: "),
            remedy=fault.remedy,
        )
    journal.end(host.name)
    return HostMend(host=host.name, what=what, state=HostState.DONE)
