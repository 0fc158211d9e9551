"""The failover machine: from "it is lost" to "its heirs go on" (design, section 8; Rhino, 3.5.3).

It is the handover machine without its warming: a cut is offered until it, or another one, is
decided. What was offered is never taken back, since it may have been decided unseen; but if another
epoch has got its number, and there is no heir in that one, the failover ends as it began (ABORTED).

Invariants (numbers of the design, section 10):

1. What is given up stays so until an epoch without it is decided; the caller persists the state
   before it offers the proposal.
6. It ends: with the epoch that has no part in what is given up, known to all who have one.
7. COMPLETE is said when every worker of the configuration, and the driver if a session lives,
   report that epoch or a later one, and every heir has reached the batch before it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from rhinoctl.ids import BatchTime, InstanceId, JobUid, OpId, Vnode, WorkerId
from rhinoctl.protocol.epochs import Epoch
from rhinoctl.protocol.failover import ANYBODY, Choice, GivenUp, plan_cut
from rhinoctl.protocol.handover import ENDED, Facts, Handover, Phase


@dataclass(frozen=True, slots=True, kw_only=True)
class Failover:
    """One failover of one job. `heirs` are the new owners of `origins`' vnodes; `decided` is the
    newest batch that was decided when it began, `fetched` the bytes of the vnodes'
    checkpoints that had come to their heirs before the cut. With `force` vnodes without another
    copy begin empty; in `forfeited` are those with which a cut of this failover is decided.

    Its phases are ARMED (a cut is offered), MARKED (it is decided, by the record of batch `marker`)
    and COMPLETE, or ABORTED. Times are wall seconds.
    """

    op: OpId
    job: JobUid
    gone: GivenUp
    why: str
    decided: BatchTime | None
    fetched: int = 0
    choice: Choice = ANYBODY
    force: bool = False
    origins: Mapping[Vnode, InstanceId] = field(default_factory=dict)
    heirs: Mapping[Vnode, InstanceId] = field(default_factory=dict)
    forfeited: frozenset[Vnode] = frozenset()
    phase: Phase = Phase.ARMED
    proposal: Epoch | None = None
    epoch: int | None = None
    marker: BatchTime | None = None
    times: Mapping[str, float] = field(default_factory=dict)

    @property
    def ended(self) -> bool:
        return self.phase in ENDED

    @property
    def begin_empty(self) -> frozenset[Vnode]:
        """The vnodes that begin empty, as is decided and as is offered."""
        offered = self.proposal.forfeited if self.proposal is not None else frozenset()
        return self.forfeited | offered

    def has_made(self, epoch: Epoch) -> bool:
        """Whether an epoch is a cut of this failover: an earlier one gave up others."""
        gone = self.gone
        return epoch.is_cut and epoch.lost <= gone.workers and epoch.failed <= gone.instances


def stops(gone: GivenUp, handover: Handover) -> bool:
    """Whether a handover cannot go on from the layout that a failover makes: a target is lost."""
    targets = set(handover.moves.values())
    return bool(targets & gone.instances) or any(
        handover.instances[target] in gone.workers for target in targets
    )


def with_more(state: Failover, gone: GivenUp, why: str) -> Failover:
    """The same failover, which gives up more: another cut, if one is decided already. Two failovers
    would wait for each other's victims."""
    more = state.gone | gone
    if more == state.gone:
        return state
    return replace(state, gone=more, why=f"{state.why}; {why}", phase=Phase.ARMED)


def step(
    state: Failover, facts: Facts, behind: Mapping[tuple[WorkerId, Vnode], int], now: float
) -> Failover:
    """The next state, from what is observed now. The caller persists it, then offers `proposal`."""
    after = state
    if after.phase is Phase.ARMED:
        after = _offered(after, facts, behind)
    if after.phase is Phase.MARKED:
        after = _recovering(after, facts)
    if after.phase is not state.phase:
        after = replace(after, times={**after.times, after.phase.value: now})
    return after


def _offered(
    state: Failover, facts: Facts, behind: Mapping[tuple[WorkerId, Vnode], int]
) -> Failover:
    epoch = facts.epoch
    if state.has_made(epoch):
        state = replace(state, forfeited=state.forfeited | epoch.forfeited)
    if not state.gone.within(epoch):
        return replace(
            state,
            phase=Phase.MARKED,
            proposal=None,
            epoch=epoch.number,
            marker=facts.epoch_from,
            heirs={v: epoch.routes[v].owner for v in state.origins},
        )
    known = state.proposal
    if (
        known is not None
        and known.number == epoch.number + 1
        and known.lost == (state.gone.within(epoch).workers)
        and known.forced == state.force
    ):
        return state  # who has taken it up need not begin again
    taken = facts.planned
    plan = plan_cut(epoch, state.gone, behind=behind, choice=state.choice, taken=taken)
    if plan.epoch is None:
        plan = plan_cut(epoch, state.gone, behind=behind, force=state.force, taken=taken)
    if plan.epoch is None:
        if known is not None and known.number == epoch.number + 1:
            return state
        why = f"{state.why}; vnode {plan.stranded[0]} has no other whole copy any more"
        return replace(state, phase=Phase.ABORTED, proposal=None, why=why)
    origins = {v: epoch.routes[v].owner for v in plan.heirs}
    return replace(
        state,
        proposal=replace(plan.epoch, forced=state.force),
        heirs=plan.heirs,
        origins={**state.origins, **origins},
    )


def _recovering(state: Failover, facts: Facts) -> Failover:
    assert state.epoch is not None
    epoch = facts.epoch
    if any(facts.reached.get(w, 0) < state.epoch for w in epoch.listeners()):
        return state
    if facts.driver_epoch is not None and facts.driver_epoch < state.epoch:
        return state
    for vnode in state.origins:
        copy = facts.copies.get(epoch.owner_worker(vnode), {}).get(vnode)
        if copy is None or copy.applied is None or copy.applied < (state.marker or copy.applied):
            return state
    return replace(state, phase=Phase.COMPLETE)
