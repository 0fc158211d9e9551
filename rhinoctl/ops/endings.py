"""Why a process ended by itself, as far as the last line of its log tells."""

from typing import Final

from rhinoctl.protocol import codec
from rhinoctl.protocol.views import Problem

TOLD: Final = " refused problem="
"""What precedes a `Problem` in the last line of a process that it ended."""


def problem_in(line: str) -> Problem | None:
    """The error that a process has ended with, if its last line is one."""
    _, told, image = line.partition(TOLD)
    if not told:
        return None
    try:
        problem: Problem = codec.loads(Problem, image.encode())
    except codec.CodecError:
        return None
    return problem
