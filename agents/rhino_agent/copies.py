"""Gathering a copy of a vnode while the job runs: base checkpoint, then what the log lacks.

The worker has joined the chain, so slices and records reach its log from its epoch on. What is
fetched is the newest checkpoint of a full holder (`rhino_agent.transfer`), then the batches between
checkpoint and log.

Invariants:

1. A candidate (a holder's checkpoint) whose content is not what its manifest says is named, told to
   its holder, and not tried again while there is another.
2. A copy counts as whole only after all that makes it so is durable.
3. A copy that is not wished any more leaves nothing behind.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from rhino_agent.job import Job
from rhino_agent.ports import event
from rhino_agent.transfer import Source, Transfer
from rhino_agent.upkeep import Upkeep
from rhinoctl import limits
from rhinoctl.errors import CorruptFile, RhinoError
from rhinoctl.ids import BatchTime, Vnode, WorkerId
from rhinoctl.protocol import messages as m
from rhinoctl.protocol.ports import Address, Envelope
from rhinoctl.state.manifests import Manifest


@dataclass(slots=True)
class Copy:
    """One vnode's copy on its way, from `source` at present.

    `covers` is known once the source has named its checkpoint, of which `transfer` fetches what is
    lacking, if there is one; then it is `fetched`. `asked` while a request is under way; `bad` are
    the checkpoints of each source that were found bad.
    """

    vnode: Vnode
    source: WorkerId
    started: float
    covers: BatchTime | None = None
    transfer: Transfer | None = None
    fetched: Transfer | None = None
    asked: bool = False
    not_before: float = 0.0
    log_bytes: int = 0
    bad: dict[WorkerId, set[str]] = field(default_factory=dict)


class Copies:
    """The copies that the controller's wishes need and this worker lacks."""

    def __init__(self, job: Job, upkeep: Upkeep) -> None:
        self._job = job
        self._upkeep = upkeep
        self._holdings = upkeep.holdings
        self._copies: dict[Vnode, Copy] = {}
        self._sources: Mapping[Vnode, Mapping[WorkerId, str]] = {}
        self._broken: dict[Vnode, Mapping[WorkerId, str]] = {}
        self._look_at = 0.0

    def progress(self, vnode: Vnode) -> tuple[int, int]:
        """Bytes copied and bytes to copy of a vnode, zero where nothing is or was copied."""
        copy = self._copies.get(vnode)
        if copy is None:
            return (0, 0)
        transfer = copy.transfer or copy.fetched
        files = (transfer.bytes, transfer.total) if transfer is not None else (0, 0)
        return files[0] + copy.log_bytes, files[1] + copy.log_bytes

    def _wished(self) -> dict[Vnode, Mapping[WorkerId, str]]:
        """The vnodes that this worker shall have a copy of, and where there is one: as wished, and
        those that it stands for and has lost what it had of them."""
        desired = self._job.desired
        held = {wish.vnode: wish.sources for wish in desired.hold}
        return self._broken | held | {wish.vnode: wish.sources for wish in desired.warm}

    def _find_broken(self) -> None:
        """Look, every now and then, of which vnodes the copy here is not whole any more: its
        checkpoints were found bad (design, invariant 9). The other full holders have it."""
        now, epoch = self._job.ports.clock.monotonic(), self._job.epoch()
        if epoch is None or now < self._look_at:
            return
        self._look_at = now + limits.TIDY_S
        here = self._job.ports.settings.worker
        self._broken = {
            v: {w: epoch.workers[w] for w in epoch.full_holders(v) if w != here}
            for v in epoch.fully_held_by(here)
            if self._holdings.base(v) is None
        }
        self._upkeep.awaited = frozenset(v for v, sources in self._broken.items() if sources)

    def whole(self) -> frozenset[Vnode]:
        """The wished vnodes of which this worker has a base and the whole log after it."""
        return frozenset(v for v in self._wished() if self._holdings.base(v) is not None)

    def tick(self) -> None:
        """Begin the copies that are wished and lacking, go on with them, drop the others."""
        if not self._job.told:
            return
        self._find_broken()
        self._sources = self._wished()
        for vnode in [v for v in self._copies if v not in self._sources]:
            self._drop(self._copies.pop(vnode))
        now = self._job.ports.clock.monotonic()
        held = self._upkeep.is_held
        lacking = [v for v in sorted(self._sources) if self._lacks(v) and not held(v)]
        for vnode in [v for v in lacking if self._sources[v]][: limits.COPIES_AT_ONCE]:
            copy = self._copies.get(vnode)
            if copy is None:
                sources = sorted(self._sources[vnode])
                source = sources[vnode % len(sources)]
                copy = self._copies[vnode] = Copy(vnode=vnode, source=source, started=now)
            if not copy.asked and now >= copy.not_before:
                self._go_on(copy)

    def drop(self) -> None:
        """The job leaves this worker: nothing that comes is taken any more."""
        for copy in self._copies.values():
            self._stop(copy)
        self._copies.clear()

    def forget(self, vnode: Vnode) -> None:
        """What is on its way of a vnode goes nowhere: its copy, if it is still lacking, begins
        anew. Whether there is one is looked at at once: nobody is told meanwhile that there is none
        to come."""
        copy = self._copies.pop(vnode, None)
        if copy is not None:
            self._stop(copy)
        self._look_at = 0.0

    def _lacks(self, vnode: Vnode) -> bool:
        """Whether this worker is in the vnode's chain, so that its log grows, without a base."""
        epoch = self._job.epoch()
        here = self._job.ports.settings.worker
        held = epoch is not None and here in epoch.holders(vnode)
        return held and self._holdings.base(vnode) is None

    def _drop(self, copy: Copy) -> None:
        """What was on its way is removed; a whole copy goes once the vnode is not held any more."""
        transfer = self._stop(copy)
        if transfer is not None and not self._upkeep.is_busy(copy.vnode):
            self._holdings.of(copy.vnode).abandon(transfer.manifest.checkpoint_id)

    def _stop(self, copy: Copy) -> Transfer | None:
        transfer, copy.transfer = copy.transfer, None
        if transfer is not None:
            transfer.cancel()
        return transfer

    def _go_on(self, copy: Copy) -> None:
        """Take the next step; there is a source."""
        if copy.source not in self._sources[copy.vnode]:
            self._elsewhere(copy)
        if copy.covers is None:
            bad = tuple(sorted(copy.bad.get(copy.source, ())))
            self._ask(copy, m.FetchManifest(header=self._header(), vnode=copy.vnode, bad=bad))
        elif copy.transfer is not None:
            copy.transfer.go_on()
        else:
            self._ask_log(copy)

    def _ask(self, copy: Copy, message: m.Message) -> None:
        copy.asked = True
        source = copy.source

        def answered(envelope: Envelope) -> None:
            copy.asked = False
            if self._copies.get(copy.vnode) is not copy or copy.source != source:
                return
            if source not in self._sources[copy.vnode]:  # it was one when it was asked
                self._elsewhere(copy)
                return
            try:
                self._take(copy, envelope)
            except (RhinoError, OSError) as fault:
                event("copy-restarted", vnode=copy.vnode, source=source, fault=fault)
                self._elsewhere(copy)

        address = Address(self._sources[copy.vnode][source])
        self._job.ports.ask(address, message, answered, timeout_s=limits.FETCH_TIMEOUT_S)

    def _take(self, copy: Copy, envelope: Envelope) -> None:
        answer = envelope.message
        if isinstance(answer, m.ManifestOf):
            self._take_manifest(copy, answer, envelope)
        elif isinstance(answer, m.LogPiece):
            self._take_log(copy, answer, envelope)
        else:
            detail = answer.detail if isinstance(answer, m.Refusal) else envelope.detail
            event("copy-refused", vnode=copy.vnode, source=copy.source, detail=detail)
            self._elsewhere(copy)

    def _found_bad(self, copy: Copy, manifest: Manifest, fault: CorruptFile) -> None:
        """The candidate is bad: another one of this source, which is told, or another source."""
        event("copy-bad", vnode=copy.vnode, source=copy.source, fault=fault.message)
        name = manifest.checkpoint_id
        self._holdings.of(copy.vnode).abandon(name)
        copy.bad.setdefault(copy.source, set()).add(name)
        self._restart(copy)

    def _elsewhere(self, copy: Copy) -> None:
        """Try the next source. After all of them, what was bad may have been replaced. Without any
        the copy waits for one."""
        sources = sorted(self._sources[copy.vnode])
        after = [source for source in sources if source > copy.source]
        copy.source = next(iter(after or sources), copy.source)
        self._restart(copy)
        if not after:
            copy.bad.clear()
            copy.not_before = self._job.ports.clock.monotonic() + limits.COPY_ROUND_S

    def _restart(self, copy: Copy) -> None:
        """Begin again with the newest manifest; files that are here stay."""
        self._stop(copy)
        copy.covers = None
        self._later(copy)

    def _later(self, copy: Copy) -> None:
        copy.not_before = self._job.ports.clock.monotonic() + limits.RETRY_DELAY_S

    def _header(self) -> m.Header:
        return self._job.ports.header(self._job.spec.uid)

    # --- the base checkpoint ---------------------------------------------------------------------

    def _take_manifest(self, copy: Copy, answer: m.ManifestOf, envelope: Envelope) -> None:
        if self._too_old(copy, answer.covers):
            self._later(copy)
            return
        covers = self._holdings.covers
        if not envelope.payload:
            covers.advance(copy.vnode, "", answer.covers)
            covers.persist()
            copy.covers = answer.covers
            return
        kept = self._holdings.of(copy.vnode)
        path = f"the manifest of vnode {copy.vnode} at {copy.source}"
        manifest = Manifest.decode(envelope.payload[0], path=path, expected=kept.identity)
        copy.covers = answer.covers
        if any(own.checkpoint_id == manifest.checkpoint_id for own in kept.complete()):
            self._reaches(copy, manifest)
            return

        def ended(fault: Exception | None) -> None:
            self._fetched(copy, manifest, fault)

        source = Source(worker=copy.source, address=self._sources[copy.vnode][copy.source])
        copy.transfer = Transfer(self._job, self._upkeep, source, manifest, ended)

    def _fetched(self, copy: Copy, manifest: Manifest, fault: Exception | None) -> None:
        copy.fetched, copy.transfer = copy.transfer, None
        if fault is None:
            self._reaches(copy, manifest)
        elif isinstance(fault, CorruptFile):
            self._found_bad(copy, manifest, fault)
        else:
            event("copy-restarted", vnode=copy.vnode, source=copy.source, fault=fault)
            self._elsewhere(copy)

    def _reaches(self, copy: Copy, manifest: Manifest) -> None:
        """The checkpoint is here: it reaches as far as its source said."""
        assert copy.covers is not None
        self._holdings.covers.advance(copy.vnode, manifest.checkpoint_id, copy.covers)
        self._holdings.covers.persist()

    def _too_old(self, copy: Copy, covers: BatchTime) -> bool:
        """Whether it is better to wait a moment for a checkpoint as new as the log here, which the
        controller has asked the owner for."""
        if self._job.ports.clock.monotonic() - copy.started >= limits.FRESH_CHECKPOINT_S:
            return False
        return self._job.state.decided is None or covers < self._holdings.log_since(copy.vnode)

    # --- the log before this worker's own --------------------------------------------------------

    def _ask_log(self, copy: Copy) -> None:
        """Ask for the first batch after the checkpoint that the log here lacks."""
        at = self._holdings.log_through(copy.vnode, self._holdings.reach(copy.vnode))
        self._ask(copy, m.FetchLog(header=self._header(), since=at, vnodes=(copy.vnode,)))

    def _take_log(self, copy: Copy, answer: m.LogPiece, envelope: Envelope) -> None:
        record = answer.record
        if record is None or record.time > self._job.decided_time:
            self._later(copy)
            return
        if not self._job.log.has(record.time, copy.vnode):
            self._job.log.add_piece(record, answer.puts, envelope.payload)
        copy.log_bytes += sum(len(part) for part in envelope.payload)
        self._holdings.look_again()
        if self._lacks(copy.vnode):
            self._go_on(copy)
