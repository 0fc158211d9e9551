"""What runs on hosts, what was run there, and logs."""

import signal
from collections.abc import Sequence
from datetime import UTC, datetime

from rich.console import Group, RenderableType
from rich.text import Text

from rhinoctl.ops.endings import problem_in
from rhinoctl.ops.running import ExecView, HostFault, HostsView, LogView, ProcessView
from rhinoctl.render.tables import columns, folded, spaced


def hosts_table(view: HostsView) -> RenderableType:
    """A line for each process, what is worth saying of some, then the hosts of which nothing is
    known, with what to do. Lines are narrow: the release that all have is in the title, and
    several are listed with their hosts."""
    hosts_of: dict[str, dict[str, None]] = {}
    for each in view.processes:
        hosts_of.setdefault(each.release, {})[each.host] = None
    several = [f"release {name}: {', '.join(hosts)}" for name, hosts in hosts_of.items()]
    same = f", release {next(iter(hosts_of))}" if len(hosts_of) == 1 else ""
    title = Text(f"{view.file}: cluster {view.cluster}{same}")
    table = columns("HOST", "PROCESS|", "STATE|", "PID>", "SINCE", "KEPT BY|")
    table.columns[0].min_width = len("controller")
    for each in view.processes:
        state = Text("running", "green") if each.running else Text("down", "red")
        table.add_row(
            each.host,
            each.role,
            state,
            str(each.pid or "-"),
            _since(each),
            each.kind,
        )
    remarks = [f"{p.host}: the {p.role} {said}" for p in view.processes if (said := _remark(p))]
    return spaced(
        [
            title,
            table if table.row_count else None,
            Text("\n".join(several)) if len(several) > 1 else None,
            Text("\n".join(remarks)) if remarks else None,
            Text("\n".join(view.former), "yellow") if view.former else None,
            faults_table(view.faults),
        ]
    )


def _since(process: ProcessView) -> str:
    if process.since is None:
        return "-"
    return f"{datetime.fromtimestamp(process.since, UTC):%m-%d %H:%M:%S} UTC"


def _remark(process: ProcessView) -> str:
    """How often a process was started again and, of one that does not run, how it ended: the last
    line of its log is only that, unless the process has told by it why it ended."""
    parts = []
    if process.restarts:
        again = "once" if process.restarts == 1 else f"{process.restarts} times"
        parts.append(f"was started again {again}")
    if process.running:
        return ", ".join(parts)
    if process.exit_code is not None:
        parts.append(f"ended {_how(process.exit_code)}")
    told = problem_in(process.words)
    if told is not None:
        parts.append(f"told why: {told.message} ({told.code})")
    elif process.words:
        parts.append(f"wrote last: {process.words}")
    return ", ".join(parts)


def _how(exit_code: int) -> str:
    if exit_code >= 0:
        return f"with {exit_code}"
    try:
        return f"by {signal.Signals(-exit_code).name}"
    except ValueError:
        return f"by signal {-exit_code}"


def faults_table(faults: Sequence[HostFault]) -> RenderableType | None:
    """Hosts by the reason that each has, and what to do; None if there are none."""
    if not faults:
        return None
    table = columns("HOST", "FAILED", "WHAT TO DO")
    for hosts, why, remedy in folded((f.host, f"{f.reason} ({f.code})", f.remedy) for f in faults):
        table.add_row(hosts, Text(why, "red"), remedy)
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
