"""The Wire port over Arrow Flight, for single-threaded loops."""

import atexit
import logging
from collections.abc import Sequence
from functools import partial
from time import monotonic
from types import TracebackType
from typing import Self

from rhinoctl.protocol.codec import CodecError
from rhinoctl.protocol.messages import Message, encode
from rhinoctl.protocol.ports import Address, Buffer, Envelope, Outcome
from rhinoctl.protocol.versions import PROTOCOLS, Span
from rhinoctl.wire.bounds import DEFAULT_BOUNDS, WireBounds
from rhinoctl.wire.credentials import Credentials
from rhinoctl.wire.exchange import Link
from rhinoctl.wire.frames import views
from rhinoctl.wire.inbox import Inbox
from rhinoctl.wire.lanes import Ledger, Peer
from rhinoctl.wire.server import Listener
from rhinoctl.wire.speech import Speech, Words, words_of

log = logging.getLogger(__name__)

_UNENCODABLE = (CodecError, TypeError, ValueError)


class FlightWire:
    """Messages between processes over Unix sockets, or over TCP with TLS.

    All methods are for one thread, the loop's, but `send` and `reply` may be called from others.
    Buffers of a payload must not be changed after they were given to `send` or `reply`; those of an
    envelope are views of what arrived, and stay as long as they are referred to. Not for a process
    that forks afterwards.

    A request without payload and its answer take 1.0–1.4 ms, against 0.5 ms of Flight alone: the
    rest are the four changes between threads (measured on 2 busy cores over a Unix socket).
    """

    def __init__(
        self,
        listen: Address | None,
        credentials: Credentials,
        *,
        bounds: WireBounds = DEFAULT_BOUNDS,
        protocols: Span = PROTOCOLS,
    ) -> None:
        """Listen, unless `listen` is None. Raises PortInUse, UsageError, UnwritableDirectory."""
        self._credentials = credentials
        self._bounds = bounds
        self._protocols = protocols
        self._inbox = Inbox(bounds)
        self._ledger = Ledger(self._inbox.post, bounds)
        self._peers: dict[Address, Peer] = {}
        self._lanes: dict[Address, int] = {}
        self._closed = False
        self._listener = None
        if listen is not None:
            self._listener = Listener(listen, credentials, self._inbox, bounds, protocols)
        # At its own exit, pyarrow would wait for every unanswered request. What is registered after
        # its server runs before that.
        atexit.register(self.close)

    @property
    def address(self) -> Address:
        """Where others reach this wire, with the port that was chosen; empty if it only sends."""
        return Address("") if self._listener is None else self._listener.address

    def set_lanes(self, to: Address, lanes: int) -> None:
        """How many requests to `to` may be under way at a time (default `bounds.lanes`).

        One lane keeps the order: each request starts once the one before is finished, and one that
        was overtaken because its sender gave it up is dropped by the receiver. With more lanes
        nothing is promised about order. Must come before the first `send` to that address.
        """
        if to in self._peers:
            raise ValueError(f"requests have been sent to {to} already")
        self._lanes[to] = lanes

    def send(
        self, to: Address, message: Message, payload: Sequence[Buffer] = (), *, timeout_s: float
    ) -> int:
        words: Words | None = None
        try:
            words, flat = words_of(message, self._version_at(to)), views(payload)
            why = "closed" if self._closed else ""
        except _UNENCODABLE as fault:
            log.error("unencodable", extra={"kind": type(message).__name__}, exc_info=True)
            flat, why = (), f"cannot be encoded: {fault}"
        request = self._ledger.open(words, flat, timeout_s)
        why = why or self._peer(to).submit(request)
        if why:
            self._ledger.fail(request, Outcome.NOT_DONE, why)
        return request.number

    def reply(self, to: Envelope, message: Message, payload: Sequence[Buffer] = ()) -> None:
        if to.handle is None:
            return
        try:
            version = self._inbox.version_of(to.handle)
            answer = encode(message, version), views(payload)
        except _UNENCODABLE:
            # Not a refusal: that would say that nothing was done.
            log.error("unencodable", extra={"kind": type(message).__name__}, exc_info=True)
            self._inbox.answer(to.handle, None)
        else:
            self._inbox.answer(to.handle, answer)

    def receive(self, timeout_s: float) -> Envelope | None:
        deadline = monotonic() + timeout_s
        while True:
            due = self._ledger.expire()
            until = deadline if due is None else min(due, deadline)
            envelope = self._inbox.take(max(0.0, until - monotonic()))
            if envelope is not None or monotonic() >= deadline:
                return envelope

    def close(self) -> None:
        """Stop listening and sending, within about `bounds.close_s`. Requests that the loop has not
        taken are refused; those that it has not answered, and its own, end as UNKNOWN."""
        self._closed = True
        atexit.unregister(self.close)
        end = monotonic() + self._bounds.close_s
        self._inbox.close()
        threads = [thread for peer in self._peers.values() for thread in peer.stop()]
        if self._listener is not None:
            self._listener.close(end - monotonic())
        for thread in threads:
            thread.join(max(0.0, end - monotonic()))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        fault: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _version_at(self, to: Address) -> int:
        """In which version a peer is known to be spoken to; ours if nothing is known."""
        peer = self._peers.get(to)
        return self._protocols.newest if peer is None else peer.speech.version

    def _peer(self, to: Address) -> Peer:
        peer = self._peers.get(to)
        if peer is None:
            speech = Speech(self._protocols)
            link = partial(Link, to, self._credentials, self._bounds, speech)
            lanes = self._lanes.get(to, self._bounds.lanes)
            peer = Peer(to, link, self._ledger, self._bounds, lanes, speech)
            peer = self._peers.setdefault(to, peer)
        return peer
