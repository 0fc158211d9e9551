"""What is seen of a cluster from outside, and what must not be seen (design, section 10).

`Watching` sees every message and every step as it happens, and raises `Broken` at once. Of the
product it uses the words (messages, records, epochs), and none of what decides.
"""

import json
import re
from collections.abc import Iterable
from functools import cache

from rhinoctl.ids import BatchTime, InstanceId, Vnode, WorkerId
from rhinoctl.protocol import codec
from rhinoctl.protocol import messages as m
from rhinoctl.protocol.epochs import Epoch
from rhinoctl.protocol.handover import Phase
from rhinoctl.protocol.ports import Address
from rhinoctl.protocol.records import ORIGIN, DecisionRecord, Position, RecordId
from tests.fakes.cluster.invariants import require
from tests.fakes.wire import Request
from tests.sim.cluster import NEIGHBOUR, SimWorld

AT_ONCE = (m.Fence, m.Open, m.Put, m.Resend, m.Seal)
"""Requests of the batch protocol that are answered in the turn in which they are taken."""

_LOST = re.compile(rb'"lost":\s*\[([^\]]*)\]')

Bodies = dict[tuple[int, int, Vnode], bytes]


def _adopts(record: DecisionRecord) -> bool:
    """Whether what a record follows may be decided only with it: a cut adopts what those that are
    left have sealed. Refused, it has decided nothing, and with the lost one back, which has not
    sealed that, another session goes on without it."""
    return record.is_marker and record.next_epoch.is_cut


class Watching:
    """The history of a run as the wire shows it.

    `records` are all that were ever sent to be sealed, `decided` those that somebody has acted on
    as decided, in order, of the world's usual job. One that is not `watchful` only remembers.
    """

    def __init__(self, world: SimWorld, *, watchful: bool = True) -> None:
        self.watchful = watchful
        self.records: dict[RecordId, DecisionRecord] = {}
        self.decided: list[DecisionRecord] = []
        self.reported: dict[WorkerId, int] = {}
        self.released = ORIGIN.position.time
        self._world = world
        self._places: dict[Position, RecordId] = {}
        self._seals: dict[tuple[RecordId, str], DecisionRecord] = {}
        self._sealed: set[tuple[RecordId, WorkerId]] = set()
        self._told: set[tuple[RecordId, WorkerId]] = set()
        self._bodies: dict[tuple[BatchTime, tuple[int, int]], Bodies] = {}
        self._completed: set[str] = set()
        self._images: dict[int, tuple[DecisionRecord, bytes]] = {}

    def was_left_out(self, worker: WorkerId) -> bool:
        """Whether the newest record that it has a vote on was decided without it: it is given up,
        and the cut that says so is on its way."""
        voted = [record.id for record in self.decided if worker in record.voters]
        return bool(voted) and (voted[-1], worker) not in self._sealed

    def heard_by(self, worker: WorkerId) -> list[DecisionRecord]:
        """The decided records that have come to a worker: it has sealed them, or was told of them
        with the next batch. One may be decided without it, though it has a vote on it."""
        heard = self._sealed | self._told
        return [record for record in self.decided if (record.id, worker) in heard]

    # --- what is seen -----------------------------------------------------------------------------

    def sent(self, request: Request) -> None:
        """A request leaves."""
        message = request.message
        if self._is_foreign(message):
            return
        if isinstance(message, m.Put):
            self._note_bodies(message, request.payload)
        elif isinstance(message, m.Seal):
            record = message.record
            worker = self._world.network.host_of(request.to)
            self.records.setdefault(record.id, record)
            self._seals[record.id, worker] = record
            if not _adopts(record):
                self._acts_on(record.after, str(request.sender.origin))
        elif isinstance(message, m.Apply):
            self._acts_on(message.record, str(request.sender.origin))
        elif isinstance(message, m.ApplyBatch) and self.watchful:
            self._check_decided(message.time)
        elif isinstance(message, m.Open):
            self._acts_on(message.after, str(request.sender.origin))
            self.released = max(self.released, message.after.position.time)

    def answered(self, request: Request, answer: m.Message) -> None:
        """An answer leaves."""
        asked = request.message
        if self._is_foreign(asked):
            return
        if isinstance(answer, m.WorkerReport):
            self._note_report(answer)
        if isinstance(answer, m.Refusal) or not self.watchful:
            return
        if isinstance(asked, AT_ONCE):
            self._check_session(request)
        worker = WorkerId(self._world.network.host_of(request.to))
        if isinstance(answer, m.FenceAnswer) and answer.sealed is not None:
            self._sealed.add((answer.sealed.id, worker))
        if isinstance(answer, m.SealAnswer) and not answer.missing:
            self._sealed.add((answer.record, worker))
            self._check_sealed(worker, answer.record)
        elif isinstance(asked, m.Open):
            self._told.add((asked.after, worker))
        elif isinstance(answer, m.BatchApplied) and isinstance(asked, m.ApplyBatch):
            self._check_owners(request, asked)
        elif isinstance(answer, m.Checkpointed):
            unreleased = answer.covers > self.released and answer.covers.batch >= 0
            require(not unreleased, 14, f"a checkpoint covers {answer.covers}, not released yet")

    def _is_foreign(self, message: m.Message) -> bool:
        """Whether it is of another job."""
        return message.header.job.startswith(f"{NEIGHBOUR}-")

    def _note_report(self, report: m.WorkerReport) -> None:
        if report.unreadable:
            able = {worker for worker, _ in self._world.rotten_log} | self._named_lost()
            says = f"{report.worker} cannot read {set(report.unreadable)}, and nothing rotted there"
            require(report.worker in able, 9, says)
        for uid, job in report.jobs.items():
            number = 0 if job.epoch is None else job.epoch.number
            if not uid.startswith(f"{NEIGHBOUR}-"):
                self.reported[report.worker] = max(self.reported.get(report.worker, 0), number)

    def stepped(self, process: str, step: str, *, after: bool) -> None:
        """A process is about to do something, or has done it."""
        if not self.watchful:
            return
        if after and process == "controller" and f"phase={Phase.COMPLETE.value}" in step:
            self.check_complete()

    # --- invariants 2 and 4: one line of decisions, each durable on all voters --------------------

    def _acts_on(self, record_id: RecordId, who: str) -> None:
        """Somebody acts on a record as decided."""
        if record_id == ORIGIN or self._places.get(record_id.position) == record_id:
            return
        if not self.watchful:
            self._remember(record_id)
            return
        known = self._places.get(record_id.position)
        require(known is None, 2, f"{who} acts on {record_id}, {known} is decided")
        record = self.records.get(record_id)
        require(record is not None, 2, f"{who} acts on {record_id}, which nobody was sent")
        assert record is not None
        self._acts_on(record.after, who)
        last = self.decided[-1].id if self.decided else ORIGIN
        require(record.after == last, 2, f"{record_id} follows {record.after}, decided is {last}")
        lacking = [w for w in record.voters if not self._has(w, record_id)]
        if lacking:
            lacking = sorted(set(lacking) - self._lost(record))
        require(not lacking, 4, f"{who} acts on {record_id}, which {lacking} does not have")
        self._remember(record_id)

    def _remember(self, record_id: RecordId) -> None:
        self._places[record_id.position] = record_id
        self.decided.append(self.records[record_id])

    def _check_decided(self, time: BatchTime) -> None:
        """A batch that is given to an instance is decided: the same record is on all its voters,
        whether anybody has acted on that yet or not."""
        place = Position(*time, 0)
        if place in self._places:
            return
        for record in [r for r in self.records.values() if r.position == place]:
            lacking = {str(w) for w in record.voters if not self._has(w, record.id)}
            if not lacking or lacking <= self._lost(record):
                return
        require(False, 2, f"batch {time} is applied, and is not decided")

    def _lost(self, record: DecisionRecord) -> frozenset[str]:
        """Workers that a record may be decided without."""
        return self._named_lost() | record.next_epoch.lost

    def _named_lost(self) -> frozenset[str]:
        """Workers that somebody has durably said to be lost: in a record, or in the store of the
        controller."""
        named = {str(w) for sent in self.records.values() for w in sent.next_epoch.lost}
        for _, value in self._world.controller_store():
            for found in _LOST.findall(value):
                named |= {name.strip(b' "').decode() for name in found.split(b",")}
        return frozenset(named)

    def _has(self, worker: WorkerId, record_id: RecordId) -> bool:
        record = self._seals.get((record_id, str(worker)))
        if record is None:
            return False
        return self._rotted(worker, record_id) or self._bytes(record) in self._segment(
            worker, record_id
        )

    def _rotted(self, worker: str, record_id: RecordId) -> bool:
        """Whether a disk has damaged what a worker had of an attempt."""
        wanted = _named(record_id)
        rotten = self._world.rotten_log
        return any(w == worker and _numbers(name) == wanted for w, name in rotten)

    def _bytes(self, record: DecisionRecord) -> bytes:
        """A record as it lies on a disk."""
        if id(record) not in self._images:
            self._images[id(record)] = (record, codec.dumps(record))
        return self._images[id(record)][1]

    def _segment(self, worker: WorkerId, record_id: RecordId) -> bytes:
        """What a worker's disk has durably of an attempt."""
        disk = self._world.hosts[worker].disk
        wanted = _named(record_id)
        for name in disk.list(f"{self._root()}/log"):
            if "+" not in name and _numbers(name) == wanted:
                return disk.durable(f"{self._root()}/log/{name}") or b""
        return b""

    def _root(self) -> str:
        return f"jobs/{self._world.uid()}"

    def _note_bodies(self, put: m.Put, payload: Iterable[bytes]) -> None:
        bodies = self._bodies.setdefault((put.time, put.attempt), {})
        for name, body in zip(put.slices, payload, strict=True):
            bodies[put.channel, put.task_attempt, name.vnode] = body

    def _check_sealed(self, worker: WorkerId, record_id: RecordId) -> None:
        """Who says that it has sealed has the record, and the rows that it names, durably."""
        record = self._seals[record_id, str(worker)]
        if self._rotted(worker, record_id):
            return
        durable = self._segment(worker, record_id)
        require(self._bytes(record) in durable, 4, f"{worker} has not got the record {record_id}")
        bodies = self._bodies.get((record.time, record.attempt), {})
        for winner in record.winners:
            for name in winner.slices:
                body = bodies.get((winner.channel, winner.task_attempt, name.vnode))
                if body is None and record.time <= self.released:
                    continue  # an old answer comes again
                assert body is not None
                what = f"rows of channel {winner.channel} for vnode {name.vnode} of {record_id}"
                require(body in durable, 4, f"{worker} has not got {what}")
        for key in [k for k in self._bodies if k[0] < self.released]:
            del self._bodies[key]

    # --- invariants 1 and 10: sessions and owners -------------------------------------------------

    def _check_session(self, request: Request) -> None:
        """A worker that answers to a session has it on its disk, and no later one."""
        worker, session = self._world.network.host_of(request.to), request.message.header.session
        disk = self._world.hosts[WorkerId(worker)].disk
        durable = disk.durable(f"jobs/{request.message.header.job}/session.json")
        kind = type(request.message).__name__
        if session or durable is not None:
            has = json.loads(durable) if durable is not None else None
            require(has == session, 1, f"{worker} answers {kind} of session {session}, has {has}")

    def _check_owners(self, request: Request, asked: m.ApplyBatch) -> None:
        """Who makes the output of vnodes owned them when the batch was staged, or was made their
        heir by a cut since."""
        if not asked.output:
            return
        who = self._instance_at(request.to)
        if who is None:
            return
        for vnode in asked.owned:
            owners = list(self._owners(vnode, asked.time))
            require(who in owners, 1, f"{who} makes {asked.time} of vnode {vnode}, owned {owners}")

    def _instance_at(self, address: Address) -> tuple[InstanceId, WorkerId] | None:
        for host in self._world.hosts.values():
            for one in host.instances.values():
                if one.settings.listen == address:
                    return one.settings.instance, host.name
        return None

    def _owners(self, vnode: Vnode, time: BatchTime) -> Iterable[tuple[InstanceId, WorkerId]]:
        staged = self.staged_in(time)
        if staged is not None:
            yield staged.routes[vnode].owner, staged.owner_worker(vnode)
        for record in self.records.values():
            if record.position.time == time and record.next_epoch.is_cut:
                yield record.next_epoch.routes[vnode].owner, record.next_epoch.owner_worker(vnode)

    def staged_in(self, time: BatchTime) -> Epoch | None:
        """The epoch in which a batch was staged, by the decided records before it."""
        before = [record for record in self.decided if record.position < Position(*time, 0)]
        return before[-1].next_epoch if before else None

    # --- invariant 7: complete is complete everywhere ---------------------------------------------

    def check_complete(self) -> None:
        """Each worker of the epoch of an operation that has just completed has reported it."""
        controller = self._world.controller
        for view in () if controller is None else controller.operation_list().operations:
            others = view.job == NEIGHBOUR
            if others or view.phase is not Phase.COMPLETE or view.id in self._completed:
                continue
            self._completed.add(view.id)
            epoch = self._begun_by(view.marker)
            if epoch is None:
                continue
            lost = {w for record in self.decided for w in record.next_epoch.lost}
            for worker in sorted(epoch.voters() - lost):
                has = self.reported.get(worker, 0)
                says = f"{view.id} is complete with epoch {epoch.number}, {worker} has said {has}"
                require(has >= epoch.number, 7, says)

    def _begun_by(self, marker: BatchTime | None) -> Epoch | None:
        """The epoch that the last marker at a batch began."""
        found = [r.next_epoch for r in self.decided if r.time == marker and r.is_marker]
        return found[0] if len(found) == 1 else None


def _named(record_id: RecordId) -> tuple[int, ...]:
    """The numbers in the name of an attempt's segment."""
    generation, batch, step = record_id.position
    return (generation, abs(batch), step, *record_id.attempt)


@cache
def _numbers(name: str) -> tuple[int, ...]:
    """Those in the name of a segment."""
    return tuple(int(number) for number in re.findall(r"\d+", name))
