"""``rhinoctl check``: the hosts of an inventory, before anything is installed."""

from pathlib import Path
from typing import Annotated

import typer

from rhinoctl.cli.options import Json, ends
from rhinoctl.errors import Exit
from rhinoctl.ops import check as ops
from rhinoctl.ops.hosts import login_of
from rhinoctl.ops.inventory import USUAL_FILE
from rhinoctl.render.check import check_table
from rhinoctl.render.output import emit, say


def check(
    inventory: Annotated[
        Path, typer.Option("--inventory", "-i", metavar="FILE", help="The inventory.")
    ] = USUAL_FILE,
    accept_new: Annotated[
        bool,
        typer.Option("--accept-new", help="Trust hosts that were never met, and keep their keys."),
    ] = False,
    ask_password: Annotated[
        bool,
        typer.Option(
            "--ask-password", help="Ask for a password; without, RHINO_SSH_PASSWORD or keys."
        ),
    ] = False,
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
