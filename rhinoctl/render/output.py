"""Where output goes: results to stdout, as a table or as JSON, everything else to stderr."""

import json
import os
import sys
from collections.abc import Callable
from typing import TextIO, TypeVar

from rich.console import Console, RenderableType

from rhinoctl.protocol import codec

T = TypeVar("T")

PIPE_COLUMNS = 160
"""The width of a table that no terminal limits: wide enough not to cut, narrow enough to read."""


def console_of(stream: TextIO) -> Console:
    """A console that takes text as it is: no markup in what people named."""
    free = not stream.isatty() and "COLUMNS" not in os.environ
    return Console(
        file=stream,
        width=PIPE_COLUMNS if free else None,
        markup=False,
        highlight=False,
        emoji=False,
    )


def emit(
    value: T,
    as_json: bool,
    table: Callable[[T], RenderableType],
    *,
    as_it_is: bool = False,
) -> None:
    """The result of a command, on stdout; `as_it_is`: long lines are not folded."""
    if as_json:
        print(json.dumps(codec.to_json(value), indent=2), flush=True)
    else:
        console_of(sys.stdout).print(table(value), soft_wrap=as_it_is)


def say(text: str) -> None:
    """A line for the person who waits, on stderr."""
    console_of(sys.stderr).print(text, soft_wrap=True)
