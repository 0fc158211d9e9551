"""The wire over TLS with certificates on both sides: real sockets on the loopback.

Whoever is refused never reaches the loop, and is told which it is as far as its side can know.
"""

import pickle
import socket
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
from pyarrow import flight

from rhinoctl.config.authority import issue, make_authority
from rhinoctl.errors import UsageError
from rhinoctl.protocol.messages import Done, Header, Refusal, RefusalCode, decode
from rhinoctl.protocol.ports import Address, Outcome
from rhinoctl.wire import frames
from rhinoctl.wire.call import CallFailed, call
from rhinoctl.wire.credentials import Credentials, Tls
from rhinoctl.wire.exchange import HANDSHAKES
from rhinoctl.wire.flight import FlightWire
from rhinoctl.wire.secret import Secret
from tests.fakes.tls import certified

PATIENT_S = 20.0
LONG_AGO = datetime.now(UTC) - timedelta(days=2000)
MESSAGE = Done(header=Header(cluster="c"))
TOKEN = Secret("right")
CLUSTER = make_authority("prod")
ANOTHER = make_authority("prod")
OURS = Credentials(TOKEN, certified(CLUSTER))


def listening(tls: Tls, on: str = "127.0.0.1") -> FlightWire:
    return FlightWire(Address(f"grpc+tls://{on}:0"), Credentials(TOKEN, tls))


@pytest.fixture
def server() -> Iterator[FlightWire]:
    with listening(certified(CLUSTER)) as wire:
        yield wire


def failure(to: Address, credentials: Credentials) -> CallFailed:
    with pytest.raises(CallFailed) as failed:
        call(to, MESSAGE, [bytes(1 << 20)], credentials=credentials, timeout_s=PATIENT_S)
    return failed.value


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_an_agent_on_all_addresses_is_reached_by_any_of_its_names(host: str) -> None:
    """A request of some MB and its answer; the server listens on 0.0.0.0."""
    payload = [bytes(3 << 20), b"x" * 1_000_001]
    with listening(certified(CLUSTER), "0.0.0.0") as server, FlightWire(None, OURS) as client:
        port = server.address.rpartition(":")[2]
        client.send(Address(f"grpc+tls://{host}:{port}"), MESSAGE, payload, timeout_s=PATIENT_S)
        request = server.receive(PATIENT_S)
        assert request is not None
        assert [bytes(each) for each in request.payload] == payload
        server.reply(request, MESSAGE, payload)
        answer = client.receive(PATIENT_S)
        assert answer is not None
        assert (answer.message, [bytes(each) for each in answer.payload]) == (MESSAGE, payload)


def test_version_six() -> None:
    with listening(certified(CLUSTER, ["::1"]), "[::1]") as server:
        assert server.address.startswith("grpc+tls://[::1]:")
        with FlightWire(None, OURS) as client:
            client.send(server.address, MESSAGE, timeout_s=PATIENT_S)
            assert server.receive(PATIENT_S) is not None


@pytest.mark.parametrize(
    "credentials",
    [
        Credentials(Secret("wrong"), OURS.tls),
        Credentials(TOKEN, certified(ANOTHER)),
        Credentials(TOKEN, None),
    ],
    ids=["token", "cluster", "none"],
)
def test_a_stranger_never_reaches_the_loop(server: FlightWire, credentials: Credentials) -> None:
    assert failure(server.address, credentials).outcome is Outcome.NOT_DONE
    assert server.receive(0.1) is None


@pytest.mark.parametrize(
    "tls",
    [certified(ANOTHER), certified(CLUSTER, now=LONG_AGO)],
    ids=["of another cluster", "expired"],
)
def test_a_client_that_trusts_us_still_needs_a_certificate_of_ours(
    server: FlightWire, tls: Tls
) -> None:
    """Its side cannot know more than that the handshake was ended."""
    ours = OURS.tls
    assert ours is not None
    mixed = Tls(ca=ours.ca, certificate=tls.certificate, key=tls.key)
    failed = failure(server.address, Credentials(TOKEN, mixed))
    assert failed.outcome is Outcome.NOT_DONE
    assert HANDSHAKES["Socket closed"] in failed.detail
    assert server.receive(0.1) is None


@pytest.mark.parametrize(
    ("tls", "said"),
    [
        (certified(ANOTHER), "certificate verify failed"),
        (
            certified(CLUSTER, now=LONG_AGO),
            "certificate verify failed: certificate has expired",
        ),
        (
            certified(CLUSTER, now=datetime.now(UTC) + timedelta(days=2)),
            "certificate verify failed: certificate is not yet valid",
        ),
        (certified(CLUSTER, ["w9", "192.0.2.1"]), "is not in peer certificate"),
    ],
    ids=["another cluster", "expired", "not yet", "another host"],
)
def test_a_server_that_is_not_who_it_should_be_gets_nothing(tls: Tls, said: str) -> None:
    with listening(tls) as server:
        failed = failure(server.address, OURS)
        assert failed.outcome is Outcome.NOT_DONE
        assert failed.detail.startswith(HANDSHAKES[said])
        assert server.receive(0.1) is None


def test_a_certificate_of_a_person_serves_nobody() -> None:
    """Also not under a name that is a host's."""
    person = issue(CLUSTER, name="localhost", role="operator", hosts=())
    tls = Tls(
        ca=CLUSTER.certificate.decode(), certificate=person.certificate.decode(), key=person.key
    )
    with listening(tls, "localhost") as server:
        failed = failure(server.address, OURS)
        assert failed.outcome is Outcome.NOT_DONE
        said = "certificate verify failed: unsuitable certificate purpose"
        assert failed.detail.startswith(HANDSHAKES[said])
        assert server.receive(0.1) is None


def test_a_server_without_tls_gets_nothing() -> None:
    with FlightWire(Address("grpc+tcp://127.0.0.1:0"), Credentials(TOKEN)) as server:
        to = Address(server.address.replace("tcp", "tls", 1))
        failed = failure(to, OURS)
        assert failed.outcome is Outcome.NOT_DONE
        assert failed.detail.startswith(HANDSHAKES["wrong version number"])
        assert server.receive(0.1) is None


def test_a_client_without_tls_gets_nothing(server: FlightWire) -> None:
    to = Address(server.address.replace("tls", "tcp", 1))
    assert failure(to, OURS).outcome is Outcome.NOT_DONE
    port = int(server.address.rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port)) as plain:
        plain.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
        plain.settimeout(PATIENT_S)
        answer = plain.recv(1024)
        assert answer == b"" or answer[0] == 0x15, "nothing, or an alert of TLS"
    assert server.receive(0.1) is None


def test_a_pickle_is_not_read(server: FlightWire) -> None:
    """Design, section 13: also not from somebody who has everything it takes to be let in."""

    class Bomb:
        def __reduce__(self) -> tuple[type, tuple[str]]:
            return AssertionError, ("a pickle was read",)

    tls = OURS.tls
    assert tls is not None
    client = flight.FlightClient(
        server.address,
        tls_root_certs=tls.ca,
        cert_chain=tls.certificate,
        private_key=tls.key.reveal(),
    )
    bearer = (b"authorization", b"Bearer " + TOKEN.reveal().encode())
    options = flight.FlightCallOptions(timeout=PATIENT_S, headers=[bearer])
    descriptor = flight.FlightDescriptor.for_command(pickle.dumps(Bomb()))
    writer, reader = client.do_exchange(descriptor, options)
    writer.done_writing()

    _, body, _ = frames.unpack(reader.read_chunk().app_metadata)
    answer = decode(body)
    assert isinstance(answer, Refusal)
    assert answer.code is RefusalCode.FAULT
    writer.close()
    client.close()
    assert server.receive(0.1) is None


def test_an_address_with_tls_needs_certificates() -> None:
    with pytest.raises(UsageError):
        FlightWire(Address("grpc+tls://127.0.0.1:0"), Credentials(TOKEN))


def test_a_unix_socket_needs_none(tmp_path_factory: pytest.TempPathFactory) -> None:
    """An agent that is reached over TLS talks so to its instances, which have no certificates."""
    place = Address(f"grpc+unix://{tmp_path_factory.mktemp('u')}/i.sock")
    with FlightWire(place, Credentials(TOKEN)) as instance, FlightWire(None, OURS) as agent:
        agent.send(place, MESSAGE, timeout_s=PATIENT_S)
        assert instance.receive(PATIENT_S) is not None


def test_a_peer_that_comes_back_with_another_certificate_is_trusted_again() -> None:
    """Renewal: a restart with a certificate of the same authority needs no word to anybody."""
    with listening(certified(CLUSTER)) as server, FlightWire(None, OURS) as client:
        to = server.address
        client.send(to, MESSAGE, timeout_s=PATIENT_S)
        assert server.receive(PATIENT_S) is not None
        server.close()
        with FlightWire(to, Credentials(TOKEN, certified(CLUSTER))) as renewed:
            client.receive(PATIENT_S)  # what became of the first
            client.send(to, MESSAGE, timeout_s=PATIENT_S)
            assert renewed.receive(PATIENT_S) is not None
