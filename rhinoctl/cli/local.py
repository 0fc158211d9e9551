"""``rhinoctl local``: a cluster of processes on this machine."""

from typing import Annotated

import typer

from rhinoctl.cli.options import Directory, Json, ends, group
from rhinoctl.errors import Exit
from rhinoctl.ops import local as ops
from rhinoctl.render import tables
from rhinoctl.render.output import emit, say

app = group("Bring up and end a cluster on this machine.")


def _count(what: str, least: int, most: int, text: str) -> typer.models.OptionInfo:
    option: typer.models.OptionInfo = typer.Option(
        what, min=least, max=most, metavar="N", help=text, show_default=False
    )
    return option


ReplayTarget = Annotated[
    float | None,
    typer.Option(
        "--replay-target-s",
        metavar="S",
        min=0.1,
        max=3600,
        help="What an instance that starts anew may take to catch up. Default: 1.",
    ),
]
Lease = Annotated[
    float | None,
    typer.Option(
        "--lease-s",
        metavar="S",
        min=0.5,
        max=3600,
        help="Silence after which a worker is lost. Default: 5.",
    ),
]

REFUSED = "it runs already; directory or port refused"


@app.command(
    **ends(
        "rhinoctl local up --workers 3",
        *(Exit.REFUSED, Exit.NEEDS_REPAIR, Exit.BUSY, Exit.DEGRADED),
        refused=REFUSED,
        needs_repair="the store or a file of the cluster is damaged",
        degraded="it is up, and its workers refuse the controller's store",
    )
)
def up(
    workers: Annotated[
        int | None,
        _count("--workers", 1, ops.WORKERS_MAX, "How many workers. Default: 3, or as before."),
    ] = None,
    disks: Annotated[
        int | None,
        _count(
            "--disks", 1, ops.DISKS_MAX, "Directories of each worker. Default: 1, or as before."
        ),
    ] = None,
    port: Annotated[
        int | None, _count("--port", 1, 65535, "Serve on this port of 127.0.0.1.")
    ] = None,
    cache_mb: Annotated[
        int | None,
        _count("--cache-mb", 1, 1 << 20, "Cache of an instance: rows and blocks. Default: 64."),
    ] = None,
    buffer_mb: Annotated[
        int | None, _count("--buffer-mb", 1, 1 << 20, "Write buffers of an instance. Default: 64.")
    ] = None,
    replay_target_s: ReplayTarget = None,
    lease_s: Lease = None,
    replication_mb_s: Annotated[
        int | None,
        _count("--replication-mb-s", 0, 1 << 20, "Bound on the fetching of copies. 0: none."),
    ] = None,
    auto_failover: Annotated[
        bool | None,
        typer.Option(
            "--auto-failover/--no-auto-failover",
            help="Whether lost workers are given up without being asked. Default: they are.",
        ),
    ] = None,
    require_hardlink: Annotated[
        bool | None,
        typer.Option(
            "--require-hardlink/--no-require-hardlink",
            help="Refuse disks on which checkpoints would be copies. Default: they are taken.",
        ),
    ] = None,
    cluster: Directory = None,
    as_json: Json = False,
) -> int:
    """Start the cluster, or what is missing of it."""
    request = ops.UpRequest(
        directory=ops.directory_of(cluster),
        workers=workers,
        disks=disks,
        port=port,
        cache_mb=cache_mb,
        buffer_mb=buffer_mb,
        replay_target_s=replay_target_s,
        lease_s=lease_s,
        replication_mb_s=replication_mb_s,
        auto_failover=auto_failover,
        require_hardlink=require_hardlink,
    )
    view = ops.up(request, say)
    emit(view, as_json, tables.local_table)
    return ops.exit_of_local(view)


@app.command(**ends("rhinoctl local down", Exit.REFUSED, Exit.BUSY, refused="no cluster there"))
def down(cluster: Directory = None, as_json: Json = False) -> int:
    """End the cluster's processes, and no others; its state stays."""
    emit(ops.down(ops.directory_of(cluster), say), as_json, tables.local_table)
    return Exit.DONE


@app.command(
    **ends("rhinoctl local status", Exit.REFUSED, Exit.DEGRADED, refused="nothing of it runs")
)
def status(cluster: Directory = None, as_json: Json = False) -> int:
    """Show the cluster's processes and where their logs are."""
    view = ops.status(ops.directory_of(cluster))
    emit(view, as_json, tables.local_table)
    return ops.exit_of_local(view)
