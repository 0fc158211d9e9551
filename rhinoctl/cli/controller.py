"""``rhinoctl controller``: the controller's own loss."""

from typing import Annotated

import typer

from rhinoctl.cli.options import Cluster, Directory, Json, ends, group
from rhinoctl.errors import Exit
from rhinoctl.ops import controller as ops
from rhinoctl.ops.local import directory_of
from rhinoctl.render import controller as tables
from rhinoctl.render.output import emit

app = group("Back up, restore and make anew what the controller knows.")


@app.command(
    **ends(
        "rhinoctl controller recover --dry-run",
        *(Exit.REFUSED, Exit.DEGRADED, Exit.HAS_CHANGES),
        refused="a worker does not answer; no controller",
    )
)
def recover(
    without: Annotated[
        list[str] | None,
        typer.Option(
            "--without",
            metavar="WORKER",
            help="Go on without this worker, which does not answer. May be repeated.",
        ),
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", help="Show what is taken over and do nothing; exit 10 if there is any."
        ),
    ] = False,
    cluster: Cluster = None,
    as_json: Json = False,
) -> int:
    """Make the controller's store anew from what the workers have.

    For a store that was lost, or an old copy of it: the workers refuse it, as `rhinoctl status`
    says. Running queries go on. Operations that were under way are forgotten, but for failovers.
    """
    view = ops.recover(cluster, without=without or [], dry_run=dry_run)
    emit(view, as_json, tables.plan_table if dry_run else tables.recovery_table)
    return ops.exit_of_recovery(view, dry_run=dry_run)


@app.command(
    **ends(
        "rhinoctl controller backup /backups/rhino-monday",
        *(Exit.REFUSED, Exit.NEEDS_REPAIR),
        refused="no cluster there; the file exists",
        needs_repair="the store is damaged",
    )
)
def backup(
    file: Annotated[str, typer.Argument(metavar="FILE", help="The file to write; a new one.")],
    cluster: Directory = None,
    as_json: Json = False,
) -> int:
    """Write the controller's store and the cluster's keys into one file.

    Whether the controller runs or not. Whoever can read the file can command the cluster.
    """
    emit(ops.backup(directory_of(cluster), file), as_json, tables.backup_text)
    return Exit.DONE


@app.command(
    **ends(
        "rhinoctl controller restore /backups/rhino-monday",
        *(Exit.REFUSED, Exit.NEEDS_REPAIR, Exit.BUSY),
        refused="the controller runs; another cluster's file",
        needs_repair="the file is damaged",
    )
)
def restore(
    file: Annotated[str, typer.Argument(metavar="FILE", help="What `backup` has written.")],
    cluster: Directory = None,
    as_json: Json = False,
) -> int:
    """Put a backup in the place of the controller's store and keys, while it does not run.

    The workers refuse a store that is older than what they have seen: `rhinoctl controller
    recover` mends that. What was there before is kept as `controller.db.replaced`.
    """
    emit(ops.restore(directory_of(cluster), file), as_json, tables.backup_text)
    return Exit.DONE
