"""What only the real wire can show: sockets, processes that hang or die, threads, strangers."""

import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from time import monotonic

import pyarrow as pa
import pytest
from pyarrow import flight

from rhinoctl.errors import PortInUse, UnwritableDirectory, UsageError
from rhinoctl.protocol.messages import Done, Header, Refusal, RefusalCode, decode, encode
from rhinoctl.protocol.ports import Address, Envelope, Outcome
from rhinoctl.wire import frames
from rhinoctl.wire.bounds import DEFAULT_BOUNDS
from rhinoctl.wire.call import CallFailed, call
from rhinoctl.wire.credentials import Credentials
from rhinoctl.wire.flight import FlightWire
from rhinoctl.wire.secret import Secret

OURS = Credentials(Secret("right"))
MESSAGE = Done(header=Header(cluster="c"))
PATIENT_S = 20.0
LOCAL = Address("grpc+tcp://127.0.0.1:0")

ECHO = """
import sys
from rhinoctl.protocol.messages import Done, Header
from rhinoctl.wire.flight import FlightWire
from rhinoctl.wire.credentials import Credentials
from rhinoctl.wire.secret import Secret

wire = FlightWire(sys.argv[1], Credentials(Secret("right")))
print(wire.address, flush=True)
while True:
    envelope = wire.receive(1.0)
    if envelope is not None:
        wire.reply(envelope, Done(header=Header(cluster="echo")), envelope.payload)
"""


@contextmanager
def echo(listen: str) -> Iterator[tuple[Address, "subprocess.Popen[str]"]]:
    """Another process that answers every request with its payload."""
    process = subprocess.Popen(
        [sys.executable, "-c", ECHO, listen], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        yield Address(process.stdout.readline().strip()), process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


@pytest.fixture
def client() -> Iterator[FlightWire]:
    with FlightWire(None, OURS) as wire:
        yield wire


@pytest.fixture
def place(tmp_path: Path) -> Address:
    return Address(f"grpc+unix://{tmp_path}/x.sock")


def take(wire: FlightWire) -> Envelope:
    envelope = wire.receive(PATIENT_S)
    assert envelope is not None
    return envelope


# --- where to listen ------------------------------------------------------------------------------


def test_a_stale_socket_file_is_removed(place: Address, client: FlightWire) -> None:
    with echo(place) as (_, process):
        process.kill()
        process.wait()
    assert Path(place.removeprefix("grpc+unix://")).exists()
    with FlightWire(place, OURS) as server:
        client.send(place, MESSAGE, timeout_s=PATIENT_S)
        server.reply(take(server), MESSAGE)
        assert take(client).message == MESSAGE


def test_a_stopped_process_still_holds_its_socket(place: Address) -> None:
    with echo(place) as (_, process):
        process.send_signal(signal.SIGSTOP)
        with pytest.raises(PortInUse) as refused:
            FlightWire(place, OURS)
        assert place.removeprefix("grpc+unix://") in refused.value.message


def test_a_file_that_is_no_socket_is_left_alone(place: Address) -> None:
    path = Path(place.removeprefix("grpc+unix://"))
    path.write_text("precious")
    with pytest.raises(PortInUse):
        FlightWire(place, OURS)
    assert path.read_text() == "precious"


def test_a_port_in_use_is_named() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as other:
        port = other.getsockname()[1]
        with pytest.raises(PortInUse) as refused:
            FlightWire(Address(f"grpc+tcp://127.0.0.1:{port}"), OURS)
        assert str(port) in refused.value.message


def test_a_port_may_be_chosen_by_the_system() -> None:
    with FlightWire(LOCAL, OURS) as one, FlightWire(LOCAL, OURS) as other:
        assert one.address != other.address
        assert not one.address.endswith(":0")


def test_a_long_path_is_named(tmp_path: Path) -> None:
    path = tmp_path / ("x" * 107)
    with pytest.raises(UsageError) as refused:
        FlightWire(Address(f"grpc+unix://{path}"), OURS)
    assert str(path) in refused.value.message


def test_a_directory_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UnwritableDirectory):
        FlightWire(Address(f"grpc+unix://{tmp_path}/none/x.sock"), OURS)


@pytest.mark.parametrize(
    "address", ["", "x", "grpc+unix://", "http://h:1", "grpc+tcp://h", "grpc+tcp://h:99999"]
)
def test_no_place_to_listen(address: str) -> None:
    with pytest.raises(UsageError):
        FlightWire(Address(address), OURS)


# --- peers that hang or die -----------------------------------------------------------------------


def test_a_black_hole_is_noticed_while_connecting(client: FlightWire) -> None:
    """A port whose connections are accepted by the kernel and by nobody else."""
    with closing(socket.create_server(("127.0.0.1", 0))) as hole:
        before = monotonic()
        to = Address(f"grpc+tcp://127.0.0.1:{hole.getsockname()[1]}")
        client.send(to, MESSAGE, timeout_s=PATIENT_S)
        assert take(client).outcome is Outcome.NOT_DONE
        assert monotonic() - before < 5


def test_a_peer_that_freezes_in_a_call_is_noticed(client: FlightWire) -> None:
    with echo(LOCAL) as (address, process):
        client.send(address, MESSAGE, timeout_s=PATIENT_S)
        assert take(client).message is not None
        process.send_signal(signal.SIGSTOP)
        before = monotonic()
        client.send(address, MESSAGE, timeout_s=PATIENT_S)
        assert take(client).outcome is Outcome.UNKNOWN
        assert monotonic() - before < PATIENT_S / 2
        process.send_signal(signal.SIGCONT)
        client.send(address, MESSAGE, timeout_s=PATIENT_S)
        assert take(client).message is not None


def test_a_peer_that_is_killed_and_restarted(client: FlightWire, place: Address) -> None:
    for _ in range(3):
        with echo(place):
            before = monotonic()
            client.send(place, MESSAGE, [bytes(1 << 20)], timeout_s=PATIENT_S)
            assert take(client).message is not None
            assert monotonic() - before < 5
        client.send(place, MESSAGE, timeout_s=PATIENT_S)
        assert take(client).message is None


# --- threads --------------------------------------------------------------------------------------


def threads_of_wires() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("wire-")]


def lanes() -> list[threading.Thread]:
    return [thread for thread in threads_of_wires() if thread.name.startswith("wire-lane")]


def test_closing_leaves_no_thread_and_no_socket(place: Address) -> None:
    with FlightWire(place, OURS) as server, FlightWire(None, OURS) as client:
        for _ in range(8):
            client.send(place, MESSAGE, [bytes(100_000)], timeout_s=PATIENT_S)
        for _ in range(2):
            take(server)
        assert lanes()
        before = monotonic()
    assert monotonic() - before < 2 * DEFAULT_BOUNDS.close_s + 1
    assert not threads_of_wires()
    assert not Path(place.removeprefix("grpc+unix://")).exists()


def test_an_answer_given_before_closing_arrives(client: FlightWire) -> None:
    for _ in range(20):
        server = FlightWire(LOCAL, OURS)
        client.send(server.address, MESSAGE, timeout_s=PATIENT_S)
        server.reply(take(server), MESSAGE, [bytes(1 << 20)])
        server.close()
        assert take(client).message == MESSAGE


def test_idle_lanes_end_and_come_back() -> None:
    bounds = replace(DEFAULT_BOUNDS, lane_idle_s=0.05)
    with FlightWire(LOCAL, OURS) as server, FlightWire(None, OURS, bounds=bounds) as client:
        for _ in range(3):
            client.send(server.address, MESSAGE, timeout_s=PATIENT_S)
            server.reply(take(server), MESSAGE)
            assert take(client).message == MESSAGE
            for thread in lanes():
                thread.join(PATIENT_S)
            assert not lanes()


def test_a_process_that_forgets_to_close_still_ends(place: Address) -> None:
    script = ECHO.partition("while True")[0] + "wire.send(wire.address, Done(header="
    script += "Header(cluster='c')), timeout_s=60.0)\nwire.receive(20.0)\n"
    subprocess.run([sys.executable, "-c", script, place], check=True, timeout=60)


# --- the thin call --------------------------------------------------------------------------------


def test_a_call_and_its_answer(place: Address) -> None:
    payload = [b"a" * 100, bytes(3 << 20)]
    with echo(place):
        for _ in range(3):
            message, back = call(place, MESSAGE, payload, credentials=OURS, timeout_s=PATIENT_S)
            assert message == Done(header=Header(cluster="echo"))
            assert [bytes(view) for view in back] == payload


def test_a_call_finds_a_restarted_peer(place: Address) -> None:
    for _ in range(3):
        with echo(place):
            assert call(place, MESSAGE, credentials=OURS, timeout_s=PATIENT_S)


def test_a_call_from_many_threads(place: Address) -> None:
    answers: list[int] = []

    def work() -> None:
        for n in range(20):
            _, back = call(place, MESSAGE, [bytes([n])], credentials=OURS, timeout_s=PATIENT_S)
            answers.append(back[0][0])

    with echo(place):
        threads = [threading.Thread(target=work) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    assert sorted(answers) == sorted([*range(20)] * 6)


def test_calls_that_fail(place: Address) -> None:
    def outcome(credentials: Credentials = OURS, timeout_s: float = PATIENT_S) -> Outcome:
        with pytest.raises(CallFailed) as failed:
            call(place, MESSAGE, credentials=credentials, timeout_s=timeout_s)
        return failed.value.outcome

    assert outcome() is Outcome.NOT_DONE
    with FlightWire(place, OURS) as server:
        assert outcome(credentials=Credentials(Secret("wrong"))) is Outcome.NOT_DONE
        assert server.receive(0.0) is None
        assert outcome(timeout_s=0.3) is Outcome.UNKNOWN


def test_a_child_of_a_process_that_has_called_is_refused_and_does_not_hang(place: Address) -> None:
    script = """
import os, sys
from rhinoctl.protocol.messages import Done, Header
from rhinoctl.wire.call import CallFailed, call
from rhinoctl.wire.credentials import Credentials
from rhinoctl.wire.secret import Secret

def once():
    ours = Credentials(Secret("right"))
    call(sys.argv[1], Done(header=Header(cluster="c")), credentials=ours, timeout_s=20.0)

early = os.fork()
if early == 0:
    once()
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(early, 0)[1]) == 0
once()
late = os.fork()
if late == 0:
    try:
        once()
    except CallFailed:
        os._exit(7)
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(late, 0)[1]) == 7
once()
"""
    with echo(place):
        subprocess.run([sys.executable, "-c", script, place], check=True, timeout=60)


# --- strangers ------------------------------------------------------------------------------------


def exchange(address: Address, command: bytes, *headers: tuple[bytes, bytes]) -> bytes:
    """A raw exchange; returns the head of the answer."""
    options = flight.FlightCallOptions(timeout=PATIENT_S, headers=list(headers))
    with flight.FlightClient(address) as client:
        descriptor = flight.FlightDescriptor.for_command(command)
        writer, reader = client.do_exchange(descriptor, options)
        with writer:
            writer.write_metadata(pa.py_buffer(b""))
            writer.done_writing()
            return bytes(reader.read_chunk().app_metadata)


RIGHT = (b"authorization", b"Bearer right")


@pytest.mark.parametrize(
    "headers",
    [(), ((b"authorization", b"right"),), ((b"authorization", b"Bearer "),), (RIGHT, RIGHT)],
    ids=["none", "bare", "empty", "twice"],
)
def test_who_has_no_token_gets_nothing(headers: tuple[tuple[bytes, bytes], ...]) -> None:
    with FlightWire(LOCAL, OURS) as server:
        with pytest.raises(flight.FlightUnauthenticatedError):
            exchange(server.address, b"", *headers)
        with (
            pytest.raises(flight.FlightUnauthenticatedError),
            flight.FlightClient(server.address) as client,
        ):
            list(client.list_flights())


@pytest.mark.parametrize(
    "command",
    [b"", b"nonsense", frames.pack(frames.head_for(()), b"no message", ())],
    ids=["empty", "nonsense", "no-message"],
)
def test_what_is_no_message_is_refused_without_the_loop(command: bytes) -> None:
    with FlightWire(LOCAL, OURS) as server:
        _, body, _ = frames.unpack(exchange(server.address, command, RIGHT))
        refusal = decode(body)
        assert isinstance(refusal, Refusal)
        assert refusal.code is RefusalCode.FAULT
        assert server.receive(0.0) is None


@contextmanager
def half_a_request(address: Address) -> Iterator[None]:
    """A caller that sends the first of two buffers and then goes away at the end of this."""
    payload = frames.views([bytes(1 << 20)] * 2)
    head = frames.head_for(payload, timeout_s=PATIENT_S)
    options = flight.FlightCallOptions(timeout=PATIENT_S, headers=[RIGHT])
    with flight.FlightClient(address) as raw:
        command = frames.pack(head, encode(MESSAGE), payload)
        descriptor = flight.FlightDescriptor.for_command(command)
        writer, reader = raw.do_exchange(descriptor, options)
        writer.begin(frames.SCHEMA)
        writer.write_batch(next(frames.batches(head, payload)))
        yield
        reader.cancel()
        with pytest.raises(pa.ArrowException):
            writer.close()


def test_a_caller_that_stops_within_its_payload_does_not_hold_up_closing(place: Address) -> None:
    server = FlightWire(place, OURS)
    with half_a_request(place):
        before = monotonic()
        server.close()
        assert monotonic() - before < DEFAULT_BOUNDS.close_s + 1
        FlightWire(place, OURS).close()
    for thread in threads_of_wires():
        thread.join(PATIENT_S)
    assert not threads_of_wires()


def test_a_caller_that_leaves_within_its_payload_leaves_nothing(client: FlightWire) -> None:
    with FlightWire(LOCAL, OURS, bounds=replace(DEFAULT_BOUNDS, inbox_max=1)) as server:
        with half_a_request(server.address):
            pass
        request = None
        while request is None:  # until the server has noticed, it is busy
            client.send(server.address, MESSAGE, timeout_s=PATIENT_S)
            request = server.receive(0.2)
        assert (request.message, request.payload) == (MESSAGE, ())


def test_the_token_is_not_in_what_is_printed(client: FlightWire) -> None:
    client.send(Address("grpc+tcp://127.0.0.1:1"), MESSAGE, timeout_s=PATIENT_S)
    assert OURS.token.reveal() not in repr(take(client)) + repr(vars(client))
