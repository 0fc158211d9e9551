"""What the controller must not forget: jobs, sessions, operations. Persisted before it is said.

Documents are JSON in a `Store`; each change is one durable write, which also raises the number of
the store's claim (`rhinoctl.protocol.claims`). Everything else the controller knows it observes
anew (style, rule 4).
"""

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from rhinoctl import limits
from rhinoctl.errors import CorruptFile, UnknownJob, UnknownOperation
from rhinoctl.ids import BASE, BatchTime, JobUid, OpId, Vnode, WorkerId
from rhinoctl.protocol import codec
from rhinoctl.protocol.claims import Claim, next_run
from rhinoctl.protocol.epochs import Epoch
from rhinoctl.protocol.handover import Handover, Phase
from rhinoctl.protocol.jobs import JobSpec
from rhinoctl.protocol.ports import Store, WriteBatch
from rhinoctl.protocol.recovery import Failover
from rhinoctl.protocol.views import OperationView
from rhinoctl.state.sqlite import renewal


@dataclass(frozen=True, slots=True, kw_only=True)
class JobDocument:
    """A job as the controller keeps it.

    `epoch` is the newest that it has seen decided, by the record of batch `epoch_from`, and the one
    it planned before that. `session` is the last number that was given out. `query_id` and `run_id`
    are those of the session's holder, empty before the first. `new_stream` allows the next session
    another query once. `instances` is how many were asked for last, 0 if nobody knows any more.
    Numbers of sessions up to `given` may have been given out by a store that is lost. The vnodes in
    `forfeited` began empty after that batch, by a failover that was forced.
    """

    spec: JobSpec
    epoch: Epoch
    epoch_from: BatchTime = BASE
    installed: bool = False
    generation: int = 0
    session: int = 0
    query_id: str = ""
    run_id: str = ""
    new_stream: bool = False
    deleted: bool = False
    instances: int = 0
    given: int = 0
    forfeited: Mapping[Vnode, BatchTime] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationDocument:
    """An operation: the machine's state, and what people see of it."""

    handover: Handover
    view: OperationView


@dataclass(frozen=True, slots=True, kw_only=True)
class FailoverDocument:
    """A failover: the machine's state, and what people see of it."""

    failover: Failover
    view: OperationView


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """What a store is made anew from: the claim that it begins with, and its documents."""

    claim: Claim
    jobs: Sequence[JobDocument]
    failovers: Sequence[FailoverDocument]


class Registry:
    """Jobs, operations and the cluster's own wishes over a store, which people know by its path.
    Raises CorruptFile, naming the entry, for a store in which one cannot be read, or has a key that
    is not its own: checksums are of values, and what is under another key would be forgotten."""

    def __init__(self, store: Store, path: str = "the store") -> None:
        self._store = store
        self.jobs: dict[JobUid, JobDocument] = {}
        self.operations: dict[OpId, OperationDocument] = {}
        self.failovers: dict[OpId, FailoverDocument] = {}
        self.draining: frozenset[WorkerId] = frozenset()
        self._begun = False
        self._claim = Claim(reign=1, store=uuid.uuid4().hex, run=_new_run(), number=0)
        for key, value in store.scan():
            own = self._take_in(partial(_read, path, key, value), key)
            if own != key:
                why = f"it is what {own.decode()} was" if own else "nothing has such a key"
                raise _unreadable(path, key, why)

    def _take_in(self, read: Callable[[Any], Any], key: bytes) -> bytes:
        """Know an entry of the store; the key that it was written under, or nothing for a key that
        nothing is written under."""
        if key == _DRAINING:
            self.draining = read(frozenset[WorkerId])
        elif key == _CLAIM:
            self._claim = next_run(read(Claim), _new_run())
        elif key.startswith(b"job/"):
            document: JobDocument = read(JobDocument)
            self.jobs[document.spec.uid] = document
            return _job_key(document.spec.uid)
        elif key.startswith(b"op/"):
            operation: OperationDocument = read(OperationDocument)
            self.operations[operation.handover.op] = operation
            return _key("op", operation.handover.op)
        elif key.startswith(b"failover/"):
            failover: FailoverDocument = read(FailoverDocument)
            self.failovers[failover.failover.op] = failover
            return _key("failover", failover.failover.op)
        else:
            return b""
        return key

    @property
    def claim(self) -> Claim | None:
        """What is said of the store; None before `begin`."""
        return replace(self._claim, draining=self.draining) if self._begun else None

    def begin(self) -> None:
        """Persist that this controller has started: before it speaks. Nothing to do if it has."""
        if not self._begun:
            self._commit(WriteBatch())

    def take(self, taken: Taken) -> None:
        """Forget everything, and go on with what was taken from the workers: one write."""
        documents = {
            _DRAINING: taken.claim.draining,
            _CLAIM: taken.claim,
            **{_job_key(each.spec.uid): each for each in taken.jobs},
            **{_key("failover", each.failover.op): each for each in taken.failovers},
        }
        values = list(map(codec.dumps_checked, documents.values()))
        self._store.write(WriteBatch(list(documents), values, [], [(b"", b"\xff")]))

    def _commit(self, batch: WriteBatch, operation: int = 0) -> None:
        """Write a change that promises something, and that there was one."""
        number, highest = self._claim.number + 1, max(operation, self._claim.operation)
        claim = replace(self._claim, number=number, operation=highest, draining=frozenset())
        keys, values = [*batch.keys, _CLAIM], [*batch.values, codec.dumps_checked(claim)]
        self._store.write(WriteBatch(keys, values, batch.deletes))
        self._claim, self._begun = claim, True

    def job(self, name: str) -> JobDocument:
        """The job of a name. Raises UnknownJob, naming those that exist."""
        for document in self.jobs.values():
            if document.spec.name == name and not document.deleted:
                return document
        names = sorted(d.spec.name for d in self.jobs.values() if not d.deleted)
        listed = ", ".join(names) if names else "none"
        raise UnknownJob(
            f"no job is called {name!r}; known: {listed}",
            remedy="see `rhinoctl job list`; a job is made known by its query's start",
        )

    def find(self, name: str) -> JobDocument | None:
        """The job of a name, or None."""
        try:
            return self.job(name)
        except UnknownJob:
            return None

    def put_job(self, document: JobDocument) -> JobDocument:
        """Persist a job."""
        key = _job_key(document.spec.uid)
        self._commit(WriteBatch([key], [codec.dumps_checked(document)]))
        self.jobs[document.spec.uid] = document
        return document

    def drop_job(self, uid: JobUid) -> None:
        """Forget a job for good."""
        self._commit(WriteBatch(deletes=[_job_key(uid)]))
        del self.jobs[uid]

    def operation(self, op: str) -> OperationDocument:
        """An operation by its id. Raises UnknownOperation."""
        found = self.operations.get(OpId(op))
        if found is None:
            raise UnknownOperation(
                f"no operation is called {op!r}", remedy="see `rhinoctl op list`"
            )
        return found

    def put_operation(
        self, handover: Handover, view: OperationView, *, kept: frozenset[WorkerId] = frozenset()
    ) -> OperationDocument:
        """Persist an operation; the oldest ended ones go beyond the number that is kept. In the
        same write, the workers `kept` are no more to be empty."""
        document = OperationDocument(handover=handover, view=view)
        ended = [op for op, d in self.operations.items() if d.handover.ended and op != handover.op]
        draining = self.draining - kept
        more = {} if draining == self.draining else {_DRAINING: codec.dumps_checked(draining)}
        known = self.operations.get(handover.op)
        told_only = known is not None and known.handover == handover and not more
        gone = self._write("op", handover.op, codec.dumps_checked(document), ended, more, told_only)
        self.draining = draining
        self.operations[handover.op] = document
        for op in gone:
            del self.operations[op]
        return document

    def put_failover(self, failover: Failover, view: OperationView) -> FailoverDocument:
        """Persist a failover, as `put_operation`."""
        document = FailoverDocument(failover=failover, view=view)
        ended = [op for op, d in self.failovers.items() if d.failover.ended and op != failover.op]
        known = self.failovers.get(failover.op)
        told_only = known is not None and known.failover == failover
        gone = self._write(
            "failover", failover.op, codec.dumps_checked(document), ended, {}, told_only
        )
        self.failovers[failover.op] = document
        for op in gone:
            del self.failovers[op]
        return document

    def _write(
        self,
        kind: str,
        op: OpId,
        value: bytes,
        ended: list[OpId],
        more: Mapping[bytes, bytes],
        told_only: bool,
    ) -> list[OpId]:
        """Write an operation. If only what people are told has changed, no agent need know."""
        gone = sorted(ended, key=_number)[: -limits.OPERATIONS_KEPT]
        deletes = [_key(kind, each) for each in gone]
        batch = WriteBatch([_key(kind, op), *more], [value, *more.values()], deletes)
        if told_only:
            self._store.write(batch)
        else:
            self._commit(batch, _number(op))
        return gone

    def put_draining(self, workers: frozenset[WorkerId]) -> None:
        """Persist which workers are to be empty."""
        self._commit(WriteBatch([_DRAINING], [codec.dumps_checked(workers)]))
        self.draining = workers

    def cut(self, job: JobUid) -> Epoch | None:
        """The cut of the job that is offered and not known to be decided."""
        found = self.recovering(job)
        armed = found is not None and found.failover.phase is Phase.ARMED
        return found.failover.proposal if found is not None and armed else None

    def recovering(self, job: JobUid) -> FailoverDocument | None:
        """The job's failover that has not ended."""
        for document in self.failovers.values():
            if document.failover.job == job and not document.failover.ended:
                return document
        return None

    def view(self, op: str) -> OperationView:
        """An operation or a failover as people see it. Raises UnknownOperation."""
        failover = self.failovers.get(OpId(op))
        return self.operation(op).view if failover is None else failover.view

    def views(self) -> tuple[OperationView, ...]:
        """All operations that are kept, the newest first."""
        found = [d.view for d in self.operations.values()]
        found += [d.view for d in self.failovers.values()]
        return tuple(sorted(found, key=lambda view: -_number(view.id)))

    def running(self, job: JobUid) -> OperationDocument | None:
        """The job's operation that has not ended."""
        for document in self.operations.values():
            if document.handover.job == job and not document.handover.ended:
                return document
        return None

    def next_operation(self) -> OpId:
        """An id that was not given before."""
        numbers = [_number(op) for op in (*self.operations, *self.failovers)]
        return OpId(f"op-{max(self._claim.operation, *numbers, 0) + 1}")

    def next_session(self, uid: JobUid, seen: int = 0) -> int:
        """The job's next session number, persisted before it is given out (invariant 10); `seen` is
        the highest that a worker reports."""
        document = self.jobs[uid]
        return self.put_job(replace(document, session=session_after(document, seen))).session


def session_after(document: JobDocument, seen: int = 0) -> int:
    """A session number that nobody has, though a worker may report a higher one (`seen`) than the
    store has, which then is an old copy whose age nobody has noticed."""
    return max(document.session, document.given, seen) + 1


def _new_run() -> str:
    return uuid.uuid4().hex[:12]


def _read(path: str, key: bytes, value: bytes, kind: Any) -> Any:
    try:
        return codec.loads_checked(kind, value)
    except codec.CodecError as fault:
        raise _unreadable(path, key, str(fault)) from fault


def _unreadable(path: str, key: bytes, why: str) -> CorruptFile:
    return CorruptFile(
        f"the entry {key.decode(errors='replace')} of the controller's store cannot be read: {why}",
        remedy=renewal(path),
    )


def _number(op: OpId) -> int:
    return int(op.removeprefix("op-"))


def _job_key(uid: JobUid) -> bytes:
    return f"job/{uid}".encode()


def _key(kind: str, op: OpId) -> bytes:
    return f"{kind}/{_number(op):012d}".encode()


_DRAINING = b"cluster/draining"
_CLAIM = b"cluster/claim"
