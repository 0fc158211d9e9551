"""What a task tells the driver of rows that the operator refuses."""

import json
from types import SimpleNamespace

import pyarrow as pa
import pytest

from rhinoctl.errors import UnsupportedOperator
from rhinoctl.ids import Attempt, BatchTime
from rhinoctl.operators import WindowAggregate
from rhinoctl.operators.base import KEY_GROUP
from rhinoctl.protocol import codec
from rhinoctl.protocol.messages import Header
from rhinoctl.spark import staging
from rhinoctl.spark.slices import StagePlan
from rhinoctl.wire.credentials import Credentials
from rhinoctl.wire.secret import Secret

STEP = WindowAggregate(["k"], {"n": "count"}, time="t", window="10 s")
FRAME = pa.schema([("k", pa.int64()), ("t", pa.timestamp("us", "UTC"))])


def test_a_row_that_is_refused_in_a_task_is_our_error_in_the_driver(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plan = StagePlan(
        header=Header(cluster="c"),
        time=BatchTime(0, 3),
        attempt=Attempt(1, 3),
        owners=("w1",),
        addresses={},
    )
    context = SimpleNamespace(
        getLocalProperty=lambda name: json.dumps(codec.to_json(plan)),
        partitionId=lambda: 0,
        taskAttemptId=lambda: 0,
    )
    monkeypatch.setattr(staging, "TaskContext", SimpleNamespace(get=lambda: context))
    far = pa.array([9_223_372_036_850_000_000], pa.int64()).cast(FRAME.field("t").type)
    columns = [pa.array([5], pa.int32()), pa.array([1]), far]
    rows = pa.RecordBatch.from_arrays(columns, names=[KEY_GROUP, "c0", "c1"])
    spec = json.dumps(STEP.bind(FRAME).to_json())
    push = staging.pusher(spec, Credentials(Secret("s")), STEP.columns())
    (told,) = [json.loads(text) for each in push([rows]) for text in each["receipt"].to_pylist()]
    with pytest.raises(UnsupportedOperator, match="time column 't'") as refused:
        staging.raise_refusal(told)
    assert "start the query again" in refused.value.remedy
