"""Gathering a copy of a vnode while the job runs: base checkpoint, then what the log lacks.

The worker has joined the chain, so slices and records reach its log from its epoch on. What is
fetched is the newest checkpoint of a full holder, file by file where no local checkpoint has the
content, in chunks that are asked for one at a time per vnode: the requests under way are the
credits (Rhino, section 4.2.2). Then the batches between checkpoint and log.
"""

from dataclasses import dataclass, field

from rhino_agent.job import Job
from rhino_agent.ports import event
from rhino_agent.upkeep import Upkeep
from rhinoctl import limits
from rhinoctl.errors import RhinoError
from rhinoctl.ids import BatchTime, Vnode
from rhinoctl.protocol import messages as m
from rhinoctl.protocol.ports import Address, Envelope
from rhinoctl.state.manifests import FileEntry, Manifest


@dataclass(slots=True)
class Copy:
    """One vnode's copy on its way. `asked` while a request or an adoption is under way."""

    vnode: Vnode
    source: Address
    manifest: Manifest | None = None
    covers: BatchTime | None = None
    missing: list[FileEntry] = field(default_factory=list)
    adopted: bool = False
    asked: bool = False
    not_before: float = 0.0
    started: float = 0.0
    bytes: int = 0
    total: int = 0


class Copies:
    """The copies that the controller's wishes need and this worker lacks."""

    def __init__(self, job: Job, upkeep: Upkeep) -> None:
        self._job = job
        self._upkeep = upkeep
        self._copies: dict[Vnode, Copy] = {}

    def progress(self, vnode: Vnode) -> tuple[int, int]:
        """Bytes copied and bytes to copy of a vnode, zero where nothing is or was copied."""
        copy = self._copies.get(vnode)
        return (copy.bytes, copy.total) if copy is not None else (0, 0)

    def whole(self) -> frozenset[Vnode]:
        """The wished vnodes of which this worker has a base and the whole log after it."""
        wished = (wish.vnode for wish in self._job.desired.warm)
        return frozenset(v for v in wished if self._upkeep.base(v) is not None)

    def tick(self) -> None:
        """Begin the copies that are wished and lacking, go on with them, drop the others."""
        wishes = {wish.vnode: wish for wish in self._job.desired.warm}
        for vnode in [v for v in self._copies if v not in wishes]:
            del self._copies[vnode]
        now = self._job.ports.clock.monotonic()
        active = 0
        for vnode, wish in sorted(wishes.items()):
            if self._upkeep.base(vnode) is not None or not self._is_held(vnode):
                continue
            active += 1
            if active > limits.COPIES_AT_ONCE:
                break
            copy = self._copies.get(vnode)
            if copy is None:
                if not wish.sources:
                    continue
                source = Address(wish.sources[sorted(wish.sources)[vnode % len(wish.sources)]])
                copy = self._copies[vnode] = Copy(vnode=vnode, source=source, started=now)
            if not copy.asked and now >= copy.not_before:
                self._go_on(copy)

    def _is_held(self, vnode: Vnode) -> bool:
        """Whether this worker is in the vnode's chain, so that its log grows."""
        epoch = self._job.epoch()
        return epoch is not None and vnode in epoch.held_by(self._job.ports.settings.worker)

    def _go_on(self, copy: Copy) -> None:
        if copy.covers is None:
            self._ask_manifest(copy)
        elif copy.manifest is not None and not copy.adopted:
            if copy.missing:
                self._ask_chunk(copy, copy.missing[0])
            else:
                self._adopt(copy, copy.manifest)
        else:
            self._ask_log(copy)

    def _ask(self, copy: Copy, message: m.Message) -> None:
        copy.asked = True

        def answered(envelope: Envelope) -> None:
            copy.asked = False
            if self._copies.get(copy.vnode) is not copy:
                return
            try:
                self._take(copy, message, envelope)
            except (RhinoError, OSError) as fault:
                event("copy-restarted", vnode=copy.vnode, fault=fault)
                self._restart(copy)

        self._job.ports.ask(copy.source, message, answered, timeout_s=limits.FETCH_TIMEOUT_S)

    def _take(self, copy: Copy, asked: m.Message, envelope: Envelope) -> None:
        answer = envelope.message
        if isinstance(answer, m.ManifestOf):
            self._take_manifest(copy, answer, envelope)
        elif isinstance(answer, m.LogPiece):
            self._take_log(copy, answer, envelope)
        elif isinstance(answer, m.Done) and isinstance(asked, m.FetchChunk):
            self._take_chunk(copy, asked, envelope)
        elif isinstance(answer, m.Refusal):
            event("copy-refused", vnode=copy.vnode, detail=answer.detail)
            self._restart(copy)
        else:
            self._later(copy)

    def _restart(self, copy: Copy) -> None:
        """Begin again with the newest manifest; files that are here stay."""
        copy.manifest, copy.covers, copy.adopted = None, None, False
        self._later(copy)

    def _later(self, copy: Copy) -> None:
        copy.not_before = self._job.ports.clock.monotonic() + limits.RETRY_DELAY_S

    def _header(self) -> m.Header:
        return self._job.ports.header(self._job.spec.uid)

    # --- the base checkpoint ---------------------------------------------------------------------

    def _ask_manifest(self, copy: Copy) -> None:
        self._ask(copy, m.FetchManifest(header=self._header(), vnode=copy.vnode))

    def _take_manifest(self, copy: Copy, answer: m.ManifestOf, envelope: Envelope) -> None:
        start = self._upkeep.log_from(copy.vnode)
        gap = len(self._job.log.batches(answer.covers, self._job.decided_time)) if start else 0
        waited = self._job.ports.clock.monotonic() - copy.started
        fresh = start is None or answer.covers >= start or answer.covers.precedes(start)
        if not fresh and gap > 0 and waited < limits.FRESH_CHECKPOINT_S:
            self._later(copy)
            return
        copy.covers = answer.covers
        if not envelope.payload:
            self._upkeep.covers.advance(copy.vnode, "", answer.covers)
            return
        kept = self._upkeep.of(copy.vnode)
        copy.manifest = Manifest.decode(
            envelope.payload[0], path=f"the manifest of {copy.source}", expected=kept.identity
        )
        copy.adopted = any(m.checkpoint_id == copy.manifest.checkpoint_id for m in kept.complete())
        copy.missing = kept.missing(copy.manifest)
        copy.total = sum(entry.size for entry in copy.missing)
        copy.bytes = 0

    def _ask_chunk(self, copy: Copy, entry: FileEntry) -> None:
        assert copy.manifest is not None
        disk = self._job.ports.disk
        have = disk.size(self._upkeep.of(copy.vnode).incoming(copy.manifest, entry)) or 0
        chunk = m.FetchChunk(
            header=self._header(),
            vnode=copy.vnode,
            checkpoint=copy.manifest.checkpoint_id,
            file=entry.name,
            offset=have,
            length=min(limits.CHUNK_BYTES, entry.size - have),
        )
        self._ask(copy, chunk)

    def _take_chunk(self, copy: Copy, asked: m.FetchChunk, envelope: Envelope) -> None:
        if copy.manifest is None or not copy.missing or copy.missing[0].name != asked.file:
            return
        entry = copy.missing[0]
        disk = self._job.ports.disk
        path = self._upkeep.of(copy.vnode).incoming(copy.manifest, entry)
        disk.append(path, envelope.payload)
        copy.bytes += sum(len(part) for part in envelope.payload)
        if (disk.size(path) or 0) >= entry.size:
            copy.missing.pop(0)
        self._go_on(copy)

    def _adopt(self, copy: Copy, manifest: Manifest) -> None:
        copy.asked = True

        def adopted(result: None) -> None:
            copy.asked = False
            copy.adopted = True
            assert copy.covers is not None
            self._upkeep.covers.advance(copy.vnode, manifest.checkpoint_id, copy.covers)
            event("copy-adopted", vnode=copy.vnode, covers=copy.covers, bytes=copy.bytes)

        self._upkeep.work(self._upkeep.of(copy.vnode).adopt(manifest), adopted, copy.vnode)

    # --- the log before this worker's own --------------------------------------------------------

    def _ask_log(self, copy: Copy) -> None:
        """Ask for the first batch after the checkpoint that the log here lacks."""
        at = self._upkeep.reach(copy.vnode)
        for time in self._job.log.batches(at, self._job.decided_time):
            if not at.precedes(time) or not self._job.log.has(time, copy.vnode):
                break
            at = time
        self._ask(copy, m.FetchLog(header=self._header(), since=at, vnodes=(copy.vnode,)))

    def _take_log(self, copy: Copy, answer: m.LogPiece, envelope: Envelope) -> None:
        if answer.record is None:
            self._later(copy)
            return
        self._job.log.add_piece(answer.record, answer.puts, envelope.payload)
        copy.bytes += sum(len(part) for part in envelope.payload)
        copy.total = max(copy.total, copy.bytes)
        self._upkeep.forget_whole()
        self._go_on(copy)
