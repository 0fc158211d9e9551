"""The handover machine: vnodes move from origins to targets at a marker (Rhino, section 4.1).

A handover promotes a follower. While the job runs, each target's worker joins the chains of the
vnodes (or has them already), gathers a copy, and the target instance follows the log; then an
epoch in which the targets own the vnodes is proposed, the holder of the session writes it into the
next decision record, and from the batch after it on the targets apply.

State may leave an origin when, for every moved vnode, the target's worker is a full member and the
target follows within the lag bound; nothing else arms a handover.

Invariants (numbers of the design, section 10):

1. The machine never moves ownership itself: it proposes an epoch, and believes in it only once a
   worker reports it as decided.
6. Every phase ends: WARMING and ARMED by a deadline, PAUSED by a bound of its own (of all pauses of
   a handover together), ABORTING and MARKED by the next decided epoch.
7. COMPLETE is said when every worker of the configuration, and the driver if a session lives,
   report the epoch of the marker or a later one.

`step` looks at what is desired and what is observed, and remembers only its phase and its proposal:
a controller that restarts goes on from any state.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

from rhinoctl import limits
from rhinoctl.ids import BatchTime, InstanceId, JobUid, OpId, Vnode, WorkerId
from rhinoctl.protocol.epochs import (
    Epoch,
    Role,
    unchanged,
    with_members_full,
    with_members_joining,
    with_moves,
)
from rhinoctl.protocol.jobs import VnodeUse
from rhinoctl.protocol.messages import VnodeReport


class Phase(Enum):
    """Where a handover stands. ABORTING: an abort was asked for while the proposal may be taken.
    PAUSED: targets gather their copies and follow, as in WARMING, and no move is proposed."""

    PLANNED = "planned"
    WARMING = "warming"
    PAUSED = "paused"
    ARMED = "armed"
    ABORTING = "aborting"
    MARKED = "marked"
    COMPLETE = "complete"
    ABORTED = "aborted"


class Kind(Enum):
    """What the operator asked for; the protocol is the same."""

    HANDOVER = "handover"
    RESCALE = "rescale"
    SWITCHOVER = "switchover"
    DRAIN = "drain"
    FAILOVER = "failover"


ENDED = frozenset({Phase.COMPLETE, Phase.ABORTED})


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What the controller observes of a job.

    `epoch` is the newest that any worker has ever reported as decided, which the controller keeps:
    a worker that was started again may report an older one. `epoch_from` is the batch whose record
    made it hold. `reached` is each answering worker's, `driver_epoch` the live session's (0 if it
    has not said yet), None without one. `copies` are the vnode reports by worker. `planned` are the
    instances of a handover that is under way: a failover gives new ones other names.
    """

    epoch: Epoch
    epoch_from: BatchTime
    reached: Mapping[WorkerId, int]
    driver_epoch: int | None
    copies: Mapping[WorkerId, Mapping[Vnode, VnodeReport]]
    ready: frozenset[InstanceId]
    planned: frozenset[InstanceId] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Handover:
    """One handover. `instances` are those of the job once it is complete, with their workers, and
    `before` those that it had when the move was proposed last; `workers` are the addresses of the
    targets' workers. `proposal` is what is offered to the holder of
    the session now; `armed` the number of the epoch that makes the move. `paused_at` is when the
    present pause began, and `paused_s` how long those before it were. Times are wall seconds.
    """

    op: OpId
    kind: Kind
    job: JobUid
    moves: Mapping[Vnode, InstanceId]
    instances: Mapping[InstanceId, WorkerId]
    workers: Mapping[WorkerId, str]
    deadline: float
    before: Mapping[InstanceId, WorkerId] = field(default_factory=dict)
    phase: Phase = Phase.PLANNED
    proposal: Epoch | None = None
    armed: int | None = None
    marker: BatchTime | None = None
    reason: str = ""
    times: Mapping[str, float] = field(default_factory=dict)
    paused_at: float | None = None
    paused_s: float = 0.0

    @property
    def ended(self) -> bool:
        return self.phase in ENDED


# --- events --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """The workers have reported."""

    facts: Facts


@dataclass(frozen=True, slots=True, kw_only=True)
class AbortAsked:
    """Somebody wants the old layout back."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PauseAsked:
    """Somebody wants it to stay before its marker for now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeAsked:
    """Somebody wants a paused one to go on."""


Event = Observed | AbortAsked | PauseAsked | ResumeAsked

TRANSITIONS: Mapping[tuple[Phase, type], frozenset[Phase]] = {
    (Phase.PLANNED, Observed): frozenset({Phase.WARMING}),
    (Phase.PLANNED, AbortAsked): frozenset({Phase.ABORTED}),
    (Phase.PLANNED, PauseAsked): frozenset({Phase.PAUSED}),
    (Phase.WARMING, Observed): frozenset({Phase.WARMING, Phase.ARMED, Phase.ABORTED}),
    (Phase.WARMING, AbortAsked): frozenset({Phase.ABORTED}),
    (Phase.WARMING, PauseAsked): frozenset({Phase.PAUSED}),
    (Phase.PAUSED, Observed): frozenset({Phase.PAUSED, Phase.ABORTED}),
    (Phase.PAUSED, AbortAsked): frozenset({Phase.ABORTED}),
    (Phase.PAUSED, ResumeAsked): frozenset({Phase.WARMING}),
    (Phase.ARMED, Observed): frozenset({Phase.ARMED, Phase.WARMING, Phase.ABORTING, Phase.MARKED}),
    (Phase.ARMED, AbortAsked): frozenset({Phase.ABORTING}),
    (Phase.ABORTING, Observed): frozenset({Phase.ABORTING, Phase.ABORTED, Phase.MARKED}),
    (Phase.ABORTING, AbortAsked): frozenset({Phase.ABORTING}),
    (Phase.MARKED, Observed): frozenset({Phase.MARKED, Phase.COMPLETE}),
    (Phase.MARKED, AbortAsked): frozenset({Phase.MARKED}),
    (Phase.COMPLETE, AbortAsked): frozenset({Phase.COMPLETE}),
    (Phase.ABORTED, AbortAsked): frozenset({Phase.ABORTED}),
}
"""Which phases an event may lead to. What is not here is a fault of the caller."""


def step(state: Handover, event: Event, now: float) -> Handover:
    """The next state. The caller persists it, then offers its `proposal` and its `warm_wishes`.

    There are no other effects: both are functions of the state, so that a controller that crashes
    anywhere offers the same again. Raises LookupError on an illegal transition.
    """
    allowed = TRANSITIONS[state.phase, type(event)]
    after = _HANDLERS[state.phase, type(event)](state, event, now)
    if after.phase not in allowed:
        raise LookupError(f"{state.phase} may not become {after.phase} on {type(event).__name__}")
    if after.phase is not state.phase:
        entered = "resumed" if isinstance(event, ResumeAsked) else after.phase.value
        after = replace(after, times={**after.times, entered: now})
    return after


def may_pause(state: Handover) -> bool:
    """Whether a handover can stay where it is: no move of it has been proposed."""
    return (state.phase, PauseAsked) in TRANSITIONS


def warm_wishes(state: Handover) -> Mapping[Vnode, InstanceId]:
    """The vnodes that targets shall follow now: until the marker is decided, or may be."""
    if state.phase not in (Phase.PLANNED, *ENDED):
        return state.moves
    return {}


def _start(state: Handover, event: Observed, now: float) -> Handover:
    return replace(state, phase=Phase.WARMING)


def _warm(state: Handover, event: Observed, now: float) -> Handover:
    facts = event.facts
    state = replace(state, instances=_instances_then(state, facts.epoch))
    clash = _elsewhere(state, facts.epoch)
    if clash is not None:
        return replace(state, phase=Phase.ABORTED, proposal=None, reason=clash)
    if now >= state.deadline:
        lagging = ", ".join(str(vnode) for vnode in sorted(unready(state, facts)))
        reason = f"deadline passed while warming; not ready: vnode {lagging or 'none'}"
        return replace(state, phase=Phase.ABORTED, proposal=None, reason=reason)
    state = _gathering(state, facts)
    if state.proposal is not None or unready(state, facts):
        return state
    armed = _moved(state, facts.epoch)
    before = facts.epoch.instances  # which a failover may have changed since the plan
    return replace(state, phase=Phase.ARMED, proposal=armed, armed=armed.number, before=before)


def _gathering(state: Handover, facts: Facts) -> Handover:
    """With the proposal that gets the targets' workers their copies; None where there is none."""
    moves = _pending(state, facts.epoch)
    workers = {vnode: state.instances[target] for vnode, target in moves.items()}
    joins = {v: w for v, w in workers.items() if w not in facts.epoch.holders(v)}
    if joins:
        return replace(state, proposal=with_members_joining(facts.epoch, joins, _addresses(state)))
    joining = {v: w for v, w in workers.items() if facts.epoch.role_of(w, v) is Role.JOINING}
    if joining and all(_has_copy(facts, w, v) for v, w in joining.items()):
        return replace(state, proposal=with_members_full(facts.epoch, joining))
    return replace(state, proposal=None)


def _pause(state: Handover, event: PauseAsked, now: float) -> Handover:
    """What is proposed stays so: chains that grow move nothing."""
    return replace(state, phase=Phase.PAUSED, paused_at=now)


def _stay(state: Handover, event: Observed, now: float) -> Handover:
    facts = event.facts
    state = replace(state, instances=_instances_then(state, facts.epoch))
    if _paused_s(state, now) >= limits.PAUSE_MAX_S:
        reason = f"paused for {limits.PAUSE_MAX_S:.0f} s, which is as long as it may be"
        return replace(state, phase=Phase.ABORTED, proposal=None, reason=reason)
    clash = _elsewhere(state, facts.epoch)
    if clash is not None:
        return replace(state, phase=Phase.ABORTED, proposal=None, reason=clash)
    return _gathering(state, facts)


def _resume(state: Handover, event: ResumeAsked, now: float) -> Handover:
    """The deadline is as far away as it was when the pause began."""
    paused_s = _paused_s(state, now)
    deadline = state.deadline + paused_s - state.paused_s
    return replace(state, phase=Phase.WARMING, paused_at=None, paused_s=paused_s, deadline=deadline)


def _paused_s(state: Handover, now: float) -> float:
    """How long it has been paused, all pauses together; no longer than it may be, so that a
    controller that was away does not put off the deadline by that."""
    since = now if state.paused_at is None else state.paused_at
    return min(state.paused_s + max(0.0, now - since), limits.PAUSE_MAX_S)


def _instances_then(state: Handover, epoch: Epoch) -> Mapping[InstanceId, WorkerId]:
    """The instances once it is complete: a failover may have given up some, and begun some, since
    the plan was made. New ones of the plan are those that get a vnode; of the others, the epoch
    knows where they are: one may have been lost, and its name given to an heir elsewhere."""
    targets = set(state.moves.values())
    owners = {state.moves.get(Vnode(v), route.owner) for v, route in enumerate(epoch.routes)}
    heirs = {i: worker for i, worker in epoch.instances.items() if i in owners}
    planned = {
        i: w if i in targets else epoch.instances.get(i, w)
        for i, w in state.instances.items()
        if i in epoch.instances or i in owners
    }
    return {**heirs, **planned}


def _elsewhere(state: Handover, epoch: Epoch) -> str | None:
    """Why the plan cannot be carried out if a target's name has gone to another worker."""
    for target in sorted(set(state.moves.values())):
        here, planned = epoch.instances.get(target), state.instances.get(target)
        if here is not None and planned is not None and here != planned:
            return f"instance {target} is on {here} since a failover, not on {planned}"
    return None


def _pending(state: Handover, epoch: Epoch) -> Mapping[Vnode, InstanceId]:
    """The moves that are still to be made: a failover's heir may be the target already."""
    return {v: target for v, target in state.moves.items() if epoch.routes[v].owner != target}


def _addresses(state: Handover) -> Mapping[WorkerId, str]:
    """Those of the plan's workers that it still needs."""
    return {w: state.workers[w] for w in set(state.instances.values()) if w in state.workers}


def _moved(state: Handover, epoch: Epoch) -> Epoch:
    named = {**epoch.workers, **_addresses(state)}
    return with_moves(replace(epoch, workers=named), state.moves, state.instances)


def _has_copy(facts: Facts, worker: WorkerId, vnode: Vnode) -> bool:
    report = facts.copies.get(worker, {}).get(vnode)
    return report is not None and report.use in (VnodeUse.READY, VnodeUse.FOLLOWING)


def unready(state: Handover, facts: Facts) -> frozenset[Vnode]:
    """The moved vnodes whose target does not follow within the lag bound yet."""
    lagging = set()
    for vnode, target in _pending(state, facts.epoch).items():
        report = facts.copies.get(state.instances[target], {}).get(vnode)
        following = (
            report is not None
            and report.use is VnodeUse.FOLLOWING
            and report.instance == target
            and report.lag_batches <= limits.LAG_BATCHES_MAX
        )
        if not following or target not in facts.ready:
            lagging.add(vnode)
    return frozenset(lagging)


def _has_moved(state: Handover, epoch: Epoch) -> bool:
    """Whether the epoch is the one of the marker: a move of no vnode still retires instances."""
    owned = all(epoch.routes[vnode].owner == target for vnode, target in state.moves.items())
    return owned and epoch.instances == state.instances


def _marked(state: Handover, facts: Facts) -> Handover:
    return replace(state, phase=Phase.MARKED, proposal=None, marker=facts.epoch_from)


def _await_marker(state: Handover, event: Observed, now: float) -> Handover:
    facts = event.facts
    assert state.armed is not None
    if facts.epoch.number >= state.armed:
        if _has_moved(state, facts.epoch):
            return _marked(state, facts)
        return replace(state, phase=Phase.WARMING, proposal=None, armed=None)
    if now >= state.deadline:
        return _abort_armed(state, AbortAsked(reason="deadline passed before the marker"), now)
    return state


def _abort_unarmed(state: Handover, event: AbortAsked, now: float) -> Handover:
    return replace(state, phase=Phase.ABORTED, proposal=None, reason=event.reason)


def _abort_armed(state: Handover, event: AbortAsked, now: float) -> Handover:
    """The marker may be on its way: offer an epoch of the same number that moves nothing, and see
    which of the two is decided."""
    assert state.proposal is not None
    return replace(state, phase=Phase.ABORTING, proposal=None, reason=event.reason)


def _await_abort(state: Handover, event: Observed, now: float) -> Handover:
    facts = event.facts
    assert state.armed is not None
    if facts.epoch.number >= state.armed:
        if _has_moved(state, facts.epoch):
            return _marked(state, facts)
        return replace(state, phase=Phase.ABORTED, proposal=None)
    return replace(state, proposal=unchanged(facts.epoch))


def _await_all(state: Handover, event: Observed, now: float) -> Handover:
    facts = event.facts
    assert state.armed is not None
    behind = [w for w in facts.epoch.listeners() if facts.reached.get(w, 0) < state.armed]
    driver = facts.driver_epoch
    if behind or (driver is not None and driver < state.armed):
        return state
    return replace(state, phase=Phase.COMPLETE)


def _ignore(state: Handover, event: AbortAsked, now: float) -> Handover:
    return state


_HANDLERS: Mapping[tuple[Phase, type], Callable[[Handover, Any, float], Handover]] = {
    (Phase.PLANNED, Observed): _start,
    (Phase.PLANNED, AbortAsked): _abort_unarmed,
    (Phase.PLANNED, PauseAsked): _pause,
    (Phase.WARMING, Observed): _warm,
    (Phase.WARMING, AbortAsked): _abort_unarmed,
    (Phase.WARMING, PauseAsked): _pause,
    (Phase.PAUSED, Observed): _stay,
    (Phase.PAUSED, AbortAsked): _abort_unarmed,
    (Phase.PAUSED, ResumeAsked): _resume,
    (Phase.ARMED, Observed): _await_marker,
    (Phase.ARMED, AbortAsked): _abort_armed,
    (Phase.ABORTING, Observed): _await_abort,
    (Phase.ABORTING, AbortAsked): _ignore,
    (Phase.MARKED, Observed): _await_all,
    (Phase.MARKED, AbortAsked): _ignore,
    (Phase.COMPLETE, AbortAsked): _ignore,
    (Phase.ABORTED, AbortAsked): _ignore,
}
