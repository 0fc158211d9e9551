"""The system's clock."""

import time


class SystemClock:
    """The Clock port over the machine's clocks."""

    def monotonic(self) -> float:
        return time.monotonic()

    def wall(self) -> float:
        return time.time()
