"""The calling side of one exchange, over one connection.

What is known of a call that failed (style, rule 7): NOT_DONE is said only where the request
certainly never reached a loop, i.e. nothing listens, the connection was never made (which a
handshake of TLS is a part of), or the token or the version was refused. Everything else is UNKNOWN.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import islice
from time import monotonic
from typing import Any

import pyarrow as pa
from pyarrow import flight

from rhinoctl.protocol.codec import CodecError
from rhinoctl.protocol.messages import Message, decode
from rhinoctl.protocol.ports import Address, Outcome
from rhinoctl.wire import forks, frames
from rhinoctl.wire.bounds import WireBounds
from rhinoctl.wire.credentials import Credentials
from rhinoctl.wire.speech import Speech, Words, unspeakable

Answer = tuple[Message, tuple[memoryview, ...]]

NEVER_CONNECTED = ("failed to connect to all addresses", "DNS resolution failed")
"""How gRPC says that it had no connection to send a call over. It has no code of its own for that
(the contract tests would notice another wording); a broken connection reads otherwise."""

TLS = "grpc+tls://"

HANDSHAKES = {
    "certificate verify failed: certificate has expired": "its certificate has expired",
    "certificate verify failed: certificate is not yet valid": (
        "its certificate does not hold yet: the clocks differ"
    ),
    "certificate verify failed: unsuitable certificate purpose": (
        "its certificate is that of a person, not of a host"
    ),
    "certificate verify failed": "it shows a certificate of another cluster",
    "is not in peer certificate": "its certificate is that of another host",
    "wrong version number": "it does not speak TLS",
    "Socket closed": (
        "it ended the handshake, as one that refuses our certificate does: it may be of another"
        " cluster, or have expired"
    ),
}
"""What gRPC says of a handshake that failed, and what that means; the first that fits."""

SAID_MAX = 2
"""A request is said so often: once more if its version is refused."""

_FAULTS = (pa.ArrowException, OSError, CodecError)


class CallFailed(Exception):
    """A call without an answer: what is known of it, and why for people."""

    def __init__(self, outcome: Outcome, detail: str) -> None:
        super().__init__(detail)
        self.outcome = outcome
        self.detail = detail


class Link:
    """One connection to one address, for one call at a time; made anew after a failure.

    It is dropped rather than left to gRPC, whose back-off would keep a restarted peer waiting.
    """

    def __init__(
        self, address: Address, credentials: Credentials, bounds: WireBounds, speech: Speech
    ) -> None:
        self.speech = speech
        self._address = address
        self._credentials = credentials
        self._bounds = bounds
        self._client: Any = None
        self._reader: Any = None
        self._cancelled = False

    def exchange(
        self, head: frames.Head, words: Words, payload: Sequence[memoryview], *, timeout_s: float
    ) -> Answer:
        """Send a request and wait for its answer; raises CallFailed.

        It is sent in the version that the peer is known to speak, or, if that has not its kind, in
        the first that has; and once more if that is refused. A peer with which no version is shared
        does answer: a `Refusal` is returned that says so.
        """
        end = monotonic() + timeout_s
        version = max(self.speech.version, words.since)
        for _ in range(SAID_MAX):
            left_s = max(0.001, end - monotonic())
            spoken, answer = self._said(head, words, payload, version, left_s)
            shared = self.speech.heard(spoken.newest)
            if answer is not None:
                return answer
            if shared is None or shared == version or shared < words.since:
                return unspeakable(self._address, words, spoken.newest, self.speech.ours), ()
            version = shared
        raise CallFailed(Outcome.NOT_DONE, "its version changed while it was asked")

    def _said(
        self,
        head: frames.Head,
        words: Words,
        payload: Sequence[memoryview],
        version: int,
        timeout_s: float,
    ) -> tuple[frames.Spoken, Answer | None]:
        """Send a request in a version; the answer is None if the version was refused."""
        try:
            message = words.written_in(version)
        except (CodecError, TypeError, ValueError) as fault:
            raise CallFailed(Outcome.NOT_DONE, f"cannot be encoded: {fault}") from fault
        spoken = frames.Spoken(version, self.speech.ours.newest)
        try:
            return self._exchange(
                frames.pack(head, message, payload, spoken), head, payload, timeout_s
            )
        except _FAULTS as fault:
            self.close()
            raise CallFailed(_outcome_of(fault), self._text_of(fault)) from fault

    def cancel(self) -> None:
        """End the call under way and any later one, from another thread."""
        self._cancelled = True
        reader = self._reader
        if reader is not None:
            reader.cancel()

    def close(self) -> None:
        """Drop the connection; the next call makes another."""
        client, self._client = self._client, None
        if client is not None:
            with suppress(*_FAULTS):
                client.close()

    def _text_of(self, fault: Exception) -> str:
        """The first line, without what gRPC says again for its own developers; of a handshake that
        failed, what it means comes first."""
        text = str(fault).partition(". gRPC client debug context")[0]
        text = text.partition("\n")[0][:300] or type(fault).__name__
        if self._address.startswith(TLS) and _outcome_of(fault) is Outcome.NOT_DONE:
            means = (meaning for said, meaning in HANDSHAKES.items() if said in text)
            text = ": ".join([*islice(means, 1), text])
        return text

    def _exchange(
        self, command: bytes, head: frames.Head, payload: Sequence[memoryview], timeout_s: float
    ) -> tuple[frames.Spoken, Answer | None]:
        if self._client is None:
            if forks.used_before_fork():
                raise CallFailed(Outcome.NOT_DONE, forks.REFUSAL)
            self._client = flight.FlightClient(
                self._address,
                generic_options=_options(self._bounds),
                **_client_tls(self._address, self._credentials),
            )
        bearer = b"Bearer " + self._credentials.token.reveal().encode()
        options = flight.FlightCallOptions(timeout=timeout_s, headers=[(b"authorization", bearer)])
        descriptor = flight.FlightDescriptor.for_command(command)
        writer, self._reader = self._client.do_exchange(descriptor, options)
        if self._cancelled:
            self._reader.cancel()
        try:
            _write(writer, frames.batches(head, payload))
            answer = _read(self._reader)
        except _FAULTS as fault:
            if isinstance(fault, CodecError):
                self._reader.cancel()
            raise _reason(writer, fault) from fault
        finally:
            self._reader = None
        writer.close()
        return answer


def _client_tls(address: Address, credentials: Credentials) -> dict[str, Any]:
    """The peer must have a certificate of this cluster for the host of its address."""
    if not address.startswith(TLS):
        return {}
    tls = credentials.tls
    if tls is None:
        raise CallFailed(Outcome.NOT_DONE, f"{address} needs certificates, and there are none here")
    return {
        "tls_root_certs": tls.ca,
        "cert_chain": tls.certificate,
        "private_key": tls.key.reveal(),
    }


def _options(bounds: WireBounds) -> list[tuple[str, int]]:
    connect_ms, alive_ms = round(bounds.connect_s * 1000), round(bounds.keep_alive_s * 1000)
    return [
        ("grpc.min_reconnect_backoff_ms", connect_ms),  # the deadline of one try to connect
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 200),
        ("grpc.keepalive_time_ms", alive_ms),
        ("grpc.keepalive_timeout_ms", alive_ms),
        ("grpc.http2.ping_timeout_ms", alive_ms),  # without it, the line above does nothing
        ("grpc.use_local_subchannel_pool", 1),  # a connection and a back-off of its own
        ("grpc.enable_http_proxy", 0),  # workers are not reached through a proxy
    ]


def _write(writer: Any, batches: Iterator[pa.RecordBatch]) -> None:
    first = next(batches, None)
    if first is None:
        writer.write_metadata(pa.py_buffer(b""))
    else:
        writer.begin(frames.SCHEMA)
        writer.write_batch(first)
        for batch in batches:
            writer.write_batch(batch)
    writer.done_writing()


def _read(reader: Any) -> tuple[frames.Spoken, Answer | None]:
    spoken: frames.Spoken | None = None
    message: Message | None = None
    gathering = frames.Gathering(())
    for chunk in frames.chunks(reader):
        if spoken is None and chunk.app_metadata is not None:
            spoken = frames.spoken_in(chunk.app_metadata)
            if not spoken.is_refusal:
                _, body, gathering = frames.unpack(chunk.app_metadata)
                message = decode(body, spoken.version)
        gathering.add(frames.bytes_of(chunk.data))
    if spoken is None:
        raise CodecError("the peer ended the call without an answer")
    return spoken, None if message is None else (message, gathering.finish())


def _reason(writer: Any, fault: Exception) -> Exception:
    """Why a stream broke: only its closing says, e.g., that the token was refused."""
    try:
        writer.close()
    except _FAULTS as reason:
        return reason if isinstance(reason, flight.FlightError) else fault
    return fault


def _outcome_of(fault: Exception) -> Outcome:
    match fault:
        case flight.FlightUnauthenticatedError():
            return Outcome.NOT_DONE
        case flight.FlightUnavailableError() if any(said in str(fault) for said in NEVER_CONNECTED):
            return Outcome.NOT_DONE
        case _:
            return Outcome.UNKNOWN
