"""What `rhinoctl doctor` may find, as values: what is looked for, how bad it is, what helps."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum


class State(Enum):
    """How bad it is. DEGRADED: records flow, with less safety or slower. BROKEN: something waits
    for a person, or would be lost with one more fault."""

    OK = "ok"
    DEGRADED = "degraded"
    BROKEN = "broken"


class Check(Enum):
    """What is looked for."""

    STORE_FAULT = "store-fault"
    STORE_REFUSED = "store-refused"
    STORE_OLD = "store-old"
    UNKNOWN_JOB = "unknown-job"
    WORKER_SILENT = "worker-silent"
    WORKER_NOT_EMPTY = "worker-not-empty"
    DISK_LOW = "disk-low"
    DISK_LOST = "disk-lost"
    JOB_UNREADABLE = "job-unreadable"
    EPOCH_BEHIND = "epoch-behind"
    INSTANCE_MISSING = "instance-missing"
    INSTANCE_NOT_READY = "instance-not-ready"
    INSTANCE_SET_BACK = "instance-set-back"
    POISON_BATCH = "poison-batch"
    OWNER_NOT_WHOLE = "owner-not-whole"
    COPIES_LACKING = "copies-lacking"
    COPY_NOT_WHOLE = "copy-not-whole"
    REPLAY_LONG = "replay-long"
    LOG_HELD_BACK = "log-held-back"
    BAD_CHECKPOINT = "bad-checkpoint"
    OPERATION_LATE = "operation-late"
    FAILOVER_BRAKED = "failover-braked"
    OFFSETS_UNREADABLE = "offsets-unreadable"
    OFFSETS_OTHER_QUERY = "offsets-other-query"
    OFFSETS_BEHIND = "offsets-behind"
    OFFSETS_AHEAD = "offsets-ahead"
    OFFSETS_DIFFER = "offsets-differ"
    COMMIT_LOST = "commit-lost"
    COMMIT_UNREADABLE = "commit-unreadable"


class Fix(Enum):
    """What may be done about a finding without a person."""

    CHECKPOINT = "checkpoint"
    REPAIR = "repair"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Something that is not as it should be. `target` is the job or operation of a `fix`."""

    check: Check
    state: State
    what: str
    evidence: str
    cost: str
    remedy: str
    fix: Fix | None = None
    target: str = ""


def worst(findings: Iterable[Finding]) -> State:
    """The state of a cluster with these findings."""
    order = list(State)
    return max((finding.state for finding in findings), key=order.index, default=State.OK)
