"""What a job is to the cluster: its identity, its operator and its wishes."""

from dataclasses import dataclass
from enum import Enum

from rhinoctl.ids import JobName, JobUid


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorSpec:
    """A declared operator: its JSON specification and the Arrow schema of its input (IPC, base64).

    `digest` identifies both; another digest under the same job is another operator (invariant 11).
    """

    name: str
    spec: str
    input_schema: str
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
