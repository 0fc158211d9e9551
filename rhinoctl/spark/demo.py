"""The demo's job: a real streaming query of NEXMark whose state lives in instances.

`python -m rhinoctl.spark.demo CONFIG.json`, started by `rhinoctl demo`. It tells of itself in JSON
lines on standard output and ends with its parent: when standard input closes. Run again with the
same directory it goes on where it was.
"""

import json
import os
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from rhinoctl.errors import DeadlineExceeded, RhinoError
from rhinoctl.protocol import codec, watermarks
from rhinoctl.spark.latency import LatencyRecord
from rhinoctl.spark.nexmark import CYCLE, PRELOAD_MS
from rhinoctl.spark.queries import (
    PAD_BYTES,
    NexmarkQuery,
    padded_rows,
    query_of,
    rows_a_cycle,
    rows_between,
)
from rhinoctl.spark.result import Result
from rhinoctl.spark.rhino import Rhino
from rhinoctl.spark.source import nexmark_batch, nexmark_stream
from rhinoctl.spark.tagging import quoted

WARM_UP = 2000
"""Rows that pass through everything before the clock starts: Spark starts its Python processes,
and loads its classes, with the first batch that has rows."""

SIDE = "__side"
"""Which of two results a row is of, as a column."""

STALL_S = 360.0
"""A demo whose stream stands still for so long has failed."""

PRELOAD_BATCH = 20_000
"""Preloaded rows of a batch: what an instance has in its hands at a time is some of its memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoConfig:
    """What `rhinoctl demo` asks for. `directory` takes checkpoint, results and the clock file.
    `trigger_ms` is the least time from batch to batch."""

    job: str
    controller: str
    token_file: str
    directory: str
    query: str
    rate: int
    seconds: float
    state_mb: int
    keys: int
    instances: int
    vnodes: int
    seed: int
    replication: int = 0
    preload_ms: int = PRELOAD_MS
    partitions: int = 2
    trigger_ms: int = 0
    brief: bool = False

    @property
    def preload(self) -> int:
        """Preloaded keys: about `state_mb` megabytes of state, or a few to warm up with."""
        return max(WARM_UP, padded_rows(self.state_mb))

    @property
    def made(self) -> NexmarkQuery:
        """The query."""
        return query_of(self.query, padded=self.state_mb > 0)

    @property
    def event_rate(self) -> int:
        """Events a second of which about `rate` are rows of the query's streams."""
        return self.rate * CYCLE // rows_a_cycle(self.made.kinds)

    @property
    def events(self) -> int:
        """All events of the run."""
        return self.preload + int(self.event_rate * self.seconds)

    def options(self) -> dict[str, object]:
        """The generator's options, but for stream and clock."""
        return {
            "rate": self.event_rate,
            "events": self.events,
            "keys": self.keys,
            "seed": self.seed,
            "preload": self.preload,
            "preload_kind": self.made.kinds[0].value,
            "preload_ms": self.preload_ms,
            "preload_per_batch": PRELOAD_BATCH,
            "pad_bytes": PAD_BYTES if self.state_mb else 0,
            "partitions": self.partitions,
        }


def tell(event: str, **keys: Any) -> None:
    """One JSON line to whoever started this process."""
    print(json.dumps({"event": event, **keys}), flush=True)


class Demo:
    """One run of the demo's query."""

    def __init__(self, config: DemoConfig) -> None:
        self._config = config
        self._query = config.made
        self._operator = self._query.operator()
        self._root = Path(config.directory)
        self._clock_file = self._root / "clock"
        self._latency = LatencyRecord()
        self._progress = threading.Condition()
        self._end = -1
        self._watermark_ms = 0
        self._pending = False
        self._quiet_since = time.monotonic()
        self._batches = 0
        self._rows_out = 0
        self._base_ms = self._read_clock()
        (self._root / "out").mkdir(parents=True, exist_ok=True)

    def run(self) -> bool:
        """Run the query to its end and compare; whether the results are equal."""
        spark = session(brief=self._config.brief)
        tell("started", pid=os.getpid(), events=self._config.events)
        os.environ["RHINO_TOKEN_FILE"] = self._config.token_file
        with Rhino(
            spark,
            self._config.job,
            controller=self._config.controller,
            instances=self._config.instances,
            vnodes=self._config.vnodes,
            replication=self._config.replication,
        ) as rhino:
            self._rhino = rhino
            read = partial(
                nexmark_stream, spark, **self._config.options(), clock_file=str(self._clock_file)
            )
            writer = rhino.mark(self._query.frame(read)).writeStream.foreachBatch(
                rhino.sink(self._operator, then=self._take)
            )
            writer = writer.trigger(processingTime=f"{self._config.trigger_ms} milliseconds")
            query = writer.option("checkpointLocation", str(self._root / "checkpoint")).start()
            try:
                self._follow(query, rhino)
            finally:
                query.stop()
        tell("checking")
        verdict = self._check(spark)
        tell(
            "result",
            batches=self._batches,
            rows_in=self._rows(0, self._config.events),
            rows_out=self._rows_out,
            latency_ms=self._latency.summary(),
            oracle=verdict,
        )
        return bool(verdict["equal"])

    def _rows(self, start: int, end: int) -> int:
        """Rows of the query's streams among some events."""
        return rows_between(self._query.kinds, self._config.preload, start, end)

    def _follow(self, query: Any, rhino: Rhino) -> None:
        """Start the clock once the preload is in, and wait for the last event."""
        rhino.wake()
        while self._end < self._config.events or self._pending:
            with self._progress:
                moved = self._progress.wait(1.0)
            if query.exception() is not None:
                raise rhino.fault or query.exception()
            if not query.isActive:
                raise DeadlineExceeded(
                    "the query ended early", remedy="see the job's log in the demo's directory"
                )
            if moved:
                self._quiet_since = time.monotonic()
            elif time.monotonic() - self._quiet_since > STALL_S:
                raise DeadlineExceeded(
                    f"no batch for {STALL_S:.0f} s",
                    remedy="see job.log in the demo's directory; a busy machine needs longer",
                )
            if self._base_ms is None and self._end >= self._config.preload:
                self._start_clock()

    def _read_clock(self) -> int | None:
        return int(self._clock_file.read_text()) if self._clock_file.exists() else None

    def _start_clock(self) -> None:
        self._base_ms = int(time.time() * 1000)
        new = self._root / "clock.new"
        new.write_text(str(self._base_ms))
        os.replace(new, self._clock_file)
        tell("clock", base_ms=self._base_ms)

    # --- what comes out --------------------------------------------------------------------------

    def _take(self, result: Result, batch: int) -> None:
        """Keep a batch's result under its id: a repeated batch writes the same file again."""
        path = self._root / "out" / f"{batch:09d}.arrow"
        table = result.arrow
        with pa.OSFile(f"{path}.tmp", "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table)
        os.replace(f"{path}.tmp", path)
        record = result.state.record
        assert record is not None
        assert self._rhino.last is not None
        start, end = _number(record.start_offsets), _number(record.end_offsets)
        now_ms = time.time() * 1000
        preload = self._config.preload
        latency = None
        if self._base_ms is not None and end > max(start, preload):
            first = self._created_ms(max(start, preload))
            last = self._created_ms(end - 1)
            latency = self._latency.add(now_ms - last, now_ms - first, end - max(start, 0))
        self._batches += 1
        self._rows_out += table.num_rows
        tell(
            "batch",
            batch=batch,
            rows_in=self._rows(start, end),
            rows_out=table.num_rows,
            batch_ms=1000 * sum(self._rhino.last.seconds.values()),
            seconds=self._rhino.last.seconds,
            latency_ms=latency,
            epoch=record.next_epoch.number,
            replayed=result.state.replayed,
        )
        if self._config.state_mb and end <= self._config.preload:
            tell("preloading", rows=end, of=self._config.preload)
        marks = record.watermarks
        with self._progress:
            self._end = end
            self._watermark_ms = marks.evict_ms
            self._pending = watermarks.rises(marks, self._rhino.delays_ms)
            self._progress.notify()

    def _created_ms(self, n: int) -> float:
        assert self._base_ms is not None
        return self._base_ms + (n - self._config.preload) * 1000 / self._config.event_rate

    # --- the oracle ------------------------------------------------------------------------------

    def _check(self, spark: SparkSession) -> dict[str, Any]:
        """Compare with Spark's own batch result over the same input, row for row."""
        merged = self._root / "result.parquet"
        files = sorted((self._root / "out").glob("*.arrow"))
        rows = write_result(files, merged, last_by=self._query.last_by)
        read = partial(nexmark_batch, spark, **self._config.options(), base_ms=self._base_ms or 0)
        whole = self._query.over(self._query.own(read), self._watermark_ms)
        found = compared(_comparable(whole), _comparable(spark.read.parquet(str(merged))))
        equal = found["missing"] == 0 and found["extra"] == 0 and rows == found["rows"]
        return {**found, "equal": equal}


def _number(offsets: str) -> int:
    """The generator's least offset among those of a batch's sources; 0 before the first."""
    found = []
    for text in json.loads(offsets) if offsets else ():
        image = json.loads(text) if text else {}
        if "n" in image:
            found.append(int(image["n"]))
    return min(found, default=0)


def _comparable(frame: DataFrame) -> DataFrame:
    """Padding is compared by its hash, which fits in memory."""
    if "pad" in frame.columns:
        frame = frame.withColumn("pad", F.sha2(F.col("pad"), 256))
    return frame.select(sorted(frame.columns))


def compared(oracle: DataFrame, ours: DataFrame) -> dict[str, int]:
    """The rows of the oracle, those of them that ours lacks, and those that it has beyond them, in
    one pass: what `exceptAll` both ways tells, for half the time."""
    columns = [quoted(name) for name in oracle.columns]
    sides = oracle.withColumn(SIDE, F.lit(1)).unionByName(ours.withColumn(SIDE, F.lit(-1)))
    rows = sides.groupBy(*columns).agg(
        F.count_if(F.col(SIDE) > 0).alias("rows"), F.sum(SIDE).alias("over")
    )
    sums = rows.agg(
        F.sum("rows").alias("rows"),
        F.sum(F.greatest(F.col("over"), F.lit(0))).alias("missing"),
        F.sum(F.greatest(-F.col("over"), F.lit(0))).alias("extra"),
    ).first()
    assert sums is not None
    return {name: int(value or 0) for name, value in sums.asDict().items()}


def write_result(files: list[Path], target: Path, *, last_by: Sequence[str]) -> int:
    """Write the final result: the newest row of each key, in update mode, or every row that came;
    returns their number."""
    tables = []
    for path in files:
        with pa.memory_map(str(path)) as source:
            tables.append(pa.ipc.open_file(source).read_all())
    final = pa.concat_tables(tables)
    if last_by:
        place = final.select(last_by).append_column("at", pa.array(np.arange(final.num_rows)))
        last = place.group_by(list(last_by)).aggregate([("at", "max")])
        final = final.take(last.column("at_max"))
    pq.write_table(final, target)
    return final.num_rows


FOR_MINUTES = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""A JVM that starts sooner, and gets no faster with time."""


def session(*, brief: bool = False) -> SparkSession:
    """A local session, as small as the demo's machine; `brief`: it is over within minutes."""
    paths = os.pathsep.join(path for path in sys.path if path)
    os.environ["PYTHONPATH"] = paths
    builder = (
        SparkSession.builder.master("local[2]")
        .appName("rhinoctl demo")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.memory", "2g")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.execution.arrow.maxRecordsPerBatch", "65536")
        .config("spark.python.authenticate.socketTimeout", "60s")
        # Over TCP each exchange of a task with its Python process waits tens of milliseconds.
        .config("spark.python.unix.domain.socket.enabled", "true")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
    )
    if brief:
        builder = builder.config("spark.driver.extraJavaOptions", FOR_MINUTES)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def end_with_parent() -> None:
    """End this process at once when standard input closes: whoever started it is gone."""

    def watch() -> None:
        while sys.stdin.read(4096):
            pass
        os._exit(1)

    threading.Thread(target=watch, name="parent-watch", daemon=True).start()


def main(argv: list[str]) -> int:
    config: DemoConfig = codec.loads(DemoConfig, Path(argv[0]).read_bytes())
    end_with_parent()
    try:
        return 0 if Demo(config).run() else 1
    except RhinoError as fault:
        tell("error", code=fault.code, message=fault.message, remedy=fault.remedy)
        return int(fault.exit_code)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
