"""By which store a controller speaks, and whether an agent listens.

A controller's store may be lost, or an old copy of it may come back. Each heartbeat therefore says
by which store it is sent and how many changes that has had: a *claim*. An agent keeps the newest
claim that it has heard, and refuses one that lacks a change of which it knows.

Invariants:

1. A store that lacks a change which an agent has heard of is refused by that agent, for ever.
2. The store that has every change is never refused, however often its controller is started.
3. Of two controllers over copies of one store, an agent listens to one, and stays with it.
4. What was refused is heard again only by a higher reign, which a person has asked for.
"""

from dataclasses import dataclass

from rhinoctl.ids import BatchTime, WorkerId
from rhinoctl.protocol.epochs import Epoch
from rhinoctl.protocol.failover import GivenUp
from rhinoctl.protocol.jobs import JobSpec

NOBODY_GIVEN_UP = GivenUp()


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """What a controller says of its store; persisted there before it is said.

    `store` is its identity, `reign` rises whenever a store is made anew from the workers. `number`
    counts the changes that promise something; `run` is this start of the controller, and `start`
    what the number was then: one more than the store had. `operation` is the highest number that an
    operation was given, and `draining` are the workers that shall be empty: who makes the store
    anew has to know both.
    """

    reign: int
    store: str
    run: str
    start: int
    number: int
    operation: int = 0
    draining: frozenset[WorkerId] = frozenset()

    @property
    def age(self) -> tuple[int, int]:
        """Ordered as the changes of the stores that were listened to."""
        return (self.reign, self.number)


@dataclass(frozen=True, slots=True, kw_only=True)
class Memo:
    """What the controller knows of a job and no log tells; agents keep it for who makes the store
    anew. `session` and `given` are as in `rhinoctl.control.registry.JobDocument`; `query_id` and
    `run_id` are those of the session's holder, `generation` that of its batches, `instances` how
    many were asked for, and `gone` is what a failover that has not ended gives up.
    """

    session: int
    given: int
    generation: int
    query_id: str
    run_id: str
    instances: int
    gone: GivenUp = NOBODY_GIVEN_UP


@dataclass(frozen=True, slots=True, kw_only=True)
class Keepsake:
    """What a worker keeps of a job besides its report, for who makes the store anew. `sealed` is
    the epoch of its newest sealed record, decided or not, and `sealed_from` that record's batch."""

    spec: JobSpec
    memo: Memo | None
    sealed: Epoch | None
    sealed_from: BatchTime | None


def objection(known: Claim | None, claim: Claim) -> str:
    """Why an agent that has heard `known` does not listen to `claim`; empty if it does."""
    if known is None or claim.reign > known.reign:
        return ""
    if claim.reign < known.reign:
        return f"its store is of reign {claim.reign}, and reign {known.reign} has begun"
    if claim.store != known.store:
        return f"its store is {claim.store[:8]}, and not {known.store[:8]}"
    if claim.run == known.run or claim.start > known.number:
        return ""
    lost = known.number - claim.start + 1
    return f"its store is an old copy: it lacks the last {lost} of {known.number} changes"


def is_late(known: Claim | None, claim: Claim) -> bool:
    """Whether a claim was overtaken by a newer one of the same run: no fault, but nothing that is
    said with it counts any more."""
    return known is not None and claim.run == known.run and claim.age < known.age
