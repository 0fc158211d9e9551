"""Checkpoints down the chains: each one goes from the owner's worker to the tail (Rhino, 4.2.2).

A worker offers its newest checkpoint of a vnode to the next full member of the chain, which fetches
what it lacks, and then offers it on. The acknowledgement comes back from the tail: a member sends
it once the checkpoint is durable here and acknowledged by the next one.

Invariants (numbers of the design, section 10):

5. Log before a checkpoint is trimmed by the owner once every full member has the checkpoint.
8. A checkpoint that is offered stays until the offer has ended.
12. An offer ends within its timeout; the next one is of the newest checkpoint then. Vnodes take
    turns: the one that was not offered for longest comes first, however often others change.
"""

from dataclasses import dataclass

from rhino_agent.job import Job
from rhino_agent.ports import event
from rhino_agent.transfer import Source, Transfer
from rhino_agent.upkeep import Upkeep
from rhinoctl import limits
from rhinoctl.errors import CorruptFile, RhinoError
from rhinoctl.ids import BatchTime, Vnode, WorkerId
from rhinoctl.protocol import messages as m
from rhinoctl.protocol.epochs import Epoch, Role
from rhinoctl.protocol.ports import Address, Envelope
from rhinoctl.state.manifests import Manifest


@dataclass(slots=True)
class Offer:
    """One checkpoint that the next worker is to have; `back` is the worker that waits for the
    acknowledgement, None at the owner's."""

    checkpoint_id: str
    to: WorkerId
    until: float
    back: WorkerId | None


@dataclass(slots=True)
class Intake:
    """One checkpoint that this worker was offered and fetches."""

    transfer: Transfer
    back: WorkerId


class Replication:
    """What this worker offers and is offered, of one job."""

    def __init__(self, job: Job, upkeep: Upkeep) -> None:
        self._job = job
        self._upkeep = upkeep
        self._holdings = upkeep.holdings
        self._offers: dict[Vnode, Offer] = {}
        self._intakes: dict[Vnode, Intake] = {}
        self._stored: dict[Vnode, tuple[WorkerId, str]] = {}
        self._not_before: dict[Vnode, float] = {}
        self._behind: dict[Vnode, WorkerId] = {}
        """Who did not get the last offer: said when it begins, not of each try."""
        self._epoch: Epoch | None = None
        self._next: dict[Vnode, WorkerId | None] = {}
        self._look_at = 0.0

    def drop(self) -> None:
        """The job leaves this worker: nothing that comes is taken any more."""
        for intake in self._intakes.values():
            intake.transfer.cancel()
        self._intakes.clear()
        self._offers.clear()

    def tick(self) -> None:
        """Offer what is new here, and go on with what was offered."""
        epoch = self._job.epoch()
        if epoch is None:
            return
        for intake in list(self._intakes.values()):
            intake.transfer.go_on()
        now = self._job.ports.clock.monotonic()
        if self._epoch is None or epoch.number != self._epoch.number:
            self._learn(epoch)
        elif now < self._look_at:
            return
        self._look_at = now + limits.OFFER_LOOK_S
        here = self._job.ports.settings.worker
        for vnode, offer in list(self._offers.items()):
            if now >= offer.until or successor(epoch, here, vnode) != offer.to:
                self._end(vnode, offer, "the chain did not acknowledge it in time")
        for vnode, following in list(self._next.items()):
            if len(self._offers) >= limits.COPIES_AT_ONCE:
                break
            if following is not None and now >= self._not_before.get(vnode, 0.0):
                self._offer_newest(epoch, vnode, following)

    def _learn(self, epoch: Epoch) -> None:
        """Another epoch: whose checkpoints go to whom, and who bounds the trimming."""
        here = self._job.ports.settings.worker
        self._epoch, self._next = epoch, {}
        self._behind = {v: w for v, w in self._behind.items() if successor(epoch, here, v) == w}
        for vnode in epoch.held_by(here):
            if epoch.owner_worker(vnode) == here:
                self._next[vnode] = successor(epoch, here, vnode)
                self._bound(vnode)
            else:
                self._holdings.bound_floor(vnode, None)

    # --- offering --------------------------------------------------------------------------------

    def _bound(self, vnode: Vnode) -> None:
        """Up to where the owner may trim: what the chain has acknowledged, all if there is none."""
        following = self._next.get(vnode)
        stored = self._stored.get(vnode)
        if following is None:
            self._holdings.bound_floor(vnode, None)
        elif stored is None or stored[0] != following:
            self._holdings.bound_floor(vnode, "")
        else:
            self._holdings.bound_floor(vnode, stored[1])

    def _offer_newest(self, epoch: Epoch, vnode: Vnode, following: WorkerId) -> None:
        manifest = self._holdings.newest(vnode)
        if manifest is None or vnode in self._offers:
            return
        if self._stored.get(vnode) != (following, manifest.checkpoint_id):
            self._next[vnode] = self._next.pop(vnode)
            self._offer(epoch, vnode, manifest, following, None)

    def _offer(
        self,
        epoch: Epoch,
        vnode: Vnode,
        manifest: Manifest,
        to: WorkerId,
        back: WorkerId | None,
    ) -> None:
        until = self._job.ports.clock.monotonic() + limits.REPLICATION_TIMEOUT_S
        offer = Offer(manifest.checkpoint_id, to, until, back)
        self._offers[vnode] = offer
        self._holdings.leases.take(vnode, manifest.checkpoint_id, _holder(vnode), until=until)
        message = m.OfferCheckpoint(
            header=self._header(epoch), vnode=vnode, covers=self._holdings.covers.of(manifest)
        )

        def answered(envelope: Envelope) -> None:
            answer = envelope.message
            if self._offers.get(vnode) is offer and not isinstance(answer, m.Done):
                detail = answer.detail if isinstance(answer, m.Refusal) else envelope.detail
                self._end(vnode, offer, detail)

        self._job.ports.ask(
            Address(epoch.workers[to]),
            message,
            answered,
            [manifest.encode()],
            timeout_s=limits.FETCH_TIMEOUT_S,
        )

    def stored(self, envelope: Envelope) -> None:
        """The next worker says that the rest of the chain has a checkpoint, or will not have it."""
        message = envelope.message
        assert isinstance(message, m.StoredCheckpoint)
        self._job.ports.wire.reply(envelope, m.Done(header=self._header(self._job.epoch())))
        vnode, offer = message.vnode, self._offers.get(message.vnode)
        if offer is None or (offer.to, offer.checkpoint_id) != (
            message.worker,
            message.checkpoint,
        ):
            return
        if message.fault:
            self._end(vnode, offer, message.fault)
            return
        del self._offers[vnode]
        self._holdings.leases.release(_holder(vnode))
        self._stored[vnode] = (offer.to, offer.checkpoint_id)
        self._look_at = 0.0
        if offer.back is None:
            self._bound(vnode)
        self._behind.pop(vnode, None)
        event("checkpoint-replicated", vnode=vnode, checkpoint=offer.checkpoint_id, to=offer.to)
        self._tell(offer.back, vnode, offer.checkpoint_id)

    def _end(self, vnode: Vnode, offer: Offer, why: str) -> None:
        """The chain has not got it; another try begins with the newest there is by then."""
        del self._offers[vnode]
        self._holdings.leases.release(_holder(vnode))
        pause = self._job.ports.clock.monotonic() + limits.COPY_ROUND_S
        self._not_before[vnode] = pause
        if self._behind.get(vnode) != offer.to:
            self._behind[vnode] = offer.to
            event("checkpoint-not-replicated", vnode=vnode, to=offer.to, why=why)
        self._tell(offer.back, vnode, offer.checkpoint_id, f"{offer.to}: {why}")

    def _tell(self, back: WorkerId | None, vnode: Vnode, checkpoint: str, fault: str = "") -> None:
        """Tell the worker before this one. If that is lost, it offers again after its timeout."""
        epoch = self._job.epoch()
        if back is None or epoch is None or back not in epoch.workers:
            return
        message = m.StoredCheckpoint(
            header=self._header(epoch),
            worker=self._job.ports.settings.worker,
            vnode=vnode,
            checkpoint=checkpoint,
            fault=fault,
        )
        self._job.ports.ask(
            Address(epoch.workers[back]), message, lambda _: None, timeout_s=limits.FETCH_TIMEOUT_S
        )

    def forget(self, vnode: Vnode) -> None:
        """What is on its way of a vnode goes nowhere; it is offered again."""
        intake = self._intakes.pop(vnode, None)
        if intake is not None:
            intake.transfer.cancel()
            checkpoint = intake.transfer.manifest.checkpoint_id
            self._tell(intake.back, vnode, checkpoint, "the vnode is on another disk now")

    # --- being offered ---------------------------------------------------------------------------

    def handle(self, envelope: Envelope) -> None:
        """Take an offer, if it comes from the worker before this one in the chain."""
        message = envelope.message
        assert isinstance(message, m.OfferCheckpoint)
        vnode, epoch = message.vnode, self._job.epoch()
        before = None
        if epoch is not None:
            before = predecessor(epoch, self._job.ports.settings.worker, vnode)
        if epoch is None or before is None or message.header.epoch < epoch.number:
            self._refuse(envelope, f"this worker has no part in the chain of vnode {vnode}")
            return
        if self._upkeep.is_held(vnode):
            self._refuse(envelope, f"vnode {vnode} is just going to another disk")
            return
        try:
            manifest = Manifest.decode(
                envelope.payload[0],
                path=f"the manifest of vnode {vnode} at {before}",
                expected=self._holdings.of(vnode).identity,
            )
        except RhinoError as fault:
            self._refuse(envelope, fault.message)
            return
        self._job.ports.wire.reply(envelope, m.Done(header=self._header(epoch)))
        self._supersede(vnode)
        kept = self._holdings.of(vnode).complete()
        if any(own.checkpoint_id == manifest.checkpoint_id for own in kept):
            self._has(before, manifest, message.covers)
            return

        def ended(fault: Exception | None) -> None:
            del self._intakes[vnode]
            self._fetched(before, manifest, message.covers, fault)

        source = Source(worker=before, address=epoch.workers[before])
        transfer = Transfer(self._job, self._upkeep, source, manifest, ended, yields=True)
        self._intakes[vnode] = Intake(transfer, before)

    def _supersede(self, vnode: Vnode) -> None:
        """Only the newest offer of a vnode is followed up."""
        why = "a newer checkpoint was offered meanwhile"
        intake = self._intakes.pop(vnode, None)
        if intake is not None:
            intake.transfer.cancel()
            checkpoint = intake.transfer.manifest.checkpoint_id
            if not self._upkeep.is_busy(vnode):
                self._holdings.of(vnode).abandon(checkpoint)
            self._tell(intake.back, vnode, checkpoint, why)
        offer = self._offers.get(vnode)
        if offer is not None and offer.back is not None:
            self._end(vnode, offer, why)

    def _fetched(
        self, back: WorkerId, manifest: Manifest, covers: BatchTime, fault: Exception | None
    ) -> None:
        vnode = manifest.identity.vnode
        if fault is None:
            self._has(back, manifest, covers)
            return
        event("checkpoint-not-fetched", vnode=vnode, fault=fault)
        if isinstance(fault, CorruptFile):
            self._holdings.of(vnode).abandon(manifest.checkpoint_id)
        self._tell(back, vnode, manifest.checkpoint_id, str(fault))

    def _has(self, back: WorkerId, manifest: Manifest, covers: BatchTime) -> None:
        """The checkpoint is here: the next one is to have it, too."""
        vnode, epoch = manifest.identity.vnode, self._job.epoch()
        self._holdings.covers.advance(vnode, manifest.checkpoint_id, covers)
        here = self._job.ports.settings.worker
        following = None if epoch is None else successor(epoch, here, vnode)
        have = (following, manifest.checkpoint_id)
        if epoch is None or following is None or self._stored.get(vnode) == have:
            self._tell(back, vnode, manifest.checkpoint_id)
        else:
            self._offer(epoch, vnode, manifest, following, back)

    def _refuse(self, envelope: Envelope, detail: str) -> None:
        header = self._header(self._job.epoch())
        refusal = m.Refusal(header=header, code=m.RefusalCode.NOT_FOUND, detail=detail)
        self._job.ports.wire.reply(envelope, refusal)

    def _header(self, epoch: Epoch | None) -> m.Header:
        number = epoch.number if epoch is not None else 0
        return self._job.ports.header(self._job.spec.uid, epoch=number)


def _holder(vnode: Vnode) -> str:
    return f"offer of {vnode}"


def _chain(epoch: Epoch, vnode: Vnode) -> list[WorkerId]:
    """The workers of a vnode's chain that nobody could do without: joining ones gather theirs."""
    return [w for w in epoch.holders(vnode) if epoch.role_of(w, vnode) is Role.FULL]


def successor(epoch: Epoch, worker: WorkerId, vnode: Vnode) -> WorkerId | None:
    """The full member after a worker in a vnode's chain."""
    chain = _chain(epoch, vnode)
    place = chain.index(worker) + 1 if worker in chain else len(chain)
    return chain[place] if place < len(chain) else None


def predecessor(epoch: Epoch, worker: WorkerId, vnode: Vnode) -> WorkerId | None:
    """The full holder before a worker in a vnode's chain."""
    chain = _chain(epoch, vnode)
    place = chain.index(worker) - 1 if worker in chain else -1
    return chain[place] if place >= 0 else None
