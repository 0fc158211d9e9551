"""A bound on the network that replication may take."""

from rhinoctl.protocol.ports import Clock


class Throttle:
    """A bound on the bytes fetched per second, over all transfers of a worker; 0 for none."""

    def __init__(self, clock: Clock, bytes_a_second: int) -> None:
        self._clock = clock
        self._rate = bytes_a_second
        self._free_at = clock.monotonic()

    def may(self) -> bool:
        """Whether the next chunk may be asked for."""
        return not self._rate or self._clock.monotonic() >= self._free_at

    def took(self, size: int) -> None:
        """So many bytes were asked for."""
        if self._rate:
            start = max(self._free_at, self._clock.monotonic())
            self._free_at = start + size / self._rate
