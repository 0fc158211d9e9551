"""Staging: one Spark job, no shuffle, whose tasks push every vnode's rows to its owner's worker.

A task is a *channel*. It takes its rows as Arrow, pre-aggregates them, sorts them by vnode, and
pushes once per worker (design, section 4, step 2). A push that fails is told in the receipt, not
raised: `local[N]` never retries a task, and the whole batch is staged anew in the next attempt.
Rows that the operator refuses are told, too, and the driver raises its error: nothing is sealed.

A small batch is gathered in the driver and pushed from there, as one channel
(`rhinoctl.spark.gather`).

What is the same for every batch is made once, since each call into the JVM costs as much as the
rows of a small batch: the projection is one text, and the tasks' function is one object with named
columns, bound to no frame. What differs travels beside it, as a local property of the Spark job.
"""

import json
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.functions import pandas_udf
from pyspark.util import PythonEvalType

from rhinoctl.errors import RhinoError, error_of
from rhinoctl.ids import KEY_GROUPS
from rhinoctl.operators import bound_from_json
from rhinoctl.operators.base import KEY_GROUP, BoundOperator, Operator
from rhinoctl.protocol import batches, codec
from rhinoctl.spark.gather import Gathering
from rhinoctl.spark.query import tune
from rhinoctl.spark.slices import StagePlan as StagePlan
from rhinoctl.spark.slices import push_rows, together
from rhinoctl.spark.tagging import quoted
from rhinoctl.spark.workers import settle
from rhinoctl.wire.credentials import Credentials

RECEIPT = "receipt string"
"""The schema of what a task returns: one JSON text."""

REFUSAL = "refusal"
"""In a task's text, the error of ours that its rows met."""

PLAN = "rhino.stage"
"""The local property that has the batch's plan."""

Push = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]


class Staging:
    """The stage of one operator's batches. `spec` is its bound form as JSON text."""

    def __init__(
        self, operator: Operator, bound: BoundOperator, spec: str, credentials: Credentials
    ) -> None:
        names = operator.columns()
        self._bound = bound
        self._credentials = credentials
        self._projection = projection(operator)
        self._push = pusher(spec, credentials, names)
        self._columns = [KEY_GROUP, *(f"c{at}" for at in range(len(names)))]
        self._gathering = Gathering(operator)
        self._function: Any = None
        self._session = 0

    def gather(self, frame: DataFrame, rows_at_most: int | None) -> pa.Table | None:
        """The rows of a small batch, for `stage`; they may be read before the batch is open."""
        return self._gathering.gather(frame, rows_at_most)

    def stage(self, frame: DataFrame, gathered: pa.Table | None, plan: StagePlan) -> batches.Staged:
        """Project, hash and push the rows. Returns the receipts and the failures of the pushes."""
        if gathered is None:
            return self._stage_in_tasks(frame, plan)
        receipt, failures = push_rows(
            *(plan, self._bound, gathered),
            credentials=self._credentials,
            channel=0,
            task_attempt=0,
            each=together,
        )
        return batches.Staged(attempt=plan.attempt, receipts=(receipt,), failures=tuple(failures))

    def _stage_in_tasks(self, frame: DataFrame, plan: StagePlan) -> batches.Staged:
        session = frame.sparkSession
        if self._function is None:
            made = pandas_udf(  # as DataFrame.mapInArrow does for each frame
                self._push, returnType=RECEIPT, functionType=PythonEvalType.SQL_MAP_ARROW_ITER_UDF
            )
            self._function = made(*map(F.col, self._columns))
        if self._session != plan.attempt.session:
            self._session = plan.attempt.session
            tune(session)
        session.sparkContext.setLocalProperty(PLAN, json.dumps(codec.to_json(plan)))
        needed = frame.selectExpr(*self._projection)
        mapped = needed._jdf.mapInArrow(self._function._jc, False, None)
        receipts, failures, rows, size = [], [], 0, 0
        for row in DataFrame(mapped, session).collect():
            told = json.loads(row.receipt)
            raise_refusal(told)
            failures += told["failures"]
            rows, size = rows + told["rows"], size + told["size"]
            receipts.append(codec.from_json(batches.Receipt, told["receipt"]))
        self._gathering.saw(rows, size)
        return batches.Staged(
            attempt=plan.attempt, receipts=tuple(receipts), failures=tuple(failures)
        )


def projection(operator: Operator) -> list[str]:
    """The key group, and the columns that the operator needs under names without dots and the
    like, which Spark would take for something else, as expressions of Spark's SQL."""
    keys = [
        f"coalesce({', '.join(column_of(name, operator.inputs) for name in names)})"
        for names in operator.key_columns()
    ]
    group = f"cast(pmod(xxhash64({', '.join(keys)}), {KEY_GROUPS}L) AS INT) AS {KEY_GROUP}"
    columns = [
        f"{column_of(name, operator.inputs)} AS c{at}" for at, name in enumerate(operator.columns())
    ]
    return [group, *columns]


def column_of(name: str, inputs: tuple[str, ...]) -> str:
    """A column of the frame, or a field of a tagged input, as Spark's SQL names it."""
    tag, dot, field = name.partition(".")
    if dot and tag in inputs:
        return f"{quoted(tag)}.{quoted(field)}"
    return quoted(name)


def pusher(spec: str, credentials: Credentials, names: tuple[str, ...]) -> Push:
    """The function that a task runs over its Arrow batches, whose columns after the key group are
    those of `names`."""

    def push(source: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        settle()
        context = TaskContext.get()
        assert context is not None
        plan = codec.from_json(StagePlan, json.loads(context.getLocalProperty(PLAN) or "null"))
        pieces = [piece.rename_columns([KEY_GROUP, *names]) for piece in source]
        table = pa.Table.from_batches(pieces) if pieces else None
        try:
            receipt, failures = push_rows(
                plan,
                _bound(spec),
                table,
                credentials=credentials,
                channel=context.partitionId(),
                task_attempt=context.taskAttemptId(),
                each=together,
            )
        except RhinoError as fault:
            told = {REFUSAL: [fault.code, fault.message, fault.remedy]}
        else:
            told = {
                "receipt": codec.to_json(receipt),
                "failures": failures,
                "rows": 0 if table is None else table.num_rows,
                "size": 0 if table is None else table.nbytes,
            }
        yield pa.RecordBatch.from_pydict({"receipt": [json.dumps(told)]})

    return push


def raise_refusal(told: dict[str, Any]) -> None:
    """Raise in the driver what a task has told instead of its receipt."""
    if REFUSAL in told:
        code, message, remedy = told[REFUSAL]
        raise error_of(code, message, remedy=remedy)


@lru_cache(maxsize=8)
def _bound(spec: str) -> BoundOperator:
    """The operator, made once in a worker process."""
    return bound_from_json(json.loads(spec))
