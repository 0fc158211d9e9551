"""What the demo's job has told so far, and what is shown of it. Pure: the time is an argument."""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

from rhinoctl.errors import RhinoError
from rhinoctl.protocol import codec
from rhinoctl.protocol.views import InstanceView, OperationView

T = TypeVar("T")

RATE_WINDOW_S = 5.0
"""Rows per second are averaged over this."""

BATCHES_KEPT = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """From a row's creation to its result, in milliseconds."""

    p50: float
    p99: float
    max: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The comparison with Spark's batch result: rows of that, rows missing here, rows too many."""

    rows: int
    missing: int
    extra: int
    equal: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Preloading:
    """State filled so far before the clock starts, in rows."""

    rows: int
    of: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """One batch as the job tells it; `latency_ms` None while no rows of the clock's time came."""

    batch: int
    rows_in: int
    rows_out: int
    batch_ms: float
    epoch: int
    latency_ms: Latency | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What the job tells at its end."""

    batches: int
    rows_in: int
    rows_out: int
    latency_ms: Latency
    oracle: Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Why the job could not go on, in the terms of `rhinoctl.errors`."""

    code: str
    message: str
    remedy: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """One look at the demo. `passed_s` is since the clock started, None before that."""

    stage: str
    passed_s: float | None
    seconds: float
    preloading: Preloading | None
    rows_per_s: float
    rows_in: int
    last: Batch | None
    instances: tuple[InstanceView, ...]
    operations: tuple[OperationView, ...]


@dataclass(slots=True)
class Tally:
    """The events so far."""

    stage: str = "starting Spark"
    started: bool = False
    clock_at: float | None = None
    preloading: Preloading | None = None
    last: Batch | None = None
    result: Result | None = None
    fault: Fault | None = None
    rows_in: int = 0
    _recent: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=BATCHES_KEPT))

    def take(self, event: Mapping[str, Any], now: float) -> None:
        """One event of the job; raises RhinoError for one that is not understood."""
        match event.get("event"):
            case "started":
                self.started, self.stage = True, "waiting for the first batch"
            case "preloading":
                self.preloading, self.stage = _read(Preloading, event), "filling the state"
            case "clock":
                self.clock_at, self.stage, self.preloading = now, "running", None
            case "batch":
                self._take_batch(_read(Batch, event), now)
            case "checking":
                self.stage = "comparing with Spark's batch result"
            case "result":
                self.result, self.stage = _read(Result, event), "done"
            case "error":
                self.fault = _read(Fault, event)

    def rows_per_s(self, now: float) -> float:
        """Over the last few seconds."""
        recent = [(at, rows) for at, rows in self._recent if now - at <= RATE_WINDOW_S]
        if len(recent) < 2:
            return 0.0
        return sum(rows for _, rows in recent[1:]) / max(0.001, recent[-1][0] - recent[0][0])

    def passed_s(self, now: float) -> float | None:
        """Seconds since the clock started."""
        return None if self.clock_at is None else now - self.clock_at

    def _take_batch(self, batch: Batch, now: float) -> None:
        self.last = batch
        if self.clock_at is not None:
            self.rows_in += batch.rows_in
            self._recent.append((now, batch.rows_in))


def _read(kind: type[T], event: Mapping[str, Any]) -> T:
    """The fields of `kind` in an event, which may have more of them."""
    wanted = {f.name for f in fields(kind)}  # type: ignore[arg-type]
    try:
        found: T = codec.from_json(kind, {k: v for k, v in event.items() if k in wanted})
    except codec.CodecError as fault:
        raise RhinoError(
            f"the job's event {event.get('event')!r} is not understood: {fault}",
            remedy="report this; the job's log is kept beside the demo's directory",
        ) from fault
    return found
