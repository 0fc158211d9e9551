"""Spark's Python worker processes."""

import gc
from typing import Final

_settled: Final[set[str]] = set()


def settle() -> None:
    """Take what is loaded by now out of the garbage collector's sight, once in a process.

    Spark collects garbage after every task (pyspark/daemon.py). With our modules loaded each time
    takes 50 ms of a processor, as long as a small batch; what is loaded does not become garbage.
    """
    if not _settled:
        _settled.add("done")
        gc.collect()
        gc.freeze()
