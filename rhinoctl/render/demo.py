"""The end of a demo for eyes: each handover with its phases, then the verdict in a sentence."""

from rich.console import RenderableType
from rich.text import Text

from rhinoctl.ops.demo import DemoOutcome
from rhinoctl.ops.demo_tally import Verdict
from rhinoctl.render.live import latency_words
from rhinoctl.render.tables import coloured, columns, facts, phase_times, spaced
from rhinoctl.render.units import count, counted, milliseconds, size


def demo_table(outcome: DemoOutcome) -> RenderableType:
    """All of it; `outcome.error` is shown elsewhere."""
    result = outcome.result
    table = columns("OPERATION", "KIND", "RESULT", "VNODES>", "PHASES")
    for name in ("PAUSE", "TOTAL", "MOVED", "STATE"):
        table.add_column(name, justify="right", no_wrap=True)
    for view in outcome.operations:
        phases = ", ".join(f"{name} {milliseconds(ms)}" for name, ms in phase_times(view).items())
        table.add_row(
            view.id,
            view.kind.value,
            coloured(view.phase),
            str(len(view.moves)),
            phases,
            milliseconds(view.pause_ms),
            milliseconds(view.total_ms),
            size(view.bytes_moved),
            size(view.state_bytes),
        )
    numbers = facts(
        {
            "batches": count(result.batches),
            "rows": f"{count(result.rows_in)} in, {count(result.rows_out)} out",
            "latency": latency_words(result.latency_ms),
            **({"directory": outcome.directory} if outcome.directory else {}),
        }
    )
    verdict = Text(verdict_sentence(result.oracle), "green" if result.oracle.equal else "red")
    return spaced([table if outcome.operations else None, numbers, verdict])


def verdict_sentence(oracle: Verdict) -> str:
    """The comparison in one sentence."""
    relation = "equal to" if oracle.equal else "NOT equal to"
    return (
        f"{relation} Spark's batch result: {counted(oracle.rows, 'row')},"
        f" {count(oracle.missing)} missing, {count(oracle.extra)} extra"
    )
