"""Several loops in one thread, in turn, in virtual time.

    network = FakeNetwork(Random(seed), FakeClock())
    schedule = Schedule(network, Random(seed))
    schedule.add("w1", wire_of_w1, agent)          # an object with step(timeout_s)
    schedule.add("pulse", wire_of_pulse, pulse())  # or a generator that yields how long it waits
    schedule.run(10.0, until=lambda: agent.idle)

A loop gets a turn when its wire has something for it, or when it has waited as long as it wanted:
`tick_s` for an object, which is stepped with a timeout of 0, or what its generator yielded. Which
of several goes first is drawn. When no loop has anything to do, time jumps to the next moment at
which one has. The whole is repeated by the seeds.

A caller outside, e.g. a test or a driver, may block in `FakeWire.receive` or `FakeNetwork.call`:
the loops take their turns meanwhile. One caller should block at a time, since turns nest: the outer
one goes on only once the inner one is over.
"""

from collections import deque
from collections.abc import Callable, Generator
from dataclasses import dataclass
from random import Random
from typing import Protocol

from rhinoctl.protocol.ports import Envelope
from tests.fakes.wire import FakeNetwork, FakeWire


class Loop(Protocol):
    """Anything that production runs as ``while True: loop.step(timeout_s)``."""

    def step(self, timeout_s: float) -> None: ...


Waits = Generator[float, None, None]
"""A loop written as a generator: it yields how long it is willing to wait for its wire."""


@dataclass(eq=False)
class _Entry:
    name: str
    wire: FakeWire
    news: deque[Envelope]
    turn: Callable[[], float]
    due: float
    ignored: int = 0
    paused: bool = False
    running: bool = False


class Schedule:
    """Loops over one network, and whose turn it is."""

    def __init__(self, network: FakeNetwork, chance: Random) -> None:
        self._network = network
        self._clock = network.clock
        self._chance = chance
        self._entries: dict[str, _Entry] = {}
        network.pass_time = self._pass_time

    def add(self, name: str, wire: FakeWire, loop: Loop | Waits, *, tick_s: float = 0.05) -> None:
        """A loop that is given turns from now on."""
        if isinstance(loop, Generator):
            turn: Callable[[], float] = loop.__next__
        else:
            stepped = loop

            def turn() -> float:
                stepped.step(0.0)
                return tick_s

        self._entries[name] = _Entry(name, wire, wire.news, turn, self._clock.monotonic())

    def remove(self, name: str) -> None:
        """Take a loop away, e.g. with `FakeWire.crash` for a process that was killed."""
        self._entries.pop(name, None)

    def has(self, name: str) -> bool:
        """Whether there is a loop of this name."""
        return name in self._entries

    def pause(self, name: str) -> None:
        """Stop a loop, as SIGSTOP would: what is sent to it waits."""
        self._entries[name].paused = True

    def is_paused(self, name: str) -> bool:
        """Whether there is a loop of this name that is stopped."""
        return name in self._entries and self._entries[name].paused

    def resume(self, name: str) -> None:
        """Let a stopped loop go on."""
        self._entries[name].paused = False

    def run(self, for_s: float, until: Callable[[], bool] = lambda: False) -> bool:
        """Run loops and network for so long in virtual time; returns at once, with True, when
        `until` holds after a turn or an event."""
        end = self._clock.monotonic() + for_s
        while not until():
            now, soonest, ready = self._clock.monotonic(), end, []
            for entry in self._entries.values():
                if entry.paused or entry.running:
                    continue
                if now >= entry.due or len(entry.news) > entry.ignored:
                    ready.append(entry)
                elif entry.due < soonest:
                    soonest = entry.due
            if ready:
                self._take_turn(self._chance.choice(ready))
                continue
            if now >= end:
                return False
            event = self._network.next_event()
            self._network.deliver_until(soonest if event is None else min(soonest, event), until)
        return True

    def _pass_time(self, moment: float, until: Callable[[], bool]) -> None:
        self.run(moment - self._clock.monotonic(), until)

    def _take_turn(self, entry: _Entry) -> None:
        entry.running = True
        taken = entry.wire.taken
        try:
            entry.due = entry.turn() + self._clock.monotonic()
        except StopIteration:
            if self._entries.get(entry.name) is entry:  # not one that was started since
                self.remove(entry.name)
        finally:
            entry.running = False
        # A loop that leaves its mail alone is not asked again before there is more, or it is due.
        entry.ignored = entry.wire.waiting() if entry.wire.taken == taken else 0
