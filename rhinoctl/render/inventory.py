"""An inventory, as tables."""

from rich.console import Group, RenderableType
from rich.text import Text

from rhinoctl.ops.inventory import HostView, InventoryView
from rhinoctl.render.tables import columns, spaced
from rhinoctl.render.units import counted


def inventory_table(view: InventoryView) -> RenderableType:
    """Every host as it is meant, and what is worth a thought."""
    count = counted(len(view.workers), "worker")
    title = Text(f"{view.file}: cluster {view.cluster}, {count}")
    table = columns("NAME", "HOST", "USER", "LISTENS", "RACK", "SLOTS>", "LIMITS", "DIRECTORIES")
    for host in (view.controller, *view.workers):
        table.add_row(
            host.name,
            host.host,
            host.user or "you",
            host.address,
            host.rack or "-",
            str(host.slots or "-"),
            _limits(host),
            " ".join(host.directories),
        )
    remarks = [Text(remark, "yellow") for remark in view.remarks]
    return spaced([title, table, Group(*remarks) if remarks else None])


def _limits(host: HostView) -> str:
    parts = [
        f"{host.memory_mb} MB" if host.memory_mb else "",
        f"{host.cpus:g} CPUs" if host.cpus else "",
    ]
    return ", ".join(part for part in parts if part) or "-"


def written_table(view: InventoryView) -> RenderableType:
    """What was written, and what to do with it."""
    return spaced(
        [
            inventory_table(view),
            Text(f"{view.file} is written: fill it in, then `rhinoctl config validate`"),
        ]
    )
