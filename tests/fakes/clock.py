"""A clock that stands still until somebody moves it."""

from rhinoctl.protocol.ports import Clock


class FakeClock:
    """The Clock port in virtual time. `wall_offset_s` may be changed at will, as walls jump."""

    def __init__(self, *, wall_offset_s: float = 1_700_000_000.0) -> None:
        self.wall_offset_s = wall_offset_s
        self._now = 0.0

    def monotonic(self) -> float:
        return self._now

    def wall(self) -> float:
        return self._now + self.wall_offset_s

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self.advance_to(self._now + seconds)

    def advance_to(self, moment: float) -> None:
        """Let time pass until `moment`; nothing happens if that is over."""
        self._now = max(self._now, moment)


class HostClock:
    """A host's view of a clock: its wall is off by `skew_s`, which may jump."""

    def __init__(self, clock: Clock) -> None:
        self.skew_s = 0.0
        self._clock = clock

    def monotonic(self) -> float:
        return self._clock.monotonic()

    def wall(self) -> float:
        return self._clock.wall() + self.skew_s
