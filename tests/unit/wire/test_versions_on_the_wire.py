"""Flight between processes of two versions: both directions, and one too far apart."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import ClassVar

import pyarrow as pa
import pytest
from pyarrow import flight

from rhinoctl.protocol import messages
from rhinoctl.protocol.messages import Header, Message, Refusal, RefusalCode
from rhinoctl.protocol.ports import Address, Buffer, Envelope
from rhinoctl.protocol.versions import Span, since
from rhinoctl.wire import frames
from rhinoctl.wire.bounds import DEFAULT_BOUNDS
from rhinoctl.wire.call import call
from rhinoctl.wire.credentials import Credentials
from rhinoctl.wire.flight import FlightWire
from rhinoctl.wire.secret import Secret

OURS = Credentials(Secret("right"))
HEADER = Header(cluster="c")
PATIENT_S = 20.0

ONE = Span(newest=1, oldest=1)
TWO = Span(newest=2, oldest=1)
THREE = Span(newest=3, oldest=2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Painted(Message):
    """A kind with a field that came with version 2."""

    text: str
    colour: str = field(default="", metadata=since(2))


@dataclass(frozen=True, slots=True, kw_only=True)
class Novel(Message):
    """A kind that came with version 2."""

    SINCE: ClassVar[int] = 2


RED = Painted(header=HEADER, text="a", colour="red")
PLAIN = Painted(header=HEADER, text="a")


@pytest.fixture(autouse=True)
def kinds(monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in (Painted, Novel):
        monkeypatch.setitem(messages.KINDS, kind.__name__, kind)


@pytest.fixture
def refusals(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The newest versions that were said with a refusal: each is a round trip more."""
    said: list[int] = []
    pack = frames.pack_refusal

    def counted(newest: int) -> bytes:
        said.append(newest)
        return pack(newest)

    monkeypatch.setattr(frames, "pack_refusal", counted)
    return said


@pytest.fixture
def place(tmp_path: Path) -> Address:
    return Address(f"grpc+unix://{tmp_path}/x.sock")


def server_of(place: Address, protocols: Span) -> FlightWire:
    return FlightWire(place, OURS, protocols=protocols)


def client_of(protocols: Span) -> FlightWire:
    return FlightWire(None, OURS, protocols=protocols)


def take(wire: FlightWire) -> Envelope:
    envelope = wire.receive(PATIENT_S)
    assert envelope is not None
    return envelope


def ask(
    client: FlightWire,
    server: FlightWire,
    question: Message = RED,
    answer: Message = RED,
    payload: tuple[Buffer, ...] = (),
) -> tuple[Message | None, Message | None]:
    """What the server got, and what the client got."""
    client.send(server.address, question, payload, timeout_s=PATIENT_S)
    request = take(server)
    assert [bytes(view) for view in request.payload] == [bytes(view) for view in payload]
    server.reply(request, answer, request.payload)
    news = take(client)
    assert [bytes(view) for view in news.payload] == [bytes(view) for view in payload]
    return request.message, news.message


@pytest.mark.parametrize("payload", [(), (b"x" * 100,), (bytes(5 << 20), b"y")], ids=len)
def test_a_newer_client_says_it_again_once_and_remembers(
    place: Address, refusals: list[int], payload: tuple[bytes, ...]
) -> None:
    with server_of(place, ONE) as server, client_of(TWO) as client:
        for _ in range(5):
            assert ask(client, server, payload=payload) == (PLAIN, PLAIN)
        assert refusals == [1]


@pytest.mark.parametrize("payload", [(), (bytes(5 << 20),)], ids=len)
def test_an_older_client_is_understood_and_answered_in_its_version(
    place: Address, refusals: list[int], payload: tuple[bytes, ...]
) -> None:
    with server_of(place, TWO) as server, client_of(ONE) as client:
        for _ in range(3):
            assert ask(client, server, payload=payload) == (PLAIN, PLAIN)
        assert refusals == []


def test_equals_say_everything_at_once(place: Address, refusals: list[int]) -> None:
    with server_of(place, TWO) as server, client_of(TWO) as client:
        assert ask(client, server) == (RED, RED)
        assert refusals == []


def test_one_server_answers_each_in_its_version(place: Address, refusals: list[int]) -> None:
    with server_of(place, TWO) as server, client_of(ONE) as old, client_of(TWO) as new:
        old.send(place, RED, timeout_s=PATIENT_S)
        first = take(server)
        new.send(place, RED, timeout_s=PATIENT_S)
        second = take(server)
        server.reply(second, RED)
        server.reply(first, RED)
        assert (take(old).message, take(new).message) == (PLAIN, RED)
        assert refusals == []


def test_a_peer_that_is_upgraded_is_noticed_without_a_further_round_trip(
    place: Address, refusals: list[int]
) -> None:
    with client_of(TWO) as client:
        with server_of(place, ONE) as server:
            assert ask(client, server) == (PLAIN, PLAIN)
        with server_of(place, TWO) as server:
            assert ask(client, server) == (PLAIN, PLAIN), "what was in use is understood"
            assert ask(client, server) == (RED, RED), "and its answer said what it speaks"
        with server_of(place, ONE) as server:
            assert ask(client, server) == (PLAIN, PLAIN)
            assert ask(client, server) == (PLAIN, PLAIN)
    assert refusals == [1, 1]


def test_a_peer_that_skips_a_version_is_found_again(place: Address, refusals: list[int]) -> None:
    """What was remembered is too old for it; what we speak besides is not."""
    with client_of(TWO) as client:
        with server_of(place, ONE) as server:
            ask(client, server)
        with server_of(place, THREE) as server:
            assert ask(client, server) == (RED, RED)
    assert refusals == [1, 3]


def test_what_is_under_way_at_once_is_said_again_at_most_once_a_lane(
    place: Address, refusals: list[int]
) -> None:
    with server_of(place, ONE) as server, client_of(TWO) as client:
        sent = {client.send(place, RED, timeout_s=PATIENT_S) for _ in range(40)}
        for _ in range(40):
            request = take(server)
            assert request.message == PLAIN
            server.reply(request, RED)
        news = [take(client) for _ in sent]
        assert {each.request for each in news} == sent
        assert {each.message for each in news} == {PLAIN}
        assert 1 <= len(refusals) <= DEFAULT_BOUNDS.lanes


@pytest.mark.parametrize("seed", range(3))
def test_a_peer_that_changes_at_random_costs_one_round_trip_a_change(
    place: Address, refusals: list[int], seed: int
) -> None:
    chance = Random(seed)
    with client_of(TWO) as client:
        for _ in range(12):
            span = chance.choice([ONE, TWO, THREE])
            before = len(refusals)
            with server_of(place, span) as server:
                answers = [ask(client, server) for _ in range(chance.randint(1, 3))]
            assert len(refusals) - before <= 1
            best = (PLAIN, PLAIN) if span == ONE else (RED, RED)
            assert set(answers[1:]) <= {best}
            assert answers[0] in (best, (PLAIN, PLAIN))


@pytest.mark.parametrize(("ours", "theirs"), [(THREE, ONE), (ONE, THREE)])
def test_who_is_too_far_apart_answers_and_is_not_silent(
    place: Address, refusals: list[int], ours: Span, theirs: Span
) -> None:
    with server_of(place, theirs) as server, client_of(ours) as client:
        for n in range(1, 4):
            client.send(place, RED, [bytes(1 << 20)], timeout_s=PATIENT_S)
            news = take(client)
            assert isinstance(news.message, Refusal)
            assert (news.message.code, news.message.header) == (RefusalCode.VERSION, HEADER)
            for said in (place, f"version {theirs.newest}", str(ours), "rhinoctl upgrade"):
                assert said in news.message.detail
            assert len(refusals) == n
        assert server.receive(0.0) is None


def test_a_kind_that_the_peer_has_not_is_not_sent(place: Address, refusals: list[int]) -> None:
    novel = Novel(header=HEADER)
    with server_of(place, ONE) as server, client_of(TWO) as client:
        for _ in range(3):
            client.send(place, novel, timeout_s=PATIENT_S)
            news = take(client).message
            assert isinstance(news, Refusal)
            assert news.code is RefusalCode.VERSION
            assert "Novel" in news.detail
        assert server.receive(0.0) is None
        assert ask(client, server) == (PLAIN, PLAIN)
    assert refusals == [1, 1, 1]
    with server_of(place, TWO) as server, client_of(TWO) as client:
        assert ask(client, server, novel) == (novel, RED)


def test_once_a_peer_was_upgraded_it_is_sent_a_new_kind(place: Address) -> None:
    """One that is asked nothing else would be taken for old for ever."""
    novel = Novel(header=HEADER)
    with client_of(TWO) as client:
        with server_of(place, ONE) as server:
            ask(client, server)
        with server_of(place, TWO) as server:
            client.send(place, novel, timeout_s=PATIENT_S)
            server.reply(take(server), RED)
            assert take(client).message == RED


def test_one_lane_keeps_the_order_whatever_the_version(place: Address, refusals: list[int]) -> None:
    with server_of(place, ONE) as server, client_of(TWO) as client:
        client.set_lanes(place, 1)
        asked = [Painted(header=HEADER, text=str(n), colour="red") for n in range(20)]
        for each in asked:
            client.send(place, each, [bytes(10_000)], timeout_s=PATIENT_S)
        got = []
        for _ in asked:
            request = take(server)
            got.append(request.message)
            server.reply(request, RED)
            assert take(client).message == PLAIN
        assert got == [Painted(header=HEADER, text=str(n)) for n in range(20)]
        assert refusals == [1]


def raw(address: Address, command: bytes) -> bytes:
    """The first bytes of the answer to any bytes."""
    bearer = (b"authorization", b"Bearer right")
    options = flight.FlightCallOptions(timeout=PATIENT_S, headers=[bearer])
    with flight.FlightClient(address) as client:
        descriptor = flight.FlightDescriptor.for_command(command)
        writer, reader = client.do_exchange(descriptor, options)
        with writer:
            writer.write_metadata(pa.py_buffer(b""))
            writer.done_writing()
            return bytes(reader.read_chunk().app_metadata)


@pytest.mark.parametrize("version", [1, 2])
def test_what_the_wire_itself_refuses_is_said_in_the_callers_version(
    place: Address, version: int
) -> None:
    with server_of(place, TWO):
        spoken = frames.Spoken(version, version)
        answer = raw(place, frames.pack(frames.head_for(()), b"no message", (), spoken))
        assert frames.spoken_in(answer) == (version, 2)


@pytest.mark.parametrize("version", [0, 3, 65_535])
def test_what_is_not_spoken_is_refused_in_16_bytes(place: Address, version: int) -> None:
    with server_of(place, TWO):
        spoken = frames.Spoken(version, 65_535)
        answer = raw(place, frames.pack(frames.head_for(()), b"no message", (), spoken))
        assert answer == frames.pack_refusal(2)


# --- the thin call --------------------------------------------------------------------------------


@contextmanager
def answering(place: Address, protocols: Span) -> Iterator[list[Message | None]]:
    """A server whose loop turns in a thread; what it is asked."""
    asked: list[Message | None] = []
    over = threading.Event()

    def turn() -> None:
        while not over.is_set():
            request = server.receive(0.02)
            if request is not None:
                asked.append(request.message)
                server.reply(request, RED, request.payload)

    with server_of(place, protocols) as server:
        thread = threading.Thread(target=turn)
        thread.start()
        try:
            yield asked
        finally:
            over.set()
            thread.join()


def called(place: Address, protocols: Span, message: Message = RED) -> Message:
    payload = [bytes(1 << 20)]
    answer, _ = call(
        place, message, payload, credentials=OURS, timeout_s=PATIENT_S, protocols=protocols
    )
    return answer


def test_a_call_remembers_for_its_process(place: Address, refusals: list[int]) -> None:
    with answering(place, ONE) as asked:
        assert [called(place, TWO) for _ in range(4)] == [PLAIN] * 4
        assert asked == [PLAIN] * 4
    assert refusals == [1]
    with answering(place, TWO) as asked:
        assert [called(place, TWO) for _ in range(2)] == [PLAIN, RED]
        assert called(place, ONE) == PLAIN
        assert asked == [PLAIN, RED, PLAIN]
    assert refusals == [1]


@pytest.mark.parametrize(("ours", "theirs"), [(THREE, ONE), (ONE, THREE)])
def test_a_call_to_who_is_too_far_apart(place: Address, ours: Span, theirs: Span) -> None:
    with answering(place, theirs) as asked:
        answer = called(place, ours)
        assert isinstance(answer, Refusal)
        assert answer.code is RefusalCode.VERSION
        assert not asked


# --- the 16 bytes ---------------------------------------------------------------------------------


def test_the_first_bytes_never_change() -> None:
    """A process of any version must find the numbers there."""
    data = frames.pack(frames.head_for(()), b"message", (), frames.Spoken(3, 4))
    assert data[:8] == b"rw2\n\x03\x00\x04\x00"
    assert data.endswith(b"message")
    assert frames.spoken_in(data) == (3, 4)
    assert frames.pack_refusal(7) == b"rw2\n\x00\x00\x07\x00" + bytes(8)
    assert frames.spoken_in(frames.pack_refusal(7)).is_refusal
