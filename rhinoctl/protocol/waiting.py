"""What an operation waits for, and what a person may do about it, in words: for people who want to
know why it has not ended, or why there is none."""

from collections.abc import Iterable

from rhinoctl.ids import WorkerId
from rhinoctl.protocol.epochs import Epoch
from rhinoctl.protocol.failover import GivenUp, plan_cut
from rhinoctl.protocol.handover import Facts, Handover, Phase, unready
from rhinoctl.protocol.phrases import workers as named
from rhinoctl.protocol.recovery import Failover

SHOWN = 8
"""Vnodes that are listed by their numbers."""


def waits_for(state: Handover, facts: Facts) -> tuple[str, ...]:
    """What has to be seen before a handover leaves its phase; nothing once it has ended."""
    if state.ended:
        return ()
    if state.phase is Phase.PAUSED:
        return (f"somebody to go on with it: `rhinoctl op resume {state.op}`",)
    if state.phase is Phase.MARKED:
        return _everybody(state.armed or 0, facts)
    found = []
    late = unready(state, facts)
    if state.phase in (Phase.PLANNED, Phase.WARMING) and late:
        found.append(f"vnode {listed(late)} to be followed by its target")
    if state.proposal is not None:
        found.append(f"the record that begins epoch {state.proposal.number}")
    silent = facts.epoch.voters() - facts.reached.keys()
    if silent:
        found.append(f"{named(sorted(silent))}, without whose seal nothing is decided")
    return tuple(found)


def failover_waits_for(state: Failover, facts: Facts) -> tuple[str, ...]:
    """As `waits_for`, of a failover."""
    if state.ended:
        return ()
    if state.phase is Phase.ARMED:
        voters = state.proposal.voters() if state.proposal is not None else frozenset()
        silent = voters - facts.reached.keys()
        cut = "the cut, which the holder of the session seals"
        must = "which must seal the cut and "
        who = named(sorted(silent)) + f", {must}{'does' if len(silent) == 1 else 'do'} not answer"
        return (cut, who) if silent else (cut,)
    late = []
    for vnode in state.origins:
        copy = facts.copies.get(facts.epoch.owner_worker(vnode), {}).get(vnode)
        if copy is None or copy.applied is None or copy.applied < (state.marker or copy.applied):
            late.append(vnode)
    recover = (f"vnode {listed(late)} to be recovered by its heir",) if late else ()
    return (*_everybody(state.epoch or 0, facts), *recover)


def _everybody(number: int, facts: Facts) -> tuple[str, ...]:
    """Who has not said yet that an epoch holds."""
    behind = [w for w in sorted(facts.epoch.listeners()) if facts.reached.get(w, 0) < number]
    found = [f"{named(behind)} to report epoch {number}"] if behind else []
    if facts.driver_epoch is not None and facts.driver_epoch < number:
        found.append(f"the driver to report epoch {number}")
    return tuple(found)


def by_hand(epoch: Epoch, workers: Iterable[WorkerId], gone: GivenUp) -> str:
    """What to type to give workers up while `gone` are, too; and what that would cost."""
    stranded = plan_cut(epoch, gone).stranded
    named = [
        (w, any(w in epoch.full_holders(vnode) for vnode in stranded)) for w in sorted(workers)
    ]
    typed = [f"`rhinoctl failover {worker}{' --force' if last else ''}`" for worker, last in named]
    if not any(last for _, last in named):
        return ", ".join(typed)
    return (
        f"{', '.join(typed)}, only if their disks are lost for good: vnode {listed(stranded)} would"
        " begin EMPTY, and results since lack what was in them"
    )


def listed(numbers: Iterable[int]) -> str:
    """Numbers in their order, the first of many."""
    every = sorted(numbers)
    return ", ".join(map(str, every[:SHOWN])) + (" …" if len(every) > SHOWN else "")
