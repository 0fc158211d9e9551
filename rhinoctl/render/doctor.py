"""What `rhinoctl doctor` and `op repair` show."""

from rich.console import Group, RenderableType
from rich.text import Text

from rhinoctl.ops.doctor import Diagnosis
from rhinoctl.ops.repair_offsets import Mend, RepairedOffsets
from rhinoctl.protocol.findings import Finding, State
from rhinoctl.protocol.views import RepairView
from rhinoctl.render.tables import facts, operation_table, spaced

MENDS = {
    Mend.WRITTEN: "written, as the commit before it",
    Mend.TAKEN_AWAY: "taken away: Spark plans the batch anew",
}
STYLES = {State.OK: "green", State.DEGRADED: "yellow", State.BROKEN: "red"}


def diagnosis_table(diagnosis: Diagnosis) -> RenderableType:
    """All findings, the worst first, and what was done."""
    title = Text.assemble(
        f"cluster {diagnosis.cluster}: ",
        Text(diagnosis.state.value, STYLES[diagnosis.state]),
    )
    done = Group(*(Text(f"done: {line}") for line in diagnosis.done)) if diagnosis.done else None
    return spaced([title, *map(_finding, diagnosis.findings), done])


def _finding(finding: Finding) -> Group:
    return Group(
        Text.assemble(
            (finding.state.value, STYLES[finding.state]),
            f": {finding.what} ({finding.check.value})",
        ),
        Text(f"    evidence: {finding.evidence}"),
        Text(f"    costs: {finding.cost}"),
        Text(f"    try: {finding.remedy}" + (" (or --fix)" if finding.fix is not None else "")),
    )


def repair_table(view: RepairView) -> RenderableType:
    """The operation, who was asked again, and what it waits for."""
    told = {}
    if view.asked:
        told["asked again"] = ", ".join(view.asked)
    if view.silent:
        told["silent"] = ", ".join(view.silent)
    if view.waits_for:
        told["waits for"] = "; ".join(view.waits_for)
    return spaced([operation_table(view.operation), facts(told) if told else None])


def repaired_offsets_table(done: RepairedOffsets) -> RenderableType:
    """What is written, and where the old file is."""
    if not done.needed:
        return Text(f"nothing to do: {done.file} has the decided offsets of batch {done.batch}")
    parts: list[RenderableType | None] = []
    verb = "would be" if done.dry_run else "is"
    if done.change:
        told = {"before": done.before, "decided": done.after}
        if done.kept:
            told["kept"] = done.kept
        title = f"{done.file} {verb} written: batch {done.batch} of job {done.job}"
        parts += [Text(title), facts(told)]
    for other in done.others:
        told = {"since": other.why}
        if other.kept:
            told["kept"] = other.kept
        parts += [Text(f"{other.file} {verb} {MENDS[other.mend]}"), facts(told)]
    return spaced(parts)
