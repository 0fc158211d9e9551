"""What operators over event time have in common: durations and time columns as a job declares them,
and windows as they are put out."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rhinoctl.errors import UnsupportedOperator, UsageError
from rhinoctl.operators.arrow_types import Column, array_of, canonical
from rhinoctl.operators.declaring import declared_column
from rhinoctl.operators.durations import duration_us

_TIMES = (pa.timestamp("us", "UTC"), pa.timestamp("us"))


@dataclass(frozen=True, slots=True)
class TimeBounds:
    """The event times whose windows can be kept and put out: microseconds since 1970, both
    included."""

    least: int
    greatest: int

    def check(self, column: str, times: Column) -> None:
        """Raise UnsupportedOperator, naming the column, for a time beyond them: where rows are
        staged, so that the batch is never decided."""
        found = pc.min_max(times.cast(pa.int64())).as_py()
        if found["min"] is None:
            return
        if found["max"] > self.greatest:
            raise self._beyond(column, found["max"], f"< '{_FAR_AHEAD}'")
        if found["min"] < self.least:
            raise self._beyond(column, found["min"], f"> '{_FAR_BACK}'")

    def _beyond(self, column: str, time_us: int, usual: str) -> UnsupportedOperator:
        return UnsupportedOperator(
            f"time column '{column}' has a row at {_shown(time_us)}; the operator's windows can be"
            f" kept for times from {_shown(self.least)} to {_shown(self.greatest)}",
            remedy=f'leave such rows out before the sink, as by where("{column} {usual}"), and'
            " start the query again: the batch was not decided",
        )


_FAR_AHEAD = "9999-01-01"
_FAR_BACK = "0001-01-01"


def _shown(time_us: int) -> str:
    """A time in years of any number of digits; numpy takes the least integer for none."""
    return f"{np.datetime64(max(time_us, 1 - 2**63), 'us')}Z"


def declared_time(column: Any) -> str:
    """The name of a time column. Raises UsageError."""
    return declared_column(column, f"time={column!r}")


def declared_length(text: Any, what: str) -> int:
    """A window or slide in microseconds. Raises UsageError unless it is longer than zero."""
    length = duration_us(text, what)
    if length <= 0:
        raise UsageError(
            f"{what} '{text}' is not longer than zero", remedy="give a length such as '60 s'"
        )
    return length


def declared_delay(text: Any) -> int:
    """A watermark's delay in microseconds. Raises UsageError if it is negative."""
    delay = duration_us(text, "watermark")
    if delay < 0:
        raise UsageError(
            f"watermark '{text}' is negative", remedy="give a delay of '0 seconds' or more"
        )
    return delay


def time_type(column: str, given: pa.DataType) -> pa.DataType:
    """The canonical type of a time column. Raises UnsupportedOperator, naming the column."""
    found = canonical(given)
    if found not in _TIMES:
        raise UnsupportedOperator(
            f"time column '{column}' is {given}, not timestamp",
            remedy=f"cast '{column}' to timestamp before the sink",
        )
    return found


def window_type(time: pa.DataType) -> pa.DataType:
    """The struct of start and end that Spark's ``window`` makes."""
    return pa.struct([("start", time), ("end", time)])


def window_column(starts: np.ndarray, window_us: int, time: pa.DataType) -> pa.Array:
    """Windows of one length, by their starts in microseconds since 1970."""
    ends = [array_of(each, None, time) for each in (starts, starts + window_us)]
    return pa.StructArray.from_arrays(ends, fields=list(window_type(time)))
