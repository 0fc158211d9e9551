"""`rhinoctl bench steady`: rhino and Spark's own state store side by side, in one run.

Each round runs both engines one after the other, each in a driver process of its own and with the
machine to itself (rhino's cluster is up for its turns only); rounds begin with one and with the
other in turn, so that a machine that gets slower hits both.
"""

import shutil
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rhinoctl.errors import DeadlineExceeded, RhinoError, UsageError, error_of
from rhinoctl.ops import embedded, prerequisites
from rhinoctl.ops.bench_figures import (
    BenchResult,
    Engine,
    Measured,
    added,
    batches_of,
    compare,
    figures,
)
from rhinoctl.ops.local import Say
from rhinoctl.protocol import codec
from rhinoctl.remote.child import Child

QUERIES = ("counts", "q5", "q8")
"""Those of `rhinoctl.spark.bench`, which is not imported here: it needs PySpark."""

SINKS = ("fetch", "drop")
"""What happens with a batch's result: fetched by the driver as Arrow, or dropped where it is."""

KEYS = 100_000
VNODES = 64
SEED = 42
INSTANCES = 2
WORKERS = 2

ADDED_ROWS = 1000
ADDED_BATCHES = 50
ADDED_WARM_UP = 250
"""A JVM goes on compiling: after 15 batches an empty one takes a fifth longer, and reading a frame
twice as long, as in one that has run for a minute."""

SILENCE_S = 420.0
"""The longest between two events of the job: Spark starts, or the state is filled."""

LOOK_S = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchRequest:
    """What is measured: of each engine `batches` of `rows` rows in each round, over `state_mb` of
    state besides; with `added`, small batches as well. With `keep` the directory stays.

    `warm_up` batches go before, in each driver: the JVM compiles, Python processes start, and most
    keys come for the first time.
    """

    query: str
    rows: int
    batches: int
    warm_up: int
    rounds: int
    state_mb: int
    sink: str
    added: bool
    keep: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """One query that a job runs: which engine, how many batches of how many rows."""

    engine: Engine
    rows: int
    warm_up: int
    batches: int
    state_mb: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One driver process with what it runs, in order."""

    what: str
    segments: tuple[Segment, ...]

    @property
    def needs_cluster(self) -> bool:
        return any(segment.engine is Engine.RHINO for segment in self.segments)


def run_bench(request: BenchRequest, *, say: Say) -> BenchResult:
    """Measure. Nothing that it started is left afterwards, however it ends.

    Raises UsageError for a query that is not there, MissingJava and UnsupportedSpark before
    anything is started, what bringing up a cluster raises, ResultMismatch if the engines did
    different work, and the error that a job tells. After an error the directory stays.
    """
    check(request)
    prerequisites.check_java()
    prerequisites.check_spark()
    steady: list[Measured] = []
    small: list[Measured] = []
    with embedded.working_directory(
        "rhinoctl-bench-", keep=request.keep, what="bench", say=say
    ) as directory:
        for number, step in enumerate(plan(request)):
            say(f"{step.what}: starting")
            place = directory / f"{number}"
            measured = _run_step(place, step, request, say)
            (small if step is ADDED_STEP else steady).extend(measured)
            if not request.keep:
                shutil.rmtree(place, ignore_errors=True)
        rhino, spark, ratio = compare(steady)
    return BenchResult(
        query=request.query,
        rows=rhino.rows,
        state_mb=request.state_mb,
        sink=request.sink,
        rounds=request.rounds,
        rhino=rhino,
        spark=spark,
        ratio=ratio,
        added=added(small, ADDED_ROWS) if small else None,
    )


def check(request: BenchRequest) -> None:
    """Raise UsageError for a query or a sink that is not there."""
    for what, value, known in (
        ("query", request.query, QUERIES),
        ("sink", request.sink, SINKS),
    ):
        if value not in known:
            remedy = f"choose one of: {', '.join(known)}"
            raise UsageError(f"there is no {what} {value!r}", remedy=remedy)


_SMALL = {"rows": ADDED_ROWS, "warm_up": ADDED_WARM_UP}

ADDED_STEP = Step(
    what=f"batches of {ADDED_ROWS} rows",
    segments=(
        Segment(engine=Engine.EMPTY, batches=ADDED_BATCHES // 2, **_SMALL),
        Segment(engine=Engine.RHINO, batches=ADDED_BATCHES, **_SMALL),
        Segment(engine=Engine.EMPTY, batches=ADDED_BATCHES // 2, **_SMALL),
    ),
)
"""In one driver: a `foreachBatch` that does nothing before and after ours, as a JVM gets faster."""


def plan(request: BenchRequest) -> list[Step]:
    """The driver processes, in order."""
    steps = []
    for number in range(request.rounds):
        engines = (Engine.RHINO, Engine.SPARK)
        for engine in engines if number % 2 == 0 else reversed(engines):
            segment = Segment(
                engine=engine,
                rows=request.rows,
                warm_up=request.warm_up,
                batches=request.batches,
                state_mb=request.state_mb,
            )
            what = f"round {number + 1} of {request.rounds}, {engine.value}"
            steps.append(Step(what=what, segments=(segment,)))
    return [*steps, ADDED_STEP] if request.added else steps


def _run_step(place: Path, step: Step, request: BenchRequest, say: Say) -> list[Measured]:
    """One driver process from its start to its end, with a cluster if it needs one."""
    place.mkdir()
    with ExitStack() as stack:
        cluster = None
        if step.needs_cluster:
            quiet = embedded.embedded_cluster(place / "cluster", WORKERS, lambda _: None)
            cluster = stack.enter_context(quiet)
        settings = place / "job.json"
        settings.write_bytes(codec.dumps(_settings(place, step, request, cluster)))
        log = place / "job.log"
        environ = embedded.job_environ(place, cluster.run if cluster else str(place))
        child = stack.enter_context(
            Child("rhinoctl.spark.bench", str(settings), log=log, environ=environ)
        )
        return _follow(child, step, log, say)


def _settings(
    place: Path, step: Step, request: BenchRequest, cluster: embedded.Embedded | None
) -> dict[str, object]:
    """What `rhinoctl.spark.bench` is started with."""
    return {
        "controller": cluster.controller if cluster else "",
        "token_file": cluster.token_file if cluster else "",
        "directory": str(place),
        "query": request.query,
        "sink": request.sink,
        "segments": [codec.to_json(segment) for segment in step.segments],
        "keys": KEYS,
        "instances": INSTANCES,
        "vnodes": VNODES,
        "seed": SEED,
    }


def _follow(child: Child, step: Step, log: Path, say: Say) -> list[Measured]:
    """Take the job's events until it is done; returns what it measured."""
    measured: list[Measured] = []
    heard_at = time.monotonic()
    while True:
        event = embedded.next_event(child, LOOK_S, lambda: step.what, log)
        now = time.monotonic()
        if event is None:
            if now - heard_at > SILENCE_S:
                raise DeadlineExceeded(
                    f"the job has said nothing for {SILENCE_S:.0f} s", remedy=f"see its log: {log}"
                )
            continue
        heard_at = now
        match event.get("event"):
            case "error":
                told = [str(event.get(key)) for key in ("code", "message", "remedy")]
                raise error_of(told[0], told[1], remedy=told[2])
            case "measured":
                measured.append(_read(event))
                say(f"{step.what}: {_line(measured[-1])}")
            case "done":
                return measured


def _read(event: dict[str, Any]) -> Measured:
    image = {name: event.get(name) for name in ("engine", "batches")}
    try:
        found: Measured = codec.from_json(Measured, image)
    except codec.CodecError as fault:
        raise RhinoError(
            f"the job's event 'measured' is not understood: {fault}", remedy="report this"
        ) from fault
    return found


def _line(measured: Measured) -> str:
    found = figures(batches_of([measured], measured.engine))
    return f"{found.batches} batches ({measured.engine.value}), median {found.batch_ms:.0f} ms"
