"""Lists of virtual nodes as people write them: ``3,7-9``."""

import re
from collections.abc import Iterable
from itertools import pairwise

from rhinoctl.errors import UsageError
from rhinoctl.ids import KEY_GROUPS, Vnode

_ITEM = re.compile(r"\s*(\d{1,6})\s*(?:-\s*(\d{1,6})\s*)?", re.ASCII)


def parse_vnodes(text: str) -> tuple[Vnode, ...]:
    """The vnodes of ``3,7-9``, in ascending order.

    Raises UsageError for what is no list of numbers and ranges, for a range that runs backwards,
    for a vnode that is named twice, and for a number that no job can have.
    """
    found: list[int] = []
    for item in text.split(","):
        match = _ITEM.fullmatch(item)
        if match is None:
            raise _usage(f"{item.strip()!r} is neither a vnode nor a range of them")
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first:
            raise _usage(f"the range {first}-{last} runs backwards")
        if last >= KEY_GROUPS:
            raise _usage(f"no job has a vnode {last}: the last possible is {KEY_GROUPS - 1}")
        found += range(first, last + 1)
    found.sort()
    twice = [a for a, b in pairwise(found) if a == b]
    if twice:
        raise _usage(f"vnode {twice[0]} is named twice in {text!r}")
    return tuple(map(Vnode, found))


def format_vnodes(vnodes: Iterable[Vnode]) -> str:
    """The shortest list that `parse_vnodes` reads; ``-`` for none."""
    parts: list[list[int]] = []
    for vnode in sorted(vnodes):
        if parts and parts[-1][1] == vnode - 1:
            parts[-1][1] = vnode
        else:
            parts.append([vnode, vnode])
    return ",".join(f"{a}" if a == b else f"{a}-{b}" for a, b in parts) or "-"


def _usage(message: str) -> UsageError:
    return UsageError(message, remedy="write numbers and ranges, such as --vnodes 3,7-9")
