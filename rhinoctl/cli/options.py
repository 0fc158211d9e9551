"""Options and help that the verbs share."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from rhinoctl.errors import Exit, UsageError

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")]
Cluster = Annotated[
    str | None,
    typer.Option(
        "--cluster",
        metavar="DIR",
        help="The cluster: its directory or the controller's address."
        " Default: RHINO_CONTROLLER, else the local cluster.",
        show_default=False,
    ),
]
Directory = Annotated[
    str | None,
    typer.Option(
        "--cluster",
        metavar="DIR",
        help="The directory of the local cluster."
        " Default: RHINO_CONTROLLER, else rhinoctl/local in the user's state directory.",
        show_default=False,
    ),
]
JobArgument = Annotated[str, typer.Argument(metavar="JOB", help="The job's name.")]
OpArgument = Annotated[str, typer.Argument(metavar="OP", help="The operation, such as op-7.")]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Show the plan and do nothing; exit 10 if it moves any.")
]
NoWait = Annotated[
    bool, typer.Option("--no-wait", help="Return once it has begun; watch it with op show.")
]

InventoryFile = Annotated[
    Path, typer.Option("--inventory", "-i", metavar="FILE", help="The inventory.")
]
AcceptNew = Annotated[
    bool,
    typer.Option("--accept-new", help="Trust hosts that were never met, and keep their keys."),
]
AskPassword = Annotated[
    bool,
    typer.Option("--ask-password", help="Ask for a password; without, RHINO_SSH_PASSWORD or keys."),
]

MEANINGS: Mapping[Exit, str] = {
    Exit.DONE: "done, or nothing to do",
    Exit.UNEXPECTED: "unexpected",
    Exit.USAGE: "usage",
    Exit.REFUSED: "refused before anything was touched",
    Exit.ABORTED: "aborted, at the old layout",
    Exit.NEEDS_REPAIR: "needs repair",
    Exit.BUSY: "stale plan, or another operation is running",
    Exit.DEGRADED: "degraded or unhealthy",
    Exit.PARTIAL: "partial: some workers failed",
    Exit.HAS_CHANGES: "the plan has changes (--dry-run)",
}


def group(help_text: str) -> typer.Typer:
    """A group of verbs, in the one style of all."""
    return typer.Typer(
        help=help_text, rich_markup_mode=None, add_completion=False, no_args_is_help=True
    )


def ends(example: str, *codes: Exit, **notes: str) -> dict[str, Any]:
    """What a command's help ends with: an example, and how the command may end.

    `notes` say more of an exit code than its meaning, by its name in lower case.
    """
    lines = ["\b", "Example:", *(f"  {line}" for line in example.splitlines()), "", "\b"]
    lines.append("Exit codes:")
    for code in sorted({Exit.DONE, Exit.UNEXPECTED, Exit.USAGE, *codes}):
        note = notes.get(code.name.lower())
        lines.append(f"  {int(code):>2}  {MEANINGS[code]}{f': {note}' if note else ''}")
    return {"epilog": "\n".join(lines)}


def confirm(question: str, *, yes: bool) -> None:
    """Go on only if a person agrees, or has said so with --yes. Raises UsageError where there is
    nobody to ask, and Abort."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise UsageError(f"{question} There is no terminal to ask on.", remedy="add --yes")
    typer.confirm(question, abort=True, err=True)
