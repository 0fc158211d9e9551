"""The end of a demo for eyes: each handover with its phases, the loss, the verdict in words."""

from rich.console import RenderableType
from rich.text import Text

from rhinoctl.ops.demo import DemoOutcome
from rhinoctl.ops.demo_tally import Verdict
from rhinoctl.protocol.handover import Kind, Phase
from rhinoctl.render.live import latency_words
from rhinoctl.render.tables import coloured, columns, facts, phase_times, spaced
from rhinoctl.render.units import count, counted, milliseconds, size


def demo_table(outcome: DemoOutcome) -> RenderableType:
    """All of it; `outcome.error` is shown elsewhere."""
    result = outcome.result
    phases = (Phase.WARMING, Phase.ARMED, Phase.MARKED)
    names = ("PAUSE>", "TOTAL>", "MOVED>", "STATE>")
    times = (f"{phase.value.upper()}>" for phase in phases)
    table = columns("OPERATION", "RESULT", "VNODES>", *times, *names)
    for view in outcome.operations:
        if view.kind is Kind.FAILOVER:
            continue
        spent = phase_times(view)
        table.add_row(
            f"{view.id} {view.kind.value}",
            coloured(view.phase),
            str(len(view.moves)),
            *(milliseconds(spent.get(phase.value)) for phase in phases),
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
    accidents = columns("LOST", "VNODES>", "DETECTED IN>", "RECOVERED IN>", "FETCHED>", "REPLAYED>")
    for loss in result.failovers:
        replayed = loss.replayed_batches
        accidents.add_row(
            f"worker {loss.worker}",
            str(loss.vnodes),
            milliseconds(loss.detect_ms),
            milliseconds(loss.recover_ms),
            size(loss.bytes_fetched),
            "-" if replayed is None else counted(replayed, "batch", "batches"),
        )
    verdict = Text(verdict_sentence(result.oracle), "green" if result.oracle.equal else "red")
    shown = [table if outcome.operations else None, accidents if result.failovers else None]
    return spaced([*shown, numbers, verdict])


def verdict_sentence(oracle: Verdict) -> str:
    """The comparison in one sentence."""
    relation = "equal to" if oracle.equal else "NOT equal to"
    return (
        f"{relation} Spark's batch result: {counted(oracle.rows, 'row')},"
        f" {count(oracle.missing)} missing, {count(oracle.extra)} extra"
    )
