"""A deployment: its plan, how far it is, and how it ended."""

import threading
import time

from rich.console import RenderableType
from rich.text import Text

from rhinoctl.errors import HostUnfit
from rhinoctl.ops.deploy import DeployView, HostState, HostView
from rhinoctl.ops.undeploy import UndeployView
from rhinoctl.render.hosts import faults_table
from rhinoctl.render.live import WaitProgress
from rhinoctl.render.tables import columns, folded, spaced
from rhinoctl.render.units import counted, seconds

STYLES = {
    HostState.DONE: "green",
    HostState.UNCHANGED: "green",
    HostState.PLANNED: "cyan",
    HostState.RUNNING: "cyan",
    HostState.FAILED: "red",
    HostState.UNREACHABLE: "red",
    HostState.NOT_TRIED: "yellow",
}


def plan_table(view: DeployView) -> RenderableType:
    """Each host's steps in their order; hosts that cannot be deployed to come last, with why."""
    table = columns("HOST", "PARTS", "STEPS")
    for host in view.of(HostState.PLANNED):
        table.add_row(host.host, ", ".join(host.roles), "\n".join(host.steps))
    same = len(view.of(HostState.UNCHANGED))
    rest = f"{counted(same, 'host')} {'is' if same == 1 else 'are'} as the inventory says"
    return spaced(
        [
            Text(f"{view.file}: cluster {view.cluster} ({view.identity}), {_hosts(view)}"),
            table if table.row_count else None,
            Text(rest) if same else None,
            _faults(view),
        ]
    )


def deploy_table(view: DeployView) -> RenderableType:
    """How each host ended, and what to type next."""
    table = columns("HOST", "PARTS", "STATE", "STEPS>")
    for host in view.hosts:
        state = Text(host.state.value, STYLES[host.state])
        table.add_row(host.host, ", ".join(host.roles), state, str(len(host.steps)))
    return spaced(
        [
            Text(
                f"{view.file}: cluster {view.cluster} ({view.identity}), {_hosts(view)},"
                f" {seconds(view.seconds)}"
            ),
            table,
            _faults(view),
            _unwell(view),
            Text("\n".join(_next(view))),
        ]
    )


def _hosts(view: DeployView) -> str:
    return counted(len(view.hosts), "host")


def _next(view: DeployView) -> list[str]:
    failed = view.of(HostState.FAILED, HostState.UNREACHABLE, HostState.NOT_TRIED)
    if failed:
        goes_on = f"; go on with: rhinoctl replay {view.run}" if view.run else ""
        said = [f"{counted(len(failed), 'host')} not done{goes_on}"]
        if any(host.code == HostUnfit.code for host in failed):
            said.append(f"after a change of {view.file}: rhinoctl deploy, which reads it again")
        return said
    done = f"run {view.run}" if view.run else "nothing had to be done"
    return [done, f"controller: {view.controller}; look: rhinoctl status --cluster {view.cluster}"]


def _faults(view: DeployView) -> RenderableType | None:
    table = columns("HOST", "STATE", "WHY", "WHAT TO DO")
    failed = view.of(HostState.FAILED, HostState.UNREACHABLE, HostState.NOT_TRIED)
    rows = ((h.host, h.state.value, f"{h.reason} ({h.code})", h.remedy) for h in failed)
    for hosts, state, why, remedy in folded(rows):
        table.add_row(hosts, Text(state, STYLES[HostState(state)]), why, remedy)
    return table if table.row_count else None


def _unwell(view: DeployView) -> RenderableType | None:
    if not view.unwell:
        return None
    return Text("\n".join(["not well yet, see rhinoctl status:", *view.unwell]), "yellow")


def undeploy_table(view: UndeployView) -> RenderableType:
    """What is gone, and what is still there."""
    table = columns("HOST", "STATE", "STATE OF JOBS")
    for host in view.hosts:
        gone = "removed" if host.state is HostState.DONE else "nothing to remove"
        if host.let_go:
            gone = f"let go, with {host.let_go}"
        table.add_row(host.host, Text(gone, "green"), " ".join(host.kept) or "-")
    title = Text(f"{view.file}: cluster {view.cluster}")
    lost = "what was let go is there still when its machine is back: rhinoctl undeploy --former"
    return spaced(
        [
            title,
            table if table.row_count else None,
            Text(lost) if any(host.let_go for host in view.hosts) else None,
            _strange(view),
            faults_table(view.faults),
        ]
    )


def _strange(view: UndeployView) -> RenderableType | None:
    """What the inventory names and the hosts' records do not."""
    lines = [f"{host.host}: {' '.join(host.strange)}" for host in view.hosts if host.strange]
    if not lines:
        return None
    return Text("\n".join(["was left alone, for it was never deployed:", *lines]), "yellow")


class DeployProgress(WaitProgress):
    """What each host is at: one line a host on a terminal, else a line for each step."""

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.Lock()
        self._began = time.monotonic()
        self._at: dict[str, str] = {}

    def say(self, text: str) -> None:
        """Something about all of it."""
        with self._lock:
            self.line(text)

    def began(self, run: str) -> None:
        """It is being carried out, under this name."""
        self._begun = True
        self._left = f"run {run} has stopped; go on with: rhinoctl replay {run}"
        self.say(f"run {run}")

    def at(self, host: str, what: str) -> None:
        """A step on a host has begun."""
        with self._lock:
            self._at[host] = what
            if self.plain:
                self.line(f"{host}: {what}")
            self._show()

    def ended(self, host: HostView) -> None:
        """A host has come to its end."""
        with self._lock:
            self._at.pop(host.host, None)
            why = f": {host.reason} ({host.code})" if host.reason else ""
            self.line(f"{host.host}: {host.state.value}{why}")
            self._show()

    def _show(self) -> None:
        passed = time.monotonic() - self._began
        lines = [f"{host}: {what}" for host, what in sorted(self._at.items())]
        self.update(Text("\n".join([*lines, f"{passed:.0f} s"])))
