"""Which vnodes to checkpoint next: as few as keep a restart short and the log small (design, 5).

An instance that starts anew opens the newest checkpoints and applies what the log has since. How
long that takes is predicted from the rows that wait there and from how fast rows have been applied.
While it is under the target, checkpoints follow a slow round, for the sake of the log.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rhinoctl.ids import BatchTime, Vnode

_MEMORY = 0.9
"""What a batch leaves of the weight of those before: the last ten count most."""


@dataclass(frozen=True, slots=True)
class ApplySpeed:
    """How long rows take to be applied, from the last batches."""

    rows: float = 0.0
    seconds: float = 0.0

    def after(self, rows: int, seconds: float) -> "ApplySpeed":
        """With one more batch."""
        return ApplySpeed(self.rows * _MEMORY + rows, self.seconds * _MEMORY + seconds)

    def predict_s(self, rows: int) -> float:
        """How long so many rows would take; 0 while nothing is known."""
        return rows * self.seconds / self.rows if self.rows else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """What waits for a vnode: rows in the log since its newest checkpoint, and the last batch that
    may leave the log as far as this vnode goes."""

    rows: int
    floor: BatchTime


def by_replay(
    waiting: Mapping[Vnode, Waiting], speed: ApplySpeed, target_s: float, most: int
) -> list[Vnode]:
    """The vnodes, those with the most rows first, without which a replay of all the others would
    stay within the target; at most `most`."""
    predicted = speed.predict_s(sum(each.rows for each in waiting.values()))
    chosen: list[Vnode] = []
    for vnode in sorted(waiting, key=lambda v: (-waiting[v].rows, v)):
        if predicted <= target_s or len(chosen) >= most or not waiting[vnode].rows:
            break
        chosen.append(vnode)
        predicted -= speed.predict_s(waiting[vnode].rows)
    return chosen


def by_age(waiting: Mapping[Vnode, Waiting], behind: Sequence[Vnode], most: int) -> list[Vnode]:
    """Those of `behind` that hold the log up most; at most `most`."""
    return sorted(behind, key=lambda v: (waiting[v].floor, v))[:most]
