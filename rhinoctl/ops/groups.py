"""Replica groups: what they are, what would change, and the wait until they are as planned.

The controller raises and lowers chains by itself, all the time (`rhinoctl.protocol.chains`). So to
apply a plan is to wait for it, and to stop waiting changes nothing.
"""

from collections.abc import Callable
from dataclasses import dataclass

from rhinoctl.errors import DeadlineExceeded, Degraded, Exit, UsageError
from rhinoctl.ids import WorkerId
from rhinoctl.ops.cluster import connect
from rhinoctl.ops.looks import looks
from rhinoctl.protocol.epochs import Role
from rhinoctl.protocol.phrases import workers as named
from rhinoctl.protocol.views import GroupsRequest, GroupsView, GroupView, MemberView

Groups = GroupsView
"""The groups of a job, as the functions here return them."""

APPLY_DEADLINE_S = 600.0
"""Copies are made over the network: it takes as long as the state is large."""

APPLY_LOOK_S = 0.5
"""Between two looks at all chains of a job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What is left to do for one chain: workers that shall join, that are members and have no
    whole copy yet, and that shall leave."""

    joins: tuple[WorkerId, ...]
    gathering: tuple[WorkerId, ...]
    leaves: tuple[WorkerId, ...]

    def __bool__(self) -> bool:
        return bool(self.joins or self.gathering or self.leaves)


def is_good(member: MemberView) -> bool:
    """Whether a copy could take over now: a full member that is seen, with its files."""
    return member.role is Role.FULL and member.whole


def change_of(group: GroupView, replication: int) -> Change:
    """What is left to do until a chain is as planned.

    For each member that there is no place for, a full one that is not planned stays, wherever it
    is: a copy in the wrong place is better than none.
    """
    roles = {member.worker: member.role for member in group.members}
    good = {member.worker for member in group.members if is_good(member)}
    others = {worker: role for worker, role in roles.items() if worker not in group.planned}
    stay = max(0, replication - len(group.planned))
    full = [worker for worker, role in others.items() if role is Role.FULL]
    kept = full[:stay]
    return Change(
        joins=tuple(w for w in group.planned if w not in roles),
        gathering=tuple(w for w in group.planned if w in roles and w not in good),
        leaves=tuple(w for w in others if w not in kept),
    )


def is_settled(view: GroupsView) -> bool:
    """Whether all chains are as planned: nothing will change by itself any more."""
    return not any(change_of(group, view.replication) for group in view.groups)


def is_over(view: GroupsView) -> bool:
    """Whether to wait for the chains is of no use: they are as planned, or only a batch would
    change them and no query runs."""
    return is_settled(view) or view.waits_for_batch


def full_copies(view: GroupsView) -> int:
    """Good copies in all chains, at most as many as are wanted of each vnode."""
    return sum(min(view.replication, sum(map(is_good, group.members))) for group in view.groups)


def wanted_copies(view: GroupsView) -> int:
    """How many copies there shall be, besides the owners'."""
    return view.replication * len(view.groups)


def show_groups(cluster: str | None, job: str) -> GroupsView:
    """The replica groups of a job as they are. Raises UnknownJob."""
    with connect(cluster) as client:
        return client.groups(job, GroupsRequest())


def plan_groups(cluster: str | None, job: str, *, replication: int | None) -> GroupsView:
    """The groups beside what they would be, with another replication if one is given.

    Raises UsageError and UnknownJob.
    """
    if replication is not None and replication < 0:
        raise UsageError(
            f"a vnode cannot have {replication} further copies",
            remedy="choose 0 (no copies) or more, such as --replication 1",
        )
    with connect(cluster) as client:
        return client.groups(job, GroupsRequest(replication=replication))


def apply_groups(
    cluster: str | None, job: str, *, show: Callable[[GroupsView], None]
) -> GroupsView:
    """Wait until the chains are as planned, or nothing more can come of waiting.

    Raises UnknownJob, and DeadlineExceeded if it takes too long.
    """
    with connect(cluster) as client:
        view = client.groups(job, GroupsRequest())
        if is_over(view):
            return view
        show(view)
        ask = looks(
            lambda: client.groups(job, GroupsRequest()),
            deadline_s=APPLY_DEADLINE_S,
            every_s=APPLY_LOOK_S,
        )
        for view in ask:
            show(view)
            if is_over(view):
                return view
    raise DeadlineExceeded(
        f"the replica groups of job {job} are not as planned after {APPLY_DEADLINE_S:.0f} s:"
        f" {full_copies(view)} of {wanted_copies(view)} copies are full",
        remedy=f"see `rhinoctl groups show {job}`; they are still worked on, so that you may"
        f" wait again with `rhinoctl groups apply {job}`",
    )


def exit_of_plan(view: GroupsView) -> Exit:
    """How a plan ends: whether carrying it out would add or take away copies."""
    changes = (change_of(group, view.replication) for group in view.groups)
    return Exit.HAS_CHANGES if any(c.joins or c.leaves for c in changes) else Exit.DONE


def error_of(view: GroupsView) -> Degraded | None:
    """What to say of groups with fewer copies than wanted; None if none lacks."""
    if view.lacking:
        fewest = min((len(group.planned) for group in view.groups), default=0)
        fewer = f", or want fewer copies: `rhinoctl job set {view.job} replication={fewest}`"
        return Degraded(
            f"{_copies(view.lacking)} of job {view.job} {_have(view.lacking)} no place:"
            f" {'; '.join(view.reasons) or 'no reason was given'}",
            remedy=f"start more workers or make room on them{fewer if fewest else ''}",
        )
    missing = wanted_copies(view) - full_copies(view)
    if view.unreadable:
        return Degraded(
            f"{named(sorted(view.unreadable), 'has', 'have')} something of job {view.job} that"
            " cannot be read, and no copies of it are made there",
            remedy="see `rhinoctl doctor` for what becomes of it",
        )
    if not missing:
        return None
    there = f"{_copies(missing)} of job {view.job} {'is' if missing == 1 else 'are'} not there yet"
    if view.waits_for_batch:
        return Degraded(
            f"{there}, and no query runs: chains change again with its next batch",
            remedy=f"start the query of job {view.job}, then `rhinoctl groups apply {view.job}`",
        )
    return Degraded(
        there,
        remedy=f"wait for them with `rhinoctl groups apply {view.job}`: they are being made",
    )


def _copies(number: int) -> str:
    return "1 copy" if number == 1 else f"{number} copies"


def _have(number: int) -> str:
    return "has" if number == 1 else "have"
