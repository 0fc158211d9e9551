"""``rhinoctl hosts list|exec``, ``start``, ``stop``, ``restart``, ``logs``: what runs on hosts."""

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Annotated

import typer

from rhinoctl.cli.options import (
    AcceptNew,
    AskPassword,
    InventoryFile,
    Json,
    confirm,
    ends,
    group,
)
from rhinoctl.errors import Exit
from rhinoctl.ops import running as ops
from rhinoctl.ops.hosts import login_of
from rhinoctl.ops.inventory import USUAL_FILE
from rhinoctl.render.hosts import exec_table, hosts_table, log_text
from rhinoctl.render.output import emit, say

app = group("The hosts of a cluster: what runs on them, and commands for all of them.")

Names = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="HOST",
        help="Workers, hosts, or `controller`. Default: all.",
        show_default=False,
    ),
]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask.")]


@app.command(
    "list",
    **ends(
        "rhinoctl hosts list\nrhinoctl hosts list w1 --json",
        *(Exit.REFUSED, Exit.DEGRADED, Exit.PARTIAL),
        refused="a host that is not in the inventory, or nothing is deployed on any",
        degraded="a process does not run",
        partial="hosts could not be asked, or have nothing deployed",
    ),
)
def list_(
    names: Names = None,
    inventory: InventoryFile = USUAL_FILE,
    accept_new: AcceptNew = False,
    ask_password: AskPassword = False,
    as_json: Json = False,
) -> int:
    """Show each host's processes: release, who keeps them running, since when they run."""
    login = login_of(accept_new=accept_new, ask_password=ask_password, tell=say)
    view = ops.list_hosts(inventory, ops.hosts_of(names or ()), login)
    emit(view, as_json, hosts_table)
    return ops.exit_of_list(view)


@app.command(
    "exec",
    **ends(
        "rhinoctl hosts exec -- df -h /data1\nrhinoctl hosts exec --host w1 -- uptime",
        *(Exit.REFUSED, Exit.PARTIAL),
        refused="a host that is not in the inventory",
        partial="it failed on a host, or a host could not be reached",
    ),
)
def exec_(
    command: Annotated[
        list[str],
        typer.Argument(metavar="-- COMMAND", help="The command, as a list of arguments."),
    ],
    host: Annotated[
        list[str] | None,
        typer.Option("--host", metavar="HOST", help="Only there; once for each."),
    ] = None,
    root: Annotated[
        bool, typer.Option("--root", help="By sudo, where the inventory has `ssh.sudo`.")
    ] = False,
    timeout_s: Annotated[
        float, typer.Option("--timeout", metavar="SECONDS", help="It is ended there after so long.")
    ] = 60.0,
    inventory: InventoryFile = USUAL_FILE,
    accept_new: AcceptNew = False,
    ask_password: AskPassword = False,
    as_json: Json = False,
) -> int:
    """Run a command on all hosts at once, and show what it prints.

    It is a list of arguments and no text for a shell: for one, give `sh -c '…'`.
    """
    login = login_of(accept_new=accept_new, ask_password=ask_password, tell=say)
    wanted = ops.hosts_of(host or ())
    view = ops.execute(
        *(inventory, wanted), ops.command_of(command, timeout_s=timeout_s, root=root), login
    )
    emit(view, as_json, exec_table, as_it_is=True)
    return ops.exit_of_exec(view)


def start(
    names: Names = None,
    inventory: InventoryFile = USUAL_FILE,
    accept_new: AcceptNew = False,
    ask_password: AskPassword = False,
    as_json: Json = False,
) -> int:
    """Start what does not run of a deployed cluster, the controller first.

    With the settings that were deployed last; those of an inventory that has changed since are
    brought there by `rhinoctl deploy`.
    """
    login = login_of(accept_new=accept_new, ask_password=ask_password, tell=say)
    with _told() as tell:
        view = ops.start(inventory, ops.hosts_of(names or ()), login, tell)
    return _end(view, as_json)


def stop(
    names: Names = None,
    yes: Yes = False,
    inventory: InventoryFile = USUAL_FILE,
    accept_new: AcceptNew = False,
    ask_password: AskPassword = False,
    as_json: Json = False,
) -> int:
    """End processes of a deployed cluster, an agent's instances with it. State stays.

    Jobs wait for a worker that is stopped until it is back, or its copies take over: `rhinoctl
    drain` first moves what it has. Without a host, the whole cluster ends.
    """
    whole = "the whole cluster" if not names else ", ".join(names)
    confirm(f"End {whole}?", yes=yes)
    login = login_of(accept_new=accept_new, ask_password=ask_password, tell=say)
    with _told() as tell:
        view = ops.stop(inventory, ops.hosts_of(names or ()), login, tell)
    return _end(view, as_json)


def restart(
    names: Names = None,
    yes: Yes = False,
    inventory: InventoryFile = USUAL_FILE,
    accept_new: AcceptNew = False,
    ask_password: AskPassword = False,
    as_json: Json = False,
) -> int:
    """End and start processes, one after the other, each until it does its part.

    The first that does not stops it there; those after it go on as they are, and are named.
    """
    whole = "every process of the cluster" if not names else ", ".join(names)
    confirm(f"Restart {whole}?", yes=yes)
    login = login_of(accept_new=accept_new, ask_password=ask_password, tell=say)
    with _told() as tell:
        view = ops.restart(inventory, ops.hosts_of(names or ()), login, tell)
    return _end(view, as_json)


def logs(
    host: Annotated[
        str, typer.Argument(metavar="HOST", help="A worker, its host, or `controller`.")
    ],
    lines: Annotated[
        int, typer.Option("--lines", metavar="N", min=1, max=100_000, help="So many, the last.")
    ] = 100,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Then what is written, until Ctrl-C.")
    ] = False,
    inventory: InventoryFile = USUAL_FILE,
    accept_new: AcceptNew = False,
    ask_password: AskPassword = False,
    as_json: Json = False,
) -> int:
    """Show the end of the log of a host's agent, or of the controller.

    With --follow and --json, each look that found something is a document of its own.
    """
    login = login_of(accept_new=accept_new, ask_password=ask_password, tell=say)
    with closing(ops.follow_logs(inventory, host, lines, login)) as views:
        for view in views:
            emit(view, as_json, log_text, as_it_is=True)
            if not follow:
                break
    return Exit.DONE


@contextmanager
def _told() -> Iterator[ops.Tell]:
    """What tells of each process that is begun with; and, after Ctrl-C, of what that leaves."""
    begun: list[str] = []

    def tell(text: str) -> None:
        begun.append(text)
        say(text)

    try:
        yield tell
    except KeyboardInterrupt:
        where = f'at "{begun[-1]}"' if begun else "before anything was begun"
        say(
            f"stopped {where}; what does not run stays so until `rhinoctl start`, and what was not"
            " begun is as it was: see `rhinoctl hosts list`"
        )
        raise


def _end(view: ops.HostsView, as_json: bool) -> int:
    emit(view, as_json, hosts_table)
    return ops.exit_of(view)


def add_to(app: typer.Typer) -> None:
    """Put the verbs into the command line."""
    codes = (Exit.REFUSED, Exit.BUSY, Exit.PARTIAL)
    notes = {
        "refused": "a host that is not in the inventory, or nothing is deployed",
        "busy": "another command is at work on the hosts",
        "partial": "hosts failed or were not reached; the others are done",
    }
    verbs: tuple[tuple[Callable[..., int], str], ...] = (
        (start, "rhinoctl start\nrhinoctl start w1"),
        (stop, "rhinoctl stop w1\nrhinoctl stop --yes"),
        (restart, "rhinoctl restart controller\nrhinoctl restart --yes"),
    )
    for verb, example in verbs:
        app.command(**ends(example, *codes, **notes))(verb)
    refused = "a host that is not in the inventory, or nothing is deployed"
    app.command(
        **ends(
            "rhinoctl logs w1 --lines 20\nrhinoctl logs controller --follow",
            *(Exit.REFUSED, Exit.PARTIAL),
            refused=refused,
            partial="the host could not be asked",
        )
    )(logs)
