"""``rhinoctl status``."""

import typer

from rhinoctl.cli.options import Cluster, Json, ends
from rhinoctl.errors import Exit
from rhinoctl.ops import cluster as ops
from rhinoctl.render import tables
from rhinoctl.render.output import emit


def status(cluster: Cluster = None, as_json: Json = False) -> int:
    """Show workers, jobs and operations, and what to do about them."""
    found = ops.read_status(cluster)
    emit(found, as_json, tables.status_table)
    return ops.exit_of_status(found)


def add_to(app: typer.Typer) -> None:
    """Put the verb into the command line."""
    codes = (Exit.REFUSED, Exit.DEGRADED)
    app.command(**ends("rhinoctl status --json", *codes, refused="no controller answers"))(status)
