"""What is known of a batch's size before it is read, and what of its rows comes to the driver."""

import json
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DoubleType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from rhinoctl.limits import GATHERED_BYTES_MAX, GATHERED_ROWS_MAX
from rhinoctl.operators import RunningAggregate, WindowJoin
from rhinoctl.operators.base import KEY_GROUP
from rhinoctl.operators.hashing import key_groups
from rhinoctl.spark.gather import Gathering, lean_names, routed
from rhinoctl.spark.query import rows_between

COUNT = RunningAggregate(keys=["user"], aggregates={"n": "count", "best": ("max", "price")})
JOIN = WindowJoin(
    keys={"left": ["id"], "right": ["seller"]},
    time={"left": "at", "right": "at"},
    window="10 seconds",
    watermark="1 second",
    select={"left": ["name"], "right": ["price"]},
)


def offsets(*sources: object) -> str:
    return json.dumps([None if each is None else json.dumps(each) for each in sources])


@pytest.mark.parametrize(
    ("start", "end", "rows"),
    [
        ("", offsets({"n": 5}), None),
        (offsets({"n": 5}), offsets({"n": 12}), 7),
        (offsets({"n": 5}, {"marker": 3}), offsets({"n": 12}, {"marker": 9}), 7),
        (offsets({"t": {"0": 5, "1": 7}}), offsets({"t": {"0": 6, "1": 9, "2": 4}}), 7),
        (offsets({"t": {"0": 5}}), offsets({"t": {"0": 5}, "u": {"0": 2}}), 2),
        (offsets({"logOffset": 4}), offsets({"logOffset": 4}), 0),
        (offsets({"logOffset": 4}), offsets({"logOffset": 5}), None),
        (offsets({"n": 5, "m": 0}), offsets({"n": 6, "m": 0}), None),
        (offsets({"marker": 1, "n": 5}), offsets({"marker": 2, "n": 6}), None),
        (offsets({"shard": {"x-1": 5}}), offsets({"shard": {"x-1": 6}}), None),
        (offsets({"t": {"0": "5"}}), offsets({"t": {"0": "6"}}), None),
        (offsets(None), offsets({"n": 6}), None),
        (offsets(7), offsets(8), None),
        (offsets({"n": 5}), offsets({"n": 5}, {"n": 1}), None),
        (
            json.dumps({"a": '{"n": 1}', "b": '{"n": 2}'}),
            json.dumps({"b": '{"n": 4}', "a": '{"n": 2}'}),
            3,
        ),
    ],
)
def test_offsets_that_count_rows_bound_a_batch(start: str, end: str, rows: int | None) -> None:
    assert rows_between(start, end) == rows


class Frame:
    """A frame of some rows that tells what is selected of it."""

    def __init__(self, table: pa.Table, fields: dict[str, DataType]) -> None:
        self._table = table
        self.schema = StructType([StructField(name, kind) for name, kind in fields.items()])
        self.selected: tuple[str, ...] = ()

    def select(self, *names: str) -> "Frame":
        self.selected = names
        return self

    def toArrow(self) -> pa.Table:
        return self._table


def frame(rows: int, user: str = "u", **others: DataType) -> Any:
    held = pa.schema([("user", pa.string()), ("price", pa.float64())])
    table = pa.table({"user": [user] * rows, "price": [1.0] * rows}, schema=held)
    return Frame(table, {"user": StringType(), "price": DoubleType(), **others})


def test_batches_are_gathered_if_they_are_small_beyond_doubt() -> None:
    gathering = Gathering(COUNT)
    assert gathering.gather(frame(3), None) is None
    assert gathering.gather(frame(3), 3) is None, "nobody knows how large a row is"
    idle = gathering.gather(frame(0), 0)
    assert idle is not None
    assert idle.num_rows == 0
    gathering.saw(10, 100)
    assert gathering.gather(frame(3), GATHERED_ROWS_MAX + 1) is None
    found = gathering.gather(frame(3), GATHERED_ROWS_MAX)
    assert found is not None
    assert found.column_names == [KEY_GROUP, "user", "price"]
    large = gathering.gather(frame(1, user="u" * (GATHERED_BYTES_MAX // 1000)), 1)
    assert large is not None
    assert gathering.gather(frame(3), 1001) is None, "rows have become large"
    gathering.saw(0, 0)
    assert gathering.gather(frame(3), 1001) is None, "no rows say nothing of rows"


def test_columns_that_nobody_needs_stay_if_they_may_be_large() -> None:
    gathering = Gathering(COUNT)
    narrow = frame(0, at=TimestampType(), place=StructType([StructField("x", LongType())]))
    gathering.gather(narrow, 0)
    assert narrow.selected == ()
    inner = StructType([StructField("x", ArrayType(LongType()))])
    for kind in (BinaryType(), StringType(), inner):
        wide = frame(0, at=TimestampType(), blob=kind)
        assert lean_names(wide.schema, COUNT) == ["user", "price"]
        Gathering(COUNT).gather(wide, 0)
        assert wide.selected == ("`user`", "`price`")


def test_rows_of_tagged_inputs_have_the_key_of_their_side() -> None:
    left = [{"id": 4, "at": 1, "name": "a"}, None, {"id": None, "at": 2, "name": "b"}]
    right = [None, {"seller": 9, "at": 1, "price": 2.5}, None]
    table = routed(pa.table({"left": left, "right": right}), JOIN)
    assert table["left.name"].to_pylist() == ["a", None, "b"]
    assert table["right.price"].to_pylist() == [None, 2.5, None]
    assert table[KEY_GROUP].to_pylist() == key_groups([pa.array([4, 9, None])]).tolist()
