"""Redundancy of the chains: the next safe epoch from any state, or none.

Invariant: a chain has the owner's worker and `replication` members; it is raised before it is
lowered, and only members beyond the wanted number leave (design, section 6). Called when no
operation is under way; it has no memory of progress. Which workers the members are to be is
`rhinoctl.protocol.groups`'s to say.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from rhinoctl.ids import Vnode, WorkerId
from rhinoctl.protocol.epochs import (
    Epoch,
    Member,
    Role,
    with_chains_cut,
    with_members_full,
    with_members_joining,
)
from rhinoctl.protocol.groups import GroupPlan


def next_epoch(
    epoch: Epoch,
    plan: GroupPlan,
    whole: Mapping[WorkerId, frozenset[Vnode]],
    addresses: Mapping[WorkerId, str],
    *,
    joining_at_once: int,
) -> Epoch | None:
    """The next epoch on the way to a plan's replica groups; None if nothing can be done now.

    `whole` are the vnodes of which each worker has gathered a whole copy. Wanted members that have
    one become full; if there are none, wanted members join, at most `joining_at_once` copies of a
    worker at a time; and only then members leave that are not wanted: joining ones, and full ones
    once all the wanted ones of their vnode are full. For each member that the plan lacks, a full
    one stays, wherever it is. A vnode that the plan does not name is left as it is.
    """
    after = (
        _with_full(epoch, plan, whole)
        or _with_joining(epoch, plan, addresses, joining_at_once)
        or _with_leavers_gone(epoch, plan)
    )
    if after is None:
        return None
    routes = tuple(
        route
        if route == epoch.routes[v]
        else replace(route, members=_arranged(route.members, plan.members[Vnode(v)]))
        for v, route in enumerate(after.routes)
    )
    return replace(after, number=epoch.number + 1, routes=routes)


def _arranged(members: tuple[Member, ...], wanted: tuple[WorkerId, ...]) -> tuple[Member, ...]:
    """Members in the plan's order, those that are not wanted behind the others, and joining ones
    at the tail: no full member waits for what comes through a joining one."""

    def place(member: Member) -> tuple[bool, int]:
        known = member.worker in wanted
        return (
            member.role is Role.JOINING,
            wanted.index(member.worker) if known else len(wanted),
        )

    return tuple(sorted(members, key=place))


def _wanted(epoch: Epoch, plan: GroupPlan, role: Role | None) -> dict[Vnode, list[WorkerId]]:
    """The wanted members of each vnode that have a role now, or none."""
    wanted = {
        vnode: [w for w in members if epoch.role_of(w, vnode) is role]
        for vnode, members in sorted(plan.members.items())
    }
    return {vnode: workers for vnode, workers in wanted.items() if workers}


def _in_turn(pairs: Mapping[Vnode, Sequence[WorkerId]]) -> Iterator[dict[Vnode, WorkerId]]:
    """Each vnode's first worker, then each one's second, and so on."""
    for n in range(max(map(len, pairs.values()), default=0)):
        yield {vnode: workers[n] for vnode, workers in pairs.items() if len(workers) > n}


def _with_full(
    epoch: Epoch, plan: GroupPlan, whole: Mapping[WorkerId, frozenset[Vnode]]
) -> Epoch | None:
    after = epoch
    ready = {
        vnode: [w for w in workers if vnode in whole.get(w, ())]
        for vnode, workers in _wanted(epoch, plan, Role.JOINING).items()
    }
    for fulls in _in_turn(ready):
        after = with_members_full(after, fulls)
    return after if after is not epoch else None


def _with_joining(
    epoch: Epoch, plan: GroupPlan, addresses: Mapping[WorkerId, str], joining_at_once: int
) -> Epoch | None:
    """Vnodes with the fewest full copies come first."""
    named = {**epoch.workers, **addresses}
    joining = dict.fromkeys(named, 0)
    for route in epoch.routes:
        for member in route.members:
            joining[member.worker] += member.role is Role.JOINING
    absent = _wanted(epoch, plan, None)
    joins: dict[Vnode, list[WorkerId]] = {}
    for vnode in sorted(absent, key=lambda v: (len(epoch.full_holders(v)), v)):
        for worker in absent[vnode]:
            if worker in named and joining[worker] < joining_at_once:
                joining[worker] += 1
                joins.setdefault(vnode, []).append(worker)
    after = epoch
    for one_each in _in_turn(joins):
        after = with_members_joining(after, one_each, named)
    return after if after is not epoch else None


def _with_leavers_gone(epoch: Epoch, plan: GroupPlan) -> Epoch | None:
    drops: dict[Vnode, frozenset[WorkerId]] = {}
    for vnode, wanted in plan.members.items():
        others = [m for m in epoch.routes[vnode].members if m.worker not in wanted]
        gone = [m.worker for m in others if m.role is Role.JOINING]
        if all(epoch.role_of(worker, vnode) is Role.FULL for worker in wanted):
            # An owner's worker that is wanted as a member, too, is none: the plan is an older one.
            lacking = plan.lacking.get(vnode, 0) + (epoch.owner_worker(vnode) in wanted)
            gone += [m.worker for m in others if m.role is Role.FULL][lacking:]
        if gone:
            drops[vnode] = frozenset(gone)
    return with_chains_cut(epoch, drops) if drops else None
