"""What declarations of operators have in common: keys, columns and their types, checked early."""

from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa

from rhinoctl.errors import MissingColumn, UnsupportedOperator, UsageError
from rhinoctl.operators.aggregates import Aggregate
from rhinoctl.operators.arrow_types import canonical


def declared_keys(keys: Sequence[str]) -> tuple[str, ...]:
    """Check a job's ``keys=``. Raises UsageError."""
    if isinstance(keys, str):
        keys = [keys]
    if not keys:
        raise UsageError("an operator needs at least one key", remedy='give keys=["COLUMN"]')
    names = declared_columns(keys, "keys")
    if len(set(names)) != len(names):
        raise UsageError(f"a key occurs twice in {list(names)}", remedy="name each key once")
    return names


def declared_columns(columns: Any, argument: str) -> tuple[str, ...]:
    """The names of columns that an argument gives. Raises UsageError, naming it."""
    if not isinstance(columns, Iterable):
        raise UsageError(
            f"{argument}={columns!r} is not a list of columns",
            remedy=f'give {argument}=["COLUMN"]',
        )
    given = tuple(columns)
    return tuple(declared_column(each, f"{argument}={list(given)!r}") for each in given)


def declared_column(column: Any, what: str) -> str:
    """The name of a column; `what` is where it was given. Raises UsageError."""
    if not isinstance(column, str) or not column:
        raise UsageError(
            f"{what}: {column!r} is not the name of a column",
            remedy="give the name of a column as text",
        )
    refuse_reserved(column)
    return column


def refuse_reserved(column: str) -> None:
    """Raise UsageError for a name that is rhinoctl's own."""
    if column.startswith("__"):
        raise UsageError(
            f"column '{column}': names that begin with '__' are rhinoctl's",
            remedy="rename the column before the sink",
        )


def check_names(keys: Sequence[str], aggregates: Sequence[Aggregate]) -> None:
    """Raise UsageError if an aggregate has a key's name, or is over a column of ours."""
    for aggregate in aggregates:
        if aggregate.name in keys:
            raise UsageError(
                f"'{aggregate.name}' is a key and the name of an aggregate",
                remedy="give the aggregate another name",
            )
        if aggregate.column is not None:
            refuse_reserved(aggregate.column)


def aggregates_json(aggregates: Sequence[Aggregate]) -> dict[str, list[str]]:
    """Declared aggregates in a spec."""
    return {
        each.name: [each.function] if each.column is None else [each.function, each.column]
        for each in aggregates
    }


def found(schema: pa.Schema, column: str) -> pa.DataType:
    """The type of a column that occurs exactly once."""
    times = schema.names.count(column)
    if times == 1:
        return schema.field(column).type
    if times:
        raise UnsupportedOperator(
            f"the frame has {times} columns '{column}'", remedy="rename or drop all but one"
        )
    raise MissingColumn(
        f"the frame has no column '{column}'; it has {', '.join(schema.names) or 'none'}",
        remedy="select the column before the sink; names are compared with upper and lower case",
    )


def held(column: str, given: pa.DataType, *, key: bool = False) -> pa.DataType:
    """The canonical type of a column. Raises UnsupportedOperator where state cannot hold it."""
    canonical_type = canonical(given)
    if canonical_type is None:
        raise UnsupportedOperator(
            f"{'key ' if key else ''}column '{column}' of type {given} cannot be held in state",
            remedy=f"select the fields of '{column}' that you need as columns of their own",
        )
    return canonical_type


def column_types(
    schema: pa.Schema, keys: Sequence[str], aggregates: Sequence[Aggregate]
) -> dict[str, pa.DataType]:
    """The canonical types of keys and aggregated columns; null for those that are only counted."""
    types = {key: held(key, found(schema, key), key=True) for key in keys}
    valued = {each.column for each in aggregates if each.function != "count"}
    for each in aggregates:
        if each.column is None or each.column in types:
            continue
        given = found(schema, each.column)
        types[each.column] = held(each.column, given) if each.column in valued else pa.null()
    return types
