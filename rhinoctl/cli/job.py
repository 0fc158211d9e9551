"""``rhinoctl job``: the jobs that a cluster knows."""

from typing import Annotated

import typer

from rhinoctl.cli.options import Cluster, JobArgument, Json, confirm, ends, group
from rhinoctl.errors import Exit
from rhinoctl.ops import jobs as ops
from rhinoctl.ops import repair_offsets as offsets
from rhinoctl.render import tables
from rhinoctl.render.doctor import repaired_offsets_table
from rhinoctl.render.output import emit

app = group("Show, set, bind and delete jobs.")


@app.command("list", **ends("rhinoctl job list", Exit.REFUSED, refused="no controller answers"))
def list_(cluster: Cluster = None, as_json: Json = False) -> int:
    """Show all jobs."""
    emit(ops.list_jobs(cluster), as_json, tables.job_list_table)
    return Exit.DONE


@app.command(**ends("rhinoctl job show clicks", Exit.REFUSED, refused="unknown job"))
def show(job: JobArgument, cluster: Cluster = None, as_json: Json = False) -> int:
    """Show a job, its instances and where its vnodes live."""
    emit(ops.show_job(cluster, job), as_json, tables.job_table)
    return Exit.DONE


@app.command(
    "set",
    **ends("rhinoctl job set clicks replication=2", Exit.REFUSED, refused="unknown job"),
)
def set_(
    job: JobArgument,
    setting: Annotated[
        str,
        typer.Argument(
            metavar="KEY=VALUE", help="replication=R: keep R further copies of each vnode."
        ),
    ],
    cluster: Cluster = None,
    as_json: Json = False,
) -> int:
    """Change what a job wishes for, while it runs.

    Copies join and leave in the background: `rhinoctl groups apply JOB` waits for them.
    """
    emit(ops.set_job(cluster, job, setting=setting), as_json, tables.acknowledged_text)
    return Exit.DONE


@app.command(
    **ends("rhinoctl job bind clicks --new-stream", Exit.REFUSED, refused="unknown job; it runs")
)
def bind(
    job: JobArgument,
    new_stream: Annotated[
        bool,
        typer.Option(
            "--new-stream",
            help="Accept the next run as a new stream: batch ids start at 0 again, state stays.",
        ),
    ] = False,
    cluster: Cluster = None,
    as_json: Json = False,
) -> int:
    """Accept another identity of the query.

    It is needed when Spark's checkpoint was lost or replaced: without it such a run is refused,
    because its batches could not be told from those that were applied already.
    """
    done = ops.bind_job(cluster, job, new_stream=new_stream)
    emit(done, as_json, tables.acknowledged_text)
    return Exit.DONE


@app.command(
    **ends("rhinoctl job delete clicks --yes", Exit.REFUSED, Exit.BUSY, refused="unknown job")
)
def delete(
    job: JobArgument,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    cluster: Cluster = None,
    as_json: Json = False,
) -> int:
    """Forget a job that does not run, and remove its state."""
    ops.show_job(cluster, job)
    confirm(f"Delete job {job} and all its state?", yes=yes)
    emit(ops.delete_job(cluster, job), as_json, tables.acknowledged_text)
    return Exit.DONE


@app.command(
    "repair-offsets",
    **ends(
        "rhinoctl job repair-offsets clicks --checkpoint /data/clicks/checkpoint --dry-run",
        *(Exit.REFUSED, Exit.BUSY, Exit.DEGRADED, Exit.HAS_CHANGES),
        refused="unknown job; its query may be live; not safe",
        degraded="not all workers answer",
    ),
)
def repair_offsets(
    job: JobArgument,
    checkpoint: Annotated[
        str,
        typer.Option(
            "--checkpoint", metavar="DIR", help="The query's checkpoint directory, a local one."
        ),
    ],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be written; exit 10 if anything.")
    ] = False,
    cluster: Cluster = None,
    as_json: Json = False,
) -> int:
    """Write the decided offsets of the last batch back into Spark's offset log.

    For a query that is refused because the offsets of a batch differ from the decided ones, or that
    cannot read them, or whose last commit is lost. Torn offsets of a batch that is not decided are
    taken away. The query must not run. What was there is kept beside the log.
    """
    done = offsets.repair_offsets(cluster, job, checkpoint=checkpoint, dry_run=dry_run)
    emit(done, as_json, repaired_offsets_table)
    return offsets.exit_of(done)
