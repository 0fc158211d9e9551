"""Two streams in one frame: each row in a struct that is named after its input."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructField, StructType

from rhinoctl.errors import UsageError


def tagged(**inputs: DataFrame) -> DataFrame:
    """The union of the inputs, by name: columns ``left`` and ``right``, one of them null.

    Raises UsageError unless the inputs are `left` and `right`.
    """
    if sorted(inputs) != ["left", "right"]:
        raise UsageError(
            f"tagged() was given {', '.join(sorted(inputs)) or 'nothing'}",
            remedy="write rhino.tagged(left=…, right=…)",
        )
    types = {name: inputs[name].schema for name in ("left", "right")}
    sides = []
    for mine, frame in inputs.items():
        packed = F.struct(*(F.col(quoted(name)) for name in frame.columns))
        columns = {
            name: packed if name == mine else F.lit(None).cast(_nullable(held))
            for name, held in types.items()
        }
        sides.append(frame.select(*(column.alias(name) for name, column in columns.items())))
    return sides[0].unionByName(sides[1])


def flattened(schema: StructType, inputs: tuple[str, ...]) -> StructType:
    """The columns of a frame, the fields of tagged inputs as ``left.id``."""
    fields = []
    for field in schema.fields:
        if field.name in inputs and isinstance(field.dataType, StructType):
            inner = field.dataType.fields
            fields += [StructField(f"{field.name}.{f.name}", f.dataType, True) for f in inner]
        else:
            fields.append(field)
    return StructType(fields)


def _nullable(schema: StructType) -> StructType:
    return StructType([StructField(f.name, f.dataType, True) for f in schema.fields])


def quoted(name: str) -> str:
    """A column's name as Spark reads it, dots and all."""
    return "`" + name.replace("`", "``") + "`"
