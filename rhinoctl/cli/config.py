"""``rhinoctl init`` and ``rhinoctl config validate``: the inventory."""

from pathlib import Path
from typing import Annotated

import typer

from rhinoctl.cli.options import Json, ends, group
from rhinoctl.errors import Exit, UsageError
from rhinoctl.ops import inventory as ops
from rhinoctl.render.inventory import inventory_table, written_table
from rhinoctl.render.output import emit

app = group("Check the inventory, the file that names a cluster's hosts.")


def init(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="What to write.")] = ops.USUAL_FILE,
    cluster: Annotated[
        str, typer.Option("--name", metavar="NAME", help="The cluster's name.")
    ] = "main",
    controller: Annotated[
        str, typer.Option("--controller", metavar="HOST", help="The controller's host.")
    ] = "controller.example.com",
    workers: Annotated[
        list[str] | None,
        typer.Option(
            "--worker",
            metavar="HOST",
            help="A worker's host; once for each. Default: three to be replaced.",
        ),
    ] = None,
    as_json: Json = False,
) -> int:
    """Write an inventory to fill in, with every key explained.

    No host is touched, and a file that is there already is never written over.
    """
    request = ops.InitRequest(
        file=file,
        cluster=cluster,
        controller=controller,
        workers=tuple(workers or [f"worker{n}.example.com" for n in (1, 2, 3)]),
    )
    emit(ops.init(request), as_json, written_table)
    return Exit.DONE


@app.command(**ends("rhinoctl config validate\nrhinoctl config validate other.yml"))
def validate(
    file: Annotated[
        Path | None,
        typer.Argument(
            metavar="FILE",
            help=f"The inventory. Default: {ops.USUAL_FILE}.",
            show_default=False,
        ),
    ] = None,
    inventory: Annotated[
        Path | None,
        typer.Option("--inventory", "-i", metavar="FILE", help="The same, as for other commands."),
    ] = None,
    as_json: Json = False,
) -> int:
    """Read an inventory, and show what it means, defaults and all.

    No host is touched. Every mistake is said at once, with its line.
    """
    if file is not None and inventory not in (None, file):
        raise UsageError(f"two files are named: {file} and {inventory}", remedy="name one")
    emit(ops.validate(file or inventory or ops.USUAL_FILE), as_json, inventory_table)
    return Exit.DONE


def add_to(app: typer.Typer) -> None:
    """Put the verb into the command line."""
    refused = "the file is there already, or cannot be written"
    example = "rhinoctl init --name clicks --controller c1 --worker w1 --worker w2"
    app.command(**ends(example, Exit.REFUSED, refused=refused))(init)
