"""Who still needs a checkpoint: nothing that a transfer or an opening refers to is deleted."""

from collections.abc import Callable

from rhinoctl.ids import Vnode


class Leases:
    """Leases on the checkpoints of one operator's vnodes, by holder, each with a deadline.

    In memory only: a transfer does not outlive the process that serves it, so after a restart
    nobody refers to anything.
    """

    def __init__(self) -> None:
        self._until: dict[tuple[Vnode, str], dict[str, float]] = {}

    def take(self, vnode: Vnode, checkpoint_id: str, holder: str, *, until: float) -> None:
        """Take a lease, or move its deadline; `until` in seconds of the caller's clock."""
        self._until.setdefault((vnode, checkpoint_id), {})[holder] = until

    def release(self, holder: str) -> None:
        """Give back all leases of a holder."""
        self._keep(lambda name, _: name != holder)

    def expire(self, now: float) -> None:
        """Drop the leases whose deadline has passed: a peer that vanished returns nothing."""
        self._keep(lambda _, until: until > now)

    def held(self, vnode: Vnode, checkpoint_id: str) -> bool:
        return (vnode, checkpoint_id) in self._until

    def _keep(self, wanted: Callable[[str, float], bool]) -> None:
        kept = {
            key: {name: until for name, until in holders.items() if wanted(name, until)}
            for key, holders in self._until.items()
        }
        self._until = {key: holders for key, holders in kept.items() if holders}
