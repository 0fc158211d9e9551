"""Staging: one Spark job, no shuffle, whose tasks push every vnode's rows to its owner's worker.

A task is a *channel*. It takes its rows as Arrow, pre-aggregates them, sorts them by vnode, and
pushes once per worker (design, section 4, step 2). A push that fails is told in the receipt, not
raised: `local[N]` never retries a task, and the whole batch is staged anew in the next attempt.

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

from rhinoctl.ids import KEY_GROUPS
from rhinoctl.operators import bound_from_json
from rhinoctl.operators.base import KEY_GROUP, BoundOperator, Operator
from rhinoctl.protocol import batches, codec
from rhinoctl.spark.query import tune
from rhinoctl.spark.slices import StagePlan as StagePlan
from rhinoctl.spark.slices import push_rows
from rhinoctl.spark.tagging import quoted
from rhinoctl.spark.workers import settle
from rhinoctl.wire.secret import Secret

RECEIPT = "receipt string"
"""The schema of what a task returns: one JSON text."""

PLAN = "rhino.stage"
"""The local property that has the batch's plan."""

Push = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]


class Staging:
    """The stage of one operator's batches. `spec` is its bound form as JSON text."""

    def __init__(self, operator: Operator, spec: str, token: Secret) -> None:
        names = operator.columns()
        self._projection = projection(operator)
        self._push = pusher(spec, token, names)
        self._columns = [KEY_GROUP, *(f"c{at}" for at in range(len(names)))]
        self._function: Any = None
        self._session = 0

    def stage(self, frame: DataFrame, plan: StagePlan) -> batches.Staged:
        """Run the job: project, hash, push. Returns the receipts and the failures of its tasks."""
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
        receipts, failures = [], []
        for row in DataFrame(mapped, session).collect():
            told = json.loads(row.receipt)
            failures += told["failures"]
            receipts.append(codec.from_json(batches.Receipt, told["receipt"]))
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


def pusher(spec: str, token: Secret, names: tuple[str, ...]) -> Push:
    """The function that a task runs over its Arrow batches, whose columns after the key group are
    those of `names`."""

    def push(source: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        settle()
        context = TaskContext.get()
        assert context is not None
        plan = codec.from_json(StagePlan, json.loads(context.getLocalProperty(PLAN) or "null"))
        pieces = [piece.rename_columns([KEY_GROUP, *names]) for piece in source]
        receipt, failures = push_rows(
            plan,
            _bound(spec),
            pieces,
            token=token,
            channel=context.partitionId(),
            task_attempt=context.taskAttemptId(),
        )
        told = {"receipt": codec.to_json(receipt), "failures": failures}
        yield pa.RecordBatch.from_pydict({"receipt": [json.dumps(told)]})

    return push


@lru_cache(maxsize=8)
def _bound(spec: str) -> BoundOperator:
    """The operator, made once in a worker process."""
    return bound_from_json(json.loads(spec))
