"""Decision records: what a worker log says of a batch or of an epoch (design, section 4).

A batch is decided once every worker of its epoch has sealed the same attempt's record. The record
carries the epoch that holds from the next batch on: a record whose next epoch has a higher number
is the handover marker of the Rhino paper (section 4.1.1), and reaches every worker in order with
the data.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from rhinoctl.ids import BASE, NO_ATTEMPT, Attempt, BatchTime, Vnode, WorkerId
from rhinoctl.protocol.duties import Duty
from rhinoctl.protocol.epochs import Epoch


class Position(NamedTuple):
    """A record's place in the logs. Step 0 is the batch itself; higher steps are epoch records
    that lie between this batch and the next."""

    generation: int
    batch: int
    step: int

    @property
    def time(self) -> BatchTime:
        return BatchTime(self.generation, self.batch)

    def __str__(self) -> str:
        return f"{self.generation}/{self.batch}" + (f"+{self.step}" if self.step else "")


class RecordId(NamedTuple):
    """A record's identity: two records at one place differ by their attempt."""

    position: Position
    attempt: Attempt


ORIGIN = RecordId(Position(*BASE, 0), NO_ATTEMPT)
"""What precedes the first record of a job."""


class Link(NamedTuple):
    """A decided batch, and the one that it follows: what a gap in a log is told by."""

    time: BatchTime
    after: BatchTime


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceName:
    """The rows of one vnode in one put: their number, size in bytes and checksum (xxh3-64)."""

    vnode: Vnode
    rows: int
    size: int
    checksum: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Winner:
    """A channel's winning put: which task attempt, and its slices for the vnodes concerned."""

    channel: int
    task_attempt: int
    slices: tuple[SliceName, ...]

    def for_vnodes(self, vnodes: frozenset[Vnode]) -> "Winner":
        """The same winner with the slices of some vnodes only."""
        kept = tuple(s for s in self.slices if s.vnode in vnodes)
        return replace(self, slices=kept)


@dataclass(frozen=True, slots=True, kw_only=True)
class Watermarks:
    """Event-time bounds of a batch in ms since 1970: late rows by `late_ms`, eviction by
    `evict_ms`; `max_event_ms` has the greatest event time of each input so far, this batch's
    included."""

    late_ms: int = 0
    evict_ms: int = 0
    max_event_ms: tuple[int | None, ...] = ()

    @property
    def rose(self) -> bool:
        """Whether this batch evicts what the one before did not."""
        return self.evict_ms > self.late_ms


NO_WATERMARKS = Watermarks()
"""Nothing is late and nothing is evicted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionRecord:
    """One entry of the agreement. Offsets are Spark's own JSON texts, compared, never parsed.

    `epoch` is the number under which the batch was staged and `voters` are the workers that must
    seal it; `next_epoch` holds from the next batch on. `owed` are the parts of the batch's output
    and who owes them until it is released: who owned the vnodes when it was staged, wherever they
    have gone since, or the heirs of those that were given up. An epoch record repeats what the
    record says that it follows, but for what it changes of that. `rows` has the totals of all
    vnodes of the job, so that a replayer knows of every gap (invariant 3); `winners` only what
    concerns the addressee.
    """

    position: Position
    attempt: Attempt
    after: RecordId
    epoch: int
    voters: tuple[WorkerId, ...]
    owed: tuple[Duty, ...] = ()
    next_epoch: Epoch
    start_offsets: str = ""
    end_offsets: str = ""
    batch_time_ms: int = 0
    watermarks: Watermarks = NO_WATERMARKS
    operator: str = ""
    rows: Mapping[Vnode, int]
    winners: tuple[Winner, ...] = ()

    @property
    def id(self) -> RecordId:
        return RecordId(self.position, self.attempt)

    @property
    def time(self) -> BatchTime:
        return self.position.time

    @property
    def link(self) -> Link:
        """Its place among the batches. An epoch record has that of the batch that it repeats."""
        return Link(self.time, self.after.position.time)

    @property
    def owing(self) -> frozenset[WorkerId]:
        """The workers whose instances owe the batch's output."""
        return frozenset(duty.worker for duty in self.owed)

    @property
    def is_batch(self) -> bool:
        """Whether this is a batch's record rather than an epoch record between batches."""
        return self.position.step == 0

    @property
    def is_marker(self) -> bool:
        """Whether this record ends an epoch."""
        return self.next_epoch.number > self.epoch

    def touches(self, vnode: Vnode) -> bool:
        """Whether the batch changes a vnode: by rows, or because the watermark passes (invariant
        3: eviction touches)."""
        return self.rows.get(vnode, 0) > 0 or self.watermarks.rose

    def addressed_to(self, worker: WorkerId, staged: Epoch) -> "DecisionRecord":
        """The record as one worker gets it: the winners of the vnodes that it stands for."""
        held = frozenset(staged.held_by(worker))
        return replace(self, winners=tuple(w.for_vnodes(held) for w in self.winners))


def offsets_digest(offsets: str) -> str:
    """A short name of offsets, for whoever only wants to know if two are the same."""
    return hashlib.blake2b(offsets.encode(), digest_size=12).hexdigest()


def expected_slices(record: DecisionRecord) -> frozenset[tuple[int, int, SliceName]]:
    """Every (channel, task attempt, slice) that an addressee must hold before it may seal."""
    return frozenset((w.channel, w.task_attempt, s) for w in record.winners for s in w.slices)
