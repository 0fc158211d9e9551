"""A network in one process and one thread, in virtual time, with faults as data.

`FakeNetwork` has the wires, the events on their way and the clock. What it does depends on its
`Random` and on the order of calls only, so a run is repeated by its seed. Messages go through the
codec and payloads are copied, so nothing passes that a real wire would not carry.

A `FakeWire` keeps the contract of `rhinoctl.wire.flight.FlightWire` (lanes, bounds, token,
outcomes; one suite tests both). `receive(timeout_s)` lets virtual time pass until there is
something for that wire or the timeout is over. Who else acts in that time is the schedule's affair:

- without a `Schedule`, nobody: events are delivered, and a test plays all sides itself;
- with one (`tests.fakes.schedule`), its loops take their turns meanwhile.
"""

import heapq
import itertools
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from rhinoctl.errors import PortInUse
from rhinoctl.protocol.codec import CodecError
from rhinoctl.protocol.messages import Message, Refusal, RefusalCode, decode, encode
from rhinoctl.protocol.ports import Address, Buffer, Envelope, Outcome
from rhinoctl.wire.bounds import DEFAULT_BOUNDS, WireBounds
from rhinoctl.wire.credentials import Credentials
from rhinoctl.wire.exchange import Answer, CallFailed
from rhinoctl.wire.frames import views
from rhinoctl.wire.secret import Secret
from tests.fakes.clock import FakeClock

PassTime = Callable[[float, Callable[[], bool]], None]
"""Let time pass until a moment, or until a condition holds."""

NOWHERE = Address("")
CREDENTIALS = Credentials(Secret("the token of the fake network"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """What the network does to messages; chances are between 0 and 1.

    A lost request or answer shows as UNKNOWN after the timeout. A repeated request is delivered
    twice, and only its first answer counts. Unequal delays reorder.
    """

    delay_s: tuple[float, float] = (0.0005, 0.0005)
    lose_request: float = 0.0
    lose_answer: float = 0.0
    repeat: float = 0.0


QUIET = Faults()


@dataclass(eq=False, slots=True, kw_only=True)
class Request:
    """A request on its way, as its sender and the network see it."""

    number: int
    sender: "FakeWire"
    to: Address
    message: Message
    data: Any
    payload: tuple[bytes, ...]
    peer: "Peer"
    place: int
    started: bool = False
    over: bool = False


@dataclass(eq=False, slots=True, kw_only=True)
class Peer:
    """One wire's requests to one address: those that wait for a lane, and those under way."""

    link: int
    lanes: int
    queue: deque[Request] = field(default_factory=deque)
    under_way: int = 0
    places: "itertools.count[int]" = field(default_factory=lambda: itertools.count(1))


class FakeNetwork:
    """The wires, the events on their way, and what is broken. `faults` may be changed at will."""

    def __init__(self, chance: Random, clock: FakeClock, faults: Faults = QUIET) -> None:
        self.clock = clock
        self.faults = faults
        self.pass_time: PassTime = self.deliver_until
        self._chance = chance
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._serial = itertools.count()
        self._wires: dict[Address, FakeWire] = {}
        self._cut: set[tuple[Address, Address]] = set()

    def wire(
        self,
        listen: Address | None,
        credentials: Credentials = CREDENTIALS,
        *,
        bounds: WireBounds = DEFAULT_BOUNDS,
        origin: Address = NOWHERE,
    ) -> "FakeWire":
        """A new wire; raises PortInUse. `origin` names one that does not listen, for cuts."""
        if listen in self._wires:
            raise PortInUse(f"a wire listens on {listen}", remedy="Close it first.")
        wire = FakeWire(self, listen, credentials, bounds, listen or origin)
        if listen is not None:
            self._wires[listen] = wire
        return wire

    def call(
        self,
        address: Address,
        message: Message,
        payload: Sequence[Buffer] = (),
        *,
        credentials: Credentials = CREDENTIALS,
        timeout_s: float,
        origin: Address = NOWHERE,
    ) -> Answer:
        """`rhinoctl.wire.call.call` over this network."""
        wire = self.wire(None, credentials, origin=origin)
        wire.send(address, message, payload, timeout_s=timeout_s)
        envelope = None
        while envelope is None:
            envelope = wire.receive(timeout_s)
        if envelope.message is None:
            raise CallFailed(envelope.outcome or Outcome.UNKNOWN, envelope.detail)
        return envelope.message, envelope.payload

    # --- faults -------------------------------------------------------------------------------

    def partition(self, *groups: Sequence[Address]) -> None:
        """Lose everything between the groups from now on; what is not named reaches all."""
        for one, other in itertools.permutations(groups, 2):
            self._cut |= set(itertools.product(one, other))

    def cut(self, sender: Address, receiver: Address) -> None:
        """Lose what goes in one direction (answers of the other direction's requests too)."""
        self._cut.add((sender, receiver))

    def mend(self, sender: Address, receiver: Address) -> None:
        """Undo one cut."""
        self._cut.discard((sender, receiver))

    def is_cut(self, sender: Address, receiver: Address) -> bool:
        """Whether nothing gets through in this direction."""
        return (sender, receiver) in self._cut

    def heal(self) -> None:
        """Undo every partition and cut."""
        self._cut.clear()

    # --- time ---------------------------------------------------------------------------------

    def next_event(self) -> float | None:
        """When the next event is due."""
        return self._events[0][0] if self._events else None

    def deliver_until(self, moment: float, stop: Callable[[], bool] = lambda: False) -> None:
        """Let time pass until `moment`, with all events in order, or until `stop` after one.

        A waiting wire calls this as `pass_time`, which a schedule replaces by its own.
        """
        while self._events and self._events[0][0] <= moment:
            due, _, event = heapq.heappop(self._events)
            self.clock.advance_to(due)
            event()
            if stop():
                return
        self.clock.advance_to(moment)

    # --- the way of a message -----------------------------------------------------------------

    def number(self) -> int:
        """A number that no other has."""
        return next(self._serial)

    def after(self, delay_s: float, event: Callable[[], None]) -> None:
        """Have something happen later."""
        due = self.clock.monotonic() + delay_s
        heapq.heappush(self._events, (due, next(self._serial), event))

    def pack(self, message: Message) -> Any:
        """What goes over the wire instead of a message."""
        return encode(message)

    def unpack(self, data: Any) -> Message:
        """The message that comes out of it."""
        return decode(data)

    def transmit(self, request: Request) -> None:
        """Bring a request to whoever listens when it arrives."""
        request.started = True
        if self._happens(self.faults.lose_request):
            return
        for _ in range(2 if self._happens(self.faults.repeat) else 1):
            self.after(self._delay(), lambda: self._arrive(request))

    def _arrive(self, request: Request) -> None:
        if self.is_cut(request.sender.origin, request.to):
            return
        wire = self._wires.get(request.to)
        if wire is None or wire.credentials != request.sender.credentials:
            why = "nobody listens" if wire is None else "the token is wrong"
            news = Envelope(message=None, outcome=Outcome.NOT_DONE, detail=why)
            self.bring_back(request, request.to, news)
        else:
            wire.take_in(request)

    def bring_back(self, request: Request, origin: Address, news: Envelope) -> None:
        """Bring what became of a request to its sender."""
        if not self.is_cut(origin, request.sender.origin):
            self.after(self._delay(), lambda: request.sender.finish(request, news))

    def answer(
        self, request: Request, origin: Address, message: Message, payload: Sequence[Buffer] = ()
    ) -> None:
        """Bring an answer to the sender of a request, if it is not lost."""
        copy = tuple(memoryview(bytes(view)) for view in views(payload))
        news = Envelope(message=self.unpack(self.pack(message)), payload=copy)
        if not self._happens(self.faults.lose_answer):
            self.bring_back(request, origin, news)

    def gone(self, wire: "FakeWire") -> None:
        """Nobody listens at that wire's address any more."""
        if self._wires.get(wire.address) is wire:
            del self._wires[wire.address]

    def _delay(self) -> float:
        return self._chance.uniform(*self.faults.delay_s)

    def _happens(self, probability: float) -> bool:
        return probability > 0 and self._chance.random() < probability


class FakeWire:
    """The Wire port over a `FakeNetwork`, with the additions of `FlightWire`."""

    def __init__(
        self,
        network: FakeNetwork,
        listen: Address | None,
        credentials: Credentials,
        bounds: WireBounds,
        origin: Address,
    ) -> None:
        self.address = NOWHERE if listen is None else listen
        self.origin = origin
        self.credentials = credentials
        self.taken = 0
        self._network = network
        self._bounds = bounds
        self._numbers = itertools.count(1)
        self._peers: dict[Address, Peer] = {}
        self._lanes: dict[Address, int] = {}
        self.news: deque[Envelope] = deque()
        self._unanswered: dict[int, Request] = {}
        self._untaken: set[int] = set()
        self._places: dict[int, int] = {}
        self._closed = False

    def waiting(self) -> int:
        """How many envelopes `receive` would return at once."""
        return len(self.news)

    def set_lanes(self, to: Address, lanes: int) -> None:
        if to in self._peers:
            raise ValueError(f"requests have been sent to {to} already")
        self._lanes[to] = lanes

    def send(
        self, to: Address, message: Message, payload: Sequence[Buffer] = (), *, timeout_s: float
    ) -> int:
        try:
            data = self._network.pack(message)
            copy = tuple(bytes(view) for view in views(payload))
            why = "closed" if self._closed else ""
        except (CodecError, TypeError, ValueError) as fault:
            data, copy, why = b"", (), str(fault)
        peer = self._peers.get(to)
        if peer is None:
            lanes = self._lanes.get(to, self._bounds.lanes)
            peer = self._peers[to] = Peer(link=self._network.number(), lanes=lanes)
        request = Request(
            number=next(self._numbers),
            sender=self,
            to=to,
            message=message,
            data=data,
            payload=copy,
            peer=peer,
            place=next(peer.places),
        )
        peer.queue.append(request)
        if len(peer.queue) > self._bounds.queued_max and peer.under_way >= peer.lanes:
            why = why or "queue full"
        if why:
            self._fail(request, Outcome.NOT_DONE, why)
        else:
            self._network.after(timeout_s, lambda: self._expire(request))
            self._start(peer)
        return request.number

    def _start(self, peer: Peer) -> None:
        while peer.queue and peer.under_way < peer.lanes:
            peer.under_way += 1
            self._network.transmit(peer.queue.popleft())

    def _expire(self, request: Request) -> None:
        outcome = Outcome.UNKNOWN if request.started else Outcome.NOT_DONE
        self._fail(request, outcome, "not answered in time")

    def _fail(self, request: Request, outcome: Outcome, why: str) -> None:
        self.finish(request, Envelope(message=None, outcome=outcome, detail=why))

    def finish(self, request: Request, news: Envelope) -> None:
        """Deliver the one envelope of a request; the first one counts."""
        if request.over or self._closed:
            return
        request.over = True
        self.news.append(replace(news, request=request.number))
        if request.started:
            request.peer.under_way -= 1
        else:
            request.peer.queue.remove(request)
        self._start(request.peer)

    def take_in(self, request: Request) -> None:
        """Accept somebody's request, which has just arrived."""
        if len(self._unanswered) >= self._bounds.inbox_max:
            self._unanswered = {h: r for h, r in self._unanswered.items() if not r.over}
        if len(self._unanswered) >= self._bounds.inbox_max:
            self._network.answer(request, self.address, self._refusal(request, RefusalCode.BUSY))
            return
        link = request.peer.link
        if request.peer.lanes == 1 and request.place < self._places.get(link, 0):
            return  # it was overtaken: its sender gave it up
        self._places[link] = request.place
        handle = next(self._numbers)
        self._unanswered[handle] = request
        self._untaken.add(handle)
        payload = tuple(memoryview(data) for data in request.payload)
        message = self._network.unpack(request.data)
        self.news.append(Envelope(message=message, payload=payload, handle=handle))

    def _refusal(self, request: Request, code: RefusalCode) -> Refusal:
        return Refusal(header=request.message.header, code=code, detail="")

    def reply(self, to: Envelope, message: Message, payload: Sequence[Buffer] = ()) -> None:
        request = self._unanswered.pop(to.handle or 0, None)
        if request is None or self._closed:
            return
        try:
            self._network.answer(request, self.address, message, payload)
        except (CodecError, TypeError, ValueError):
            self._drop(request)

    def receive(self, timeout_s: float) -> Envelope | None:
        clock = self._network.clock
        if not self.news:
            self._network.pass_time(clock.monotonic() + timeout_s, lambda: bool(self.news))
        if not self.news:
            return None
        self.taken += 1
        envelope = self.news.popleft()
        self._untaken.discard(envelope.handle or 0)
        return envelope

    def close(self) -> None:
        """Refuse what was not taken, drop what was not answered, and what was sent."""
        for handle in sorted(self._untaken & self._unanswered.keys()):
            request = self._unanswered.pop(handle)
            self._network.answer(request, self.address, self._refusal(request, RefusalCode.BUSY))
        self.crash()

    def crash(self) -> None:
        """End as by a kill: nobody is told but by the broken connections."""
        for request in self._unanswered.values():
            self._drop(request)
        self._unanswered.clear()
        self.news.clear()
        self._closed = True
        self._network.gone(self)

    def _drop(self, request: Request) -> None:
        news = Envelope(message=None, outcome=Outcome.UNKNOWN, detail="the connection broke")
        self._network.bring_back(request, self.address, news)
