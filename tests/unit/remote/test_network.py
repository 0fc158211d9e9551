"""The network between hosts, measured for real between two of this machine's addresses."""

import socket
import subprocess
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rhinoctl.errors import HostUnreachable
from rhinoctl.ops.host_checks import Verdict, judge_network
from rhinoctl.remote import network
from rhinoctl.remote.fleet import Fleet, Gate
from rhinoctl.remote.host import Command, Done
from rhinoctl.remote.network import Stop, Stretch, measure, rounds_of
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


def rounds(*stops: Stop, gone: str = "", sessions: int = 0) -> tuple[Stretch, ...]:
    """`sessions`: of a jump host that all but "out" are behind; 0 for none."""
    hosts = {s.name: Gone(s.name) if s.name == gone else LocalHost(s.name) for s in stops}
    gate = Gate(sessions or 1)
    jumps = {name: gate for name in hosts if sessions and name != "out"}
    with Fleet[LocalHost](hosts, jumps) as fleet:
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


@pytest.mark.parametrize("sessions", [2, 3])
def test_those_behind_a_jump_host_are_measured_by_so_many_at_once_as_it_lets_through(
    sessions: int,
) -> None:
    stops = [stop(name) for name in "abcde"]
    found = rounds(*stops, sessions=sessions)
    assert [(s.sender, s.receiver) for s in found] == [*pairwise("abcde"), ("e", "a")]
    assert [(s.fault, s.unmeasured) for s in found] == [("", "")] * 5
    assert all(s.bytes_s is not None and s.bytes_s > 1 << 20 for s in found)


def test_two_that_are_never_reached_at_once_are_not_measured_and_have_not_failed() -> None:
    found = rounds(stop("a"), stop("b"), stop("out"), sessions=1)
    assert [bool(s.unmeasured) for s in found] == [True, False, False]
    assert [s.fault for s in found] == ["", "", ""]
    judged = judge_network(found)
    assert [f.verdict for f in judged] == [Verdict.WARN, Verdict.PASS, Verdict.PASS]
    assert "not measured" in judged[0].seen
    assert "ssh.sessions" in judged[0].remedy


def test_a_network_that_lets_nothing_through_is_not_tried_for_ever() -> None:
    stops = [stop(name) for name in "abcd"]
    gate, times = Gate(2), iter([0.0, 0.0, 1000.0])
    with Fleet[LocalHost](
        {s.name: LocalHost(s.name) for s in stops}, dict.fromkeys("abcd", gate)
    ) as f:
        found = measure(f, stops, lambda: next(times))
    assert [bool(s.unmeasured) for s in found] == [False, True, True, True]


@given(
    count=st.integers(2, 40),
    sessions=st.lists(st.integers(1, 9), min_size=1, max_size=3),
)
def test_a_round_never_takes_more_than_can_be_reached_at_once(
    count: int, sessions: list[int]
) -> None:
    stops = [Stop(name=str(n), python="", address="", port=1) for n in range(count)]
    gates = [Gate(each) for each in sessions]
    fleet = Fleet[LocalHost]({}, {s.name: gates[n % len(gates)] for n, s in enumerate(stops)})
    pairs = [*pairwise(stops), (stops[-1], stops[0])]
    made = rounds_of(pairs, fleet.at_once)
    assert all(fleet.at_once({s.name for pair in each for s in pair}) for each in made)
    measured = [pair for each in made for pair in each]
    assert len(measured) == len(set(measured))
    apart = set(pairs) - set(measured)
    assert not any(fleet.at_once({a.name, b.name}) for a, b in apart)


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
