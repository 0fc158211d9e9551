"""Fetching from another worker what a checkpoint has and this worker lacks.

Files are compared by content hash, so that only what no checkpoint here has is fetched, in chunks
that are asked for one at a time per vnode: the requests under way are the credits (Rhino, section
4.2.2). Then the checkpoint is adopted: linked, hashed, made durable.

Invariants:

1. What was fetched counts only after its hash was checked and it is durable.
2. A transfer that ends early leaves the chunks that came, for the next one of that checkpoint.
3. One that yields goes on while batches follow each other without a gap, only more slowly.
"""

import errno
from collections.abc import Callable
from dataclasses import dataclass

from rhino_agent.job import Job
from rhino_agent.ports import event
from rhino_agent.upkeep import Upkeep
from rhinoctl import limits
from rhinoctl.errors import CorruptFile, RhinoError, WorkerUnreachable
from rhinoctl.ids import Vnode, WorkerId
from rhinoctl.protocol import messages as m
from rhinoctl.protocol.ports import Address, Envelope
from rhinoctl.state.manifests import FileEntry, Manifest


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where a checkpoint is fetched from."""

    worker: WorkerId
    address: str


class Transfer:
    """One checkpoint on its way here; `ended` hears how it ended: None, or why not. One that
    `yields` to batches takes the time between them.

    CorruptFile says that the source's content is not what its manifest promises.
    """

    def __init__(
        self,
        job: Job,
        upkeep: Upkeep,
        source: Source,
        manifest: Manifest,
        ended: Callable[[Exception | None], None],
        *,
        yields: bool = False,
    ) -> None:
        self.source = source
        self.manifest = manifest
        self.vnode: Vnode = manifest.identity.vnode
        self._job = job
        self._upkeep = upkeep
        self._kept = upkeep.holdings.of(self.vnode)
        self._ended = ended
        self._yields_until = self._patience() if yields else None
        self._missing = self._kept.missing(manifest)
        self._asked = False
        self._adopting = False
        self._over = False
        self.bytes = 0
        self.total = sum(entry.size for entry in self._missing)

    def go_on(self) -> None:
        """Ask for the next chunk, or adopt; nothing while something is under way."""
        if self._asked or self._over or self._must_wait():
            return
        if self._yields_until is not None:
            self._yields_until = self._patience()
        if not self._missing:
            self._adopt()
        elif self._job.throttle.may():
            self._ask(self._missing[0])

    def _patience(self) -> float:
        return self._job.ports.clock.monotonic() + limits.YIELD_S

    def _must_wait(self) -> bool:
        until = self._yields_until
        if until is None or not self._job.batch_under_way:
            return False
        return self._job.ports.clock.monotonic() < until

    def cancel(self) -> None:
        """Nothing that comes is taken any more; `ended` is not called. What is being adopted goes
        on to be."""
        if not self._over and not self._adopting:
            self._kept.rest(self.manifest.checkpoint_id)
        self._over = True

    def _end(self, fault: Exception | None) -> None:
        if not self._over:
            self._over = True
            if fault is not None:
                self._kept.rest(self.manifest.checkpoint_id)
            self._ended(fault)

    def _ask(self, entry: FileEntry) -> None:
        have = self._job.ports.disk.size(self._kept.incoming(self.manifest, entry)) or 0
        chunk = m.FetchChunk(
            header=self._job.ports.header(self._job.spec.uid),
            vnode=self.vnode,
            checkpoint=self.manifest.checkpoint_id,
            file=entry.name,
            offset=have,
            length=min(limits.CHUNK_BYTES, entry.size - have),
        )
        self._job.throttle.took(chunk.length)
        self._asked = True

        def answered(envelope: Envelope) -> None:
            self._asked = False
            if self._over:
                return
            try:
                self._take(entry, chunk, envelope)
            except (RhinoError, OSError) as fault:
                self._end(fault)

        self._job.ports.ask(
            Address(self.source.address), chunk, answered, timeout_s=limits.FETCH_TIMEOUT_S
        )

    def _take(self, entry: FileEntry, asked: m.FetchChunk, envelope: Envelope) -> None:
        answer = envelope.message
        if not isinstance(answer, m.Done):
            detail = answer.detail if isinstance(answer, m.Refusal) else envelope.detail
            raise WorkerUnreachable(
                f"{self.source.worker} gives no file of vnode {self.vnode}: {detail}",
                remedy="another source, or another try, serves",
            )
        size = sum(len(part) for part in envelope.payload)
        if size != asked.length:
            raise CorruptFile(
                f"vnode {self.vnode}, checkpoint {asked.checkpoint}, file {asked.file} at"
                f" {self.source.worker}: {size} bytes at {asked.offset}, not {asked.length}",
                remedy="another checkpoint or another holder serves",
            )
        path = self._kept.incoming(self.manifest, entry)
        if self._job.ports.disk.append(path, envelope.payload) != asked.offset:
            self._job.ports.disk.remove(path)
            raise FileNotFoundError(errno.ENOENT, "what had come of it has vanished", path)
        self.bytes += size
        self._job.fetched[self.vnode] += size
        if (self._job.ports.disk.size(path) or 0) >= entry.size:
            self._missing.pop(0)
        self.go_on()

    def _adopt(self) -> None:
        self._asked = self._adopting = True

        def adopted(_: None) -> None:
            self._asked = self._adopting = False
            event("checkpoint-adopted", vnode=self.vnode, of=self.source.worker, bytes=self.bytes)
            self._end(None)
            self._upkeep.suspect_gone(self.vnode)

        def failed(fault: Exception) -> None:
            self._asked = self._adopting = False
            if isinstance(fault, CorruptFile):
                for own in self._kept.complete():
                    self._upkeep.suspect(self.vnode, own.checkpoint_id)
            if self._over:
                self._kept.rest(self.manifest.checkpoint_id)
            self._end(fault)
            self._upkeep.suspect_gone(self.vnode)

        self._upkeep.work(self._kept.adopt(self.manifest), adopted, failed, self.vnode)
