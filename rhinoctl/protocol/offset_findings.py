"""`rhinoctl doctor`'s judgement of Spark's offset log: whether the query would start from it."""

from collections.abc import Iterator, Mapping

from rhinoctl.ids import BatchTime, WorkerId
from rhinoctl.protocol.evidence import JobEvidence, OffsetLog
from rhinoctl.protocol.findings import Check, Finding, State
from rhinoctl.protocol.messages import JobReport


def newest_decided(reports: Mapping[WorkerId, JobReport]) -> BatchTime | None:
    """The newest batch that any of a job's workers knows as decided."""
    times = [r.decided.position.time for r in reports.values() if r.decided is not None]
    return max(times, default=None)


def offset_findings(
    job: JobEvidence, reports: Mapping[WorkerId, JobReport], log: OffsetLog
) -> Iterator[Finding]:
    """What is wrong with an offset log, beside what a job's live workers report."""
    decided = newest_decided(reports)
    digest = next(
        (
            report.offsets
            for report in reports.values()
            if report.decided is not None and report.decided.position.time == decided
        ),
        "",
    )
    released = max((r.released for r in reports.values()), default=None)
    fault = _fault(job, log, decided, digest, released)
    if fault is None:
        return
    check, what, remedy = fault
    yield Finding(
        check=check,
        state=State.BROKEN,
        what=f"job {job.name}: {what}",
        evidence="; ".join(
            (
                f"{log.directory}: newest offsets {log.newest}, newest commit {log.committed}",
                f"decided is {decided or 'nothing'}",
                *((f"released is {released}",) if check is Check.COMMIT_LOST else ()),
                *log.faults,
                *((log.commit_fault,) if log.commit_fault else ()),
            )
        ),
        cost="the query is refused at its next start; no row is lost or counted twice",
        remedy=remedy,
    )


def _fault(
    job: JobEvidence,
    log: OffsetLog,
    decided: BatchTime | None,
    digest: str,
    released: BatchTime | None,
) -> tuple[Check, str, str] | None:
    """What is wrong, and what to do: of several, the one that comes first."""
    restore = (
        "restore the checkpoint directory from where it was copied, or accept a new stream over the"
        f" state as it is: `rhinoctl job bind {job.name} --new-stream`"
    )
    repair = f"`rhinoctl job repair-offsets {job.name} --checkpoint {log.directory}`"
    if job.query_id and log.query_id != job.query_id:
        what = f"that checkpoint is of query {log.query_id or '(none)'}, the job of {job.query_id}"
        return Check.OFFSETS_OTHER_QUERY, what, restore
    if decided is None or decided.batch < 0 or decided.generation != job.generation:
        # Nothing is decided that the log could disagree with.
        return _undecided(log, -1, repair) if log.newest == 0 and log.committed < 0 else None
    batch = decided.batch
    if log.committed > batch:
        what = f"Spark has committed batch {log.committed}, which no worker knows"
        return Check.OFFSETS_AHEAD, what, restore
    if log.newest > batch + 1:
        what = f"Spark has planned batch {log.newest}, and {batch} is the last decided one"
        return Check.OFFSETS_AHEAD, what, restore
    if log.newest < batch - 1 or log.committed < batch - 1:
        what = f"Spark would begin with batch {max(log.newest, 0)}, and {batch} is decided"
        return Check.OFFSETS_BEHIND, what, restore
    if log.newest < batch:
        return Check.OFFSETS_BEHIND, f"the offsets of decided batch {batch} are lost", repair
    if batch not in log.digests:
        return Check.OFFSETS_UNREADABLE, f"the offsets of batch {batch} cannot be read", repair
    if digest and log.digests[batch] != digest:
        return (
            Check.OFFSETS_DIFFER,
            f"the offsets of batch {batch} are not the decided ones",
            repair if log.committed < batch else restore,
        )
    if log.commit_fault:
        what = f"Spark's commit of batch {log.committed} cannot be read"
        return Check.COMMIT_UNREADABLE, what, repair
    undecided = _undecided(log, batch, repair)
    if undecided is None and log.committed < batch == log.newest and released == decided:
        what = f"batch {batch} was committed, and Spark's log lacks its commit"
        return Check.COMMIT_LOST, what, repair
    return undecided


def _undecided(log: OffsetLog, decided: int, repair: str) -> tuple[Check, str, str] | None:
    """The offsets of a batch that Spark has planned, nobody has decided, and nobody can read."""
    if log.newest <= decided or log.newest in log.digests:
        return None
    what = f"the offsets of batch {log.newest}, which is not decided, cannot be read"
    return Check.OFFSETS_UNREADABLE, what, repair
