"""The command line: parse, call one operation, render."""

import os
import sys
from collections.abc import Sequence
from typing import Any

import typer

from rhinoctl.cli import (
    bench,
    check,
    config,
    controller,
    demo,
    deploy,
    disk,
    doctor,
    groups,
    hosts,
    job,
    local,
    members,
    move,
    op,
    status,
    upgrade,
    verify,
    version,
    workers,
)
from rhinoctl.cli.options import group
from rhinoctl.errors import Exit, RhinoError, UsageError
from rhinoctl.render.errors import show_error, show_unexpected

INTERRUPTED = 130
"""What shells expect of a command that Ctrl-C ended."""

_UsageFault = typer.BadParameter.__mro__[1]
"""What the parser raises; typer has it under another name in each version."""

app = group("Move the state of running PySpark structured streaming jobs while they run.")
VERBS = (
    *(
        demo,
        config,
        check,
        deploy,
        upgrade,
        hosts,
        members,
        status,
        doctor,
        move,
        workers,
        groups,
        verify,
    ),
    version,
)
for each in VERBS:
    each.add_to(app)
for name, verbs in (
    *(("local", local.app), ("job", job.app), ("groups", groups.app)),
    *(
        ("config", config.app),
        ("op", op.app),
        ("disk", disk.app),
        ("controller", controller.app),
        ("hosts", hosts.app),
        ("bench", bench.app),
    ),
):
    app.add_typer(verbs, name=name)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code. No error leaves it as a traceback."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    as_json = "--json" in arguments
    try:
        return int(app(arguments, prog_name="rhinoctl", standalone_mode=False) or Exit.DONE)
    except RhinoError as error:
        return show_error(error, as_json=as_json)
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    except BrokenPipeError:
        # Whoever read our output has gone; let the interpreter not complain about it at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return Exit.UNEXPECTED
    except Exception as fault:  # noqa: BLE001 (the root: whatever it is becomes text and a code)
        if not isinstance(fault, _UsageFault):
            return show_unexpected(fault, as_json=as_json)
        return _show_usage(fault, as_json=as_json)


def _show_usage(fault: Exception, *, as_json: bool) -> Exit:
    context = getattr(fault, "ctx", None)
    path = context.command_path if context is not None else "rhinoctl"
    message = getattr(fault, "format_message", lambda: str(fault))()
    if type(fault).__name__ == "NoArgsIsHelpError":
        print(message, file=sys.stderr)
        return Exit.USAGE
    remedy = f"see `{path} --help`"
    if type(fault).__name__ == "NoSuchOption" and _takes_command(context):
        remedy = f"put `--` before a command with options of its own: `{path} -- COMMAND`"
    error = UsageError(message.rstrip("."), remedy=remedy)
    return show_error(error, as_json=as_json)


def _takes_command(context: Any) -> bool:
    """Whether the arguments of a verb are a command of somebody else's, options included."""
    parameters = [] if context is None else context.command.params
    return any((each.metavar or "").startswith("-- ") for each in parameters)
