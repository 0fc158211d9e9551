"""What the controller's API takes and gives: the dataclasses that tables and ``--json`` render."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from rhinoctl.errors import RhinoError
from rhinoctl.ids import (
    NO_OPERATION,
    BatchTime,
    InstanceId,
    JobName,
    JobUid,
    OpId,
    Vnode,
    WorkerId,
)
from rhinoctl.protocol.epochs import Epoch, Role
from rhinoctl.protocol.handover import Kind, Phase
from rhinoctl.protocol.jobs import OperatorSpec
from rhinoctl.protocol.verification import Checked, CheckedCheckpoint

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
    """A session, with what a driver needs to begin at the fence; `workers` is the inventory. A
    `cut` that is offered holds from the fence on: whoever held the session before may have decided
    without those whom it gives up."""

    cluster: str
    job: JobUid
    session: int
    generation: int
    epoch: Epoch
    workers: Mapping[WorkerId, str]
    cut: Epoch | None = None


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
class SwitchoverRequest:
    """Move all that a worker or an instance owns to holders of copies: `to` a worker or an
    instance, or to wherever it costs the least."""

    target: str
    to: str | None = None
    dry_run: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainRequest:
    """Take all owned vnodes and copies off a worker, and place none there any more; `undo` lets it
    have some again."""

    worker: WorkerId
    undo: bool = False
    dry_run: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FailoverRequest:
    """Give up a worker or an instance that does not answer. `to` are workers or instances that may
    inherit (empty: all that can), `parallel` how many at most. `force` accepts that vnodes without
    another copy begin empty."""

    target: str
    to: tuple[str, ...] = ()
    parallel: int | None = None
    force: bool = False
    dry_run: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SetJob:
    """Change what a job wishes for."""

    replication: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupsRequest:
    """The replica groups as they are, and as they would be with another `replication`."""

    replication: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointRequest:
    """Checkpoint every vnode; `through` is None at first, then what the first answer says."""

    through: BatchTime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyRequest:
    """Verify the copies of some vnodes (none given: of all); `round` is empty at first, then what
    the first answer says."""

    vnodes: tuple[Vnode, ...] = ()
    deep: bool = False
    round: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspicion:
    """A driver did not get through to a worker."""

    session: int
    worker: WorkerId


@dataclass(frozen=True, slots=True, kw_only=True)
class AbortRequest:
    """Go back to the old layout, if the marker is not decided yet."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RevertRequest:
    """Move back what a complete operation has moved."""

    dry_run: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class BindRequest:
    """Accept another identity of the query: `new_stream` opens the next generation, in which batch
    ids start at 0 again and the state goes on."""

    new_stream: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationView:
    """An operation as people see it. Times are wall seconds by phase; `pause_ms` and `total_ms`
    are None until they are known. Of a failover, `recover_ms` is the time from the decision to the
    first batch that every heir has applied, `replayed_batches` the most that an heir applied from
    its log before, and `bytes_moved` what heirs fetched of it until then. Without a query at the
    marker (`live` is false) no batch was held up, and no pause is measured. `reverts` names the
    operation whose moves this one takes back; empty for none.

    Of the `forfeited` vnodes nobody had a copy, and somebody accepted that they begin empty. What
    is lost with them was `forfeited_bytes` when its worker was heard last, at `forfeited_seen`
    (wall seconds); None is not known."""

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
    lost: tuple[str, ...] = ()
    recover_ms: float | None = None
    replayed_batches: int | None = None
    live: bool = True
    reverts: OpId = NO_OPERATION
    forfeited: tuple[Vnode, ...] = ()
    forfeited_bytes: int | None = None
    forfeited_seen: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceView:
    """An instance of a job: where it runs, what it owns and how far it is. `poison` names the
    decided batch that its operator cannot apply, and why; `fault` is what it failed at last, until
    it has done something since; both are empty if there is none."""

    id: InstanceId
    worker: WorkerId
    pid: int
    ready: bool
    vnodes: tuple[Vnode, ...]
    state_bytes: int
    rss_bytes: int
    applied: BatchTime | None
    poison: str = ""
    fault: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LossView:
    """What would come of the loss of a worker now: vnodes with another owner, those of them without
    another copy, the batches that an heir would replay at most, and how long that would take (None
    if it is not known)."""

    worker: WorkerId
    vnodes: int
    stranded: int
    batches: int
    seconds: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobView:
    """A job as people see it. `watermark_ms` is the event time up to which windows are over, in
    unix milliseconds; None for an operator without one, or before the first rows.

    `lacking` is how many copies are missing to `replication` for each vnode. `fetched_bytes` of
    checkpoints went over the network for the `applied_bytes` of rows that owners have applied,
    since the agents started. `instances_asked` is how many instances were asked for last, which a
    failover or a drain may have left fewer of; 0 if it is not known. The vnodes in `forfeited`
    began empty after that batch, by a failover that was forced: results since lack their state."""

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
    lacking: int = 0
    losses: tuple[LossView, ...] = ()
    fetched_bytes: int = 0
    applied_bytes: int = 0
    instances_asked: int = 0
    forfeited: Mapping[Vnode, BatchTime] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoverRequest:
    """Make the controller's store anew from the workers, `without` some that need not answer."""

    without: tuple[WorkerId, ...]
    dry_run: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveredJob:
    """A job as it is taken over. `session` is the highest number that anybody has seen; `workers`
    have something of it; `gone` is what a failover that had not ended gives up, and goes on with;
    `note` says what else is to be known."""

    name: JobName
    uid: JobUid
    epoch: int
    batch: BatchTime | None
    session: int
    instances: int
    replication: int
    query_id: str
    workers: tuple[WorkerId, ...]
    gone: tuple[str, ...] = ()
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryView:
    """What is taken over from the workers into a store of reign `reign`, or was. Nothing is
    `needed` while all workers listen to the store and have no job that it has not. `objections` are
    why they do not, `silent` those that were left out, `left_out` jobs that have not begun;
    operations go on being numbered after `operation`."""

    needed: bool
    reign: int
    objections: Mapping[WorkerId, str]
    jobs: tuple[RecoveredJob, ...]
    silent: tuple[WorkerId, ...]
    draining: tuple[WorkerId, ...]
    left_out: tuple[JobUid, ...]
    operation: int


class Health(Enum):
    """How something fares."""

    OK = "ok"
    DEGRADED = "degraded"
    DOWN = "down"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerView:
    """A worker as the controller last saw it; `seen_s` seconds ago, None if never. `draining` ones
    get no vnodes and no copies; the disk of one with `room_low` is nearly full. `found_bad`
    checkpoints were bad since its agent started. `links_refused` names the error by which its file
    system refuses hard links, so that checkpoints are copies there. Room and log of one that does
    not answer are not known, which is None. It has something of `unreadable` jobs, and takes part
    in none of them."""

    id: WorkerId
    address: str
    health: Health
    seen_s: float | None
    pid: int
    free_bytes: int | None
    instances: int
    vnodes_owned: int
    log_bytes: int | None
    vnodes_held: int = 0
    draining: bool = False
    room_low: bool = False
    found_bad: int = 0
    links_refused: str = ""
    unreadable: tuple[JobUid, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Something wrong, what it means, and what to type next."""

    what: str
    remedy: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusView:
    """The whole cluster on one page. `refused_by` are workers that do not listen to the controller,
    since its store lacks what they know."""

    cluster: str
    health: Health
    workers: tuple[WorkerView, ...]
    jobs: tuple[JobView, ...]
    operations: tuple[OperationView, ...]
    findings: tuple[Finding, ...]
    refused_by: tuple[WorkerId, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class JobList:
    """All jobs."""

    jobs: tuple[JobView, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationList:
    """Operations, the newest first."""

    operations: tuple[OperationView, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberView:
    """A copy of a vnode: `lag_batches`, `lag_bytes` and `lag_s` are what is in its log after its
    newest checkpoint, which an heir would replay. None is not known, and not none: its worker has
    told nothing of it yet."""

    worker: WorkerId
    role: Role
    whole: bool
    lag_batches: int | None
    lag_bytes: int | None
    lag_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupView:
    """One vnode's chain as it is, and the members as planned."""

    vnode: Vnode
    owner: InstanceId
    worker: WorkerId
    members: tuple[MemberView, ...]
    planned: tuple[WorkerId, ...]
    state_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupsView:
    """The replica groups of a job. `joins` and `leaves` are the copies that the plan adds and
    takes away, `lacking` those that there is no place for, `reasons` why. `waits_for_batch`: no
    query runs, and what its last batch may need stays where it is until the next one. Workers that
    cannot read what they have of the job are `unreadable`, with the fault, and get no copies."""

    job: JobName
    replication: int
    groups: tuple[GroupView, ...]
    joins: int
    leaves: int
    lacking: int
    reasons: tuple[str, ...]
    waits_for_batch: bool = False
    unreadable: Mapping[WorkerId, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointView:
    """How far a checkpoint by hand is: `done` of `vnodes` are covered up to `through` by a
    checkpoint of the owner's worker, and `replicated` of them at every full member."""

    job: JobName
    through: BatchTime
    vnodes: int
    done: int
    replicated: int


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifiedCopy:
    """A full holder's copy of a vnode: `told` once its worker has said which checkpoints it has;
    `broken` if it has no whole copy now, because what it had is bad."""

    vnode: Vnode
    worker: WorkerId
    told: bool
    broken: bool
    checkpoints: tuple[CheckedCheckpoint, ...]

    @property
    def settled(self) -> bool:
        """Whether all that the worker has of it is verified."""
        return self.told and all(one.state is not Checked.WAITING for one in self.checkpoints)


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyingWorker:
    """A worker of a round: whether it is seen, and how much of its files it has read."""

    worker: WorkerId
    live: bool
    done_bytes: int
    total_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyView:
    """How far a round of verification is. What `unreadable` workers have of the job nobody could
    look at, for the reason given."""

    job: JobName
    round: str
    deep: bool
    copies: tuple[VerifiedCopy, ...]
    workers: tuple[VerifyingWorker, ...]
    unreadable: Mapping[WorkerId, str] = field(default_factory=dict)

    @property
    def over(self) -> bool:
        """Whether all workers that are seen have verified what they have."""
        live = {worker.worker for worker in self.workers if worker.live}
        return all(copy.settled for copy in self.copies if copy.worker in live)


@dataclass(frozen=True, slots=True, kw_only=True)
class DecidedView:
    """The last decided record of a job without a live query, found by a fence: its batch (None
    before the first), and Spark's offsets and batch time in it."""

    job: JobName
    query_id: str
    generation: int
    batch: BatchTime | None
    start_offsets: str
    end_offsets: str
    batch_time_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairView:
    """An operation after its workers were asked again: who was `asked`, who of them is silent, and
    what it waits for."""

    operation: OperationView
    asked: tuple[WorkerId, ...]
    silent: tuple[WorkerId, ...]
    waits_for: tuple[str, ...]


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


def problem_of(fault: RhinoError) -> Problem:
    """An error as it travels: over the API, and in the last line of a process that it ended."""
    return Problem(code=fault.code, message=fault.message, remedy=fault.remedy)
