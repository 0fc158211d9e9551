"""Where instances and vnodes go: pure plans, the same whatever order workers registered in.

Rhino, section 3.5.2: rescaling is a handover of some vnodes to instances that were just started, on
a worker in use (vertical) or on another (horizontal).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf

from rhinoctl.ids import InstanceId, Vnode, WorkerId
from rhinoctl.protocol.epochs import Epoch, Role, Route


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """What the inventory says that a worker can take, and what was measured. None: not known, not
    bounded. `instances` are those of all jobs together, `bandwidth` is in bytes a second."""

    instances: int | None = None
    rack: str | None = None
    bandwidth: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The instances of a job and their workers before and after a change, and the vnodes that move
    for it. A change may move none: an instance that owns nothing retires so."""

    before: Mapping[InstanceId, WorkerId]
    instances: Mapping[InstanceId, WorkerId]
    moves: Mapping[Vnode, InstanceId]

    @property
    def empty(self) -> bool:
        """Whether the job is as the plan wants it already."""
        return not self.moves and self.instances == self.before


def instance_order(instance: InstanceId) -> tuple[int, str]:
    """i2 before i10."""
    digits = instance.lstrip("i")
    return (int(digits) if digits.isdigit() else 1 << 30, instance)


Slots = Mapping[WorkerId, int]
"""How many instances of a job a worker may have; one that is not named, any number."""


def first_epoch(
    *,
    vnodes: int,
    instances: int,
    workers: Mapping[WorkerId, str],
    slots: Slots | None = None,
) -> Epoch:
    """Epoch 1: instances in turn over the workers, vnodes in even contiguous ranges over them.

    Raises ValueError for more instances than vnodes, fewer than one, or no workers.
    """
    if not 1 <= instances <= vnodes or not workers:
        raise ValueError(f"{instances} instances for {vnodes} vnodes on {len(workers)} workers")
    placed: dict[InstanceId, WorkerId] = {}
    for number in range(instances):
        placed[InstanceId(f"i{number}")] = _emptiest(placed, sorted(workers), slots)
    routes = tuple(Route(owner=InstanceId(f"i{v * instances // vnodes}")) for v in range(vnodes))
    used = {worker: workers[worker] for worker in sorted(set(placed.values()))}
    return Epoch(number=1, workers=used, instances=placed, routes=routes)


def plan_rescale(
    epoch: Epoch, instances: int, workers: Sequence[WorkerId], slots: Slots | None = None
) -> Plan:
    """A plan for another number of instances, with the least movement that balances vnodes.

    New instances go to the workers with the fewest, of those with a slot left if there are any;
    retired ones are the newest on the workers with the most. Raises ValueError for fewer than one
    instance or more than vnodes.
    """
    if not 1 <= instances <= len(epoch.routes) or not workers:
        raise ValueError(f"{instances} instances for {len(epoch.routes)} vnodes")
    placed = dict(epoch.instances)
    while len(placed) > instances:
        load = _instances_per_worker(placed, workers)
        gone = max(placed, key=lambda i: (load[placed[i]], instance_order(i)))
        del placed[gone]
    number = 0
    while len(placed) < instances:
        fresh = InstanceId(f"i{number}")
        if fresh not in epoch.instances and fresh not in placed:
            placed[fresh] = _emptiest(placed, workers, slots)
        number += 1
    return Plan(before=epoch.instances, instances=placed, moves=balancing_moves(epoch, placed))


def _emptiest(
    placed: Mapping[InstanceId, WorkerId], workers: Sequence[WorkerId], slots: Slots | None
) -> WorkerId:
    """Where the next instance goes."""
    load, bound = _instances_per_worker(placed, workers), slots or {}
    return min(workers, key=lambda w: (load[w] >= bound.get(w, inf), load[w], w))


def _instances_per_worker(
    placed: Mapping[InstanceId, WorkerId], workers: Sequence[WorkerId]
) -> dict[WorkerId, int]:
    load = dict.fromkeys([*workers, *placed.values()], 0)
    for worker in placed.values():
        load[worker] += 1
    return load


def balancing_moves(epoch: Epoch, placed: Mapping[InstanceId, WorkerId]) -> dict[Vnode, InstanceId]:
    """The moves that give each instance its even share, moving no vnode that may stay.

    A vnode goes, of the instances that still lack some, to one whose worker has a full copy of it,
    else to the one that lacks most.
    """
    held = {i: list(epoch.owned_by(i)) for i in placed}
    homeless = [Vnode(v) for v in epoch.vnodes() if epoch.routes[v].owner not in placed]
    small, extra = divmod(len(epoch.routes), len(placed))
    by_load = sorted(placed, key=lambda i: (-len(held[i]), instance_order(i)))
    quota = {i: small + (1 if n < extra else 0) for n, i in enumerate(by_load)}
    for instance in by_load:
        while len(held[instance]) > quota[instance]:
            homeless.append(held[instance].pop())
    lack = {i: quota[i] - len(held[i]) for i in placed}
    moves: dict[Vnode, InstanceId] = {}
    for vnode in sorted(homeless):
        open_to = sorted((i for i in placed if lack[i] > 0), key=instance_order)
        target = max(
            open_to,
            key=lambda i: (epoch.role_of(placed[i], vnode) is Role.FULL, lack[i]),
        )
        lack[target] -= 1
        moves[vnode] = target
    return moves


def plan_switchover(
    epoch: Epoch,
    origins: frozenset[InstanceId],
    workers: Sequence[WorkerId],
    *,
    to: str | None = None,
    retire: bool = False,
    behind: Mapping[tuple[WorkerId, Vnode], int] | None = None,
) -> Plan | None:
    """A plan in which some instances own nothing any more (and, with `retire`, are no more).

    A vnode goes to a worker of `workers` (or to the worker or instance `to`) on which no origin is:
    to a full member that is behind the least (one that has told nothing comes last), else to any;
    then to the instance that owns the
    fewest. A worker without an instance of the job gets one. None if there is nowhere to go.
    """
    left = {epoch.instances[i] for i in origins}
    named = epoch.instances.get(InstanceId(to or ""))
    allowed = [w for w in workers if (w not in left and to in (None, w)) or w == named]
    placed = {i: w for i, w in epoch.instances.items() if i not in origins or not retire}
    owned = {i: len(epoch.owned_by(i)) for i in placed if i not in origins}
    lag, moves = behind or {}, dict[Vnode, InstanceId]()
    if not allowed or named in left:
        return None
    for v in epoch.vnodes():
        vnode = Vnode(v)
        if epoch.routes[v].owner not in origins:
            continue

        def cost(worker: WorkerId, vnode: Vnode = vnode) -> tuple[bool, float, int, WorkerId]:
            full = epoch.role_of(worker, vnode) is Role.FULL
            here = [owned[i] for i in owned if placed[i] == worker]
            return (not full, lag.get((worker, vnode), inf), min(here, default=0), worker)

        worker = min(allowed, key=cost)
        here = [i for i in owned if placed[i] == worker and (worker != named or i == to)]
        if not here:
            fresh = fresh_instance({*epoch.instances, *placed})
            placed[fresh], owned[fresh] = worker, 0
            here = [fresh]
        moves[vnode] = min(here, key=lambda i: (owned[i], instance_order(i)))
        owned[moves[vnode]] += 1
    return Plan(before=epoch.instances, instances=placed, moves=moves)


def fresh_instance(taken: set[InstanceId]) -> InstanceId:
    """The first name that no instance has."""
    number = 0
    while InstanceId(f"i{number}") in taken:
        number += 1
    return InstanceId(f"i{number}")
