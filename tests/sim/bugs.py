"""The design's six bugs (section 10), put into the product for as long as a seed runs."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from rhino_agent.holdings import Holdings
from rhino_agent.job import Job
from rhinoctl.ids import BatchTime, Vnode
from rhinoctl.protocol import batches, worker
from tests.fakes.cluster import bugs


@dataclass(frozen=True)
class Patch:
    """Something in place of an attribute of the product."""

    owner: Any
    name: str
    wrong: Any


def _sealed_time(self: Job) -> BatchTime:
    """A follower applies on seal: what is sealed is taken as decided by whoever feeds instances."""
    newest = self.state.sealed or self.state.decided
    return newest.time if newest is not None else _decided_time(self)


def _newest_only(self: Holdings, vnode: Vnode) -> BatchTime:
    """Trim behind the newest checkpoint, without one for when it is bad."""
    return self.covers.floor(vnode, self.of(vnode).complete(), keep=1)


_decided_time = Job.decided_time.fget  # type: ignore[attr-defined]

BUGS: Mapping[str, Patch] = {
    "acknowledge-before-persist": Patch(worker, "step", bugs.acknowledge_before_persist),
    "apply-before-unanimous-seal": Patch(batches, "step", bugs.apply_before_unanimous_seal),
    "a-follower-applies-on-seal": Patch(Job, "decided_time", property(_sealed_time)),
    "dedupe-without-our-attempt": Patch(worker, "step", bugs.dedupe_without_our_attempt),
    "trim-behind-the-newest-checkpoint": Patch(Holdings, "floor", _newest_only),
    "cut-without-an-epoch": Patch(batches, "step", bugs.cut_the_chain_without_an_epoch),
}


@contextmanager
def seeded(name: str | None) -> Iterator[None]:
    """The product with a bug in it."""
    if name is None:
        yield
        return
    patch = BUGS[name]
    right = vars(patch.owner)[patch.name]
    setattr(patch.owner, patch.name, patch.wrong)
    try:
        yield
    finally:
        setattr(patch.owner, patch.name, right)
