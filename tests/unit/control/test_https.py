"""A controller's API over HTTPS: a process of its own, certificates on both sides, and roles."""

import json
import os
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest

from rhinoctl import errors
from rhinoctl.config.access import write_access
from rhinoctl.config.authority import Authority, Issued, issue, make_authority
from rhinoctl.control.client import ControlClient, Located, locate_controller
from rhinoctl.control.roles import Role
from rhinoctl.ids import JobName
from rhinoctl.ops.cluster import read_status
from rhinoctl.protocol import codec, views
from rhinoctl.wire.secret import Secret
from tests.fakes.tls import certified, files_of

START_S = 30.0
LONG_AGO = datetime.now(UTC) - timedelta(days=2000)
CLUSTER = make_authority("prod")
SET = views.SetJob(replication=1)
SESSION = views.TakeSession(query_id="q", run_id="r", batch=0)


def access(
    directory: Path,
    address: str,
    *,
    role: Role = Role.OPERATOR,
    ca: Authority = CLUSTER,
    issued: Issued | None = None,
    token: str | None = None,
) -> Located:
    """An access as `rhinoctl deploy` gives it, or one with something that is wrong."""
    write_access(
        directory,
        controller=address,
        ca=ca.certificate,
        issued=issued or issue(CLUSTER, name="someone", role=role, hosts=()),
        token=Secret(token or f"token-of-{role}"),
        wire_token=Secret("wire"),
    )
    return locate_controller(str(directory), {})


def client_of(located: Located) -> ControlClient:
    return ControlClient(located.address, located.token_file, located.tls)


@dataclass
class Running:
    """A controller without workers, on all addresses of this machine."""

    port: int
    process: "subprocess.Popen[bytes]"

    @property
    def address(self) -> str:
        return f"https://localhost:{self.port}"


def start(directory: Path, **changes: object) -> "subprocess.Popen[bytes]":
    """A controller's process; without a word of who may listen where."""
    for name in ("wire", *Role):
        (directory / f"{name}.token").write_text("wire" if name == "wire" else f"token-of-{name}")
    settings = {
        "cluster": "prod",
        "store": str(directory / "store"),
        "token_file": str(directory / "wire.token"),
        "workers": {},
        "parent": os.getpid(),
        "tokens": {str(role): str(directory / f"{role}.token") for role in Role},
        **changes,
    }
    path = directory / "controller.json"
    path.write_text(json.dumps(settings))
    log = (directory / "log").open("wb")
    argv = [sys.executable, "-m", "rhinoctl.control", str(path)]
    return subprocess.Popen(argv, stdout=log, stderr=log)


@pytest.fixture(scope="module")
def controller(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    directory = tmp_path_factory.mktemp("controller")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    files = files_of(certified(CLUSTER), directory / "tls")
    process = start(directory, listen=f"https://0.0.0.0:{port}", tls=codec.to_json(files))
    running = Running(port, process)
    try:
        with client_of(access(directory / "access", running.address)) as client:
            _await(client, directory / "log")
        yield running
    finally:
        process.terminate()
        process.wait(START_S)


@contextmanager
def answering(directory: Path, context: ssl.SSLContext) -> Iterator[ControlClient]:
    """A client of a server that takes one connection, as far as its handshake goes."""

    def take() -> None:
        connection, _ = server.accept()
        handshake = context.wrap_socket(connection, server_side=True, do_handshake_on_connect=False)
        with handshake:
            with suppress(OSError):
                handshake.do_handshake()
            with suppress(OSError):  # read on, lest the end overtake the alert
                while os.read(handshake.fileno(), 65536):
                    continue

    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(START_S)
        thread = threading.Thread(target=take)
        thread.start()
        address = f"https://127.0.0.1:{server.getsockname()[1]}"
        try:
            with client_of(access(directory / "access", address)) as client:
                yield client
        finally:
            thread.join()


def _await(client: ControlClient, log: Path) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        try:
            client.status()
        except errors.NotRunning:
            time.sleep(0.05)
        else:
            return
    raise AssertionError(log.read_text())


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1"])
def test_the_operator_of_the_cluster_is_served(
    controller: Running, tmp_path: Path, host: str
) -> None:
    located = access(tmp_path / "access", f"https://{host}:{controller.port}")
    assert read_status(str(tmp_path / "access")).cluster == "prod"
    with client_of(located) as client, pytest.raises(errors.UnknownJob):
        client.set_job("clicks", SET)


@pytest.mark.parametrize("role", [Role.VIEWER, Role.DRIVER])
def test_a_role_is_refused_what_it_may_not_do(
    controller: Running, tmp_path: Path, role: Role
) -> None:
    with client_of(access(tmp_path / "access", controller.address, role=role)) as client:
        assert client.jobs().jobs == ()
        with pytest.raises(errors.RoleTooLow) as refused:
            client.set_job("clicks", SET)
        assert (refused.value.exit_code, str(Role.OPERATOR) in refused.value.message) == (3, True)
        wanted = errors.RoleTooLow if role is Role.VIEWER else errors.UnknownJob
        with pytest.raises(wanted):
            client.take_session(JobName("clicks"), SESSION)


@pytest.mark.parametrize("token", ["wrong", "wire"])
def test_a_token_of_no_role_is_refused(controller: Running, tmp_path: Path, token: str) -> None:
    """The wire's token opens the agents, and not the API."""
    with (
        client_of(access(tmp_path / "access", controller.address, token=token)) as client,
        pytest.raises(errors.Unauthenticated),
    ):
        client.status()


def test_a_controller_of_another_cluster_gets_nothing(controller: Running, tmp_path: Path) -> None:
    other = make_authority("prod")
    issued = issue(other, name="someone", role="operator", hosts=())
    located = access(tmp_path / "access", controller.address, ca=other, issued=issued)
    with client_of(located) as client, pytest.raises(errors.CertificateRefused):
        client.status()


def test_a_deployed_controller_that_is_gone_is_started_where_it_was_deployed(
    tmp_path: Path,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"https://127.0.0.1:{server.getsockname()[1]}"
    with (
        client_of(access(tmp_path / "access", address)) as client,
        pytest.raises(errors.NotRunning) as refused,
    ):
        client.status()
    assert "rhinoctl start controller" in refused.value.remedy
    assert "local up" not in refused.value.remedy


def test_a_controller_under_another_name_gets_nothing(tmp_path: Path) -> None:
    """Its certificate is that of another host."""
    files = files_of(certified(CLUSTER, ["c9"]), tmp_path / "server")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=files.ca)
    context.load_cert_chain(files.certificate, files.key)
    with pytest.raises(errors.CertificateRefused), answering(tmp_path, context) as client:
        client.status()


def test_without_a_certificate_of_ours_nothing_is_answered(
    controller: Running, tmp_path: Path
) -> None:
    """It trusts us, has a token that is right, and shows no certificate, another's, an old one."""
    located = access(tmp_path / "access", controller.address)
    assert located.tls is not None
    token = {"Authorization": f"Bearer token-of-{Role.OPERATOR}"}
    strangers = {
        "another": certified(make_authority("prod")),
        "expired": certified(CLUSTER, now=LONG_AGO),
    }
    for name in (None, *strangers):
        context = ssl.create_default_context(cafile=located.tls.ca)
        if name is not None:
            files = files_of(strangers[name], tmp_path / name)
            context.load_cert_chain(files.certificate, files.key)
        with (
            httpx.Client(verify=context, trust_env=False) as stranger,
            pytest.raises(httpx.TransportError),
        ):
            stranger.get(f"{controller.address}/v1/status", headers=token)


def test_what_the_other_side_thinks_of_our_certificate_is_an_error_of_its_own(
    tmp_path: Path,
) -> None:
    """It comes after our part of the handshake, and before it reads a request: nothing was done."""
    server = make_authority("prod")
    files = files_of(certified(CLUSTER), tmp_path / "server")
    context = ssl.create_default_context(
        ssl.Purpose.CLIENT_AUTH, cadata=server.certificate.decode()
    )
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_cert_chain(files.certificate, files.key)
    with pytest.raises(errors.CertificateRefused), answering(tmp_path, context) as client:
        client.set_job("clicks", SET)


def test_plain_http_is_not_answered(controller: Running) -> None:
    with (
        httpx.Client(trust_env=False) as plain,
        pytest.raises(httpx.TransportError),
    ):
        plain.get(f"http://localhost:{controller.port}/v1/status")


@pytest.mark.parametrize("listen", ["https://127.0.0.1:0", "http://0.0.0.0:0", "ftp://x"])
def test_without_certificates_it_is_not_seen_from_outside(tmp_path: Path, listen: str) -> None:
    process = start(tmp_path, listen=listen)
    assert process.wait(START_S) == errors.Exit.USAGE, (tmp_path / "log").read_text()


def test_an_access_that_is_copied_works_and_is_for_its_owner_only(tmp_path: Path) -> None:
    located = access(tmp_path / "access", "https://c1:7470")
    modes = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "access").iterdir()}
    assert set(modes.values()) == {0o600}
    assert (tmp_path / "access").stat().st_mode & 0o777 == 0o700
    (tmp_path / "access").rename(tmp_path / "moved")
    moved = locate_controller(str(tmp_path / "moved"), {})
    assert moved.token_file == str(tmp_path / "moved" / "token")
    assert moved != located
    assert moved.wire_token_file == str(tmp_path / "moved" / "wire-token")
    assert moved.tls is not None
    with client_of(moved):
        pass  # its certificates are read here


def test_a_controller_that_hangs_does_not_answer_and_no_source_of_python_is_named(
    tmp_path: Path,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"https://127.0.0.1:{server.getsockname()[1]}"
        with (
            client_of(access(tmp_path / "access", address)) as client,
            pytest.raises(errors.NotRunning) as silent,
        ):
            client.status()
    assert "timed out" in silent.value.message
    assert ".c:" not in silent.value.message


def test_a_deployed_cluster_goes_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environ = {"XDG_STATE_HOME": str(tmp_path / "state")}
    named = access(tmp_path / "state" / "rhinoctl" / "clusters" / "prod", "https://c1:7470")
    assert locate_controller("prod", environ).address == named.address
    assert locate_controller(None, {**environ, "RHINO_CONTROLLER": "prod"}).address == named.address
    monkeypatch.chdir(tmp_path)
    access(tmp_path / "prod", "https://c2:7470")
    assert locate_controller("prod", environ).address == "https://c1:7470"
    assert locate_controller("./prod", environ).address == "https://c2:7470"
    for none in ("staging", ".."):
        with pytest.raises(errors.NotRunning) as refused:
            locate_controller(none, environ)
        assert "prod" in refused.value.remedy
