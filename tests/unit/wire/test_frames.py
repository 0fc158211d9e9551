"""Heads and batches: whole, in order, and refused when they are not what was announced."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rhinoctl.protocol.codec import CodecError
from rhinoctl.wire import frames

LENGTHS = st.one_of(
    st.integers(0, 100),
    st.sampled_from([frames.INLINE_BYTES_MAX, frames.JOIN_BYTES_MAX, frames.JOIN_BYTES_MAX + 1]),
)


def filled(lengths: list[int]) -> tuple[memoryview, ...]:
    return frames.views([bytes([n % 251]) * length for n, length in enumerate(lengths)])


@settings(deadline=None)
@given(lengths=st.lists(LENGTHS, max_size=40), message=st.binary(max_size=50))
def test_what_is_packed_is_gathered(lengths: list[int], message: bytes) -> None:
    payload = filled(lengths)
    head = frames.head_for(payload, timeout_s=1.5, link="a", place=7)
    found, body, gathering = frames.unpack(frames.pack(head, message, payload))
    for batch in frames.batches(head, payload):
        gathering.add(frames.bytes_of(batch))
    assert (found, bytes(body)) == (head, message)
    assert gathering.finish() == payload


def test_long_buffers_are_not_copied() -> None:
    data = bytearray(b"x" * (1 << 20))
    payload = frames.views([data])
    (batch,) = frames.batches(frames.head_for(payload), payload)
    arrived = frames.bytes_of(batch)
    data[5] = ord("y")
    assert arrived[5] == ord("y")


def test_short_buffers_are_joined() -> None:
    payload = filled([10_000] * 1000)
    batches = list(frames.batches(frames.head_for(payload), payload))
    assert len(batches) == 3
    assert max(batch.num_rows for batch in batches) <= frames.BATCH_BYTES


@pytest.mark.parametrize("cut", [0, 3, 11, 12, 20, 40])
def test_a_head_that_was_cut(cut: int) -> None:
    data = frames.pack(frames.head_for(()), b"a message", ())
    with pytest.raises(CodecError):
        frames.unpack(data[:cut])


def test_another_version() -> None:
    data = frames.pack(frames.head_for(()), b"a message", ())
    with pytest.raises(CodecError):
        frames.unpack(b"rw9\n" + data[4:])


@pytest.mark.parametrize("size", [-1, 1 << 62])
def test_a_size_out_of_bounds(size: int) -> None:
    with pytest.raises(ValueError, match="bounds"):
        frames.Head(sizes=(size,), inline=False)


@pytest.mark.parametrize("pieces", [[b"abc"], [b"ab", b"c"], [b"abcd", b"e", b"f"], [b"abcdef"]])
def test_payload_that_was_not_announced(pieces: list[bytes]) -> None:
    gathering = frames.Gathering([2, 2, 0, 1])
    with pytest.raises(CodecError):  # noqa: PT012 - either step may notice
        for piece in pieces:
            gathering.add(memoryview(piece))
        gathering.finish()
