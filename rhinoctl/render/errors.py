"""The one place where errors become text."""

import json
import os
import sys
import time
import traceback
from pathlib import Path

from rhinoctl.errors import Exit, RhinoError
from rhinoctl.ops.cluster import error_log
from rhinoctl.render.output import console_of

LINES_MAX = 31
"""Of a message: who has mended the first thirty mistakes looks again."""

LOG_BYTES_MAX = 1 << 20
"""Of tracebacks kept; then the file is begun anew."""


def show_error(error: RhinoError, *, as_json: bool) -> Exit:
    """Message, remedy and code; as an object on stdout with `as_json`. Returns the exit code."""
    if as_json:
        image = {
            "code": error.code,
            "message": error.message,
            "remedy": error.remedy,
            "exit_code": int(error.exit_code),
            **error.details,
        }
        print(json.dumps({"error": image}, indent=2))
    else:
        console = console_of(sys.stderr)
        console.print(f"error: {_shortened(error.message)} ({error.code})", soft_wrap=True)
        console.print(f"  try: {error.remedy}", soft_wrap=True)
    return error.exit_code


def _shortened(message: str) -> str:
    """A message that a screen can hold; whoever reads JSON has all of it."""
    lines = message.split("\n")
    more = len(lines) - LINES_MAX
    if more <= 1:
        return message
    return "\n".join([*lines[:LINES_MAX], f"  and {more} more, which `--json` has"])


def show_unexpected(fault: BaseException, *, as_json: bool) -> Exit:
    """An error that has no class: short, with the traceback in a log (or shown: RHINO_DEBUG=1)."""
    if os.environ.get("RHINO_DEBUG"):
        traceback.print_exception(fault)
    log = _keep(fault, error_log())
    error = RhinoError(
        f"unexpected {type(fault).__name__}: {fault}",
        remedy=f"see {log}; look with `rhinoctl status` before you repeat the command"
        if log is not None
        else "set RHINO_DEBUG=1 to see where it comes from",
    )
    return show_error(error, as_json=as_json)


def _keep(fault: BaseException, log: Path) -> Path | None:
    """Append the traceback to the log; None if it cannot be written."""
    text = "".join(traceback.format_exception(fault))
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        anew = log.exists() and log.stat().st_size > LOG_BYTES_MAX
        with open(log, "w" if anew else "a", encoding="utf-8") as file:
            file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {' '.join(sys.argv[1:])}\n{text}\n")
    except OSError:
        return None
    return log
