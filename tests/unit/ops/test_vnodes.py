"""Lists of vnodes: what is read, what is refused, and that writing and reading agree."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rhinoctl.errors import UsageError
from rhinoctl.ids import KEY_GROUPS, Vnode
from rhinoctl.ops.vnodes import format_vnodes, parse_vnodes


@pytest.mark.parametrize(
    ("text", "vnodes"),
    [
        ("0", (0,)),
        ("3,7-9", (3, 7, 8, 9)),
        ("7-9,3", (3, 7, 8, 9)),
        (" 3 , 7 - 9 ", (3, 7, 8, 9)),
        ("5-5", (5,)),
        ("007", (7,)),
        (f"{KEY_GROUPS - 1}", (KEY_GROUPS - 1,)),
    ],
)
def test_read(text: str, vnodes: tuple[int, ...]) -> None:
    assert parse_vnodes(text) == vnodes


@pytest.mark.parametrize(
    "text",
    [
        *("", " ", ",", "3,", ",3", "a", "3-", "-3", "3--5", "3-5-7", "3;4", "1.5", "+3", "٣"),
        *("9-7", "3,3", "3-5,4", "0-32768", "32768", "99999999999999999999"),
    ],
)
def test_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_vnodes(text)


@given(st.frozensets(st.integers(0, KEY_GROUPS - 1), min_size=1, max_size=50))
def test_what_is_written_is_read(vnodes: frozenset[int]) -> None:
    assert parse_vnodes(format_vnodes(map(Vnode, vnodes))) == tuple(sorted(vnodes))


def test_ranges_are_as_long_as_can_be() -> None:
    assert format_vnodes(map(Vnode, (9, 3, 8, 7))) == "3,7-9"
    assert format_vnodes(()) == "-"
