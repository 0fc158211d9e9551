"""``rhinoctl deploy``, ``replay`` and ``undeploy``: a cluster on the hosts of an inventory."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from rhinoctl.cli import hosts
from rhinoctl.cli.options import (
    AcceptNew,
    AskPassword,
    InventoryFile,
    Json,
    confirm,
    ends,
)
from rhinoctl.errors import Exit, UsageError
from rhinoctl.ops import deploy as ops
from rhinoctl.ops import letting_go
from rhinoctl.ops import undeploy as undeploying
from rhinoctl.ops.deployed import read_deployed
from rhinoctl.ops.hosts import Login, login_of
from rhinoctl.ops.inventory import USUAL_FILE
from rhinoctl.ops.replay import replay as replay_run
from rhinoctl.ops.running import hosts_of
from rhinoctl.render.deploy import (
    DeployProgress,
    deploy_table,
    plan_table,
    undeploy_table,
)
from rhinoctl.render.output import console_of, emit, say

Yes = Annotated[
    bool, typer.Option("--yes", help="Do not ask before processes are restarted that run.")
]


def deploy(
    inventory: InventoryFile = USUAL_FILE,
    limit: Annotated[
        list[str] | None,
        typer.Option("--limit", metavar="HOST", help="Only these hosts; once for each."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the plan; exit 10 if it has steps.")
    ] = False,
    yes: Yes = False,
    accept_new: AcceptNew = False,
    ask_password: AskPassword = False,
    as_json: Json = False,
) -> int:
    """Bring the hosts of an inventory to what it says, and the cluster up.

    The plan is shown first. What is as it is to be is left alone, so that the command can be
    repeated, and goes on where another stopped. How it goes is in docs/operations/install.md.
    """
    request = ops.DeployRequest(inventory=inventory, limit=hosts_of(limit or ()), dry_run=dry_run)
    with on_hosts(accept_new, ask_password) as (progress, login):
        view = ops.deploy(request, login, progress, lambda plan: agree(plan, progress, yes))
    return end(view, as_json)


def replay(
    run: Annotated[str, typer.Argument(metavar="RUN", help="The run, as the command said it.")],
    yes: Yes = False,
    accept_new: AcceptNew = False,
    ask_password: AskPassword = False,
    as_json: Json = False,
) -> int:
    """Go on with a deployment or an upgrade that stopped, with the inventory that it began with.

    Hosts are looked at again, and what is done is not repeated.
    """
    with on_hosts(accept_new, ask_password) as (progress, login):
        view = replay_run(run, login, progress, lambda plan: agree(plan, progress, yes))
    return end(view, as_json)


def rotate_keys(
    access: Annotated[
        bool,
        typer.Option(
            "--access",
            help="For people and Spark drivers, too, with new tokens: their access has to be copied"
            " to them again, and what runs with the old one is refused.",
        ),
    ] = False,
    yes: Yes = False,
    inventory: InventoryFile = USUAL_FILE,
    accept_new: AcceptNew = False,
    ask_password: AskPassword = False,
    as_json: Json = False,
) -> int:
    """Give every process a new key and certificate of the cluster's authority.

    Processes are restarted one after the other, as by `rhinoctl deploy`, which also finishes what
    was interrupted. Jobs go on.
    """
    confirm("Restart every process of the cluster with new keys?", yes=yes)
    request = ops.DeployRequest(inventory=inventory, renew=True, renew_access=access)
    with on_hosts(accept_new, ask_password) as (progress, login):
        view = ops.deploy(request, login, progress, lambda plan: agree(plan, progress, yes=True))
    return end(view, as_json)


@contextmanager
def on_hosts(accept_new: bool, ask_password: bool) -> Iterator[tuple[DeployProgress, Login]]:
    """What a command that changes hosts is shown with, and logs in with."""
    with DeployProgress() as progress:
        yield (
            progress,
            login_of(accept_new=accept_new, ask_password=ask_password, tell=progress.say),
        )


def agree(plan: ops.DeployView, progress: DeployProgress, yes: bool) -> None:
    """Show the plan, and ask if a process is to be restarted that jobs may need."""
    progress.pause()
    console_of(sys.stderr).print(plan_table(plan))
    again = [host.host for host in plan.hosts if host.restarts]
    if again:
        confirm(f"Restart what runs on {', '.join(again)}?", yes=yes)
    progress.resume()


def end(view: ops.DeployView, as_json: bool) -> int:
    """Show how it ended."""
    emit(view, as_json, plan_table if view.dry_run else deploy_table)
    return ops.exit_of(view)


def undeploy(
    inventory: InventoryFile = USUAL_FILE,
    host: Annotated[
        list[str] | None,
        typer.Option("--host", metavar="HOST", help="Only there; once for each. Default: all."),
    ] = None,
    wipe_data: Annotated[
        bool, typer.Option("--wipe-data", help="Remove the state of all jobs, too, for good.")
    ] = False,
    lost: Annotated[
        bool,
        typer.Option(
            "--lost",
            help="Let what is named by --host go without going there: its machine is gone for good,"
            " or was installed anew. Refused while it answers.",
        ),
    ] = False,
    former: Annotated[
        bool,
        typer.Option(
            "--former", help="Only from machines that were let go by --lost, and are back."
        ),
    ] = False,
    confirmed: Annotated[
        str | None,
        typer.Option(
            "--confirm",
            metavar="NAME",
            help="The cluster's name, instead of being asked for it.",
            show_default=False,
        ),
    ] = None,
    accept_new: AcceptNew = False,
    ask_password: AskPassword = False,
    as_json: Json = False,
) -> int:
    """End a cluster and remove everything that was put on its hosts.

    The state of jobs stays where it is unless --wipe-data is given, and a later deployment finds
    it again.
    """
    hosts = hosts_of(host or ())
    _check_options(hosts, lost=lost, former=former, wipe_data=wipe_data)
    what = _what(inventory, hosts, lost=lost, former=former, wipe_data=wipe_data)
    name = confirmed if confirmed is not None else _asked(what)
    login = login_of(accept_new=accept_new, ask_password=ask_password, tell=say)
    if lost:
        view = letting_go.let_go(inventory, name, hosts, login, say)
    else:
        request = undeploying.UndeployRequest(
            inventory=inventory, confirmed=name, hosts=hosts, wipe_data=wipe_data, former=former
        )
        view = undeploying.undeploy(request, login, say)
    emit(view, as_json, undeploy_table)
    return undeploying.exit_of(view)


def _check_options(hosts: tuple[str, ...], *, lost: bool, former: bool, wipe_data: bool) -> None:
    if lost and not hosts:
        raise UsageError(
            "--lost is about processes that are named", remedy="name them: --host w3 --lost"
        )
    if lost and (former or wipe_data):
        raise UsageError(
            "--lost does nothing on any host", remedy="leave out --wipe-data and --former"
        )
    if former and hosts:
        raise UsageError(
            "--former is about all machines that were let go", remedy="leave out --host"
        )


def _what(
    inventory: InventoryFile,
    names: tuple[str, ...],
    *,
    lost: bool,
    former: bool,
    wipe_data: bool,
) -> str:
    cluster = read_deployed(inventory)
    hosts = ", ".join(cluster.selected(names))
    if lost:
        return f"{', '.join(names)} will be let go: nothing is done on any host."
    if former:
        hosts = ", ".join(each.host for each in cluster.home.former()) or "no machine"
    data = "and the state of all jobs" if wipe_data else "but not the state of jobs"
    return f"everything of rhinoctl will be removed from {hosts}, {data}."


def _asked(what: str) -> str:
    if not sys.stdin.isatty():
        raise UsageError(
            "there is no terminal to ask for the cluster's name on", remedy="add --confirm NAME"
        )
    say(what)
    return str(typer.prompt("Type the cluster's name", err=True))


def add_to(app: typer.Typer) -> None:
    """Put the verbs into the command line."""
    codes = (Exit.REFUSED, Exit.BUSY, Exit.PARTIAL)
    left = {"degraded": "an upgrade is done, and what was well before is not yet"}
    refused_store = {"degraded": "all is done, and workers refuse the controller's store"}
    notes = {"partial": "hosts failed or were not reached; the others are done"}
    busy = "another command is at work on the hosts"
    app.command(
        **ends(
            "rhinoctl deploy --inventory inventory.yml --dry-run\nrhinoctl deploy --limit w4",
            *(*codes, Exit.DEGRADED, Exit.HAS_CHANGES),
            busy=busy,
            refused="a host that is not in the inventory",
            **notes,
            **refused_store,
        )
    )(deploy)
    app.command(
        **ends(
            "rhinoctl replay 20260314-150926-5f3a",
            *(*codes, Exit.DEGRADED),
            busy=f"another inventory was deployed since, or {busy}",
            refused="no such run, or an upgrade that cannot go on",
            **notes,
            **left,
        )
    )(replay)
    hosts.app.command(
        "rotate-keys",
        **ends(
            "rhinoctl hosts rotate-keys\nrhinoctl hosts rotate-keys --access --yes",
            *(*codes, Exit.DEGRADED),
            busy=busy,
            refused="nothing is deployed, or the inventory leaves out a worker that was",
            **notes,
            **refused_store,
        ),
    )(rotate_keys)
    app.command(
        **ends(
            "rhinoctl undeploy\nrhinoctl undeploy --wipe-data --confirm clicks\n"
            "rhinoctl undeploy --host controller --lost",
            *codes,
            busy=busy,
            refused="another name was typed; a worker has vnodes, copies or instances; what is"
            " said to be lost is well",
            partial="something may be left on a host, or was not wiped",
        )
    )(undeploy)
