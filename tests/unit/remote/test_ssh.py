"""Connections over SSH that do not come about: one reason a host, and nothing beside it."""

import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import paramiko
import pytest

from rhinoctl.config.inventory import Ssh
from rhinoctl.errors import HostUnreachable, KnownHostsUnusable
from rhinoctl.ops.hosts import way_to
from rhinoctl.remote.known_hosts import Accept, load
from rhinoctl.remote.ssh import Login, SshHost

KEY = "AAAAC3NzaC1lZDI1NTE5AAAAIIhHtLCUB0ymb9oDHqFHv/3ZXnPjWTXUsLWSjVxQ8cPA"

Answer = Callable[[socket.socket], object]
ANSWERS: dict[str, tuple[Answer, str]] = {
    "closes": (lambda peer: None, "ends the connection without a greeting"),
    "resets": (
        lambda peer: peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0"),
        "ends the connection without a greeting",
    ),
    "speaks of something else": (
        lambda peer: peer.sendall(b"HTTP/1.1 400 Bad Request\r\n" * 200),
        "HTTP/1.1 400 Bad Request",
    ),
    "says nothing": (lambda peer: peer.recv(1 << 16) and peer.recv(1), "no greeting within 0.3 s"),
}


@pytest.fixture(params=ANSWERS)
def answer(request: pytest.FixtureRequest) -> Iterator[tuple[int, str]]:
    """A port that is no sshd's, and what is to be said of it."""
    does, said = ANSWERS[request.param]

    def serve() -> None:
        while True:
            try:
                peer, _ = server.accept()
            except OSError:
                return
            with peer:
                does(peer)

    with socket.create_server(("127.0.0.1", 0)) as server:
        serving = threading.Thread(target=serve, daemon=True)
        serving.start()
        yield server.getsockname()[1], said
        server.shutdown(socket.SHUT_RDWR)
        serving.join(5)


def host_at(port: int, known: Path) -> SshHost:
    ssh = Ssh.model_validate(
        {"user": "spark", "port": port, "known_hosts": str(known), "connect_s": 0.3}
    )
    return SshHost("w1", way_to("127.0.0.1", ssh), Login())


def test_a_port_that_is_no_sshd_s_is_named_with_what_it_does(
    answer: tuple[int, str], tmp_path: Path
) -> None:
    port, said = answer
    with pytest.raises(HostUnreachable) as raised:
        host_at(port, tmp_path / "known").connect()
    begin = f"w1: 127.0.0.1 does not answer as an SSH server does on port {port}: "
    assert raised.value.message.startswith(begin)
    assert said in raised.value.message
    assert "ssh.port" in raised.value.remedy


def test_nothing_is_written_to_stderr_about_it(answer: tuple[int, str], tmp_path: Path) -> None:
    """In a process of its own: a logger that nobody has set up writes there."""
    code = (
        "import sys\n"
        "from pathlib import Path\n"
        "from rhinoctl.errors import HostUnreachable\n"
        "from tests.unit.remote.test_ssh import host_at\n"
        "try:\n"
        "    host_at(int(sys.argv[1]), Path(sys.argv[2])).connect()\n"
        "except HostUnreachable:\n"
        "    print('unreachable')\n"
    )
    argv = [sys.executable, "-c", code, str(answer[0]), str(tmp_path / "known")]
    done = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=60)
    assert (done.stdout, done.stderr) == ("unreachable\n", "")


# --- known hosts ---------------------------------------------------------------------------------


def loaded(file: Path) -> paramiko.HostKeys:
    keys = paramiko.HostKeys()
    load(keys, "w1", file)
    return keys


@pytest.mark.parametrize(
    "line",
    [
        b"\xff\xfe ssh-ed25519 " + KEY.encode(),
        b"w2 ssh-ed25519 AAA",
        b"w2 ssh-ed25519 \xff\xff",
    ],
)
def test_a_damaged_line_of_the_known_hosts_is_named(tmp_path: Path, line: bytes) -> None:
    file = tmp_path / "known"
    file.write_bytes(b"w1 ssh-ed25519 " + KEY.encode() + b"\n# \xe9\n" + line + b"\n")
    with pytest.raises(KnownHostsUnusable) as raised:
        host_at(9, file).connect()
    assert f"line 3 of {file}" in raised.value.message
    assert "3d" in raised.value.remedy


def test_known_hosts_that_cannot_be_read_or_written_are_named(tmp_path: Path) -> None:
    with pytest.raises(KnownHostsUnusable, match="Is a directory"):
        loaded(tmp_path)
    file = tmp_path / "a file/known"
    (tmp_path / "a file").touch()
    key = loaded_key(tmp_path)
    with pytest.raises(KnownHostsUnusable, match=str(file)):
        Accept("w1", file, print).missing_host_key(paramiko.SSHClient(), "w1", key)


def loaded_key(directory: Path) -> paramiko.PKey:
    file = directory / "known"
    file.write_text(f"w1 ssh-ed25519 {KEY}\n")
    found = loaded(file).lookup("w1")
    assert found is not None
    key: paramiko.PKey = found["ssh-ed25519"]
    return key


def test_what_is_no_key_of_a_host_is_passed_over_and_the_rest_is_known(tmp_path: Path) -> None:
    file = tmp_path / "known"
    file.write_bytes(
        b"# caf\xe9\n\n@cert-authority *.example.com ssh-rsa AAAA\n"
        b"w0 ssh-of-tomorrow AAAA\n"
        b"w1,10.0.0.1 ssh-ed25519 " + KEY.encode() + b" of caf\xe9 \n"
    )
    keys = loaded(file)
    assert sorted(keys.keys()) == ["10.0.0.1", "w1"]
    assert loaded(tmp_path / "none").keys() == []
