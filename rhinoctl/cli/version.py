"""``rhinoctl version``."""

from typing import Annotated

import typer

from rhinoctl import __version__
from rhinoctl.cli.options import Json, ends
from rhinoctl.errors import Exit
from rhinoctl.ops import cluster as ops
from rhinoctl.render import tables
from rhinoctl.render.output import emit


def version(as_json: Json = False) -> int:
    """Show the versions of rhinoctl, its messages, what it writes on disks, Python and PySpark."""
    emit(ops.read_versions(), as_json, tables.versions_table)
    return Exit.DONE


def show(wanted: bool) -> None:
    """End the command with the version of rhinoctl, if that is asked for."""
    if wanted:
        print(f"rhinoctl {__version__}")
        raise typer.Exit


def options(
    version: Annotated[
        bool, typer.Option("--version", callback=show, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """What every command line may have before the verb."""


def add_to(app: typer.Typer) -> None:
    """Put the verb, and the option of all, into the command line."""
    app.callback()(options)
    app.command(**ends("rhinoctl version"))(version)
