"""Rows that are grouped by key and folded: what aggregations have in common on both sides.

On Spark's side rows are lifted to partial results and folded within a task; in the instance the
slices of all tasks are folded to one row a key, and merged with what the state holds. A *timed*
grouping has one more key, the start of the pane that a row's event time lies in.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from rhinoctl.ids import KEY_GROUPS, Vnode
from rhinoctl.operators.aggregates import Aggregate, Folds, SumOverflow, bound
from rhinoctl.operators.arrow_types import (
    normalised,
    solid,
    text_of,
    values_of,
)
from rhinoctl.operators.base import KEY_GROUP, ArithmeticOverflow, Slice
from rhinoctl.operators.cached import state_table
from rhinoctl.operators.incoming import check_frame, gathered
from rhinoctl.operators.keys import KeyCodec
from rhinoctl.operators.table import KeyRows, StateTable
from rhinoctl.operators.values import ValueCodec

PLACE = "__place"
"""Vnode and key group in one column, so that rows are grouped by both for the price of one."""

PANE = "__pane"
"""The start of a row's pane, in microseconds since 1970."""

GROUP_BITS = KEY_GROUPS.bit_length() - 1


class Grouping:
    """Keys and folds of an operator, bound to `types`: the canonical type of each of its columns,
    null for those that are only counted."""

    def __init__(
        self,
        keys: Sequence[str],
        aggregates: Sequence[Aggregate],
        types: Mapping[str, pa.DataType],
        *,
        ansi: bool,
        timed: bool = False,
    ) -> None:
        self.keys = list(keys)
        self.types = dict(types)
        self.timed = timed
        bounds = [
            bound(each, None if each.column is None else types[each.column], ansi=ansi)
            for each in aggregates
        ]
        self.folds = Folds(aggregates, bounds)
        key_types = [types[key] for key in keys]
        slot_types = [slot.type for slot in self.folds.slots]
        self.key_codec = KeyCodec(key_types, timed=timed)
        self.value_codec = ValueCodec(slot_types)
        self.key_fields = list(zip(self.keys, key_types, strict=True))
        slot_fields = list(zip(self.folds.names, slot_types, strict=True))
        pane = [(PANE, pa.int64())] if timed else []
        self.wire_schema = pa.schema(
            [(KEY_GROUP, pa.int32()), *pane, *self.key_fields, *slot_fields]
        )
        names = [each.name for each in aggregates]
        self.result_fields = list(zip(names, [fold.result for fold in bounds], strict=True))

    def state(self, cache_bytes: int) -> StateTable:
        """An instance's state, without vnodes."""
        return state_table(self.key_codec, self.value_codec, cache_bytes)

    # --- Spark's side ----------------------------------------------------------------------------

    def folded_rows(self, table: pa.Table, panes: pa.Array | None = None) -> pa.Table:
        """Rows of a task as rows of the wire, one for each key that occurs."""
        check_frame(table.schema, self.types)
        timed = [] if panes is None else [panes]
        columns = [table[KEY_GROUP], *timed, *self._group_keys(table), *self.folds.lift(table)]
        lifted = pa.Table.from_arrays(columns, names=self.wire_schema.names)
        folded = self._fold(lifted, KEY_GROUP)
        arrays = [
            text_of(column, field.type) if field.name in self.types else column
            for column, field in zip(folded.columns, self.wire_schema, strict=True)
        ]
        return pa.Table.from_arrays(arrays, schema=self.wire_schema)

    def _group_keys(self, table: pa.Table) -> list[pa.Array]:
        """Key columns in a form in which equal bytes are equal keys."""
        return [normalised(solid(table[key])) for key in self.keys]

    # --- the instance's side ---------------------------------------------------------------------

    def combined(self, slices: Sequence[Slice], vnodes: frozenset[Vnode]) -> pa.Table:
        """The slices folded to one row a key, vnodes ascending: PLACE, PANE if timed, keys, slots.

        Raises UnknownVnode, IdentityChanged and ArithmeticOverflow.
        """
        table, of_rows = gathered(slices, self.wire_schema, vnodes)
        place = of_rows << GROUP_BITS | values_of(solid(table[KEY_GROUP]))
        timed = [solid(table[PANE])] if self.timed else []
        slots = [solid(table[name]) for name in self.folds.names]
        columns = [pa.array(place), *timed, *self._group_keys(table), *slots]
        names = [PLACE, *self.wire_schema.names[1:]]
        return self._fold(pa.Table.from_arrays(columns, names=names), PLACE)

    def key_rows(self, folded: pa.Table) -> KeyRows:
        """The keys of `combined`."""
        place = values_of(solid(folded[PLACE]))
        return KeyRows(
            vnodes=place >> GROUP_BITS,
            groups=place & (KEY_GROUPS - 1),
            columns=[solid(folded[key]) for key in self.keys],
            times=values_of(solid(folded[PANE])) if self.timed else None,
        )

    def merged(self, folded: pa.Table, held: Sequence[pa.Array]) -> list[pa.Array]:
        """The rows of `combined` together with what the state held of them."""
        keys = folded.select(self._names(PLACE))
        new = [solid(folded[name]) for name in self.folds.names]
        try:
            return self.folds.merge(keys, held, new)
        except SumOverflow as overflow:
            raise self._overflow(overflow) from overflow

    def key_columns(self, columns: Sequence[pa.Array]) -> list[Any]:
        """Key columns as the user sees them."""
        return [
            text_of(column, held)
            for column, (_, held) in zip(columns, self.key_fields, strict=True)
        ]

    def _names(self, place: str) -> list[str]:
        return [place, *([PANE] if self.timed else []), *self.keys]

    def _fold(self, table: pa.Table, place: str) -> pa.Table:
        return self.fold(table, self._names(place))

    def fold(self, table: pa.Table, by: Sequence[str], marks: Sequence[str] = ()) -> pa.Table:
        """As `Folds.fold`. Raises ArithmeticOverflow."""
        try:
            return self.folds.fold(table, by, marks)
        except SumOverflow as overflow:
            raise self._overflow(overflow) from overflow

    def _overflow(self, overflow: SumOverflow) -> ArithmeticOverflow:
        row = overflow.key.to_pylist()[0]
        vnode = Vnode(row[PLACE] >> GROUP_BITS) if PLACE in row else None
        key = ", ".join(f"{name}={self._shown(name, row[name])!r}" for name in self.keys)
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
        is_text = pa.types.is_string(self.types[key]) and value is not None
        return value.decode(errors="replace") if is_text else value
