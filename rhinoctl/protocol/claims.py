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

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from rhinoctl.ids import BatchTime, Vnode, WorkerId
from rhinoctl.protocol.epochs import Epoch
from rhinoctl.protocol.failover import GivenUp
from rhinoctl.protocol.jobs import JobSpec

NOBODY_GIVEN_UP = GivenUp()

RUNS_KEPT = 32
"""Starts of the controller of which a store knows: a worker that has missed more goes by numbers
alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """What a controller says of its store; persisted there before it is said.

    `store` is its identity, `reign` rises whenever a store is made anew from the workers. `number`
    counts the changes that promise something, and `run` is this start of the controller: two
    copies of a store that are both written to have the same numbers, and other runs. `before` are
    the runs before this one, the last `RUNS_KEPT`, each with the number of its last change.
    `operation` is the highest number that an operation was given, and `draining` are the workers
    that shall be empty: who makes the store anew has to know both.
    """

    reign: int
    store: str
    run: str
    number: int
    before: tuple[tuple[str, int], ...] = ()
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
    many were asked for, `gone` is what a failover that has not ended gives up, and `forfeited` the
    vnodes that began empty after a batch, as there.
    """

    session: int
    given: int
    generation: int
    query_id: str
    run_id: str
    instances: int
    gone: GivenUp = NOBODY_GIVEN_UP
    forfeited: Mapping[Vnode, BatchTime] = field(default_factory=dict)


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
    if claim.run == known.run:
        return ""
    last = dict(claim.before).get(known.run)
    if last is None:
        long_ago = len(claim.before) == RUNS_KEPT and known.number < claim.before[0][1]
        return "" if long_ago else "its store lacks the last start of the controller: an old copy"
    lost = known.number - last
    return (
        f"its store is an old copy: it lacks {lost} of {known.number} changes" if lost > 0 else ""
    )


def next_run(claim: Claim, run: str) -> Claim:
    """What the next controller over a store says of it, as soon as that is persisted."""
    before = (*claim.before, (claim.run, claim.number))[-RUNS_KEPT:]
    return replace(claim, run=run, before=before)


def is_late(known: Claim | None, claim: Claim) -> bool:
    """Whether a claim was overtaken by a newer one of the same run: no fault, but nothing that is
    said with it counts any more."""
    return known is not None and claim.run == known.run and claim.age < known.age
