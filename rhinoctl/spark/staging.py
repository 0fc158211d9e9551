"""Staging: one Spark job, no shuffle, whose tasks push every vnode's rows to its owner's worker.

A task is a *channel*. It takes its rows as Arrow, pre-aggregates them, sorts them by vnode, and
pushes once per worker (design, section 4, step 2). A push that fails is told in the receipt, not
raised: `local[N]` never retries a task, and the whole batch is staged anew in the next attempt.
"""

import json
from collections.abc import Callable, Iterable, Iterator

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from rhinoctl.ids import KEY_GROUPS
from rhinoctl.operators.base import KEY_GROUP, Operator
from rhinoctl.protocol import batches, codec
from rhinoctl.spark.slices import StagePlan as StagePlan
from rhinoctl.spark.slices import push_rows

RECEIPT = "receipt string"
"""The schema of what a task returns: one JSON text."""


def stage(frame: DataFrame, plan: StagePlan, *, operator: Operator) -> batches.Staged:
    """Run the job: project, hash, push. Returns the receipts and the failures of its tasks."""
    inputs = operator.inputs
    keys = [
        F.coalesce(*(column_of(name, inputs) for name in names)) for names in operator.key_columns()
    ]
    group = F.pmod(F.xxhash64(*keys), F.lit(KEY_GROUPS))
    # Names without dots and the like, which mapInArrow would take for something else.
    names = operator.columns()
    columns = [column_of(name, inputs).alias(f"c{at}") for at, name in enumerate(names)]
    needed = frame.select(group.cast("int").alias(KEY_GROUP), *columns)
    rows = needed.mapInArrow(pusher(plan, names), RECEIPT).collect()
    receipts, failures = [], []
    for row in rows:
        told = json.loads(row.receipt)
        failures += told["failures"]
        receipts.append(codec.from_json(batches.Receipt, told["receipt"]))
    return batches.Staged(
        attempt=plan.stage.attempt, receipts=tuple(receipts), failures=tuple(failures)
    )


def column_of(name: str, inputs: tuple[str, ...]) -> Column:
    """A column of the frame, or a field of a tagged input."""
    tag, dot, field = name.partition(".")
    if dot and tag in inputs:
        return F.col(f"{quoted(tag)}.{quoted(field)}")
    return F.col(quoted(name))


def quoted(name: str) -> str:
    """A column's name as Spark reads it, dots and all."""
    return "`" + name.replace("`", "``") + "`"


def pusher(
    plan: StagePlan, names: tuple[str, ...]
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The function that a task runs over its Arrow batches, whose columns after the key group are
    those of `names`."""

    def push(source: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        pieces = [piece.rename_columns([KEY_GROUP, *names]) for piece in source]
        receipt, failures = push_rows(
            plan, pieces, channel=context.partitionId(), task_attempt=context.taskAttemptId()
        )
        told = {"receipt": codec.to_json(receipt), "failures": failures}
        yield pa.RecordBatch.from_pydict({"receipt": [json.dumps(told)]})

    return push
