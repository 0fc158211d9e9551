"""Who is lost: what the controller sees of a worker, and what it may conclude (design, section 8).

A wrong verdict costs a failover and no record (docs/protocol/failover.md); a late one costs time.

Invariants:

1. Silence alone is a loss only after the lease, and not while the worker decides batches.
2. An agent that is down while an instance of it lives, or that has said that it ends, moves
   nothing, unless it stays away.
3. Many losses at once, or one after the other over one batch, are left to a person.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from rhinoctl.ids import BatchTime


class Verdict(Enum):
    """What a worker is taken for. SUSPECT: it is looked at closely, and nothing is done yet."""

    ALIVE = "alive"
    SUSPECT = "suspect"
    LOST = "lost"


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long to wait, in seconds: for an answer of a worker that is silent (`lease_s`), and for
    an agent that is down while its instances live, or that was ended on purpose
    (`agent_restart_s`)."""

    lease_s: float
    agent_restart_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What is known of a worker; ages in seconds, of the time in which the controller was awake.

    `silent_s` since its last answer, None if it has never answered this controller, which then
    has been up for `up_s`. `refused` says that nothing listened at its address when it was asked
    last, `instances` how many instances it had, `beacons` how many of them have somebody
    listening, `leaving` that it has said farewell. `decided_s` since a driver decided a batch with
    it, None if none has.
    """

    silent_s: float | None
    up_s: float
    refused: bool
    instances: int
    beacons: int
    leaving: bool
    decided_s: float | None


def judge(seen: Evidence, patience: Patience) -> Verdict:
    """The verdict on one worker.

    A worker without instances has no beacon: it is given the time of an agent's restart.
    """
    silent_s = seen.up_s if seen.silent_s is None else seen.silent_s
    if seen.refused:
        patient = seen.leaving or seen.beacons > 0 or seen.instances == 0
        limit_s = patience.agent_restart_s if patient else 0.0
        return Verdict.LOST if silent_s >= limit_s else Verdict.SUSPECT
    if silent_s >= patience.lease_s and not _deciding(seen, patience):
        return Verdict.LOST
    return Verdict.ALIVE if silent_s < patience.lease_s / 2 else Verdict.SUSPECT


def beacons_count(seen: Evidence, patience: Patience) -> bool:
    """Whether the verdict may depend on beacons, which cost time to ask: not where an agent
    answers, nor once the worker is lost whatever they say."""
    longest_s = max(patience.lease_s, patience.agent_restart_s)
    known_lost = seen.silent_s is None or seen.silent_s >= longest_s
    return seen.refused and not (known_lost and not _deciding(seen, patience))


def _deciding(seen: Evidence, patience: Patience) -> bool:
    return seen.decided_s is not None and seen.decided_s < patience.lease_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Past:
    """A failover of before: the newest batch that was decided then."""

    decided: BatchTime | None


def brake(
    *, lost: int, workers: int, decided: BatchTime | None, past: Sequence[Past]
) -> str | None:
    """Why the controller should not go on by itself, in words for people; None if it may.

    `lost` of the job's `workers` are lost now. `past` are its failovers, `decided` the newest
    decided batch: if it is that of the last failover, the batch after it has ended two workers.
    """
    bound = max(1, workers // 3)
    if lost > bound:
        return f"{lost} of {workers} workers are lost together, more than {bound}"
    if past and past[-1].decided == decided:
        following = "the first batch" if decided is None else f"the batch after {decided}"
        return f"{following} was under way when the last worker was lost, and still is"
    return None
