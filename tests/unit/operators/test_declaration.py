"""What a job may declare, what a frame must have, and that both travel as JSON."""

import json
from typing import Any

import pyarrow as pa
import pytest

from rhinoctl.errors import MissingColumn, UnsupportedOperator, UsageError
from rhinoctl.operators import RunningAggregate, bound_from_json, from_spec

EVERYTHING = RunningAggregate(
    keys=["user", "day"],
    aggregates={
        "n": "count",
        "seen": ("count", "tags"),
        "total": ("sum", "price"),
        "low": ("min", "price"),
        "high": ("max", "name"),
        "mean": ("avg", "price"),
    },
    ansi=False,
)
FRAME = pa.schema(
    [
        ("tags", pa.map_(pa.string(), pa.int64())),
        ("user", pa.large_string()),
        ("day", pa.timestamp("us", "Europe/Berlin")),
        ("price", pa.int32()),
        ("name", pa.string()),
        ("other", pa.struct([])),
    ]
)


def test_a_declaration_is_its_spec() -> None:
    spec = json.loads(json.dumps(EVERYTHING.spec()))
    assert from_spec(spec) == EVERYTHING
    assert hash(from_spec(spec)) == hash(EVERYTHING)
    assert (spec["kind"], spec["version"]) == ("running", 1)
    assert RunningAggregate(["user"], {"n": "count"}) != RunningAggregate(["user"], {"m": "count"})


def test_columns_are_the_keys_and_then_what_is_aggregated() -> None:
    assert EVERYTHING.columns() == ("user", "day", "tags", "price", "name")


def test_a_bound_operator_is_its_json() -> None:
    bound = EVERYTHING.bind(FRAME)
    data = json.loads(json.dumps(bound.to_json()))
    again = bound_from_json(data)
    assert again.to_json() == data
    assert again.wire_schema == bound.wire_schema
    assert again.result_schema == bound.result_schema
    assert data["columns"] == {
        "user": "string",
        "day": "timestamp[us, tz=UTC]",
        "tags": "any",
        "price": "int32",
        "name": "string",
    }


def test_the_session_s_time_zone_and_large_types_are_no_part_of_the_identity() -> None:
    def bound(text: pa.DataType, zone: str) -> dict[str, Any]:
        schema = pa.schema([("k", text), ("t", pa.timestamp("us", zone))])
        return RunningAggregate(["k"], {"last": ("max", "t")}).bind(schema).to_json()

    assert bound(pa.string(), "UTC") == bound(pa.large_string(), "Asia/Tokyo")


def test_schemas() -> None:
    bound = EVERYTHING.bind(FRAME)
    keys = [("user", pa.string()), ("day", pa.timestamp("us", "UTC"))]
    slots = [
        *[pa.int64(), pa.int64(), pa.int64(), pa.int32()],
        *[pa.large_binary(), pa.float64(), pa.int64()],
    ]
    assert bound.wire_schema == pa.schema(
        [("__kg", pa.int32()), *keys, *((f"__p{at}", held) for at, held in enumerate(slots))]
    )
    assert bound.result_schema == pa.schema(
        [
            *keys,
            *[("n", pa.int64()), ("seen", pa.int64()), ("total", pa.int64())],
            *[("low", pa.int32()), ("high", pa.string()), ("mean", pa.float64())],
        ]
    )


@pytest.mark.parametrize(
    ("keys", "aggregates", "names"),
    [
        ([], {"n": "count"}, "key"),
        (["a", "a"], {"n": "count"}, "'a'"),
        (["__kg"], {"n": "count"}, "'__kg'"),
        (["a"], {}, "aggregate"),
        (["a"], {"n": "median"}, "'median'"),
        (["a"], {"n": ("median", "b")}, "'median'"),
        (["a"], {"n": "sum"}, "'n'"),
        (["a"], {"n": ("sum", "b", "c")}, "'n'"),
        (["a"], {"n": ("sum",)}, "'n'"),
        (["a"], {"n": 3}, "'n'"),
        (["a"], {"": "count"}, "name"),
        (["a"], {"a": "count"}, "'a'"),
        (["a"], {"n": ("sum", "__p0")}, "'__p0'"),
        ([1], {"n": "count"}, r"keys=\[1\]"),
        (["a", ["b"]], {"n": "count"}, r"keys=.*\['b'\]"),
        ([""], {"n": "count"}, r"keys=\[''\]"),
        (7, {"n": "count"}, "keys=7"),
        (["a"], [("n", "count")], r"aggregates=\[\('n', 'count'\)\]"),
        (["a"], {1: "count"}, "aggregates: the name 1"),
    ],
)
def test_a_wrong_declaration_names_the_object(
    keys: list[str], aggregates: dict[str, Any], names: str
) -> None:
    with pytest.raises(UsageError, match=names) as error:
        RunningAggregate(keys, aggregates)
    assert error.value.remedy


@pytest.mark.parametrize("column", ["user", "price"])
def test_a_missing_column_is_named_with_those_there(column: str) -> None:
    frame = pa.schema([field for field in FRAME if field.name != column])
    with pytest.raises(MissingColumn, match=f"'{column}'.*tags.*name"):
        EVERYTHING.bind(frame)


def test_a_column_that_occurs_twice_is_refused() -> None:
    frame = pa.schema([*FRAME, ("price", pa.int32())])
    with pytest.raises(UnsupportedOperator, match="2 columns 'price'"):
        EVERYTHING.bind(frame)


@pytest.mark.parametrize(
    "held",
    [
        pa.map_(pa.string(), pa.int64()),
        pa.struct([("a", pa.int64())]),
        pa.list_(pa.int64()),
        pa.null(),
        pa.month_day_nano_interval(),
        pa.dictionary(pa.int32(), pa.string()),
    ],
    ids=str,
)
def test_types_that_no_state_holds(held: pa.DataType) -> None:
    frame = pa.schema([("k", held), ("v", pa.int64())])
    with pytest.raises(UnsupportedOperator, match="key column 'k' of type"):
        RunningAggregate(["k"], {"n": "count"}).bind(frame)
    with pytest.raises(UnsupportedOperator, match="column 'k' of type"):
        RunningAggregate(["v"], {"n": ("max", "k")}).bind(frame)
    RunningAggregate(["v"], {"n": ("count", "k")}).bind(frame)


@pytest.mark.parametrize("function", ["sum", "avg"])
@pytest.mark.parametrize(
    "held", [pa.string(), pa.bool_(), pa.date32(), pa.decimal128(9, 2), pa.duration("us")], ids=str
)
def test_sums_of_what_is_not_a_number_are_refused(function: str, held: pa.DataType) -> None:
    frame = pa.schema([("k", pa.int64()), ("v", held)])
    with pytest.raises(UnsupportedOperator, match=f"{function} over column 'v'"):
        RunningAggregate(["k"], {"n": (function, "v")}).bind(frame)


@pytest.mark.parametrize("change", [{"kind": "sorting"}, {"version": 99}])
def test_an_operator_of_another_release_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedOperator, match="it has running 1"):
        from_spec(EVERYTHING.spec() | change)
