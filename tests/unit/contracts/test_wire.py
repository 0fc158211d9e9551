"""The contract of the Wire port, over Flight (Unix socket, TCP, TLS) and over the fake network.

The tests play all sides in one thread, as `send` and `reply` never block.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from rhinoctl.config.authority import make_authority
from rhinoctl.errors import PortInUse
from rhinoctl.ids import BatchTime, InstanceId
from rhinoctl.protocol.messages import (
    Done,
    FetchOutput,
    Header,
    InstanceStatus,
    Message,
    Refusal,
    RefusalCode,
)
from rhinoctl.protocol.ports import Address, Buffer, Envelope, Outcome
from rhinoctl.wire.bounds import DEFAULT_BOUNDS, WireBounds
from rhinoctl.wire.credentials import Credentials
from rhinoctl.wire.flight import FlightWire
from rhinoctl.wire.secret import Secret
from tests.fakes.clock import FakeClock
from tests.fakes.tls import certified
from tests.fakes.wire import FakeNetwork, FakeWire

AnyWire = FlightWire | FakeWire

KINDS = ("unix", "tcp", "tls", "fake")
HEADER = Header(cluster="c", epoch=3)
PATIENT_S = 20.0
TLS = certified(make_authority("c"))
OURS = {kind: Credentials(Secret("right"), TLS if kind == "tls" else None) for kind in KINDS}
LOOPBACK = {"tcp": "grpc+tcp://127.0.0.1:0", "tls": "grpc+tls://localhost:0"}


class Side:
    """Where wires come from; closes them in the end."""

    def __init__(self, kind: str, directory: Path) -> None:
        self.kind = kind
        self._directory = directory
        self._network = FakeNetwork(Random(7), FakeClock())
        self._wires: list[AnyWire] = []

    def free_address(self) -> Address:
        """An address on which nobody listens yet."""
        if self.kind in LOOPBACK:
            wire = FlightWire(Address(LOOPBACK[self.kind]), OURS[self.kind])
            wire.close()
            return wire.address
        return Address(f"grpc+unix://{self._directory}/{len(self._wires)}.sock")

    def wire(
        self,
        listen: Address | None,
        credentials: Credentials | None = None,
        bounds: WireBounds = DEFAULT_BOUNDS,
    ) -> AnyWire:
        wire: AnyWire
        credentials = credentials or OURS[self.kind]
        if self.kind == "fake":
            wire = self._network.wire(listen, credentials, bounds=bounds)
        else:
            wire = FlightWire(listen, credentials, bounds=bounds)
        self._wires.append(wire)
        return wire

    def close(self) -> None:
        for wire in self._wires:
            wire.close()


@pytest.fixture(params=KINDS)
def side(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Side]:
    side = Side(request.param, tmp_path)
    yield side
    side.close()


@pytest.fixture
def server(side: Side) -> AnyWire:
    return side.wire(side.free_address())


@pytest.fixture
def client(side: Side) -> AnyWire:
    return side.wire(None)


def question(batch: int = 0) -> FetchOutput:
    return FetchOutput(header=HEADER, instance=InstanceId("i0"), time=BatchTime(0, batch))


def done(epoch: int = 0) -> Done:
    return Done(header=replace(HEADER, epoch=epoch))


def take(wire: AnyWire) -> Envelope:
    envelope = wire.receive(PATIENT_S)
    assert envelope is not None
    return envelope


def ask(
    client: AnyWire, server: AnyWire, message: Message, payload: Sequence[Buffer] = ()
) -> tuple[Envelope, Envelope]:
    """What the server got and, once it has echoed the payload, what the client got."""
    number = client.send(server.address, message, payload, timeout_s=PATIENT_S)
    request = take(server)
    server.reply(request, done(), request.payload)
    answer = take(client)
    assert answer.request == number
    return request, answer


def expect_silence(wire: AnyWire) -> None:
    assert wire.receive(0.1) is None


def test_a_request_and_its_answer(client: AnyWire, server: AnyWire) -> None:
    request, answer = ask(client, server, question(5))
    assert request.message == question(5)
    assert request.handle is not None
    assert request.request is None
    assert answer.message == done()
    assert (answer.handle, answer.outcome) == (None, None)
    expect_silence(client)
    expect_silence(server)


def pieces(*sizes: int) -> list[bytes]:
    chance = Random(1)
    return [chance.randbytes(size) for size in sizes]


@pytest.mark.parametrize(
    "payload",
    [
        [],
        [b""],
        [b"", b"", b""],
        [b"x"],
        pieces(*range(200)),
        pieces(32 << 10, 1),
        pieces(0, 100_000, 0, 0, 7, 300_000, 1, 262_144, 262_145, 0),
        pieces(*[70_001] * 150),
        pieces(20 << 20, 5, 20 << 20),
    ],
    ids=["none", "empty", "empties", "byte", "short", "inline", "mixed", "joined", "long"],
)
def test_payload_arrives_as_it_was(client: AnyWire, server: AnyWire, payload: list[bytes]) -> None:
    request, answer = ask(client, server, question(), payload)
    for envelope in (request, answer):
        assert all(isinstance(view, memoryview) for view in envelope.payload)
        assert all(view.format == "B" for view in envelope.payload)
        assert [bytes(view) for view in envelope.payload] == payload


def test_payload_may_be_any_buffer(client: AnyWire, server: AnyWire) -> None:
    data = bytearray(b"0123456789" * 20_000)
    wide = memoryview(data).cast("I")
    request, _ = ask(client, server, question(), [data, memoryview(data)[7:99_000], wide])
    assert [bytes(view) for view in request.payload] == [data, data[7:99_000], data]


def test_a_process_may_talk_to_itself(server: AnyWire) -> None:
    number = server.send(server.address, question(), timeout_s=PATIENT_S)
    server.reply(take(server), done())
    assert take(server).request == number


def test_receive_waits_no_longer_than_asked(client: AnyWire, server: AnyWire) -> None:
    assert client.receive(0.0) is None
    assert server.receive(0.05) is None


def test_every_request_gets_exactly_one_envelope(side: Side, server: AnyWire) -> None:
    clients = [side.wire(None) for _ in range(2)]
    sent = [
        {client.send(server.address, question(n), timeout_s=PATIENT_S): n for n in range(50)}
        for client in clients
    ]
    for _ in range(100):
        request = take(server)
        assert isinstance(request.message, FetchOutput)
        server.reply(request, done(request.message.time.batch))
        server.reply(request, done(99))
    for client, numbers in zip(clients, sent, strict=True):
        got = [take(client) for _ in numbers]
        answers = {e.request: e.message and e.message.header.epoch for e in got}
        assert answers == numbers
        expect_silence(client)


def test_an_answer_is_no_request(client: AnyWire, server: AnyWire) -> None:
    _, answer = ask(client, server, question())
    client.reply(answer, done())
    expect_silence(server)


def test_silence_is_unknown_and_a_late_answer_ignored(client: AnyWire, server: AnyWire) -> None:
    number = client.send(server.address, question(), timeout_s=0.2)
    request = take(server)
    news = take(client)
    assert (news.request, news.message, news.outcome) == (number, None, Outcome.UNKNOWN)
    server.reply(request, done())
    expect_silence(client)
    ask(client, server, question())


def test_nobody_listens(side: Side, client: AnyWire) -> None:
    number = client.send(side.free_address(), question(), [b"x"], timeout_s=PATIENT_S)
    news = take(client)
    assert (news.request, news.message, news.outcome) == (number, None, Outcome.NOT_DONE)
    expect_silence(client)


def test_no_address(client: AnyWire) -> None:
    for nonsense in ("", "nowhere", "grpc+unix://", "grpc+tcp://no.such.host.invalid:1"):
        client.send(Address(nonsense), question(), timeout_s=2.0)
        assert take(client).message is None


@pytest.mark.parametrize("noticed", [False, True], ids=["unnoticed", "noticed"])
def test_a_peer_that_restarts_is_found_again(
    side: Side, client: AnyWire, server: AnyWire, noticed: bool
) -> None:
    ask(client, server, question(), [bytes(100_000)])
    server.close()
    if noticed:
        for _ in range(3):
            client.send(server.address, question(), timeout_s=PATIENT_S)
            assert take(client).message is None
    again = side.wire(server.address)
    ask(client, again, question())


def test_one_lane_keeps_the_order(client: AnyWire, server: AnyWire) -> None:
    client.set_lanes(server.address, 1)
    for n in range(30):
        client.send(server.address, question(n), [bytes(n * 5000)], timeout_s=PATIENT_S)
    for n in range(30):
        request = take(server)
        assert request.message == question(n)
        if n == 0:
            expect_silence(server)
        server.reply(request, done(n))
    assert [take(client).message for _ in range(30)] == [done(n) for n in range(30)]


def test_a_slow_request_holds_up_no_other(client: AnyWire, server: AnyWire) -> None:
    slow = client.send(server.address, question(0), timeout_s=PATIENT_S)
    first = take(server)
    client.send(server.address, question(1), timeout_s=PATIENT_S)
    server.reply(take(server), done())
    assert take(client).request != slow
    server.reply(first, done())
    assert take(client).request == slow


def test_lanes_are_set_before_the_first_request(client: AnyWire, server: AnyWire) -> None:
    ask(client, server, question())
    with pytest.raises(ValueError, match="sent"):
        client.set_lanes(server.address, 1)


def test_a_queued_request_that_was_never_sent_is_not_done(client: AnyWire, server: AnyWire) -> None:
    client.set_lanes(server.address, 1)
    slow = client.send(server.address, question(0), timeout_s=PATIENT_S)
    request = take(server)
    late = client.send(server.address, question(1), timeout_s=0.1)
    news = take(client)
    assert (news.request, news.outcome) == (late, Outcome.NOT_DONE)
    server.reply(request, done())
    assert take(client).request == slow
    expect_silence(server)


def test_a_full_queue_is_not_done(side: Side, server: AnyWire) -> None:
    client = side.wire(None, bounds=replace(DEFAULT_BOUNDS, queued_max=2, lanes=1))
    client.send(server.address, question(), timeout_s=PATIENT_S)
    take(server)
    sent = [client.send(server.address, question(), timeout_s=PATIENT_S) for _ in range(3)]
    news = take(client)
    assert (news.request, news.outcome) == (sent[2], Outcome.NOT_DONE)


def test_a_full_inbox_is_busy(side: Side, client: AnyWire) -> None:
    server = side.wire(side.free_address(), bounds=replace(DEFAULT_BOUNDS, inbox_max=2))
    for _ in range(2):
        client.send(server.address, question(), timeout_s=PATIENT_S)
    held = [take(server), take(server)]
    client.send(server.address, question(), [bytes(100_000)], timeout_s=PATIENT_S)
    answer = take(client).message
    assert isinstance(answer, Refusal)
    assert (answer.code, answer.header) == (RefusalCode.BUSY, HEADER)
    for request in held:
        server.reply(request, done())
        take(client)
    ask(client, server, question())


def test_another_token_is_refused(side: Side, server: AnyWire) -> None:
    for payload in ([], [bytes(5 << 20)]):
        stranger = side.wire(None, replace(OURS[side.kind], token=Secret("wrong")))
        stranger.send(server.address, question(), payload, timeout_s=PATIENT_S)
        news = take(stranger)
        assert (news.message, news.outcome) == (None, Outcome.NOT_DONE)
        expect_silence(server)
    ask(side.wire(None), server, question())


def test_a_second_listener_is_refused(side: Side, client: AnyWire, server: AnyWire) -> None:
    with pytest.raises(PortInUse):
        side.wire(server.address)
    ask(client, server, question())


def test_closing_refuses_what_was_not_taken_and_leaves_the_rest_unknown(
    side: Side, client: AnyWire
) -> None:
    server = side.wire(side.free_address(), bounds=replace(DEFAULT_BOUNDS, inbox_max=2))
    taken = client.send(server.address, question(), timeout_s=PATIENT_S)
    take(server)
    two = {client.send(server.address, question(), timeout_s=PATIENT_S) for _ in range(2)}
    (untaken,) = two - {take(client).request}  # one of them finds the inbox full, with the other
    server.close()
    news = {envelope.request: envelope for envelope in (take(client), take(client))}
    assert news[taken].outcome is Outcome.UNKNOWN
    refusal = news[untaken].message
    assert isinstance(refusal, Refusal)
    assert refusal.code is RefusalCode.BUSY


def test_a_closed_wire_sends_nothing(client: AnyWire, server: AnyWire) -> None:
    client.close()
    client.close()
    client.send(server.address, question(), timeout_s=1.0)
    expect_silence(server)


UNENCODABLE = Done(header=Header(cluster="c", job=object()))  # type: ignore[arg-type]


def test_what_cannot_be_encoded_is_not_sent(client: AnyWire, server: AnyWire) -> None:
    strange: list[Callable[[], int]] = [
        lambda: client.send(server.address, UNENCODABLE, timeout_s=PATIENT_S),
        lambda: client.send(
            server.address, question(), [memoryview(b"abcd")[::2]], timeout_s=PATIENT_S
        ),
    ]
    for send in strange:
        number = send()
        news = take(client)
        assert (news.request, news.outcome) == (number, Outcome.NOT_DONE)
    expect_silence(server)


def test_an_answer_that_cannot_be_encoded_leaves_unknown(client: AnyWire, server: AnyWire) -> None:
    client.send(server.address, InstanceStatus(header=HEADER), timeout_s=PATIENT_S)
    server.reply(take(server), UNENCODABLE)
    assert take(client).outcome is Outcome.UNKNOWN
