"""The controller's HTTP API: one route a call, bodies in the one codec, one token for all."""

import hmac
from collections.abc import Callable
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.concurrency import run_in_threadpool

from rhinoctl import limits
from rhinoctl.control.controller import Controller
from rhinoctl.errors import RhinoError, Unauthenticated, UsageError
from rhinoctl.protocol import codec, views
from rhinoctl.protocol.disks import DiskRequest
from rhinoctl.wire.secret import Secret

_STATUS = {2: 400, 3: 409, 5: 409, 6: 409, 7: 503}
"""HTTP status by exit code; the code in the body is what counts."""


def build(controller: Controller, token: Secret) -> FastAPI:
    """The application over a controller's loop."""
    app = FastAPI(title="rhinoctl controller", docs_url=None, redoc_url=None, openapi_url=None)

    def route(method: str, path: str, call: Callable[..., Any], body: type | None = None) -> None:
        async def endpoint(request: Request) -> Response:
            try:
                _authenticate(request, token)
                arguments = list(request.path_params.values())
                if body is not None:
                    arguments.append(_read(body, await _body(request)))
                found = await run_in_threadpool(controller.call, lambda: call(*arguments))
            except RhinoError as fault:
                return problem(fault)
            return Response(codec.dumps(found), media_type="application/json")

        app.add_api_route(path, endpoint, methods=[method], name=f"{method} {path}")

    job = "/v1/jobs/{name}"
    route("GET", "/v1/status", controller.status)
    route("GET", "/v1/jobs", controller.job_list)
    route("POST", "/v1/jobs", controller.register, views.RegisterJob)
    route("GET", job, controller.job)
    route("DELETE", job, controller.delete)
    route("POST", f"{job}/session", controller.take_session, views.TakeSession)
    route("POST", f"{job}/poll", controller.poll, views.DriverReport)
    route("POST", f"{job}/bind", controller.bind, views.BindRequest)
    route("POST", f"{job}/handover", controller.handover, views.HandoverRequest)
    route("POST", f"{job}/rescale", controller.rescale, views.RescaleRequest)
    route("POST", f"{job}/set", controller.set_job, views.SetJob)
    route("POST", f"{job}/groups", controller.groups, views.GroupsRequest)
    route("POST", f"{job}/checkpoint", controller.checkpoint, views.CheckpointRequest)
    route("POST", f"{job}/verify", controller.verify, views.VerifyRequest)
    route("POST", f"{job}/suspect", controller.suspect, views.Suspicion)
    route("POST", "/v1/switchover", controller.switchover, views.SwitchoverRequest)
    route("POST", "/v1/drain", controller.drain, views.DrainRequest)
    route("POST", "/v1/failover", controller.failover, views.FailoverRequest)
    route("POST", "/v1/recover", controller.recover, views.RecoverRequest)
    route("GET", "/v1/disks", controller.disks)
    route("POST", "/v1/disks", controller.change_disks, DiskRequest)
    route("GET", "/v1/ops", controller.operation_list)
    route("GET", "/v1/ops/{op}", controller.operation)
    route("POST", "/v1/ops/{op}/abort", controller.abort, views.AbortRequest)
    route("POST", f"{job}/decided", controller.decided)
    route("GET", "/v1/evidence", controller.evidence)
    route("POST", "/v1/ops/{op}/repair", controller.repair)
    route("POST", "/v1/ops/{op}/pause", controller.pause)
    route("POST", "/v1/ops/{op}/resume", controller.resume)
    route("POST", "/v1/ops/{op}/revert", controller.revert, views.RevertRequest)
    return app


def problem(fault: RhinoError) -> Response:
    """An error as the API returns it."""
    body = views.problem_of(fault)
    status = _STATUS.get(int(fault.exit_code), 500)
    if isinstance(fault, Unauthenticated):
        status = 401
    return Response(codec.dumps(body), status_code=status, media_type="application/json")


def _authenticate(request: Request, token: Secret) -> None:
    given = request.headers.get("authorization", "")
    if not hmac.compare_digest(given.encode(), f"Bearer {token.reveal()}".encode()):
        raise Unauthenticated(
            "the call does not carry this cluster's token",
            remedy="use the token file of the cluster (RHINO_TOKEN_FILE)",
        )


async def _body(request: Request) -> bytes:
    data = bytearray()
    async for chunk in request.stream():
        data += chunk
        if len(data) > limits.CALL_BYTES_MAX:
            raise UsageError(
                f"the request has more than {limits.CALL_BYTES_MAX} bytes",
                remedy="no call of rhinoctl is that large; look at what sends it",
            )
    return bytes(data)


def _read(kind: type, data: bytes) -> Any:
    try:
        return codec.loads(kind, data)
    except (codec.CodecError, RecursionError) as fault:
        raise UsageError(
            f"the request is no {kind.__name__}: {fault}",
            remedy="use the rhinoctl of the controller's version",
        ) from fault
