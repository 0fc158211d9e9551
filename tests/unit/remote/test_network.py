"""The network between hosts, measured for real between two of this machine's addresses."""

import socket
import subprocess

import pytest

from rhinoctl.errors import HostUnreachable
from rhinoctl.ops.host_checks import Verdict, judge_network
from rhinoctl.remote import network
from rhinoctl.remote.fleet import Fleet
from rhinoctl.remote.host import Command, Done
from rhinoctl.remote.network import Stop, Stretch, measure
from tests.fakes.local_host import LocalHost
from tests.integration.real_hosts import free_port


class Gone(LocalHost):
    def run(self, command: Command) -> Done:
        raise HostUnreachable(f"{self.name}: no answer", remedy="see it")


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "SECONDS", 0.1)
    monkeypatch.setattr(network, "LIMIT_S", 3.0)


def stop(name: str, address: str = "127.0.0.1") -> Stop:
    return Stop(name=name, python="python3", address=address, port=free_port(address))


def rounds(*stops: Stop, gone: str = "") -> tuple[Stretch, ...]:
    hosts = {s.name: Gone(s.name) if s.name == gone else LocalHost(s.name) for s in stops}
    with Fleet[LocalHost](hosts, {}) as fleet:
        return measure(fleet, stops)


def test_each_sends_to_the_next_and_the_last_to_the_first() -> None:
    stops = [stop("a"), stop("b"), stop("c", "localhost")]
    found = rounds(*stops)
    assert [(s.sender, s.receiver, s.port) for s in found] == [
        ("a", "b", stops[1].port),
        ("b", "c", stops[2].port),
        ("c", "a", stops[0].port),
    ]
    assert [s.fault for s in found] == ["", "", ""]
    assert all(s.bytes_s is not None and s.bytes_s > 1 << 20 for s in found)


def test_one_alone_has_nobody_to_send_to() -> None:
    assert rounds(stop("a")) == ()


def test_what_is_wrong_is_said_of_its_stretch_only() -> None:
    a, b, c = stop("a"), stop("b"), stop("c")
    found = rounds(a, b, c, gone="c")
    assert found[0].fault == ""
    assert [s.fault for s in found[1:]] == ["c: no answer", "c: no answer"]


def test_a_port_that_is_taken_is_said() -> None:
    a, b = stop("a"), stop("b")
    with socket.create_server(("0.0.0.0", b.port)):
        found = rounds(a, b)
    assert f"b cannot listen on port {b.port}" in found[0].fault
    assert found[1].fault == ""


def test_a_stranger_is_hung_up_on_and_disturbs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes without the secret are not counted."""
    monkeypatch.setattr(network, "SECONDS", 0.5)
    a, b = stop("a"), stop("b")
    stranger = subprocess.Popen(
        ["python3", "-c", _STRANGER, str(b.port)], stdout=subprocess.PIPE, text=True
    )
    assert stranger.stdout is not None
    assert stranger.stdout.readline() == "knocks\n"
    try:
        found = rounds(a, b)
    finally:
        said, _ = stranger.communicate(timeout=10)
    assert [s.fault for s in found] == ["", ""]
    assert said.strip() == "hung up on"


_STRANGER = """
import socket, sys, time
print("knocks", flush=True)
end = time.monotonic() + 5
while time.monotonic() < end:
    try:
        with socket.create_connection(("127.0.0.1", int(sys.argv[1])), 1) as peer:
            peer.sendall(b"x" * 32)
            try:
                peer.recv(1)
            except ConnectionResetError:
                pass
            print("hung up on")
            break
    except OSError:
        time.sleep(0.01)
"""


def test_what_it_means() -> None:
    found = judge_network(
        [
            Stretch(sender="a", receiver="b", port=7535, bytes_s=200e6),
            Stretch(sender="b", receiver="c", port=7535, bytes_s=2e6),
            Stretch(sender="c", receiver="a", port=7535, bytes_s=None, fault="timed out"),
        ]
    )
    assert [(f.host, f.check, f.verdict) for f in found] == [
        ("a", "network", Verdict.PASS),
        ("b", "network", Verdict.WARN),
        ("c", "network", Verdict.FAIL),
    ]
    assert "port 7535 of a" in found[2].remedy
    assert found[2].seen == "to a: timed out"
