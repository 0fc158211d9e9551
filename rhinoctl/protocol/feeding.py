"""What an instance should do next: a pure choice, made anew each time it is free.

The agent looks at what the instance has open, at what it shall own and follow, and at what is
decided, and picks one command. Nothing is remembered between choices, so that a restarted agent or
instance is just another start (style, rule 4).

Invariants:

1. A vnode's batches are applied in order, each once, without a gap, and only decided ones
   (invariants 2, 4): a log that lacks the next batch makes the vnode wait.
2. The batch whose output is not released is applied by all vnodes of one duty
   (`rhinoctl.protocol.duties`) in one command, so that one file has the duty's output. If it is not
   there although they have applied the batch (an agent was started anew meanwhile, or they only
   followed), they are opened again from before it.
3. A checkpoint never contains an unreleased batch (design, invariant 14).
4. What an owner needs comes before what a follower needs.
"""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter

from rhinoctl.ids import BatchTime, Vnode
from rhinoctl.protocol.records import Link


@dataclass(frozen=True, slots=True, kw_only=True)
class Feed:
    """All that the choice depends on, for one instance of one job.

    `links` are the decided batches of the log, in order. `owned` are the vnodes that the instance
    answers for: under the newest epoch, and under that of the newest decided batch until its
    output is made. `follow` are those it shall follow; of those that are closed, `base` has the
    ones that can be opened, and what their newest local checkpoint covers. `pending` is the newest
    decided batch if this instance owes output of it, with the vnodes of each duty.
    """

    applied: Mapping[Vnode, BatchTime]
    owned: frozenset[Vnode]
    follow: frozenset[Vnode]
    base: Mapping[Vnode, BatchTime]
    links: Sequence[Link]
    released: BatchTime
    pending: tuple[BatchTime, tuple[frozenset[Vnode], ...]] | None
    checkpoint: Sequence[Vnode] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenCommand:
    """Open a vnode from its newest local checkpoint."""

    vnode: Vnode


@dataclass(frozen=True, slots=True, kw_only=True)
class CloseCommand:
    """Close a vnode that the instance neither owns nor follows, or has to open from before."""

    vnode: Vnode


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplyCommand:
    """Apply a decided batch to these vnodes; `owned` of them make its output, if any do."""

    time: BatchTime
    vnodes: frozenset[Vnode]
    owned: frozenset[Vnode]


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointCommand:
    """Take a vnode's checkpoint."""

    vnode: Vnode


_NONE: frozenset[Vnode] = frozenset()
Command = OpenCommand | CloseCommand | ApplyCommand | CheckpointCommand


def next_command(feed: Feed) -> Command | None:
    """The most urgent thing to do, or None."""
    if feed.pending is not None:
        time, duties = feed.pending
        owing = _NONE.union(*duties)
        spent = sorted(v for v in owing & feed.applied.keys() if feed.applied[v] >= time)
        if spent:
            return CloseCommand(vnode=spent[0])
    missing = sorted(feed.owned - feed.applied.keys())
    if missing:
        return OpenCommand(vnode=missing[0])
    apply = _next_apply(feed, feed.owned)
    if apply is not None:
        return apply
    for vnode in feed.checkpoint:
        if vnode in feed.applied and feed.applied[vnode] <= feed.released:
            return CheckpointCommand(vnode=vnode)
    closable = sorted(feed.applied.keys() - feed.owned - feed.follow)
    if closable:
        return CloseCommand(vnode=closable[0])
    apply = _next_apply(feed, feed.follow)
    if apply is not None:
        return apply
    for vnode in sorted(feed.follow - feed.applied.keys()):
        if vnode in feed.base:
            return OpenCommand(vnode=vnode)
    return None


def _next_apply(feed: Feed, of: frozenset[Vnode]) -> ApplyCommand | None:
    """The earliest batch that one of these vnodes lacks, for all open vnodes that stand there."""
    places = {feed.applied[vnode] for vnode in of & feed.applied.keys()}
    for at in sorted(places):
        link = successor(feed.links, at)
        if link is None or link.after != at:
            continue
        time = link.time
        vnodes = frozenset(
            vnode
            for vnode in feed.applied.keys() & (feed.owned | feed.follow)
            if feed.applied[vnode] == at
        )
        owed = feed.pending[1] if feed.pending is not None and feed.pending[0] == time else ()
        # A duty of which one vnode is behind a gap waits for it; others go one by one.
        owing = next((duty for duty in owed if duty <= vnodes), _NONE)
        vnodes -= _NONE.union(*owed) - owing
        if vnodes & of:
            return ApplyCommand(time=time, vnodes=vnodes, owned=owing)
    return None


def successor(links: Sequence[Link], at: BatchTime) -> Link | None:
    """The first of the batches after `at`; there is a gap between if it follows another."""
    place = bisect_right(links, at, key=attrgetter("time"))
    return links[place] if place < len(links) else None
