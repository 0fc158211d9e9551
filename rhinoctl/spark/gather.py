"""The rows of a small batch, brought to the driver: tasks in Python would cost more than they do.

A frame is gathered as it is, since Spark has planned it already and would plan a projection anew.
So what a task gets from Spark is made here, key groups included (`rhinoctl.operators.hashing`).
Why, and how it stays safe: docs/adr/0010-small-batches-in-the-driver.md.
"""

from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql.types import ArrayType, BinaryType, MapType, StringType, StructType, VariantType

from rhinoctl import limits
from rhinoctl.operators.base import KEY_GROUP, Operator
from rhinoctl.operators.hashing import key_groups
from rhinoctl.spark.tagging import quoted

UNBOUNDED: Final = (StringType, BinaryType, ArrayType, MapType, VariantType)
"""Types whose values may be of any size."""


class Gathering:
    """Decides which batches are gathered: those that are small beyond doubt.

    Nobody knows how large a batch is before it was read; but its sources' offsets may bound its
    rows, and the batches before have shown how large a row is.
    """

    def __init__(self, operator: Operator) -> None:
        self._operator = operator
        self._row_bytes = limits.GATHERED_BYTES_MAX
        self._names: list[str] | None = None

    def saw(self, rows: int, size: int) -> None:
        """A batch had so many rows, of so many bytes in all."""
        if rows:
            self._row_bytes = -(-size // rows)

    def gather(self, frame: DataFrame, rows_at_most: int | None) -> pa.Table | None:
        """The rows as a task would get them, or None if they are to be staged where they are."""
        if (
            rows_at_most is None
            or rows_at_most > limits.GATHERED_ROWS_MAX
            or rows_at_most * self._row_bytes > limits.GATHERED_BYTES_MAX
        ):
            return None
        table = self._lean(frame).toArrow()
        self.saw(table.num_rows, table.nbytes)
        return routed(table, self._operator)

    def _lean(self, frame: DataFrame) -> DataFrame:
        """The frame without columns that nobody needs, if they may be large."""
        if self._names is None:
            self._names = lean_names(frame.schema, self._operator)
        return frame.select(*map(quoted, self._names)) if self._names else frame


def lean_names(schema: StructType, operator: Operator) -> list[str]:
    """The columns to select; none if the frame may come as it is."""
    needed = {*operator.columns(), *operator.inputs}
    surplus = [field for field in schema.fields if field.name not in needed]
    if not any(_is_unbounded(field.dataType) for field in surplus):
        return []
    return [field.name for field in schema.fields if field.name in needed]


def _is_unbounded(kind: object) -> bool:
    if isinstance(kind, StructType):
        return any(_is_unbounded(field.dataType) for field in kind.fields)
    return isinstance(kind, UNBOUNDED)


def routed(table: pa.Table, operator: Operator) -> pa.Table:
    """The rows of a frame with their key group, and with the operator's columns by their names."""
    columns = {name: _column(table, name, operator.inputs) for name in operator.columns()}
    keys = [
        pc.coalesce(*(columns[name] for name in names)) if len(names) > 1 else columns[names[0]]
        for names in operator.key_columns()
    ]
    return pa.table({KEY_GROUP: key_groups(keys), **columns})


def _column(table: pa.Table, name: str, inputs: tuple[str, ...]) -> pa.ChunkedArray:
    """A column of the frame, or a field of a tagged input."""
    tag, dot, field = name.partition(".")
    if dot and tag in inputs:
        return pc.struct_field(table.column(tag), field)
    return table.column(name)
