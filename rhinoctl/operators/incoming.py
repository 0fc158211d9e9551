"""What comes to an operator, checked: the frame in Spark's tasks, the slices in an instance."""

from collections.abc import Mapping, Sequence
from operator import itemgetter

import numpy as np
import pyarrow as pa

from rhinoctl.errors import IdentityChanged, UnknownVnode
from rhinoctl.ids import Vnode
from rhinoctl.operators.arrow_types import canonical, type_name
from rhinoctl.operators.base import KEY_GROUP, Slice
from rhinoctl.operators.declaring import found


def check_frame(schema: pa.Schema, types: Mapping[str, pa.DataType]) -> None:
    """Raise IdentityChanged if a column is not of the type that the operator was bound to; null
    stands for any."""
    if schema.field(KEY_GROUP).type != pa.int32():
        raise ValueError(f"{KEY_GROUP} must be int32")
    for column, held in types.items():
        given = canonical(found(schema, column))
        if not pa.types.is_null(held) and given != held:
            raise IdentityChanged(
                f"column '{column}' was {type_name(held)} when the query started and is"
                f" {schema.field(column).type} now",
                remedy="restart the query",
            )


def gathered(
    slices: Sequence[Slice], wire_schema: pa.Schema, vnodes: frozenset[Vnode]
) -> tuple[pa.Table, np.ndarray]:
    """The rows of all slices, and the vnode of each (int32): vnodes ascend, the rows of one stay
    in their order. Raises UnknownVnode and IdentityChanged."""
    filled = sorted((each for each in slices if each[1].num_rows), key=itemgetter(0))
    for vnode, batch in filled:
        _check_slice(vnode, batch, wire_schema, vnodes)
    table = pa.Table.from_batches([batch for _, batch in filled], wire_schema)
    rows = np.array([batch.num_rows for _, batch in filled], np.int64)
    return table, np.repeat(np.array([vnode for vnode, _ in filled], np.int32), rows)


def _check_slice(
    vnode: Vnode, batch: pa.RecordBatch, wire_schema: pa.Schema, vnodes: frozenset[Vnode]
) -> None:
    if vnode not in vnodes:
        raise UnknownVnode(
            f"a slice for vnode {vnode} came to an instance that has no store of it",
            remedy="rhinoctl status shows the owner of each vnode",
        )
    if not batch.schema.equals(wire_schema):
        raise IdentityChanged(
            f"a slice for vnode {vnode} has columns {batch.schema.names} of types"
            f" {[str(each) for each in batch.schema.types]}, not those of the operator",
            remedy="restart the query, so that all parts are bound to one schema",
        )
