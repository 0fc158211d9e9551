"""Gathering a copy of a vnode while the job runs: base checkpoint, then what the log lacks.

The worker has joined the chain, so slices and records reach its log from its epoch on. What is
fetched is the newest checkpoint of a full holder, file by file where no local checkpoint has the
content, in chunks that are asked for one at a time per vnode: the requests under way are the
credits (Rhino, section 4.2.2). Then the batches between checkpoint and log.

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
from rhino_agent.upkeep import Upkeep
from rhinoctl import limits
from rhinoctl.errors import CorruptFile, RhinoError
from rhinoctl.ids import BatchTime, Vnode, WorkerId
from rhinoctl.protocol import messages as m
from rhinoctl.protocol.ports import Address, Envelope
from rhinoctl.state.manifests import FileEntry, Manifest


@dataclass(slots=True)
class Copy:
    """One vnode's copy on its way, from `source` at present.

    `asked` while a request or an adoption is under way; `bad` are the checkpoints of each source
    that were found bad.
    """

    vnode: Vnode
    source: WorkerId
    started: float
    manifest: Manifest | None = None
    covers: BatchTime | None = None
    missing: list[FileEntry] = field(default_factory=list)
    adopted: bool = False
    asked: bool = False
    not_before: float = 0.0
    bytes: int = 0
    total: int = 0
    bad: dict[WorkerId, set[str]] = field(default_factory=dict)


class Copies:
    """The copies that the controller's wishes need and this worker lacks."""

    def __init__(self, job: Job, upkeep: Upkeep) -> None:
        self._job = job
        self._upkeep = upkeep
        self._holdings = upkeep.holdings
        self._copies: dict[Vnode, Copy] = {}
        self._sources: Mapping[Vnode, Mapping[WorkerId, str]] = {}

    def progress(self, vnode: Vnode) -> tuple[int, int]:
        """Bytes copied and bytes to copy of a vnode, zero where nothing is or was copied."""
        copy = self._copies.get(vnode)
        return (copy.bytes, copy.total) if copy is not None else (0, 0)

    def whole(self) -> frozenset[Vnode]:
        """The wished vnodes of which this worker has a base and the whole log after it."""
        wished = (wish.vnode for wish in self._job.desired.warm)
        return frozenset(v for v in wished if self._holdings.base(v) is not None)

    def tick(self) -> None:
        """Begin the copies that are wished and lacking, go on with them, drop the others."""
        if not self._job.told:
            return
        self._sources = {wish.vnode: wish.sources for wish in self._job.desired.warm}
        for vnode in [v for v in self._copies if v not in self._sources]:
            self._drop(self._copies.pop(vnode))
        now = self._job.ports.clock.monotonic()
        lacking = [v for v in sorted(self._sources) if self._lacks(v)]
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
        self._copies.clear()

    def _lacks(self, vnode: Vnode) -> bool:
        """Whether this worker is in the vnode's chain, so that its log grows, without a base."""
        epoch = self._job.epoch()
        here = self._job.ports.settings.worker
        held = epoch is not None and here in epoch.holders(vnode)
        return held and self._holdings.base(vnode) is None

    def _drop(self, copy: Copy) -> None:
        """What was on its way is removed; a whole copy goes once the vnode is not held any more."""
        if copy.manifest is not None and not self._upkeep.is_busy(copy.vnode):
            self._holdings.of(copy.vnode).abandon(copy.manifest.checkpoint_id)

    def _go_on(self, copy: Copy) -> None:
        if copy.source not in self._sources[copy.vnode]:
            self._elsewhere(copy)
        if copy.covers is None:
            bad = tuple(sorted(copy.bad.get(copy.source, ())))
            self._ask(copy, m.FetchManifest(header=self._header(), vnode=copy.vnode, bad=bad))
        elif copy.manifest is not None and not copy.adopted:
            if copy.missing:
                self._ask_chunk(copy, copy.manifest, copy.missing[0])
            else:
                self._adopt(copy, copy.manifest, copy.covers)
        else:
            self._ask_log(copy)

    def _ask(self, copy: Copy, message: m.Message) -> None:
        copy.asked = True
        source = copy.source

        def answered(envelope: Envelope) -> None:
            copy.asked = False
            if self._copies.get(copy.vnode) is not copy or copy.source != source:
                return
            try:
                self._take(copy, message, envelope)
            except CorruptFile as fault:
                self._found_bad(copy, fault)
            except (RhinoError, OSError) as fault:
                event("copy-restarted", vnode=copy.vnode, source=source, fault=fault)
                self._elsewhere(copy)

        address = Address(self._sources[copy.vnode][source])
        self._job.ports.ask(address, message, answered, timeout_s=limits.FETCH_TIMEOUT_S)

    def _take(self, copy: Copy, asked: m.Message, envelope: Envelope) -> None:
        answer = envelope.message
        if isinstance(answer, m.ManifestOf):
            self._take_manifest(copy, answer, envelope)
        elif isinstance(answer, m.LogPiece):
            self._take_log(copy, answer, envelope)
        elif isinstance(answer, m.Done) and isinstance(asked, m.FetchChunk):
            self._take_chunk(copy, asked, envelope)
        else:
            detail = answer.detail if isinstance(answer, m.Refusal) else envelope.detail
            event("copy-refused", vnode=copy.vnode, source=copy.source, detail=detail)
            self._elsewhere(copy)

    def _found_bad(self, copy: Copy, fault: CorruptFile) -> None:
        """The candidate is bad: another one of this source, which is told, or another source."""
        event("copy-bad", vnode=copy.vnode, source=copy.source, fault=fault.message)
        if copy.manifest is None:
            self._elsewhere(copy)
            return
        name = copy.manifest.checkpoint_id
        self._holdings.of(copy.vnode).abandon(name)
        copy.bad.setdefault(copy.source, set()).add(name)
        self._restart(copy)

    def _elsewhere(self, copy: Copy) -> None:
        """Try the next source. After all of them, what was bad may have been replaced."""
        sources = sorted(self._sources[copy.vnode])
        after = [source for source in sources if source > copy.source]
        copy.source = (after or sources)[0]
        self._restart(copy)
        if not after:
            copy.bad.clear()
            copy.not_before = self._job.ports.clock.monotonic() + limits.COPY_ROUND_S

    def _restart(self, copy: Copy) -> None:
        """Begin again with the newest manifest; files that are here stay."""
        copy.manifest, copy.covers, copy.adopted = None, None, False
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
        copy.manifest, copy.covers = manifest, answer.covers
        copy.adopted = any(own.checkpoint_id == manifest.checkpoint_id for own in kept.complete())
        if copy.adopted:
            covers.advance(copy.vnode, manifest.checkpoint_id, answer.covers)
            covers.persist()
            return
        copy.missing = kept.missing(manifest)
        copy.total = sum(entry.size for entry in copy.missing)
        copy.bytes = 0

    def _too_old(self, copy: Copy, covers: BatchTime) -> bool:
        """Whether it is better to wait a moment for a checkpoint as new as the log here, which the
        controller has asked the owner for."""
        if self._job.ports.clock.monotonic() - copy.started >= limits.FRESH_CHECKPOINT_S:
            return False
        return self._job.state.decided is None or covers < self._holdings.log_since(copy.vnode)

    def _ask_chunk(self, copy: Copy, manifest: Manifest, entry: FileEntry) -> None:
        disk = self._job.ports.disk
        have = disk.size(self._holdings.of(copy.vnode).incoming(manifest, entry)) or 0
        chunk = m.FetchChunk(
            header=self._header(),
            vnode=copy.vnode,
            checkpoint=manifest.checkpoint_id,
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
        path = self._holdings.of(copy.vnode).incoming(copy.manifest, entry)
        size = sum(len(part) for part in envelope.payload)
        if size != asked.length:
            raise CorruptFile(
                f"vnode {copy.vnode}, checkpoint {asked.checkpoint}, file {asked.file} at"
                f" {copy.source}: {size} bytes at {asked.offset}, not {asked.length}",
                remedy="another checkpoint or another holder serves",
            )
        disk.append(path, envelope.payload)
        copy.bytes += size
        if (disk.size(path) or 0) >= entry.size:
            copy.missing.pop(0)
        self._go_on(copy)

    def _adopt(self, copy: Copy, manifest: Manifest, covers: BatchTime) -> None:
        copy.asked = True

        def adopted(_: None) -> None:
            copy.asked, copy.adopted = False, True
            self._holdings.covers.advance(copy.vnode, manifest.checkpoint_id, covers)
            self._holdings.covers.persist()
            event("copy-adopted", vnode=copy.vnode, covers=covers, bytes=copy.bytes)

        def failed(fault: Exception) -> None:
            copy.asked = False
            if isinstance(fault, CorruptFile):
                for own in self._holdings.of(copy.vnode).complete():
                    self._upkeep.suspect(copy.vnode, own.checkpoint_id)
                self._found_bad(copy, fault)
            else:
                event("copy-restarted", vnode=copy.vnode, source=copy.source, fault=fault)
                self._restart(copy)

        steps = self._holdings.of(copy.vnode).adopt(manifest)
        self._upkeep.work(steps, adopted, failed, copy.vnode)

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
        copy.bytes += sum(len(part) for part in envelope.payload)
        copy.total = max(copy.total, copy.bytes)
        self._holdings.look_again()
        if self._lacks(copy.vnode):
            self._go_on(copy)
