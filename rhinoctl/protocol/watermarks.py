"""Watermarks: pure functions from one decision record to the next (design, section 4).

They mean what they mean in Spark. Input i of batch b has the watermark

    w_i(b+1) = max(w_i(b), greatest event time of input i in b − delay_i),    w_i(0) = none

and the batch has W(b+1) = max(W(b), min over i of w_i(b+1)), with W(0) = 0 and an input without any
row yet standing at 0. Rows are late by W(b−1), state is evicted by W(b): the records carry both, so
that every instance, and every later repetition, uses the same.

Spark keeps the watermarks of single inputs in memory only, so that after a restart an input without
new rows stands at 0 again. Ours are in the records, and go on.
"""

from collections.abc import Sequence

from rhinoctl.protocol.records import Watermarks


def of_batch(
    last: Watermarks, delays_ms: Sequence[int], greatest_ms: Sequence[int | None]
) -> Watermarks:
    """Those of the batch after `last`, in which each input had these greatest event times."""
    return Watermarks(
        late_ms=last.evict_ms,
        evict_ms=after(last, delays_ms),
        max_event_ms=greatest(_by_input(last.max_event_ms, delays_ms), greatest_ms),
    )


def after(last: Watermarks, delays_ms: Sequence[int]) -> int:
    """W(b+1), from the watermarks of b."""
    inputs = zip(_by_input(last.max_event_ms, delays_ms), delays_ms, strict=True)
    return max(last.evict_ms, min((0 if m is None else m - d for m, d in inputs), default=0))


def rises(last: Watermarks, delays_ms: Sequence[int]) -> bool:
    """Whether another batch, even an empty one, would evict what batch b has not."""
    return after(last, delays_ms) > last.evict_ms


def greatest(one: Sequence[int | None], other: Sequence[int | None]) -> tuple[int | None, ...]:
    """The greater of two event times for each input; None stands for none, () for none of any."""
    if not one or not other:
        return tuple(one or other)
    pairs = zip(one, other, strict=True)
    return tuple(max((m for m in pair if m is not None), default=None) for pair in pairs)


def _by_input(times: Sequence[int | None], delays_ms: Sequence[int]) -> Sequence[int | None]:
    return times or [None] * len(delays_ms)
