"""The HTTP API: every route wants a token and a role, and bad bodies are usage errors."""

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from fastapi.routing import APIRoute

from rhinoctl import errors, limits
from rhinoctl.control.api import build, problem
from rhinoctl.control.roles import Role, read_tokens
from rhinoctl.ids import InstanceId, JobName, Vnode, WorkerId
from rhinoctl.protocol import codec, views
from rhinoctl.protocol.disks import DiskAction, DiskRequest
from rhinoctl.wire.secret import Secret
from tests.unit.control.bench import Bench, registration

TOKENS = {role: f"the-token-of-a-{role}" for role in Role}
TOKEN = TOKENS[Role.OPERATOR]
HEADERS = {"Authorization": f"Bearer {TOKEN}"}

BODIES: dict[str, Any] = {
    "POST /v1/jobs": registration(),
    "POST /v1/jobs/{name}/session": views.TakeSession(query_id="q", run_id="r", batch=0),
    "POST /v1/jobs/{name}/poll": views.DriverReport(session=1, epoch=1, batch=None, revision=0),
    "POST /v1/jobs/{name}/bind": views.BindRequest(new_stream=True),
    "POST /v1/jobs/{name}/handover": views.HandoverRequest(vnodes=(Vnode(0),), to=InstanceId("i1")),
    "POST /v1/jobs/{name}/rescale": views.RescaleRequest(instances=3),
    "POST /v1/jobs/{name}/set": views.SetJob(replication=1),
    "POST /v1/jobs/{name}/groups": views.GroupsRequest(),
    "POST /v1/jobs/{name}/checkpoint": views.CheckpointRequest(),
    "POST /v1/jobs/{name}/verify": views.VerifyRequest(),
    "POST /v1/jobs/{name}/suspect": views.Suspicion(session=1, worker=WorkerId("w1")),
    "POST /v1/switchover": views.SwitchoverRequest(target="w1"),
    "POST /v1/drain": views.DrainRequest(worker=WorkerId("w1")),
    "POST /v1/failover": views.FailoverRequest(target="w1"),
    "POST /v1/recover": views.RecoverRequest(without=(), dry_run=True),
    "POST /v1/disks": DiskRequest(action=DiskAction.SCRUB, worker=WorkerId("w1")),
    "POST /v1/ops/{op}/abort": views.AbortRequest(reason="enough"),
    "POST /v1/ops/{op}/revert": views.RevertRequest(),
}
OF_DRIVERS = (
    "POST /v1/jobs",
    *(f"POST /v1/jobs/{{name}}/{what}" for what in ("session", "poll", "suspect")),
)
WITHOUT_MUST = (
    *(f"POST /v1/jobs/{{name}}/{what}" for what in ("groups", "checkpoint", "verify")),
    "POST /v1/ops/{op}/revert",
)
ROUTES = [
    *("GET /v1/status", "GET /v1/jobs", "GET /v1/jobs/{name}", "DELETE /v1/jobs/{name}"),
    "GET /v1/disks",
    *("GET /v1/ops", "GET /v1/ops/{op}", "GET /v1/evidence", "POST /v1/jobs/{name}/decided"),
    *(f"POST /v1/ops/{{op}}/{what}" for what in ("pause", "resume", "repair")),
    *BODIES,
]


@pytest.fixture(scope="module")
def app() -> Iterator[FastAPI]:
    """The application over a controller whose loop turns in a thread. It has no worker."""
    controller = Bench(workers=0).controller
    over = threading.Event()

    def turn() -> None:
        while not over.wait(0.001):
            controller.step(0.0)

    thread = threading.Thread(target=turn)
    thread.start()
    yield build(controller, {role: Secret(token) for role, token in TOKENS.items()})
    over.set()
    thread.join()


def send(
    app: FastAPI, route: str, content: bytes | None = None, headers: dict[str, str] | None = None
) -> httpx.Response:
    """Call a route of the application, by default with the token."""
    method, _, path = route.partition(" ")
    raw = {name: value.encode("latin-1") for name, value in (headers or HEADERS).items()}

    async def call() -> httpx.Response:
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://c") as client:
            url = path.format(name="clicks", op="op-1")
            return await client.request(method, url, content=content, headers=raw)

    return asyncio.run(call())


def found(response: httpx.Response) -> views.Problem:
    answer: views.Problem = codec.loads(views.Problem, response.content)
    return answer


def test_the_list_of_routes_is_complete(app: FastAPI) -> None:
    there = [
        f"{method} {route.path}"
        for route in app.routes
        if isinstance(route, APIRoute)
        for method in route.methods
    ]
    assert sorted(there) == sorted(ROUTES)
    assert len(app.routes) == len(ROUTES), "no pages of documentation that need no token"


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize(
    "headers",
    [
        {"Accept": "*/*"},
        {"Authorization": ""},
        {"Authorization": TOKEN},
        {"Authorization": "Bearer "},
        {"Authorization": f"Bearer {TOKEN}x"},
        {"Authorization": f"Basic {TOKEN}"},
        {"Authorization": "Bearer \u00e9"},
    ],
    ids=["none", "empty", "bare", "no token", "wrong", "basic", "not ascii"],
)
def test_without_the_token_nothing_is_answered(
    app: FastAPI, route: str, headers: dict[str, str]
) -> None:
    """Design, section 13. The body is not even looked at."""
    response = send(app, route, b"no json" if route in BODIES else None, headers)
    assert response.status_code == 401
    assert found(response).code == "unauthenticated"
    assert found(response).remedy
    assert TOKEN not in response.text


def needed(route: str) -> Role:
    """What the documentation says (docs/operations/security.md)."""
    if route.startswith("GET "):
        return Role.VIEWER
    return Role.DRIVER if route in OF_DRIVERS else Role.OPERATOR


@pytest.mark.parametrize("role", Role)
@pytest.mark.parametrize("route", ROUTES)
def test_a_role_may_do_what_it_is_for_and_no_more(app: FastAPI, route: str, role: Role) -> None:
    """Whether it may is decided before the body is looked at."""
    answer = send(app, route, b"no json", {"Authorization": f"Bearer {TOKENS[role]}"})
    refused = answer.status_code >= 400 and found(answer).code == "role-too-low"
    assert refused is (list(Role).index(role) < list(Role).index(needed(route)))
    if refused:
        assert answer.status_code == 403
        assert needed(route) in found(answer).message
        assert str(Role.OPERATOR if needed(route) is Role.OPERATOR else Role.DRIVER) in (
            found(answer).remedy
        )


def tokens_in(directory: Path, **texts: str) -> dict[Role, str]:
    for name, text in texts.items():
        (directory / name).write_text(text)
    return {Role(name): str(directory / name) for name in texts}


def test_tokens_are_read_by_role(tmp_path: Path) -> None:
    assert read_tokens({}) == {}
    files = tokens_in(tmp_path, viewer="v\n", operator="o\n")
    assert read_tokens(files) == {Role.VIEWER: Secret("v"), Role.OPERATOR: Secret("o")}


@pytest.mark.parametrize(
    ("texts", "refusal"),
    [
        ({"viewer": "v"}, errors.UsageError),
        ({"viewer": "same", "operator": "same"}, errors.UsageError),
        ({"operator": "\n"}, errors.Unauthenticated),
    ],
    ids=["no operator", "one token for two roles", "empty"],
)
def test_tokens_that_make_no_sense(
    tmp_path: Path, texts: dict[str, str], refusal: type[errors.RhinoError]
) -> None:
    with pytest.raises(refusal):
        read_tokens(tokens_in(tmp_path, **texts))


@pytest.mark.parametrize("route", BODIES)
@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"no json",
        b"null",
        b"[]",
        b"{}",
        b'{"unknown": 1}',
        b"[" * 100_000,
        b"\xff\xfe",
    ],
    ids=["empty", "text", "null", "list", "nothing in it", "unknown field", "deep", "bytes"],
)
def test_a_malformed_body_is_a_usage_error(app: FastAPI, route: str, content: bytes) -> None:
    response = send(app, route, content)
    if content == b"{}" and route in WITHOUT_MUST:
        missing = "unknown-operation" if "/ops/" in route else "unknown-job"
        assert found(response).code == missing, "nothing must be in it"
        return
    assert response.status_code == 400
    assert found(response).code == "usage"
    assert found(response).remedy


@pytest.mark.parametrize("route", BODIES)
def test_a_value_of_the_wrong_type_is_a_usage_error(app: FastAPI, route: str) -> None:
    image = codec.to_json(BODIES[route])
    for name in image:
        response = send(app, route, codec.dumps({**image, name: {"no": "way"}}))
        assert (response.status_code, found(response).code) == (400, "usage"), name


def test_a_body_has_a_bound(app: FastAPI) -> None:
    """Invariant 12."""
    content = b'"' + b"x" * limits.CALL_BYTES_MAX + b'"'
    response = send(app, "POST /v1/jobs", content)
    assert (response.status_code, found(response).code) == (400, "usage")


def test_a_refusal_comes_with_its_code(app: FastAPI) -> None:
    for route in ROUTES:
        if "{" not in route:
            continue
        body = codec.dumps(BODIES[route]) if route in BODIES else None
        response = send(app, route, body)
        wanted = "unknown-operation" if "{op}" in route else "unknown-job"
        assert (response.status_code, found(response).code) == (409, wanted), route


def test_an_answer_is_a_view(app: FastAPI) -> None:
    response = send(app, "GET /v1/status")
    assert response.status_code == 200
    status: views.StatusView = codec.loads(views.StatusView, response.content)
    assert status.jobs == ()
    response = send(app, "GET /v1/ops")
    assert codec.loads(views.OperationList, response.content).operations == ()


def test_a_cluster_without_workers_says_so(app: FastAPI) -> None:
    body = codec.dumps(registration(name=JobName("clicks")))
    response = send(app, "POST /v1/jobs", body)
    assert (response.status_code, found(response).code) == (409, "not-enough-workers")


@pytest.mark.parametrize("leaf", errors.leaves(), ids=lambda leaf: leaf.code)
def test_every_error_has_a_status_and_keeps_its_code(leaf: type[errors.RhinoError]) -> None:
    response = problem(leaf("what", remedy="how"))
    assert response.status_code >= 400
    answer: views.Problem = codec.loads(views.Problem, response.body)
    assert answer == views.Problem(code=leaf.code, message="what", remedy="how")
