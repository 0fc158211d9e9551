"""What a worker tells of checkpoints that it was asked to verify: docs/protocol/verification.md."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from rhinoctl.ids import BatchTime, Vnode


class Checked(Enum):
    """How far a checkpoint is verified. `UNREAD`: its files are as written, but nobody could make
    its digest."""

    WAITING = "waiting"
    WHOLE = "whole"
    BAD = "bad"
    UNREAD = "unread"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedCheckpoint:
    """One checkpoint of a vnode on one worker. Of a bad one, `file` is what is wrong and `why`;
    `digest` is the logical digest over `entries`, empty until one was asked for and is made."""

    checkpoint: str
    covers: BatchTime
    state: Checked
    file: str = ""
    why: str = ""
    digest: str = ""
    entries: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyWish:
    """A round of verification; no vnodes: all."""

    round: str
    vnodes: tuple[Vnode, ...] = ()
    deep: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyReport:
    """How far a worker is with a round. `broken` are vnodes of which it has no whole copy now."""

    round: str
    vnodes: Mapping[Vnode, tuple[CheckedCheckpoint, ...]]
    broken: tuple[Vnode, ...] = ()
    done_bytes: int = 0
    total_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class BadCheckpoint:
    """A checkpoint that was found bad, by whomever, and is not replaced yet."""

    vnode: Vnode
    checkpoint: str
    fault: str
