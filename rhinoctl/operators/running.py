"""`RunningAggregate`: Spark's ``groupBy(keys).agg(…)`` in update mode, over state of ours.

One row comes out for each key that a batch touches, with the aggregates after that batch.

Deviations from Spark, all of them where Spark itself depends on the order of rows: a sum of longs
overflows when the exact sum of a task's rows, or that plus the state, leaves the range (Spark: when
any running sum does); of equal zeros ``min`` gives −0.0 and ``max`` 0.0 (Spark: the first seen).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from operator import itemgetter
from typing import Any

import numpy as np
import pyarrow as pa

from rhinoctl.errors import (
    IdentityChanged,
    MissingColumn,
    UnknownVnode,
    UnsupportedOperator,
    UsageError,
)
from rhinoctl.ids import KEY_GROUPS, Vnode
from rhinoctl.operators.aggregates import Aggregate, Folds, SumOverflow, bound, declared
from rhinoctl.operators.arrow_types import (
    canonical,
    normalised,
    solid,
    text_of,
    type_name,
    values_of,
)
from rhinoctl.operators.base import (
    KEY_GROUP,
    Applied,
    ArithmeticOverflow,
    BoundOperator,
    Operator,
    Slice,
)
from rhinoctl.operators.keys import RESERVED, KeyCodec
from rhinoctl.operators.values import ValueCodec
from rhinoctl.protocol.ports import Store, WriteBatch

SCAN_ROWS = 65_536
"""Rows of a batch that `scan` yields: as many as Spark is told to put into one Arrow batch."""

PLACE = "__place"
"""Vnode and key group in one column, so that rows are grouped by both for the price of one."""

GROUP_BITS = KEY_GROUPS.bit_length() - 1


@dataclass(frozen=True, init=False)
class RunningAggregate(Operator):
    """Running aggregates by key.

    ``RunningAggregate(keys=["user"], aggregates={"n": "count", "total": ("sum", "price")})``

    Functions: ``"count"`` (rows), ``("count", c)`` (values), sum, min, max, avg. `ansi` False makes
    a sum of longs wrap, as Spark's does with ``spark.sql.ansi.enabled=false``.
    """

    kind = "running"
    version = 1

    keys: tuple[str, ...]
    aggregates: tuple[Aggregate, ...]
    ansi: bool

    def __init__(
        self,
        keys: Sequence[str],
        aggregates: Mapping[str, str | Sequence[str]],
        *,
        ansi: bool = True,
    ) -> None:
        object.__setattr__(self, "keys", _declared_keys(keys))
        object.__setattr__(self, "aggregates", declared(aggregates))
        object.__setattr__(self, "ansi", bool(ansi))
        for aggregate in self.aggregates:
            if aggregate.name in self.keys:
                raise UsageError(
                    f"'{aggregate.name}' is a key and the name of an aggregate",
                    remedy="give the aggregate another name",
                )
            if aggregate.column is not None:
                _refuse_reserved(aggregate.column)

    def spec(self) -> dict[str, Any]:
        aggregates = {
            each.name: [each.function] if each.column is None else [each.function, each.column]
            for each in self.aggregates
        }
        return {
            "kind": self.kind,
            "version": self.version,
            "keys": list(self.keys),
            "aggregates": aggregates,
            "ansi": self.ansi,
        }

    @classmethod
    def from_spec(cls, spec: Mapping[str, Any]) -> "RunningAggregate":
        return cls(spec["keys"], spec["aggregates"], ansi=spec["ansi"])

    def columns(self) -> tuple[str, ...]:
        used = [each.column for each in self.aggregates if each.column is not None]
        return tuple(dict.fromkeys([*self.keys, *used]))

    def bind(self, input_schema: pa.Schema) -> "BoundRunningAggregate":
        valued = {each.column for each in self.aggregates if each.function != "count"}
        types = {}
        for column in self.columns():
            held = _found(input_schema, column)
            if column in self.keys or column in valued:
                types[column] = _held(column, held, key=column in self.keys)
            else:
                types[column] = pa.null()
        return BoundRunningAggregate(self, types)


class BoundRunningAggregate(BoundOperator):
    """`types`: the canonical type of each of `operator.columns()`, null if it is only counted."""

    def __init__(self, operator: RunningAggregate, types: Mapping[str, pa.DataType]) -> None:
        self.operator: RunningAggregate = operator
        self._types = dict(types)
        self._keys = list(operator.keys)
        key_types = [self._types[key] for key in self._keys]
        bounds = [
            bound(
                each, None if each.column is None else self._types[each.column], ansi=operator.ansi
            )
            for each in operator.aggregates
        ]
        self._folds = Folds(operator.aggregates, bounds)
        slot_types = [slot.type for slot in self._folds.slots]
        self._key_codec = KeyCodec(key_types)
        self._value_codec = ValueCodec(slot_types)
        key_fields = list(zip(self._keys, key_types, strict=True))
        slot_fields = list(zip(self._folds.names, slot_types, strict=True))
        self.wire_schema = pa.schema([(KEY_GROUP, pa.int32()), *key_fields, *slot_fields])
        names = [each.name for each in operator.aggregates]
        result_fields = zip(names, [fold.result for fold in bounds], strict=True)
        self.result_schema = pa.schema([*key_fields, *result_fields])

    def to_json(self) -> dict[str, Any]:
        columns = {name: type_name(held) for name, held in self._types.items()}
        return {"spec": self.operator.spec(), "columns": columns}

    def pre_aggregate(self, table: pa.Table) -> pa.Table:
        self._check_frame(table.schema)
        columns = [table[KEY_GROUP], *self._group_keys(table), *self._folds.lift(table)]
        lifted = pa.Table.from_arrays(columns, names=self.wire_schema.names)
        folded = self._fold(lifted, KEY_GROUP)
        arrays = [
            text_of(column, field.type) if field.name in self._types else column
            for column, field in zip(folded.columns, self.wire_schema, strict=True)
        ]
        return pa.Table.from_arrays(arrays, schema=self.wire_schema)

    def apply(self, slices: Sequence[Slice], stores: Mapping[Vnode, Store]) -> Applied:
        folded = self._combined(slices, stores)
        place = values_of(solid(folded[PLACE]))
        vnodes, groups = place >> GROUP_BITS, place & (KEY_GROUPS - 1)
        runs = _runs(vnodes)
        key_columns = [solid(folded[key]) for key in self._keys]
        keys = self._key_codec.encode(groups, key_columns)
        found: list[bytes | None] = []
        for vnode, start, end in runs:
            found += stores[vnode].get_many(keys[start:end])
        slots = self._merge(folded, self._value_codec.decode(found))
        values = self._value_codec.encode(slots)
        writes = {
            vnode: WriteBatch(keys=keys[start:end], values=values[start:end])
            for vnode, start, end in runs
        }
        counts = {vnode: end - start for vnode, start, end in runs}
        return Applied(writes, self._result(key_columns, slots), counts)

    def scan(self, store: Store) -> Iterator[pa.RecordBatch]:
        entries = store.scan(hi=RESERVED)
        while chunk := list(islice(entries, SCAN_ROWS)):
            keys, values = zip(*chunk, strict=True)
            _, key_columns = self._key_codec.decode(keys)
            yield from self._result(key_columns, self._value_codec.decode(values)).to_batches()

    def _group_keys(self, table: pa.Table) -> list[pa.Array]:
        """Key columns in a form in which equal bytes are equal keys."""
        return [normalised(solid(table[key])) for key in self._keys]

    def _combined(self, slices: Sequence[Slice], stores: Mapping[Vnode, Store]) -> pa.Table:
        """The slices folded to one row a key, vnodes ascending."""
        filled = sorted((each for each in slices if each[1].num_rows), key=itemgetter(0))
        for vnode, batch in filled:
            self._check_slice(vnode, batch, stores)
        table = pa.Table.from_batches([batch for _, batch in filled], self.wire_schema)
        rows = [batch.num_rows for _, batch in filled]
        vnodes = np.repeat(
            np.array([vnode for vnode, _ in filled], np.int32), np.array(rows, np.int64)
        )
        place = vnodes << GROUP_BITS | values_of(solid(table[KEY_GROUP]))
        slots = [solid(table[name]) for name in self._folds.names]
        columns = [pa.array(place), *self._group_keys(table), *slots]
        names = [PLACE, *self.wire_schema.names[1:]]
        return self._fold(pa.Table.from_arrays(columns, names=names), PLACE)

    def _fold(self, table: pa.Table, place: str) -> pa.Table:
        try:
            return self._folds.fold(table, [place, *self._keys])
        except SumOverflow as overflow:
            raise self._overflow(overflow) from overflow

    def _merge(self, folded: pa.Table, held: Sequence[pa.Array]) -> list[pa.Array]:
        keys = folded.select([PLACE, *self._keys])
        new = [solid(folded[name]) for name in self._folds.names]
        try:
            return self._folds.merge(keys, held, new)
        except SumOverflow as overflow:
            raise self._overflow(overflow) from overflow

    def _overflow(self, overflow: SumOverflow) -> ArithmeticOverflow:
        row = overflow.key.to_pylist()[0]
        vnode = Vnode(row[PLACE] >> GROUP_BITS) if PLACE in row else None
        key = ", ".join(f"{name}={self._shown(name, row[name])!r}" for name in self._keys)
        summed = overflow.aggregate
        where = "" if vnode is None else f" in vnode {vnode}"
        return ArithmeticOverflow(
            f"[ARITHMETIC_OVERFLOW] sum({summed.column}) as '{summed.name}' leaves the range of"
            f" long for {key}{where}",
            remedy=f"cast '{summed.column}' to double before the sink, or declare ansi=False",
            key=key,
            vnode=vnode,
        )

    def _shown(self, key: str, value: Any) -> Any:
        is_text = pa.types.is_string(self._types[key]) and value is not None
        return value.decode(errors="replace") if is_text else value

    def _result(self, key_columns: Sequence[pa.Array], slots: Sequence[pa.Array]) -> pa.Table:
        keys = [
            text_of(column, self._types[key])
            for key, column in zip(self._keys, key_columns, strict=True)
        ]
        columns = [*keys, *self._folds.finish(slots)]
        return pa.Table.from_arrays(columns, schema=self.result_schema)

    def _check_frame(self, schema: pa.Schema) -> None:
        if schema.field(KEY_GROUP).type != pa.int32():
            raise ValueError(f"{KEY_GROUP} must be int32")
        for column, held in self._types.items():
            given = canonical(_found(schema, column))
            if not pa.types.is_null(held) and given != held:
                raise IdentityChanged(
                    f"column '{column}' was {type_name(held)} when the query started and is"
                    f" {schema.field(column).type} now",
                    remedy="restart the query",
                )

    def _check_slice(
        self, vnode: Vnode, batch: pa.RecordBatch, stores: Mapping[Vnode, Store]
    ) -> None:
        if vnode not in stores:
            raise UnknownVnode(
                f"a slice for vnode {vnode} came to an instance that has no store of it",
                remedy="rhinoctl status shows the owner of each vnode",
            )
        if not batch.schema.equals(self.wire_schema):
            raise IdentityChanged(
                f"a slice for vnode {vnode} has columns {batch.schema.names} of types"
                f" {[str(each) for each in batch.schema.types]}, not those of the operator",
                remedy="restart the query, so that all parts are bound to one schema",
            )


def _runs(vnodes: np.ndarray) -> list[tuple[Vnode, int, int]]:
    """Vnode, first row and end of each run of an ascending column."""
    edges = np.flatnonzero(np.diff(vnodes, prepend=-1, append=-1)).tolist()
    starts, ends = edges[:-1], edges[1:]
    return [
        (Vnode(int(vnodes[start])), start, end) for start, end in zip(starts, ends, strict=True)
    ]


def _declared_keys(keys: Sequence[str]) -> tuple[str, ...]:
    if isinstance(keys, str):
        keys = [keys]
    if not keys:
        raise UsageError("an operator needs at least one key", remedy='give keys=["COLUMN"]')
    if len(set(keys)) != len(keys):
        raise UsageError(f"a key occurs twice in {list(keys)}", remedy="name each key once")
    for key in keys:
        _refuse_reserved(key)
    return tuple(keys)


def _refuse_reserved(column: str) -> None:
    if column.startswith("__"):
        raise UsageError(
            f"column '{column}': names that begin with '__' are rhinoctl's",
            remedy="rename the column before the sink",
        )


def _found(schema: pa.Schema, column: str) -> pa.DataType:
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


def _held(column: str, given: pa.DataType, *, key: bool) -> pa.DataType:
    held = canonical(given)
    if held is None:
        raise UnsupportedOperator(
            f"{'key ' if key else ''}column '{column}' of type {given} cannot be held in state",
            remedy=f"select the fields of '{column}' that you need as columns of their own",
        )
    return held
