"""What the controller must not forget: jobs, sessions, operations. Persisted before it is said.

Documents are JSON in a `Store`; each change is one durable write. Everything else the controller
knows it observes anew (style, rule 4).
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from rhinoctl import limits
from rhinoctl.errors import UnknownJob, UnknownOperation
from rhinoctl.ids import BASE, BatchTime, JobUid, OpId, WorkerId
from rhinoctl.protocol import codec
from rhinoctl.protocol.epochs import Epoch
from rhinoctl.protocol.handover import Handover
from rhinoctl.protocol.jobs import JobSpec
from rhinoctl.protocol.ports import Store, WriteBatch
from rhinoctl.protocol.recovery import Failover
from rhinoctl.protocol.views import OperationView


@dataclass(frozen=True, slots=True, kw_only=True)
class JobDocument:
    """A job as the controller keeps it.

    `epoch` is the newest that it has seen decided, by the record of batch `epoch_from`, and the one
    it planned before that. `session` is the last number that was given out. `query_id` and `run_id`
    are those of the session's holder, empty before the first. `new_stream` allows the next session
    another query once. `instances` is how many were asked for last, 0 if nobody knows any more.
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


class Registry:
    """Jobs, operations and the cluster's own wishes over a store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.jobs: dict[JobUid, JobDocument] = {}
        self.operations: dict[OpId, OperationDocument] = {}
        for _, value in store.scan(b"job/", b"job0"):
            document: JobDocument = codec.loads(JobDocument, value)
            self.jobs[document.spec.uid] = document
        for _, value in store.scan(b"op/", b"op0"):
            operation: OperationDocument = codec.loads(OperationDocument, value)
            self.operations[operation.handover.op] = operation
        self.failovers: dict[OpId, FailoverDocument] = {}
        for _, value in store.scan(b"failover/", b"failover0"):
            failover: FailoverDocument = codec.loads(FailoverDocument, value)
            self.failovers[failover.failover.op] = failover
        drained = store.get_many([_DRAINING])[0]
        self.draining: frozenset[WorkerId] = frozenset()
        if drained is not None:
            self.draining = codec.loads(frozenset[WorkerId], drained)

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
        key = f"job/{document.spec.uid}".encode()
        self._store.write(WriteBatch([key], [codec.dumps(document)]))
        self.jobs[document.spec.uid] = document
        return document

    def drop_job(self, uid: JobUid) -> None:
        """Forget a job for good."""
        self._store.write(WriteBatch(deletes=[f"job/{uid}".encode()]))
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
        more = {} if draining == self.draining else {_DRAINING: codec.dumps(draining)}
        gone = self._write("op", handover.op, codec.dumps(document), ended, more)
        self.draining = draining
        self.operations[handover.op] = document
        for op in gone:
            del self.operations[op]
        return document

    def put_failover(self, failover: Failover, view: OperationView) -> FailoverDocument:
        """Persist a failover, as `put_operation`."""
        document = FailoverDocument(failover=failover, view=view)
        ended = [op for op, d in self.failovers.items() if d.failover.ended and op != failover.op]
        gone = self._write("failover", failover.op, codec.dumps(document), ended, {})
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
    ) -> list[OpId]:
        gone = sorted(ended, key=_number)[: -limits.OPERATIONS_KEPT]
        deletes = [_key(kind, each) for each in gone]
        self._store.write(WriteBatch([_key(kind, op), *more], [value, *more.values()], deletes))
        return gone

    def put_draining(self, workers: frozenset[WorkerId]) -> None:
        """Persist which workers are to be empty."""
        self._store.write(WriteBatch([_DRAINING], [codec.dumps(workers)]))
        self.draining = workers

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
        return OpId(f"op-{max(numbers, default=0) + 1}")

    def next_session(self, uid: JobUid) -> int:
        """The job's next session number, persisted before it is given out (invariant 10)."""
        document = self.jobs[uid]
        return self.put_job(replace(document, session=document.session + 1)).session


def _number(op: OpId) -> int:
    return int(op.removeprefix("op-"))


def _key(kind: str, op: OpId) -> bytes:
    return f"{kind}/{_number(op):012d}".encode()


_DRAINING = b"cluster/draining"
