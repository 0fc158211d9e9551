"""A round of verification, as a table and in a line."""

from collections.abc import Iterable

from rich.console import Group, RenderableType
from rich.text import Text

from rhinoctl.ops import verify as ops
from rhinoctl.ops.vnodes import format_vnodes
from rhinoctl.protocol.verification import Checked
from rhinoctl.protocol.views import VerifyView
from rhinoctl.render.tables import columns, spaced
from rhinoctl.render.units import counted, size


def verify_table(view: VerifyView) -> RenderableType:
    """What each worker has, and all that is not as it should be."""
    table = columns("WORKER", "ANSWERS", "COPIES>", "CHECKPOINTS>", "WHOLE>", "BAD>", "FILES>")
    for worker in view.workers:
        copies = [copy for copy in view.copies if copy.worker == worker.worker]
        states = [one.state for copy in copies for one in copy.checkpoints]
        table.add_row(
            worker.worker,
            Text("yes", "green") if worker.live else Text("no", "red"),
            str(len(copies)),
            str(len(states)) if worker.live else "-",
            str(states.count(Checked.WHOLE)) if worker.live else "-",
            str(states.count(Checked.BAD)) if worker.live else "-",
            size(worker.total_bytes) if worker.live else "-",
        )
    return spaced([Text(f"job {view.job}: {_sentence(view)}"), table, _faults(view), _apart(view)])


def verify_line(view: VerifyView) -> str:
    """How far it is, for who waits."""
    done, total = (
        sum(w.done_bytes for w in view.workers),
        sum(w.total_bytes for w in view.workers),
    )
    found = f", {len(ops.bad(view))} bad" if ops.bad(view) else ""
    return (
        f"verification of job {view.job}: {_sentence(view)}, {size(done)} of {size(total)}{found}"
    )


def _sentence(view: VerifyView) -> str:
    every = sum(len(copy.checkpoints) for copy in view.copies)
    whole = len(ops.checkpoints(view, Checked.WHOLE))
    parts = [f"{whole} of {counted(every, 'checkpoint')} whole"]
    if view.deep:
        equal = [digests for digests in ops.compared(view) if digests.equal]
        parts.append(f"{len(equal)} compared and equal")
    return ", ".join(parts)


def _faults(view: VerifyView) -> Group | None:
    """All that is wrong, a line each."""
    unequal = [each for each in ops.compared(view) if not each.equal]
    lines = [
        *_lines("bad", ops.bad(view)),
        *_lines("not verified", ops.unread(view)),
        *_lines(
            "differs",
            (
                f"vnode {d.vnode}, checkpoint {d.checkpoint}: "
                + ", ".join(f"{worker} {digest[:12]}" for worker, digest in d.of.items())
                for d in unequal
            ),
        ),
        *_lines(
            "no whole copy",
            (f"vnode {c.vnode} on worker {c.worker}" for c in view.copies if c.broken),
        ),
        *_lines(
            "not looked at",
            (f"worker {worker}: {fault}" for worker, fault in sorted(view.unreadable.items())),
        ),
    ]
    return Group(*lines) if lines else None


def _lines(what: str, found: Iterable[object]) -> list[Text]:
    return [Text.assemble((f"{what}: ", "yellow"), str(each)) for each in found]


def _apart(view: VerifyView) -> Text | None:
    found = ops.apart(view) if view.over else []
    if not found:
        return None
    return Text(
        f"not compared: vnodes {format_vnodes(found)}, of which the workers have no checkpoint in"
        " common; each was read"
    )
