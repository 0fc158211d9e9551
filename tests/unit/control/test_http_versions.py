"""The controller's API between processes of two versions: a real server, the real client."""

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from fastapi import FastAPI
from fastapi.routing import APIRoute

from rhinoctl import errors
from rhinoctl.control.api import build
from rhinoctl.control.client import ControlClient
from rhinoctl.control.roles import Role
from rhinoctl.ids import WorkerId
from rhinoctl.protocol import codec, views
from rhinoctl.protocol.disks import DiskAction, DiskRequest
from rhinoctl.protocol.versions import (
    NEWEST_HEADER,
    OTHER_VERSION,
    PROTOCOL,
    WRITTEN_HEADER,
    Span,
    since,
)
from rhinoctl.wire.secret import Secret
from tests.fakes.controller import TOKEN

ONE = Span(newest=1, oldest=1)
TWO = Span(newest=2, oldest=1)
THREE = Span(newest=3, oldest=2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Acknowledged(views.Acknowledged):
    """With a field that came with version 2."""

    colour: str = field(default="", metadata=since(2))


@dataclass(frozen=True, slots=True, kw_only=True)
class SetJob(views.SetJob):
    """With a field that came with version 2."""

    colour: str = field(default="", metadata=since(2))


WISH = SetJob(replication=1, colour="red")
PLAIN_WISH = SetJob(replication=1)
DONE = Acknowledged(detail="done", colour="red")
PLAIN_DONE = Acknowledged(detail="done")


@pytest.fixture(autouse=True)
def newer_views(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(views, "Acknowledged", Acknowledged)
    monkeypatch.setattr(views, "SetJob", SetJob)


class Stub:
    """A controller that keeps what it was asked, and says that it is done."""

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.fault: errors.RhinoError | None = None

    def call(self, call: Any) -> Any:
        return call()

    def __getattr__(self, name: str) -> Any:
        def answer(*arguments: Any) -> Acknowledged:
            self.asked.append(arguments[-1] if arguments else None)
            if self.fault is not None:
                raise self.fault
            return DONE

        return answer


class Counting:
    """The application, and the status of each answer that it gave."""

    def __init__(self, app: FastAPI) -> None:
        self._app = app
        self.statuses: list[int] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async def counted(message: Any) -> None:
            if message["type"] == "http.response.start":
                self.statuses.append(message["status"])
            await send(message)

        await self._app(scope, receive, counted)


@dataclass(frozen=True)
class Running:
    stub: Stub
    statuses: list[int]


@contextmanager
def controller(path: Path, protocols: Span, without: Sequence[str] = ()) -> Iterator[Running]:
    """A server on a Unix socket, `without` some routes."""
    stub = Stub()
    api = build(stub, {Role.OPERATOR: Secret(TOKEN)}, protocols)  # type: ignore[arg-type]
    kept = [r for r in api.routes if isinstance(r, APIRoute) and r.name not in without]
    api.router.routes = list(kept)
    app = Counting(api)
    config = uvicorn.Config(app, uds=str(path), log_level="critical", lifespan="off")
    server = uvicorn.Server(config)
    server.install_signal_handlers = lambda: None  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.run)
    thread.start()
    end = time.monotonic() + 20
    while not server.started and time.monotonic() < end:
        time.sleep(0.005)
    try:
        yield Running(stub, app.statuses)
    finally:
        server.should_exit = True
        thread.join()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "c.sock"


def client_of(path: Path, protocols: Span) -> ControlClient:
    return ControlClient(f"unix://{path}", Secret(TOKEN), protocols=protocols)


def ask(client: ControlClient, running: Running) -> tuple[Any, Any]:
    """What the controller got, and what the client got."""
    answer = client.set_job("clicks", WISH)
    return running.stub.asked[-1], answer


def test_a_newer_client_says_it_again_once_and_remembers(path: Path) -> None:
    with controller(path, ONE) as running, client_of(path, TWO) as client:
        for _ in range(3):
            assert ask(client, running) == (PLAIN_WISH, PLAIN_DONE)
        assert running.statuses == [OTHER_VERSION, 200, 200, 200]
        assert len(running.stub.asked) == 3, "what was refused was not done"


def test_an_older_client_is_understood_and_answered_in_its_version(path: Path) -> None:
    with controller(path, TWO) as running, client_of(path, ONE) as client:
        assert ask(client, running) == (PLAIN_WISH, PLAIN_DONE)
        assert running.statuses == [200]


def test_equals_say_everything(path: Path) -> None:
    with controller(path, TWO) as running, client_of(path, TWO) as client:
        assert ask(client, running) == (WISH, DONE)
        assert running.statuses == [200]


def test_a_controller_that_is_upgraded_is_noticed_without_a_further_round_trip(path: Path) -> None:
    with client_of(path, TWO) as client:
        with controller(path, ONE) as running:
            ask(client, running)
        with controller(path, TWO) as running:
            assert ask(client, running) == (PLAIN_WISH, PLAIN_DONE)
            assert ask(client, running) == (WISH, DONE)
            assert running.statuses == [200, 200]
        with controller(path, ONE) as running:
            assert ask(client, running) == (PLAIN_WISH, PLAIN_DONE)
            assert running.statuses == [OTHER_VERSION, 200]


@pytest.mark.parametrize(("ours", "theirs"), [(THREE, ONE), (ONE, THREE)])
def test_who_is_too_far_apart_is_told_both_versions(path: Path, ours: Span, theirs: Span) -> None:
    with controller(path, theirs) as running, client_of(path, ours) as client:
        for call in (lambda: client.set_job("clicks", WISH), lambda: client.delete("clicks")):
            with pytest.raises(errors.IncompatibleVersion) as caught:
                call()
            for said in (str(path), f"version {theirs.newest}", str(ours)):
                assert said in caught.value.message
            assert "rhinoctl upgrade" in caught.value.remedy
        assert running.statuses == [OTHER_VERSION] * 2
        assert not running.stub.asked


def test_a_refusal_is_the_same_in_all_versions(path: Path) -> None:
    with controller(path, ONE) as running, client_of(path, TWO) as client:
        running.stub.fault = errors.UnknownJob("no such job", remedy="name another")
        with pytest.raises(errors.UnknownJob, match="no such job"):
            client.set_job("clicks", WISH)


@pytest.mark.parametrize(("lacks", "status"), [("GET POST", 404), ("POST", 405)])
def test_a_call_that_the_controller_has_not_yet(path: Path, lacks: str, status: int) -> None:
    """HTTP's own refusal of a route or method, without our headers."""
    request = DiskRequest(action=DiskAction.SCRUB, worker=WorkerId("w1"))
    without = [f"{method} /v1/disks" for method in lacks.split()]
    with controller(path, ONE, without) as running, client_of(path, ONE) as client:
        with pytest.raises(errors.IncompatibleVersion, match="POST /v1/disks"):
            client.change_disks(request)
        assert running.statuses == [status]


def raw(path: Path, headers: dict[str, str]) -> httpx.Response:
    with httpx.Client(transport=httpx.HTTPTransport(uds=str(path))) as client:
        body = codec.dumps(PLAIN_WISH, version=1)
        return client.post("http://c/v1/jobs/clicks/set", content=body, headers=headers)


BEARER = {"Authorization": f"Bearer {TOKEN}"}


def test_who_has_no_token_learns_nothing(path: Path) -> None:
    with controller(path, ONE) as running:
        response = raw(path, {WRITTEN_HEADER: "7"})
        assert response.status_code == 401
        assert not running.stub.asked


def test_a_person_needs_no_header(path: Path) -> None:
    with controller(path, TWO) as running:
        response = raw(path, BEARER)
        assert response.status_code == 200
        assert response.headers[WRITTEN_HEADER] == response.headers[NEWEST_HEADER] == "2"
        assert running.stub.asked == [PLAIN_WISH]


@pytest.mark.parametrize("said", ["", "one", "-1", "1.0", "9" * 5000, "²"])
def test_a_header_that_is_no_number_is_a_usage_error(path: Path, said: str) -> None:
    with controller(path, ONE) as running:
        headers = {name: value.encode() for name, value in {**BEARER, WRITTEN_HEADER: said}.items()}
        response = raw(path, headers)  # type: ignore[arg-type]
        assert response.status_code == 400
        assert codec.loads(views.Problem, response.content).code == "usage"
        assert not running.stub.asked


def test_every_answer_says_what_is_spoken(path: Path) -> None:
    with controller(path, THREE):
        answers = [
            raw(path, {**BEARER, WRITTEN_HEADER: "2"}),
            raw(path, {**BEARER, WRITTEN_HEADER: str(PROTOCOL)}),
            raw(path, {}),
        ]
        assert [a.status_code for a in answers] == [200, OTHER_VERSION, 401]
        assert [a.headers[NEWEST_HEADER] for a in answers] == ["3"] * 3
        problem = codec.loads(views.Problem, answers[1].content)
        assert problem.code == "incompatible-version"
