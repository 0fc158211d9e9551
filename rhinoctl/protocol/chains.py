"""Redundancy of the chains: the next safe epoch from any state, or none.

Invariant: a chain has the owner's worker and `replication` members; it is raised before it is
lowered, and only members beyond the wanted number leave (design, section 6). Called when no
operation is under way; it has no memory of progress.
"""

from rhinoctl.ids import Vnode, WorkerId
from rhinoctl.protocol.epochs import Epoch, Role, with_chains_cut


def lowered(epoch: Epoch, replication: int) -> Epoch | None:
    """The next epoch, without the members that are too many; None if there are none.

    Joining members go first, then the last full ones. A former owner's worker that stayed a full
    member during a handover leaves so.
    """
    drops: dict[Vnode, frozenset[WorkerId]] = {}
    for v in epoch.vnodes():
        members = epoch.routes[v].members
        ranked = sorted(members, key=lambda member: member.role is Role.JOINING)
        gone = frozenset(member.worker for member in ranked[replication:])
        if gone:
            drops[Vnode(v)] = gone
    return with_chains_cut(epoch, drops) if drops else None
