"""Beacons: a socket that listens as long as its process lives, over Unix sockets and TCP."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rhinoctl.limits import BEACON_PORTS
from rhinoctl.wire.beacon import BACKLOG, SILENT_S, Looking, light, listening, ports_after, reached

PROCESS = """
import sys, time
from rhinoctl.wire.beacon import light
print(light("127.0.0.1", 0), flush=True)
sys.stdin.read()
"""


@pytest.fixture
def process() -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A process with a beacon, and where it is."""
    child = subprocess.Popen(
        [sys.executable, "-c", PROCESS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    yield child, reached(child.stdout.readline().strip(), "grpc+tls://127.0.0.1:7471")
    child.kill()
    child.communicate()


def test_a_beacon_tells_a_dead_process_from_a_stopped_one(
    process: tuple[subprocess.Popen[str], str],
) -> None:
    child, beacon = process
    assert listening(beacon) is True
    os.kill(child.pid, signal.SIGSTOP)
    assert [listening(beacon) for _ in range(BACKLOG)] == [True] * BACKLOG
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    assert listening(beacon) is False


def test_it_may_be_asked_for_ever(process: tuple[subprocess.Popen[str], str]) -> None:
    """Whoever does not take connections has a full queue in the end."""
    _, beacon = process
    for _ in range(6):
        assert [listening(beacon) for _ in range(BACKLOG // 2)] == [True] * (BACKLOG // 2)
        time.sleep(0.1)  # a busy machine lets it take connections only now and then


def test_a_unix_socket_is_one(tmp_path: Path) -> None:
    path = tmp_path / "x.sock"
    assert listening(f"grpc+unix://{path}") is False
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen(0)
        answers = [listening(f"unix://{path}") for _ in range(4)]
        assert answers == [True] * 4, "a full queue takes a living process"
    assert listening(f"grpc+unix://{path}") is False


def test_a_host_of_which_nothing_comes_is_silent() -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen(0)
        place = server.getsockname()
        with socket.create_connection(place):
            assert listening(f"tcp://127.0.0.1:{place[1]}") is None
    assert listening(f"tcp://127.0.0.1:{place[1]}") is False


@pytest.mark.parametrize("address", ["tcp://no.such.host.invalid:1", "tcp://h:99999", "tcp://"])
def test_an_address_that_is_none_says_nothing(address: str) -> None:
    assert listening(address) is None


def test_the_first_free_port_is_taken() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        first = taken.getsockname()[1]
        port = int(light("127.0.0.1", first).removeprefix("tcp://:"))
        assert first < port < first + BEACON_PORTS
        assert listening(f"tcp://127.0.0.1:{port}") is True


def test_without_a_free_port_there_is_no_beacon() -> None:
    assert light("192.0.2.1", 7472) == "", "an address of nobody: no port of it is free"
    assert light("127.0.0.1", 65_536) == "", "nor is there one after the last"


@pytest.mark.parametrize(
    ("listen", "ports"),
    [
        ("grpc+unix:///run/w1.sock", None),
        ("grpc+tls://0.0.0.0:7471", ("0.0.0.0", 7472)),
        ("grpc+tls://[::]:7471", ("::", 7472)),
        ("grpc+tcp://127.0.0.1:0", ("127.0.0.1", 0)),
    ],
)
def test_which_ports_are_for_beacons(listen: str, ports: tuple[str, int] | None) -> None:
    assert ports_after(listen) == ports


def test_a_beacon_is_reached_as_its_agent_is() -> None:
    assert reached("tcp://:7472", "grpc+tls://w1:7471") == "tcp://w1:7472"
    assert reached("tcp://:7472", "grpc+tls://[fe80::1]:7471") == "tcp://[fe80::1]:7472"
    assert reached("grpc+unix:///x.sock", "grpc+unix:///w1.sock") == "grpc+unix:///x.sock"


def test_a_silent_host_is_not_asked_again_at_once() -> None:
    now = 0.0
    asked = []
    answers: dict[str, bool | None] = {"tcp://w1:1": None, "tcp://w1:2": True, "tcp://w2:1": True}

    def ask(address: str) -> bool | None:
        asked.append(address)
        return answers[address]

    look = Looking(ask, lambda: now)
    assert [look(address) for address in answers] == [None, None, True]
    assert asked == ["tcp://w1:1", "tcp://w2:1"]
    now = SILENT_S
    assert look("tcp://w1:2") is True
    assert look("tcp://w1:2") is True
