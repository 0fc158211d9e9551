"""The network of a simulated cluster: faults of the plan, and a watch that sees each message."""

from collections import Counter
from collections.abc import Sequence
from random import Random
from typing import Any, Protocol

from rhinoctl.protocol.messages import InstanceState, Message, WorkerReport
from rhinoctl.protocol.ports import Address, Buffer
from tests.fakes.clock import FakeClock
from tests.fakes.wire import Faults, Request
from tests.fakes.world import HostsNetwork
from tests.sim import faults as f

GROWING = (InstanceState, WorkerReport)
"""Messages with mappings in them that their sender goes on to change: always sent as bytes."""

ON_THE_WAY = (f.Drop, f.Duplicate, f.Delay, f.Reorder)


class WireWatch(Protocol):
    """Who sees every message as it is sent, also those that are lost."""

    def sent(self, request: Request) -> None: ...

    def answered(self, request: Request, message: Message) -> None: ...


class SimNetwork(HostsNetwork):
    """Lossy between hosts while a fault of the plan lasts; `struck` counts what really happened."""

    def __init__(
        self, chance: Random, clock: FakeClock, faults: Faults, struck: Counter[type[f.Fault]]
    ) -> None:
        super().__init__(chance, clock, faults)
        self.watch: WireWatch | None = None
        self.addresses: dict[Address, str] = {}
        self.bytes_sent = True
        self._draw = chance
        self._struck = struck
        self._rules: list[tuple[float, f.Fault]] = []
        self._unanswered: list[tuple[f.LoseAnswer, int]] = []
        self._severed: dict[tuple[str, str], float] = {}

    def host_of(self, address: Address) -> str:
        """Who listens or speaks there: a worker, ``controller`` or ``driver``, whichever run."""
        name = self.addresses.get(address, str(address))
        return "driver" if name.startswith("driver") else name

    def begin(self, fault: f.Fault, for_s: float) -> None:
        """A fault of messages that lasts for a while."""
        self._rules.append((self.clock.monotonic() + for_s, fault))

    def lose_answer(self, fault: f.LoseAnswer) -> None:
        """The next answers of this kind are lost."""
        self._unanswered.append((fault, fault.times))

    def sever(self, fault: f.CutOneWay) -> None:
        """Nothing gets through in one direction for a while."""
        until = self.clock.monotonic() + fault.for_s
        self._severed[fault.sender, fault.receiver] = until

    def heal(self) -> None:
        super().heal()
        self._rules.clear()
        self._unanswered.clear()
        self._severed.clear()

    def pack(self, message: Message) -> Any:
        as_bytes = self.bytes_sent or isinstance(message, GROWING)
        return super().pack(message) if as_bytes else message

    def unpack(self, data: Any) -> Message:
        return data if isinstance(data, Message) else super().unpack(data)

    # --- messages --------------------------------------------------------------------------------

    def transmit(self, request: Request) -> None:
        request.started = True
        if self.watch is not None:
            self.watch.sent(request)
        if "/run/" in request.to:
            self.after(self._delay(), lambda: self._arrive(request))
            return
        for delay_s in self._ways(request.sender.origin, request.to):
            self.after(delay_s, lambda: self._arrive(request))

    def answer(
        self,
        request: Request,
        origin: Address,
        message: Message,
        payload: Sequence[Buffer] = (),
    ) -> None:
        if self.watch is not None:
            self.watch.answered(request, message)
        if "/run/" in request.to:
            super().answer(request, origin, message, payload)
            return
        if self._is_lost(request):
            return
        copy = tuple(bytes(view) for view in payload)
        send = super().answer
        ways = self._ways(origin, request.sender.origin)
        if ways and ways[0] > self.faults.delay_s[1]:
            self.after(ways[0], lambda: send(request, origin, message, copy))
        elif ways:
            send(request, origin, message, copy)

    def _is_lost(self, request: Request) -> bool:
        kind, worker = type(request.message).__name__, self.host_of(request.to)
        for number, (fault, left) in enumerate(self._unanswered):
            if (fault.worker, fault.request) == (worker, kind):
                self._struck[f.LoseAnswer] += 1
                self._unanswered[number] = (fault, left - 1)
                if left == 1:
                    del self._unanswered[number]
                return True
        return False

    def _ways(self, sender: Address, receiver: Address) -> list[float]:
        """After how long a message arrives: once, twice or never."""
        ways = [self._delay()]
        now = self.clock.monotonic()
        self._rules = [(until, fault) for until, fault in self._rules if until > now]
        for _, fault in self._rules:
            if not self._concerns(fault, sender, receiver):
                continue
            self._struck[type(fault)] += 1
            if isinstance(fault, f.Drop):
                return []
            if isinstance(fault, f.Duplicate):
                ways.append(ways[0] + self._draw.uniform(0.0, fault.within_s))
            elif isinstance(fault, f.Delay):
                ways = [way + fault.by_s for way in ways]
            elif isinstance(fault, f.Reorder):
                ways = [way + self._draw.uniform(0.0, fault.by_s) for way in ways]
        return ways

    def _concerns(self, fault: f.Fault, sender: Address, receiver: Address) -> bool:
        if isinstance(fault, f.Delay):
            return fault.worker in (self.host_of(sender), self.host_of(receiver))
        assert isinstance(fault, f.Drop | f.Duplicate | f.Reorder)
        return self._draw.random() < fault.chance

    def is_cut(self, sender: Address, receiver: Address) -> bool:
        until = self._severed.get((self.host_of(sender), self.host_of(receiver)))
        if until is not None and until > self.clock.monotonic():
            self._struck[f.CutOneWay] += 1
            return True
        return super().is_cut(sender, receiver)
