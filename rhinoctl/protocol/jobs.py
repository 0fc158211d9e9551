"""What a job is to the cluster: its identity, its operator and its wishes."""

from dataclasses import dataclass
from enum import Enum

from rhinoctl.ids import JobName, JobUid


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorSpec:
    """A bound operator as JSON text, from which tasks and instances make it again.

    `digest` identifies it; another digest under the same job is another operator (invariant 11).
    """

    name: str
    spec: str
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec:
    """A job as registered. `vnodes` is a power of two and bounds the parallelism."""

    uid: JobUid
    name: JobName
    vnodes: int
    replication: int
    operator: OperatorSpec


class VnodeUse(Enum):
    """What a worker does with its copy of a vnode, as it reports it."""

    OWNED = "owned"
    HELD = "held"
    COPYING = "copying"
    READY = "ready"
    FOLLOWING = "following"
