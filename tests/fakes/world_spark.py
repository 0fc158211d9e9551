"""A model of Spark and of our sink in its driver: batches by offsets, runs, commits, replays.

`SparkDirectory` is the query's checkpoint directory, which outlives its runs. A `Query` is one
process that runs the query, again after every failure, with the real `BatchRun` and the real push.
"""

import itertools
from collections.abc import Generator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from rhinoctl import limits
from rhinoctl.control.controller import Waiting
from rhinoctl.errors import IdentityChanged, RhinoError, WorkerUnreachable
from rhinoctl.ids import NO_JOB, BatchTime, JobName, WorkerId
from rhinoctl.protocol import batches, codec, views
from rhinoctl.protocol import messages as m
from rhinoctl.protocol.epochs import Epoch
from rhinoctl.protocol.jobs import OperatorSpec
from rhinoctl.protocol.ports import Address, Buffer
from rhinoctl.protocol.sessions import Lineage
from rhinoctl.spark.outputs import fetch_output
from rhinoctl.spark.slices import StagePlan, push_rows
from rhinoctl.wire.credentials import Credentials
from rhinoctl.wire.exchange import Answer
from rhinoctl.wire.holder import BatchRun
from tests.fakes.wire import CREDENTIALS
from tests.fakes.world_input import Row, Totals, Workload
from tests.fakes.world_process import Killed, ProcessWire

if TYPE_CHECKING:
    from tests.fakes.world import World

Waits = Generator[float, None, Any]

RUN_PAUSE_S = 0.5
"""Between a query's failure and its next run."""

CALL_S = 5.0
"""A call to the controller that is not answered by then has failed."""


class _Later(Exception):
    """An output is not there yet."""


class QueryFailed(Exception):
    """The run of the query ends; `Query.failures` has why."""


@dataclass
class SparkDirectory:
    """What Spark keeps durably: offsets planned by batch, and how far batches are committed.

    `outputs` is what the user's function has made of each batch, by protocol time: one entry a
    call, since a batch may be put out more than once. `waiting` rows have come to the source since
    the last batch was planned, beyond what is usual; `newest` is the last that was ever planned,
    `first` the offset at which the stream begins.
    """

    query_id: str
    committed: int = -1
    planned: dict[int, tuple[int, int]] = field(default_factory=dict)
    marks: dict[int, int] = field(default_factory=dict)
    outputs: dict[BatchTime, list[Totals]] = field(default_factory=dict)
    inputs: dict[BatchTime, list[Row]] = field(default_factory=dict)
    waiting: int = 0
    newest: int = -1
    first: int = 0

    def lose_offsets(self) -> tuple[int, tuple[int, int]] | None:
        """The newest file of the offset log is gone, if its batch is not committed: the next run
        plans the batch anew, over what has come by then. Returns what was lost."""
        batch = max(self.planned, default=-1)
        if batch <= self.committed:
            return None
        self.waiting += 3
        return batch, self.planned.pop(batch)

    def lose_commit(self) -> bool:
        """The newest file of the commit log is gone: the next run puts its batch out again. Spark
        does not go back if the next one is planned already."""
        if self.committed < 0 or self.newest > self.committed:
            return False
        self.committed -= 1
        return True

    @property
    def planned_to(self) -> int:
        """The offset at which the batch after the planned ones will begin."""
        return self.planned[max(self.planned)][1] if self.planned else self.first

    def offsets(self, batch: int) -> tuple[str, str]:
        """Start and end of a planned batch as Spark's texts: rows, and the marker's count."""
        before = f"{self.planned[batch][0]}+{self.marks.get(batch - 1, 0)}"
        return before, f"{self.planned[batch][1]}+{self.marks[batch]}"


def operator_spec() -> OperatorSpec:
    """The usual job's operator as the driver registers it."""
    return Workload().spec()


class Query:
    """One driver process. `trigger_s` is the pause between batches, `idle` waits to be woken,
    `unknown` says that its job belongs to another query, as it was told when it last asked."""

    def __init__(
        self,
        world: "World",
        job: JobName,
        directory: SparkDirectory,
        workload: Workload,
        *,
        name: str,
        takeover: bool = False,
    ) -> None:
        self.name = name
        self.job = job
        self.directory = directory
        self.workload = workload
        self.failures: list[str] = []
        self.sessions: list[int] = []
        self.trigger_s = 0.1
        self.idle = False
        self.unknown = False
        self.limit: int | None = None
        self.running = True
        self.epoch_seen = 0
        self.uid = NO_JOB
        self._world = world
        self._takeover = takeover
        self._run = 0
        self._lineage: Lineage | None = None
        self._generation = 0
        self._workers: Mapping[WorkerId, str] = {}
        self._proposal: Epoch | None = None
        self._revision = 0
        self._wake = 0
        self._woken = False
        self._superseded = False
        self._counter = itertools.count(1)
        self.process = world.process(name)
        self._wire = ProcessWire(world.network.wire(None, origin=Address(name)), self.process)
        self._ear_wire = world.network.wire(None, origin=Address(name))
        world.schedule.add(name, self._wire.inner, self._life())
        world.schedule.add(f"{name}-ear", self._ear_wire, self._listen())

    @property
    def run_id(self) -> str:
        return f"{self.name}-{self._run}"

    def kill(self) -> None:
        """kill -9."""
        self.process.alive = False
        self._wire.inner.crash()
        self._end()

    def _end(self) -> None:
        self.running = False
        for entry in (self.name, f"{self.name}-ear"):
            self._world.schedule.remove(entry)

    # --- runs ------------------------------------------------------------------------------------

    def _life(self) -> Waits:
        try:
            while True:
                try:
                    yield from self._run_query()
                    break
                except QueryFailed as failed:
                    self.failures.append(str(failed))
                    self._lineage = None
                    yield RUN_PAUSE_S
        except Killed:
            pass
        self._end()

    def _run_query(self) -> Waits:
        self._run += 1
        request = views.RegisterJob(
            name=self.job,
            vnodes=self._world.vnodes,
            instances=self._world.instances,
            replication=self._world.replication,
            operator=self.workload.spec(),
        )
        view = yield from self._call(lambda c: c.register(request), limits.START_WAIT_S + CALL_S)
        self.uid = view.uid
        while self.limit is None or self.directory.committed < self.limit:
            if self.idle and not self._woken:
                yield 0.05
                continue
            yield from self._batch(self.directory.committed + 1)
            yield self.trigger_s

    def _batch(self, batch: int) -> Waits:
        directory = self.directory
        if batch not in directory.planned:
            start = directory.planned[batch - 1][1] if batch else directory.first
            rows = 0 if self.idle else self.workload.size(batch) + directory.waiting
            directory.waiting, directory.newest = 0, batch
            directory.planned[batch] = (start, start + rows)
            directory.marks[batch] = directory.marks.get(batch - 1, 0) + self._woken
        self._woken = False
        self.process.touch("plan", after=True)
        time, table = yield from self._result(batch)
        directory.outputs.setdefault(time, []).append(self.workload.totals(table))
        directory.inputs[time] = self.workload.rows(*directory.planned[batch])
        self.process.touch("then", after=True)
        if directory.committed >= batch:
            raise QueryFailed(f"batch {batch} is committed by another run: concurrent update")
        directory.committed = batch
        self.process.touch("commit", after=True)

    def _result(self, batch: int) -> Waits:
        """As `Result.arrow`: who has the outputs is asked anew if one cannot be had."""
        deadline = self._world.clock.monotonic() + limits.APPLY_DEADLINE_S
        while True:
            state = yield from self._decide(batch)
            try:
                table = yield from self._fetched(state)
            except _Later as later:
                if self._world.clock.monotonic() >= deadline:
                    raise QueryFailed(f"the output of batch {batch} is gone") from later
            else:
                return state.task.time, table

    def _decide(self, batch: int) -> Waits:
        """As `rhinoctl.spark.driver.BatchDriver.decide`."""
        for _ in range(limits.SESSIONS_A_BATCH):
            yield from self._session(batch)
            assert self._lineage is not None
            start, end = self.directory.offsets(batch)
            run = BatchRun(
                wire=self._wire,
                clock=self._world.clock_of("driver"),
                lineage=self._lineage,
                task=batches.Task(
                    time=BatchTime(self._generation, batch),
                    start_offsets=start,
                    end_offsets=end,
                    operator=self.workload.spec().digest,
                    delays_ms=self.workload.bound().delays_ms,
                ),
                stage=self._stage,
                proposal=lambda: self._proposal,
                addresses=self._workers,
                silent=self._suspect,
            )
            while not run.ended:
                run.step(0.0)
                yield 0.01 * self._world.leisure
            state = run.state
            if state.phase is batches.Phase.DONE:
                self._lineage = state.lineage
                self.epoch_seen = state.lineage.epoch.number
                return state
            fault = state.fault
            assert fault is not None
            if fault.kind is not batches.FaultKind.FENCED:
                raise QueryFailed(f"batch {batch}: {fault.kind.value}: {fault.detail}")
            self._lineage = None
        raise QueryFailed(f"batch {batch}: fenced: {fault.detail}")

    def _suspect(self, worker: WorkerId) -> None:
        """As `rhinoctl.spark.driver.BatchDriver.suspect`."""
        if self._lineage is not None:
            suspicion = views.Suspicion(session=self._lineage.session, worker=worker)
            with suppress(ConnectionError, RhinoError):
                self._world.submit(lambda c: c.suspect(self.job, suspicion), Address(self.name))

    def _session(self, batch: int) -> Waits:
        if self._lineage is not None:
            return
        request = views.TakeSession(
            query_id=self.directory.query_id,
            run_id=self.run_id,
            batch=batch,
            takeover=self._takeover,
        )
        try:
            grant = yield from self._call(lambda c: c.take_session(self.job, request), CALL_S)
        except QueryFailed as failed:
            self.unknown = isinstance(failed.__cause__, IdentityChanged)
            raise
        self.unknown = False
        self.sessions.append(grant.session)
        self._generation, self._workers = grant.generation, grant.workers
        self._lineage = Lineage(
            cluster=grant.cluster, job=grant.job, session=grant.session, epoch=grant.epoch
        )
        self._proposal, self._revision, self._superseded = grant.cut, 0, False

    # --- rows in, outputs back -------------------------------------------------------------------

    def _stage(self, stage: batches.Stage) -> batches.Staged:
        """The Spark job: rows are split otherwise in every attempt; some tasks run twice."""
        lineage = self._lineage
        assert lineage is not None
        epoch = stage.epoch
        plan = StagePlan(
            header=m.Header(
                cluster=lineage.cluster,
                job=lineage.job,
                session=stage.attempt.session,
                epoch=epoch.number,
            ),
            time=stage.time,
            attempt=stage.attempt,
            owners=tuple(epoch.owner_worker(v) for v in map(m.Vnode, epoch.vnodes())),
            addresses={str(name): at for name, at in epoch.workers.items()},
        )
        rows = self.workload.rows(*self.directory.planned[stage.time.batch])
        turn = stage.attempt.counter + stage.attempt.session
        channels = 1 + turn % 3 if rows else 0
        receipts, failures = [], []
        for channel in range(channels):
            self.process.touch(f"stage {channel}")
            mine = [row for n, row in enumerate(rows) if (n + turn) % channels == channel]
            if (turn + channel + stage.time.batch) % 5 == 0:  # a task attempt that loses
                self._push(plan, mine[: len(mine) // 2], channel)
            receipt, failed = self._push(plan, mine, channel)
            receipts.append(receipt)
            failures += failed
        self.process.touch("staged", after=True)
        return batches.Staged(
            attempt=stage.attempt, receipts=tuple(receipts), failures=tuple(failures)
        )

    def _push(
        self, plan: StagePlan, rows: list[Row], channel: int
    ) -> tuple[batches.Receipt, list[str]]:
        number = next(self._counter)
        try:
            return push_rows(
                plan,
                self.workload.bound(),
                pa.Table.from_batches([self.workload.frame(rows)]),
                credentials=CREDENTIALS,
                channel=channel,
                task_attempt=number,
                send=self._send,
            )
        except RhinoError as fault:  # of rows that the operator refuses
            raise QueryFailed(f"batch {plan.time.batch}: {fault.message}") from fault

    def _send(
        self,
        address: Address,
        message: m.Message,
        payload: "tuple[Buffer, ...] | list[Buffer]" = (),
        *,
        credentials: Credentials,
        timeout_s: float,
    ) -> Answer:
        """A call that blocks, as in a Spark task; the others have their turns meanwhile."""
        kind = type(message).__name__
        self.process.touch(f"send {kind} {address}")
        try:
            return self._world.network.call(
                address, message, payload, timeout_s=timeout_s, origin=Address(self.name)
            )
        finally:
            self.process.touch(f"send {kind} {address}", after=True)

    def _fetched(self, state: batches.BatchState) -> Waits:
        """The batch's result; where fetching sleeps, the others have their turns. Raises _Later
        after a while."""
        table = self.workload.bound().result_schema.empty_table()
        deadline = self._world.clock.monotonic() + limits.OUTPUT_PATIENCE_S
        for name in state.outputs:
            piece = None
            while piece is None:
                try:
                    piece = self._fetch(name, state)
                except _Later:
                    if self._world.clock.monotonic() >= deadline:
                        raise
                    yield limits.RETRY_DELAY_S
            assert piece.num_rows == name.rows, name
            table = pa.concat_tables([table, piece])
        return table

    def _fetch(self, name: m.OutputName, state: batches.BatchState) -> pa.Table:
        assert self._lineage is not None
        assert state.record is not None

        def pause(for_s: float) -> None:
            raise _Later

        try:
            return fetch_output(
                name,
                state.record.id,
                self._lineage.header(),
                {worker: host.address for worker, host in self._world.hosts.items()},
                CREDENTIALS,
                send=self._send,
                now=self._world.clock.monotonic,
                pause=pause,
            )
        except WorkerUnreachable as fault:  # a call alone may take longer than anybody is patient
            raise _Later from fault

    # --- the controller --------------------------------------------------------------------------

    def _call(self, function: Any, for_s: float) -> Waits:
        """A call to the controller. Raises QueryFailed for a refusal or silence."""
        deadline = self._world.clock.monotonic() + for_s
        try:
            future = self._world.submit(function, Address(self.name))
            while True:
                if self._world.clock.monotonic() >= deadline:
                    raise QueryFailed("the controller does not answer")
                if future.done():
                    found = future.result()
                    if not isinstance(found, Waiting):
                        return codec.loads(type(found), codec.dumps(found))
                    future = found.answer
                yield 0.01
        except (RhinoError, ConnectionError) as fault:
            raise QueryFailed(f"{fault}") from fault

    def _listen(self) -> Waits:
        """The thread that polls for offers."""
        try:
            while True:
                yield from self._poll()
        except Killed:
            return

    def _poll(self) -> Waits:
        self.process.touch("poll")
        lineage = self._lineage
        if lineage is None or self._superseded:
            yield limits.POLL_PAUSE_S
            return
        report = views.DriverReport(
            session=lineage.session,
            epoch=lineage.epoch.number if lineage.fenced else 0,
            batch=lineage.last.time if lineage.last is not None else None,
            revision=self._revision,
        )
        try:
            offer = yield from self._call(lambda c: c.poll(self.job, report), 3.0)
        except QueryFailed:
            yield limits.POLL_WAIT_S
            return
        if self._lineage is None or self._lineage.session != report.session:
            return
        if not offer.live:
            self._superseded = True
        if offer.proposal is not None and offer.proposal != self._proposal:
            self._woken = True
        if offer.wake != self._wake and self._wake:
            self._woken = True
        self._proposal, self._revision, self._wake = offer.proposal, offer.revision, offer.wake
