"""What a scrub reads next."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from rhinoctl.protocol.scrubbing import assumed, due

PERIOD_S = 1000.0
TIMES = st.integers(0, 10**7)


@given(st.dictionaries(st.text(), TIMES), TIMES)
def test_all_that_is_due_comes_and_the_oldest_first(read_at: dict[str, int], now: int) -> None:
    found = due(read_at, now, PERIOD_S)
    assert set(found) == {key for key, at in read_at.items() if now - at >= PERIOD_S}
    times = [read_at[key] for key in found]
    assert times == sorted(times)


@given(st.text(), TIMES)
def test_nothing_is_assumed_to_be_older_than_a_period(name: str, now: int) -> None:
    assert now - PERIOD_S <= assumed(name, now, PERIOD_S) <= now


@given(st.text(), TIMES, st.integers(0, 5000))
def test_restarts_put_nothing_off(name: str, now: int, later: int) -> None:
    """What was due before a restart at `now + later`, and is not any more, was read between or has
    had its time between."""
    before, after = assumed(name, now, PERIOD_S), assumed(name, now + later, PERIOD_S)
    periods = (after - before) / PERIOD_S
    assert abs(periods - round(periods)) < 1e-3
    assert round(periods) >= int(later // PERIOD_S)


def test_a_start_makes_nothing_due_at_once_and_spreads_the_rest() -> None:
    now = 123_456.0
    read_at = {n: assumed(f"w1/{n}", now, PERIOD_S) for n in range(2000)}
    assert due(read_at, now, PERIOD_S) == []
    tenths = Counter(int((now - at) / PERIOD_S * 10) for at in read_at.values())
    assert set(tenths) == set(range(10))
    assert max(tenths.values()) < 300
    assert len(due(read_at, now + PERIOD_S / 2, PERIOD_S)) in range(850, 1150)


def test_two_workers_do_not_read_the_same_at_the_same_time() -> None:
    assert assumed("w1/x", 0.0, PERIOD_S) != assumed("w2/x", 0.0, PERIOD_S)


def test_a_clock_that_was_put_back_makes_nothing_wait_for_longer_than_a_period() -> None:
    read_at = {"a": 5000.0}
    assert due(read_at, 1000.0, PERIOD_S) == []
    assert due(read_at, 6000.0, PERIOD_S) == ["a"]
