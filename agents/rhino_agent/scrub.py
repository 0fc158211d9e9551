"""The scrub: files of retained checkpoints, read again at leisure (docs/protocol/verification.md).

Invariants:

1. It reads no faster than its rate, and at most one slice a turn.
2. A file that is not what its manifest says makes every checkpoint suspected that has it.
3. What a person has asked for is read first, each content once, and told when all is read.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from rhino_agent.job import Job
from rhino_agent.ports import event
from rhino_agent.throttle import Throttle
from rhino_agent.upkeep import Upkeep
from rhinoctl import limits
from rhinoctl.ids import DiskId, Vnode
from rhinoctl.protocol import scrubbing
from rhinoctl.protocol.disks import ScrubView
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


@dataclass(slots=True)
class Asked:
    """What a person wants to have read of a disk: the bytes of each content that is still to be
    read, and what was found."""

    left: dict[Content, int] = field(default_factory=dict)
    total_bytes: int = 0
    files: int = 0
    bad: list[str] = field(default_factory=list)

    @property
    def done_bytes(self) -> int:
        """Bytes read, or found to be there no more."""
        return self.total_bytes - sum(self.left.values())


class Scrub:
    """The scrub of one job on one worker. `bytes` were read since the agent started, and `asked`
    was asked for last, by disk."""

    def __init__(self, job: Job, upkeep: Upkeep) -> None:
        self.bytes = 0
        self.asked: dict[DiskId, Asked] = {}
        self._job = job
        self._upkeep = upkeep
        rate = job.ports.settings.scrub_bytes_s or limits.SCRUB_BYTES_S
        self._throttle = Throttle(job.ports.clock, rate)
        self._read_at: dict[Content, float] = {}
        self._due: list[Content] = []
        self._reading: Reading | None = None
        self._look_at = 0.0

    def step(self) -> None:
        """Read a slice, if it is time to."""
        if self._upkeep.has_work:
            return
        if self._job.ports.settings.scrub_bytes_s:
            self._look()
        while self._reading is None and self._due:
            self._begin(self._due.pop(0))
        if self._reading is not None and self._throttle.may():
            self._go_on(self._reading)

    def ask(self, disk: DiskId, vnodes: Iterable[Vnode]) -> None:
        """A person wants all of some vnodes, which are on a disk, to be read now."""
        sizes = self._sizes(vnodes)
        self.asked[disk] = Asked(left=sizes, total_bytes=sum(sizes.values()))
        self._due = [*sizes, *(content for content in self._due if content not in sizes)]

    def _sizes(self, vnodes: Iterable[Vnode]) -> dict[Content, int]:
        return {
            (vnode, entry.blake3): entry.size
            for vnode in vnodes
            for manifest in self._upkeep.holdings.of(vnode).complete()
            for entry in manifest.files
        }

    def _wanted(self) -> dict[Content, None]:
        """What a person waits for."""
        return dict.fromkeys(content for asked in self.asked.values() for content in asked.left)

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
        wanted, due = self._wanted(), scrubbing.due(self._read_at, wall, limits.SCRUB_EVERY_S)
        self._due = [*wanted, *(content for content in due if content not in wanted)]

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
        if not having:
            self._settle(content, [])
            return
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
            self._ended(reading, "", f"it cannot be read: {fault.strerror or fault}")
        else:
            self.bytes += size
            self._throttle.took(size)

    def _ended(self, reading: Reading, found: str, why: str = "its content has changed") -> None:
        self._reading = None
        vnode, digest = reading.content
        having = self._having(reading.content)
        if found == digest:
            self._read_at[reading.content] = self._job.ports.clock.wall()
            self._settle(reading.content, [], read=True)
        elif any(path == reading.path for _, path in having):
            names = [manifest.checkpoint_id for manifest, _ in having]
            file = reading.path.rpartition("/")[2]
            self._settle(reading.content, [f"{name}, file {file}: {why}" for name in names])
            for name in names:
                self._upkeep.suspect(vnode, name)
        else:
            self._settle(reading.content, [])

    def _settle(self, content: Content, bad: list[str], *, read: bool = False) -> None:
        """A content that a person has asked for was read, or is not there any more."""
        for asked in self.asked.values():
            if content in asked.left:
                del asked.left[content]
                asked.files += read or bool(bad)
                job = self._job.spec.name
                asked.bad += [f"job {job}, vnode {content[0]}, checkpoint {one}" for one in bad]


def told(number: int, parts: Iterable[Asked]) -> ScrubView:
    """What was found of a disk, over all jobs."""
    every = list(parts)
    return ScrubView(
        number=number,
        done_bytes=sum(one.done_bytes for one in every),
        total_bytes=sum(one.total_bytes for one in every),
        files=sum(one.files for one in every),
        over=not any(one.left for one in every),
        bad=tuple(line for one in every for line in one.bad)[: limits.SCRUB_LINES_MAX],
    )
