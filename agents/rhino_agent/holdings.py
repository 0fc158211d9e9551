"""What this worker has of each vnode of a job: checkpoints, how far they reach, and what of the log
goes on from them.

Invariants:

1. A base is a checkpoint, or the empty one, from which the log here goes on without a gap.
2. A checkpoint's coverage moves on only over batches that did not touch its vnode (design, 5).
3. What a peer is copying stays, checkpoint and log, until its lease ends.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

from rhino_agent.job import Job
from rhinoctl import limits
from rhinoctl.ids import BASE, BatchTime, Vnode
from rhinoctl.protocol.records import DecisionRecord
from rhinoctl.state.checkpoints import VnodeCheckpoints
from rhinoctl.state.covers import BASE_ID, Covers
from rhinoctl.state.disk import StampingDisk
from rhinoctl.state.leases import Leases
from rhinoctl.state.manifests import Identity, Manifest


@dataclass(frozen=True, slots=True)
class Base:
    """Where a vnode can be opened from: a checkpoint (None: empty) and the batch it reaches."""

    manifest: Manifest | None
    reach: BatchTime

    @property
    def name(self) -> str:
        """The checkpoint's id, that of the empty one without."""
        return BASE_ID if self.manifest is None else self.manifest.checkpoint_id


@dataclass(frozen=True, slots=True)
class Loan:
    """A peer copies a vnode: the log after `since` stays until then."""

    since: BatchTime
    until: float


class Bound(NamedTuple):
    """The checkpoint that every full member of a vnode's chain has, and how far it reaches."""

    checkpoint_id: str
    reach: BatchTime


class Piece(NamedTuple):
    """What a released batch has for a vnode in the log here."""

    time: BatchTime
    rows: int
    size: int


class Holdings:
    """The copies of one job's vnodes on one worker."""

    def __init__(self, job: Job, disk: StampingDisk) -> None:
        self.covers = Covers(disk, f"{job.root}/covers.json")
        self.leases = Leases()
        self._job = job
        self._disk = disk
        self._root = f"{job.root}/ckpt"
        self._kept: dict[Vnode, VnodeCheckpoints] = {}
        self._touched: dict[Vnode, BatchTime] = {}
        self._rows: dict[Vnode, deque[Piece]] = {}
        self._noted = BASE
        self._forgot = False
        self._whole: dict[Vnode, str] = {}
        self._loans: dict[Vnode, Loan] = {}
        self._bounds: dict[Vnode, Bound] = {}
        for name in disk.list(self._root):
            self.of(Vnode(int(name)))
        job.learn_released(self._covered())
        self.note_touched()

    def _covered(self) -> BatchTime:
        """The newest batch that a checkpoint here covers. None covers an unreleased one."""
        taken = [one.covers for kept in self._kept.values() for one in kept.complete()]
        return max([*taken, self.covers.newest()])

    def vnodes(self) -> tuple[Vnode, ...]:
        """Those of which there may be files."""
        return tuple(self._kept)

    def has(self, kept: VnodeCheckpoints) -> bool:
        """Whether these checkpoints are still here: they go when their vnode leaves."""
        return self._kept.get(kept.identity.vnode) is kept

    def of(self, vnode: Vnode) -> VnodeCheckpoints:
        """What is kept of a vnode here."""
        if vnode not in self._kept:
            self._kept[vnode] = VnodeCheckpoints(
                self._disk, f"{self._root}/{vnode}", self.identity(vnode)
            )
        return self._kept[vnode]

    def identity(self, vnode: Vnode) -> Identity:
        """Whose checkpoints a vnode's are."""
        spec = self._job.spec
        return Identity(
            cluster=self._job.ports.settings.cluster,
            job=spec.uid,
            operator=spec.operator.name,
            vnode=vnode,
        )

    def remove(self, vnode: Vnode) -> None:
        """Remove all that is here of a vnode, except of the log."""
        self.of(vnode).remove()
        self._kept.pop(vnode, None)
        self._whole.pop(vnode, None)
        self.covers.forget(vnode, ())

    def reload(self, vnode: Vnode) -> None:
        """What is here of a vnode is elsewhere on the disks now, or nowhere: look again."""
        self._kept.pop(vnode, None)
        self._whole.pop(vnode, None)
        kept = self.of(vnode)
        self.covers.forget(vnode, [each.checkpoint_id for each in kept.complete()])

    def forfeit(self, vnodes: frozenset[Vnode], time: BatchTime) -> None:
        """Vnodes of which nobody had a copy any more begin empty after a batch. What was taken of
        them since then stays, should this be said again after a restart."""
        for vnode in vnodes:
            kept = self.of(vnode)
            for manifest in kept.complete():
                if manifest.covers <= time:
                    kept.set_aside(manifest.checkpoint_id, "it was forfeited")
            self.covers.advance(vnode, BASE_ID, time)
        self.covers.persist()
        self.look_again()

    # --- bases -----------------------------------------------------------------------------------

    def newest(self, vnode: Vnode) -> Manifest | None:
        """The newest complete checkpoint of a vnode, or None."""
        return next(iter(self.of(vnode).complete()), None)

    def reach(self, vnode: Vnode) -> BatchTime:
        """What the newest checkpoint of a vnode covers, or the empty one."""
        return next(self._bases(vnode)).reach

    def _bases(self, vnode: Vnode) -> Iterator[Base]:
        """All that there is to begin from, the newest first; the empty one is the last."""
        for manifest in self.of(vnode).complete():
            yield Base(manifest, self.covers.of(manifest))
        yield Base(None, self.covers.of_base(vnode))

    def base(self, vnode: Vnode, *, besides: tuple[str, ...] = ()) -> Base | None:
        """The newest base of a vnode, without some checkpoints; None if this copy is not whole."""
        base = next((one for one in self._bases(vnode) if one.name not in besides), None)
        if base is None or self._job.state.decided is None:
            return None
        if self._whole.get(vnode) == base.name:
            return base
        if not self.log_continues(vnode, base.reach):
            return None
        if not besides:
            self._whole[vnode] = base.name
        return base

    def directory(self, base: Base, vnode: Vnode) -> str:
        """A base's directory for an instance to open, empty for the empty one."""
        if base.manifest is None:
            return ""
        return self._disk.path_of(self.of(vnode).path_of(base.manifest.checkpoint_id))

    def log_continues(self, vnode: Vnode, since: BatchTime) -> bool:
        """Whether the log has all of a vnode from the batch after `since` to the newest decided.

        A worker that knows of no decided record knows nothing of what it lacks.
        """
        if self._job.state.decided is None:
            return False
        return self.log_through(vnode, since) >= self._job.decided_time

    def log_through(self, vnode: Vnode, since: BatchTime) -> BatchTime:
        """Up to which decided batch the log has all of a vnode from the batch after `since`."""
        return self._job.log.reach(vnode, since, self._job.decided_time)

    def log_since(self, vnode: Vnode) -> BatchTime:
        """After which batch the log has all of a vnode up to the newest decided."""
        since = self._job.decided_time
        for time, after in reversed(self._job.log.links(BASE, since)):
            if time != since or not self._job.log.has(time, vnode):
                break
            since = after
        return since

    def look_again(self) -> None:
        """The log may have got a gap, or pieces that were missing: believe nothing remembered.
        The log is read again when somebody asks: this may be said of each of many pieces."""
        self._whole.clear()
        self._rows.clear()
        self._noted = BASE
        self._forgot = True

    # --- coverage --------------------------------------------------------------------------------

    def note_touched(self) -> None:
        """Look which vnodes the released batches have touched."""
        self._forgot = False
        for time, _ in self._job.log.links(self._noted, self._job.released):
            record = self._job.log.record(time)
            if record is not None:
                touched = filter(record.touches, map(Vnode, range(self._job.spec.vnodes)))
                self._touched.update(dict.fromkeys(touched, time))
                sizes = self._sizes(record)
                for vnode, count in record.rows.items():
                    if count and self._job.log.has(time, vnode):
                        piece = Piece(time, count, sizes.get(vnode, 0))
                        self._rows.setdefault(vnode, deque()).append(piece)
            self._noted = time

    @staticmethod
    def _sizes(record: DecisionRecord) -> dict[Vnode, int]:
        sizes: dict[Vnode, int] = {}
        for winner in record.winners:
            for name in winner.slices:
                sizes[name.vnode] = sizes.get(name.vnode, 0) + name.size
        return sizes

    def waiting(self, vnode: Vnode) -> tuple[int, int]:
        """Rows of released batches that the newest checkpoint of a vnode does not have, and their
        bytes."""
        if self._forgot:
            self.note_touched()
        reach, rows = self.reach(vnode), self._rows.setdefault(vnode, deque())
        while rows and rows[0].time <= reach:
            rows.popleft()
        return sum(each.rows for each in rows), sum(each.size for each in rows)

    def touched(self, vnode: Vnode) -> BatchTime:
        """The last released batch that touched a vnode, as far as log and checkpoints show."""
        marked = [manifest.last_batch for manifest in self.of(vnode).complete()]
        return max([self._touched.get(vnode, BASE), *marked])

    def is_stale(self, vnode: Vnode) -> bool:
        """Whether a batch has touched the vnode since its newest checkpoint."""
        return self._touched.get(vnode, BASE) > self.reach(vnode)

    def advance(self, vnode: Vnode, released: BatchTime) -> None:
        """Every checkpoint since which nothing has touched the vnode reaches up to now. For whole
        copies only: nobody knows whether a batch that is not in the log has touched it."""
        touched = self.touched(vnode)
        for manifest in self.of(vnode).complete():
            if touched <= self.covers.of(manifest):
                self.covers.advance(vnode, manifest.checkpoint_id, released)
        if touched == BASE and self.base(vnode) is not None:
            self.covers.advance(vnode, BASE_ID, released)

    def oldest_reach(self, vnode: Vnode) -> BatchTime:
        """What the oldest of the checkpoints that decide on trimming covers: how far the log could
        be trimmed if nobody else needed it."""
        deciding = islice(self._bases(vnode), self._deciding(vnode))
        return min(base.reach for base in deciding)

    def _deciding(self, vnode: Vnode) -> int:
        """How many of a vnode's checkpoints decide on trimming. A copy that came later has no empty
        one to go back to."""
        complete = self.of(vnode).complete()
        here = self._job.ports.settings.worker
        foreign = len(complete) == 1 and not complete[0].checkpoint_id.endswith(f"-{here}")
        return 1 if foreign else limits.CHECKPOINTS_RETAINED

    def floor(self, vnode: Vnode) -> BatchTime:
        """The last batch that may leave the log as far as a vnode goes."""
        complete = self.of(vnode).complete()
        floor = self.covers.floor(vnode, complete, keep=self._deciding(vnode))
        if vnode in self._bounds and complete:
            self._look_at_bound(vnode)
            floor = min(floor, self._bounds[vnode].reach)
        loan = self._loans.get(vnode)
        return floor if loan is None else min(floor, loan.since)

    def bound_floor(self, vnode: Vnode, replicated: str | None) -> None:
        """Which checkpoint every full member has, as far as it is known, "" for none; None: nobody
        else is to have any. Log after it stays."""
        if replicated is None:
            self._bounds.pop(vnode, None)
        else:
            known = self._bounds.get(vnode)
            if known is None or known.checkpoint_id != replicated:
                self._bounds[vnode] = Bound(replicated, BASE)
            self._look_at_bound(vnode)

    def _look_at_bound(self, vnode: Vnode) -> None:
        """How far the members' checkpoint reaches. What is known of it holds when it is not kept
        here any more, because newer ones came faster than the chain took them."""
        name, reach = self._bounds[vnode]
        here = [self.covers.of(m) for m in self.of(vnode).complete() if m.checkpoint_id == name]
        self._bounds[vnode] = Bound(name, max([reach, *here]))

    # --- what others need ------------------------------------------------------------------------

    def lend(self, vnode: Vnode, base: Base) -> None:
        """A peer begins to copy a vnode from a base."""
        until = self._job.ports.clock.monotonic() + limits.LEASE_S
        loan = self._loans.get(vnode)
        since = base.reach if loan is None else min(base.reach, loan.since)
        self._loans[vnode] = Loan(since, until)
        self.leases.take(vnode, base.name, "peer", until=until)

    def prolong(self, vnode: Vnode, checkpoint_id: str = BASE_ID) -> None:
        """The peer goes on with it."""
        until = self._job.ports.clock.monotonic() + limits.LEASE_S
        loan = self._loans.get(vnode)
        if loan is not None:
            self._loans[vnode] = Loan(loan.since, until)
        self.leases.take(vnode, checkpoint_id, "peer", until=until)

    def expire(self, now: float) -> None:
        """End the leases of those who have not come again."""
        self.leases.expire(now)
        self._loans = {v: loan for v, loan in self._loans.items() if loan.until > now}

    def is_lent(self, vnode: Vnode) -> bool:
        """Whether a peer is copying the vnode."""
        return vnode in self._loans
