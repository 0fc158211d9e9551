"""A round of verification at a worker: what it has of a job is read, and told checkpoint by
checkpoint (docs/protocol/verification.md).

Invariants:

1. What the round is about is noted once for each vnode, and stays until it is read.
2. It reads at most one slice a turn, and nothing while there is other work on checkpoints.
3. A bad checkpoint goes the way of every bad one (`Upkeep.set_aside`).
"""

from collections import deque
from dataclasses import dataclass, field

from rhino_agent.digests import Digested, Digester
from rhino_agent.job import Job
from rhino_agent.ports import event
from rhino_agent.scrub import Scrub
from rhino_agent.throttle import Throttle
from rhino_agent.upkeep import Upkeep
from rhinoctl import limits
from rhinoctl.ids import Vnode
from rhinoctl.protocol.verification import Checked, CheckedCheckpoint, VerifyReport, VerifyWish
from rhinoctl.state.checkpoints import Flaw, Level, VnodeCheckpoints
from rhinoctl.state.disk import Stamp
from rhinoctl.state.hashing import Steps
from rhinoctl.state.manifests import Manifest

NO_FLAW = Flaw("", "")


@dataclass(slots=True, eq=False)
class Item:
    """One checkpoint of the round."""

    vnode: Vnode
    kept: VnodeCheckpoints
    manifest: Manifest
    state: Checked = Checked.WAITING
    flaw: Flaw = NO_FLAW
    digested: Digested = field(default_factory=Digested)

    @property
    def holder(self) -> str:
        """Of its lease."""
        return f"verification of {self.vnode} {self.manifest.checkpoint_id}"

    def told(self) -> CheckedCheckpoint:
        """It as the report has it."""
        return CheckedCheckpoint(
            checkpoint=self.manifest.checkpoint_id,
            covers=self.manifest.covers,
            state=self.state,
            file=self.flaw.file,
            why=self.flaw.why,
            digest=self.digested.digest,
            entries=self.digested.entries,
        )


@dataclass(slots=True)
class Round:
    """What was found so far. `read` are the files that were hashed in this round."""

    wish: VerifyWish
    items: dict[Vnode, list[Item]] = field(default_factory=dict)
    to_read: deque[Item] = field(default_factory=deque)
    to_digest: deque[Item] = field(default_factory=deque)
    read: dict[Stamp, str] = field(default_factory=dict)
    done_bytes: int = 0
    total_bytes: int = 0


class Verification:
    """The round that the controller wishes of one job, if any."""

    def __init__(self, job: Job, upkeep: Upkeep, scrub: Scrub) -> None:
        self._job = job
        self._upkeep = upkeep
        self._holdings = upkeep.holdings
        self._scrub = scrub
        self._throttle = Throttle(job.ports.clock, limits.VERIFY_BYTES_S)
        self._digester: Digester | None = None
        self._round: Round | None = None
        self._reading: tuple[Item, Steps[Flaw | None]] | None = None
        self._digesting: tuple[Item, float] | None = None

    @property
    def has_work(self) -> bool:
        """Whether `step` has a slice to read now."""
        return self._round is not None and self._reads(self._round) and self._throttle.may()

    def _reads(self, current: Round) -> bool:
        return self._reading is not None or bool(current.to_read)

    def tick(self) -> None:
        """Begin, go on with or end the round, as it is wished."""
        wish = self._job.desired.verify
        if self._round is not None and self._round.wish != wish:
            self.drop()
        if wish is not None and self._round is None:
            self._round = Round(wish)
            event("verification", job=self._job.spec.uid, round=wish.round, deep=wish.deep)
        if self._round is not None:
            self._note(self._round)
            self._digest(self._round)

    def drop(self) -> None:
        """Nobody wants the round any more."""
        if self._round is not None:
            for items in self._round.items.values():
                for item in items:
                    self._holdings.leases.release(item.holder)
        if self._digester is not None:
            self._digester.end()
        self._round = self._reading = self._digesting = self._digester = None

    def _note(self, current: Round) -> None:
        """Note, of each vnode that this worker stands for and has not noted yet, what there is."""
        epoch = self._job.epoch()
        held = () if epoch is None else epoch.fully_held_by(self._job.ports.settings.worker)
        wanted = [v for v in held if not current.wish.vnodes or v in current.wish.vnodes]
        for vnode in [v for v in current.items if v not in wanted]:
            for item in current.items.pop(vnode):
                self._holdings.leases.release(item.holder)
        for vnode in [v for v in wanted if v not in current.items]:
            kept = self._holdings.of(vnode)
            items = [Item(vnode, kept, manifest) for manifest in kept.complete()]
            for item in items:
                name = item.manifest.checkpoint_id
                self._holdings.leases.take(vnode, name, item.holder, until=float("inf"))
            current.items[vnode] = items
            current.to_read += items
            files = {e.blake3: e.size for item in items for e in item.manifest.files}
            current.total_bytes += sum(files.values())

    # --- the files -------------------------------------------------------------------------------

    def step(self) -> None:
        """Read a slice."""
        current = self._round
        if current is None or self._upkeep.has_work or not self._throttle.may():
            return
        if self._reading is None and current.to_read:
            self._begin(current, current.to_read.popleft())
        if self._reading is None:
            return
        item, steps = self._reading
        try:
            size = next(steps)
        except StopIteration as end:
            self._reading = None
            self._read(current, item, end.value)
        except OSError as fault:
            self._reading = None
            self._unread(item, f"it cannot be read: {fault}")
        else:
            current.done_bytes += size
            self._throttle.took(size)

    def _begin(self, current: Round, item: Item) -> None:
        if self._is_there(item):
            name = item.manifest.checkpoint_id
            self._reading = (item, item.kept.look(name, Level.HASHES, current.read))

    def _is_there(self, item: Item) -> bool:
        """Whether a checkpoint is still to be verified: its vnode may have left, and somebody else
        may have found it bad."""
        name = item.manifest.checkpoint_id
        if item not in self._noted(item.vnode):
            return False
        if name in item.kept.damaged:
            self._found_bad(item, item.kept.flaws.get(name) or Flaw("", item.kept.damaged[name]))
            return False
        return True

    def _read(self, current: Round, item: Item, flaw: Flaw | None) -> None:
        if flaw is not None:
            self._found_bad(item, item.kept.flaws.get(item.manifest.checkpoint_id, flaw))
        elif current.wish.deep:
            self._scrub.was_read(item.manifest)
            current.to_digest.append(item)
        else:
            self._scrub.was_read(item.manifest)
            self._over(item, Checked.WHOLE)

    def _found_bad(self, item: Item, flaw: Flaw) -> None:
        name = item.manifest.checkpoint_id
        item.flaw = flaw
        where = f", file {flaw.file}" if flaw.file else ""
        fault = f"vnode {item.vnode}, checkpoint {name}{where}: {flaw.why}"
        self._over(item, Checked.BAD)
        self._upkeep.set_aside(item.kept, name, fault)

    def _unread(self, item: Item, why: str) -> None:
        item.flaw = Flaw("", why)
        self._over(item, Checked.UNREAD)

    def _over(self, item: Item, state: Checked) -> None:
        item.state = state
        self._holdings.leases.release(item.holder)

    # --- the entries -----------------------------------------------------------------------------

    def _digest(self, current: Round) -> None:
        """Go on with the digests, one at a time."""
        now = self._job.ports.clock.monotonic()
        if self._digesting is not None and self._digester is not None:
            item, until = self._digesting
            found = self._digester.poll()
            if found is None and now >= until:
                self._digester.end()
                found = Digested(fault=f"not digested in {limits.DIGEST_DEADLINE_S:.0f} s")
            if found is not None:
                self._digesting = None
                self._take(item, found)
        if self._digesting is None and current.to_digest:
            self._begin_digest(current.to_digest.popleft(), now)
        elif self._digesting is None and self._digester is not None and not self._reads(current):
            self._digester.end()
            self._digester = None

    def _begin_digest(self, item: Item, now: float) -> None:
        if not self._is_there(item):
            return
        if self._digester is None:
            self._digester = self._job.ports.digester()
        name = item.manifest.checkpoint_id
        try:
            self._digester.begin(self._job.ports.disk.path_of(item.kept.path_of(name)))
        except OSError as fault:
            self._unread(item, f"nobody makes its digest: {fault}")
        else:
            self._digesting = (item, now + limits.DIGEST_DEADLINE_S)

    def _noted(self, vnode: Vnode) -> list[Item]:
        return [] if self._round is None else self._round.items.get(vnode, [])

    def _take(self, item: Item, found: Digested) -> None:
        if found.fault and self._has_vanished(item):
            self._found_bad(item, Flaw("", "it is not there any more"))
        elif found.corrupt:
            self._found_bad(item, Flaw("", f"its entries cannot be read: {found.fault}"))
        elif found.fault:
            self._unread(item, found.fault)
        else:
            item.digested = found
            self._over(item, Checked.WHOLE)

    def _has_vanished(self, item: Item) -> bool:
        try:
            return item.manifest.checkpoint_id in item.kept.gone()
        except OSError:
            return False

    # --- what is told ----------------------------------------------------------------------------

    def report(self) -> VerifyReport | None:
        """How far the round is."""
        current = self._round
        if current is None:
            return None
        return VerifyReport(
            round=current.wish.round,
            vnodes={v: tuple(item.told() for item in items) for v, items in current.items.items()},
            broken=tuple(v for v in current.items if self._holdings.base(v) is None),
            done_bytes=min(current.done_bytes, current.total_bytes),
            total_bytes=current.total_bytes,
        )
