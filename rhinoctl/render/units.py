"""Numbers as people read them; the units of `--json` are in the names of its fields."""

from datetime import UTC, datetime

from rhinoctl.protocol.sizes import size as size


def milliseconds(value: float | None) -> str:
    """A duration; ``-`` if it is not known."""
    if value is None:
        return "-"
    if value >= 10_000:
        return f"{value / 1000:.1f} s"
    return f"{value:.0f} ms"


def seconds(value: float | None) -> str:
    """A longer or a guessed duration; ``-`` if it is not known."""
    if value is None:
        return "-"
    return f"{value:.1f} s" if value < 10 else f"{value:.0f} s"


def ago(seconds: float | None) -> str:
    """How long ago something was seen."""
    if seconds is None:
        return "never"
    return f"{seconds:.1f} s ago" if seconds < 10 else f"{seconds:.0f} s ago"


def count(number: float) -> str:
    """A number with its thousands apart."""
    return f"{number:,.0f}".replace(",", " ")


def instant(unix_ms: int) -> str:
    """``2026-11-28 07:30:00.250 UTC``."""
    moment = datetime.fromtimestamp(unix_ms / 1000, UTC)
    return f"{moment:%Y-%m-%d %H:%M:%S}.{unix_ms % 1000:03d} UTC"


def counted(number: int, what: str, many: str = "") -> str:
    """``1 row``, ``2 rows``; `many` where it is not `what` with an s."""
    return f"{count(number)} {what if number == 1 else many or what + 's'}"
