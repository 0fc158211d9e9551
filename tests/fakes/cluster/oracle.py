"""What must hold, and must have come about: the model's independent judge.

It knows the input by (batch, row) and hears of every decision, acknowledgement and output. Nothing
in it is taken from the machines under test but the records that they show.
"""

from collections.abc import Iterable
from copy import copy
from functools import reduce
from typing import TYPE_CHECKING

from rhinoctl.ids import BatchTime, InstanceId, Vnode, WorkerId
from rhinoctl.protocol import batches
from rhinoctl.protocol.duties import Duty, duties_after, staged_duties
from rhinoctl.protocol.epochs import Epoch
from rhinoctl.protocol.records import ORIGIN, DecisionRecord, Position, RecordId
from tests.fakes.cluster.inputs import Workload
from tests.fakes.cluster.invariants import require
from tests.fakes.cluster.workers import Applied, ModelWorker

if TYPE_CHECKING:
    from tests.fakes.cluster.world import World


def duties(staged: Epoch, cuts: Iterable[Epoch]) -> tuple[Duty, ...]:
    """What is owed of the output of a batch that was staged in an epoch, after some cuts."""
    return reduce(duties_after, cuts, staged_duties(staged))


class Oracle:
    """The history of one world. `watchful` also checks what is not yet an outcome: that what is
    taken as decided is durable on every voter."""

    def __init__(self, workload: Workload, *, watchful: bool) -> None:
        self.workload = workload
        self.watchful = watchful
        self.decided: dict[Position, RecordId] = {}
        self.history: tuple[DecisionRecord, ...] = ()
        self.acknowledged: dict[tuple[Vnode, BatchTime], tuple[InstanceId, WorkerId]] = {}
        self.delivered: dict[int, int] = {}

    def clone(self) -> "Oracle":
        """The same history, to go another way from here."""
        twin = copy(self)
        twin.decided, twin.acknowledged = dict(self.decided), dict(self.acknowledged)
        twin.delivered = dict(self.delivered)
        return twin

    def epoch(self) -> Epoch | None:
        """The epoch that holds after the last decided record."""
        return self.history[-1].next_epoch if self.history else None

    def learn_decided(
        self,
        workers: dict[WorkerId, ModelWorker],
        record: DecisionRecord,
        who: str,
        lost: frozenset[WorkerId] = frozenset(),
    ) -> None:
        """Somebody acts on a record as decided: it must be on every voter that is not given up as
        lost, and the only one."""
        known = self.decided.get(record.position)
        if known is not None:
            require(known == record.id, 2, f"{record.id} and {known} are decided ({who})")
            return
        if self.watchful:
            lacking = [
                w for w in record.voters if w not in lost and not workers[w].holds(record.id)
            ]
            require(not lacking, 4, f"{who} takes {record.id} as decided without {lacking}")
        after = self.history[-1].id if self.history else ORIGIN
        require(record.after == after, 2, f"{record.id} does not follow {after} ({who})")
        before = self.epoch()
        named = record.next_epoch.voters() | (before.voters() if before is not None else set())
        named = named - record.next_epoch.lost
        require(named == set(record.voters), 4, f"{record.id} is voted on by {record.voters}")
        self.decided[record.position] = record.id
        self.history = (*self.history, record)

    def expected(self, vnode: Vnode, through: BatchTime) -> list[Applied]:
        """What decided batches up to a time did to a vnode, as the input says."""
        return [
            Applied(record.time, record.attempt, rows)
            for record in self.history
            if record.is_batch and record.time <= through
            if (rows := self.workload.of_vnode(record.time.batch, vnode))
        ]

    def check_copy(self, worker: ModelWorker, vnode: Vnode, through: BatchTime) -> None:
        """A copy has every decided row of its vnode exactly once, in order, as it was decided."""
        have = [done._replace(rows=tuple(sorted(done.rows))) for done in worker.copy_of(vnode)]
        require(
            have == self.expected(vnode, through),
            2,
            f"{vnode} on {worker.name} at {through}: {have}",
        )

    def acknowledge(
        self,
        world: "World",
        worker: ModelWorker,
        instance: InstanceId,
        vnode: Vnode,
        time: BatchTime,
    ) -> None:
        """An instance says that it has applied a batch to a vnode. One that is given up may have
        said so before its heir, or, not being asked any more, may say so after it."""
        who = (instance, worker.name)
        first = self.acknowledged.get((vnode, time), who)
        if first[1] not in world.given_up and worker.name not in world.given_up:
            require(first == who, 1, f"{first} and {who} acknowledge {vnode} at {time}")
        self.acknowledged[vnode, time] = who
        require(time == worker.applied, 2, f"{worker.name} is not at {time}")
        self.check_copy(worker, vnode, time)

    def deliver_outputs(self, state: batches.BatchState) -> None:
        """The user's function gets the batch: each vnode's output once, by its owner or by an heir.
        A driver that was stopped has the outputs of those that owed them then."""
        batch, epoch = state.task.time, self.staged_in(state.task.time)
        cuts = [
            record.next_epoch
            for record in self.history
            if record.time == batch and record.position.step > 0
        ]
        got = sorted((o.instance, o.part) for o in state.outputs if o.time == batch)
        owed = [
            sorted((d.instance, d.part) for d in duties(epoch, cuts[:known]))
            for known in range(len(cuts) + 1)
        ]
        require(got in owed, 14, f"batch {batch} was put out by {got}, owed by one of {owed}")
        self.delivered[batch.batch] = self.delivered.get(batch.batch, 0) + 1

    def staged_in(self, time: BatchTime) -> Epoch:
        """The epoch under which a decided batch was staged."""
        before = [record for record in self.history if record.position < (*time, 0)]
        return before[-1].next_epoch

    def check_epoch(self, world: "World", epoch: Epoch) -> None:
        """A task that is done has brought its epoch to every worker of it."""
        for name in epoch.voters():
            worker = world.workers[name]
            if worker.up_at <= world.now:
                mine, sealed = worker.state.epoch(), worker.state.sealed
                knows = mine is not None and mine.number >= epoch.number
                recovers = sealed is not None and sealed.next_epoch.number >= epoch.number
                require(knows or recovers, 7, f"{name} lacks epoch {epoch.number}")

    def verify(self, world: "World") -> None:
        """The end: every batch once, every copy whole, one epoch, nothing left over."""
        require(world.committed >= world.scenario.batches - 1, 6, "batches are missing")
        decided = [record.time.batch for record in self.history if record.is_batch]
        require(decided == list(range(world.committed + 1)), 2, f"decided are {decided}")
        require(set(self.delivered) == set(decided), 2, "outputs are missing")
        last, epoch, ids = self.history[-1], self.history[-1].next_epoch, set(self.decided.values())
        for name in epoch.voters():
            worker = world.workers[name]
            for vnode in epoch.fully_held_by(name):
                self.check_copy(worker, vnode, worker.applied)
            left = worker.segments.keys() - ids
            require(not left, 13, f"{name} has kept {left}")
            newest = worker.state.sealed or worker.state.decided
            require(newest is not None and newest.id == last.id, 7, f"{name} lacks {last.id}")
        for goal in world.goals():
            require(goal(epoch) is None, 6, "a handover did not complete")
