"""The golden table of key hashes that Spark wrote (``tests/integration/test_key_hash.py``)."""

import json
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any, TypedDict

import pyarrow as pa

from rhinoctl.operators.arrow_types import type_of_name

GOLDEN = Path(__file__).parents[2] / "integration" / "golden" / "key_hash.json"


class Case(TypedDict):
    """One key. Bytes are hexadecimal, floats and decimals text, dates ISO, times their integer."""

    types: list[str]
    values: list[Any]
    hash: str
    key_group: int


def load() -> list[Case]:
    return json.loads(GOLDEN.read_text("utf-8"))


def columns_of(case: Case) -> list[pa.Array]:
    """One array of one row for each key column."""
    return [
        _array(value, type_of_name(name))
        for name, value in zip(case["types"], case["values"], strict=True)
    ]


def _array(value: Any, held: pa.DataType) -> pa.Array:
    if value is not None and pa.types.is_floating(held):
        value = float(value)
    elif value is not None and pa.types.is_decimal(held):
        value = Decimal(value)
    elif value is not None and pa.types.is_binary(held):
        value = bytes.fromhex(value)
    elif value is not None and pa.types.is_date(held):
        value = date.fromisoformat(value)
    return pa.array([value], held)
