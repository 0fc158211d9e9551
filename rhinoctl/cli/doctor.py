"""``rhinoctl doctor``."""

from typing import Annotated

import typer

from rhinoctl.cli.options import Cluster, Json, ends
from rhinoctl.errors import Exit
from rhinoctl.ops import doctor as ops
from rhinoctl.render.doctor import diagnosis_table
from rhinoctl.render.output import emit


def doctor(
    job: Annotated[
        str | None, typer.Option("--job", metavar="JOB", help="Look at this job and the workers.")
    ] = None,
    checkpoint: Annotated[
        str | None,
        typer.Option(
            "--checkpoint",
            metavar="DIR",
            help="The checkpoint directory of the job's query: compare Spark's offsets, too.",
        ),
    ] = None,
    fix: Annotated[
        bool, typer.Option("--fix", help="Do what is safe without a person, and say what it was.")
    ] = False,
    cluster: Cluster = None,
    as_json: Json = False,
) -> int:
    """Say what is inconsistent, by what evidence, what it costs, and what to type.

    The evidence is the controller's store, what every agent reports, and (with --checkpoint) the
    offset log of Spark. What --fix does is in docs/operations/doctor.md.
    """
    found = ops.doctor(cluster, job=job, checkpoint=checkpoint, fix=fix)
    emit(found, as_json, diagnosis_table)
    return ops.exit_of(found)


def add_to(app: typer.Typer) -> None:
    """Put the verb into the command line."""
    example = "rhinoctl doctor --job clicks --checkpoint /data/clicks/checkpoint"
    codes = (Exit.REFUSED, Exit.DEGRADED)
    app.command(**ends(example, *codes, refused="unknown job; no controller answers"))(doctor)
