"""Checkpoints by hand: asked for once, and waited for until every copy has them."""

from collections.abc import Callable

from rhinoctl import limits
from rhinoctl.errors import DeadlineExceeded, NotRunning, Refused
from rhinoctl.ops.cluster import connect
from rhinoctl.ops.looks import looks
from rhinoctl.protocol.views import CheckpointRequest, CheckpointView

CHECKPOINT_DEADLINE_S = 120.0
"""A checkpoint is files that are there already, but for what is written out and sent on."""


def checkpoint(
    cluster: str | None, job: str, *, show: Callable[[CheckpointView], None]
) -> CheckpointView:
    """Checkpoint every vnode of a job, and wait until all full members have it.

    Raises UnknownJob and Refused before it has begun; from then on DeadlineExceeded, which says
    what is missing.
    """
    with connect(cluster) as client:
        view = client.checkpoint(job, CheckpointRequest())
        if is_done(view):
            return view
        show(view)
        request = CheckpointRequest(through=view.through)
        ask = looks(lambda: client.checkpoint(job, request), deadline_s=CHECKPOINT_DEADLINE_S)
        try:
            for view in ask:
                show(view)
                if is_done(view):
                    return view
        except NotRunning:
            raise
        except Refused as fault:
            raise DeadlineExceeded(
                f"the checkpoint of job {job} through batch {view.through} was begun and is not"
                f" complete: {missing_words(view)}. Nothing more is waited for: {fault.message}",
                remedy=f"what there is stays, and the rest is wished no longer than"
                f" {limits.CHECKPOINT_WISH_S:.0f} s: once the job runs, ask again with"
                f" `rhinoctl checkpoint {job}`",
            ) from fault
    raise DeadlineExceeded(
        f"the checkpoint of job {job} through batch {view.through} is not complete after"
        f" {CHECKPOINT_DEADLINE_S:.0f} s: {missing_words(view)}",
        remedy=f"see which copies lag with `rhinoctl groups show {job} --vnodes`, and whether"
        " their workers are well with `rhinoctl status`",
    )


def is_done(view: CheckpointView) -> bool:
    """Whether every vnode is covered, at its owner's worker and at all full members."""
    return view.done == view.vnodes and view.replicated == view.vnodes


def missing_words(view: CheckpointView) -> str:
    """What there is not yet, for a person."""
    parts = []
    if view.done < view.vnodes:
        parts.append(f"{view.vnodes - view.done} of {view.vnodes} vnodes have no checkpoint yet")
    sent = view.done - view.replicated
    if sent > 0:
        parts.append(f"{sent} of {view.done} checkpoints have not reached every copy yet")
    return ", ".join(parts)
