"""The main job on an embedded cluster: run it, move its state meanwhile, compare the result.

What is started for it ends with us: `rhinoctl.ops.embedded`.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rhinoctl.control.client import ControlClient
from rhinoctl.errors import (
    DeadlineExceeded,
    NotRunning,
    OperationAborted,
    ResultMismatch,
    RhinoError,
    UnknownJob,
    UsageError,
    error_of,
)
from rhinoctl.ids import JobName, OpId, Vnode, WorkerId
from rhinoctl.ops import embedded, prerequisites
from rhinoctl.ops.demo_moves import INSTANCES_FIRST, Moves, steps_of
from rhinoctl.ops.demo_tally import Frame, Latency, Result, Tally, Verdict
from rhinoctl.protocol import codec
from rhinoctl.protocol.handover import Kind
from rhinoctl.protocol.views import InstanceView, OperationView
from rhinoctl.remote.child import Child

JOB = JobName("demo")
QUERIES = ("q8", "q5", "counts")
"""Those of `rhinoctl.spark.queries`, which is not imported here: it needs PySpark."""
KEYS = 100_000
VNODES = 64
REPLICATION = 1
SEED = 42

LOOK_S = 0.25
"""Between two looks at the cluster: a handover's phases are seen as they happen."""

SILENCE_S = 420.0
"""The longest between two events of the job: Spark starts, or the result is compared."""

AFTER_S = 20.0
"""What a step that still runs when the job is done may take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoRequest:
    """What is run: `state_mb` is filled in before the clock starts, then `rate` rows a second come
    for `seconds`. With `keep` the directory stays."""

    query: str
    seconds: float
    rate: int
    workers: int
    state_mb: int
    keep: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoHandover:
    """A handover or rescale of the demo."""

    id: OpId
    kind: Kind
    vnodes: tuple[Vnode, ...]
    pause_ms: float | None
    total_ms: float | None
    bytes_moved: int
    state_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoFailover:
    """The loss of a worker: from the kill until it was given up, from there until every heir had
    applied a batch, what was fetched over the network meanwhile, and how many batches an heir had
    to apply from its log."""

    worker: WorkerId
    vnodes: int
    detect_ms: float
    recover_ms: float | None
    bytes_fetched: int
    replayed_batches: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoResult:
    """The one object that `rhinoctl demo --json` ends with."""

    query: str
    batches: int
    rows_in: int
    rows_out: int
    latency_ms: Latency
    handovers: tuple[DemoHandover, ...]
    failovers: tuple[DemoFailover, ...]
    oracle: Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoOutcome:
    """The result, the operations in full, what went wrong, and the directory if it was kept."""

    result: DemoResult
    operations: tuple[OperationView, ...]
    faults: tuple[str, ...]
    directory: str | None

    @property
    def error(self) -> RhinoError | None:
        """How the command ends, if not well."""
        oracle = self.result.oracle
        if not oracle.equal:
            return ResultMismatch(
                f"the result differs from Spark's: {oracle.missing} rows missing,"
                f" {oracle.extra} too many, of {oracle.rows}",
                remedy="run it again with --keep and report it with the directory",
            )
        if self.faults:
            remedy = "run it again with --keep, and look into the logs in its directory"
            return OperationAborted("; ".join(self.faults), remedy=remedy)
        return None


def run_demo(
    request: DemoRequest, *, say: Callable[[str], None], show: Callable[[Frame], None]
) -> DemoOutcome:
    """Run the demo to its verdict. Nothing that it started is left afterwards, however it ends.

    Raises MissingJava and UnsupportedSpark before anything is started, what bringing up a cluster
    raises, and the error that the job tells. After an error the directory, with its logs, stays.
    """
    if request.query not in QUERIES:
        remedy = f"choose one of: {', '.join(QUERIES)}"
        raise UsageError(f"there is no query {request.query!r}", remedy=remedy)
    prerequisites.check_java()
    prerequisites.check_spark()
    with (
        embedded.working_directory(
            "rhinoctl-demo-", keep=request.keep, what="demo", say=say
        ) as directory,
        embedded.embedded_cluster(directory / "cluster", request.workers, say) as cluster,
        ControlClient(cluster.controller, cluster.token_file) as client,
    ):
        settings = _write_settings(directory, request, cluster)
        log = directory / "job.log"
        environ = embedded.job_environ(directory, cluster.run)
        with Child("rhinoctl.spark.demo", str(settings), log=log, environ=environ) as child:
            moves = Moves(client, JOB, steps_of(directory / "cluster"))
            result = _follow(request, child, moves, show, log)
    return DemoOutcome(
        result=_result_of(request, result, moves),
        operations=tuple(moves.begun),
        faults=tuple(moves.faults),
        directory=str(directory) if request.keep else None,
    )


def _write_settings(directory: Path, request: DemoRequest, cluster: embedded.Embedded) -> Path:
    """What `rhinoctl.spark.demo` is started with."""
    path = directory / "job.json"
    settings = {
        "job": JOB,
        "controller": cluster.controller,
        "token_file": cluster.token_file,
        "directory": str(directory / "job"),
        "query": request.query,
        "rate": request.rate,
        "seconds": request.seconds,
        "state_mb": request.state_mb,
        "keys": KEYS,
        "instances": INSTANCES_FIRST,
        "vnodes": VNODES,
        "replication": min(REPLICATION, request.workers - 1),
        "seed": SEED,
        "preload_ms": int(time.time() * 1000),
        "brief": request.state_mb == 0,
    }
    (directory / "job").mkdir()
    path.write_bytes(codec.dumps(settings))
    return path


def _follow(
    request: DemoRequest, child: Child, moves: Moves, show: Callable[[Frame], None], log: Path
) -> Result:
    """Take the job's events and advance the moves until both are done; returns the job's result."""
    tally = Tally()
    heard_at = looked_at = time.monotonic()
    done_at: float | None = None
    instances: tuple[InstanceView, ...] = ()
    while True:
        event = None
        if done_at is None:
            event = embedded.next_event(child, LOOK_S, lambda: tally.stage, log)
        else:
            time.sleep(LOOK_S)
        now = time.monotonic()
        if event is not None:
            tally.take(event, now)
            heard_at = now
        if tally.fault is not None:
            fault = tally.fault
            raise error_of(fault.code, fault.message, remedy=fault.remedy)
        if tally.result is not None and done_at is None:
            done_at = now
        if done_at is None and now - heard_at > SILENCE_S:
            raise DeadlineExceeded(
                f"the job has said nothing for {SILENCE_S:.0f} s", remedy=f"see its log: {log}"
            )
        if now - looked_at < LOOK_S and done_at is None:
            continue
        looked_at = now
        passed = tally.passed_s(now)
        if passed is not None:
            moves.advance(passed / request.seconds if done_at is None else 0.0)
        instances = _instances(moves.client, tally.started) or instances
        show(_frame(request, tally, moves, instances, now))
        late = done_at is not None and now - done_at > AFTER_S
        if tally.result is not None and (late or not moves.running):
            moves.finish()
            return tally.result


def _instances(client: ControlClient, started: bool) -> tuple[InstanceView, ...]:
    """Where the vnodes live now; nothing while the controller does not say."""
    if not started:
        return ()
    try:
        return client.job(JOB).instances
    except (UnknownJob, NotRunning, DeadlineExceeded):
        return ()


def _frame(
    request: DemoRequest,
    tally: Tally,
    moves: Moves,
    instances: tuple[InstanceView, ...],
    now: float,
) -> Frame:
    return Frame(
        stage=tally.stage,
        passed_s=tally.passed_s(now),
        seconds=request.seconds,
        preloading=tally.preloading,
        rows_per_s=tally.rows_per_s(now),
        rows_in=tally.rows_in,
        last=tally.last,
        instances=instances,
        operations=tuple(moves.begun),
    )


def _result_of(request: DemoRequest, result: Result, moves: Moves) -> DemoResult:
    return DemoResult(
        query=request.query,
        batches=result.batches,
        rows_in=result.rows_in,
        rows_out=result.rows_out,
        latency_ms=result.latency_ms,
        handovers=tuple(
            DemoHandover(
                id=view.id,
                kind=view.kind,
                vnodes=tuple(sorted(view.moves)),
                pause_ms=view.pause_ms,
                total_ms=view.total_ms,
                bytes_moved=view.bytes_moved,
                state_bytes=view.state_bytes,
            )
            for view in moves.begun
            if view.kind is not Kind.FAILOVER
        ),
        failovers=tuple(
            DemoFailover(
                worker=moves.accident.worker,
                vnodes=len(view.moves),
                detect_ms=1000 * (min(view.times.values()) - moves.accident.at),
                recover_ms=view.recover_ms,
                bytes_fetched=view.bytes_moved,
                replayed_batches=view.replayed_batches,
            )
            for view in moves.begun
            if view.kind is Kind.FAILOVER and moves.accident is not None
        ),
        oracle=result.oracle,
    )
