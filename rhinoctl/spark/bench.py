"""The bench's job: full batches through rhino, through Spark's own state store, or through nothing.

`python -m rhinoctl.spark.bench CONFIG.json`, started by `rhinoctl bench`. It runs one query after
the other, tells of each in a JSON line on standard output, and ends with its parent.

The generator's clock started years ago and is far ahead, so that each batch is as large as
``max_events_per_batch`` lets it be, of each of the query's streams. Both engines read the same
rows, and both have a `foreachBatch` that gets the result of the batch: as Arrow in the driver
(``fetch``), or nowhere (``drop``: Spark's rows go to its ``noop`` sink, rhino's stay with the
instances). The empty one never runs its frame, and reads the source without rhino's marker stream,
whose cost is rhino's.
"""

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from rhinoctl.errors import DeadlineExceeded, RhinoError
from rhinoctl.operators import Operator, RunningAggregate
from rhinoctl.protocol import codec
from rhinoctl.spark import queries
from rhinoctl.spark.demo import (
    PRELOAD_BATCH,
    STALL_S,
    end_with_parent,
    session,
    tell,
)
from rhinoctl.spark.nexmark import CYCLE, Kind
from rhinoctl.spark.queries import (
    PAD_BYTES,
    Counts,
    Read,
    padded_rows,
    rows_a_cycle,
    rows_between,
)
from rhinoctl.spark.result import Result
from rhinoctl.spark.rhino import Rhino
from rhinoctl.spark.source import nexmark_stream

BASE_MS: Final = 1_699_966_800_000
"""An hour into a window of 12 hours."""

PRELOAD_MS: Final = BASE_MS - 10_000
"""In the windows with which the clock starts. Q5 drops what is preloaded within a minute of it."""

RATE: Final = 100_000
"""Events a second of the clock, which only sets their times, not the pace: a million bids take 11 s
of it, so that every batch of Q5 ends a window."""

Kinds = tuple[Kind, ...]

JOB: Final = "bench"

STATE_STORE: Final = {
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    "spark.sql.streaming.numRecentProgressUpdates": "10000",
}
"""Spark's state store for large state, and a history of progress that holds all batches."""

PARTS: Final = {
    "fencing": "open",
    "opening": "open",
    "staging": "stage",
    "sealing": "seal",
    "applying": "apply",
}
"""The part of a batch's time that each phase of the batch machine counts to."""


class Engine(Enum):
    """As in `rhinoctl.ops.bench_figures`."""

    RHINO = "rhino"
    SPARK = "spark"
    EMPTY = "empty"


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """One query: `warm_up` batches of `rows` rows, then `batches` that are measured."""

    engine: Engine
    rows: int
    warm_up: int
    batches: int
    state_mb: int

    @property
    def preload(self) -> int:
        """Keys with padding: about `state_mb` megabytes of state, as in the demo."""
        return padded_rows(self.state_mb)

    def batch_events(self, kinds: Kinds) -> int:
        """Events of all kinds in a batch with so many rows of some kinds."""
        return -(-self.rows * CYCLE // rows_a_cycle(kinds))

    def measured_from(self, kinds: Kinds) -> int:
        """The event with which the first measured batch begins."""
        return self.preload + self.warm_up * self.batch_events(kinds)

    def events(self, kinds: Kinds) -> int:
        """All events of the query."""
        return self.measured_from(kinds) + self.batches * self.batch_events(kinds)


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchConfig:
    """What `rhinoctl bench` asks for. `directory` takes the checkpoints."""

    controller: str
    token_file: str
    directory: str
    query: str
    sink: str
    segments: tuple[Segment, ...]
    keys: int
    instances: int
    vnodes: int
    seed: int
    partitions: int = 2


class PlainCounts(Counts):
    """Count and sum alone, the least work for a row."""

    def operator(self) -> Operator:
        aggregates: dict[str, Any] = {"bids": "count", "total": ("sum", "price")}
        if self.padded:
            aggregates["pad"] = ("max", "pad")
        return RunningAggregate(keys=["auction"], aggregates=aggregates)

    def own(self, read: Read) -> DataFrame:
        aggregates = [F.count("*").alias("bids"), F.sum("price").alias("total")]
        if self.padded:
            aggregates.append(F.max("pad").alias("pad"))
        return read(stream="bid").groupBy("auction").agg(*aggregates)


QUERIES: Final = {**queries.QUERIES, "counts": PlainCounts}
"""By name. Both engines put out the same rows: with counts the new row of each key that a batch
touched, with q5 the windows that are over, with q8 the pairs that a batch completed."""


class Run:
    """One query from its start to its last batch, and what was measured of it."""

    def __init__(
        self, spark: SparkSession, config: BenchConfig, segment: Segment, place: Path
    ) -> None:
        self._spark = spark
        self._config = config
        self._segment = segment
        self._place = place
        self._query = QUERIES[config.query](padded=segment.preload > 0)
        self._seconds: dict[int, dict[str, float]] = {}
        self._rows_out: dict[int, int] = {}
        self._output_s = 0.0
        self._rows = -1
        self._done = threading.Condition()

    def run(self) -> None:
        """Run it and tell of its batches. Raises what the query fails with."""
        engine = self._segment.engine
        if engine is Engine.RHINO:
            self._run_rhino()
        elif engine is Engine.SPARK:
            self._follow(
                self._query.own(self._read), self._timed(self._take_spark), self._query.mode
            )
        else:
            self._follow(self._query.frame(self._read), self._timed(lambda frame, batch: None))

    def _read(self, stream: str) -> DataFrame:
        segment, config, kinds = self._segment, self._config, self._query.kinds
        return nexmark_stream(
            self._spark,
            stream=stream,
            rate=RATE,
            base_ms=BASE_MS,
            events=segment.events(kinds),
            max_events_per_batch=segment.batch_events(kinds),
            keys=config.keys,
            seed=config.seed,
            preload=segment.preload,
            preload_kind=kinds[0].value,
            preload_ms=PRELOAD_MS,
            preload_per_batch=PRELOAD_BATCH,
            pad_bytes=PAD_BYTES if self._query.padded else 0,
            partitions=config.partitions,
        )

    # --- the callbacks ---------------------------------------------------------------------------

    def _run_rhino(self) -> None:
        config = self._config
        os.environ["RHINO_TOKEN_FILE"] = config.token_file
        with Rhino(
            self._spark,
            JOB,
            controller=config.controller,
            instances=config.instances,
            vnodes=config.vnodes,
        ) as rhino:
            sink = rhino.sink(self._query.operator(), then=self._take_rhino)

            def callback(frame: DataFrame, batch: int) -> dict[str, float]:
                sink(frame, batch)
                assert rhino.last is not None
                parts: dict[str, float] = {}
                for phase, spent in rhino.last.seconds.items():
                    part = PARTS.get(phase, "driver")
                    parts[part] = parts.get(part, 0.0) + spent
                parts["output"] = self._output_s
                return parts

            frame = rhino.mark(self._query.frame(self._read))
            self._follow(frame, self._timed(callback), rhino=rhino)

    def _take_rhino(self, result: Result, batch: int) -> None:
        began = time.perf_counter()
        self._rows = result.arrow.num_rows if self._config.sink == "fetch" else result.rows
        self._output_s = time.perf_counter() - began

    def _take_spark(self, frame: DataFrame, batch: int) -> dict[str, float]:
        began = time.perf_counter()
        if self._config.sink == "fetch":
            self._rows = frame.toArrow().num_rows
        else:
            frame.write.format("noop").mode("append").save()
        return {"query": time.perf_counter() - began}

    def _timed(
        self, callback: Callable[[DataFrame, int], dict[str, float] | None]
    ) -> Callable[[DataFrame, int], None]:
        """The callback for Spark: what it does not account for is its driver's own time."""

        def run(frame: DataFrame, batch: int) -> None:
            began = time.perf_counter()
            parts = callback(frame, batch) or {}
            whole = time.perf_counter() - began
            parts["driver"] = parts.get("driver", 0.0) + whole - sum(parts.values())
            with self._done:
                self._seconds[batch] = parts
                self._rows_out[batch] = self._rows
                self._done.notify()

        return run

    # --- the query -------------------------------------------------------------------------------

    def _follow(
        self,
        frame: DataFrame,
        callback: Callable[[DataFrame, int], None],
        mode: str = "append",
        rhino: Rhino | None = None,
    ) -> None:
        """Start the query, wait for its last event, stop it, and tell of its batches."""
        writer = frame.writeStream.outputMode(mode)
        writer = writer.foreachBatch(callback).option("checkpointLocation", str(self._place))
        query = writer.start()
        try:
            progress = self._until_last(query, rhino)
        finally:
            query.stop()
        tell("measured", engine=self._segment.engine.value, batches=self._measured(progress))

    def _until_last(self, query: Any, rhino: Rhino | None) -> list[Mapping[str, Any]]:
        """Spark's progress of all batches, once there is that of the last one. Looks at it only
        after a batch, so that the query has the processors for itself."""
        events = self._segment.events(self._query.kinds)
        seen, quiet_since = -1, time.monotonic()
        while True:
            with self._done:
                self._done.wait(1.0)
                count = len(self._seconds)
            if query.exception() is not None:
                raise (rhino.fault if rhino is not None else None) or query.exception()
            if count != seen:
                seen, quiet_since = count, time.monotonic()
                tell("batches", engine=self._segment.engine.value, batches=count)
            elif time.monotonic() - quiet_since > STALL_S:
                raise DeadlineExceeded(
                    f"no batch for {STALL_S:.0f} s", remedy="see the job's log; use fewer --rows"
                )
            last = query.lastProgress
            if last is not None and _offset(last["sources"][0]["endOffset"]) >= events:
                return list(query.recentProgress)

    def _measured(self, progress: list[Mapping[str, Any]]) -> list[dict[str, object]]:
        first = self._segment.measured_from(self._query.kinds)
        found = []
        for each in progress:
            source = each["sources"][0]
            start, end = _offset(source["startOffset"]), _offset(source["endOffset"])
            if start >= first and end > start:
                found.append(self._batch(each, start, end))
        return found

    def _batch(self, progress: Mapping[str, Any], start: int, end: int) -> dict[str, object]:
        """One batch in the terms of `rhinoctl.ops.bench_figures.Batch`."""
        took = {name: ms / 1000 for name, ms in dict(progress["durationMs"]).items()}
        batch_s, _ = took.pop("triggerExecution"), took.pop("addBatch", 0.0)
        batch = int(progress["batchId"])
        seconds = dict(self._seconds[batch])
        seconds["spark"] = batch_s - sum(seconds.values())
        return {
            "rows": rows_between(self._query.kinds, self._segment.preload, start, end),
            "rows_out": self._rows_out[batch],
            "batch_s": batch_s,
            "seconds": seconds,
            "spark_seconds": took,
        }


def _offset(text: str | None) -> int:
    """The generator's offset; 0 before the first batch."""
    image = json.loads(text) if text else None
    return int(image["n"]) if image else 0


def main(argv: list[str]) -> int:
    config: BenchConfig = codec.loads(BenchConfig, Path(argv[0]).read_bytes())
    end_with_parent()
    try:
        spark = session()
        for name, value in STATE_STORE.items():
            spark.conf.set(name, value)
        tell("started", pid=os.getpid())
        for number, segment in enumerate(config.segments):
            place = Path(config.directory) / f"checkpoint-{number}"
            Run(spark, config, segment, place).run()
        tell("done")
    except RhinoError as fault:
        tell("error", code=fault.code, message=fault.message, remedy=fault.remedy)
        return int(fault.exit_code)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
