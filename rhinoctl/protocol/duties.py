"""Who owes the output of a batch: its owners, and the heirs of those that were given up since.

Until Spark has committed a batch, its output may be asked for again (design, section 4, step 5).
Whoever owned a vnode when the batch was staged owes the vnode's part, wherever the vnode has gone
since. If that instance is given up by a cut, the vnode's owner in the cut's epoch makes the part
anew, from a checkpoint before the batch and from the log.

Each record says what is owed after it, so that a worker that lacks the cut that gave it up, or the
one that made it an heir, knows it all the same.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from rhinoctl.ids import InstanceId, Vnode, WorkerId
from rhinoctl.protocol.epochs import Epoch


@dataclass(frozen=True, slots=True, kw_only=True)
class Duty:
    """One part of a batch's output. `part` is 0 for what an instance owes as the owner that it was,
    else the number of the epoch that made it an heir."""

    instance: InstanceId
    worker: WorkerId
    part: int
    vnodes: frozenset[Vnode]


def staged_duties(staged: Epoch) -> tuple[Duty, ...]:
    """Who owes the output of a batch that was staged in an epoch: the owners. Each vnode is in one
    of the parts."""
    return _grouped({Vnode(v): _owner(staged, Vnode(v), 0) for v in staged.vnodes()})


def duties_after(owed: Iterable[Duty], change: Epoch) -> tuple[Duty, ...]:
    """What is owed once an epoch holds: what it gives up goes to its heirs. Nobody owes the part of
    vnodes that it forfeits."""
    by_vnode: dict[Vnode, _Key] = {}
    for duty in owed:
        key = (duty.instance, duty.worker, duty.part)
        given_up = duty.worker in change.lost or duty.instance in change.failed
        for vnode in duty.vnodes - change.forfeited:
            by_vnode[vnode] = _owner(change, vnode, change.number) if given_up else key
    return _grouped(by_vnode)


_Key = tuple[InstanceId, WorkerId, int]
"""Instance, worker and part of a duty."""


def _owner(epoch: Epoch, vnode: Vnode, part: int) -> _Key:
    return (epoch.routes[vnode].owner, epoch.owner_worker(vnode), part)


def _grouped(by_vnode: Mapping[Vnode, _Key]) -> tuple[Duty, ...]:
    parts: dict[_Key, set[Vnode]] = {}
    for vnode, key in by_vnode.items():
        parts.setdefault(key, set()).add(vnode)
    return tuple(
        Duty(instance=instance, worker=worker, part=part, vnodes=frozenset(vnodes))
        for (instance, worker, part), vnodes in sorted(parts.items())
    )
