"""What is shown while something runs, on stderr: a live display on a terminal, else plain lines."""

import sys
import time
from types import TracebackType
from typing import Self

from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from rhinoctl.ids import OpId
from rhinoctl.ops.demo_tally import Frame, Latency
from rhinoctl.ops.vnodes import format_vnodes
from rhinoctl.protocol.handover import ENDED, Kind
from rhinoctl.protocol.views import InstanceView, OperationView
from rhinoctl.render.output import console_of
from rhinoctl.render.tables import coloured, columns, facts, phase_times, progress_words
from rhinoctl.render.units import count, counted, milliseconds, size

REFRESH_PER_S = 8

PLAIN_EVERY_S = 5.0
"""Between two lines of progress where there is no terminal."""

BAR_CELLS = 32
"""Width of the bar of an instance that owns all vnodes."""


class _Display:
    """A renderable that is replaced; does nothing without a terminal."""

    def __init__(self) -> None:
        self.console = console_of(sys.stderr)
        self._live = (
            Live(console=self.console, refresh_per_second=REFRESH_PER_S, transient=True)
            if self.console.is_terminal
            else None
        )

    @property
    def plain(self) -> bool:
        return self._live is None

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def update(self, renderable: RenderableType) -> None:
        if self._live is not None:
            self._live.update(renderable)

    def pause(self) -> None:
        """Leave the terminal to somebody else, until `resume`."""
        if self._live is not None:
            self._live.stop()

    def resume(self) -> None:
        if self._live is not None:
            self._live.start()

    def line(self, text: str) -> None:
        """A line that stays."""
        self.console.print(text, soft_wrap=True)


# --- what a command waits for --------------------------------------------------------------------


class WaitProgress(_Display):
    """How far something is that a command waits for. `left` is said if the command ends before."""

    def __init__(self, left: str = "") -> None:
        super().__init__()
        self._left = left
        self._told = ""
        self._begun = False
        self._told_at = -PLAIN_EVERY_S

    def tell(self, text: str) -> None:
        """How far it is now; where there is no terminal, not more often than people can read."""
        now = time.monotonic()
        if self.plain and text != self._told and now - self._told_at >= PLAIN_EVERY_S:
            self._told_at = now
            self.line(text)
        self._told, self._begun = text, True
        self.update(Text(text))

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        super().__exit__(kind, error, trace)
        if self._begun and self._left and kind is not None:
            self.line(self._left)


class OperationProgress(WaitProgress):
    """The phase and bytes of the operations that a command waits for."""

    def __init__(self, left: str = "") -> None:
        super().__init__(left)
        self._seen: dict[OpId, OperationView] = {}

    def show(self, view: OperationView) -> None:
        """An operation as just seen; one that had nothing to do has no id, and no progress."""
        if not view.id:
            return
        self._begun = True
        last = self._seen.get(view.id)
        if self.plain and (last is None or last.phase is not view.phase):
            self.line(_operation_line(view))
        self._seen[view.id] = view
        running = [each for each in self._seen.values() if each.phase not in ENDED]
        self.update(Text("\n".join(map(_operation_line, running or [view]))))

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        super().__exit__(kind, error, trace)
        for view in self._seen.values() if kind is not None else ():
            if view.phase in ENDED:
                continue
            end = f", end it with `rhinoctl op abort {view.id}`"
            self.line(
                f"{view.id} goes on without this command: watch it with"
                f" `rhinoctl op watch {view.id}`{'' if view.kind is Kind.FAILOVER else end}"
            )


def _operation_line(view: OperationView) -> str:
    began = min(view.times.values(), default=0.0)
    parts = [
        f"{view.kind.value} {view.id} of job {view.job}: {view.phase.value}",
        f"{time.time() - began:.1f} s" if began and view.phase not in ENDED else "",
        size(view.bytes_moved) if view.bytes_moved else "",
        progress_words(view),
    ]
    return ", ".join(part for part in parts if part)


# --- the demo ------------------------------------------------------------------------------------


class DemoDisplay(_Display):
    """The demo as it runs."""

    def __init__(self) -> None:
        super().__init__()
        self._lined_at = 0.0
        self._shown: dict[str, str] = {}
        self._stage = self._lined = ""

    def show(self, frame: Frame) -> None:
        """One look."""
        if not self.plain:
            self.update(demo_frame(frame))
            return
        for view in frame.operations:
            if self._shown.get(view.id) != view.phase.value:
                self._shown[view.id] = view.phase.value
                self.line(_operation_line(view))
        now, line = time.monotonic(), _frame_line(frame)
        due = frame.stage != self._stage or now - self._lined_at >= PLAIN_EVERY_S
        if due and line != self._lined:
            self._stage, self._lined, self._lined_at = frame.stage, line, now
            self.line(line)


def _frame_line(frame: Frame) -> str:
    """The numbers of a frame in one line."""
    parts = [_stage(frame)]
    if frame.last is not None:
        parts += [
            f"{count(frame.rows_per_s)} rows/s",
            f"batch {frame.last.batch} in {milliseconds(frame.last.batch_ms)}",
            f"latency {latency_words(frame.last.latency_ms)}",
            f"epoch {frame.last.epoch}",
        ]
    if frame.instances:
        parts.append(" ".join(f"{i.id}@{i.worker}:{len(i.vnodes)}" for i in frame.instances))
    return ", ".join(parts)


def latency_words(latency: Latency | None) -> str:
    """Percentiles, or ``-`` where nothing was measured."""
    if latency is None:
        return "-"
    percentiles = {"p50": latency.p50, "p99": latency.p99, "max": latency.max}
    return ", ".join(f"{name} {milliseconds(value)}" for name, value in percentiles.items())


def _stage(frame: Frame) -> str:
    if frame.preloading is not None and frame.preloading.of:
        done, of = frame.preloading.rows, frame.preloading.of
        return f"{frame.stage}: {count(done)} of {count(of)} rows ({100 * done // of} %)"
    if frame.passed_s is not None and frame.stage == "running":
        return f"{frame.stage}, {min(frame.passed_s, frame.seconds):.0f} of {frame.seconds:.0f} s"
    return frame.stage


def demo_frame(frame: Frame) -> RenderableType:
    """A frame for a terminal: the numbers, where the vnodes live, the handovers."""
    last = frame.last
    numbers = {"stage": _stage(frame)}
    if last is not None:
        numbers |= {
            "rows": f"{count(frame.rows_per_s)} per second, {count(frame.rows_in)} so far",
            "batch": f"{last.batch}, in {milliseconds(last.batch_ms)}",
            "latency": latency_words(last.latency_ms),
            "epoch": str(last.epoch),
        }
    parts: list[RenderableType] = [facts(numbers)]
    if frame.instances:
        parts += [Text(), vnode_bars(frame.instances)]
    if frame.operations:
        parts += [Text(), _operation_lines(frame.operations)]
    return Group(*parts)


def vnode_bars(instances: tuple[InstanceView, ...]) -> Table:
    """Where the vnodes live: one bar an instance."""
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    of = sum(len(instance.vnodes) for instance in instances) or 1
    for instance in instances:
        owned = len(instance.vnodes)
        cells = max(1, round(BAR_CELLS * owned / of)) if owned else 0
        table.add_row(
            Text(instance.id, "bold"),
            instance.worker,
            Text("█" * cells, "cyan" if instance.ready else "yellow"),
            counted(owned, "vnode"),
            size(instance.state_bytes),
            Text(format_vnodes(instance.vnodes), "dim", overflow="ellipsis", no_wrap=True),
        )
    return table


def _operation_lines(operations: tuple[OperationView, ...]) -> Table:
    table = columns("OPERATION", "KIND", "VNODES>", "PHASE", "PAUSE>", "MOVED>", "")
    for view in operations:
        spent = ", ".join(f"{name} {milliseconds(ms)}" for name, ms in phase_times(view).items())
        table.add_row(
            view.id,
            view.kind.value,
            str(len(view.moves)),
            coloured(view.phase),
            milliseconds(view.pause_ms),
            size(view.bytes_moved),
            view.reason or (spent if view.phase in ENDED else view.progress),
        )
    return table
