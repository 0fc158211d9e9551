"""What operators over event time have in common: durations and time columns as a job declares them,
and windows as they are put out."""

from typing import Any

import numpy as np
import pyarrow as pa

from rhinoctl.errors import UnsupportedOperator, UsageError
from rhinoctl.operators.arrow_types import array_of, canonical
from rhinoctl.operators.durations import duration_us

_TIMES = (pa.timestamp("us", "UTC"), pa.timestamp("us"))


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
