"""What is shown of the controller's own loss: recoveries and backups."""

from rich.console import RenderableType
from rich.text import Text

from rhinoctl.ops.controller import BackupView
from rhinoctl.protocol.views import RecoveryView
from rhinoctl.render.tables import columns, facts, spaced
from rhinoctl.render.units import instant, size


def plan_table(view: RecoveryView) -> RenderableType:
    """What would be taken over."""
    return _recovery(view, f"the store would be made anew from the workers, as reign {view.reign}")


def recovery_table(view: RecoveryView) -> RenderableType:
    """What was taken over."""
    return _recovery(view, f"the store was made anew from the workers: reign {view.reign}")


def _recovery(view: RecoveryView, what: str) -> RenderableType:
    if not view.needed:
        return Text("nothing to do: every worker listens to this controller")
    rest = {
        "refused by": "; ".join(f"{w}: {why}" for w, why in sorted(view.objections.items())),
        "without": ", ".join(view.silent),
        "to be empty": ", ".join(view.draining),
        "not begun, left out": ", ".join(view.left_out),
        "last operation": f"op-{view.operation}" if view.operation else "",
    }
    return spaced(
        [
            Text(what, "bold"),
            _jobs(view) if view.jobs else Text("no jobs"),
            facts({name: text for name, text in rest.items() if text}),
        ]
    )


def _jobs(view: RecoveryView) -> RenderableType:
    names = ("EPOCH>", "BATCH>", "SESSION>", "INSTANCES>", "COPIES>", "FOUND ON", "NOTE")
    table = columns("JOB", *names)
    for job in view.jobs:
        gone = f"given up: {', '.join(job.gone)}" if job.gone else ""
        table.add_row(
            job.name,
            str(job.epoch),
            str(job.batch) if job.batch is not None else "-",
            str(job.session),
            str(job.instances),
            str(job.replication),
            ", ".join(job.workers),
            "; ".join(note for note in (gone, job.note) if note),
        )
    return table


def backup_text(view: BackupView) -> RenderableType:
    """A backup, and what to do after a restore."""
    done = "restored from" if view.restored else "written to"
    found = facts(
        {
            "cluster": view.cluster,
            "of": instant(int(view.written_at * 1000)),
            "store": f"reign {view.reign}, change {view.number}",
            "size": size(view.size),
        }
    )
    start = "rhinoctl start controller" if view.deployed else "rhinoctl local up"
    after = Text(
        f"start the controller (`{start}`), and see in `rhinoctl status` whether the workers"
        " listen to it"
    )
    return spaced([Text(f"{done} {view.file}", "bold"), found, after if view.restored else None])
