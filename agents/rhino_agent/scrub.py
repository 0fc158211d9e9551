"""The scrub: files of retained checkpoints, read again at leisure (docs/protocol/verification.md).

Invariants:

1. It reads no faster than its rate, and at most one slice a turn.
2. A file that is not what its manifest says makes every checkpoint suspected that has it.
"""

from dataclasses import dataclass

from rhino_agent.job import Job
from rhino_agent.ports import event
from rhino_agent.throttle import Throttle
from rhino_agent.upkeep import Upkeep
from rhinoctl import limits
from rhinoctl.ids import Vnode
from rhinoctl.protocol import scrubbing
from rhinoctl.state.hashing import Steps, hash_file
from rhinoctl.state.manifests import Manifest

Content = tuple[Vnode, str]
"""What is read once, however many checkpoints link it: a vnode's file, by its hash."""


@dataclass(slots=True)
class Reading:
    """A file that is being read."""

    content: Content
    path: str
    steps: Steps[str]


class Scrub:
    """The scrub of one job on one worker. `bytes` were read since the agent started."""

    def __init__(self, job: Job, upkeep: Upkeep) -> None:
        self.bytes = 0
        self._job = job
        self._upkeep = upkeep
        self._throttle = Throttle(job.ports.clock, job.ports.settings.scrub_bytes_s)
        self._read_at: dict[Content, float] = {}
        self._due: list[Content] = []
        self._reading: Reading | None = None
        self._look_at = 0.0

    def step(self) -> None:
        """Read a slice, if it is time to."""
        if not self._job.ports.settings.scrub_bytes_s or self._upkeep.has_work:
            return
        self._look()
        while self._reading is None and self._due:
            self._begin(self._due.pop(0))
        if self._reading is not None and self._throttle.may():
            self._go_on(self._reading)

    def was_read(self, manifest: Manifest) -> None:
        """Somebody else has read all files of a checkpoint, and they are as they should be."""
        now = self._job.ports.clock.wall()
        vnode = manifest.identity.vnode
        self._read_at |= {(vnode, entry.blake3): now for entry in manifest.files}

    def _look(self) -> None:
        """See every now and then which files there are, and which are due."""
        now = self._job.ports.clock.monotonic()
        if now < self._look_at:
            return
        self._look_at = now + limits.SCRUB_LOOK_S
        wall, here = self._job.ports.clock.wall(), self._job.ports.settings.worker
        known, self._read_at = self._read_at, {}
        for vnode in self._upkeep.holdings.vnodes():
            for manifest in self._upkeep.holdings.of(vnode).complete():
                for entry in manifest.files:
                    key, name = (vnode, entry.blake3), f"{here}/{entry.blake3}"
                    at = known.get(key)
                    if at is None:
                        at = scrubbing.assumed(name, wall, limits.SCRUB_EVERY_S)
                    self._read_at[key] = at
        self._due = scrubbing.due(self._read_at, wall, limits.SCRUB_EVERY_S)

    def _having(self, content: Content) -> list[tuple[Manifest, str]]:
        """The checkpoints that have a content, and their files with it."""
        vnode, digest = content
        if vnode not in self._upkeep.holdings.vnodes():
            return []
        kept = self._upkeep.holdings.of(vnode)
        return [
            (manifest, f"{kept.path_of(manifest.checkpoint_id)}/{entry.name}")
            for manifest in kept.complete()
            for entry in manifest.files
            if entry.blake3 == digest
        ]

    def _begin(self, content: Content) -> None:
        if self._reading is not None and self._reading.content == content:
            return
        having = self._having(content)
        if having:
            path = having[0][1]
            steps = hash_file(self._job.ports.disk, path)
            self._reading = Reading(content=content, path=path, steps=steps)

    def _go_on(self, reading: Reading) -> None:
        try:
            size = next(reading.steps)
        except StopIteration as end:
            self._ended(reading, str(end.value))
        except OSError as fault:
            event("scrub-failed", path=reading.path, fault=fault)
            self._ended(reading, "")
        else:
            self.bytes += size
            self._throttle.took(size)

    def _ended(self, reading: Reading, found: str) -> None:
        self._reading = None
        vnode, digest = reading.content
        having = self._having(reading.content)
        if found == digest:
            self._read_at[reading.content] = self._job.ports.clock.wall()
        elif any(path == reading.path for _, path in having):
            for manifest, _ in having:
                self._upkeep.suspect(vnode, manifest.checkpoint_id)
