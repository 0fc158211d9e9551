"""What is to be decided, and the record that says so: from a task and its receipts to a record.

Both kinds of record end in an epoch: a batch's record names the one that holds from the next batch
on, an epoch record is nothing else (design, sections 4 and 7).
"""

from dataclasses import dataclass, replace
from functools import reduce

from rhinoctl.ids import NO_ATTEMPT, Attempt, BatchTime, Vnode
from rhinoctl.protocol import watermarks
from rhinoctl.protocol.duties import duties_after, staged_duties
from rhinoctl.protocol.epochs import Epoch
from rhinoctl.protocol.records import (
    DecisionRecord,
    Position,
    RecordId,
    SliceName,
    Winner,
)
from rhinoctl.protocol.sessions import Lineage


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What is to be decided: Spark's batch, or (with `change`) an epoch record after the last.
    `delays_ms` are the watermark delays of the operator's inputs."""

    time: BatchTime
    start_offsets: str = ""
    end_offsets: str = ""
    batch_time_ms: int = 0
    operator: str = ""
    delays_ms: tuple[int, ...] = ()
    change: Epoch | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """What one Spark task pushed: its channel, and the name of every slice; `max_event_ms` is the
    greatest event time among its rows, for each input."""

    channel: int
    task_attempt: int
    slices: tuple[SliceName, ...]
    max_event_ms: tuple[int | None, ...] = ()


def batch_record(
    lineage: Lineage,
    task: Task,
    attempt: Attempt,
    receipts: tuple[Receipt, ...],
    next_epoch: Epoch,
) -> DecisionRecord:
    """The record of a staged batch. Its voters are those of the epoch it was staged in and of the
    next one: nobody votes on a batch who has not sealed the marker before it."""
    assert lineage.last is not None
    staged = lineage.epoch
    return DecisionRecord(
        position=Position(*task.time, 0),
        attempt=attempt,
        after=lineage.last.id,
        epoch=staged.number,
        voters=tuple(sorted(staged.voters() | next_epoch.voters())),
        owed=staged_duties(staged),
        next_epoch=next_epoch,
        start_offsets=task.start_offsets,
        end_offsets=task.end_offsets,
        batch_time_ms=task.batch_time_ms,
        watermarks=watermarks.of_batch(
            lineage.last.watermarks,
            task.delays_ms,
            reduce(watermarks.greatest, [r.max_event_ms for r in receipts], ()),
        ),
        operator=task.operator,
        rows=_rows(receipts),
        winners=tuple(
            Winner(channel=r.channel, task_attempt=r.task_attempt, slices=r.slices)
            for r in sorted(receipts, key=lambda r: r.channel)
        ),
    )


def _rows(receipts: tuple[Receipt, ...]) -> dict[Vnode, int]:
    rows: dict[Vnode, int] = {}
    for receipt in receipts:
        for piece in receipt.slices:
            rows[piece.vnode] = rows.get(piece.vnode, 0) + piece.rows
    return rows


def epoch_record(lineage: Lineage, time: BatchTime, change: Epoch) -> DecisionRecord:
    """An epoch record after the last record, or at `time` if there is none: sealed by the voters
    of the epoch it ends and of the one it opens, without those that the latter gives up. It repeats
    what the last record says of its batch, so that a session whose fence shows it knows all that
    the next batch needs; what is owed of the batch's output by those that it gives up, their
    heirs owe now."""
    last = lineage.last
    attempt = Attempt(lineage.session, lineage.counter)
    if last is None:
        return DecisionRecord(
            position=Position(*time, 1),
            attempt=attempt,
            after=RecordId(Position(*time, 0), NO_ATTEMPT),
            epoch=change.number - 1,
            voters=tuple(sorted(change.voters())),
            next_epoch=change,
            rows={},
        )
    return replace(
        last,
        position=last.position._replace(step=last.position.step + 1),
        attempt=attempt,
        after=last.id,
        epoch=lineage.epoch.number,
        voters=tuple(sorted((lineage.epoch.voters() | change.voters()) - change.lost)),
        owed=duties_after(last.owed, change),
        next_epoch=change,
        winners=(),
    )
