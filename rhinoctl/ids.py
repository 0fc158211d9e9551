"""Names and logical times that travel in every message (design, section 2).

Everything here is a value: comparable, hashable, printable, and free of I/O.
"""

from typing import NamedTuple, NewType

JobUid = NewType("JobUid", str)
"""The identity of a job in every path and message; never reused."""

NO_JOB = JobUid("")
"""Stands in messages that concern no job."""

JobName = NewType("JobName", str)
"""The name a person types; unique in a cluster at one time."""

WorkerId = NewType("WorkerId", str)
"""A host that runs an agent, e.g. ``w1``."""

DiskId = NewType("DiskId", str)
"""A replica disk of a worker, e.g. ``d2``; unique on it."""

InstanceId = NewType("InstanceId", str)
"""A parallel instance of an operator, e.g. ``i0``; unique in its job."""

Vnode = NewType("Vnode", int)
"""A virtual node: a contiguous range of key groups, the finest unit that moves."""

OpId = NewType("OpId", str)
"""An operation of the controller, e.g. ``op-7``."""

NO_OPERATION = OpId("")
"""Stands for the id of an operation that was only planned, or of none."""

Incarnation = NewType("Incarnation", int)
"""One start of a process; grows with every start and is persisted before it serves."""

KEY_GROUPS = 32768
"""2^15 key groups, as in the Rhino paper, section 5.1.3."""


class BatchTime(NamedTuple):
    """The protocol's logical time: ordered by generation, then by Spark's batch id."""

    generation: int
    batch: int

    def __str__(self) -> str:
        return f"{self.generation}/{self.batch}"

    def may_precede(self, later: "BatchTime") -> bool:
        """Whether `later` may be the next batch: the next id, or the first of a later generation.
        Where a generation ends no number tells, so that only a `Link` knows of every gap."""
        if self.generation == later.generation:
            return later.batch == self.batch + 1
        return later.generation > self.generation and later.batch == 0


BASE = BatchTime(0, -1)
"""What the empty checkpoint of every vnode covers."""


class Attempt(NamedTuple):
    """One try at a batch: ordered by session, then by the session's counter."""

    session: int
    counter: int

    def __str__(self) -> str:
        return f"{self.session}.{self.counter}"


NO_ATTEMPT = Attempt(0, 0)
