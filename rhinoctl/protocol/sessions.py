"""Sessions: one run of the query, and what its fence shows of the last decided record.

A session number is taken from the controller and persisted by every voter before anything is read
or written for a batch (design, section 4, step 0).
"""

from collections.abc import Mapping
from dataclasses import dataclass

from rhinoctl.ids import JobUid, Vnode, WorkerId
from rhinoctl.protocol.epochs import Epoch
from rhinoctl.protocol.messages import FenceAnswer, Header
from rhinoctl.protocol.records import DecisionRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Lineage:
    """What a session knows between two batches.

    `epoch` holds after `last`; before the first fence it is what the controller believes. `counter`
    is the last attempt number used in this session. A task that ends, well or not, leaves the
    lineage that the next one has to begin with: an older one would use attempts again.
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


NOBODY: frozenset[WorkerId] = frozenset()
"""No worker is given up as lost."""


def unfenced(
    fences: Mapping[WorkerId, FenceAnswer], lost: frozenset[WorkerId] = NOBODY
) -> frozenset[WorkerId]:
    """Workers that have to be fenced too: voters of the epoch that holds, as far as the answers
    tell, and of a record that may have been decided.

    The controller may not know the newest epoch yet; the logs do. A sealed record that one of its
    voters does not have is not decided and, that voter being fenced, never will be: its other
    voters (perhaps members that were to join with it, and are gone) are not waited for. Nor are the
    `lost`, which the next epoch gives up.
    """
    last = last_decided(fences, lost)
    named = set(last.next_epoch.voters()) if last is not None else set()
    for candidate in _candidates(fences, last):
        if _holders(fences, candidate) >= set(candidate.voters) & fences.keys():
            named |= set(candidate.voters)
    return frozenset(named - fences.keys()) - lost


def newest_epoch(fences: Mapping[WorkerId, FenceAnswer]) -> Epoch | None:
    """The newest epoch that an answer knows to be decided. Who has no vote in it has decided
    nothing since, and need not be fenced, though it was asked by who knew of an older one."""
    known = [answer.decided.next_epoch for answer in fences.values() if answer.decided is not None]
    return max(known, key=lambda epoch: epoch.number, default=None)


def last_decided(
    fences: Mapping[WorkerId, FenceAnswer], lost: frozenset[WorkerId] = NOBODY
) -> DecisionRecord | None:
    """The last decided record that the answers of all voters show (design, section 4, step 0).

    A record is decided if a worker knows so, or if each of its voters has sealed this attempt. All
    answers together hold at most one record after the newest that is known to be decided.

    Without the `lost`, a record that all other voters have sealed may have been decided or not; no
    other can have been, so that it counts as decided (docs/protocol/failover.md), unless some of
    the lost are `asked_after_all`.
    """
    last = _newest_known(fences)
    for candidate in _candidates(fences, last):
        if _holders(fences, candidate) >= set(candidate.voters) - lost:
            return candidate
    return last


def asked_after_all(
    fences: Mapping[WorkerId, FenceAnswer], lost: frozenset[WorkerId]
) -> frozenset[WorkerId]:
    """The lost whose answers are needed all the same: a record counts as decided without them, and
    nobody else would have all of some vnode in its epoch; as far as their answers are not there, or
    show that none of them has sealed it.

    No cut could follow that record, so that they would be needed again, and deny it. For the same
    reason nobody has acted on it while none of their seals was known, and their answers settle what
    it is. `fences` has those of the lost, too.
    """
    last = _newest_known(fences)
    for candidate in _candidates(fences, last):
        holders, voters = _holders(fences, candidate), {*candidate.voters}
        after = candidate.next_epoch
        if holders >= voters - lost:
            silent = voters & lost - holders
            ends = ({*after.full_holders(Vnode(v))} for v in after.vnodes())
            return NOBODY.union(*(holding for holding in ends if holding <= silent))
    return NOBODY


def _newest_known(fences: Mapping[WorkerId, FenceAnswer]) -> DecisionRecord | None:
    """The newest record that an answer knows to be decided."""
    known = [answer.decided for answer in fences.values() if answer.decided is not None]
    return max(known, key=lambda record: record.position, default=None)


def _candidates(
    fences: Mapping[WorkerId, FenceAnswer], last: DecisionRecord | None
) -> list[DecisionRecord]:
    """The sealed records after `last`."""
    sealed = [answer.sealed for answer in fences.values() if answer.sealed is not None]
    return [record for record in sealed if last is None or record.position > last.position]


def _holders(fences: Mapping[WorkerId, FenceAnswer], record: DecisionRecord) -> set[WorkerId]:
    return {w for w, a in fences.items() if a.sealed is not None and a.sealed.id == record.id}
