"""Configuration epochs: who owns which vnode, and which workers hold it (Rhino, section 4.1.1).

An epoch is a value. It names everything that a process needs to route: the workers and their
addresses, the instances and their workers, and per vnode its owner and the members of its chain.
A change is a new epoch with the next number; the marker that ends an epoch lies between batches.

Invariants:

1. Every vnode has exactly one owner, and the owner is an instance of the epoch.
2. A chain names a worker once; the owner's worker is its head and is not listed as a member.
3. Epoch n+1 differs from epoch n in ways that `successor_fault` allows: an owner's worker held a
   full copy in epoch n, a member becomes full only if it was joining, and whoever votes got the
   records of epoch n, among them the marker.
4. A worker that an epoch gives up as lost has no part in it, and was not needed to decide it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum

from rhinoctl.ids import InstanceId, Vnode, WorkerId


class Role(Enum):
    """What a worker is for a vnode: a member that still gathers its copy, or one that has it."""

    JOINING = "joining"
    FULL = "full"


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A worker that holds a secondary copy of a vnode."""

    worker: WorkerId
    role: Role


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """Where one vnode lives: its owner, and the members behind its worker in chain order."""

    owner: InstanceId
    members: tuple[Member, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Epoch:
    """One version of a job's routing and chains. `routes[v]` is vnode v's.

    An epoch that gives something up is a *cut*: `lost` are workers, without which it is decided,
    and `failed` instances, though their workers may live. What they owned has heirs. Of the vnodes
    in `forfeited` nobody has a copy, and somebody has accepted that: their heirs begin empty. It is
    `forced` if somebody has accepted that there may be such.
    """

    number: int
    workers: Mapping[WorkerId, str]
    instances: Mapping[InstanceId, WorkerId]
    routes: tuple[Route, ...]
    lost: frozenset[WorkerId] = frozenset()
    failed: frozenset[InstanceId] = frozenset()
    forfeited: frozenset[Vnode] = frozenset()
    forced: bool = False

    def __post_init__(self) -> None:
        fault = epoch_fault(self)
        if fault:
            raise ValueError(f"epoch {self.number}: {fault}")

    @property
    def is_cut(self) -> bool:
        """Whether it gives up workers or instances."""
        return bool(self.lost or self.failed)

    def vnodes(self) -> range:
        """All vnodes of the operator."""
        return range(len(self.routes))

    def owner_worker(self, vnode: Vnode) -> WorkerId:
        """The worker at the head of the vnode's chain."""
        return self.instances[self.routes[vnode].owner]

    def holders(self, vnode: Vnode) -> tuple[WorkerId, ...]:
        """The chain: the owner's worker, then the members, joining ones included."""
        members = tuple(member.worker for member in self.routes[vnode].members)
        return (self.owner_worker(vnode), *members)

    def full_holders(self, vnode: Vnode) -> tuple[WorkerId, ...]:
        """The workers whose seal a batch needs for this vnode: the owner's and full members."""
        full = tuple(m.worker for m in self.routes[vnode].members if m.role is Role.FULL)
        return (self.owner_worker(vnode), *full)

    def voters(self) -> frozenset[WorkerId]:
        """The workers that decide a batch of this epoch: all must seal (design, section 4)."""
        owners = frozenset(self.instances.values())
        full = (m.worker for route in self.routes for m in route.members if m.role is Role.FULL)
        return owners | frozenset(full)

    def listeners(self) -> frozenset[WorkerId]:
        """The workers that get slices and records of this epoch: voters and joining members."""
        joining = (m.worker for route in self.routes for m in route.members)
        return self.voters() | frozenset(joining)

    def held_by(self, worker: WorkerId) -> tuple[Vnode, ...]:
        """The vnodes for which a worker stands: those it owns, and those it is a member of."""
        return tuple(Vnode(v) for v in self.vnodes() if worker in self.holders(Vnode(v)))

    def fully_held_by(self, worker: WorkerId) -> tuple[Vnode, ...]:
        """The vnodes of which a worker must have everything: owned, or as a full member."""
        held = self.held_by(worker)
        return tuple(vnode for vnode in held if self.role_of(worker, vnode) is Role.FULL)

    def owned_by(self, instance: InstanceId) -> tuple[Vnode, ...]:
        """The vnodes of an instance."""
        return tuple(Vnode(v) for v in self.vnodes() if self.routes[v].owner == instance)

    def role_of(self, worker: WorkerId, vnode: Vnode) -> Role | None:
        """A worker's role for a vnode (the owner's worker is full), or None."""
        if self.owner_worker(vnode) == worker:
            return Role.FULL
        for member in self.routes[vnode].members:
            if member.worker == worker:
                return member.role
        return None


def epoch_fault(epoch: Epoch) -> str | None:
    """What breaks invariant 1, 2 or 4 in an epoch, or None."""
    present = sorted(epoch.lost & epoch.workers.keys())
    if present:
        return f"worker {present[0]} is given up as lost, and has a part in it"
    running = sorted(epoch.failed & epoch.instances.keys())
    if running:
        return f"instance {running[0]} is given up as failed, and has a part in it"
    for instance, worker in epoch.instances.items():
        if worker not in epoch.workers:
            return f"instance {instance} is on worker {worker}, which the epoch does not name"
    for vnode, route in enumerate(epoch.routes):
        if route.owner not in epoch.instances:
            return f"vnode {vnode} is owned by {route.owner}, which is no instance of the epoch"
        chain = [epoch.instances[route.owner], *(member.worker for member in route.members)]
        if len(set(chain)) != len(chain):
            return f"vnode {vnode} has a worker twice in its chain: {', '.join(chain)}"
        unknown = [worker for worker in chain if worker not in epoch.workers]
        if unknown:
            return f"vnode {vnode} is held by {unknown[0]}, which the epoch does not name"
    return None


def successor_fault(old: Epoch, new: Epoch) -> str | None:
    """Why `new` may not follow `old` while every worker lives (invariant 3), or None."""
    if new.number != old.number + 1:
        return f"epoch {new.number} does not follow epoch {old.number}"
    if len(new.routes) != len(old.routes):
        return f"the number of vnodes changes from {len(old.routes)} to {len(new.routes)}"
    for v in old.vnodes():
        vnode = Vnode(v)
        head = new.owner_worker(vnode)
        if old.role_of(head, vnode) is not Role.FULL and vnode not in new.forfeited:
            return f"vnode {v} moves to worker {head}, which has no full copy in epoch {old.number}"
        for member in new.routes[v].members:
            if member.role is Role.FULL and old.role_of(member.worker, vnode) is None:
                return f"vnode {v}: worker {member.worker} is full without having joined"
    strangers = sorted(new.voters() - old.listeners())
    if strangers:
        return f"worker {strangers[0]} is to vote, but holds nothing in epoch {old.number}"
    return None


def _next(
    epoch: Epoch,
    *,
    routes: tuple[Route, ...],
    workers: Mapping[WorkerId, str] | None = None,
    instances: Mapping[InstanceId, WorkerId] | None = None,
) -> Epoch:
    """The epoch of the next number, which gives up nobody."""
    return Epoch(
        number=epoch.number + 1,
        workers=epoch.workers if workers is None else workers,
        instances=epoch.instances if instances is None else instances,
        routes=routes,
    )


def unchanged(epoch: Epoch) -> Epoch:
    """The next epoch, in which nothing changes: it takes the number from another proposal."""
    return _next(epoch, routes=epoch.routes)


def with_members_joining(
    epoch: Epoch, joins: Mapping[Vnode, WorkerId], workers: Mapping[WorkerId, str]
) -> Epoch:
    """The next epoch, in which each vnode's new worker joins its chain at the tail.

    `workers` gives addresses of workers that the epoch may not name yet. A worker that is in the
    chain already stays as it is.
    """
    routes = list(epoch.routes)
    for vnode, worker in joins.items():
        if worker not in epoch.holders(vnode):
            joined = Member(worker=worker, role=Role.JOINING)
            routes[vnode] = replace(routes[vnode], members=(*routes[vnode].members, joined))
    named = {**epoch.workers, **{w: workers[w] for w in joins.values() if w in workers}}
    return _next(epoch, workers=named, routes=tuple(routes))


def with_members_full(epoch: Epoch, fulls: Mapping[Vnode, WorkerId]) -> Epoch:
    """The next epoch, in which each vnode's named joining member counts as full."""
    routes = list(epoch.routes)
    for vnode, worker in fulls.items():
        members = tuple(
            replace(member, role=Role.FULL) if member.worker == worker else member
            for member in routes[vnode].members
        )
        routes[vnode] = replace(routes[vnode], members=members)
    return _next(epoch, routes=tuple(routes))


def with_moves(
    epoch: Epoch,
    moves: Mapping[Vnode, InstanceId],
    instances: Mapping[InstanceId, WorkerId],
) -> Epoch:
    """The next epoch, in which each moved vnode has its target as owner.

    The target's worker becomes the chain's head; the origin's worker, if it is another, becomes its
    first full member and stays so until redundancy is lowered. `instances` are the instances of
    the new epoch: those started for the move are in it, those to be retired are not.
    """
    routes = list(epoch.routes)
    for vnode, target in moves.items():
        head, origin = instances[target], epoch.owner_worker(vnode)
        rest = tuple(member for member in routes[vnode].members if member.worker != head)
        if head != origin:
            rest = (Member(worker=origin, role=Role.FULL), *rest)
        routes[vnode] = Route(owner=target, members=rest)
    return _next(epoch, instances=dict(instances), routes=tuple(routes))


def with_chains_cut(epoch: Epoch, drops: Mapping[Vnode, frozenset[WorkerId]]) -> Epoch:
    """The next epoch, in which the named members have left their chains.

    Workers that hold nothing and run no instance any more leave the epoch with them.
    """
    routes = list(epoch.routes)
    for vnode, gone in drops.items():
        members = tuple(m for m in routes[vnode].members if m.worker not in gone)
        routes[vnode] = replace(routes[vnode], members=members)
    return _next(epoch, workers=_used(epoch.workers, epoch.instances, routes), routes=tuple(routes))


def with_cut(
    epoch: Epoch,
    lost: frozenset[WorkerId],
    heirs: Mapping[Vnode, InstanceId],
    placed: Mapping[InstanceId, WorkerId],
    failed: frozenset[InstanceId] = frozenset(),
    forfeited: frozenset[Vnode] = frozenset(),
) -> Epoch:
    """The next epoch, without the lost workers and the failed instances: their vnodes have heirs.

    `heirs` names an instance for each of these vnodes, and `placed` the workers of all instances of
    the new epoch. The worker of a failed instance becomes the first member, since its copy is as
    good as before. Raises KeyError for a vnode without an heir.
    """
    routes = []
    for v in epoch.vnodes():
        vnode, route = Vnode(v), epoch.routes[v]
        origin = epoch.owner_worker(vnode)
        orphaned = origin in lost or route.owner in failed
        owner = heirs[vnode] if orphaned else route.owner
        members = tuple(m for m in route.members if m.worker not in {*lost, placed[owner]})
        if orphaned and origin not in {*lost, placed[owner]}:
            members = (Member(worker=origin, role=Role.FULL), *members)
        routes.append(Route(owner=owner, members=members))
    workers = _used(epoch.workers, placed, routes)
    after = _next(epoch, workers=workers, instances=dict(placed), routes=tuple(routes))
    return replace(after, lost=lost, failed=failed, forfeited=forfeited)


def _used(
    workers: Mapping[WorkerId, str],
    instances: Mapping[InstanceId, WorkerId],
    routes: Iterable[Route],
) -> dict[WorkerId, str]:
    """The workers that run an instance or hold a vnode."""
    used = set(instances.values()) | {m.worker for route in routes for m in route.members}
    return {worker: at for worker, at in workers.items() if worker in used}
