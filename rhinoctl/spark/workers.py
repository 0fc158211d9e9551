"""Spark's Python worker processes."""

import gc
from itertools import count
from typing import Final

TASKS: Final = 3
"""By its third task a process has loaded all that it will: some modules come with what a task
returns."""

_tasks: Final = count(1)


def settle() -> None:
    """Take what is loaded by now out of the garbage collector's sight, in a process's first tasks.

    Spark collects garbage after every task (pyspark/daemon.py). With our modules loaded that takes
    tens of milliseconds each time, as long as a small batch; what is loaded stays.
    """
    if next(_tasks) <= TASKS:
        gc.collect()
        gc.freeze()
