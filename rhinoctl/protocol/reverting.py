"""The way back from a complete operation: a plan like any other, made from where vnodes are now.

A complete operation is not undone, since batches have been applied after it: what it moved is moved
again, to where it came from (design, section 7).
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from rhinoctl.ids import InstanceId, Vnode, WorkerId
from rhinoctl.protocol.epochs import Epoch
from rhinoctl.protocol.handover import Handover
from rhinoctl.protocol.placement import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """How far the layout before an operation can be had again. Vnodes in `stays` have no origin to
    go to, and why; those that are `elsewhere` were moved on since, and are for somebody else."""

    plan: Plan
    stays: Mapping[Vnode, str]
    elsewhere: tuple[Vnode, ...]


def plan_revert(
    epoch: Epoch,
    done: Handover,
    origins: Mapping[Vnode, InstanceId],
    usable: Collection[WorkerId],
) -> Way:
    """The moves that take a complete operation's vnodes back to their `origins`.

    An origin that has retired since begins anew on its worker, if that is `usable`; instances that
    began with the operation retire, if they own nothing else. What is back already stays.
    """
    placed = dict(epoch.instances)
    moves: dict[Vnode, InstanceId] = {}
    stays: dict[Vnode, str] = {}
    elsewhere = []
    for vnode, target in sorted(done.moves.items()):
        owner, origin = epoch.routes[vnode].owner, origins[vnode]
        if owner == origin:
            continue
        if owner != target:
            elsewhere.append(vnode)
            continue
        home = done.before.get(origin, placed.get(origin))
        fault = _no_way(origin, home, placed, usable)
        if home is None or fault:
            stays[vnode] = fault
            continue
        placed[origin] = home
        moves[vnode] = origin
    owners = {moves.get(Vnode(v), route.owner) for v, route in enumerate(epoch.routes)}
    begun = done.instances.keys() - done.before.keys() if done.before else frozenset()
    after = {i: w for i, w in placed.items() if i not in begun or i in owners}
    plan = Plan(before=epoch.instances, instances=after, moves=moves)
    return Way(plan=plan, stays=stays, elsewhere=tuple(elsewhere))


def _no_way(
    origin: InstanceId,
    home: WorkerId | None,
    placed: Mapping[InstanceId, WorkerId],
    usable: Collection[WorkerId],
) -> str:
    """Why a vnode cannot return to an instance, empty if it can."""
    if home is None:
        return f"{origin} has retired, and nobody knows any more where it ran"
    now = placed.get(origin, home)
    if now != home:
        return f"{origin} was on worker {home}, and is another instance on worker {now} now"
    if home not in usable:
        return f"{origin} was on worker {home}, which is lost, drained or not in the cluster"
    return ""
