"""The sending side: requests on their way, and the threads that carry them.

Invariants:

1. A request is finished once, by its lane or by its deadline; the first finish is the one that
   counts, and brings the loop exactly one envelope.
2. A request that no lane has started was never sent: its deadline finishes it as NOT_DONE.
3. With one lane, requests to a peer start in the order in which they were sent, each after the one
   before is finished. With more, nothing is promised.
"""

import heapq
import itertools
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic
from uuid import uuid4

from rhinoctl.protocol.ports import Address, Envelope, Outcome
from rhinoctl.wire import frames
from rhinoctl.wire.bounds import WireBounds
from rhinoctl.wire.exchange import CallFailed, Link
from rhinoctl.wire.speech import Speech, Words


@dataclass(eq=False, slots=True)
class Request:
    """A request on its way; without `words` it could not be encoded, and is not sent."""

    number: int
    words: Words | None
    payload: tuple[memoryview, ...]
    deadline: float
    place: int = 0
    started: bool = False

    @property
    def size(self) -> int:
        return sum(map(len, self.payload))


class Ledger:
    """Which requests are unfinished, and until when (invariants 1 and 2)."""

    def __init__(self, post: Callable[[Envelope], None], bounds: WireBounds) -> None:
        self._post = post
        self._overdue_s = bounds.overdue_s
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        self._open: dict[int, Request] = {}
        self._due: list[tuple[float, int]] = []

    def open(
        self, words: Words | None, payload: tuple[memoryview, ...], timeout_s: float
    ) -> Request:
        """A new request with a number of its own."""
        with self._lock:
            number = next(self._numbers)
            request = Request(number, words, payload, monotonic() + timeout_s)
            self._open[number] = request
            heapq.heappush(self._due, (request.deadline, number))
            if len(self._due) > 2 * len(self._open) + 64:
                self._due = [due for due in self._due if due[1] in self._open]
                heapq.heapify(self._due)
            return request

    def start(self, request: Request) -> bool:
        """Whether a lane may send the request: False if its deadline came first."""
        with self._lock:
            if request.number not in self._open or monotonic() >= request.deadline:
                return False
            request.started = True
            return True

    def finish(self, request: Request, envelope: Envelope) -> None:
        """Bring the loop the request's envelope, unless it had one."""
        with self._lock:
            if self._open.pop(request.number, None) is not None:
                self._post(envelope)

    def fail(self, request: Request, outcome: Outcome, detail: str) -> None:
        """Finish a request without an answer."""
        number = request.number
        self.finish(request, Envelope(message=None, request=number, outcome=outcome, detail=detail))

    def expire(self) -> float | None:
        """Finish what is due, and return when the next is.

        A request that a lane carries is left to the transport's own deadline for a while.
        """
        while True:
            with self._lock:
                while self._due and self._due[0][1] not in self._open:
                    heapq.heappop(self._due)
                if not self._due or self._due[0][0] > monotonic():
                    return self._due[0][0] if self._due else None
                due, number = heapq.heappop(self._due)
                request = self._open[number]
                if request.started and due == request.deadline:
                    heapq.heappush(self._due, (due + self._overdue_s, number))
                    continue
            if request.started:
                self.fail(request, Outcome.UNKNOWN, "not answered in time")
            else:
                self.fail(request, Outcome.NOT_DONE, "not sent in time")


class Peer:
    """The queue and the lanes of one address. A lane is a thread with a connection of its own,
    started when a request would have to wait, ended when there was nothing to do for long."""

    def __init__(
        self,
        address: Address,
        link: Callable[[], Link],
        ledger: Ledger,
        bounds: WireBounds,
        lanes: int,
        speech: Speech,
    ) -> None:
        self.speech = speech
        self._address = address
        self._link = link
        self._ledger = ledger
        self._bounds = bounds
        self._lanes_max = lanes
        self._name = uuid4().hex if lanes == 1 else ""
        self._places = itertools.count(1)
        self._wake = threading.Condition()
        self._queue: deque[Request] = deque()
        self._bytes = 0
        self._idle = 0
        self._lanes: dict[threading.Thread, Link] = {}
        self._closed = False

    def submit(self, request: Request) -> str:
        """Queue a request. Returns why that cannot be, or nothing."""
        with self._wake:
            if self._closed:
                return "closing"
            full = self._bytes + request.size > self._bounds.queued_bytes_max
            if len(self._queue) >= self._bounds.queued_max or (self._queue and full):
                return "queue full"
            request.place = next(self._places)
            self._queue.append(request)
            self._bytes += request.size
            if len(self._queue) > self._idle and len(self._lanes) < self._lanes_max:
                self._add_lane()
            else:
                self._wake.notify()
            return ""

    def _add_lane(self) -> None:
        link = self._link()
        thread = threading.Thread(
            target=self._run, args=(link,), name=f"wire-lane {self._address}", daemon=True
        )
        self._lanes[thread] = link
        thread.start()

    def _run(self, link: Link) -> None:
        while (request := self._next()) is not None:
            if self._ledger.start(request):
                self._ledger.finish(request, self._carry(link, request))
            else:
                self._ledger.fail(request, Outcome.NOT_DONE, "not sent in time")
        link.close()

    def _next(self) -> Request | None:
        """The next request; None if this lane shall end, which is then no lane any more."""
        with self._wake:
            self._idle += 1
            self._wake.wait_for(
                lambda: bool(self._queue) or self._closed, timeout=self._bounds.lane_idle_s
            )
            self._idle -= 1
            if self._closed or not self._queue:
                self._lanes.pop(threading.current_thread(), None)
                return None
            request = self._queue.popleft()
            self._bytes -= request.size
            return request

    def _carry(self, link: Link, request: Request) -> Envelope:
        left = request.deadline - monotonic()
        head = frames.head_for(
            request.payload, timeout_s=left, link=self._name, place=request.place
        )
        try:
            assert request.words is not None
            message, payload = link.exchange(
                head, request.words, request.payload, timeout_s=max(0.001, left)
            )
        except CallFailed as fault:
            outcome, detail = fault.outcome, fault.detail
        except Exception as fault:  # noqa: BLE001 - a lane must not die with its request
            outcome, detail = Outcome.UNKNOWN, f"{type(fault).__name__}: {fault}"
        else:
            return Envelope(message=message, payload=payload, request=request.number)
        return Envelope(message=None, request=request.number, outcome=outcome, detail=detail)

    def stop(self) -> list[threading.Thread]:
        """Cancel what is under way, drop what is queued; returns the threads that end now."""
        with self._wake:
            self._closed = True
            self._queue.clear()
            lanes = dict(self._lanes)
            self._wake.notify_all()
        for link in lanes.values():
            link.cancel()
        return list(lanes)
