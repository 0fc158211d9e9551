"""What a batch on its way is made of: phases, events, effects, and the table of transitions.

The machine itself is `rhinoctl.protocol.batches`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from rhinoctl.ids import Attempt, BatchTime, WorkerId
from rhinoctl.protocol import messages as m
from rhinoctl.protocol.decisions import Receipt, Task
from rhinoctl.protocol.epochs import Epoch
from rhinoctl.protocol.records import DecisionRecord
from rhinoctl.protocol.sessions import NOBODY, Lineage


class Phase(Enum):
    """Where a batch stands. CUTTING: an epoch record is sealed that gives up lost workers."""

    FENCING = "fencing"
    CUTTING = "cutting"
    OPENING = "opening"
    STAGING = "staging"
    SEALING = "sealing"
    APPLYING = "applying"
    DONE = "done"
    FAILED = "failed"


class FaultKind(Enum):
    """Why a batch failed; the shell turns it into an error with a remedy."""

    UNREACHABLE = "unreachable"
    FENCED = "fenced"
    OFFSETS_DIFFER = "offsets_differ"
    WRONG_BATCH = "wrong_batch"
    STALE_EPOCH = "stale_epoch"
    RELEASED = "released"
    OTHER_OPERATOR = "other_operator"
    BEHIND = "behind"
    POISON = "poison"
    ATTEMPTS = "attempts"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    kind: FaultKind
    detail: str
    workers: tuple[WorkerId, ...] = ()


# --- events --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """A worker answered a request that this phase of this attempt has sent. What answers an
    earlier request is not delivered."""

    worker: WorkerId
    message: m.Message


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost:
    """No answer: not delivered, or not known to be. Every message here may be sent again."""

    worker: WorkerId
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Staged:
    """The Spark job has ended: a receipt per task, and a line for every push that failed."""

    attempt: Attempt
    receipts: tuple[Receipt, ...]
    failures: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposed:
    """The controller's newest proposal (None: withdrawn). Taken when the next record is written; a
    cut is taken at once."""

    epoch: Epoch | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Expired:
    """The phase's deadline has passed."""


Event = Answered | Lost | Staged | Proposed | Expired


# --- effects, in the order in which they are to happen -------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Send:
    """Send a request to a worker, after a delay."""

    worker: WorkerId
    message: m.Message
    delay_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Run the Spark job that pushes every channel's slices under this attempt and epoch."""

    time: BatchTime
    attempt: Attempt
    epoch: Epoch


@dataclass(frozen=True, slots=True, kw_only=True)
class Deadline:
    """Deliver `Expired` after this time, unless the batch has ended or another `Deadline` came."""

    after_s: float


Effect = Send | Stage | Deadline


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchState:
    """One batch on its way. `waiting` are the workers whose answer the phase still needs; `plain`
    says that a marker was tried with this batch in vain, and is not tried again. `lost` are the
    workers that were proposed to be given up; `decided` says that the batch was decided when the
    cut began. `misses` counts how often each worker has lacked slices of this attempt."""

    phase: Phase
    lineage: Lineage
    task: Task
    attempt: Attempt | None = None
    waiting: frozenset[WorkerId] = frozenset()
    fences: Mapping[WorkerId, m.FenceAnswer] = field(default_factory=dict)
    receipts: tuple[Receipt, ...] = ()
    record: DecisionRecord | None = None
    proposal: Epoch | None = None
    lost: frozenset[WorkerId] = NOBODY
    decided: bool = False
    plain: bool = False
    outputs: tuple[m.OutputName, ...] = ()
    applied_at: Mapping[WorkerId, float] = field(default_factory=dict)
    replayed: bool = False
    attempts: int = 0
    misses: Mapping[WorkerId, int] = field(default_factory=dict)
    fault: Fault | None = None

    @property
    def ended(self) -> bool:
        return self.phase in (Phase.DONE, Phase.FAILED)


Step = tuple[BatchState, tuple[Effect, ...]]

_PLACED = frozenset({Phase.FENCING, Phase.CUTTING, Phase.OPENING, Phase.APPLYING, Phase.FAILED})
"""Where a fence may lead a batch."""

TRANSITIONS: Mapping[tuple[Phase, type], frozenset[Phase]] = {
    (Phase.FENCING, Answered): _PLACED | {Phase.SEALING},
    (Phase.FENCING, Lost): frozenset({Phase.FENCING}),
    (Phase.CUTTING, Answered): frozenset(
        {Phase.CUTTING, Phase.OPENING, Phase.APPLYING, Phase.FAILED}
    ),
    (Phase.CUTTING, Lost): frozenset({Phase.CUTTING}),
    (Phase.CUTTING, Staged): frozenset({Phase.CUTTING}),
    (Phase.OPENING, Answered): frozenset({Phase.OPENING, Phase.STAGING, Phase.FAILED}),
    (Phase.OPENING, Lost): frozenset({Phase.OPENING}),
    (Phase.STAGING, Staged): frozenset({Phase.OPENING, Phase.SEALING, Phase.FAILED}),
    (Phase.STAGING, Answered): frozenset({Phase.STAGING}),
    (Phase.STAGING, Lost): frozenset({Phase.STAGING}),
    (Phase.SEALING, Answered): frozenset(
        {Phase.SEALING, Phase.OPENING, Phase.APPLYING, Phase.FAILED}
    ),
    (Phase.SEALING, Lost): frozenset({Phase.SEALING}),
    (Phase.APPLYING, Answered): frozenset({Phase.APPLYING, Phase.DONE, Phase.FAILED}),
    (Phase.APPLYING, Lost): frozenset({Phase.APPLYING}),
    (Phase.FENCING, Expired): frozenset({Phase.FAILED}),
    (Phase.CUTTING, Expired): frozenset({Phase.FAILED}),
    (Phase.OPENING, Expired): frozenset({Phase.FAILED}),
    (Phase.STAGING, Expired): frozenset({Phase.FAILED}),
    (Phase.SEALING, Expired): frozenset({Phase.OPENING, Phase.FAILED}),
    (Phase.APPLYING, Expired): frozenset({Phase.FAILED}),
    (Phase.FENCING, Proposed): _PLACED,
    (Phase.CUTTING, Proposed): frozenset({Phase.CUTTING}),
    (Phase.OPENING, Proposed): frozenset({Phase.OPENING, Phase.CUTTING}),
    (Phase.STAGING, Proposed): frozenset({Phase.STAGING, Phase.CUTTING}),
    (Phase.SEALING, Proposed): frozenset({Phase.SEALING, Phase.CUTTING}),
    (Phase.APPLYING, Proposed): frozenset({Phase.APPLYING, Phase.CUTTING}),
}
"""Which phases an event may lead to. What is not here is a fault of the caller."""
