"""Which vnodes to checkpoint next: as few as keep a restart short and the log small (design, 5).

Whoever takes vnodes over opens their newest checkpoints and applies what the log has since. How
long that takes is predicted from the last batches: so much for each batch, however few its rows,
and so much for each row.

Invariants:

1. Every vnode that batches touch has its turn, the one that is furthest behind first: one round of
   all takes a bounded number of batches, the fewer the longer a batch takes (`round_batches`). What
   is chosen for its rows comes on top of that, never in its place.
2. A vnode is behind by what a new checkpoint of it would end, not by what a slow chain or a peer
   keeps in the log.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from rhinoctl import limits
from rhinoctl.ids import BatchTime, Vnode

_MEMORY = 0.9
"""What a batch leaves of the weight of those before: the last ten count most."""

_SPREAD = 0.25
"""By so much of their mean batches have to differ in size before their times tell what a row
takes."""


class ReplayCost(NamedTuple):
    """What a replay takes: for each batch, and for each of its rows."""

    batch_s: float = 0.0
    row_s: float = 0.0

    def predict_s(self, batches: int, rows: int) -> float:
        """How long so many batches with so many rows would take; 0 while nothing is known."""
        return batches * self.batch_s + rows * self.row_s


@dataclass(frozen=True, slots=True)
class ApplySpeed:
    """How long batches take to be applied: sums over the last ones, of which the newest count
    most."""

    batches: float = 0.0
    rows: float = 0.0
    seconds: float = 0.0
    rows_squared: float = 0.0
    rows_by_seconds: float = 0.0

    def after(self, rows: int, seconds: float) -> "ApplySpeed":
        """With one more batch."""
        return ApplySpeed(
            self.batches * _MEMORY + 1.0,
            self.rows * _MEMORY + rows,
            self.seconds * _MEMORY + seconds,
            self.rows_squared * _MEMORY + rows * rows,
            self.rows_by_seconds * _MEMORY + rows * seconds,
        )

    @property
    def cost(self) -> ReplayCost:
        """The line through the last batches. As far as they are all of one size, they do not tell
        what of their time is due to the rows: not more than `limits.ROW_S_MAX` a row then."""
        if not self.batches:
            return ReplayCost()
        rows, seconds = self.rows / self.batches, self.seconds / self.batches
        if not rows:
            return ReplayCost(batch_s=seconds)
        variance = max(0.0, self.rows_squared / self.batches - rows * rows)
        covariance = self.rows_by_seconds / self.batches - rows * seconds
        doubt, guess = (_SPREAD * rows) ** 2, min(limits.ROW_S_MAX, seconds / rows)
        slope = (covariance + doubt * guess) / (variance + doubt)
        row_s = min(max(0.0, slope), seconds / rows)
        return ReplayCost(batch_s=max(0.0, seconds - row_s * rows), row_s=row_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """What waits for a vnode's next checkpoint: `rows` and `batches` that the newest one does not
    have, none of a vnode that nothing has touched since, and the batches that the log keeps for
    the older one (`kept`)."""

    rows: int
    batches: int
    kept: int

    @property
    def age(self) -> int:
        """How far the vnode is behind. The older checkpoint is as far behind the newer as that is
        behind now, when turns are even."""
        return max(self.batches, self.kept // limits.CHECKPOINTS_RETAINED)

    @property
    def is_due(self) -> bool:
        """Whether a checkpoint would be of use: something has touched the vnode since the last, or
        the log is kept long for the older of two although nothing changes."""
        return self.batches > 0 or self.kept > 2 * limits.CHECKPOINT_ROUND_BATCHES


def round_batches(cost: ReplayCost, target_s: float) -> int:
    """In how many batches every vnode is to be checkpointed once: a vnode's replay is of so many
    batches at most, however few rows they have."""
    most = limits.CHECKPOINT_ROUND_BATCHES
    if cost.predict_s(most, 0) > target_s:
        most = int(target_s / cost.batch_s)
    return max(limits.CHECKPOINT_ROUND_LEAST_BATCHES, most)


def by_age(waiting: Mapping[Vnode, Waiting], most: int) -> list[Vnode]:
    """Those of the vnodes that are furthest behind; at most `most`."""
    due = [vnode for vnode, each in waiting.items() if each.is_due]
    return sorted(due, key=lambda v: (-waiting[v].age, v))[: max(0, most)]


def by_replay(
    waiting: Mapping[Vnode, Waiting], cost: ReplayCost, target_s: float, most: int
) -> list[Vnode]:
    """The vnodes, those with the most rows first, without which a replay of the rows of all the
    others would stay within the target; at most `most`.

    What the batches as such take is left of the target for the rows, half of it at least: only
    turns, not the rows that are spared, make the batches fewer.
    """
    batches = max((each.batches for each in waiting.values()), default=0)
    target_s = max(target_s - cost.predict_s(batches, 0), target_s / 2)
    predicted = cost.predict_s(0, sum(each.rows for each in waiting.values()))
    chosen: list[Vnode] = []
    for vnode in sorted(waiting, key=lambda v: (-waiting[v].rows, v)):
        if predicted <= target_s or len(chosen) >= most or not waiting[vnode].rows:
            break
        chosen.append(vnode)
        predicted -= cost.predict_s(0, waiting[vnode].rows)
    return chosen


def batches_between(since: BatchTime, until: BatchTime) -> int:
    """How many batches lie after the one and not after the other: all of the later generation, if
    they are not of the same."""
    if since.generation != until.generation:
        return until.batch + 1
    return max(0, until.batch - since.batch)
