"""The controller's HTTP API: one route a call, bodies in the one codec, a role for each route."""

from collections.abc import Callable, Mapping
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.concurrency import run_in_threadpool

from rhinoctl import limits
from rhinoctl.control.controller import Controller
from rhinoctl.control.roles import Role, role_of
from rhinoctl.errors import RhinoError, RoleTooLow, Unauthenticated, UsageError
from rhinoctl.protocol import codec, views
from rhinoctl.protocol.disks import DiskRequest
from rhinoctl.protocol.versions import (
    NEWEST_HEADER,
    OTHER_VERSION,
    PROTOCOLS,
    WRITTEN_HEADER,
    Span,
    too_far_apart,
    version_in,
)
from rhinoctl.wire.secret import Secret

_STATUS = {2: 400, 3: 409, 5: 409, 6: 409, 7: 503}
"""HTTP status by exit code; the code in the body is what counts."""


def build(
    controller: Controller, tokens: Mapping[Role, Secret], protocols: Span = PROTOCOLS
) -> FastAPI:
    """The application over a controller's loop; whoever has a token has its role. A request is
    answered in the version of the protocol in which it is written."""
    app = FastAPI(title="rhinoctl controller", docs_url=None, redoc_url=None, openapi_url=None)

    def route(
        needed: Role, method: str, path: str, call: Callable[..., Any], body: type | None = None
    ) -> None:
        async def endpoint(request: Request) -> Response:
            try:
                _admit(request, tokens, needed)
                version = _version_of(request, protocols)
                if version not in protocols:
                    return _refused_unread(version, protocols)
                arguments = list(request.path_params.values())
                if body is not None:
                    arguments.append(_read(body, await _body(request), version))
                found = await run_in_threadpool(controller.call, lambda: call(*arguments))
            except RhinoError as fault:
                return problem(fault, protocols)
            return _response(codec.dumps(found, version=version), 200, version, protocols)

        app.add_api_route(path, endpoint, methods=[method], name=f"{method} {path}")

    look, drive, operate = Role.VIEWER, Role.DRIVER, Role.OPERATOR
    job = "/v1/jobs/{name}"
    route(look, "GET", "/v1/status", controller.status)
    route(look, "GET", "/v1/jobs", controller.job_list)
    route(drive, "POST", "/v1/jobs", controller.register, views.RegisterJob)
    route(look, "GET", job, controller.job)
    route(operate, "DELETE", job, controller.delete)
    route(drive, "POST", f"{job}/session", controller.take_session, views.TakeSession)
    route(drive, "POST", f"{job}/poll", controller.poll, views.DriverReport)
    route(operate, "POST", f"{job}/bind", controller.bind, views.BindRequest)
    route(operate, "POST", f"{job}/handover", controller.handover, views.HandoverRequest)
    route(operate, "POST", f"{job}/rescale", controller.rescale, views.RescaleRequest)
    route(operate, "POST", f"{job}/set", controller.set_job, views.SetJob)
    route(operate, "POST", f"{job}/groups", controller.groups, views.GroupsRequest)
    route(operate, "POST", f"{job}/checkpoint", controller.checkpoint, views.CheckpointRequest)
    route(operate, "POST", f"{job}/verify", controller.verify, views.VerifyRequest)
    route(drive, "POST", f"{job}/suspect", controller.suspect, views.Suspicion)
    route(operate, "POST", "/v1/switchover", controller.switchover, views.SwitchoverRequest)
    route(operate, "POST", "/v1/drain", controller.drain, views.DrainRequest)
    route(operate, "POST", "/v1/failover", controller.failover, views.FailoverRequest)
    route(operate, "POST", "/v1/recover", controller.recover, views.RecoverRequest)
    route(look, "GET", "/v1/disks", controller.disks)
    route(operate, "POST", "/v1/disks", controller.change_disks, DiskRequest)
    route(look, "GET", "/v1/ops", controller.operation_list)
    route(look, "GET", "/v1/ops/{op}", controller.operation)
    route(operate, "POST", "/v1/ops/{op}/abort", controller.abort, views.AbortRequest)
    route(operate, "POST", f"{job}/decided", controller.decided)
    route(look, "GET", "/v1/evidence", controller.evidence)
    route(operate, "POST", "/v1/ops/{op}/repair", controller.repair)
    route(operate, "POST", "/v1/ops/{op}/pause", controller.pause)
    route(operate, "POST", "/v1/ops/{op}/resume", controller.resume)
    route(operate, "POST", "/v1/ops/{op}/revert", controller.revert, views.RevertRequest)
    return app


def problem(fault: RhinoError, protocols: Span = PROTOCOLS) -> Response:
    """An error as the API returns it, in a form that is the same in all versions."""
    status = _STATUS.get(int(fault.exit_code), 500)
    if isinstance(fault, Unauthenticated):
        status = 401
    elif isinstance(fault, RoleTooLow):
        status = 403
    return _problem(fault, status, protocols)


def _problem(fault: RhinoError, status: int, protocols: Span) -> Response:
    data = codec.dumps(views.problem_of(fault))
    return _response(data, status, protocols.newest, protocols)


def _response(data: bytes, status: int, version: int, protocols: Span) -> Response:
    headers = {WRITTEN_HEADER: str(version), NEWEST_HEADER: str(protocols.newest)}
    return Response(data, status_code=status, headers=headers, media_type="application/json")


def _version_of(request: Request, protocols: Span) -> int:
    """In which version a request is written: ours, if nothing is said, as by a person."""
    said = request.headers.get(WRITTEN_HEADER, str(protocols.newest))
    version = version_in(said)
    if version is None:
        raise UsageError(
            f"{said!r:.40} is no version of the protocol",
            remedy=f"leave {WRITTEN_HEADER} out, or write a number",
        )
    return version


def _refused_unread(version: int, protocols: Span) -> Response:
    return _problem(too_far_apart("the caller", version, protocols), OTHER_VERSION, protocols)


def _admit(request: Request, tokens: Mapping[Role, Secret], needed: Role) -> None:
    role = role_of(request.headers.get("authorization", ""), tokens)
    if role is None:
        raise Unauthenticated(
            "the call does not carry a token of this cluster",
            remedy="name the access to this cluster with --cluster; for a plain address, name its"
            " token's file in RHINO_TOKEN_FILE",
        )
    if not role.may(needed):
        raise RoleTooLow(
            f"{request.method} {request.url.path} needs the role {needed}; the token's is {role}",
            remedy=f"name an access to this cluster that has the role {needed} with --cluster",
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


def _read(kind: type, data: bytes, version: int) -> Any:
    try:
        return codec.loads(kind, data, version=version)
    except (codec.CodecError, RecursionError) as fault:
        raise UsageError(
            f"the request is no {kind.__name__}: {fault}",
            remedy="use the rhinoctl of the controller's version",
        ) from fault
