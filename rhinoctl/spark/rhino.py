"""`Rhino`: what the author of a Spark job uses (design, section 11).

rhino = Rhino(spark, job="clicks")
clicks = rhino.mark(spark.readStream.format(...).load())
query = (clicks.writeStream
    .foreachBatch(rhino.sink(RunningAggregate(keys=["user"], aggregates={"n": "count"}),
                             then=write_result))
    .option("checkpointLocation", path).start())
"""

import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Self

import blake3
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from rhinoctl import limits
from rhinoctl.control.client import ControlClient, locate_controller
from rhinoctl.errors import DeadlineExceeded, MissingColumn, RhinoError, UsageError
from rhinoctl.ids import JobName
from rhinoctl.operators import BoundOperator, Operator, from_spec
from rhinoctl.protocol import batches, views
from rhinoctl.protocol.epochs import Epoch
from rhinoctl.protocol.jobs import OperatorSpec
from rhinoctl.spark.driver import BatchDriver, Decided
from rhinoctl.spark.marker import MarkerBell
from rhinoctl.spark.query import (
    BatchFacts,
    QueryFacts,
    check_collations,
    check_session,
    check_workers_python,
    marker_of,
)
from rhinoctl.spark.result import Result
from rhinoctl.spark.source import mark, register
from rhinoctl.spark.staging import StagePlan, Staging
from rhinoctl.spark.tagging import flattened, tagged
from rhinoctl.wire.certificates import read_tls
from rhinoctl.wire.clock import SystemClock
from rhinoctl.wire.credentials import Credentials
from rhinoctl.wire.flight import FlightWire
from rhinoctl.wire.points import WIRE_POINTS, with_points
from rhinoctl.wire.secret import read_token

Then = Callable[[Result, int], object]


@dataclass(frozen=True, slots=True)
class _Bound:
    """The operator bound to the frame, and the driver of its batches."""

    operator: BoundOperator
    spec: OperatorSpec
    driver: BatchDriver
    staging: Staging


class Rhino:
    """One job, wired to a controller. Use it for one query, and close it when the query is done.

    `controller` is an address or a cluster's directory; by default RHINO_CONTROLLER or the local
    cluster. `instances` is the parallelism at the job's first start (default: one a worker); later
    it is what `rhinoctl rescale` made it. `vnodes` is fixed for the job's life. `takeover` takes
    the session from another live run of the query.

    Raises UnsupportedSpark for Spark Connect and old versions, NotRunning without a controller.
    """

    def __init__(
        self,
        spark: SparkSession,
        job: str,
        *,
        controller: str | None = None,
        instances: int | None = None,
        vnodes: int = 64,
        replication: int = 0,
        takeover: bool = False,
    ) -> None:
        check_session(spark)
        check_workers_python(spark)
        if not job or not job.replace("-", "").replace("_", "").isalnum():
            raise UsageError(f"{job!r} is no name of a job", remedy="use letters, digits, - and _")
        located = locate_controller(controller)
        self._spark = spark
        self._credentials = Credentials(
            read_token(located.wire_token_file or located.token_file),
            None if located.tls is None else read_tls(located.tls),
        )
        self.client = ControlClient(located.address, located.token_file, located.tls)
        self.client.jobs()
        self._wire = with_points(FlightWire(None, self._credentials), "driver", WIRE_POINTS)
        self._facts = QueryFacts(spark)
        self._bell = MarkerBell()
        self._bound: _Bound | None = None
        self._lock = threading.Lock()
        self._name = JobName(job)
        self._instances = instances
        self._vnodes = vnodes
        self._replication = replication
        self._takeover = takeover
        self.last: Decided | None = None
        """The last batch of this run: its record and outputs, and where its time went."""
        self.fault: RhinoError | None = None
        """What a batch of this run has failed with; Spark shows it as a text only."""
        register(spark)

    def mark(self, frame: DataFrame) -> DataFrame:
        """The stream, united with the job's marker stream, which has no rows and wakes Spark."""
        return mark(frame, self._bell)

    def tagged(self, **inputs: DataFrame) -> DataFrame:
        """Two streams as one, for an operator with two inputs: ``tagged(left=…, right=…)``.

        Each has its rows in a struct of its name; every row has one of them.
        """
        return tagged(**inputs)

    def sink(self, operator: Operator, then: Then) -> Callable[[DataFrame, int], None]:
        """The function for `foreachBatch`: state and step go to the instances, results to `then`.

        `then(result, batch_id)` is called after the batch is applied, and again with the same id
        and rows if Spark repeats the batch.
        """

        operator = _with_session(operator, self._spark)
        if operator.evicts:  # what a run before left to close
            self._bell.ring(due=True)

        def callback(frame: DataFrame, batch: int) -> None:
            try:
                facts = self._facts.of(frame, batch)
                self._bell.raise_above(marker_of(facts.end_offsets))
                with self._lock:
                    bound = self._bound = self._bound or self._bind(operator, frame)
                result = self._result(bound, frame, facts)
            except RhinoError as fault:
                self.fault = fault
                raise
            then(result, batch)

        return callback

    @property
    def delays_ms(self) -> tuple[int, ...]:
        """The watermark delays of the operator's inputs; none before the first batch."""
        return self._bound.operator.delays_ms if self._bound is not None else ()

    def wake(self) -> None:
        """Make Spark run a batch now, even an empty one, through the marker stream."""
        self._bell.ring()

    def check(self, frame: DataFrame, operator: Operator) -> None:
        """Raise what the first batch of such a frame would: MissingColumn or UnsupportedOperator,
        which name the column. For a stream whose query has not started yet."""
        _bound_to(operator, frame)

    def _bind(self, operator: Operator, frame: DataFrame) -> _Bound:
        bound = _bound_to(operator, frame)
        text = json.dumps(bound.to_json(), separators=(",", ":"))
        spec = OperatorSpec(
            name=operator.kind, spec=text, digest=blake3.blake3(text.encode()).hexdigest()[:16]
        )
        self._register(
            views.RegisterJob(
                name=self._name,
                vnodes=self._vnodes,
                instances=self._instances,
                replication=self._replication,
                operator=spec,
            )
        )
        driver = BatchDriver(
            client=self.client,
            wire=self._wire,
            clock=SystemClock(),
            name=self._name,
            operator=spec.digest,
            delays_ms=bound.delays_ms,
            on_wake=self._bell.ring,
            on_due=partial(self._bell.ring, due=True),
        )
        return _Bound(bound, spec, driver, Staging(operator, bound, text, self._credentials))

    def _register(self, request: views.RegisterJob) -> None:
        """Make the job known and wait for its workers and instances; asking again is harmless."""
        deadline = time.monotonic() + limits.START_WAIT_S
        while True:
            try:
                self.client.register(request)
            except DeadlineExceeded:
                if time.monotonic() >= deadline:
                    raise
            else:
                return

    def _decide(self, bound: _Bound, frame: DataFrame, facts: BatchFacts) -> Decided:
        gathered: pa.Table | None = None

        def prepare() -> None:
            nonlocal gathered
            gathered = bound.staging.gather(frame, facts.rows_at_most)

        def run_stage(asked: batches.Stage) -> batches.Staged:
            plan = StagePlan(
                header=bound.driver.header(asked),
                time=asked.time,
                attempt=asked.attempt,
                owners=_owner_workers(asked.epoch),
                addresses={str(name): at for name, at in asked.epoch.workers.items()},
            )
            return bound.staging.stage(frame, gathered, plan)

        self.last = bound.driver.decide(facts, prepare, run_stage, takeover=self._takeover)
        return self.last

    def _result(self, bound: _Bound, frame: DataFrame, facts: BatchFacts) -> Result:
        """The batch's result once it is applied; asked again, who has it then."""
        state = self._decide(bound, frame, facts).state
        record = state.record
        assert record is not None
        workers = {**record.next_epoch.workers, **state.lineage.epoch.workers}
        return Result(
            spark=self._spark,
            schema=bound.operator.result_schema,
            credentials=self._credentials,
            state=state,
            addresses={str(name): at for name, at in workers.items()},
            again=partial(self._result, bound, frame, facts),
        )

    def close(self) -> None:
        """End the threads and connections of this object; the job and its state stay."""
        if self._bound is not None:
            self._bound.driver.close()
        self._bell.close()
        self._wire.close()
        self.client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _with_session(operator: Operator, spark: SparkSession) -> Operator:
    """The operator with the session's arithmetic, where it has any: Spark's default is ANSI."""
    spec = operator.spec()
    if "ansi" not in spec:
        return operator
    return from_spec({**spec, "ansi": spark.conf.get("spark.sql.ansi.enabled") == "true"})


def _bound_to(operator: Operator, frame: DataFrame) -> BoundOperator:
    """The operator with the types of the frame's columns."""
    schema = flattened(frame.schema, operator.inputs)
    for column in operator.columns():
        if column not in schema.names:
            raise MissingColumn(
                f"the frame has no column {column!r}; it has {', '.join(schema.names)}",
                remedy="select or rename the column before the sink, or mend the declaration",
            )
    check_collations(schema, operator.columns())
    needed = StructType([each for each in schema.fields if each.name in operator.columns()])
    return operator.bind(to_arrow_schema(needed, timezone="UTC"))


def _owner_workers(epoch: Epoch) -> tuple[str, ...]:
    return tuple(str(epoch.instances[route.owner]) for route in epoch.routes)
