"""Workers' disks, as a table and in a line."""

from rich.console import Group, RenderableType
from rich.text import Text

from rhinoctl.ops import disks as ops
from rhinoctl.protocol.disks import DiskList, DiskState, DiskView, ScrubView
from rhinoctl.render.tables import columns, spaced
from rhinoctl.render.units import counted, size

STYLES = {
    DiskState.IN_USE: "green",
    DiskState.RETIRING: "cyan",
    DiskState.EMPTY: "yellow",
    DiskState.LOST: "red",
}


def disk_table(found: DiskList) -> RenderableType:
    """Each disk in a line, and what is wrong."""
    table = columns("WORKER", "DISK", "STATE", "VNODES>", "BYTES>", "FREE>", "DIRECTORY")
    for view in found.disks:
        disk = view.disk
        table.add_row(
            view.worker,
            disk.disk,
            Text(disk.state.value, STYLES[disk.state]) if view.live else Text("not seen", "red"),
            str(disk.vnodes),
            size(disk.bytes),
            "-" if disk.state is DiskState.LOST else size(disk.free_bytes),
            disk.path,
        )
    return spaced([table, _notes(found)])


def _notes(found: DiskList) -> Group | None:
    lines = [*map(_fault, found.disks), *map(_shared, found.disks)]
    there = [line for line in lines if line is not None]
    return Group(*there) if there else None


def _fault(view: DiskView) -> Text | None:
    if not view.disk.fault:
        return None
    return Text.assemble((f"{view.worker}:{view.disk.disk}: ", "yellow"), view.disk.fault)


def _shared(view: DiskView) -> Text | None:
    disk = view.disk
    if disk.shares == disk.disk:
        return None
    return Text(
        f"{view.worker}:{disk.disk} is on the file system of {disk.shares}: they have one room"
    )


def retired_text(found: DiskList) -> RenderableType:
    """The disk, and what may be done with it."""
    parts: list[RenderableType | None] = [disk_table(found)]
    for view in found.disks:
        if view.disk.state is DiskState.EMPTY:
            parts.append(Text(f"nothing is on it any more: {view.disk.path} may be taken away"))
    return spaced(parts)


def retire_line(found: DiskList) -> str:
    """How far a disk is, for who waits."""
    told = [
        f"disk {disk.disk} is being emptied: {counted(disk.vnodes, 'vnode')}, {size(disk.bytes)},"
        " to go"
        for disk in ops.left(found)
    ]
    return "; ".join(told)


def scrub_table(found: DiskList) -> RenderableType:
    """What was read of each disk, and all that is not as it should be."""
    table = columns("WORKER", "DISK", "READ>", "OF>", "FILES>", "BAD>", "STATE")
    for view in found.disks:
        scrub = view.disk.scrub
        table.add_row(
            view.worker,
            view.disk.disk,
            size(scrub.done_bytes),
            size(scrub.total_bytes),
            str(scrub.files),
            str(len(scrub.bad)),
            _scrub_state(scrub),
        )
    bad = [
        Text.assemble(("bad: ", "yellow"), line) for v in found.disks for line in v.disk.scrub.bad
    ]
    return spaced([table, Group(*bad) if bad else None])


def _scrub_state(scrub: ScrubView) -> str:
    if not scrub.number:
        return "not read"
    return "done" if scrub.over else "reading"


def scrub_line(found: DiskList) -> str:
    """How far the scrub is, for who waits."""
    done = sum(view.disk.scrub.done_bytes for view in found.disks)
    total = sum(view.disk.scrub.total_bytes for view in found.disks)
    bad = sum(len(view.disk.scrub.bad) for view in found.disks)
    found_bad = f", {bad} bad" if bad else ""
    return f"{size(done)} of {size(total)} read{found_bad}"
