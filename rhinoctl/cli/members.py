"""``rhinoctl hosts add`` and ``hosts remove``: a worker joins a cluster on hosts, or leaves it."""

import sys
from typing import Annotated

import typer

from rhinoctl.cli import hosts
from rhinoctl.cli.deploy import agree, on_hosts
from rhinoctl.cli.options import (
    AcceptNew,
    AskPassword,
    InventoryFile,
    Json,
    confirm,
    ends,
)
from rhinoctl.errors import Exit
from rhinoctl.ops import members as ops
from rhinoctl.ops.inventory import USUAL_FILE
from rhinoctl.render.deploy import DeployProgress
from rhinoctl.render.members import add_table, remove_plan_table, remove_table
from rhinoctl.render.output import console_of, emit

Yes = Annotated[bool, typer.Option("--yes", help="Do not ask before processes are restarted.")]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Show the plan and do nothing; exit 10 if it has steps.")
]


def add(
    host: Annotated[
        str,
        typer.Argument(metavar="HOST", help="Its name or address, for SSH.", show_default=False),
    ],
    name: Annotated[
        str | None,
        typer.Option("--name", metavar="NAME", help="The worker's. Default: HOST in lower case."),
    ] = None,
    rack: Annotated[str | None, typer.Option("--rack", metavar="RACK", help="Where it is.")] = None,
    disk: Annotated[
        list[str] | None,
        typer.Option("--disk", metavar="DIR", help="For state; once for each, the log's first."),
    ] = None,
    slots: Annotated[
        int | None,
        typer.Option("--slots", metavar="N", help="So many instances at most. Default: no bound."),
    ] = None,
    address: Annotated[
        str | None,
        typer.Option("--address", metavar="ADDR", help="How others reach it. Default: HOST."),
    ] = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    inventory: InventoryFile = USUAL_FILE,
    accept_new: AcceptNew = False,
    ask_password: AskPassword = False,
    as_json: Json = False,
) -> int:
    """Write a worker into the inventory, and bring it up.

    The controller is restarted to know it; agents are left alone, and jobs go on. State comes to it
    with `rhinoctl rescale`, `handover` or `groups apply`. If the deployment breaks off, the worker
    stays in the inventory, and `rhinoctl deploy` goes on.
    """
    request = ops.AddRequest(
        inventory=inventory,
        worker=ops.NewWorker(
            host=host, name=name, address=address, rack=rack, slots=slots, disks=tuple(disk or ())
        ),
        dry_run=dry_run,
    )
    with on_hosts(accept_new, ask_password) as (progress, login):
        view = ops.add_host(request, login, progress, lambda plan: agree(plan, progress, yes))
    emit(view, as_json, add_table)
    return ops.exit_of_add(view)


def remove(
    worker: Annotated[str, typer.Argument(metavar="WORKER", help="The worker, such as w1.")],
    lost: Annotated[
        bool,
        typer.Option("--lost", help="Its host is gone for good: nothing is done there."),
    ] = False,
    wipe_data: Annotated[
        bool, typer.Option("--wipe-data", help="Remove the state on its disks, too, for good.")
    ] = False,
    dry_run: DryRun = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    inventory: InventoryFile = USUAL_FILE,
    accept_new: AcceptNew = False,
    ask_password: AskPassword = False,
    as_json: Json = False,
) -> int:
    """Take a worker that holds nothing off its host and out of the inventory.

    `rhinoctl drain` it first. What was deployed is removed from its host, the controller is
    restarted without it, and its lines go out of the inventory. If that breaks off, the same
    command goes on.
    """
    request = ops.RemoveRequest(
        inventory=inventory, worker=worker, lost=lost, wipe_data=wipe_data, dry_run=dry_run
    )
    with on_hosts(accept_new, ask_password) as (progress, login):
        view = ops.remove_host(request, login, progress, lambda plan: _agree(plan, progress, yes))
    emit(view, as_json, remove_table)
    return ops.exit_of_remove(view)


def _agree(plan: ops.RemovePlan, progress: DeployProgress, yes: bool) -> None:
    """Show what is to be done, and ask."""
    progress.pause()
    console_of(sys.stderr).print(remove_plan_table(plan))
    confirm(f"Remove worker {plan.worker} from cluster {plan.cluster}?", yes=yes)
    progress.resume()


def add_to(app: typer.Typer) -> None:
    """Put the verbs into the command line, among those on hosts."""
    busy = "another command is at work on the hosts, or somebody has changed the inventory"
    hosts.app.command(
        "add",
        **ends(
            "rhinoctl hosts add w4 --rack r2 --disk /data1/rhino --dry-run\n"
            "rhinoctl hosts add 10.0.0.14 --name w4 --accept-new",
            *(Exit.REFUSED, Exit.BUSY, Exit.PARTIAL, Exit.HAS_CHANGES),
            refused="it is in the inventory, or that cannot be edited; nothing is deployed",
            busy=busy,
            partial="its host or the controller's failed or was not reached",
        ),
    )(add)
    hosts.app.command(
        "remove",
        **ends(
            "rhinoctl hosts remove w4 --dry-run\nrhinoctl hosts remove w4 --lost --yes",
            *(Exit.REFUSED, Exit.BUSY, Exit.PARTIAL, Exit.HAS_CHANGES),
            refused="it still holds state, or is on the controller's host; no controller answers",
            busy=f"an operation is under way; {busy}",
            partial="its host or the controller's failed or was not reached; repeat the command",
        ),
    )(remove)
