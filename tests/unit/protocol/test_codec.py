"""The codec over every kind of message, with values made from the annotations alone."""

import json
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rhinoctl.protocol import codec
from rhinoctl.protocol.codec import CodecError
from rhinoctl.protocol.messages import Done, Header, Message, decode, encode
from tests.unit.protocol.drawing import KINDS, values_of


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_what_is_encoded_is_decoded(kind: type[Message], data: st.DataObject) -> None:
    message = data.draw(values_of(kind))
    again = decode(encode(message))
    assert type(again) is kind
    assert again == message


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_what_is_not_promised_is_refused(kind: type[Message], data: st.DataObject) -> None:
    image = json.loads(encode(data.draw(values_of(kind))))
    body: dict[str, Any] = image["body"]
    strange = data.draw(st.sampled_from(["no_such_field", "Header", ""]))
    breaches: list[dict[str, Any]] = [
        {"kind": kind.__name__ + "x", "body": body},
        {"kind": kind.__name__, "body": {**body, strange: 1}},
        {"kind": kind.__name__, "body": {k: v for k, v in body.items() if k != "header"}},
        {"kind": kind.__name__, "body": [body]},
        {"body": body},
    ]
    for breach in breaches:
        with pytest.raises(CodecError):
            decode(json.dumps(breach).encode())


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_a_value_of_another_type_is_refused(kind: type[Message], data: st.DataObject) -> None:
    image = json.loads(encode(data.draw(values_of(kind))))
    name, hint = data.draw(
        st.sampled_from(sorted(typing.get_type_hints(kind).items(), key=lambda hint: hint[0]))
    )
    image["body"][name] = 7 if is_text(hint) else "fits text alone"
    with pytest.raises(CodecError):
        decode(json.dumps(image).encode())


def is_text(annotation: Any) -> bool:
    return bool(getattr(annotation, "__supertype__", annotation) is str)


@pytest.mark.parametrize(
    "data",
    [b"", b"nothing", b"[]", b"1", b"null", b"{}", b'{"kind": "Done"}', b"\xff"],
)
def test_bytes_that_are_no_message(data: bytes) -> None:
    with pytest.raises(CodecError):
        decode(data)


class Colour(Enum):
    RED = "red"


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """One field of each kind that the codec takes."""

    whole: int = 0
    real: float = 0.0
    text: str = ""
    flag: bool = False
    colour: Colour = Colour.RED
    pair: tuple[int, str] = (0, "")
    table: Mapping[int, float] | None = None


@pytest.mark.parametrize(
    "body",
    [
        {"whole": 1.5},
        {"whole": True},
        {"whole": None},
        {"real": "1"},
        {"text": 1},
        {"flag": 1},
        {"colour": "green"},
        {"colour": ["red"]},
        {"pair": [1]},
        {"pair": [1, "a", 2]},
        {"pair": "ab"},
        {"table": {"one": 1.0}},
        {"table": {"1": "one"}},
        {"table": [1]},
    ],
)
def test_a_part_of_another_type_is_refused(body: dict[str, Any]) -> None:
    with pytest.raises(CodecError):
        codec.from_json(Parts, body)


def test_a_whole_number_serves_as_a_real_one() -> None:
    assert codec.from_json(Parts, {"real": 1}) == Parts(real=1.0)


@given(st.frozensets(st.integers() | st.sampled_from([0, 8, 16])) | st.frozensets(st.text()))
def test_equal_sets_are_written_in_one_way(ours: frozenset[int] | frozenset[str]) -> None:
    """0 and 8 fall into one place of a set, and are iterated as they came."""
    members = list(ours)
    assert codec.dumps(frozenset(members)) == codec.dumps(frozenset(reversed(members)))
    assert codec.dumps(ours) == codec.dumps(sorted(ours))  # type: ignore[type-var]


@pytest.mark.parametrize(
    "value", [object(), {"a": {1, 2}}, b"bytes", float("nan"), 1j, Exception()]
)
def test_what_is_no_value_is_not_encoded(value: object) -> None:
    with pytest.raises(CodecError):
        codec.dumps({"value": value})
    with pytest.raises(CodecError):
        encode(Done(header=Header(cluster=value)))  # type: ignore[arg-type]


@given(st.integers(0, 10**9), st.floats(0, 1, exclude_max=True), st.integers(0, 7))
def test_a_checked_value_of_which_a_bit_has_changed_is_refused(n: int, at: float, bit: int) -> None:
    """A digit that has become another one is still JSON."""
    data = bytearray(codec.dumps_checked({"session": n}))
    assert codec.loads_checked(dict[str, int], data) == {"session": n}
    data[int(at * len(data))] ^= 1 << bit
    with pytest.raises(CodecError):
        codec.loads_checked(dict[str, int], data)


def test_a_value_without_a_checksum_is_read_as_before() -> None:
    assert codec.loads_checked(dict[str, int], codec.dumps({"session": 7})) == {"session": 7}
