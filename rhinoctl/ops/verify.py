"""Verification by hand: asked for, waited for, and judged (docs/protocol/verification.md)."""

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from rhinoctl.errors import DeadlineExceeded, Degraded, RhinoError, WorkerUnreachable
from rhinoctl.ids import Vnode, WorkerId
from rhinoctl.ops.cluster import connect
from rhinoctl.ops.looks import looks
from rhinoctl.ops.vnodes import format_vnodes, parse_vnodes
from rhinoctl.protocol.phrases import workers as named
from rhinoctl.protocol.starting import start_again
from rhinoctl.protocol.verification import Checked, CheckedCheckpoint
from rhinoctl.protocol.views import VerifiedCopy, VerifyRequest, VerifyView

LOOK_S = 0.5
"""Between two looks at all copies of a job."""

STALL_S = 900.0
"""Nothing was read for so long: more than the entries of one checkpoint may take."""

LONGEST_S = 48 * 3600.0
"""Terabytes on each worker are read within a day."""

NAMED = 3
"""So many of a kind are named in an error; the table has all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bad:
    """A checkpoint that is not what it should be; `file` empty if it is none of its files."""

    worker: WorkerId
    vnode: Vnode
    checkpoint: str
    file: str
    why: str

    def __str__(self) -> str:
        where = f", file {self.file}" if self.file else ""
        named = f"worker {self.worker}, vnode {self.vnode}, checkpoint {self.checkpoint}"
        return f"{named}{where}: {self.why}"


def verify(
    cluster: str | None,
    job: str,
    *,
    vnodes: str | None,
    deep: bool,
    show: Callable[[VerifyView], None],
) -> VerifyView:
    """Have every full holder verify its copies, and wait until all that are seen have.

    The result may be of an unfinished round, if nothing was read any more. Raises UsageError,
    UnknownJob, UnknownVnode and Busy.
    """
    wanted = () if vnodes is None else parse_vnodes(vnodes)
    with connect(cluster) as client:
        view = client.verify(job, VerifyRequest(vnodes=wanted, deep=deep))
        request = VerifyRequest(vnodes=wanted, deep=deep, round=view.round)
        changed_at = time.monotonic()
        for look in looks(
            lambda: client.verify(job, request), deadline_s=LONGEST_S, every_s=LOOK_S
        ):
            if look != view:
                changed_at = time.monotonic()
            view = look
            if view.over or time.monotonic() - changed_at >= STALL_S:
                break
            show(view)
    return view


# --- what was found ------------------------------------------------------------------------------


def checkpoints(view: VerifyView, state: Checked) -> list[tuple[VerifiedCopy, CheckedCheckpoint]]:
    """The checkpoints in a state, and of whose copies they are."""
    return [(c, one) for c in view.copies for one in c.checkpoints if one.state is state]


def bad(view: VerifyView) -> list[Bad]:
    """The bad ones."""
    return [_bad(*found) for found in checkpoints(view, Checked.BAD)]


def unread(view: VerifyView) -> list[Bad]:
    """Those of which nobody could tell."""
    return [_bad(*found) for found in checkpoints(view, Checked.UNREAD)]


def _bad(copy: VerifiedCopy, one: CheckedCheckpoint) -> Bad:
    return Bad(
        worker=copy.worker,
        vnode=copy.vnode,
        checkpoint=one.checkpoint,
        file=one.file,
        why=one.why,
    )


def silent(view: VerifyView) -> list[WorkerId]:
    """Workers with copies that are not seen."""
    away = [worker.worker for worker in view.workers if not worker.live]
    return [worker for worker in away if worker not in view.unreadable]


def waiting(view: VerifyView) -> list[WorkerId]:
    """Workers that are seen and have not verified all that they have."""
    gone = silent(view)
    known = {*gone, *view.unreadable}
    late = {c.worker for c in view.copies if c.worker not in known and not c.settled}
    return sorted(late)


@dataclass(frozen=True, slots=True, kw_only=True)
class Digests:
    """The digests of one checkpoint of a vnode, by worker."""

    vnode: Vnode
    checkpoint: str
    of: dict[WorkerId, str]

    @property
    def equal(self) -> bool:
        return len(set(self.of.values())) == 1


def compared(view: VerifyView) -> Iterator[Digests]:
    """The checkpoints that two or more workers have digested."""
    found: dict[tuple[Vnode, str], dict[WorkerId, str]] = {}
    for copy in view.copies:
        for one in copy.checkpoints:
            if one.digest:
                found.setdefault((copy.vnode, one.checkpoint), {})[copy.worker] = one.digest
    for (vnode, checkpoint), of in sorted(found.items()):
        if len(of) > 1:
            yield Digests(vnode=vnode, checkpoint=checkpoint, of=of)


def apart(view: VerifyView) -> list[Vnode]:
    """The vnodes of which no checkpoint was compared over all workers that have one."""
    having: dict[Vnode, set[WorkerId]] = {}
    for copy in view.copies:
        if copy.checkpoints:
            having.setdefault(copy.vnode, set()).add(copy.worker)
    together = {d.vnode for d in compared(view) if d.of.keys() == having[d.vnode]}
    several = {vnode for vnode, workers in having.items() if len(workers) > 1}
    return sorted(several - together) if view.deep else []


def error_of(view: VerifyView) -> RhinoError | None:
    """What to say unless all is whole; None if it is."""
    found, unequal = bad(view), [d for d in compared(view) if not d.equal]
    if found:
        disks = ", ".join(sorted({each.worker for each in found}))
        return Degraded(
            f"{_counted(len(found), 'checkpoint')} of job {view.job}"
            f" {'is' if len(found) == 1 else 'are'} bad: {_named(found)}",
            remedy="they serve nobody any more, and good ones come in their place by themselves:"
            f" verify again in a minute; if there are more, look at the disk of {disks}",
        )
    if unequal:
        first = unequal[0]
        pairs = ", ".join(f"{worker} has {text[:12]}" for worker, text in first.of.items())
        return Degraded(
            f"the state of {_counted(len(unequal), 'checkpoint')} of job {view.job} differs between"
            f" workers: vnode {first.vnode}, checkpoint {first.checkpoint}: {pairs}",
            remedy="nothing was removed, since nobody can say which one is right; keep the disks"
            " and report it",
        )
    return _unanswered(view)


def _unanswered(view: VerifyView) -> RhinoError | None:
    """What to say of copies that nobody has verified, or that are not there."""
    gone, late = silent(view), waiting(view)
    if view.unreadable:
        return Degraded(
            f"what {named(sorted(view.unreadable), 'has', 'have')} of job {view.job} could not be"
            f" looked at: {'; '.join(sorted(set(view.unreadable.values())))}",
            remedy="see `rhinoctl doctor` for what becomes of it, then verify again",
        )
    if gone:
        return WorkerUnreachable(
            f"{named(gone, 'does', 'do')} not answer: what of job {view.job} is there is not"
            " verified",
            remedy=f"bring back what is silent: {start_again(gone)}, then verify again",
        )
    if late:
        return DeadlineExceeded(
            f"{named(late, 'has', 'have')} read nothing for {STALL_S:.0f} s, and not all is read",
            remedy="look at the disks and at `rhinoctl status`; verify fewer vnodes with --vnodes",
        )
    failed, broken = unread(view), [copy for copy in view.copies if copy.broken]
    if failed:
        return Degraded(
            f"{_counted(len(failed), 'checkpoint')} of job {view.job} could not be verified:"
            f" {_named(failed)}",
            remedy="look into the log of that worker's agent, then verify again",
        )
    if broken:
        on = ", ".join(sorted({copy.worker for copy in broken}))
        return Degraded(
            f"worker {on} has no whole copy of vnodes"
            f" {format_vnodes({copy.vnode for copy in broken})} of job {view.job}",
            remedy="it fetches them again if another worker has them: see"
            f" `rhinoctl groups show {view.job}`, then verify again",
        )
    return None


def _named(found: Iterable[Bad]) -> str:
    every = [str(each) for each in found]
    more = f"; and {len(every) - NAMED} more" if len(every) > NAMED else ""
    return "; ".join(every[:NAMED]) + more


def _counted(number: int, what: str) -> str:
    return f"1 {what}" if number == 1 else f"{number} {what}s"
