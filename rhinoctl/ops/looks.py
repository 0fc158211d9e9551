"""Looking at something again and again until it is as wanted, while its controller may restart."""

import time
from collections.abc import Callable, Iterator
from typing import TypeVar

from rhinoctl.errors import DeadlineExceeded, NotRunning

T = TypeVar("T")

LOOK_S = 0.2
"""Between two looks: what is waited for lasts from tens of milliseconds to minutes."""

AWAY_S = 60.0
"""A controller may be restarted while we watch: it goes on with its work afterwards."""


def looks(ask: Callable[[], T], *, deadline_s: float, every_s: float = LOOK_S) -> Iterator[T]:
    """What `ask` answers, one look after the other, until `deadline_s` have passed.

    `ask` only reads, or may be repeated. Raises NotRunning or DeadlineExceeded if the controller
    stays away.
    """
    seen_at = time.monotonic()
    deadline = seen_at + deadline_s
    while (now := time.monotonic()) < deadline:
        time.sleep(every_s)
        try:
            found = ask()
        except (NotRunning, DeadlineExceeded):
            if now - seen_at > AWAY_S:
                raise
            continue
        seen_at = now
        yield found
