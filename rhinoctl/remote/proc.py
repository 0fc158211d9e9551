"""What the kernel says of a process: whether any of it still runs, and since when."""

import sys
from pathlib import Path


def interpreter() -> tuple[str, ...]:
    """How a process of ours runs Python: as we do, so that without the packages of the host's
    interpreter where we are without them."""
    return (sys.executable, *(("-S",) if sys.flags.no_site else ()))


def born(pid: int) -> int | None:
    """Start time of a process in clock ticks since boot; None for one that has ended.

    A killed process whose main thread is a zombie has not ended while another of its threads is
    still in the kernel: until then it keeps its files locked and its sockets open.
    """
    fields = stat_fields(pid)
    return int(fields[19]) if runs(fields) else None


def stat_fields(pid: int) -> list[str]:
    """The fields of /proc/PID/stat from the state on; empty for a process that is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def runs(fields: list[str]) -> bool:
    """Whether the fields of /proc/PID/stat are those of a process of which any thread is left."""
    return bool(fields) and (fields[0] not in "ZX" or int(fields[17]) > 1)
