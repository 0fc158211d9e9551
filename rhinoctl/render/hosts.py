"""What runs on hosts, what was run there, and logs."""

from collections.abc import Sequence
from datetime import UTC, datetime

from rich.console import Group, RenderableType
from rich.text import Text

from rhinoctl.ops.endings import problem_in
from rhinoctl.ops.running import ExecView, HostFault, HostsView, LogView, ProcessView
from rhinoctl.render.tables import columns, spaced


def hosts_table(view: HostsView) -> RenderableType:
    """A line for each process, then the hosts of which nothing is known, with what to do."""
    title = Text(f"{view.file}: cluster {view.cluster}")
    table = columns("HOST", "PROCESS", "STATE", "PID>", "SINCE", "RELEASE", "KEPT BY", "")
    for each in view.processes:
        state = Text("running", "green") if each.running else Text("not running", "red")
        table.add_row(
            each.host,
            each.role,
            state,
            str(each.pid or "-"),
            _since(each),
            each.release,
            each.kind,
            _remark(each),
        )
    return spaced([title, table if table.row_count else None, faults_table(view.faults)])


def _since(process: ProcessView) -> str:
    if process.since is None:
        return "-"
    return f"{datetime.fromtimestamp(process.since, UTC):%m-%d %H:%M:%S} UTC"


def _remark(process: ProcessView) -> str:
    parts = []
    if process.restarts:
        parts.append(f"started {process.restarts} times again")
    if not process.running and process.exit_code is not None:
        parts.append(f"ended with {process.exit_code}")
    if not process.running and process.words:
        told = problem_in(process.words)
        parts.append(f"{told.message} ({told.code})" if told else process.words)
    return ", ".join(parts)


def faults_table(faults: Sequence[HostFault]) -> RenderableType | None:
    """Hosts with one reason each, and what to do; None if there are none."""
    if not faults:
        return None
    table = columns("HOST", "FAILED", "WHAT TO DO")
    for each in faults:
        table.add_row(each.host, Text(f"{each.reason} ({each.code})", "red"), each.remedy)
    return table


def exec_table(view: ExecView) -> RenderableType:
    """What each host has printed, under its name."""
    parts: list[RenderableType] = []
    for each in view.hosts:
        ended = f" (exit code {each.exit_code})" if each.exit_code else ""
        lines = [Text(f"{each.host}{ended}", "bold red" if each.exit_code else "bold")]
        lines += [Text(text.rstrip("\n")) for text in (each.stdout, each.stderr) if text.strip()]
        parts.append(Group(*lines))
    return spaced([*parts, faults_table(view.faults)])


def log_text(view: LogView) -> RenderableType:
    """The lines as they are."""
    return Text("\n".join(view.lines))
