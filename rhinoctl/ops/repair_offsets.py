"""`rhinoctl job repair-offsets`: Spark's offset log gets the decided offsets of a batch back.

A batch that is decided and not committed is replayed by the next run of the query, with the offsets
that Spark's log has of it. If those were lost or are others, the replay is refused (invariant 11).
The decided ones are in every worker's log: what is written back is what was there.
"""

from dataclasses import dataclass
from pathlib import Path

from rhinoctl.errors import CannotRepairOffsets, Exit
from rhinoctl.ids import BatchTime
from rhinoctl.ops import offset_log
from rhinoctl.ops.cluster import connect
from rhinoctl.ops.offset_log import Unreadable
from rhinoctl.protocol.views import DecidedView


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairedOffsets:
    """What is, or would be, written: the `file`, what it said `before` (offsets, or why they could
    not be read) and says `after`. `kept` is where the old file is, empty if there was none.
    Without a `change` it is as it was decided already."""

    job: str
    batch: BatchTime
    file: str
    before: str
    after: str
    change: bool
    written: bool
    kept: str = ""


def repair_offsets(
    cluster: str | None, job: str, *, checkpoint: str, dry_run: bool = False
) -> RepairedOffsets:
    """Write the decided offsets of a job's last batch into a local checkpoint directory.

    Raises UsageError, UnknownJob, SecondSession, Busy, WorkerUnreachable and CannotRepairOffsets;
    nothing is written then.
    """
    path = offset_log.local_checkpoint(checkpoint)
    with connect(cluster) as client:
        decided = client.decided(job)
    batch = _check(decided, path)
    entry = offset_log.entry_for(path, batch, decided.end_offsets, decided.batch_time_ms)
    try:
        before = offset_log.read_entry(path, batch).offsets
    except Unreadable as fault:
        before = str(fault)
    change = before != decided.end_offsets
    kept = offset_log.write_entry(path, batch, entry) if change and not dry_run else None
    return RepairedOffsets(
        job=job,
        batch=BatchTime(decided.generation, batch),
        file=str(path / "offsets" / str(batch)),
        before=before,
        after=decided.end_offsets,
        change=change,
        written=change and not dry_run,
        kept=str(kept or ""),
    )


def exit_of(repaired: RepairedOffsets) -> Exit:
    """A dry run with something to do has an exit code of its own."""
    return Exit.HAS_CHANGES if repaired.change and not repaired.written else Exit.DONE


def _check(decided: DecidedView, path: Path) -> int:
    """The batch whose offsets may be written. Raises CannotRepairOffsets."""
    try:
        query_id = offset_log.query_of(path)
    except Unreadable as fault:
        raise _refused(decided, f"the query of {path} is not known: {fault}") from fault
    if query_id != decided.query_id:
        raise _refused(
            decided, f"{path} is of query {query_id}, the job of {decided.query_id or '(none)'}"
        )
    if decided.batch is None or decided.batch.generation != decided.generation:
        raise _refused(decided, "no batch of this query is decided, so that there is none to mend")
    batch = decided.batch.batch
    newest, committed = offset_log.newest_offsets(path), offset_log.newest_commit(path)
    # One more may be planned once this one is committed: it is undecided, and planned anew or not.
    if committed > batch or newest > (batch if committed < batch else batch + 1):
        raise _refused(
            decided,
            f"Spark has planned batch {newest} and committed {committed}, beyond the decided"
            f" batch {batch}: its state is older than its offsets",
        )
    if committed == batch and not _same(path, batch, decided.end_offsets):
        raise _refused(
            decided,
            f"Spark has committed batch {batch} with other offsets: it will not replay it, and rows"
            " between the two would be dropped or doubled",
        )
    if committed < batch - 1 or newest < batch - 1:
        raise _refused(
            decided,
            f"Spark would begin with batch {committed + 1}, and {batch} is decided: its log lacks"
            " more than the offsets of one batch",
        )
    if batch > 0 and not _same(path, batch - 1, decided.start_offsets):
        raise _refused(
            decided, f"the offsets of batch {batch - 1} are not those that batch {batch} began at"
        )
    return batch


def _same(path: Path, batch: int, offsets: str) -> bool:
    try:
        return offset_log.read_entry(path, batch).offsets == offsets
    except Unreadable:
        return False


def _refused(decided: DecidedView, why: str) -> CannotRepairOffsets:
    return CannotRepairOffsets(
        f"job {decided.job}: {why}",
        remedy="restore the checkpoint directory as it was, or accept a new stream over the state"
        f" as it is: `rhinoctl job bind {decided.job} --new-stream`",
    )
