"""Numbers as people read them."""

import pytest

from rhinoctl.render import units


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (99_900, "99.9 kB"),
        (123_456, "123 kB"),
        (12_500_000, "12.5 MB"),
        (5 * 10**10, "50.0 GB"),
        (3 * 10**15, "3000.0 TB"),
    ],
)
def test_size(count: int, text: str) -> None:
    assert units.size(count) == text


@pytest.mark.parametrize(
    ("ms", "text"), [(None, "-"), (0.4, "0 ms"), (999.6, "1000 ms"), (12_345.0, "12.3 s")]
)
def test_milliseconds(ms: float | None, text: str) -> None:
    assert units.milliseconds(ms) == text


def test_other_words() -> None:
    assert (units.ago(None), units.ago(0.44), units.ago(90.0)) == ("never", "0.4 s ago", "90 s ago")
    assert (units.counted(1, "row"), units.counted(97_433, "row")) == ("1 row", "97 433 rows")
