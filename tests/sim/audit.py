"""What lies on the disks of a cluster, read without the product: checkpoints, logs, left-overs.

What a checkpoint should have in it is worked out from the inputs; which batches a log should have,
from the inputs and the decided records that went over the wire.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass

import blake3

from rhinoctl.ids import BASE, BatchTime, Vnode, WorkerId
from rhinoctl.protocol.epochs import Epoch
from rhinoctl.state.spread import SpreadDisk
from tests.fakes.cluster.invariants import require
from tests.fakes.disk import FakeDisk
from tests.fakes.store import FakeStore
from tests.fakes.world_input import Totals, vnode_of
from tests.fakes.world_store import entries_of
from tests.fakes.world_windows import WindowedWorkload
from tests.sim.checkers import Watching
from tests.sim.cluster import SimWorld
from tests.sim.plan import VNODES

Touched = dict[Vnode, BatchTime]
"""The last batch that touched each vnode."""

MANIFEST = "manifest.json"
NEEDLESS = re.compile(r"batch \d+: (refused|behind|stale_epoch): ")
"""How a query says that it has ended because a worker would not do something."""

SEGMENT = re.compile(r"(\d+)-(-?\d+)-(\d+)-(\d+)\.(\d+)(?:\+\d+)?\.seg")


@dataclass(frozen=True)
class Image:
    """A complete checkpoint as its manifest describes it. `spoilt`: a file of it has rotted."""

    worker: WorkerId
    vnode: Vnode
    path: str
    last_batch: BatchTime
    covers: BatchTime
    spoilt: bool


class Audit:
    """Looks at all disks of a world."""

    def __init__(self, world: SimWorld, watching: Watching, rotten: set[tuple[str, int]]) -> None:
        self._world = world
        self._watching = watching
        self._rotten = rotten
        self._seen: set[tuple[str, str, int]] = set()
        self._rotted: dict[tuple[WorkerId, Vnode], BatchTime] = {}
        self._windows = isinstance(world.workload, WindowedWorkload)

    def look(self) -> None:
        """At any time: the log goes on from each checkpoint (invariant 5), no refusal has ended a
        query (6), files are what their manifests say (8), and what is complete is so (7)."""
        if not self._watching.watchful:
            return
        self._watching.check_complete()
        self._check_queries()
        epoch = self._epoch()
        images = list(self._images())
        for image in images:
            self._check_files(image)
        if epoch is None:
            return
        for worker in sorted(w for w in epoch.voters() if not self._watching.was_left_out(w)):
            for vnode in epoch.fully_held_by(worker):
                mine = [one for one in images if (one.worker, one.vnode) == (worker, vnode)]
                self._check_log(worker, vnode, mine)

    def end(self) -> None:
        """When all is quiet and committed: checkpoints are the state that they claim to be (3), and
        nothing undecided is left (13)."""
        self.look()
        if not self._watching.watchful:
            return
        self._check_images()
        for worker, host in self._world.hosts.items():
            if host.agent is not None:
                self._check_left_over(worker)

    # --- reading ---------------------------------------------------------------------------------

    def _epoch(self) -> Epoch | None:
        decided = self._watching.decided
        return decided[-1].next_epoch if decided else None

    def _root(self) -> str:
        return f"jobs/{self._world.uid()}"

    def _disk(self, worker: WorkerId) -> FakeDisk | SpreadDisk:
        host = self._world.hosts[worker]
        return host.whole() if host.further else host.disk

    def _images(self) -> Iterator[Image]:
        for worker in self._world.hosts:
            disk = self._disk(worker)
            for vnode in disk.list(f"{self._root()}/ckpt"):
                under = f"{self._root()}/ckpt/{vnode}"
                for name in disk.list(under):
                    if "." not in name:
                        yield self._image(worker, Vnode(int(vnode)), f"{under}/{name}")

    def _image(self, worker: WorkerId, vnode: Vnode, path: str) -> Image:
        disk = self._disk(worker)
        inodes = {disk.stamp(f"{path}/{name}") for name in disk.list(path)}
        spoilt = any(s is not None and (str(worker), s.inode) in self._rotten for s in inodes)
        require(disk.size(f"{path}/{MANIFEST}") is not None, 8, f"{worker}: {path}: no manifest")
        if spoilt:
            return Image(worker, vnode, path, BASE, BASE, spoilt=True)
        body = json.loads(bytes(disk.read(f"{path}/{MANIFEST}")))["body"]
        last_batch, covers = BatchTime(*body["last_batch"]), BatchTime(*body["covers"])
        return Image(worker, vnode, path, last_batch, covers, spoilt=False)

    # --- 6: queries ------------------------------------------------------------------------------

    def _check_queries(self) -> None:
        """What one worker cannot do is waited for, or another does it, if all disks are well."""
        for query in () if self._world.mishaps_expected else self._world.queries:
            for failure in query.failures:
                require(not NEEDLESS.match(failure), 6, f"{query.name} has ended: {failure}")

    # --- 8: files --------------------------------------------------------------------------------

    def _check_files(self, image: Image) -> None:
        """A file of a checkpoint is never changed or deleted while the checkpoint is there."""
        if image.spoilt:
            return
        disk = self._disk(image.worker)
        body = json.loads(bytes(disk.read(f"{image.path}/{MANIFEST}")))["body"]
        for entry in body["files"]:
            path = f"{image.path}/{entry['name']}"
            stamp = disk.stamp(path)
            require(stamp is not None, 8, f"{image.worker}: {path} is gone")
            assert stamp is not None
            key = (str(image.worker), entry["blake3"], stamp.inode)
            if key not in self._seen:
                found = blake3.blake3(bytes(disk.read(path))).hexdigest()
                require(found == entry["blake3"], 8, f"{image.worker}: {path} is another one")
                self._seen.add(key)

    # --- 5: the log ------------------------------------------------------------------------------

    def _check_log(self, worker: WorkerId, vnode: Vnode, images: list[Image]) -> None:
        """From the newest checkpoint on each decided batch with rows of the vnode is in the log;
        and from the one before, so that it can serve when the newest is bad. An older one is kept
        for a transfer at most, and one from before the worker was full was perhaps its base. Nor
        does one count from before the last moment at which one was seen to have rotted: when that
        is set aside, an older one, without a log, takes its place in the row. What was on a disk
        that is gone counts as rotten: it may be back one day, behind the log. A segment that has
        rotted is not missed."""
        unplugged = any(disk.gone for disk in self._world.hosts[worker].further.values())
        if any(image.spoilt for image in images) or (unplugged and not images):
            self._rotted[worker, vnode] = self._watching.decided[-1].time
        rotted = self._rotted.get((worker, vnode), BASE)
        since = max(self._full_since(worker, vnode), rotted)
        newest, *older = sorted((image.covers for image in images), reverse=True) or [BASE]
        if newest < rotted:
            return
        oldest = min([newest, *(covers for covers in older[:1] if covers >= since)])
        names = self._disk(worker).list(f"{self._root()}/log")
        names += [name for who, name in self._world.rotten_log if who == worker]
        there = {BatchTime(int(p[1]), int(p[2])) for p in map(SEGMENT.fullmatch, names) if p}
        for record in self._watching.decided:
            if record.is_batch and record.time > oldest and record.rows.get(vnode, 0):
                says = f"{worker} lacks batch {record.time} of vnode {vnode}, goes on from {oldest}"
                require(record.time in there, 5, says)

    def _full_since(self, worker: WorkerId, vnode: Vnode) -> BatchTime:
        """The batch from which on the worker has had to have all of the vnode."""
        since = BASE
        for record in self._watching.decided:
            if worker not in record.next_epoch.full_holders(vnode):
                since = record.time
        return since

    # --- 3: checkpoints --------------------------------------------------------------------------

    def _check_images(self) -> None:
        """The tables of each checkpoint are what the inputs up to it make of the vnode, and its
        last batch is the last that had rows for it (for windows: that rows or time touched it)."""
        images = [image for image in self._images() if not image.spoilt]
        history = self._history({image.covers for image in images})
        for image in images:
            where = f"{image.worker}: {image.path}, which covers {image.covers}"
            totals, touched = history[image.covers]
            mine = {k: v for k, v in totals.items() if _vnode(k) == image.vnode}
            require(self._state_in(image) == mine, 3, f"{where}, is not the state as of then")
            if not self._windows:
                last = touched.get(image.vnode, BASE)
                require(image.last_batch == last, 3, f"{where}, says {image.last_batch}, is {last}")

    def _history(self, moments: set[BatchTime]) -> dict[BatchTime, tuple[Totals, Touched]]:
        """What the inputs up to each of these batches come to, and what they touched last."""
        expected = self._world.workload.expected()
        touched: Touched = {}
        inputs = self._world.inputs()
        found: dict[BatchTime, tuple[Totals, Touched]] = {}
        for time in sorted({*inputs, *moments}):
            rows = inputs.get(time, [])
            if time in inputs:
                expected.take(time, rows)
            touched |= {vnode_of(key, VNODES): time for key, _ in rows}
            if time in moments:
                found[time] = (dict(expected.totals), dict(touched))
        return found

    def _state_in(self, image: Image) -> Totals:
        disk, store = self._disk(image.worker), FakeStore()
        for name in disk.list(image.path):
            if name.endswith(".sst"):
                store.write(entries_of(bytes(disk.read(f"{image.path}/{name}"))))
        found: Totals = {}
        for piece in self._world.workload.bound().scan(store):
            found |= self._world.workload.totals(piece)
        return found

    # --- 13: left-overs --------------------------------------------------------------------------

    def _check_left_over(self, worker: WorkerId) -> None:
        """A worker that the job has gone on without keeps what it had, until it is told to drop it
        or is taken in again: it has not heard of what was decided since, nor of what was decided
        with the cut that has given it up."""
        disk, watching = self._disk(worker), self._watching
        attempts = {(*r.position, *r.attempt) for r in watching.decided}
        heard = watching.heard_by(worker)
        newest = max(((*r.position, *r.attempt) for r in heard), default=())
        for name in disk.list(f"{self._root()}/log"):
            parts = SEGMENT.fullmatch(name)
            require(parts is not None, 13, f"{worker} has {name} in its log")
            assert parts is not None
            key = tuple(int(p) for p in parts.groups())
            require(key in attempts or key > newest, 13, f"{worker} has kept {name}")


def _vnode(name: str) -> Vnode:
    """Where a key lives, or a key in a window."""
    return vnode_of(name.rpartition("/")[2], VNODES)
