"""gRPC does not survive a fork: a call in the child would hang for ever, beyond any timeout.

Its threads are missing there, and what they hold stays held (tried, also with gRPC's own support
for forks). So a child of a process that has used it is refused instead.
"""

import os

REFUSAL = "this process was forked from one that had used connections; start it with spawn or exec"

_user = 0


def used_before_fork() -> bool:
    """Note that this process uses gRPC from now on; whether one that it was forked from has."""
    global _user
    _user = _user or os.getpid()
    return _user != os.getpid()
