"""`rhinoctl job repair-offsets`: Spark's offset log gets back what it lost of the last batches.

A batch that is decided and not committed is replayed by the next run of the query, with the offsets
that Spark's log has of it. If those were lost or are others, the replay is refused (invariant 11).
The decided ones are in every worker's log: what is written back is what was there. So is the commit
of a batch that is released, as Spark had gone past it: it would not be replayed. Of a batch that is
planned and not decided nothing has been seen yet: an entry of it that cannot be read is taken away,
and Spark plans it anew.
"""

from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from rhinoctl.errors import CannotRepairOffsets, Exit
from rhinoctl.ids import BatchTime
from rhinoctl.ops import offset_log
from rhinoctl.ops.cluster import connect
from rhinoctl.ops.offset_log import Unreadable
from rhinoctl.protocol.evidence import ClusterEvidence
from rhinoctl.protocol.views import DecidedView


class Mend(Enum):
    """What is done about a file beside the decided offsets."""

    WRITTEN = "written"
    TAKEN_AWAY = "taken-away"


@dataclass(frozen=True, slots=True, kw_only=True)
class MendedFile:
    """A file that is, or would be, mended: `why`, and where the old one is `kept`, if any was."""

    file: str
    mend: Mend
    why: str
    kept: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairedOffsets:
    """What is, or would be, written: the `file`, what it said `before` (offsets, or why they could
    not be read) and says `after`. `kept` is where the old file is, empty if there was none.
    Without a `change` it is as it was decided already; `others` are mended beside it. `batch` is
    None, and the file's fields are empty, before the first one is decided."""

    job: str
    batch: BatchTime | None
    file: str
    before: str
    after: str
    change: bool
    written: bool
    dry_run: bool
    kept: str = ""
    others: tuple[MendedFile, ...] = ()

    @property
    def needed(self) -> bool:
        """Whether anything is, or was, to be mended."""
        return self.change or bool(self.others)


def repair_offsets(
    cluster: str | None, job: str, *, checkpoint: str, dry_run: bool = False
) -> RepairedOffsets:
    """Write the decided offsets of a job's last batch into a local checkpoint directory, and mend
    its commit, and the entry of an undecided one after it.

    Raises UsageError, UnknownJob, SecondSession, Busy, WorkerUnreachable and CannotRepairOffsets;
    nothing is written then.
    """
    path = offset_log.local_checkpoint(checkpoint)
    with connect(cluster) as client:
        decided = client.decided(job)
        released = _is_released(client.evidence(), decided)
    batch = _check(decided, path, released=released)
    if batch < 0:
        return _undecided_only(decided, path, write=not dry_run)
    entry = offset_log.entry_for(path, batch, decided.end_offsets, decided.batch_time_ms)
    try:
        before = offset_log.read_entry(path, batch).offsets
    except Unreadable as fault:
        before = str(fault)
    change = before != decided.end_offsets
    committed = batch if released else offset_log.newest_commit(path)
    kept = offset_log.write_entry(path, batch, entry) if change and not dry_run else None
    return RepairedOffsets(
        job=job,
        batch=decided.batch,
        file=str(path / "offsets" / str(batch)),
        before=before,
        after=decided.end_offsets,
        change=change,
        written=change and not dry_run,
        dry_run=dry_run,
        kept=str(kept or ""),
        others=(
            *_commit(path, committed, write=not dry_run),
            *_undecided(path, batch, write=not dry_run),
        ),
    )


def exit_of(repaired: RepairedOffsets) -> Exit:
    """A dry run with something to do has an exit code of its own."""
    return Exit.HAS_CHANGES if repaired.needed and repaired.dry_run else Exit.DONE


def _is_released(evidence: ClusterEvidence, decided: DecidedView) -> bool:
    """Whether a worker knows that Spark has gone past the decided batch."""
    uids = {job.uid for job in evidence.jobs if job.name == decided.job and not job.deleted}
    reports = [worker.report for worker in evidence.workers if worker.report is not None]
    released = [report.jobs[uid].released for report in reports for uid in uids & set(report.jobs)]
    return decided.batch is not None and decided.batch in released


def _commit(path: Path, batch: int, *, write: bool) -> tuple[MendedFile, ...]:
    """Mend the commit of a batch that is committed."""
    fault, file = offset_log.commit_fault(path, batch), path / "commits" / str(batch)
    if not fault:
        return ()
    why = fault if file.exists() else f"Spark has gone past batch {batch}, and its commit is lost"
    kept = offset_log.write_commit(path, batch) if write else None
    return (MendedFile(file=str(file), mend=Mend.WRITTEN, why=why, kept=str(kept or "")),)


def _undecided(path: Path, decided: int, *, write: bool) -> tuple[MendedFile, ...]:
    """Take away what Spark has planned after the decided batch, if it cannot be read."""
    newest = offset_log.newest_offsets(path)
    if newest != decided + 1:
        return ()
    try:
        offset_log.read_entry(path, newest)
    except Unreadable as fault:
        kept = offset_log.remove_entry(path, newest) if write else None
        file = str(path / "offsets" / str(newest))
        why = f"batch {newest} is not decided; {fault}"
        return (MendedFile(file=file, mend=Mend.TAKEN_AWAY, why=why, kept=str(kept or "")),)
    return ()


def _undecided_only(decided: DecidedView, path: Path, *, write: bool) -> RepairedOffsets:
    """Mend the log of a query of which no batch is decided. Raises CannotRepairOffsets."""
    others = _undecided(path, -1, write=write)
    if not others:
        raise _refused(decided, "no batch of this query is decided, so that there is none to mend")
    return RepairedOffsets(
        job=decided.job,
        batch=None,
        file="",
        before="",
        after="",
        change=False,
        written=False,
        dry_run=not write,
        others=others,
    )


def _check(decided: DecidedView, path: Path, *, released: bool) -> int:
    """The batch whose offsets may be written, -1 if none is decided. Raises CannotRepairOffsets."""
    try:
        query_id = offset_log.query_of(path)
    except Unreadable as fault:
        raise _refused(decided, f"the query of {path} is not known: {fault}") from fault
    if query_id != decided.query_id:
        raise _refused(
            decided, f"{path} is of query {query_id}, the job of {decided.query_id or '(none)'}"
        )
    if decided.batch is None or decided.batch.generation != decided.generation:
        return -1
    batch = decided.batch.batch
    newest, committed = offset_log.newest_offsets(path), offset_log.newest_commit(path)
    if released and committed == batch - 1:
        committed = batch  # Spark's log has lost it
    # One more may be planned once this one is committed: it is undecided, and planned anew or not.
    if committed > batch or newest > (batch if committed < batch else batch + 1):
        raise _refused(
            decided,
            f"Spark has planned batch {newest} and committed {committed}, beyond the decided"
            f" batch {batch}: its state is older than its offsets",
        )
    if offset_log.newest_commit(path) == batch and _differs(path, batch, decided.end_offsets):
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


def _differs(path: Path, batch: int, offsets: str) -> bool:
    """Whether they are others; of those that cannot be read nothing is known."""
    try:
        return offset_log.read_entry(path, batch).offsets != offsets
    except Unreadable:
        return False


def _refused(decided: DecidedView, why: str) -> CannotRepairOffsets:
    return CannotRepairOffsets(
        f"job {decided.job}: {why}",
        remedy="restore the checkpoint directory as it was, or accept a new stream over the state"
        f" as it is: `rhinoctl job bind {decided.job} --new-stream`",
    )
