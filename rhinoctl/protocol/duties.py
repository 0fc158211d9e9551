"""Who owes the output of a batch: its owners, and the heirs of those that were given up since.

Until Spark has committed a batch, its output may be asked for again (design, section 4, step 5).
Whoever owned a vnode when the batch was staged owes the vnode's part, wherever the vnode has gone
since. If that instance is given up by a cut, the vnode's owner in the cut's epoch makes the part
anew, from a checkpoint before the batch and from the log.

A worker that was given up is not told so by its log: it lacks the record. If it is back before the
next batch, the gap in its log tells (`own_duties`).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from rhinoctl.ids import InstanceId, Vnode, WorkerId
from rhinoctl.protocol.epochs import Epoch
from rhinoctl.protocol.records import DecisionRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Duty:
    """One part of a batch's output. `part` is 0 for what an instance owes as the owner that it was,
    else the number of the epoch that made it an heir."""

    instance: InstanceId
    worker: WorkerId
    part: int
    vnodes: frozenset[Vnode]


def duties(staged: Epoch, cuts: Iterable[Epoch]) -> tuple[Duty, ...]:
    """Every part of a batch's output, by instance and part: each vnode is in one of them.

    `staged` is the epoch in which the batch was staged, `cuts` are the epochs after it that give
    something up, in order. Nobody owes the part of vnodes that were forfeited.
    """
    owed = {
        Vnode(v): (staged.routes[v].owner, staged.owner_worker(Vnode(v)), 0)
        for v in staged.vnodes()
    }
    for cut in cuts:
        for vnode in cut.forfeited:
            owed.pop(vnode, None)
        for vnode, (instance, worker, _) in owed.items():
            if worker in cut.lost or instance in cut.failed:
                owed[vnode] = (cut.routes[vnode].owner, cut.owner_worker(vnode), cut.number)
    parts: dict[tuple[InstanceId, WorkerId, int], set[Vnode]] = {}
    for vnode, key in owed.items():
        parts.setdefault(key, set()).add(vnode)
    return tuple(
        Duty(instance=instance, worker=worker, part=part, vnodes=frozenset(vnodes))
        for (instance, worker, part), vnodes in sorted(parts.items())
    )


def own_duties(
    worker: WorkerId, staged: Epoch, records: Sequence[DecisionRecord]
) -> tuple[Duty, ...]:
    """The duties of one worker by its own log: `records` are the batch's and those of the epochs
    after it, in order, as far as they are in that log.

    No record is decided without a voter, unless it gives the voter up. So one that lacks the record
    after one that has made it a voter owes nothing of what it owed before.
    """
    least = 0
    for before, after in pairwise(records):
        missed = after.position.step > before.position.step + 1
        if missed and worker in before.next_epoch.voters():
            least = after.next_epoch.number
    owed = duties(staged, [record.next_epoch for record in records[1:]])
    return tuple(duty for duty in owed if duty.worker == worker and duty.part >= least)
