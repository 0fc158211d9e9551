"""``rhinoctl controller``: the controller's own loss."""

from pathlib import Path
from typing import Annotated

import typer

from rhinoctl.cli.options import (
    AcceptNew,
    AskPassword,
    Cluster,
    Directory,
    Json,
    ends,
    group,
)
from rhinoctl.errors import Exit, UsageError
from rhinoctl.ops import controller as ops
from rhinoctl.ops.hosts import Login, login_of
from rhinoctl.ops.local import directory_of
from rhinoctl.render import controller as tables
from rhinoctl.render.output import emit, say

app = group("Back up, restore and make anew what the controller knows.")

OnHosts = Annotated[
    Path | None,
    typer.Option(
        "--inventory",
        "-i",
        metavar="FILE",
        help="Of a cluster on hosts: its inventory. Default: a local cluster.",
        show_default=False,
    ),
]


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
        "rhinoctl controller backup /backups/rhino-monday\n"
        "rhinoctl controller backup /backups/rhino-monday --inventory inventory.yml",
        *(Exit.REFUSED, Exit.NEEDS_REPAIR, Exit.BUSY, Exit.PARTIAL),
        refused="no cluster there; the file exists",
        needs_repair="the store is damaged",
        busy="another command is at work on the hosts",
        partial="the controller's host could not be asked",
    )
)
def backup(
    file: Annotated[str, typer.Argument(metavar="FILE", help="The file to write; a new one.")],
    cluster: Directory = None,
    inventory: OnHosts = None,
    accept_new: AcceptNew = False,
    ask_password: AskPassword = False,
    as_json: Json = False,
) -> int:
    """Write the controller's store and the cluster's keys into one file.

    Whether the controller runs or not. Whoever can read the file can command the cluster.
    """
    if inventory is None:
        view = ops.backup(directory_of(cluster), file)
    else:
        login = _login(cluster, accept_new, ask_password)
        view = ops.backup_deployed(inventory, file, login)
    emit(view, as_json, tables.backup_text)
    return Exit.DONE


@app.command(
    **ends(
        "rhinoctl controller restore /backups/rhino-monday",
        *(Exit.REFUSED, Exit.NEEDS_REPAIR, Exit.BUSY, Exit.PARTIAL),
        refused="the controller runs; another cluster's file",
        needs_repair="the file is damaged",
        busy="another command is at work on the cluster",
        partial="the controller's host could not be asked",
    )
)
def restore(
    file: Annotated[str, typer.Argument(metavar="FILE", help="What `backup` has written.")],
    cluster: Directory = None,
    inventory: OnHosts = None,
    accept_new: AcceptNew = False,
    ask_password: AskPassword = False,
    as_json: Json = False,
) -> int:
    """Put a backup in the place of the controller's store and keys, while it does not run.

    The workers refuse a store that is older than what they have seen: `rhinoctl controller
    recover` mends that. What was there before is kept as `controller.db.replaced`. On hosts, keys
    come back where they are missing on this machine; those that are here stay.
    """
    if inventory is None:
        view = ops.restore(directory_of(cluster), file)
    else:
        login = _login(cluster, accept_new, ask_password)
        view = ops.restore_deployed(inventory, file, login)
    emit(view, as_json, tables.backup_text)
    return Exit.DONE


def _login(cluster: str | None, accept_new: bool, ask_password: bool) -> Login:
    """Raises UsageError for a cluster that is named twice."""
    if cluster is not None:
        raise UsageError(
            "a cluster is local, with --cluster, or on hosts, with --inventory",
            remedy="give one of the two",
        )
    return login_of(accept_new=accept_new, ask_password=ask_password, tell=say)
