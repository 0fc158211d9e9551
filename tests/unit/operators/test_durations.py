"""Durations in a declaration."""

import pytest

from rhinoctl.errors import UsageError
from rhinoctl.operators.durations import duration_us

SECOND = 1_000_000
HOUR = 3600 * SECOND


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("60 s", 60 * SECOND),
        ("60s", 60 * SECOND),
        ("10 minutes", 600 * SECOND),
        ("10 min", 600 * SECOND),
        ("5 mins", 300 * SECOND),
        ("1 hour 30 minutes", HOUR + 1800 * SECOND),
        ("1h30min", HOUR + 1800 * SECOND),
        ("2 hrs", 2 * HOUR),
        ("500 ms", 500_000),
        ("7 us", 7),
        ("7 \N{MICRO SIGN}s", 7),
        ("7 \N{GREEK SMALL LETTER MU}s", 7),
        ("1 microsecond", 1),
        ("3 milliseconds", 3_000),
        ("1 day", 24 * HOUR),
        ("2 d", 48 * HOUR),
        ("1 week", 7 * 24 * HOUR),
        ("  INTERVAL  1 Hour  ", HOUR),
        ("1.5 seconds", 1_500_000),
        ("0 seconds", 0),
        ("-10 minutes", -600 * SECOND),
        ("1 hour -30 minutes", 1800 * SECOND),
        ("+ 3 secs", 3 * SECOND),
    ],
)
def test_durations(text: str, expected: int) -> None:
    assert duration_us(text, "window") == expected


@pytest.mark.parametrize(
    "text",
    [
        *["", "interval", "ten minutes", "10", "s", "5 m", "1 h x", "1 fortnight", "0.1 us"],
        *["1,5 s", "1 ss", "300000 years", "1 month", "2 years", "99999999999 weeks", 60, None],
    ],
)
def test_what_is_no_duration_is_refused_by_name(text: str) -> None:
    with pytest.raises(UsageError, match=f"window '?{text}") as error:
        duration_us(text, "window")
    assert error.value.remedy
