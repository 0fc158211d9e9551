"""One request at a time, for short-lived callers such as Spark tasks.

Connections are kept for the process, since a Python worker of Spark runs task after task. A process
may import this and fork, as Spark's daemon does; once it has called, its forks cannot (`forks`).
"""

import os
import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

from rhinoctl.protocol.codec import CodecError
from rhinoctl.protocol.messages import Message
from rhinoctl.protocol.ports import Address, Buffer, Outcome
from rhinoctl.protocol.versions import PROTOCOLS, Span
from rhinoctl.wire import frames
from rhinoctl.wire.bounds import DEFAULT_BOUNDS, WireBounds
from rhinoctl.wire.credentials import Credentials
from rhinoctl.wire.exchange import Answer, CallFailed, Link
from rhinoctl.wire.speech import Speech, words_of

__all__ = ["CallFailed", "call"]

FREE_LINKS_MAX = 32
"""Connections kept open: a task pushes to each worker of a job in turn."""


SPEECHES_MAX = 1024
"""Addresses of which the version is remembered; those of a cluster's workers are fewer."""


@dataclass(eq=False)
class _Links:
    """The free connections of one process, and what is known of the peers' versions."""

    pid: int = field(default_factory=os.getpid)
    lock: threading.Lock = field(default_factory=threading.Lock)
    free: list[tuple[Address, Credentials, Link]] = field(default_factory=list)
    speeches: OrderedDict[tuple[Address, Span], Speech] = field(default_factory=OrderedDict)

    def speech_with(self, address: Address, ours: Span) -> Speech:
        with self.lock:
            speech = self.speeches.setdefault((address, ours), Speech(ours))
            self.speeches.move_to_end((address, ours))
            if len(self.speeches) > SPEECHES_MAX:
                self.speeches.popitem(last=False)
        return speech

    def take(self, address: Address, credentials: Credentials, speech: Speech) -> Link | None:
        with self.lock:
            for at, (where, what, link) in enumerate(self.free):
                if where == address and what == credentials and link.speech is speech:
                    del self.free[at]
                    return link
        return None

    def give(self, address: Address, credentials: Credentials, link: Link) -> None:
        with self.lock:
            self.free.append((address, credentials, link))
            surplus = self.free.pop(0)[2] if len(self.free) > FREE_LINKS_MAX else None
        if surplus is not None:
            surplus.close()


_links = _Links()
_inherited: list[_Links] = []  # the parent's: letting them go would hang


def call(
    address: Address,
    message: Message,
    payload: Sequence[Buffer] = (),
    *,
    credentials: Credentials,
    timeout_s: float,
    bounds: WireBounds = DEFAULT_BOUNDS,
    protocols: Span = PROTOCOLS,
) -> Answer:
    """Send a request and return its answer, a message and its payload. Raises CallFailed.

    A `Refusal` is an answer like any other.
    """
    links = _own_links()
    speech = links.speech_with(address, protocols)
    try:
        words, flat = words_of(message, speech.version), frames.views(payload)
    except (CodecError, TypeError, ValueError) as fault:
        raise CallFailed(Outcome.NOT_DONE, f"cannot be encoded: {fault}") from fault
    link = links.take(address, credentials, speech) or Link(address, credentials, bounds, speech)
    head = frames.head_for(flat, timeout_s=timeout_s)
    answer = link.exchange(head, words, flat, timeout_s=timeout_s)
    links.give(address, credentials, link)
    return answer


def _own_links() -> _Links:
    global _links
    if _links.pid != os.getpid():
        _inherited.append(_links)
        _links = _Links()
    return _links
