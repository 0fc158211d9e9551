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
"""

from collections.abc import Mapping
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
    """One version of a job's routing and chains. `routes[v]` is vnode v's."""

    number: int
    workers: Mapping[WorkerId, str]
    instances: Mapping[InstanceId, WorkerId]
    routes: tuple[Route, ...]

    def __post_init__(self) -> None:
        fault = epoch_fault(self)
        if fault:
            raise ValueError(f"epoch {self.number}: {fault}")

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
    """What breaks invariant 1 or 2 in an epoch, or None."""
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
        if old.role_of(head, vnode) is not Role.FULL:
            return f"vnode {v} moves to worker {head}, which has no full copy in epoch {old.number}"
        for member in new.routes[v].members:
            if member.role is Role.FULL and old.role_of(member.worker, vnode) is None:
                return f"vnode {v}: worker {member.worker} is full without having joined"
    strangers = sorted(new.voters() - old.listeners())
    if strangers:
        return f"worker {strangers[0]} is to vote, but holds nothing in epoch {old.number}"
    return None


def _with_routes(epoch: Epoch, routes: tuple[Route, ...]) -> Epoch:
    return replace(epoch, number=epoch.number + 1, routes=routes)


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
    return replace(epoch, number=epoch.number + 1, workers=named, routes=tuple(routes))


def with_members_full(epoch: Epoch, fulls: Mapping[Vnode, WorkerId]) -> Epoch:
    """The next epoch, in which each vnode's named joining member counts as full."""
    routes = list(epoch.routes)
    for vnode, worker in fulls.items():
        members = tuple(
            replace(member, role=Role.FULL) if member.worker == worker else member
            for member in routes[vnode].members
        )
        routes[vnode] = replace(routes[vnode], members=members)
    return _with_routes(epoch, tuple(routes))


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
    return replace(epoch, number=epoch.number + 1, instances=dict(instances), routes=tuple(routes))


def with_chains_cut(epoch: Epoch, drops: Mapping[Vnode, frozenset[WorkerId]]) -> Epoch:
    """The next epoch, in which the named members have left their chains.

    Workers that hold nothing and run no instance any more leave the epoch with them.
    """
    routes = list(epoch.routes)
    for vnode, gone in drops.items():
        members = tuple(m for m in routes[vnode].members if m.worker not in gone)
        routes[vnode] = replace(routes[vnode], members=members)
    used = set(epoch.instances.values()) | {m.worker for route in routes for m in route.members}
    workers = {worker: at for worker, at in epoch.workers.items() if worker in used}
    return replace(epoch, number=epoch.number + 1, workers=workers, routes=tuple(routes))
