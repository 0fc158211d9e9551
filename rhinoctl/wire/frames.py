"""Messages and payload as Flight carries them.

All that is sent begins with 16 bytes that no version changes: ``rw2`` and a line feed, the version
in which the rest is written and the newest that its sender speaks (2 bytes each, the lowest first),
and the sizes of head and message (4 bytes each). A version of 0, with nothing after the 16 bytes,
is an answer: the request was refused unread, for its version (docs/protocol/versions.md).

A call is one DoExchange in each direction: the *head* (the descriptor's command of a request, the
metadata of an answer) has the sizes of the payload's buffers, the message, and the payload itself
while that is small; larger payload follows as record batches of one uint8 column. Long buffers
travel alone and are neither copied by the sender nor joined by the receiver, short ones are joined
by the megabyte.

Why DoExchange for everything: it authenticates before it reads a body, carries bulk both ways, and
costs no more. Measured over a Unix socket (2 cores, median of a request with an empty answer):

=========  ===========  ===========  ===========
payload    DoAction     DoPut        DoExchange
=========  ===========  ===========  ===========
0 B        0.47 ms      0.50 ms      0.43 ms
100 kB     0.68 ms      0.68 ms      0.72 ms
10 MB      44 ms        10 ms        10 ms
64 MB      337 ms       115 ms       109 ms (57 ms as sixteen buffers of 4 MB)
=========  ===========  ===========  ===========

DoAction copies its body four times and would read it before it asks for the token.
"""

import struct
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa

from rhinoctl.limits import SLICE_BYTES_MAX
from rhinoctl.protocol import codec
from rhinoctl.protocol.codec import CodecError
from rhinoctl.protocol.ports import Buffer
from rhinoctl.protocol.versions import PROTOCOL

SCHEMA = pa.schema([("bytes", pa.uint8())])

INLINE_BYTES_MAX = 32 << 10
"""Payload up to this goes into the head: one message of gRPC instead of three."""

JOIN_BYTES_MAX = 256 << 10
"""Buffers up to this are joined: a copy is cheaper than a message of gRPC (0.1 ms)."""

BATCH_BYTES = 4 << 20
"""Joined up to this: gRPC is fastest there, larger messages cost fresh memory."""

_START = struct.Struct("<4sHHII")
_MAGIC = b"rw2\n"
_REFUSED = 0


class Spoken(NamedTuple):
    """The version in which something is written, and the newest that its sender speaks."""

    version: int
    newest: int

    @property
    def is_refusal(self) -> bool:
        """Whether it says only that the request was refused for its version."""
        return self.version == _REFUSED


OURS = Spoken(PROTOCOL, PROTOCOL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """What a receiver must know before it reads the payload.

    `timeout_ms` is what is left of the caller's patience. `link` and `place` are given by callers
    that need order: among the requests of one link a lower place never follows a higher one.
    """

    sizes: tuple[int, ...]
    inline: bool
    timeout_ms: int = 0
    link: str = ""
    place: int = 0

    def __post_init__(self) -> None:
        if any(not 0 <= size <= SLICE_BYTES_MAX for size in self.sizes):
            raise ValueError("a size is out of bounds")

    @property
    def total(self) -> int:
        return sum(self.sizes)


def views(payload: Sequence[Buffer]) -> tuple[memoryview, ...]:
    """The buffers as flat views of bytes; raises CodecError for one that is too long or strided."""
    flat = []
    for buffer in payload:
        view = memoryview(buffer)
        if view.nbytes > SLICE_BYTES_MAX:
            raise CodecError(f"a buffer of {view.nbytes} bytes, at most {SLICE_BYTES_MAX}")
        if not view.c_contiguous:
            raise CodecError("a buffer with gaps")
        flat.append(view.cast("B") if view.nbytes else memoryview(b""))
    return tuple(flat)


def head_for(
    payload: Sequence[memoryview], *, timeout_s: float = 0.0, link: str = "", place: int = 0
) -> Head:
    """The head of a message with this payload."""
    sizes = tuple(len(view) for view in payload)
    inline = sum(sizes) <= INLINE_BYTES_MAX
    timeout_ms = max(1, round(timeout_s * 1000))
    return Head(sizes=sizes, inline=inline, timeout_ms=timeout_ms, link=link, place=place)


def pack(head: Head, message: bytes, payload: Sequence[memoryview], spoken: Spoken = OURS) -> bytes:
    """Head, message and inline payload as bytes. The message must be written in that version."""
    text = codec.dumps(head, version=spoken.version)
    start = _START.pack(_MAGIC, *spoken, len(text), len(message))
    return b"".join((start, text, message, *(payload if head.inline else ())))


def pack_refusal(newest: int) -> bytes:
    """What is answered to a request in a version that is not spoken here, to be read by any."""
    return _START.pack(_MAGIC, _REFUSED, newest, 0, 0)


def spoken_in(data: Buffer) -> Spoken:
    """In which version `data` is written; raises CodecError if it is none of ours."""
    view = memoryview(data).cast("B")
    if len(view) < _START.size:
        raise CodecError("not a head: too short")
    magic, version, newest, _, _ = _START.unpack_from(view)
    if magic != _MAGIC:
        raise CodecError("not a head of rhinoctl's")
    return Spoken(version, newest)


def unpack(data: Buffer) -> tuple[Head, memoryview, "Gathering"]:
    """Head, message bytes, and the payload as far as it is inline; raises CodecError. The version
    must be one that is spoken here (`spoken_in`)."""
    version = spoken_in(data).version
    view = memoryview(data).cast("B")
    *_, text_size, message_size = _START.unpack_from(view)
    at = _START.size + text_size
    if at + message_size > len(view):
        raise CodecError("not a head: it was cut")
    head: Head = codec.loads(Head, view[_START.size : at], version=version)
    gathering = Gathering(head.sizes)
    gathering.add(view[at + message_size :])
    return head, view[at : at + message_size], gathering


def batches(head: Head, payload: Sequence[memoryview]) -> Iterator[pa.RecordBatch]:
    """The record batches that follow a head; none if the payload is inline."""
    if head.inline:
        return
    short: list[memoryview] = []
    size = 0
    for view in payload:
        long = len(view) > JOIN_BYTES_MAX
        if short and (long or size + len(view) > BATCH_BYTES):
            yield _batch(b"".join(short))
            short, size = [], 0
        if long:
            yield _batch(view)
        elif view:
            short.append(view)
            size += len(view)
    if short:
        yield _batch(b"".join(short))


def _batch(data: Buffer) -> pa.RecordBatch:
    column = pa.Array.from_buffers(pa.uint8(), len(data), [None, pa.py_buffer(data)])
    return pa.RecordBatch.from_arrays([column], schema=SCHEMA)


def chunks(reader: Any) -> Iterator[Any]:
    """What a Flight stream brings, to its end; Flight's own iterator skips bare metadata."""
    with suppress(StopIteration):
        while True:
            yield reader.read_chunk()


def bytes_of(batch: pa.RecordBatch | None) -> memoryview:
    """The bytes that a record batch carries; raises CodecError."""
    if batch is None:
        return memoryview(b"")
    if batch.schema != SCHEMA:
        raise CodecError(f"a batch of another schema: {batch.schema}")
    column = batch.column(0)
    buffer = column.buffers()[1]
    if buffer is None or column.null_count:
        return memoryview(b"")
    return memoryview(buffer).cast("B")[column.offset : column.offset + len(column)]


class Gathering:
    """Cuts arriving bytes into buffers of announced sizes, without copying."""

    def __init__(self, sizes: Sequence[int]) -> None:
        self._sizes = sizes
        self._found: list[memoryview] = []

    def add(self, data: memoryview) -> None:
        """Take whole buffers from `data`; raises CodecError if it ends within one."""
        at = 0
        while at < len(data):
            if len(self._found) == len(self._sizes):
                raise CodecError("more payload than announced")
            size = self._sizes[len(self._found)]
            if at + size > len(data):
                raise CodecError("a piece of payload ends within a buffer")
            self._found.append(data[at : at + size])
            at += size

    def finish(self) -> tuple[memoryview, ...]:
        """All buffers; raises CodecError if some did not come."""
        rest = self._sizes[len(self._found) :]
        if any(rest):
            raise CodecError("less payload than announced")
        return (*self._found, *(memoryview(b"") for _ in rest))
