"""The contract of the Clock port, over the real one and the fake."""

import pytest

from rhinoctl.protocol.ports import Clock
from rhinoctl.wire.clock import SystemClock
from tests.fakes.clock import FakeClock


@pytest.fixture(params=["system", "fake"])
def clock(request: pytest.FixtureRequest) -> Clock:
    return SystemClock() if request.param == "system" else FakeClock()


def test_monotonic_never_goes_back(clock: Clock) -> None:
    moments = [clock.monotonic() for _ in range(1000)]
    assert moments == sorted(moments)


def test_wall_is_in_seconds_since_1970(clock: Clock) -> None:
    this_century = range(1_500_000_000, 4_102_444_800)
    assert int(clock.wall()) in this_century


def test_the_fake_moves_when_it_is_told_to() -> None:
    clock = FakeClock()
    before, wall = clock.monotonic(), clock.wall()
    clock.advance(1.5)
    assert (clock.monotonic() - before, clock.wall() - wall) == (1.5, 1.5)
    clock.advance_to(before)
    assert clock.monotonic() == before + 1.5


def test_the_fake_wall_may_jump_alone() -> None:
    clock = FakeClock()
    before = clock.monotonic()
    clock.wall_offset_s -= 3600
    assert clock.monotonic() == before
