"""Where Flight's threads and a single-threaded loop meet.

Invariants:

1. A request holds its share of the bounds from `admit` to `release`, whatever becomes of it.
2. A request is answered once: by the loop, or, if the loop has not taken it yet, by `close`. One
   that the loop has taken and not answered is dropped, since nothing may be said of it. What is
   refused so is refused as BUSY: whoever asks again finds the next process, or nobody.
3. Among the requests of one link, the loop gets none after one with a higher place.
"""

import itertools
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from time import monotonic

from rhinoctl.protocol.messages import Message, Refusal, RefusalCode, encode
from rhinoctl.protocol.ports import Envelope
from rhinoctl.protocol.versions import PROTOCOL
from rhinoctl.wire.bounds import WireBounds
from rhinoctl.wire.frames import Head

LINKS_MAX = 4096
"""Links whose last place is remembered; those of instances and agents are far fewer."""

Answer = tuple[bytes, Sequence[memoryview]]
"""An encoded message and its payload."""


@dataclass(eq=False, slots=True)
class Slot:
    """A request between the handler that waits and the loop that answers in its version."""

    handle: int
    message: Message
    payload: Sequence[memoryview]
    version: int = PROTOCOL
    taken: bool = False
    over: bool = False
    answer: Answer | None = None
    answered: threading.Event = field(default_factory=threading.Event)

    def refuse(self) -> None:
        """Answer for a loop that will not take it any more."""
        self.over = True
        self.answer = refusal(self.message, RefusalCode.BUSY, "closing", self.version)
        self.answered.set()


class Inbox:
    """Requests that wait for a loop or for its answer, and news for the loop, within bounds."""

    def __init__(self, bounds: WireBounds) -> None:
        self._bounds = bounds
        self._queue: SimpleQueue[Slot | Envelope] = SimpleQueue()
        self._slots: dict[int, Slot] = {}
        self._handles = itertools.count(1)
        self._places: OrderedDict[str, int] = OrderedDict()
        self._room = threading.Condition()
        self._requests = 0
        self._bytes = 0
        self._released = 0.0
        self._closed = False

    # --- Flight's threads ---------------------------------------------------------------------

    def admit(self, size: int, deadline: float) -> RefusalCode | None:
        """Why a request with so much payload may not be read, or None; waits for room until
        `deadline`."""
        with self._room:
            if self._requests >= self._bounds.inbox_max:
                return RefusalCode.BUSY
            fits = self._room.wait_for(
                lambda: (
                    self._closed
                    or self._bytes == 0
                    or self._bytes + size <= self._bounds.inbox_bytes_max
                ),
                timeout=max(0.0, deadline - monotonic()),
            )
            if self._closed or not fits:
                return RefusalCode.BUSY
            self._requests += 1
            self._bytes += size
            return None

    def release(self, size: int) -> None:
        """Give back what `admit` gave, once the request's answer is sent."""
        with self._room:
            self._released = monotonic()
            self._requests -= 1
            self._bytes -= size
            self._room.notify_all()

    def offer(
        self,
        head: Head,
        message: Message,
        payload: Sequence[memoryview],
        version: int = PROTOCOL,
    ) -> Slot | None:
        """Hand a request to the loop; None if it has been overtaken (invariant 3)."""
        with self._room:
            handle = next(self._handles)
            slot = Slot(handle, message, payload, version)
            if self._closed:
                slot.refuse()
                return slot
            if not self._in_place(head):
                return None
            self._slots[handle] = slot
            self._queue.put(slot)
            return slot

    def _in_place(self, head: Head) -> bool:
        if not head.link:
            return True
        if head.place < self._places.get(head.link, 0):
            return False
        self._places[head.link] = head.place
        self._places.move_to_end(head.link)
        if len(self._places) > LINKS_MAX:
            self._places.popitem(last=False)
        return True

    def wait(self, slot: Slot, deadline: float, gone: Callable[[], bool]) -> Answer | None:
        """The loop's answer; None if it did not come in time or the caller is gone."""
        while not slot.answered.is_set() and monotonic() < deadline and not gone():
            left = max(0.0, deadline - monotonic())
            slot.answered.wait(min(left, self._bounds.cancel_check_s))
        with self._room:
            slot.over = True
            self._slots.pop(slot.handle, None)
            return slot.answer

    def settle(self, timeout_s: float) -> None:
        """Wait until the last answers have been sent and, most likely, read: a server that closes
        a connection on which something still arrives takes its answer back (a TCP reset)."""
        end = monotonic() + timeout_s
        with self._room:
            self._room.wait_for(lambda: self._requests == 0, timeout=timeout_s)
            read = min(end, self._released + self._bounds.linger_s)
            self._room.wait_for(lambda: False, timeout=max(0.0, read - monotonic()))

    # --- the loop -----------------------------------------------------------------------------

    def post(self, envelope: Envelope) -> None:
        """News for the loop; there is never more of it than requests that it sent."""
        self._queue.put(envelope)

    def take(self, timeout_s: float) -> Envelope | None:
        """The next request or news, or None. Requests whose caller has gone are left out."""
        deadline = monotonic() + timeout_s
        while True:
            try:
                item = self._queue.get(timeout=max(0.0, deadline - monotonic()))
            except Empty:
                return None
            if isinstance(item, Envelope):
                return item
            with self._room:
                if not item.over:
                    item.taken = True
                    payload = tuple(item.payload)
                    return Envelope(message=item.message, payload=payload, handle=item.handle)

    def version_of(self, handle: int) -> int | None:
        """The version in which a request is to be answered; None once it is over."""
        with self._room:
            slot = self._slots.get(handle)
            return None if slot is None else slot.version

    def answer(self, handle: int, answer: Answer | None) -> None:
        """Answer a request, or drop it; a second answer, or one too late, is ignored."""
        with self._room:
            slot = self._slots.pop(handle, None)
            if slot is not None:
                slot.answer = answer
                slot.answered.set()

    def close(self) -> None:
        """Refuse what the loop has not taken, drop what it has, admit nothing more."""
        with self._room:
            self._closed = True
            self._room.notify_all()
            for slot in self._slots.values():
                if slot.taken:
                    slot.answered.set()
                else:
                    slot.refuse()
            self._slots.clear()


def refusal(message: Message, code: RefusalCode, detail: str, version: int = PROTOCOL) -> Answer:
    """What the wire itself says to a request that no loop has seen."""
    return encode(Refusal(header=message.header, code=code, detail=detail), version), ()
