"""What the fake network adds to the contract: faults, schedules, and runs that repeat."""

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

import pytest

from rhinoctl.ids import BatchTime, InstanceId
from rhinoctl.protocol.messages import Done, FetchOutput, Header
from rhinoctl.protocol.ports import Address, Outcome
from rhinoctl.wire.exchange import CallFailed
from tests.fakes.clock import FakeClock
from tests.fakes.schedule import Schedule, Waits
from tests.fakes.wire import QUIET, FakeNetwork, FakeWire, Faults

HEADER = Header(cluster="c")
HERE, THERE = Address("grpc+unix:///here"), Address("grpc+unix:///there")


def question(batch: int = 0) -> FetchOutput:
    return FetchOutput(header=HEADER, instance=InstanceId("i0"), time=BatchTime(0, batch))


@dataclass
class Echo:
    """A loop as production has them: it answers, and keeps what it was asked."""

    wire: FakeWire
    asked: list[int] = field(default_factory=list)

    def step(self, timeout_s: float) -> None:
        envelope = self.wire.receive(timeout_s)
        if envelope is not None and isinstance(envelope.message, FetchOutput):
            self.asked.append(envelope.message.time.batch)
            self.wire.reply(envelope, Done(header=HEADER), envelope.payload)


@dataclass
class World:
    """A network with one echo at THERE and its schedule."""

    network: FakeNetwork
    schedule: Schedule
    echo: Echo


def world(seed: int = 1, faults: Faults = QUIET) -> World:
    network = FakeNetwork(Random(seed), FakeClock(), faults)
    schedule = Schedule(network, Random(seed))
    echo = Echo(network.wire(THERE))
    schedule.add("echo", echo.wire, echo)
    return World(network, schedule, echo)


def test_a_blocking_caller_waits_while_the_loops_run() -> None:
    there = world()
    answer, payload = there.network.call(THERE, question(3), [b"abc"], timeout_s=5.0)
    assert (answer, bytes(payload[0])) == (Done(header=HEADER), b"abc")
    assert there.network.clock.monotonic() == pytest.approx(0.001)


def test_a_paused_loop_answers_when_it_goes_on() -> None:
    there = world()
    wire = there.network.wire(None)
    there.schedule.pause("echo")
    number = wire.send(THERE, question(), timeout_s=5.0)
    assert wire.receive(1.0) is None
    there.schedule.resume("echo")
    answer = wire.receive(1.0)
    assert answer is not None
    assert (answer.request, answer.message) == (number, Done(header=HEADER))


def test_a_killed_peer_leaves_unknown_and_then_nobody_listens() -> None:
    there = world()
    wire = there.network.wire(None)
    there.schedule.pause("echo")
    wire.send(THERE, question(), timeout_s=60.0)
    assert wire.receive(1.0) is None
    there.schedule.remove("echo")
    there.echo.wire.crash()
    outcomes = []
    for _ in range(2):
        news = wire.receive(1.0)
        outcomes.append(news and news.outcome)
        wire.send(THERE, question(), timeout_s=60.0)
    assert outcomes == [Outcome.UNKNOWN, Outcome.NOT_DONE]


@pytest.mark.parametrize(
    ("faults", "asked"),
    [(Faults(lose_request=1.0), []), (Faults(lose_answer=1.0), [7]), (Faults(repeat=1.0), [7, 7])],
)
def test_what_the_faults_do(faults: Faults, asked: list[int]) -> None:
    there = world(faults=faults)
    wire = there.network.wire(None)
    number = wire.send(THERE, question(7), timeout_s=1.0)
    news = wire.receive(5.0)
    assert news is not None
    assert news.request == number
    assert news.outcome is (Outcome.UNKNOWN if faults.repeat == 0 else None)
    assert wire.receive(5.0) is None
    assert there.echo.asked == asked


def test_unequal_delays_reorder_all_but_a_single_lane() -> None:
    there = world(faults=Faults(delay_s=(0.0, 0.2)))
    for lanes, ordered in ((8, False), (1, True)):
        wire = there.network.wire(None)
        wire.set_lanes(THERE, lanes)
        there.echo.asked.clear()
        for n in range(30):
            wire.send(THERE, question(n), timeout_s=60.0)
        assert there.schedule.run(60.0, lambda: len(there.echo.asked) == 30)
        assert (there.echo.asked == sorted(there.echo.asked)) is ordered


def test_a_request_that_its_sender_gave_up_does_not_overtake_on_a_single_lane() -> None:
    there = world(faults=Faults(delay_s=(1.0, 1.0)))
    wire = there.network.wire(None)
    wire.set_lanes(THERE, 1)
    wire.send(THERE, question(0), timeout_s=0.1)
    wire.receive(0.5)
    there.network.faults = QUIET
    wire.send(THERE, question(1), timeout_s=5.0)
    there.schedule.run(5.0)
    assert there.echo.asked == [1]


def test_a_partition_loses_everything_until_it_is_healed() -> None:
    there = world()
    here, witness = there.network.wire(HERE), there.network.wire(None)
    there.network.partition([HERE], [THERE])
    here.send(THERE, question(0), timeout_s=1.0)
    witness.send(THERE, question(1), timeout_s=1.0)
    news = here.receive(5.0)
    assert news is not None
    assert news.outcome is Outcome.UNKNOWN
    there.network.heal()
    here.send(THERE, question(2), timeout_s=1.0)
    there.schedule.run(1.0)
    assert there.echo.asked == [1, 2]


def test_a_cut_one_way_lets_requests_through_and_loses_answers() -> None:
    there = world()
    there.network.cut(THERE, HERE)
    with pytest.raises(CallFailed) as failed:
        there.network.call(THERE, question(4), timeout_s=1.0, origin=HERE)
    assert failed.value.outcome is Outcome.UNKNOWN
    assert there.echo.asked == [4]


def test_a_generator_waits_as_long_as_it_says() -> None:
    there = world()
    wire = there.network.wire(None)
    moments: list[float] = []

    def pulse() -> Waits:
        for _ in range(4):
            moments.append(there.network.clock.monotonic())
            yield 2.0

    there.schedule.add("pulse", wire, pulse())
    there.schedule.run(60.0)
    assert moments == [0.0, 2.0, 4.0, 6.0]


def test_a_loop_that_leaves_its_mail_alone_stops_nothing() -> None:
    there = world()

    def deaf() -> Waits:
        while True:
            yield 0.5

    there.schedule.add("deaf", there.network.wire(HERE), deaf())
    wire = there.network.wire(None)
    wire.send(HERE, question(), timeout_s=1.0)
    assert not there.schedule.run(3.0)
    assert there.network.clock.monotonic() == 3.0


def story(seed: int) -> list[tuple[float, int | None, Outcome | None]]:
    """What three clients of a bad network see."""
    faults = Faults(delay_s=(0.0, 0.3), lose_request=0.1, lose_answer=0.1, repeat=0.2)
    there = world(seed, faults)
    seen: list[tuple[float, int | None, Outcome | None]] = []

    def client(wire: FakeWire) -> Waits:
        for n in range(20):
            wire.send(THERE, question(n), timeout_s=0.4)
            yield 0.1
            while (news := wire.receive(0.0)) is not None:
                seen.append((there.network.clock.monotonic(), news.request, news.outcome))

    for name in "abc":
        wire = there.network.wire(None)
        there.schedule.add(name, wire, client(wire))
    there.schedule.run(20.0)
    return seen


def test_a_run_is_repeated_by_its_seed() -> None:
    tell: Callable[[int], object] = story
    assert tell(5) == tell(5)
    assert tell(5) != tell(6)
