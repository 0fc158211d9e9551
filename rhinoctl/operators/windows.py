"""`WindowAggregate`: Spark's ``groupBy(window(…), keys).agg(…)``, tumbling or sliding.

State is not by window but by *pane*: the stretches of event time, as long as the greatest common
divisor of window and slide, of which every window is a row. A row of the input is in one pane and
in window/slide windows, so panes are folded before anything is routed, and the state has one row
for what Spark keeps window/slide times (docs/adr/0008-panes.md).

Event time, as Spark's:

1. A window [start, start + window) starts at a multiple of the slide since 1970 in UTC, also before
   1970. Days have 24 hours: time zones and daylight saving change nothing. A row without a time is
   in no window.
2. A window is late once it ends at or before the watermark of the batch before; rows do not count
   for windows that are late, and still count for the others that they are in.
3. After the batch, windows that end at or before its watermark are gone. With ``output="append"``
   they are put out then, once; with ``"update"`` every window is put out that a batch adds to.

Panes keep no account of which windows a row came too late for. They need not: a window that is late
has been put out for the last time, and its panes live on for windows that start later only.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import gcd
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rhinoctl import limits
from rhinoctl.errors import UsageError
from rhinoctl.ids import Vnode
from rhinoctl.operators.aggregates import LONG_MAX, Aggregate, declared
from rhinoctl.operators.arrow_types import solid, type_name, values_of
from rhinoctl.operators.base import (
    CACHE_BYTES,
    Applied,
    BatchContext,
    BoundOperator,
    Operator,
    Slice,
)
from rhinoctl.operators.declaring import (
    aggregates_json,
    check_names,
    column_types,
    declared_keys,
    found,
)
from rhinoctl.operators.event_time import (
    TimeBounds,
    declared_delay,
    declared_length,
    declared_time,
    time_type,
    window_column,
    window_type,
)
from rhinoctl.operators.grouped import GROUP_BITS, PANE, PLACE, Grouping
from rhinoctl.operators.keys import TIME_MAX
from rhinoctl.operators.table import KeyRows, StateTable, runs_of, scanned
from rhinoctl.protocol.ports import Store
from rhinoctl.protocol.records import Watermarks

OUTPUTS = ("update", "append")
WINDOW = "__window"
"""The start of a window, in microseconds since 1970."""

NEW = "__new"
"""1 for what a batch brings, 0 for what the state held."""

Numbers = np.ndarray


@dataclass(frozen=True, slots=True)
class Panes:
    """The arithmetic of windows and panes. All times are microseconds since 1970."""

    window: int
    slide: int

    @property
    def length(self) -> int:
        """Of a pane."""
        return gcd(self.window, self.slide)

    def starts(self, times: Numbers) -> Numbers:
        """The pane of each time."""
        return np.floor_divide(times, self.length) * self.length

    def last_window(self, panes: Numbers) -> Numbers:
        """The start of the last window that each pane is in."""
        return np.floor_divide(panes, self.slide) * self.slide

    def windows(self, panes: Numbers) -> tuple[Numbers, Numbers]:
        """Every window of every pane: (position of the pane, start of the window)."""
        overlap = -(-self.window // self.slide)
        rows = np.repeat(np.arange(len(panes)), overlap)
        back = np.tile(np.arange(overlap) * self.slide, len(panes))
        starts = self.last_window(panes)[rows] - back
        inside = starts + self.window > panes[rows]
        return rows[inside], starts[inside]

    def neighbours(self) -> Numbers:
        """How far the panes are from one that share a window with it, itself included."""
        reach = self.window - self.length
        return np.arange(-reach, reach + 1, self.length)

    def bounds(self) -> TimeBounds:
        """The times whose panes, and those of the windows that they are in, keys can hold, and
        whose windows end within the range of long."""
        reach = self.window - self.length
        last = min(TIME_MAX - reach, LONG_MAX - self.window) // self.length * self.length
        before = self.window + self.slide if reach else 0
        first = (2**63 - before) // self.length * -self.length
        return TimeBounds(first, last + self.length - 1)

    def first_window_after(self, watermark: int) -> int:
        """The start of the first window that ends after a watermark."""
        return ((watermark - self.window) // self.slide + 1) * self.slide


@dataclass(frozen=True, init=False)
class WindowAggregate(Operator):
    """Aggregates by key and window of event time.

    ``WindowAggregate(keys=["auction"], time="time", window="60 s", slide="10 s",
    watermark="5 s", aggregates={"bids": "count"}, output="append")``

    `slide` is the window by default (tumbling). Without `watermark` nothing is late and nothing
    is ever dropped; ``output="append"`` needs one. Functions and `ansi` as for RunningAggregate.
    Columns of the result: ``window`` (a struct of start and end), the keys, the aggregates.
    """

    kind = "window"
    version = 1

    keys: tuple[str, ...]
    time: str
    window_us: int
    slide_us: int
    delay_us: int | None
    aggregates: tuple[Aggregate, ...]
    output: str
    ansi: bool

    def __init__(
        self,
        keys: Sequence[str],
        aggregates: Mapping[str, str | Sequence[str]],
        *,
        time: str,
        window: str,
        slide: str | None = None,
        watermark: str | None = None,
        output: str = "update",
        ansi: bool = True,
    ) -> None:
        window_us = declared_length(window, "window")
        slide_us = window_us if slide is None else declared_length(slide, "slide")
        delay_us = None if watermark is None else declared_delay(watermark)
        fields = {
            "keys": declared_keys(keys),
            "time": declared_time(time),
            "window_us": window_us,
            "slide_us": slide_us,
            "delay_us": delay_us,
            "aggregates": declared(aggregates),
            "output": output,
            "ansi": bool(ansi),
        }
        for name, value in fields.items():
            object.__setattr__(self, name, value)
        check_names(self.keys, self.aggregates)
        self._check()

    def _check(self) -> None:
        if "window" in self.keys:
            raise UsageError(
                "a key is named 'window', as the result's window is",
                remedy="rename the column before the sink",
            )
        if any(each.name == "window" for each in self.aggregates):
            raise UsageError(
                "an aggregate is named 'window', as the result's window is",
                remedy="give the aggregate another name",
            )
        if self.window_us < self.slide_us:
            raise UsageError(
                f"the window of {self.window_us / 1e6:g} s is shorter than its slide of"
                f" {self.slide_us / 1e6:g} s: rows between two windows would be in none",
                remedy="make the slide at most as long as the window",
            )
        if self.window_us > limits.WINDOWS_A_ROW_MAX * self.slide_us:
            raise UsageError(
                f"every row would be in {self.window_us // self.slide_us} windows, more than"
                f" {limits.WINDOWS_A_ROW_MAX}",
                remedy="make the slide longer",
            )
        if self.output not in OUTPUTS:
            raise UsageError(
                f"there is no output mode {self.output!r}", remedy=f"use {' or '.join(OUTPUTS)}"
            )
        if self.output == "append" and self.delay_us is None:
            raise UsageError(
                "without a watermark no window is ever complete, and append puts out nothing",
                remedy='give watermark="10 s", or use output="update"',
            )

    def spec(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "version": self.version,
            "keys": list(self.keys),
            "time": self.time,
            "window_us": self.window_us,
            "slide_us": self.slide_us,
            "delay_us": self.delay_us,
            "aggregates": aggregates_json(self.aggregates),
            "output": self.output,
            "ansi": self.ansi,
        }

    @classmethod
    def from_spec(cls, spec: Mapping[str, Any]) -> "WindowAggregate":
        def text(name: str) -> str | None:
            return None if spec[name] is None else f"{spec[name]} microseconds"

        return cls(
            spec["keys"],
            spec["aggregates"],
            time=spec["time"],
            window=f"{spec['window_us']} microseconds",
            slide=text("slide_us"),
            watermark=text("delay_us"),
            output=spec["output"],
            ansi=spec["ansi"],
        )

    @property
    def evicts(self) -> bool:
        return self.delay_us is not None

    def columns(self) -> tuple[str, ...]:
        used = [each.column for each in self.aggregates if each.column is not None]
        return tuple(dict.fromkeys([*self.keys, self.time, *used]))

    def bind(self, input_schema: pa.Schema) -> "BoundWindowAggregate":
        types = column_types(input_schema, self.keys, self.aggregates)
        time = time_type(self.time, found(input_schema, self.time))
        if self.time not in types or pa.types.is_null(types[self.time]):
            types[self.time] = time
        return BoundWindowAggregate(self, types)


class BoundWindowAggregate(BoundOperator):
    """`types`: the canonical type of each of `operator.columns()`, null if it is only counted."""

    def __init__(self, operator: WindowAggregate, types: Mapping[str, pa.DataType]) -> None:
        self.operator: WindowAggregate = operator
        self._types = dict(types)
        self._time = types[operator.time]
        self._panes = Panes(operator.window_us, operator.slide_us)
        self._bounds = self._panes.bounds()
        self._grouping = Grouping(
            operator.keys, operator.aggregates, types, ansi=operator.ansi, timed=True
        )
        self.wire_schema = self._grouping.wire_schema
        window = [("window", window_type(self._time))]
        fields = [*window, *self._grouping.key_fields, *self._grouping.result_fields]
        self.result_schema = pa.schema(fields)
        delay = operator.delay_us
        self.delays_ms = () if delay is None else (delay // 1000,)

    def to_json(self) -> dict[str, Any]:
        columns = {name: type_name(self._types[name]) for name in self.operator.columns()}
        return {"spec": self.operator.spec(), "columns": columns}

    # --- Spark's side ----------------------------------------------------------------------------

    def event_times(self, table: pa.Table) -> tuple[int | None, ...]:
        if not self.delays_ms:
            return ()
        greatest = pc.max(table[self.operator.time].cast(pa.int64())).as_py()
        return (None if greatest is None else greatest // 1000,)

    def pre_aggregate(self, table: pa.Table) -> pa.Table:
        times = table[self.operator.time]
        if times.null_count:
            table = table.filter(times.is_valid())
            times = table[self.operator.time]
        self._bounds.check(self.operator.time, times)
        panes = self._panes.starts(values_of(solid(times)))
        return self._grouping.folded_rows(table, pa.array(panes))

    # --- the instance's side ---------------------------------------------------------------------

    def state(self, cache_bytes: int = CACHE_BYTES) -> StateTable:
        return self._grouping.state(cache_bytes)

    def apply(self, slices: Sequence[Slice], state: StateTable, context: BatchContext) -> Applied:
        marks = context.watermarks
        folded = self._grouping.combined(slices, context.vnodes)
        touched = {Vnode(int(v)) for v in np.unique(self._vnodes_of(folded))}
        if self.delays_ms:
            last = self._panes.last_window(values_of(solid(folded[PANE])))
            timely = last + self.operator.window_us > marks.late_ms * 1000
            if not timely.all():
                folded = folded.filter(pa.array(timely))
        keys = self._grouping.key_rows(folded)
        found_rows = state.find(keys)
        slots = self._grouping.merged(folded, found_rows.slots)
        if self.operator.output == "append":
            whole = self._closing(folded, state, context)
        elif self._panes.window == self._panes.slide:
            whole = folded
            for name, column in zip(self._grouping.folds.names, slots, strict=True):
                whole = whole.set_column(whole.column_names.index(name), name, column)
            whole = whole.rename_columns({PANE: WINDOW})
        else:
            whole = self._touched_windows(folded, keys, state, marks)
        output, counts = self._result(whole)
        state.put(found_rows, slots)
        if marks.rose:
            gone = self._panes.first_window_after(marks.evict_ms * 1000)
            for vnode in context.vnodes:
                state.expire(vnode, gone)
        return Applied(output, counts, frozenset(touched))

    @staticmethod
    def _vnodes_of(table: pa.Table) -> Numbers:
        return values_of(solid(table[PLACE])) >> GROUP_BITS

    def _closing(self, folded: pa.Table, state: StateTable, context: BatchContext) -> pa.Table:
        """The windows that end with this batch, whole: what the state held, and what is new."""
        marks = context.watermarks
        first = self._panes.first_window_after(marks.late_ms * 1000)
        end = self._panes.first_window_after(marks.evict_ms * 1000)
        names = [PLACE, PANE, *self._grouping.keys, *self._grouping.folds.names]
        parts = [folded.select(names)]
        if first < end:
            last_pane = end - self._panes.slide + self._panes.window
            for vnode in sorted(context.vnodes):
                parts.append(self._pane_rows(*state.between(vnode, first, last_pane)))
        panes = pa.concat_tables(parts)
        windows = self._in_windows(panes, first, end)
        return self._grouping.fold(windows, [PLACE, WINDOW, *self._grouping.keys])

    def _touched_windows(
        self, folded: pa.Table, keys: KeyRows, state: StateTable, marks: Watermarks
    ) -> pa.Table:
        """Every window that the batch adds to and that is not late, whole."""
        offsets = self._panes.neighbours()
        rows = np.repeat(np.arange(len(keys)), len(offsets))
        assert keys.times is not None
        place = solid(folded[PLACE]).take(pa.array(rows))
        panes = keys.times[rows] + np.tile(offsets, len(keys))
        columns = [place, pa.array(panes), *(c.take(pa.array(rows)) for c in keys.columns)]
        names = [PLACE, PANE, *self._grouping.keys]
        wanted = pa.table(columns, names=names)
        if wanted.num_rows:
            wanted = pa.TableGroupBy(wanted, names, use_threads=False).aggregate([])
            wanted = wanted.sort_by([(PLACE, "ascending"), (PANE, "ascending")])
        around = state.find(self._grouping.key_rows(wanted))
        old = self._pane_rows(around.keys, around.slots, place=wanted[PLACE])
        mark = pa.array(np.zeros(old.num_rows, np.int8))
        new = pa.array(np.ones(folded.num_rows, np.int8))
        both = pa.concat_tables(
            [old.append_column(NEW, mark), folded.select(old.column_names).append_column(NEW, new)]
        )
        first = -LONG_MAX - 1
        if self.delays_ms:
            first = self._panes.first_window_after(marks.late_ms * 1000)
        windows = self._in_windows(both, first, LONG_MAX)
        by = [PLACE, WINDOW, *self._grouping.keys]
        whole = self._grouping.fold(windows, by, [NEW])
        return whole.filter(pc.equal(whole[NEW], 1)).drop_columns([NEW])

    def _pane_rows(
        self, keys: KeyRows, slots: Sequence[pa.Array], place: pa.Array | None = None
    ) -> pa.Table:
        """Rows of the state as a table like `Grouping.combined` makes."""
        if place is None:
            place = pa.array((keys.vnodes << GROUP_BITS | keys.groups).astype(np.int32))
        columns = [place, pa.array(keys.times, pa.int64()), *keys.columns, *slots]
        names = [PLACE, PANE, *self._grouping.keys, *self._grouping.folds.names]
        return pa.table(columns, names=names)

    def _in_windows(self, panes: pa.Table, first: int, end: int) -> pa.Table:
        """Rows of panes once for each window that they are in and that starts in [first, end)."""
        rows, starts = self._panes.windows(values_of(solid(panes[PANE])))
        wanted = (starts >= first) & (starts < end)
        rows, starts = rows[wanted], starts[wanted]
        taken = panes.take(pa.array(rows))
        return taken.set_column(taken.column_names.index(PANE), WINDOW, pa.array(starts))

    def _result(self, whole: pa.Table) -> tuple[pa.Table, dict[Vnode, int]]:
        """Rows of windows as the user sees them, vnodes ascending, and how many of each vnode."""
        place = values_of(solid(whole[PLACE]))
        order = np.argsort(place >> GROUP_BITS, kind="stable")
        whole = whole.take(pa.array(order))
        vnodes = (place >> GROUP_BITS)[order]
        starts = values_of(solid(whole[WINDOW]))
        keys = self._grouping.key_columns([solid(whole[key]) for key in self._grouping.keys])
        slots = [solid(whole[name]) for name in self._grouping.folds.names]
        window = window_column(starts, self.operator.window_us, self._time)
        columns = [window, *keys, *self._grouping.folds.finish(slots)]
        output = pa.Table.from_arrays(columns, schema=self.result_schema)
        return output, {vnode: end - start for vnode, start, end in runs_of(vnodes)}

    def scan(self, store: Store) -> Iterator[pa.RecordBatch]:
        """The panes of a vnode, each as a window of its own length."""
        for keys, slots in scanned(store, self._grouping.key_codec, self._grouping.value_codec):
            assert keys.times is not None
            window = window_column(keys.times, self._panes.length, self._time)
            columns = [window, *self._grouping.key_columns(keys.columns)]
            columns += self._grouping.folds.finish(slots)
            yield from pa.Table.from_arrays(columns, schema=self.result_schema).to_batches()
