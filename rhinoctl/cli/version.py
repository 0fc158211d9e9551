"""``rhinoctl version``."""

import typer

from rhinoctl.cli.options import Json, ends
from rhinoctl.errors import Exit
from rhinoctl.ops import cluster as ops
from rhinoctl.render import tables
from rhinoctl.render.output import emit


def version(as_json: Json = False) -> int:
    """Show the versions of rhinoctl, its messages, what it writes on disks, Python and PySpark."""
    emit(ops.read_versions(), as_json, tables.versions_table)
    return Exit.DONE


def add_to(app: typer.Typer) -> None:
    """Put the verb into the command line."""
    app.command(**ends("rhinoctl version"))(version)
