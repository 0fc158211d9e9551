"""`WindowJoin`: an inner join of two streams on key and tumbling window, as NEXMark's query 8.

What comes out, and when, is what Spark says in append mode of ::

    left.withWatermark(time, delay).select(window(time, size), keys…, columns…).join(
        right.withWatermark(time, delay).select(window(time, size), keys…, columns…),
        on=[keys, window])

A pair of rows comes out with the batch that completes it. A row is late, and makes no pair, if its
window's end is not after W(b−1); the rows of a window are forgotten once its end is not after W(b),
at the end of batch b. Rows without a time or with a null in a key match nothing.

The frame is flat: columns "left.c" and "right.c", and a row is of the side whose time it has. The
wire carries the rows of both sides with what the state needs, in comparable form; pairs are made in
the instance, which keeps the rows of open windows (see join_state).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rhinoctl.errors import UnsupportedOperator, UsageError
from rhinoctl.operators.arrow_types import (
    Column,
    comparable_type,
    from_comparable,
    is_bytes,
    normalised,
    solid,
    to_comparable,
    type_name,
    values_of,
)
from rhinoctl.operators.base import (
    CACHE_BYTES,
    KEY_GROUP,
    Applied,
    BatchContext,
    BoundOperator,
    Operator,
    Slice,
)
from rhinoctl.operators.chunks import ChunkCodec
from rhinoctl.operators.declaring import declared_columns, declared_keys, found, held
from rhinoctl.operators.event_time import (
    declared_delay,
    declared_length,
    declared_time,
    time_type,
    window_column,
    window_type,
)
from rhinoctl.operators.incoming import check_frame, gathered
from rhinoctl.operators.join_state import SIDES, Headers, JoinState, SideRows, stored
from rhinoctl.operators.keys import KeyCodec
from rhinoctl.operators.pairing import distinct, pairs
from rhinoctl.operators.table import KeyRows, runs_of
from rhinoctl.operators.windows import Panes
from rhinoctl.protocol.ports import Store

NAMES = ("left", "right")
WINDOW = "window"
"""The result's column with start and end of the window."""
START = "__window"
"""The start of a row's window, in microseconds since 1970."""
SIDE = "__side"
"""0 for a row of the left side, 1 for one of the right."""

US = 1000
"""Microseconds in a millisecond."""
_RENAME = "rename the column before the sink"


@dataclass(frozen=True, slots=True)
class JoinSide:
    """One input of a join; columns without the side's name."""

    name: str
    keys: tuple[str, ...]
    time: str
    delay_us: int
    select: tuple[str, ...]

    def path(self, column: str) -> str:
        """The name of a column of this side in the frame."""
        return f"{self.name}.{column}"

    def paths(self, columns: Sequence[str]) -> list[str]:
        return [self.path(column) for column in columns]


@dataclass(frozen=True, init=False)
class WindowJoin(Operator):
    """Rows of two inputs that agree in keys and tumbling window.

    ``WindowJoin(keys={"left": ["id"], "right": ["seller"]}, time="time", window="12 h",
    watermark="1 h", select={"left": ["id", "name"], "right": ["reserve"]})``

    `keys`, `time` and `watermark` may be one value for both sides. The result has the column
    ``window`` (``start`` and ``end``), then the columns of `select`, left first.
    """

    kind = "window_join"
    version = 1
    inputs = NAMES

    keys: tuple[str, ...]
    """For people: the names, "a = b" where the sides differ. See `key_columns`."""
    sides: tuple[JoinSide, JoinSide]
    window_us: int

    def __init__(
        self,
        *,
        keys: Sequence[str] | Mapping[str, Sequence[str]],
        time: str | Mapping[str, str],
        window: str,
        watermark: str | Mapping[str, str],
        select: Mapping[str, Sequence[str]],
    ) -> None:
        key_names = _by_side("keys", keys, declared_keys)
        if len(key_names[0]) != len(key_names[1]):
            raise UsageError(
                f"the left side has keys {list(key_names[0])}, the right {list(key_names[1])}",
                remedy="name as many keys for one side as for the other, in the same order",
            )
        if not isinstance(select, Mapping):
            raise UsageError(
                f"select={select!r} does not say of which side the columns are",
                remedy='give select={"left": […], "right": […]}',
            )
        times = _by_side("time", time, declared_time)
        delays = _by_side("watermark", watermark, declared_delay)
        selected = _by_side("select", select, _declared_columns)
        sides = tuple(map(JoinSide, NAMES, key_names, times, delays, selected))
        _check_names(selected)
        shown = tuple(a if a == b else f"{a} = {b}" for a, b in zip(*key_names, strict=True))
        object.__setattr__(self, "keys", shown)
        object.__setattr__(self, "sides", sides)
        object.__setattr__(self, "window_us", declared_length(window, "window"))

    def spec(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "version": self.version,
            "keys": {side.name: list(side.keys) for side in self.sides},
            "time": {side.name: side.time for side in self.sides},
            "window": _spelled(self.window_us),
            "watermark": {side.name: _spelled(side.delay_us) for side in self.sides},
            "select": {side.name: list(side.select) for side in self.sides},
        }

    @classmethod
    def from_spec(cls, spec: Mapping[str, Any]) -> "WindowJoin":
        declared = ("keys", "time", "window", "watermark", "select")
        return cls(**{name: spec[name] for name in declared})

    @property
    def evicts(self) -> bool:
        return True

    def columns(self) -> tuple[str, ...]:
        return tuple(
            dict.fromkeys(
                side.path(column)
                for of in (lambda s: s.keys, lambda s: (s.time,), lambda s: s.select)
                for side in self.sides
                for column in of(side)
            )
        )

    def key_columns(self) -> tuple[tuple[str, ...], ...]:
        """For each key the columns that hold it, of which a row has one."""
        left, right = self.sides
        return tuple(zip(left.paths(left.keys), right.paths(right.keys), strict=True))

    def bind(self, input_schema: pa.Schema) -> "BoundWindowJoin":
        types: dict[str, pa.DataType] = {}
        for side in self.sides:
            types |= _side_types(side, input_schema)
        for left, right in self.key_columns():
            if types[left] != types[right]:
                raise UnsupportedOperator(
                    f"key column '{left}' is {types[left]}, '{right}' is {types[right]}",
                    remedy="cast one of them to the other's type before the sink",
                )
        left, right = (side.path(side.time) for side in self.sides)
        if types[left] != types[right]:
            raise UnsupportedOperator(
                f"time column '{left}' is {types[left]}, '{right}' is {types[right]}",
                remedy="cast both to timestamp, or both to timestamp_ntz, before the sink",
            )
        return BoundWindowJoin(self, {column: types[column] for column in self.columns()})


class BoundWindowJoin(BoundOperator):
    """`types`: the canonical type of each of `operator.columns()`."""

    def __init__(self, operator: WindowJoin, types: Mapping[str, pa.DataType]) -> None:
        self.operator: WindowJoin = operator
        self._types = dict(types)
        self._times = [side.path(side.time) for side in operator.sides]
        self._bounds = Panes(operator.window_us, operator.window_us).bounds()
        self._selected = [side.paths(side.select) for side in operator.sides]
        self.delays_ms = tuple(side.delay_us // US for side in operator.sides)
        key_types = [types[left] for left, _ in operator.key_columns()]
        self._key_names = [f"__k{at}" for at in range(len(key_types))]
        self._key_codec = KeyCodec(key_types, timed=True)
        self._chunk_codecs = [
            ChunkCodec([comparable_type(types[path]) for path in paths]) for paths in self._selected
        ]
        keys = [pa.large_binary() if is_bytes(held) else held for held in key_types]
        columns = [path for paths in self._selected for path in paths]
        self.wire_schema = pa.schema(
            [
                *[(KEY_GROUP, pa.int32()), (START, pa.int64()), (SIDE, pa.int8())],
                *zip(self._key_names, keys, strict=True),
                *[(path, comparable_type(types[path])) for path in columns],
            ]
        )
        instant = types[self._times[0]]
        window = window_type(instant)
        names = [name for side in operator.sides for name in side.select]
        self.result_schema = pa.schema(
            [(WINDOW, window), *zip(names, [types[path] for path in columns], strict=True)]
        )

    def to_json(self) -> dict[str, Any]:
        columns = {name: type_name(held) for name, held in self._types.items()}
        return {"spec": self.operator.spec(), "columns": columns}

    # --- Spark's side ----------------------------------------------------------------------------

    def pre_aggregate(self, table: pa.Table) -> pa.Table:
        """The rows that can match; which of them are late is known in the instance only."""
        check_frame(table.schema, self._types)
        for path, may_match in self._matchable_times(table):
            self._bounds.check(path, may_match)
        left, right = (solid(table[path]) for path in self._times)
        is_left = left.is_valid()
        times = pc.coalesce(left, right)
        keys = [
            pc.if_else(is_left, *(normalised(solid(table[path])) for path in paths))
            for paths in self.operator.key_columns()
        ]
        size = self._size
        starts = values_of(times) // size * size
        sides = values_of(is_left) ^ 1
        columns = [
            table[KEY_GROUP],
            *[pa.array(starts), pa.array(sides.astype(np.int8)), *keys],
            *[to_comparable(table[path]) for paths in self._selected for path in paths],
        ]
        rows = pa.Table.from_arrays(columns, schema=self.wire_schema)
        matching = np.ones(len(rows), bool)
        for column in (times, *keys):
            if column.null_count:
                matching &= column.is_valid().to_numpy(zero_copy_only=False)
        return rows if matching.all() else rows.filter(pa.array(matching))

    def event_times(self, table: pa.Table) -> tuple[int | None, ...]:
        """Of rows that may match: Spark drops rows with a null key before it looks at their time,
        so that they do not raise the watermark."""
        greatest = [pc.max(times).as_py() for _, times in self._matchable_times(table)]
        return tuple(None if time is None else time // US for time in greatest)

    def _matchable_times(self, table: pa.Table) -> Iterator[tuple[str, Column]]:
        """The time column of each side, and its times as integers where no key is null."""
        for side, path in zip(self.operator.sides, self._times, strict=True):
            times = table[path].cast(pa.int64())
            for key in side.paths(side.keys):
                if table[key].null_count:
                    times = pc.if_else(table[key].is_valid(), times, None)
            yield path, times

    # --- the instance's side ---------------------------------------------------------------------

    def state(self, cache_bytes: int = CACHE_BYTES) -> JoinState:
        return JoinState(self._key_codec, self._chunk_codecs, cache_bytes)

    def apply(self, slices: Sequence[Slice], state: JoinState, context: BatchContext) -> Applied:
        table, vnodes = gathered(slices, self.wire_schema, context.vnodes)
        touched = frozenset(vnode for vnode, _, _ in runs_of(vnodes))
        ends = values_of(solid(table[START])) + self._size
        late = ends <= context.watermarks.late_ms * US
        if late.any():
            table, vnodes = table.filter(pa.array(~late)), vnodes[~late]
        keys, of = self._grouped(table, vnodes)
        headers = state.find(keys)
        new = self._new_rows(table, of)
        old = [self._old_rows(state, headers, side, new[1 - side]) for side in SIDES]
        output, output_vnodes = self._joined(keys, old, new)
        state.append(headers, new)
        self._expire(state, context)
        return Applied(output, output_vnodes, touched)

    def _grouped(self, table: pa.Table, vnodes: np.ndarray) -> tuple[KeyRows, np.ndarray]:
        """The distinct keys and windows, and which of them each row has. Equal keys have one key
        group, and rows come by vnode, so the keys do, too."""
        groups = values_of(solid(table[KEY_GROUP]))
        starts = values_of(solid(table[START]))
        keys = [solid(table[name]) for name in self._key_names]
        of, first = distinct([pa.array(starts), *map(to_comparable, keys)])
        taken = pa.array(first)
        rows = KeyRows(
            vnodes=vnodes[first],
            groups=groups[first],
            columns=[key.take(taken) for key in keys],
            times=starts[first],
        )
        return rows, of

    def _new_rows(self, table: pa.Table, of: np.ndarray) -> list[SideRows]:
        """The rows of the batch by side, those of one key together."""
        sides = values_of(solid(table[SIDE]))
        rows = []
        for side, paths in zip(SIDES, self._selected, strict=True):
            mine = np.flatnonzero(sides == side)
            mine = mine[np.argsort(of[mine], kind="stable")]
            taken = pa.array(mine)
            rows.append(SideRows(of[mine], [solid(table[path]).take(taken) for path in paths]))
        return rows

    def _old_rows(
        self, state: JoinState, headers: Headers, side: int, others: SideRows
    ) -> SideRows:
        """What the state has of one side for the keys of which the other side has new rows."""
        met = np.bincount(others.of, minlength=len(headers.codes)) > 0
        return state.rows(headers, side, np.flatnonzero(met & (headers.chunks[side] > 0)))

    def _joined(
        self, keys: KeyRows, old: Sequence[SideRows], new: Sequence[SideRows]
    ) -> tuple[pa.Table, dict]:
        """All pairs that are complete with this batch, by key, left row and right row, old rows
        first; and how many each vnode has."""
        of, *at = pairs(len(keys), [rows.of for rows in old], [rows.of for rows in new])
        instant = self._types[self._times[0]]
        starts = keys.times[of]
        columns = [window_column(starts, self._size, instant)]
        for side, paths in zip(SIDES, self._selected, strict=True):
            taken = pa.array(at[side])
            for path, before, now in zip(paths, old[side].columns, new[side].columns, strict=True):
                every = pa.concat_arrays([before, now]) if len(before) else now
                columns.append(from_comparable(every.take(taken), self._types[path]))
        output = pa.Table.from_arrays(columns, schema=self.result_schema)
        return output, {vnode: end - start for vnode, start, end in runs_of(keys.vnodes[of])}

    @property
    def _size(self) -> int:
        return self.operator.window_us

    def _expire(self, state: JoinState, context: BatchContext) -> None:
        """Forget the windows whose end the watermark has reached with this batch."""
        size, marks = self._size, context.watermarks
        if marks.evict_ms * US // size > marks.late_ms * US // size:
            for vnode in sorted(context.vnodes):
                state.expire(vnode, marks.evict_ms * US - size + 1)

    def scan(self, store: Store) -> Iterator[pa.RecordBatch]:
        """The rows that the state has, in `wire_schema`: by window, key, side, and as they came."""
        for keys, side, columns in stored(store, self._key_codec, self._chunk_codecs):
            of_side = dict(zip(self._selected[side], columns, strict=True))
            arrays = [
                *[pa.array(keys.groups, pa.int32()), pa.array(keys.times)],
                *[pa.array(np.full(len(keys), side, np.int8)), *keys.columns],
                *[
                    of_side.get(field.name, pa.nulls(len(keys), field.type))
                    for field in list(self.wire_schema)[3 + len(self._key_names) :]
                ],
            ]
            yield pa.RecordBatch.from_arrays(arrays, schema=self.wire_schema)


# ---------------------------------------------------------------------------- declarations


def _by_side(what: str, given: Any, declared: Callable[[Any], Any]) -> tuple[Any, Any]:
    """A parameter of both sides, checked: given once, or by the side's name."""
    if not isinstance(given, Mapping):
        given = dict.fromkeys(NAMES, given)
    if set(given) != set(NAMES):
        raise UsageError(
            f"{what}={dict(given)!r} must have the sides left and right",
            remedy=f'give {what}={{"left": …, "right": …}}',
        )
    left, right = (declared(given[name]) for name in NAMES)
    return left, right


def _declared_columns(columns: Any) -> tuple[str, ...]:
    columns = [columns] if isinstance(columns, str) else columns
    if not columns:
        raise UsageError(
            "a join needs at least one column of each side in select=",
            remedy="select a key column of the side that has nothing else to say",
        )
    return declared_columns(columns, "select")


def _check_names(selected: Sequence[Sequence[str]]) -> None:
    """Raise UsageError if two columns of the result would have one name."""
    seen = {WINDOW: "the window of a pair"}
    for name, columns in zip(NAMES, selected, strict=True):
        for column in columns:
            if column in seen:
                raise UsageError(
                    f"'{column}' of the {name} side and {seen[column]} have one name in the result",
                    remedy=_RENAME,
                )
            seen[column] = f"'{column}' of the {name} side"


def _spelled(duration: int) -> str:
    return f"{duration} microseconds"


def _side_types(side: JoinSide, schema: pa.Schema) -> dict[str, pa.DataType]:
    """The canonical types of a side's columns, by their names in the frame."""
    types = {path: held(path, found(schema, path), key=True) for path in side.paths(side.keys)}
    time = side.path(side.time)
    types[time] = time_type(time, found(schema, time))
    return types | {path: held(path, found(schema, path)) for path in side.paths(side.select)}
