"""What an upgrade would do, and what it would wait for."""

from rich.console import RenderableType
from rich.text import Text

from rhinoctl.ops.upgrade import ReleaseView, UpgradeHost, UpgradeView, Verdict
from rhinoctl.render.tables import columns, folded, spaced
from rhinoctl.render.units import counted

STYLES = {Verdict.NOTHING: "green", Verdict.CAN: "cyan", Verdict.CANNOT: "red"}


def upgrade_table(view: UpgradeView) -> RenderableType:
    """Each host's releases with what they speak, then the order, then what stands in the way."""
    table = columns("HOST", "PARTS", "RUNS", "WOULD RUN", "PROTOCOL", "FORMAT", "VERDICT")
    for host in view.hosts:
        table.add_row(
            host.host,
            ", ".join(host.roles),
            _name(host.runs),
            _name(host.would),
            _numbers(host, "protocol"),
            _numbers(host, "format"),
            Text(host.verdict.value, STYLES[host.verdict]),
        )
    title = f"{view.file}: cluster {view.cluster} ({view.identity}),"
    return spaced(
        [
            Text(f"{title} {counted(len(view.hosts), 'host')}"),
            table,
            _order(view),
            _faults(view),
            _health(view),
            Text(_next(view)),
        ]
    )


def _name(release: ReleaseView | None) -> str:
    return "-" if release is None else release.name


def _numbers(host: UpgradeHost, which: str) -> str:
    """One number, or two where the release changes it."""
    there = None if host.runs is None else host.runs.speaks.numbers()[which]
    ours = None if host.would is None else host.would.speaks.numbers()[which]
    said = [str(number) for number in (there, ours) if number is not None]
    return " to ".join(dict.fromkeys(said)) or "-"


def _order(view: UpgradeView) -> RenderableType | None:
    if not view.waves:
        return None
    waves = "; ".join(", ".join(wave) for wave in view.waves)
    return Text(f"agents in this order, by {view.by.value}: {waves}")


def _faults(view: UpgradeView) -> RenderableType | None:
    table = columns("HOST", "WHY NOT", "WHAT TO DO")
    cannot = view.of(Verdict.CANNOT)
    for row in folded((h.host, f"{h.reason} ({h.code})", h.remedy) for h in cannot):
        table.add_row(*row)
    return table if table.row_count else None


def _health(view: UpgradeView) -> RenderableType:
    if view.silent:
        return Text(f"how the cluster is, is not known: {view.silent}", "red")
    if view.troubles:
        lines = ["not well now, which an upgrade waits for:", *view.troubles]
        return Text("\n".join(lines), "yellow")
    return Text("all is well, and every copy is full")


def _next(view: UpgradeView) -> str:
    can, cannot = view.of(Verdict.CAN), view.of(Verdict.CANNOT)
    if cannot:
        return f"{counted(len(cannot), 'host')} cannot be upgraded, so none would be"
    if can:
        return f"{counted(len(can), 'host')} to be upgraded: rhinoctl upgrade"
    return "nothing to do"
