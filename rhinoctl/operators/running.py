"""`RunningAggregate`: Spark's ``groupBy(keys).agg(…)`` in update mode, over state of ours.

One row comes out for each key that a batch touches, with the aggregates after that batch.

Deviations from Spark, all of them where Spark itself depends on the order of rows: a sum of longs
overflows when the exact sum of a task's rows, or that plus the state, leaves the range (Spark: when
any running sum does); of equal zeros ``min`` gives −0.0 and ``max`` 0.0 (Spark: the first seen).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from rhinoctl.operators.aggregates import Aggregate, declared
from rhinoctl.operators.arrow_types import type_name
from rhinoctl.operators.base import (
    CACHE_BYTES,
    Applied,
    BatchContext,
    BoundOperator,
    Operator,
    Slice,
)
from rhinoctl.operators.declaring import aggregates_json, check_names, column_types, declared_keys
from rhinoctl.operators.grouped import Grouping
from rhinoctl.operators.table import StateTable, runs_of, scanned
from rhinoctl.protocol.ports import Store


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
        object.__setattr__(self, "keys", declared_keys(keys))
        object.__setattr__(self, "aggregates", declared(aggregates))
        object.__setattr__(self, "ansi", bool(ansi))
        check_names(self.keys, self.aggregates)

    def spec(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "version": self.version,
            "keys": list(self.keys),
            "aggregates": aggregates_json(self.aggregates),
            "ansi": self.ansi,
        }

    @classmethod
    def from_spec(cls, spec: Mapping[str, Any]) -> "RunningAggregate":
        return cls(spec["keys"], spec["aggregates"], ansi=spec["ansi"])

    def columns(self) -> tuple[str, ...]:
        used = [each.column for each in self.aggregates if each.column is not None]
        return tuple(dict.fromkeys([*self.keys, *used]))

    def bind(self, input_schema: pa.Schema) -> "BoundRunningAggregate":
        return BoundRunningAggregate(self, column_types(input_schema, self.keys, self.aggregates))


class BoundRunningAggregate(BoundOperator):
    """`types`: the canonical type of each of `operator.columns()`, null if it is only counted."""

    def __init__(self, operator: RunningAggregate, types: Mapping[str, pa.DataType]) -> None:
        self.operator: RunningAggregate = operator
        self._grouping = Grouping(operator.keys, operator.aggregates, types, ansi=operator.ansi)
        self.wire_schema = self._grouping.wire_schema
        self.result_schema = pa.schema([*self._grouping.key_fields, *self._grouping.result_fields])

    def to_json(self) -> dict[str, Any]:
        columns = {name: type_name(held) for name, held in self._grouping.types.items()}
        return {"spec": self.operator.spec(), "columns": columns}

    def pre_aggregate(self, table: pa.Table) -> pa.Table:
        return self._grouping.folded_rows(table)

    def state(self, cache_bytes: int = CACHE_BYTES) -> StateTable:
        return self._grouping.state(cache_bytes)

    def apply(self, slices: Sequence[Slice], state: StateTable, context: BatchContext) -> Applied:
        folded = self._grouping.combined(slices, context.vnodes)
        keys = self._grouping.key_rows(folded)
        held = state.find(keys)
        slots = self._grouping.merged(folded, held.slots)
        output = self._result(keys.columns, slots)
        state.put(held, slots)
        counts = {vnode: end - start for vnode, start, end in runs_of(keys.vnodes)}
        return Applied(output, counts, frozenset(counts))

    def scan(self, store: Store) -> Iterator[pa.RecordBatch]:
        for keys, slots in scanned(store, self._grouping.key_codec, self._grouping.value_codec):
            yield from self._result(keys.columns, slots).to_batches()

    def _result(self, key_columns: Sequence[pa.Array], slots: Sequence[pa.Array]) -> pa.Table:
        columns = [*self._grouping.key_columns(key_columns), *self._grouping.folds.finish(slots)]
        return pa.Table.from_arrays(columns, schema=self.result_schema)
