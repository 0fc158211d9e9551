"""What `rhinoctl check` has found, and what it mends, as a table."""

from rich.console import RenderableType
from rich.text import Text

from rhinoctl.ops.check import CheckView, HostState
from rhinoctl.ops.host_checks import Verdict
from rhinoctl.render.deploy import STYLES as STATES
from rhinoctl.render.tables import columns, folded, spaced
from rhinoctl.render.units import counted

STYLES = {Verdict.PASS: "green", Verdict.WARN: "yellow", Verdict.FAIL: "red"}


def check_table(view: CheckView) -> RenderableType:
    """What passed, then what failed and what warns, with what to do: there the eye ends. Last what
    is mended, or would be."""
    title = Text(
        f"{view.file}: cluster {view.cluster},"
        f" {len(view.looked_at)} of {counted(len(view.hosts), 'host')} looked at"
    )
    table = columns("HOST", "VERDICT|", "CHECK", "SEEN", "WHAT TO DO")
    for verdict in (Verdict.FAIL, Verdict.WARN):
        found = (f for f in view.findings if f.verdict is verdict)
        for hosts, *said in folded((f.host, f.check, f.seen, f.remedy) for f in found):
            table.add_row(hosts, Text(verdict.value, STYLES[verdict]), *said)
    passed = columns("HOST", "VERDICT|", "CHECK", "SEEN")
    for finding in view.findings:
        if finding.verdict is Verdict.PASS:
            mark = Text("pass", STYLES[Verdict.PASS])
            passed.add_row(finding.host, mark, finding.check, finding.seen)
    counts = ", ".join(
        f"{view.count(verdict)} {what}"
        for verdict, what in (
            (Verdict.FAIL, "failed"),
            (Verdict.WARN, "warned"),
            (Verdict.PASS, "passed"),
        )
    )
    return spaced(
        [
            title,
            passed if passed.row_count else None,
            table if table.row_count else None,
            Text(counts),
            *_mends(view),
        ]
    )


def mends_table(view: CheckView) -> RenderableType:
    """What is to be mended: all that a person is asked about."""
    return spaced(_mends(view))


def _mends(view: CheckView) -> list[RenderableType]:
    if not view.mends:
        return []
    names = ["HOST", "STATE", "`rhinoctl check --apply`"]
    failed = any(each.state is HostState.FAILED for each in view.mends)
    table = columns(*names, "WHY NOT", "WHAT TO DO") if failed else columns(*names)
    for each in view.mends:
        word = "could" if each.state is HostState.PLANNED else each.state.value
        why = f"{each.reason} ({each.code})" if each.reason else ""
        because = [why, each.remedy] if failed else []
        table.add_row(each.host, Text(word, STATES[each.state]), each.what, *because)
    return [table, Text(f"run {view.run}")] if view.run else [table]
