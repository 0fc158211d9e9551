"""Failover: who inherits the vnodes of workers and instances that are given up (design, section 8).

Rhino, section 3.5.3: a handover whose origin has failed, to a worker that has a copy of its state.
SEEP, section 4.2: recovery is scale out to one, or to several at once.

Invariants:

1. Only a full member inherits: its worker has all that was decided.
2. Either every vnode that is given up has an heir, or nothing is proposed; a person may accept
   that some begin empty.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf

from rhinoctl.ids import InstanceId, Vnode, WorkerId
from rhinoctl.protocol.epochs import Epoch, with_cut
from rhinoctl.protocol.placement import fresh_instance, instance_order


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenUp:
    """Workers that are taken for dead, and instances that are, on whichever worker."""

    workers: frozenset[WorkerId] = frozenset()
    instances: frozenset[InstanceId] = frozenset()

    def __bool__(self) -> bool:
        return bool(self.workers or self.instances)

    def __or__(self, other: "GivenUp") -> "GivenUp":
        return GivenUp(
            workers=self.workers | other.workers, instances=self.instances | other.instances
        )

    @property
    def names(self) -> tuple[str, ...]:
        """For people."""
        return (*sorted(self.workers), *sorted(self.instances))

    def within(self, epoch: Epoch) -> "GivenUp":
        """What of it still has a part in an epoch."""
        return GivenUp(
            workers=self.workers & frozenset(epoch.workers),
            instances=self.instances & frozenset(epoch.instances),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What a person may say about the heirs: only these workers or instances, at most so many."""

    to: frozenset[str] = frozenset()
    parallel: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CutPlan:
    """A cut, or why there is none: `stranded` are the vnodes that nobody else has. `heirs` are the
    instances of the vnodes that get another owner."""

    epoch: Epoch | None
    heirs: Mapping[Vnode, InstanceId]
    stranded: tuple[Vnode, ...] = ()


ANYBODY = Choice()


def orphans(epoch: Epoch, gone: GivenUp) -> tuple[Vnode, ...]:
    """The vnodes whose owner is given up."""
    return tuple(
        Vnode(v)
        for v in epoch.vnodes()
        if epoch.owner_worker(Vnode(v)) in gone.workers or epoch.routes[v].owner in gone.instances
    )


def plan_cut(
    epoch: Epoch,
    gone: GivenUp,
    *,
    behind: Mapping[tuple[WorkerId, Vnode], int] | None = None,
    choice: Choice = ANYBODY,
    force: bool = False,
    taken: frozenset[InstanceId] = frozenset(),
) -> CutPlan:
    """The next epoch without what is given up, and the heirs.

    Of several full members a vnode goes to the one that is behind the least (`behind`: batches to
    replay; one that is not named has told nothing, and comes last), then to the one whose instances
    own the fewest vnodes, so that many recover at once. The instance is the one there with the
    fewest vnodes, or a new one, whose name is none of `taken`. With `force` the vnodes that nobody
    else has are forfeited: they begin empty wherever there is an instance.
    """
    not_free = {*taken, *epoch.instances, *gone.instances}  # nor those of an earlier cut
    gone = gone.within(epoch)
    placed = {
        instance: worker
        for instance, worker in epoch.instances.items()
        if worker not in gone.workers and instance not in gone.instances
    }
    homeless = orphans(epoch, gone)
    able = {v: _able(epoch, v, gone, placed, choice.to) for v in homeless}
    stranded = tuple(v for v in homeless if not able[v])
    if force and placed:
        able |= dict.fromkeys(stranded, tuple(sorted(set(placed.values()))))
    elif stranded:
        return CutPlan(epoch=None, heirs={}, stranded=stranded)
    if not gone or not all(able.values()):
        return CutPlan(epoch=None, heirs={}, stranded=stranded)
    if choice.parallel is not None:
        able = _narrowed(able, choice.parallel)
    lag = behind or {}
    owned = {i: len(epoch.owned_by(i)) for i in placed}
    heirs: dict[Vnode, InstanceId] = {}
    for vnode in sorted(homeless, key=lambda v: (len(able[v]), v)):
        worker = min(
            able[vnode],
            key=lambda w: (lag.get((w, vnode), inf), _load(w, placed, owned), w),
        )
        instance = _instance_on(worker, not_free, placed, owned, choice.to)
        owned[instance] += 1
        heirs[vnode] = instance
    cut = with_cut(
        *(epoch, gone.workers, heirs, placed, gone.instances), forfeited=frozenset(stranded)
    )
    return CutPlan(epoch=cut, heirs=heirs, stranded=stranded)


def _able(
    epoch: Epoch,
    vnode: Vnode,
    gone: GivenUp,
    placed: Mapping[InstanceId, WorkerId],
    to: frozenset[str],
) -> tuple[WorkerId, ...]:
    """The workers that may inherit a vnode."""
    wanted = {*to, *(placed[InstanceId(i)] for i in to if i in placed)}
    return tuple(
        worker
        for worker in epoch.full_holders(vnode)
        if worker not in gone.workers and (not to or worker in wanted)
    )


def _narrowed(
    able: Mapping[Vnode, tuple[WorkerId, ...]], parallel: int
) -> dict[Vnode, tuple[WorkerId, ...]]:
    """The choice cut down to about `parallel` workers: those that can take the most, as many more
    as are needed for every vnode to have one."""
    chosen: list[WorkerId] = []
    while True:
        open_to = {v: ws for v, ws in able.items() if not set(ws) & set(chosen)}
        pool = open_to if len(chosen) >= parallel else able
        counts: dict[WorkerId, int] = {}
        for workers in pool.values():
            for worker in workers:
                if worker not in chosen:
                    counts[worker] = counts.get(worker, 0) + 1
        if not counts:
            return {v: tuple(w for w in ws if w in chosen) for v, ws in able.items()}
        chosen.append(min(counts, key=lambda w: (-counts[w], w)))


def _load(
    worker: WorkerId, placed: Mapping[InstanceId, WorkerId], owned: Mapping[InstanceId, int]
) -> float:
    """Vnodes for each instance of a worker; one without an instance will have a new one."""
    here = [owned[i] for i, at in placed.items() if at == worker]
    return sum(here) / len(here) if here else 0.0


def _instance_on(
    worker: WorkerId,
    taken: set[InstanceId],
    placed: dict[InstanceId, WorkerId],
    owned: dict[InstanceId, int],
    to: frozenset[str],
) -> InstanceId:
    """The instance there that owns the fewest vnodes; made if there is none."""
    here = [i for i, at in placed.items() if at == worker]
    named = [i for i in here if i in to]
    if not here:
        fresh = fresh_instance({*placed, *taken})
        placed[fresh], owned[fresh] = worker, 0
        here = [fresh]
    return min(named or here, key=lambda i: (owned[i], instance_order(i)))
