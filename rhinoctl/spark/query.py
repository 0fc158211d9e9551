"""What Spark's own objects say of the running query: the one place that reaches into the JVM.

Facts of PySpark 4.2 and 4.3, held by ``tests/integration/test_query_facts.py``.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import pyspark
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StringType, StructType

from rhinoctl.errors import UnsupportedOperator, UnsupportedSpark

MINIMUM = (4, 2)

TUNED = {
    "spark.sql.execution.arrow.maxRecordsPerBatch": "65536",
    "spark.sql.execution.arrow.maxBytesPerBatch": str(2**31 - 1),
}
"""Larger Arrow batches; and no limit to their bytes, since Spark would add up the sizes of all
columns after every row to keep it: a third of the time of a large batch. Rows bound them still."""

ROW_BY_ROW = frozenset(
    {
        *("WriteToMicroBatchDataSource", "WriteToMicroBatchDataSourceV1"),
        *("StreamingDataSourceV2ScanRelation", "StreamingExecutionRelation", "LocalRelation"),
        *("Union", "Project", "Filter", "SubqueryAlias", "EventTimeWatermark"),
    }
)
"""Nodes of a logical plan that have no more rows than their inputs together."""

QUERY_ID = "sql.streaming.queryId"
RUN_ID = "spark.jobGroup.id"
"""Local properties of a query's thread: Spark groups the jobs of a run by its id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchFacts:
    """One batch of a query. Offsets are Spark's JSON texts of all sources, in their order, as one
    JSON list; the start is empty text for the first batch. `rows_at_most` bounds its rows, where
    that can be told without reading them."""

    query_id: str
    run_id: str
    batch: int
    start_offsets: str
    end_offsets: str
    batch_time_ms: int
    rows_at_most: int | None = None


def check_session(spark: object) -> None:
    """Raise UnsupportedSpark for Spark Connect and for versions before 4.2."""
    if type(spark).__module__.startswith("pyspark.sql.connect"):
        raise UnsupportedSpark(
            "this is a Spark Connect session; rhinoctl needs the driver's own",
            remedy="create the session without `remote`, in the driver's process",
        )
    version = tuple(int(part) for part in pyspark.__version__.split(".")[:2])
    if version < MINIMUM:
        raise UnsupportedSpark(
            f"PySpark {pyspark.__version__}; rhinoctl needs 4.2 or later",
            remedy="pip install 'rhinoctl[spark]'",
        )


def check_workers_python(spark: SparkSession) -> None:
    """Raise UnsupportedSpark if a local session's Python workers would not find rhinoctl.

    Spark takes PYSPARK_PYTHON, or else whatever ``python3`` the PATH has, when the session is made.
    """
    context = spark.sparkContext
    if not str(context.master).startswith("local"):
        return
    python = shutil.which(context.pythonExec) or context.pythonExec
    if os.path.realpath(python) == os.path.realpath(sys.executable) and python == sys.executable:
        return
    probe = [python, "-c", "import rhinoctl.operators, pyarrow.flight"]
    try:
        found = subprocess.run(probe, capture_output=True, timeout=60, check=False).returncode == 0
    except OSError:
        found = False
    if not found:
        raise UnsupportedSpark(
            f"Spark's Python workers run {python}, which has no rhinoctl",
            remedy=f"set PYSPARK_PYTHON={sys.executable} before the session is made",
        )


def check_execution(name: str, trigger: str) -> None:
    """Raise UnsupportedSpark for a continuous or real-time trigger, and for asynchronous progress
    tracking, by the JVM's class names."""
    if "Continuous" in name + trigger or "RealTime" in trigger:
        raise UnsupportedSpark(
            f"the query runs with {trigger}: there are no micro-batches to decide",
            remedy="use a processing-time or availableNow trigger",
        )
    if "Async" in name:
        raise UnsupportedSpark(
            "the query tracks its progress asynchronously: a batch may start before the one before"
            " it is committed",
            remedy="leave the option asyncProgressTrackingEnabled out",
        )


def check_collations(schema: StructType, columns: Iterable[str]) -> None:
    """Raise UnsupportedOperator for a collated text column: Arrow's schema does not show it."""
    needed = set(columns)
    for field in schema.fields:
        kind = field.dataType
        if (
            field.name in needed
            and isinstance(kind, StringType)
            and kind.collation != "UTF8_BINARY"
        ):
            raise UnsupportedOperator(
                f"column {field.name} has collation {kind.collation}",
                remedy=f"select collate({field.name}, 'UTF8_BINARY') before the sink",
            )


def tune(session: SparkSession) -> None:
    """Set what makes staging fast in a query's own session, which Spark clones for each run, except
    where somebody has set it already."""
    known: Any = session._jsparkSession.sessionState().conf()
    for name, value in TUNED.items():
        if not known.contains(name):
            session.conf.set(name, value)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    """One run of a query: its ids and its offset log, and whether its plan makes no row of its own:
    each of the batch's is one of a source's."""

    query_id: str
    run_id: str
    log: Any
    keeps_rows: bool


class QueryFacts:
    """The facts of the batch whose callback is running. `spark` is the session that started the
    query: the one of the callback's frame does not know it."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._run: _Run | None = None
        self._last: BatchFacts | None = None

    def of(self, frame: DataFrame, batch: int) -> BatchFacts:
        """Read them. Raises UnsupportedSpark as `check_execution` does."""
        context = frame.sparkSession.sparkContext
        run_id = context.getLocalProperty(RUN_ID)
        if self._run is None or self._run.run_id != run_id:
            self._run = self._running(context.getLocalProperty(QUERY_ID))
            self._last = None
        run = self._run
        if self._last is not None and self._last.batch == batch - 1:
            start = self._last.end_offsets
        else:
            before = run.log.get(batch - 1) if batch > 0 else None
            start = _offsets(before.get()) if before is not None and before.isDefined() else ""
        end = run.log.get(batch).get()
        metadata = end.metadataOpt()
        offsets = _offsets(end)
        self._last = BatchFacts(
            query_id=run.query_id,
            run_id=run.run_id,
            batch=batch,
            start_offsets=start,
            end_offsets=offsets,
            batch_time_ms=metadata.get().batchTimestampMs() if metadata.isDefined() else 0,
            rows_at_most=rows_between(start, offsets) if run.keeps_rows else None,
        )
        return self._last

    def _running(self, query_id: str | None) -> "_Run":
        """The run that the callback is of, checked."""
        query = self._spark.streams.get(query_id) if query_id else None
        if query is None or query_id is None:
            raise UnsupportedSpark(
                "the callback does not run in a streaming query of the session given to Rhino",
                remedy="create Rhino with the session that starts the query",
            )
        execution: Any = query._jsq.streamingQuery()
        check_execution(
            execution.getClass().getSimpleName(), execution.trigger().getClass().getSimpleName()
        )
        return _Run(
            query_id=query_id,
            run_id=str(query.runId),
            log=execution.offsetLog(),
            keeps_rows=all(name in ROW_BY_ROW for name in _node_names(execution.logicalPlan())),
        )


def marker_of(offsets: str) -> int:
    """The counter of the marker stream in a batch's offsets; 0 without such a stream."""
    known = json.loads(offsets)
    for text in known.values() if isinstance(known, dict) else known:
        offset = json.loads(text) if text else None
        if isinstance(offset, dict) and offset.keys() == {"marker"}:
            return int(offset["marker"])
    return 0


def rows_between(start: str, end: str) -> int | None:
    """A bound for the rows that sources read between two texts of offsets; None if they do not say.

    Kafka's offsets and the generator's do, each by numbers that rise by one a row or less often.
    """
    before, after = _each(start), _each(end)
    if before.keys() != after.keys():
        return None
    rows = [_rows_between(before[each], after[each]) for each in after]
    return None if None in rows else sum(filter(None, rows))


def _each(offsets: str) -> dict[str, Any]:
    """The offset of each source, by its name or place; none for empty text."""
    known = json.loads(offsets) if offsets else {}
    texts = known.items() if isinstance(known, dict) else enumerate(known)
    return {str(source): json.loads(text) if text else None for source, text in texts}


def _rows_between(low: Any, high: Any) -> int | None:
    """The same for one source."""
    if low == high:
        return 0
    match low, high:
        case {"marker": _, **others}, _ if not others:
            return 0
        case {"n": int(before), **others}, {"n": int(after)} if not others:
            return after - before
        case dict(), dict() if low and all(isinstance(each, dict) for each in high.values()):
            return _kafka_rows(low, high)
        case _:
            return None


def _kafka_rows(low: dict[str, Any], high: dict[str, Any]) -> int | None:
    """Offsets by topic and partition. A partition that is new may begin with its first record."""
    total = 0
    for topic, partitions in high.items():
        before = low.get(topic, {})
        for partition, after in partitions.items():
            if not partition.isdecimal() or not isinstance(after, int):
                return None
            total += after - before.get(partition, 0)
    return total


def _node_names(plan: Any) -> Iterator[str]:
    """The names of all nodes of a plan of the JVM's."""
    yield plan.nodeName()
    children = plan.children()
    for at in range(children.size()):
        yield from _node_names(children.apply(at))


def _offsets(entry: Any) -> str:
    """The offsets of an entry of the offset log, of format 1 (a sequence) or 2 (a map)."""
    if entry.getClass().getSimpleName() == "OffsetSeq":
        sequence = entry.offsets()
        items = [sequence.apply(at) for at in range(sequence.size())]
        return json.dumps([item.get().json() if item.isDefined() else None for item in items])
    found = {}
    pairs = entry.offsetsMap().toSeq()
    for at in range(pairs.size()):
        pair = pairs.apply(at)
        found[pair._1()] = pair._2().get().json() if pair._2().isDefined() else None
    return json.dumps(found, sort_keys=True)
