"""Versions of messages: what each has is what it had, and neighbours understand each other."""

import json
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields, is_dataclass, make_dataclass
from enum import Enum
from functools import cache
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rhinoctl.errors import Exit
from rhinoctl.protocol import codec, messages
from rhinoctl.protocol.codec import CodecError
from rhinoctl.protocol.messages import Header, Message, decode, encode
from rhinoctl.protocol.versions import (
    FORMAT,
    FORMATS,
    OLDEST_FORMAT,
    OLDEST_PROTOCOL,
    PROTOCOL,
    PROTOCOLS,
    Span,
    since,
    too_far_apart,
    until,
)
from rhinoctl.state.sqlite import MIGRATIONS
from tests.unit.protocol.drawing import KINDS, NAMES, values_of
from tests.unit.protocol.wording import KEPT, KEPT_ON_DISKS, SAID, VIEWS, reachable, wording

DRAWN = settings(
    max_examples=10,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
NEXT = PROTOCOL + 1

HOW = (
    "docs/protocol/versions.md says how a change is marked. If no release has this version yet:"
    " python -m tests.unit.protocol.wording"
)

# --- the numbers ---------------------------------------------------------------------------------


def test_two_versions_at_the_most_are_understood() -> None:
    for newest, oldest in ((PROTOCOL, OLDEST_PROTOCOL), (FORMAT, OLDEST_FORMAT)):
        assert oldest == max(1, newest - 1)
    assert (PROTOCOLS.newest, PROTOCOLS.oldest) == (PROTOCOL, OLDEST_PROTOCOL)
    assert (FORMATS.newest, FORMATS.oldest) == (FORMAT, OLDEST_FORMAT)


def test_a_store_of_every_format_that_is_read_can_be_migrated() -> None:
    assert sorted(MIGRATIONS) == list(range(OLDEST_FORMAT, FORMAT))


SPANS = st.integers(1, 6).flatmap(
    lambda oldest: st.builds(Span, oldest=st.just(oldest), newest=st.integers(oldest, oldest + 2))
)


@given(one=SPANS, other=SPANS)
def test_both_sides_find_the_newest_version_that_both_speak(one: Span, other: Span) -> None:
    common = [version for version in range(1, 9) if version in one and version in other]
    found = one.shared(other.newest), other.shared(one.newest)
    if common:
        assert found == (max(common), max(common))
    else:
        assert None in found


@pytest.mark.parametrize(("newest", "oldest"), [(1, 2), (0, 0), (1, 0)])
def test_a_span_is_not_empty(newest: int, oldest: int) -> None:
    with pytest.raises(ValueError, match="no versions"):
        Span(newest=newest, oldest=oldest)


@pytest.mark.parametrize("theirs", [1, 4])
def test_who_is_too_far_away_is_told_both_versions_and_what_to_do(theirs: int) -> None:
    fault = too_far_apart("w1", theirs, Span(newest=3, oldest=2))
    assert fault.exit_code is Exit.REFUSED
    assert f"version {theirs}" in fault.message
    assert "2–3" in fault.message
    assert "rhinoctl upgrade" in fault.remedy


# --- what a version is made of -------------------------------------------------------------------


@pytest.mark.parametrize("version", range(OLDEST_PROTOCOL, PROTOCOL + 1))
def test_what_is_said_in_a_version_is_what_it_was(version: int) -> None:
    assert wording(SAID, version) == (KEPT / f"protocol-{version}.txt").read_text("utf-8"), HOW


@pytest.mark.parametrize("version", range(OLDEST_FORMAT, FORMAT + 1))
def test_what_lies_on_disks_in_a_format_is_what_it_was(version: int) -> None:
    kept = (KEPT / f"format-{version}.txt").read_text("utf-8")
    assert wording(KEPT_ON_DISKS, version) == kept, HOW


@pytest.mark.parametrize("kind", reachable((*SAID, *KEPT_ON_DISKS)).values(), ids=str)
def test_what_not_every_version_has_has_a_default(kind: type) -> None:
    assert not [mark.name for mark in marked(kind) if mark.name not in optional(kind)]


def marked(kind: type) -> list[Any]:
    return [f for f in fields(kind) if f.metadata] if is_dataclass(kind) else []


def optional(kind: type) -> set[str]:
    """The fields that a value can be made without."""
    return {
        f.name
        for f in fields(kind)  # type: ignore[arg-type]
        if f.default is not MISSING or f.default_factory is not MISSING
    }


# --- every message and view, with a newer field in it and in all that it is made of --------------


@cache
def renewed_kind(kind: type) -> type:
    """The same kind in the version after ours."""
    novelty = ("novelty", str, field(default="", metadata=since(NEXT)))
    newer = make_dataclass(
        kind.__name__, [novelty], bases=(kind,), frozen=True, slots=True, kw_only=True
    )
    newer.__module__ = kind.__module__
    return newer


def renewed(value: Any, novelty: str) -> Any:
    """The same value in the version after ours, with something new in each part of it."""
    if is_dataclass(value) and not isinstance(value, type):
        parts = {f.name: renewed(getattr(value, f.name), novelty) for f in fields(value)}
        return renewed_kind(type(value))(**parts, novelty=novelty)
    if isinstance(value, Mapping):
        return {key: renewed(item, novelty) for key, item in value.items()}
    if type(value) is tuple:
        return tuple(renewed(item, novelty) for item in value)
    return value


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@DRAWN
@given(data=st.data())
def test_a_newer_message_is_understood_by_the_version_before(
    kind: type[Message], data: st.DataObject
) -> None:
    """N → N−1 → N, and back."""
    ours = data.draw(values_of(kind))
    newer = renewed(ours, data.draw(NAMES))
    assert encode(newer, PROTOCOL) == encode(ours, PROTOCOL) == encode(ours)
    assert decode(encode(newer, PROTOCOL), PROTOCOL) == ours
    with pytest.raises(CodecError, match="novelty"):
        decode(encode(newer, NEXT), PROTOCOL)
    image = json.loads(encode(ours, PROTOCOL))["body"]
    back = codec.from_json(type(newer), image, version=PROTOCOL)
    assert {f.name: getattr(back, f.name) for f in fields(ours)} == {
        f.name: getattr(ours, f.name) for f in fields(ours)
    }
    assert back.novelty == ""
    assert encode(back, PROTOCOL) == encode(ours, PROTOCOL)


@pytest.mark.parametrize("kind", VIEWS, ids=lambda kind: kind.__name__)
@DRAWN
@given(data=st.data())
def test_a_newer_view_is_understood_by_the_version_before(kind: type, data: st.DataObject) -> None:
    ours = data.draw(values_of(kind))
    newer = renewed(ours, data.draw(NAMES))
    old = codec.dumps(ours, version=PROTOCOL)
    assert codec.dumps(newer, version=PROTOCOL) == old == codec.dumps(ours)
    assert codec.loads(kind, old, version=PROTOCOL) == ours
    with pytest.raises(CodecError, match="novelty"):
        codec.loads(kind, codec.dumps(newer, version=NEXT), version=PROTOCOL)
    back = codec.loads(renewed_kind(kind), old, version=PROTOCOL)
    assert back.novelty == ""
    assert codec.dumps(back, version=PROTOCOL) == old


# --- the marks -----------------------------------------------------------------------------------


class Colour(Enum):
    RED = "red"
    PINK = "pink"
    ROSE = "rose"

    __newer__: ClassVar = {"PINK": (2, "RED"), "ROSE": (3, "PINK")}


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """`old` was in version 1 for the last time, `new` came with 2."""

    same: int
    old: int = field(default=7, metadata=until(1))
    new: str = field(default="", metadata=since(2))
    between: int = field(default=0, metadata=since(2) | until(2))
    colour: Colour = Colour.RED


@dataclass(frozen=True, slots=True, kw_only=True)
class Whole:
    part: Part
    parts: tuple[Part, ...] = ()
    by_name: Mapping[str, Part] = field(default_factory=dict)


PART = Part(same=1, old=2, new="new", between=3, colour=Colour.ROSE)
WHOLE = Whole(part=PART, parts=(PART,), by_name={"a": PART})

IMAGES = {
    1: {"same": 1, "old": 2, "colour": "red"},
    2: {"same": 1, "new": "new", "between": 3, "colour": "pink"},
    3: {"same": 1, "new": "new", "colour": "rose"},
    None: {"same": 1, "new": "new", "colour": "rose"},
}


@pytest.mark.parametrize("version", IMAGES)
def test_each_version_is_written_as_it_has_it_to_the_last_part(version: int | None) -> None:
    image = IMAGES[version]
    whole = {"part": image, "parts": [image], "by_name": {"a": image}}
    assert codec.to_json(WHOLE, version=version) == whole
    assert json.loads(codec.dumps(WHOLE, version=version)) == whole
    assert json.loads(codec.dumps({"in": WHOLE}, version=version)) == {"in": whole}


@pytest.mark.parametrize("version", [1, 2, 3])
def test_each_version_is_read_as_it_has_it_and_no_other(version: int) -> None:
    for written, image in IMAGES.items():
        if written in (version, None):
            continue
        with pytest.raises(CodecError):
            codec.from_json(Part, image, version=version)
    again = codec.from_json(Part, IMAGES[version], version=version)
    assert codec.to_json(again, version=version) == IMAGES[version]


def test_what_lies_there_is_read_in_any_version() -> None:
    old = codec.loads(Part, codec.dumps(PART, version=1))
    assert old == Part(same=1, old=2)
    assert codec.from_json(Part, IMAGES[2]) == Part(
        same=1, new="new", between=3, colour=Colour.PINK
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Novel(Message):
    """A kind that came with version 2."""

    SINCE: ClassVar[int] = 2

    text: str = ""


def test_a_newer_kind_is_not_said_to_the_version_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(messages.KINDS, "Novel", Novel)
    novel = Novel(header=Header(cluster="c"), text="x")
    assert decode(encode(novel, 2), 2) == novel
    with pytest.raises(CodecError, match="version 1 has no Novel"):
        encode(novel, 1)
    with pytest.raises(CodecError, match="unknown kind"):
        decode(encode(novel, 2), 1)
