"""Sessions: one run of the query, and what its fence shows of the last decided record.

A session number is taken from the controller and persisted by every voter before anything is read
or written for a batch (design, section 4, step 0).
"""

from collections.abc import Mapping
from dataclasses import dataclass

from rhinoctl.ids import JobUid, WorkerId
from rhinoctl.protocol.epochs import Epoch
from rhinoctl.protocol.messages import FenceAnswer, Header
from rhinoctl.protocol.records import DecisionRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Lineage:
    """What a session knows between two batches.

    `epoch` holds after `last`; before the first fence it is what the controller believes. `counter`
    is the last attempt number used in this session.
    """

    cluster: str
    job: JobUid
    session: int
    epoch: Epoch
    counter: int = 0
    last: DecisionRecord | None = None
    fenced: bool = False

    def header(self) -> Header:
        """The header of the session's messages."""
        return Header(
            cluster=self.cluster, job=self.job, session=self.session, epoch=self.epoch.number
        )


def unfenced(fences: Mapping[WorkerId, FenceAnswer]) -> frozenset[WorkerId]:
    """Voters that the answers name (of any record's own or next epoch) and that have not answered.

    The controller may not know the newest epoch yet; the logs do.
    """
    named: set[WorkerId] = set()
    for answer in fences.values():
        for record in (answer.decided, answer.sealed):
            if record is not None:
                named |= set(record.voters) | record.next_epoch.voters()
    return frozenset(named - fences.keys())


def last_decided(fences: Mapping[WorkerId, FenceAnswer]) -> DecisionRecord | None:
    """The last decided record that the answers of all voters show (design, section 4, step 0).

    A record is decided if a worker knows so, or if each of its voters has sealed this attempt. All
    answers together hold at most one record after the newest that is known to be decided.
    """
    known = [answer.decided for answer in fences.values() if answer.decided is not None]
    last = max(known, key=lambda record: record.position, default=None)
    for candidate in (answer.sealed for answer in fences.values()):
        if candidate is None or (last is not None and candidate.position <= last.position):
            continue
        holders = {
            w for w, a in fences.items() if a.sealed is not None and a.sealed.id == candidate.id
        }
        if holders >= set(candidate.voters):
            return candidate
    return last
