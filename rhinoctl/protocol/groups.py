"""Replica groups: which workers shall hold copies of each vnode (Rhino, section 4.2.2, phase 1).

The paper leaves the placement open ("e.g., bin packing"); here it is first-fit decreasing, with
one step of repair. A plan is a value: the same facts give the same plan, whatever order workers
registered in. How chains get there, epoch by epoch, is `rhinoctl.protocol.chains`.

Hard rules: the members of a vnode are distinct hosts, never the owner's worker, at most as many as
asked for, and no member is placed or kept where a host's disk or slots do not allow it. What a
worker owns counts as used; primary copies are not moved by this planner.

Goals, the earlier before the later:

1. as many members as asked for;
2. the owner's worker and the members in different racks; workers of unknown rack count as one rack;
3. a present member stays, a full one rather than a joining one;
4. even load: bytes by disk and bandwidth, then the number of copies, then the name.

The last one only guides where copies go that must go somewhere. An imbalance that has come about,
as when a new and empty worker joins, is not mended: that moves state for no safety.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from rhinoctl.ids import Vnode, WorkerId
from rhinoctl.protocol.epochs import Epoch, Role

_ROUNDS_MAX = 8
"""How often a plan is looked at again that leaves copies where there is no room for them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """What a worker can hold, primary and secondary copies together. None: unknown, not limited.

    `bandwidth` is relative to that of the other hosts.
    """

    disk_bytes: int | None = None
    slots: int | None = None
    bandwidth: float | None = None
    rack: str | None = None

    def __post_init__(self) -> None:
        if (self.disk_bytes or 0) < 0 or (self.slots or 0) < 0:
            raise ValueError(f"a host cannot hold {self.disk_bytes} bytes or {self.slots} copies")
        if self.bandwidth is not None and not self.bandwidth > 0:
            raise ValueError(f"a host has some bandwidth, not {self.bandwidth}")


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupPlan:
    """The members wanted behind each owner's worker, in chain order.

    `lacking` has the vnodes that get fewer than asked for (degraded) and how many are missing;
    `reasons` says why, a sentence each.
    """

    members: Mapping[Vnode, tuple[WorkerId, ...]]
    lacking: Mapping[Vnode, int]
    reasons: tuple[str, ...]


Roles = Mapping[WorkerId, Role]
"""The members that a vnode has, in chain order, and what they are."""


def plan_groups(
    epoch: Epoch,
    replication: int,
    hosts: Mapping[WorkerId, Host],
    sizes: Mapping[Vnode, int],
) -> GroupPlan:
    """The replica groups for an epoch: `replication` members for each vnode, on `hosts`.

    A member whose worker is not in `hosts` is replaced. `sizes` are bytes per vnode, 0 where not
    said. Once the chains are as planned, the same facts give the same plan.

    A copy that is over capacity and has no other place is not in the plan, but stays in its chain
    (see `chains.next_epoch`). The plan takes that into account, or the next one would choose among
    such copies anew. The way to a plan is not bounded as the plan is: who is to leave a host that
    is full leaves only after the others have joined.
    """
    chains = [{m.worker: m.role for m in route.members} for route in epoch.routes]
    first = packing = _packed(epoch, replication, hosts, sizes, chains)
    for _ in range(_ROUNDS_MAX):
        after = [packing.carried_out(vnode, chain) for vnode, chain in enumerate(chains)]
        if not any(w in hosts for v, chain in enumerate(chains) for w in packing.left(v, chain)):
            break
        again = _packed(epoch, replication, hosts, sizes, after)
        if list(map(set, again.groups)) == list(map(set, packing.groups)):
            break
        packing = again
    members = {Vnode(v): first.in_order(v, group) for v, group in enumerate(packing.groups)}
    lacking = {v: replication - len(of) for v, of in members.items() if len(of) < replication}
    reasons = tuple(packing.reasons()) if lacking else ()
    return GroupPlan(members=members, lacking=lacking, reasons=reasons)


def _packed(
    epoch: Epoch,
    replication: int,
    hosts: Mapping[WorkerId, Host],
    sizes: Mapping[Vnode, int],
    chains: Sequence[Roles],
) -> "_Packing":
    disks = [host.disk_bytes for host in hosts.values() if host.disk_bytes is not None]
    bandwidths = [host.bandwidth for host in hosts.values() if host.bandwidth is not None]
    disk, bandwidth = max(disks, default=1), max(bandwidths, default=1.0)
    packing = _Packing(
        replication=replication,
        hosts={worker: hosts[worker] for worker in sorted(hosts)},
        owners=[epoch.owner_worker(Vnode(v)) for v in epoch.vnodes()],
        sizes=[sizes.get(Vnode(v), 0) for v in epoch.vnodes()],
        present=[{w: role for w, role in chain.items() if w in hosts} for chain in chains],
        groups=[[] for _ in epoch.vnodes()],
        weights={
            worker: max(1, disk if host.disk_bytes is None else host.disk_bytes)
            * (bandwidth if host.bandwidth is None else host.bandwidth)
            for worker, host in hosts.items()
        },
    )
    for vnode, owner in enumerate(packing.owners):
        if owner in hosts:
            packing.count(vnode, owner, 1)
    packing.keep()
    while packing.place() or packing.repair() or packing.part_racks():
        pass
    return packing


@dataclass(slots=True, kw_only=True)
class _Packing:
    """Hosts that are being filled. Each step but `keep` makes the whole better by goal 1 or 2, so
    that they end; and looks at all there is, so that nothing is found on a second look."""

    replication: int
    hosts: Mapping[WorkerId, Host]
    owners: Sequence[WorkerId]
    sizes: Sequence[int]
    present: Sequence[Roles]
    groups: Sequence[list[WorkerId]]
    weights: Mapping[WorkerId, float]
    bytes_used: dict[WorkerId, int] = field(default_factory=dict)
    copies: dict[WorkerId, int] = field(default_factory=dict)
    held: dict[WorkerId, set[int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.bytes_used = dict.fromkeys(self.hosts, 0)
        self.copies = dict.fromkeys(self.hosts, 0)
        self.held = {worker: set() for worker in self.hosts}

    # --- room ------------------------------------------------------------------------------------

    def count(self, vnode: int, worker: WorkerId, copies: int) -> None:
        """A worker holds a copy of the vnode more (1) or less (-1)."""
        self.copies[worker] += copies
        self.bytes_used[worker] += copies * self.sizes[vnode]

    def add(self, vnode: int, worker: WorkerId) -> None:
        self.groups[vnode].append(worker)
        self.held[worker].add(vnode)
        self.count(vnode, worker, 1)

    def remove(self, vnode: int, worker: WorkerId) -> None:
        self.groups[vnode].remove(worker)
        self.held[worker].remove(vnode)
        self.count(vnode, worker, -1)

    def has_room(self, vnode: int, worker: WorkerId, *, instead_of: int | None = None) -> bool:
        """Whether a copy fits on a host, in the place of another one if that is given."""
        host = self.hosts[worker]
        copies, size = self.copies[worker] + 1, self.bytes_used[worker] + self.sizes[vnode]
        if instead_of is not None:
            copies, size = copies - 1, size - self.sizes[instead_of]
        return (host.slots is None or copies <= host.slots) and (
            host.disk_bytes is None or size <= host.disk_bytes
        )

    def is_free(self, vnode: int, worker: WorkerId) -> bool:
        """Whether a host has no copy of the vnode."""
        return worker != self.owners[vnode] and worker not in self.groups[vnode]

    # --- choice ----------------------------------------------------------------------------------

    def rack(self, worker: WorkerId) -> str | None:
        return self.hosts[worker].rack if worker in self.hosts else None

    def racks(self, vnode: int) -> list[str | None]:
        """The racks that have a copy, the owner's first; one that has two is there twice."""
        return [self.rack(worker) for worker in (self.owners[vnode], *self.groups[vnode])]

    def stay(self, vnode: int, worker: WorkerId) -> int:
        """0 for a full member, 1 for a joining one, 2 for a worker that is none."""
        role = self.present[vnode].get(worker)
        return 2 if role is None else 1 if role is Role.JOINING else 0

    def best(self, vnode: int, among: Sequence[WorkerId]) -> WorkerId | None:
        """The host with room for another copy that is best by goals 2 to 4, or None."""
        racks = self.racks(vnode)

        def rank(worker: WorkerId) -> tuple[bool, int, float, int, WorkerId]:
            load = (self.bytes_used[worker] + self.sizes[vnode]) / self.weights[worker]
            shared = self.hosts[worker].rack in racks
            return (shared, self.stay(vnode, worker), load, self.copies[worker], worker)

        fit = [w for w in among if self.is_free(vnode, w) and self.has_room(vnode, w)]
        return min(fit, key=rank, default=None)

    def short(self, vnodes: Sequence[int]) -> Iterator[int]:
        """Those of the vnodes that want more members, the larger first, and none gets its second
        before each has had its first. To be filled while it runs."""
        by_size = sorted(vnodes, key=lambda v: (-self.sizes[v], v))
        for level in range(self.replication):
            yield from (v for v in by_size if len(self.groups[v]) == level)

    def order(self, vnode: int, worker: WorkerId) -> tuple[int, int]:
        """A worker's place in the chain: behind full members and joining ones if it is none."""
        there = list(self.present[vnode])
        return (self.stay(vnode, worker), there.index(worker) if worker in there else 0)

    def in_order(self, vnode: int, group: Sequence[WorkerId]) -> tuple[WorkerId, ...]:
        """A chain that keeps the order which it has."""
        return tuple(sorted(group, key=lambda worker: self.order(vnode, worker)))

    # --- steps -----------------------------------------------------------------------------------

    def keep(self) -> None:
        """Start from the present members. Where a host has too many, those leave that have members
        to spare: so a copy that has been placed elsewhere, and is not full yet, is not forgotten.
        """
        vnodes = range(len(self.owners))
        spare = [max(0, len(present) - self.replication) for present in self.present]
        for many in sorted(set(spare)):
            for vnode in self.short([v for v in vnodes if spare[v] == many]):
                worker = self.best(vnode, list(self.present[vnode]))
                if worker is not None:
                    self.add(vnode, worker)

    def place(self) -> bool:
        """Give vnodes the members that they lack, as far as hosts have room."""
        placed, hosts = False, list(self.hosts)
        for vnode in self.short(range(len(self.owners))):
            worker = self.best(vnode, hosts)
            if worker is not None:
                self.add(vnode, worker)
                placed = True
        return placed

    def repair(self) -> bool:
        """Give one vnode a member that it lacks, in the place of a copy that can go elsewhere."""
        movable: dict[WorkerId, list[int]] = {}
        for vnode in self.short(range(len(self.owners))):
            for worker in self.hosts:
                if not self.is_free(vnode, worker):
                    continue
                if worker not in movable:
                    movable[worker] = self.movable(worker)
                for other in movable[worker]:
                    if self.has_room(vnode, worker, instead_of=other):
                        self.displace(other, worker)
                        self.add(vnode, worker)
                        return True
        return False

    def movable(self, worker: WorkerId) -> list[int]:
        """The copies on a host that another has room for: first those that are not there yet."""
        some = min((self.sizes[v] for v in self.held[worker]), default=0)
        room = [w for w in self.hosts if self._has_some_room(w, some)]
        return sorted(
            (
                vnode
                for vnode in self.held[worker]
                if any(self.is_free(vnode, w) and self.has_room(vnode, w) for w in room)
            ),
            key=lambda vnode: (-self.stay(vnode, worker), self.sizes[vnode], vnode),
        )

    def _has_some_room(self, worker: WorkerId, size: int) -> bool:
        host = self.hosts[worker]
        return (host.slots is None or self.copies[worker] < host.slots) and (
            host.disk_bytes is None or self.bytes_used[worker] + size <= host.disk_bytes
        )

    def displace(self, vnode: int, worker: WorkerId) -> None:
        """Move a copy from a host to the best other one; there is one."""
        target = self.best(vnode, list(self.hosts))
        assert target is not None
        self.remove(vnode, worker)
        self.add(vnode, target)

    def part_racks(self) -> bool:
        """Move members that share a rack with the owner's worker or another to racks without."""
        parted = False
        by_rack: dict[str | None, list[WorkerId]] = {}
        for worker in self.hosts:
            by_rack.setdefault(self.rack(worker), []).append(worker)
        for vnode, group in enumerate(self.groups):
            while len(set(racks := self.racks(vnode))) < len(racks):
                others = [w for r, ws in by_rack.items() if r not in racks for w in ws]
                target = self.best(vnode, others)
                if target is None:
                    break
                sharing = [w for w in group if racks.count(self.rack(w)) > 1]
                gone = max(sharing, key=lambda w: (*self.order(vnode, w), w))
                self.remove(vnode, gone)
                self.add(vnode, target)
                parted = True
        return parted

    # --- outcome ---------------------------------------------------------------------------------

    def left(self, vnode: int, chain: Roles) -> list[WorkerId]:
        """The full members of a chain that are not planned, but stay: one for each that lacks."""
        group = self.groups[vnode]
        others = [w for w, role in chain.items() if role is Role.FULL and w not in group]
        return others[: self.replication - len(group)]

    def carried_out(self, vnode: int, chain: Roles) -> dict[WorkerId, Role]:
        """The chain that `chains.next_epoch` ends with."""
        return dict.fromkeys([*self.groups[vnode], *self.left(vnode, chain)], Role.FULL)

    def reasons(self) -> Iterator[str]:
        """Why members are lacking."""
        wanted = self.replication
        lacking = [v for v, group in enumerate(self.groups) if len(group) < wanted]
        others = {len(self.hosts) - (self.owners[v] in self.hosts) for v in lacking}
        for number in sorted(n for n in others if n < wanted):
            yield f"replication {wanted} needs {wanted + 1} workers, there are {number + 1}"
        for worker in self.hosts:
            refused = sum(self.is_free(vnode, worker) for vnode in lacking)
            if refused:
                vnodes = "1 vnode" if refused == 1 else f"{refused} vnodes"
                yield f"worker {worker} has no room for {vnodes}"
