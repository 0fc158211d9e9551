"""The callers' side of the controller's API: where it is, one method a call, errors as classes.

Three outcomes (style, rule 7): an answer, a refusal or `NotRunning` (nothing was done), and
`DeadlineExceeded`, after which a request that changes something may have been carried out or not.
Each call has a connection of its own, so that none fails on one that a restart has closed.
"""

import os
import re
import ssl
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self, TypeVar
from urllib.parse import quote, urlsplit

import httpx

from rhinoctl import errors
from rhinoctl.ids import JobName, OpId
from rhinoctl.protocol import codec, views
from rhinoctl.protocol.disks import DiskList, DiskRequest
from rhinoctl.protocol.evidence import ClusterEvidence
from rhinoctl.protocol.starting import CONTROLLER, LOCAL, is_deployed, start_again
from rhinoctl.protocol.versions import (
    NEWEST_HEADER,
    OTHER_VERSION,
    PROTOCOLS,
    WRITTEN_HEADER,
    Span,
    too_far_apart,
    version_in,
)
from rhinoctl.wire.certificates import ssl_context
from rhinoctl.wire.credentials import TlsFiles
from rhinoctl.wire.secret import Secret, read_token
from rhinoctl.wire.speech import Speech

T = TypeVar("T")

CONNECT_S = 1.0
"""A controller of this machine answers at once or is not there."""

CONNECT_TLS_S = 3.0
"""One of another host has its network, name service and handshake on the way."""

READ_S = 5.0
"""What only looks is answered from the controller's memory."""

ANSWER_S = 35.0
"""The longest calls take a session, or fence one: the controller may wait for a silent worker."""

SAID_MAX = 2
"""A request is said so often: once more if its version is refused."""

NO_SUCH_CALL = frozenset({404, 405})
"""HTTP's own word for a route that is not there; none of our errors has it."""

C_SOURCE = re.compile(r"^_ssl\.c:\d+: | \(_ssl\.c:\d+\)$")
"""A line of Python's own source, which tells nobody here anything."""

LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})

LOOK = "see what happened with `rhinoctl status` and `rhinoctl op list` before you repeat it"

CERTIFICATES = (
    "use the access to this very cluster; if its certificates have expired, deploy it again"
)

# --- where the controller is ---------------------------------------------------------------------


class Located(NamedTuple):
    """A controller's address, the file with the token of its API, and what a cluster with TLS has
    besides: the certificate's files, and the token of the wire (by default that of the API)."""

    address: str
    token_file: str
    tls: TlsFiles | None = None
    wire_token_file: str = ""


def state_directory(environ: Mapping[str, str] = os.environ) -> Path:
    """Where rhinoctl keeps what it knows for this user."""
    state = environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    return Path(state) / "rhinoctl"


def local_directory(environ: Mapping[str, str] = os.environ) -> Path:
    """The directory of the default local cluster."""
    return state_directory(environ) / "local"


def access_directory(cluster: str, environ: Mapping[str, str] = os.environ) -> Path:
    """The directory of the access to a deployed cluster, by the cluster's name."""
    return state_directory(environ) / "clusters" / cluster


def deployed_clusters(environ: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """The names of the deployed clusters to which this user has access."""
    found = (state_directory(environ) / "clusters").glob("*/cluster.json")
    return tuple(sorted(path.parent.name for path in found))


def locate_controller(
    explicit: str | None = None, environ: Mapping[str, str] = os.environ
) -> Located:
    """The controller to talk to: `explicit`, else RHINO_CONTROLLER, else the local cluster's.

    Both may be an address, a cluster's directory, or the name of a deployed cluster, which goes
    before a directory of that name (``./NAME`` is always a directory). With an address, the token's
    file is RHINO_TOKEN_FILE, or that of the local cluster; one with TLS needs a directory, for its
    certificates. Raises NotRunning if there is no cluster, and ForeignManifest for a directory
    whose `cluster.json` cannot be read.
    """
    given = explicit or environ.get("RHINO_CONTROLLER") or str(local_directory(environ))
    if "://" not in given:
        named = access_directory(given, environ)
        deployed = "/" not in given and (named / "cluster.json").exists()
        return _read_location(named if deployed else Path(given), environ)
    token_file = environ.get("RHINO_TOKEN_FILE") or str(local_directory(environ) / "token")
    return Located(given, token_file)


def _read_location(directory: Path, environ: Mapping[str, str]) -> Located:
    path = directory / "cluster.json"
    try:
        image = codec.loads_image(path.read_bytes())
        token, wire_token = str(image["token_file"]), str(image.get("wire_token_file") or "")
        tls = codec.from_json(TlsFiles | None, image.get("tls"))
        if tls is not None:
            tls = TlsFiles(
                ca=str(directory / tls.ca),
                certificate=str(directory / tls.certificate),
                key=str(directory / tls.key),
            )
        return Located(
            address=str(image["controller"]),
            token_file=str(directory / token),
            tls=tls,
            wire_token_file=str(directory / (wire_token or token)),
        )
    except (FileNotFoundError, NotADirectoryError) as fault:
        names = ", ".join(deployed_clusters(environ))
        raise errors.NotRunning(
            f"there is no cluster in {directory}",
            remedy=f"name {f'one ({names})' if names else 'the right one'} with --cluster or"
            f" RHINO_CONTROLLER, or start one: `rhinoctl deploy`, or {LOCAL} for a local one",
        ) from fault
    except (OSError, codec.CodecError, KeyError) as fault:
        raise errors.ForeignManifest(
            f"{path} is no description of a cluster: {fault}",
            remedy="name the cluster's directory with --cluster, or move this one away",
        ) from fault


# --- calls ---------------------------------------------------------------------------------------


class ControlClient:
    """The controller's API. Use it in a ``with``, or close it.

    `token` is the secret or the path of its file; an address with ``https://`` needs `tls`. Any
    call raises the error that the controller answered, `NotRunning`, `Unauthenticated`,
    `CertificateRefused`, `IncompatibleVersion` or `DeadlineExceeded`. A controller of the version
    before is spoken to in that one, as it says with its first refusal.
    """

    def __init__(
        self,
        address: str,
        token: Secret | str | os.PathLike[str],
        tls: TlsFiles | None = None,
        protocols: Span = PROTOCOLS,
    ) -> None:
        self.address = address
        self._speech = Speech(protocols)
        self._connect_s = CONNECT_S if tls is None else CONNECT_TLS_S
        transport = _transport(address, tls)
        secret = token if isinstance(token, Secret) else read_token(token)
        self._http = httpx.Client(
            transport=transport,
            base_url=address if address.startswith("http") else "http://controller",
            headers={"Authorization": f"Bearer {secret.reveal()}"},
            timeout=httpx.Timeout(ANSWER_S, connect=self._connect_s),
            trust_env=False,  # a proxy has no business between the processes of a cluster
        )

    def close(self) -> None:
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def status(self) -> views.StatusView:
        """The whole cluster."""
        return self._call("GET", "/v1/status", views.StatusView)

    def jobs(self) -> views.JobList:
        """All jobs."""
        return self._call("GET", "/v1/jobs", views.JobList)

    def job(self, name: str) -> views.JobView:
        """One job; raises UnknownJob."""
        return self._call("GET", _job(name), views.JobView)

    def register(self, job: views.RegisterJob) -> views.JobView:
        """Make a job known, or check that it is the known one; raises IdentityChanged."""
        return self._call("POST", "/v1/jobs", views.JobView, job)

    def delete(self, name: str) -> views.Acknowledged:
        """Forget a job and its state on all workers; raises Busy while it runs."""
        return self._call("DELETE", _job(name), views.Acknowledged)

    def take_session(self, name: JobName, request: views.TakeSession) -> views.SessionGrant:
        """A session for one run of the query; raises SecondSession and IdentityChanged."""
        return self._call("POST", _job(name, "session"), views.SessionGrant, request)

    def poll(self, name: JobName, report: views.DriverReport) -> views.Offer:
        """Tell how far the driver is; answers within about a second, or when there is news."""
        return self._call("POST", _job(name, "poll"), views.Offer, report)

    def bind(self, name: str, request: views.BindRequest) -> views.Acknowledged:
        """Accept another identity of the query."""
        return self._call("POST", _job(name, "bind"), views.Acknowledged, request)

    def handover(self, name: str, request: views.HandoverRequest) -> views.OperationView:
        """Plan a handover and, unless it is a dry run, begin it; raises Busy and Refused."""
        return self._call("POST", _job(name, "handover"), views.OperationView, request)

    def rescale(self, name: str, request: views.RescaleRequest) -> views.OperationView:
        """As `handover`, to another number of instances."""
        return self._call("POST", _job(name, "rescale"), views.OperationView, request)

    def set_job(self, name: str, request: views.SetJob) -> views.Acknowledged:
        """Change a job's wishes; raises Refused."""
        return self._call("POST", _job(name, "set"), views.Acknowledged, request)

    def groups(self, name: str, request: views.GroupsRequest) -> views.GroupsView:
        """The replica groups of a job, as they are and as planned."""
        return self._call("POST", _job(name, "groups"), views.GroupsView, request)

    def checkpoint(self, name: str, request: views.CheckpointRequest) -> views.CheckpointView:
        """Ask for checkpoints of every vnode, or how far they are; raises Refused."""
        return self._call("POST", _job(name, "checkpoint"), views.CheckpointView, request)

    def verify(self, name: str, request: views.VerifyRequest) -> views.VerifyView:
        """Ask for a round of verification, or how far it is; raises UnknownVnode and Busy."""
        return self._call("POST", _job(name, "verify"), views.VerifyView, request)

    def suspect(self, name: JobName, suspicion: views.Suspicion) -> views.Acknowledged:
        """Tell that a worker was not reached: the controller looks at it at once."""
        return self._call("POST", _job(name, "suspect"), views.Acknowledged, suspicion)

    def switchover(self, request: views.SwitchoverRequest) -> views.OperationList:
        """Plan switchovers, one a job, and, unless it is a dry run, begin them."""
        return self._call("POST", "/v1/switchover", views.OperationList, request)

    def drain(self, request: views.DrainRequest) -> views.OperationList:
        """As `switchover`, off a whole worker; copies leave it after that."""
        return self._call("POST", "/v1/drain", views.OperationList, request)

    def failover(self, request: views.FailoverRequest) -> views.OperationList:
        """Give a worker or an instance up; one operation a job. Raises Refused, e.g. for a healthy
        one, and NoCopy if state would be lost."""
        return self._call("POST", "/v1/failover", views.OperationList, request)

    def recover(self, request: views.RecoverRequest) -> views.RecoveryView:
        """Make the controller's store anew from the workers; raises Refused and UnknownWorker."""
        return self._call("POST", "/v1/recover", views.RecoveryView, request)

    def disks(self) -> DiskList:
        """All disks of all workers."""
        return self._call("GET", "/v1/disks", DiskList)

    def change_disks(self, request: DiskRequest) -> DiskList:
        """Ask something of a worker's disks; those that it is about. Raises UnknownWorker,
        UnknownDisk, DiskRefused, UnwritableDirectory, DiskFull and WorkerUnreachable."""
        return self._call("POST", "/v1/disks", DiskList, request)

    def operations(self) -> views.OperationList:
        """All operations, the newest first."""
        return self._call("GET", "/v1/ops", views.OperationList)

    def operation(self, op: str) -> views.OperationView:
        """One operation; raises UnknownOperation."""
        return self._call("GET", _op(op), views.OperationView)

    def abort(self, op: str, request: views.AbortRequest) -> views.OperationView:
        """Ask for the old layout back; the operation ends in its own time."""
        return self._call("POST", f"{_op(op)}/abort", views.OperationView, request)

    def evidence(self) -> ClusterEvidence:
        """All that the controller knows, for `rhinoctl doctor`."""
        return self._call("GET", "/v1/evidence", ClusterEvidence)

    def decided(self, name: str) -> views.DecidedView:
        """The last decided record of a job without a live query; raises SecondSession while it may
        have one, Busy and WorkerUnreachable."""
        return self._call("POST", _job(name, "decided"), views.DecidedView)

    def repair(self, op: str) -> views.RepairView:
        """Have an operation's workers asked again; what it waits for after that."""
        return self._call("POST", f"{_op(op)}/repair", views.RepairView)

    def pause(self, op: str) -> views.OperationView:
        """Keep an operation before its marker; raises CannotPause."""
        return self._call("POST", f"{_op(op)}/pause", views.OperationView)

    def resume(self, op: str) -> views.OperationView:
        """Go on with a paused operation; raises CannotPause."""
        return self._call("POST", f"{_op(op)}/resume", views.OperationView)

    def revert(self, op: str, request: views.RevertRequest) -> views.OperationView:
        """Plan the way back from a complete operation and, unless it is a dry run, begin it; raises
        CannotRevert and Busy."""
        return self._call("POST", f"{_op(op)}/revert", views.OperationView, request)

    def _call(self, method: str, path: str, kind: type[T], body: object = None) -> T:
        response = self._said(method, path, body)
        if response.status_code >= 400:
            raise self._refusal_of(response, method, path)
        version = _number(response, WRITTEN_HEADER)
        try:
            answer: T = codec.loads(kind, response.content, version=version)
        except codec.CodecError as fault:
            raise errors.RhinoError(
                f"the controller's answer to {method} {path} is not understood: {fault}",
                remedy="use the same version of rhinoctl here and for the controller",
            ) from fault
        return answer

    def _said(self, method: str, path: str, body: object) -> httpx.Response:
        """The answer to a request in the version that the controller is known to speak; once more
        if it refuses that, by which nothing was done."""
        version = self._speech.version
        for _ in range(SAID_MAX):
            content = None if body is None else codec.dumps(body, version=version)
            response = self._send(method, path, content, version)
            newest = _number(response, NEWEST_HEADER)
            if newest is None:
                return response
            shared = self._speech.heard(newest)
            if response.status_code != OTHER_VERSION:
                return response
            if shared is None or shared == version:
                who = f"the controller at {self.address}"
                raise too_far_apart(who, newest, self._speech.ours)
            version = shared
        raise errors.NotRunning(
            f"the controller at {self.address} changed its version while it was asked",
            remedy="repeat the command",
        )

    def _send(self, method: str, path: str, content: bytes | None, version: int) -> httpx.Response:
        headers = {WRITTEN_HEADER: str(version), NEWEST_HEADER: str(self._speech.ours.newest)}
        try:
            answer_s = READ_S if method == "GET" else ANSWER_S
            patience = httpx.Timeout(answer_s, connect=self._connect_s)
            return self._http.request(
                method, path, content=content, headers=headers, timeout=patience
            )
        except httpx.TransportError as fault:
            raise self._error_of(fault, method, path) from fault

    def _refusal_of(self, response: httpx.Response, method: str, path: str) -> errors.RhinoError:
        """The error that was answered. What has no route has no answer of ours."""
        unknown = response.status_code in NO_SUCH_CALL and NEWEST_HEADER not in response.headers
        if unknown:
            return errors.IncompatibleVersion(
                f"the controller at {self.address} knows no {method} {path.partition('?')[0]}",
                remedy="it is older than this command: bring the cluster up with"
                " `rhinoctl upgrade`",
            )
        return _error_of(response)

    def _error_of(self, fault: httpx.TransportError, method: str, path: str) -> errors.RhinoError:
        """What a call without an answer means; after a handshake that failed, nothing was done."""
        reason = C_SOURCE.sub("", str(fault)) or type(fault).__name__
        refusal = _refusal_of(fault)
        if refusal:
            return errors.CertificateRefused(
                f"no TLS with the controller at {self.address}: {refusal}", remedy=CERTIFICATES
            )
        if isinstance(fault, httpx.ConnectError | httpx.ConnectTimeout):
            return errors.NotRunning(
                f"no controller answers at {self.address}: {reason}",
                remedy=f"start it with {start_again([CONTROLLER], self.address)}, or name the right"
                " one with --cluster or RHINO_CONTROLLER",
            )
        return errors.DeadlineExceeded(
            f"the controller at {self.address} did not answer {method} {path}: {reason}",
            remedy=_stuck(self.address) if method == "GET" else LOOK,
        )


def _stuck(address: str) -> str:
    """What helps with a controller that lets in and does not answer."""
    if is_deployed(address):
        return "look at `rhinoctl logs controller`; `rhinoctl restart controller` starts it anew"
    return "look at the controller's log; `rhinoctl local down` and `up` restart it"


def _refusal_of(fault: BaseException) -> str:
    """Why the handshake of TLS failed; empty if it did not. What the peer thinks of our certificate
    comes as an alert after our part of the handshake, but before it reads a request."""
    cause: BaseException | None = fault
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return f"its certificate: {cause.verify_message}"
        if isinstance(cause, ssl.SSLError) and "ALERT" in (cause.reason or ""):
            return f"it refuses our certificate ({cause.reason})"
        if isinstance(cause, ssl.SSLError) and isinstance(fault, httpx.ConnectError):
            return str(cause.reason)
        cause = cause.__cause__ or cause.__context__
    return ""


def _transport(address: str, tls: TlsFiles | None) -> httpx.HTTPTransport:
    parts = urlsplit(address)
    alone = httpx.Limits(max_keepalive_connections=0)
    if parts.scheme == "https" and parts.hostname:
        if tls is None:
            raise errors.UsageError(
                f"{address} needs certificates, and none are known",
                remedy="name the directory of the access to the cluster, or the cluster's name",
            )
        return httpx.HTTPTransport(limits=alone, verify=ssl_context(tls))
    # The system's authorities, which take 0.1 s to load, are never asked.
    if parts.scheme == "unix" and not parts.netloc and parts.path:
        return httpx.HTTPTransport(uds=parts.path, limits=alone, verify=False)
    if parts.scheme == "http" and parts.hostname in LOOPBACK:
        return httpx.HTTPTransport(limits=alone, verify=False)
    raise errors.UsageError(
        f"{address} is no address of a controller",
        remedy="use unix:///path/controller.sock, http://127.0.0.1:PORT or a cluster's name",
    )


def _number(response: httpx.Response, header: str) -> int | None:
    """The number in a header; None without one."""
    return version_in(response.headers.get(header, ""))


def _job(name: str, *rest: str) -> str:
    if not name or "/" in name:  # a path of the API ends there, so no job can have such a name
        raise errors.UnknownJob(f"there is no job {name!r}", remedy="see `rhinoctl job list`")
    return "/".join(["/v1/jobs", quote(name), *rest])


def _op(op: str | OpId) -> str:
    if not op or "/" in op:
        remedy = "see `rhinoctl op list`"
        raise errors.UnknownOperation(f"there is no operation {op!r}", remedy=remedy)
    return f"/v1/ops/{quote(op)}"


def _error_of(response: httpx.Response) -> errors.RhinoError:
    """The error of the class that the problem's code names, with its message and remedy."""
    try:
        problem: Any = codec.loads(views.Problem, response.content)
    except codec.CodecError:
        return errors.RhinoError(
            f"the controller answered with HTTP status {response.status_code}",
            remedy="look into its log: `rhinoctl logs controller` (`rhinoctl local status` names"
            " that of a local cluster)",
        )
    return error_from(problem)


def error_from(problem: views.Problem) -> errors.RhinoError:
    """The error of the class that a problem's code names."""
    return errors.error_of(problem.code, problem.message, remedy=problem.remedy)
