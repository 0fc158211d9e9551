"""Durations as a job declares them: "60 s", "10 minutes", "1 hour 30 minutes", "1 day".

As in Spark's ``window`` and ``withWatermark`` a day has 24 hours in any time zone, and months and
years are refused, because they have no fixed length. Beyond Spark the usual short forms are known.
"""

import re
from fractions import Fraction

from rhinoctl.errors import UsageError

_US = {"microsecond": 1}
_US["millisecond"] = 1000 * _US["microsecond"]
_US["second"] = 1000 * _US["millisecond"]
_US["minute"] = 60 * _US["second"]
_US["hour"] = 60 * _US["minute"]
_US["day"] = 24 * _US["hour"]
_US["week"] = 7 * _US["day"]

_SHORT = {
    "microsecond": ("us", "µs"),
    "millisecond": ("ms", "msec", "msecs"),
    "second": ("s", "sec", "secs"),
    "minute": ("min", "mins"),
    "hour": ("h", "hr", "hrs"),
    "day": ("d",),
    "week": ("w",),
}
"""There is no "m": for some it is a minute, for others a month."""

_UNITS = {name: size for unit, size in _US.items() for name in (unit, f"{unit}s", *_SHORT[unit])}
_NO_LENGTH = ("month", "year")

_PART = re.compile(r"([+-]?\s*)(\d+(?:\.\d+)?)\s*([a-zµ]+)\s*")
LONG_MAX = 2**63 - 1


def duration_us(text: str, what: str) -> int:
    """A duration in microseconds; it may be zero or negative. `what` names it in errors.

    Raises UsageError for what is no duration.
    """
    if not isinstance(text, str):
        raise _no_duration(text, what, "it is no text")
    parts = text.strip().lower().removeprefix("interval ").strip().replace("μ", "µ")
    if not parts:
        raise _no_duration(text, what, "it is empty")
    total, at = 0, 0
    while at < len(parts):
        part = _PART.match(parts, at)
        if part is None:
            raise _no_duration(text, what, f"'{parts[at:]}' is not a number and a unit")
        sign, number, unit = part.groups()
        size = Fraction(number) * _unit_us(unit, text, what)
        if size.denominator != 1:
            raise _no_duration(text, what, f"'{number} {unit}' is not a whole microsecond")
        total += -int(size) if "-" in sign else int(size)
        at = part.end()
    if abs(total) > LONG_MAX:
        raise _no_duration(text, what, "it is longer than 292,000 years")
    return total


def _unit_us(unit: str, text: str, what: str) -> int:
    if unit.removesuffix("s") in _NO_LENGTH:
        raise UsageError(
            f"{what} '{text}': a {unit.removesuffix('s')} has no fixed length",
            remedy="give weeks or days, such as '30 days'",
        )
    if unit not in _UNITS:
        raise _no_duration(text, what, f"there is no unit '{unit}'")
    return _UNITS[unit]


def _no_duration(text: object, what: str, why: str) -> UsageError:
    return UsageError(
        f"{what} {text!r} is not a duration: {why}",
        remedy="give numbers with units from microsecond to week, such as '60 s', '10 minutes' or"
        " '1 hour 30 minutes'",
    )
