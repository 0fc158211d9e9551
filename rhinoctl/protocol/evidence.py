"""What `rhinoctl doctor` looks at: all that is known of a cluster, gathered and not yet judged."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from rhinoctl.ids import BatchTime, JobName, JobUid, WorkerId
from rhinoctl.protocol.epochs import Epoch
from rhinoctl.protocol.liveness import Verdict
from rhinoctl.protocol.messages import WorkerReport
from rhinoctl.protocol.views import OperationView


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerEvidence:
    """A worker of the inventory: its last report, which came `seen_s` ago (None: never), what the
    controller takes it for, and what was wrong when it was asked last."""

    id: WorkerId
    seen_s: float | None
    live: bool
    verdict: Verdict
    detail: str
    draining: bool
    report: WorkerReport | None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobEvidence:
    """A job as the controller has it. `kept` is the number of the epoch in its store, `epoch` the
    newest that it knows; `braked` says why there is no failover by itself, empty if there is."""

    name: JobName
    uid: JobUid
    deleted: bool
    live: bool
    session: int
    generation: int
    query_id: str
    replication: int
    kept: int
    epoch: Epoch
    epoch_from: BatchTime
    lacking: int
    replay_s: float | None
    operation: str
    braked: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationEvidence:
    """An operation that has not ended, the moment by which it should have (None: it has none), and
    what it waits for."""

    view: OperationView
    deadline: float | None
    waits_for: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterEvidence:
    """Everything that the controller knows, at one moment (`wall`, seconds since 1970);
    `objections` are why workers do not listen to its store."""

    cluster: str
    wall: float
    store_fault: str
    replay_target_s: float
    workers: tuple[WorkerEvidence, ...]
    jobs: tuple[JobEvidence, ...]
    operations: tuple[OperationEvidence, ...]
    objections: Mapping[WorkerId, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetLog:
    """Spark's offset log of a query, read from a checkpoint directory. `digests` are those of the
    offsets of each batch that could be read (`rhinoctl.protocol.records.offsets_digest`);
    `committed` is the newest batch that is committed, -1 for none, and `commit_fault` why its
    commit cannot be read."""

    directory: str
    query_id: str
    newest: int
    committed: int
    digests: Mapping[int, str]
    faults: tuple[str, ...] = ()
    commit_fault: str = ""
