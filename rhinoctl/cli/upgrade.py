"""``rhinoctl upgrade``: another release on the hosts of a cluster, while jobs run."""

from typing import Annotated

import typer

from rhinoctl.cli.deploy import agree, end, on_hosts
from rhinoctl.cli.options import AcceptNew, AskPassword, InventoryFile, Json, ends
from rhinoctl.errors import Exit
from rhinoctl.ops import upgrade as ops
from rhinoctl.ops.inventory import USUAL_FILE
from rhinoctl.ops.running import hosts_of
from rhinoctl.render.output import emit
from rhinoctl.render.upgrade import upgrade_table


def upgrade(
    check: Annotated[
        bool,
        typer.Option("--check", help="Change nothing, and say what would be; exit 10 if anything."),
    ] = False,
    by: Annotated[
        ops.By,
        typer.Option("--by", help="Which agents may be away at once: one, or all of a rack."),
    ] = ops.By.HOST,
    limit: Annotated[
        list[str] | None,
        typer.Option("--limit", metavar="HOST", help="Only these hosts; once for each."),
    ] = None,
    back: Annotated[
        bool,
        typer.Option(
            "--back", help="Go back to an older version, where it can read what is there."
        ),
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    inventory: InventoryFile = USUAL_FILE,
    accept_new: AcceptNew = False,
    ask_password: AskPassword = False,
    as_json: Json = False,
) -> int:
    """Bring this version of rhinoctl to the hosts of a cluster, while jobs run.

    It is installed everywhere; then the controller is restarted, and agents one after the other,
    each once all copies are full again. Vnodes stay where they are. Nothing else is changed.
    How it goes, and how to go back, is in docs/operations/upgrade.md.
    """
    request = ops.UpgradeRequest(inventory=inventory, by=by, limit=hosts_of(limit or ()), back=back)
    if check:
        return _check(request, accept_new, ask_password, as_json)
    with on_hosts(accept_new, ask_password) as (progress, login):
        view = ops.upgrade(request, login, progress, lambda plan: agree(plan, progress, yes))
    return end(view, as_json)


def _check(request: ops.UpgradeRequest, accept_new: bool, ask_password: bool, as_json: bool) -> int:
    with on_hosts(accept_new, ask_password) as (progress, login):
        view = ops.check_upgrade(request, login, progress)
    emit(view, as_json, upgrade_table)
    return ops.exit_of_check(view)


def add_to(app: typer.Typer) -> None:
    """Put the verb into the command line."""
    app.command(
        **ends(
            "rhinoctl upgrade --check\nrhinoctl upgrade --by rack --yes",
            *(Exit.REFUSED, Exit.BUSY, Exit.DEGRADED, Exit.PARTIAL, Exit.HAS_CHANGES),
            refused="a host cannot be upgraded, or the cluster is not well",
            busy="another command is at work on the hosts",
            degraded="all hosts are done, and what was well before is not yet",
            partial="hosts failed or were not reached; with --check: some cannot be upgraded",
            has_changes="or, with --check, there are hosts to be upgraded",
        )
    )(upgrade)
