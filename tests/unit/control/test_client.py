"""The client against a server on a Unix socket: what comes back, and as which error."""

import pickle
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rhinoctl import errors
from rhinoctl.control.client import ControlClient, locate_controller
from rhinoctl.ids import InstanceId, JobName, Vnode
from rhinoctl.protocol import codec, views
from rhinoctl.protocol.jobs import OperatorSpec
from rhinoctl.wire.secret import Secret, read_token
from tests.fakes import controller as fake
from tests.fakes.controller import TOKEN, FakeController


@pytest.fixture
def controller(tmp_path: Path) -> Iterator[FakeController]:
    with FakeController(tmp_path) as running:
        yield running


@pytest.fixture
def client(controller: FakeController) -> Iterator[ControlClient]:
    with ControlClient(controller.address, Secret(TOKEN)) as opened:
        yield opened


SPEC = OperatorSpec(name="running-aggregate", spec="{}", digest="d")
REGISTER = views.RegisterJob(
    name=JobName("clicks"), vnodes=16, instances=None, replication=0, operator=SPEC
)
SESSION = views.TakeSession(query_id="q", run_id="r", batch=0)
REPORT = views.DriverReport(session=1, epoch=1, batch=None, revision=0)
OFFER = views.Offer(revision=1, proposal=None, wake=0, live=True)
MOVE = views.HandoverRequest(vnodes=(Vnode(3),), to=InstanceId("i1"))
DONE = views.Acknowledged(detail="done")
BIND = views.BindRequest(new_stream=True)
ABORT = views.AbortRequest(reason="enough")

CALLS: list[tuple[str, tuple[Any, ...], str, str, Any]] = [
    ("status", (), "GET", "/v1/status", fake.status()),
    ("jobs", (), "GET", "/v1/jobs", views.JobList(jobs=(fake.job(),))),
    ("job", ("a b?c",), "GET", "/v1/jobs/a%20b%3Fc", fake.job()),
    ("register", (REGISTER,), "POST", "/v1/jobs", fake.job()),
    ("delete", ("clicks",), "DELETE", "/v1/jobs/clicks", DONE),
    ("poll", ("clicks", REPORT), "POST", "/v1/jobs/clicks/poll", OFFER),
    ("bind", ("clicks", BIND), "POST", "/v1/jobs/clicks/bind", DONE),
    ("handover", ("clicks", MOVE), "POST", "/v1/jobs/clicks/handover", fake.operation()),
    (
        *("rescale", ("clicks", views.RescaleRequest(instances=4))),
        *("POST", "/v1/jobs/clicks/rescale", fake.operation()),
    ),
    ("operations", (), "GET", "/v1/ops", views.OperationList(operations=(fake.operation(),))),
    ("operation", ("op-7",), "GET", "/v1/ops/op-7", fake.operation()),
    ("abort", ("op-7", ABORT), "POST", "/v1/ops/op-7/abort", fake.operation()),
]


@pytest.mark.parametrize(("method", "args", "verb", "path", "answer"), CALLS)
def test_a_call_sends_its_body_and_returns_the_view(
    controller: FakeController,
    client: ControlClient,
    method: str,
    args: tuple[Any, ...],
    verb: str,
    path: str,
    answer: Any,
) -> None:
    controller.answers[verb, path] = answer
    assert getattr(client, method)(*args) == answer
    body = None if not args or isinstance(args[-1], str) else codec.to_json(args[-1])
    assert controller.asked == [(verb, path, body)]


def test_a_session_is_granted(controller: FakeController, client: ControlClient) -> None:
    refusal = fake.problem("second-session", "run r1 holds the session")
    controller.answers["POST", "/v1/jobs/clicks/session"] = refusal
    with pytest.raises(errors.SecondSession):
        client.take_session(JobName("clicks"), SESSION)


@pytest.mark.parametrize("kind", errors.leaves(), ids=lambda kind: kind.code)
def test_every_error_keeps_its_class_message_and_remedy(
    controller: FakeController, client: ControlClient, kind: type[errors.RhinoError]
) -> None:
    controller.answers["GET", "/v1/status"] = fake.problem(kind.code, "what", "type this")
    with pytest.raises(errors.RhinoError) as caught:
        client.status()
    assert type(caught.value) is kind
    assert (caught.value.message, caught.value.remedy) == ("what", "type this")


def test_a_code_of_a_later_version_is_an_error_too(
    controller: FakeController, client: ControlClient
) -> None:
    controller.answers["GET", "/v1/status"] = fake.problem("made-up-later", "what")
    with pytest.raises(errors.RhinoError) as caught:
        client.status()
    assert caught.value.message == "what"


@pytest.mark.parametrize("name", ["", "a/b"])
def test_names_that_no_path_of_the_api_can_have(client: ControlClient, name: str) -> None:
    with pytest.raises(errors.UnknownJob):
        client.job(name)
    with pytest.raises(errors.UnknownOperation):
        client.operation(name)


def test_an_answer_that_is_not_understood(
    controller: FakeController, client: ControlClient
) -> None:
    controller.answers["GET", "/v1/status"] = b'{"other": 1}'
    with pytest.raises(errors.RhinoError) as caught:
        client.status()
    assert caught.value.exit_code is errors.Exit.UNEXPECTED


def test_a_wrong_token(controller: FakeController) -> None:
    with (
        ControlClient(controller.address, Secret("another")) as client,
        pytest.raises(errors.Unauthenticated),
    ):
        client.status()


@pytest.mark.parametrize("there", ["nothing", "a file", "a closed socket", "too long a path"])
def test_no_controller(tmp_path: Path, there: str) -> None:
    path = tmp_path / "c.sock"
    if there == "a file":
        path.write_text("")
    elif there == "a closed socket":
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(str(path))
    elif there == "too long a path":
        path = tmp_path / ("c" * 120)
    started = time.monotonic()
    with ControlClient(f"unix://{path}", Secret(TOKEN)) as client, pytest.raises(errors.NotRunning):
        client.status()
    assert time.monotonic() - started < 2


def test_no_controller_on_a_port() -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{bound.getsockname()[1]}"
        with ControlClient(address, Secret(TOKEN)) as client, pytest.raises(errors.NotRunning):
            client.status()


def test_a_call_that_breaks_off_has_an_unknown_outcome(
    controller: FakeController, client: ControlClient
) -> None:
    controller.answers["POST", "/v1/jobs/clicks/handover"] = b"hang up"
    with pytest.raises(errors.DeadlineExceeded):
        client.handover("clicks", MOVE)


@pytest.mark.parametrize(
    "address", ["unix://c.sock", "http://192.0.2.1:80", "https://127.0.0.1", "ftp://x", "unix://"]
)
def test_addresses_that_are_none(address: str) -> None:
    with pytest.raises(errors.UsageError):
        ControlClient(address, Secret(TOKEN))


def test_a_token_that_cannot_be_read(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.write_text("\n")
    for path in (tmp_path / "none", empty, tmp_path):
        with pytest.raises(errors.Unauthenticated):
            read_token(path)


def test_the_token_is_not_shown(tmp_path: Path) -> None:
    (tmp_path / "token").write_text(TOKEN + "\n")
    secret = read_token(tmp_path / "token")
    assert secret == Secret(TOKEN) == pickle.loads(pickle.dumps(secret))
    assert TOKEN not in f"{secret} {secret!r}"


def cluster_in(directory: Path, name: str) -> Path:
    directory.mkdir(parents=True)
    image = {"controller": f"unix:///{name}", "token_file": f"/{name}/token"}
    (directory / "cluster.json").write_bytes(codec.dumps(image))
    return directory


def test_which_cluster_is_meant(tmp_path: Path) -> None:
    default = cluster_in(tmp_path / "rhinoctl" / "local", "default")
    named = str(cluster_in(tmp_path / "named", "named"))
    other = str(cluster_in(tmp_path / "other", "other"))
    state = {"XDG_STATE_HOME": str(tmp_path)}
    assert locate_controller(None, state)[:2] == ("unix:///default", "/default/token")
    from_environment = {**state, "RHINO_CONTROLLER": other}
    assert locate_controller(None, from_environment)[:2] == ("unix:///other", "/other/token")
    assert locate_controller(named, from_environment)[:2] == ("unix:///named", "/named/token")
    at = "http://127.0.0.1:8700"
    assert locate_controller(at, state)[:2] == (at, str(default / "token"))
    assert locate_controller(at, {**state, "RHINO_TOKEN_FILE": "/t"})[:2] == (at, "/t")


def test_no_cluster_and_no_description_of_one(tmp_path: Path) -> None:
    with pytest.raises(errors.NotRunning):
        locate_controller(str(tmp_path), {})
    for text in ("", "[]", "{}", "not json"):
        (tmp_path / "cluster.json").write_text(text)
        with pytest.raises(errors.ForeignManifest):
            locate_controller(str(tmp_path), {})
