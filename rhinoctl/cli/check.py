"""``rhinoctl check``: the hosts of an inventory, before anything is installed."""

import typer

from rhinoctl.cli.options import AcceptNew, AskPassword, InventoryFile, Json, ends
from rhinoctl.errors import Exit
from rhinoctl.ops import check as ops
from rhinoctl.ops.hosts import login_of
from rhinoctl.ops.inventory import USUAL_FILE
from rhinoctl.render.check import check_table
from rhinoctl.render.output import emit, say


def check(
    inventory: InventoryFile = USUAL_FILE,
    accept_new: AcceptNew = False,
    ask_password: AskPassword = False,
    as_json: Json = False,
) -> int:
    """Look at every host over SSH, and say what is not fit for its part.

    Nothing is changed; what is tried on disks is tried with files that are removed again. What each
    check looks for, and its bounds, is in docs/operations/check.md.
    """
    login = login_of(accept_new=accept_new, ask_password=ask_password, tell=say)
    view = ops.check(inventory, login)
    emit(view, as_json, check_table)
    return ops.exit_of(view)


def add_to(app: typer.Typer) -> None:
    """Put the verb into the command line."""
    notes = {"degraded": "a check failed", "partial": "hosts could not be looked at"}
    codes = (Exit.DEGRADED, Exit.PARTIAL)
    app.command(**ends("rhinoctl check --inventory inventory.yml", *codes, **notes))(check)
