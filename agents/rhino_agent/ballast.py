"""A file that takes up room on the replica disk until the room is needed.

A worker whose disk is full to the last byte has to start all the same: it is the agent that removes
what may go. What it writes at its start is small, and so there is always room for it: that of the
ballast, which is laid down again once the disk has room.
"""

import errno
from collections.abc import Callable
from typing import Protocol

from rhino_agent.ports import event
from rhinoctl import limits
from rhinoctl.errors import DiskFull
from rhinoctl.protocol.ports import Disk

_PATH = "ballast"
FULL = (errno.ENOSPC, errno.EDQUOT)
"""What is refused for want of room."""

_PIECE = bytes(1 << 20)


class Roomy(Disk, Protocol):
    """A disk that says how much room it has."""

    def free_bytes(self) -> int:
        """Bytes that may still be written."""
        ...


def in_any_case(disk: Disk, write: Callable[[], None]) -> None:
    """Write something, at the expense of the ballast if the disk is full. Raises DiskFull if that
    does not make room enough."""
    try:
        write()
        return
    except OSError as fault:
        if fault.errno not in FULL:
            raise
    disk.remove(_PATH)
    event("ballast-dropped")
    try:
        write()
    except OSError as fault:
        if fault.errno not in FULL:
            raise
        raise DiskFull(
            f"the replica disk is full: {fault}",
            remedy="make room on its file system, then start the agent again; nothing was lost",
        ) from fault


def lay(disk: Roomy, size: int) -> None:
    """Lay the ballast down if it is not there and the disk has plenty of room for it."""
    if disk.size(_PATH) is not None or disk.free_bytes() < limits.BALLAST_SHARE * size:
        return
    try:
        for at in range(0, size, len(_PIECE)):
            disk.append(_PATH, [_PIECE[: size - at]])
        disk.sync([_PATH])
    except OSError as fault:
        disk.remove(_PATH)
        event("ballast-refused", fault=fault)
