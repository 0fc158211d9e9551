"""What the controller's API takes and gives: the dataclasses that tables and ``--json`` render."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from rhinoctl.ids import BatchTime, InstanceId, JobName, JobUid, OpId, Vnode, WorkerId
from rhinoctl.protocol.epochs import Epoch
from rhinoctl.protocol.handover import Kind, Phase
from rhinoctl.protocol.jobs import OperatorSpec

# --- a driver and its job ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisterJob:
    """Make a job known, or check that it is the one known. `instances` None: one a worker."""

    name: JobName
    vnodes: int
    instances: int | None
    replication: int
    operator: OperatorSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class TakeSession:
    """Ask for the job's session for one run of the query."""

    query_id: str
    run_id: str
    batch: int
    takeover: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionGrant:
    """A session, with what a driver needs to begin at the fence; `workers` is the inventory."""

    cluster: str
    job: JobUid
    session: int
    generation: int
    epoch: Epoch
    workers: Mapping[WorkerId, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverReport:
    """What a driver tells in its poll. `revision` is that of the last offer it has seen; the
    answer waits until there is another one, or for about a second."""

    session: int
    epoch: int
    batch: BatchTime | None
    revision: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """What a driver is offered: the epoch proposed (None: nothing), whether to run a batch soon,
    and whether its session still holds."""

    revision: int
    proposal: Epoch | None
    wake: int
    live: bool


# --- people --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class HandoverRequest:
    """Move some vnodes to an instance."""

    vnodes: tuple[Vnode, ...]
    to: InstanceId
    dry_run: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RescaleRequest:
    """Another number of instances."""

    instances: int
    dry_run: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AbortRequest:
    """Go back to the old layout, if the marker is not decided yet."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BindRequest:
    """Accept another identity of the query: `new_stream` opens the next generation, in which batch
    ids start at 0 again and the state goes on."""

    new_stream: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationView:
    """An operation as people see it. Times are wall seconds by phase; `pause_ms` and `total_ms`
    are None until they are known."""

    id: OpId
    job: JobName
    kind: Kind
    phase: Phase
    moves: Mapping[Vnode, InstanceId]
    origins: Mapping[Vnode, InstanceId]
    reason: str
    times: Mapping[str, float]
    marker: BatchTime | None
    pause_ms: float | None
    total_ms: float | None
    bytes_moved: int
    state_bytes: int
    progress: str


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceView:
    """An instance of a job: where it runs, what it owns and how far it is."""

    id: InstanceId
    worker: WorkerId
    pid: int
    ready: bool
    vnodes: tuple[Vnode, ...]
    state_bytes: int
    rss_bytes: int
    applied: BatchTime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobView:
    """A job as people see it. `watermark_ms` is the event time up to which windows are over, in
    unix milliseconds; None for an operator without one, or before the first rows."""

    name: JobName
    uid: JobUid
    operator: str
    vnodes: int
    replication: int
    generation: int
    session: int
    live: bool
    epoch: int
    batch: BatchTime | None
    watermark_ms: int | None
    instances: tuple[InstanceView, ...]
    members: Mapping[Vnode, tuple[WorkerId, ...]]
    operation: OpId | None
    query_id: str


class Health(Enum):
    """How something fares."""

    OK = "ok"
    DEGRADED = "degraded"
    DOWN = "down"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerView:
    """A worker as the controller last saw it; `seen_s` seconds ago, None if never."""

    id: WorkerId
    address: str
    health: Health
    seen_s: float | None
    pid: int
    free_bytes: int
    instances: int
    vnodes_owned: int
    log_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Something wrong, what it means, and what to type next."""

    what: str
    remedy: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusView:
    """The whole cluster on one page."""

    cluster: str
    health: Health
    workers: tuple[WorkerView, ...]
    jobs: tuple[JobView, ...]
    operations: tuple[OperationView, ...]
    findings: tuple[Finding, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobList:
    """All jobs."""

    jobs: tuple[JobView, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationList:
    """Operations, the newest first."""

    operations: tuple[OperationView, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Acknowledged:
    """It is done; `detail` says what was done."""

    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """An error as the API returns it: the code names its class in `rhinoctl.errors`."""

    code: str
    message: str
    remedy: str
