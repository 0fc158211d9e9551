"""``rhinoctl check``: the hosts of an inventory, before anything is installed and afterwards."""

import sys
from typing import Annotated

import typer

from rhinoctl.cli.options import AcceptNew, AskPassword, InventoryFile, Json, confirm, ends
from rhinoctl.errors import Exit, UsageError
from rhinoctl.ops import check as ops
from rhinoctl.ops.hosts import login_of
from rhinoctl.ops.inventory import USUAL_FILE
from rhinoctl.render.check import check_table, mends_table
from rhinoctl.render.output import console_of, emit, say


def check(
    inventory: InventoryFile = USUAL_FILE,
    apply: Annotated[
        bool,
        typer.Option("--apply", help="Mend what is safe to, once it was shown, and look again."),
    ] = False,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="With --apply: show what would be mended; exit 10 if any."),
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="With --apply: do not ask.")] = False,
    accept_new: AcceptNew = False,
    ask_password: AskPassword = False,
    as_json: Json = False,
) -> int:
    """Look at every host over SSH, and say what is not fit for its part.

    Without --apply no host is changed; what is tried on disks is tried with files that are removed
    again. What each check looks for, its bounds, and what --apply mends is in
    docs/operations/check.md.
    """
    if not apply and (dry_run or yes):
        raise UsageError("--dry-run and --yes are about what --apply does", remedy="add --apply")
    login = login_of(accept_new=accept_new, ask_password=ask_password, tell=say)
    if apply:
        view = ops.apply(inventory, login, say, lambda plan: _agree(plan, yes), dry_run=dry_run)
    else:
        view = ops.check(inventory, login, say)
    emit(view, as_json, check_table)
    return ops.exit_of(view)


def _agree(plan: ops.CheckView, yes: bool) -> None:
    console_of(sys.stderr).print(mends_table(plan))
    confirm("Do this?", yes=yes)


def add_to(app: typer.Typer) -> None:
    """Put the verb into the command line."""
    app.command(
        **ends(
            "rhinoctl check --inventory inventory.yml\nrhinoctl check --apply",
            *(Exit.REFUSED, Exit.BUSY, Exit.DEGRADED, Exit.PARTIAL, Exit.HAS_CHANGES),
            refused="what is kept here of the cluster cannot be used",
            busy="another command is at work on the hosts",
            degraded="a check failed",
            partial="hosts could not be looked at, or not be mended",
        )
    )(check)
