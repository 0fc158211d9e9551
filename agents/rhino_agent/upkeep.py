"""Checkpoints of a job on this worker: taken in turn, kept, and the log trimmed behind them.

Checkpoints are rolling: a few vnodes a batch, in the gap in which Spark stages, so that no batch
waits for all (design, section 5). A vnode that no batch has touched since its newest checkpoint
needs no new one: its coverage moves on.
"""

from collections import deque
from collections.abc import Callable
from typing import Any

from rhino_agent.instances import Instance
from rhino_agent.job import Job
from rhino_agent.ports import event
from rhinoctl import limits
from rhinoctl.errors import RhinoError
from rhinoctl.ids import BASE, KEY_GROUPS, BatchTime, InstanceId, Vnode
from rhinoctl.protocol import messages as m
from rhinoctl.state.checkpoints import VnodeCheckpoints
from rhinoctl.state.covers import BASE_ID, Covers
from rhinoctl.state.disk import StampingDisk
from rhinoctl.state.hashing import Steps
from rhinoctl.state.leases import Leases
from rhinoctl.state.manifests import Identity, Manifest


class Upkeep:
    """The checkpoints of every vnode here, and the work on them in slices."""

    def __init__(self, job: Job, disk: StampingDisk) -> None:
        self._job = job
        self._disk = disk
        self._kept: dict[Vnode, VnodeCheckpoints] = {}
        self._touched: dict[Vnode, BatchTime] = {}
        self._due: dict[InstanceId, list[Vnode]] = {}
        self._busy: set[Vnode] = set()
        self._tasks: deque[tuple[Steps[Any], Callable[[Any], None], str]] = deque()
        self._released = BASE
        self._noted = BASE
        self._whole: dict[Vnode, tuple[str, BatchTime]] = {}
        self._since_trim = 0
        self._continuity = job.continuity()
        self.covers = Covers(disk, f"{job.root}/covers.json")
        self.leases = Leases()
        for name in disk.list(f"{job.root}/ckpt"):
            self.of(Vnode(int(name)))
        self._note_touched()

    def of(self, vnode: Vnode) -> VnodeCheckpoints:
        """What is kept of a vnode here."""
        if vnode not in self._kept:
            self._kept[vnode] = VnodeCheckpoints(
                self._disk, f"{self._job.root}/ckpt/{vnode}", self._identity(vnode)
            )
        return self._kept[vnode]

    def newest(self, vnode: Vnode) -> Manifest | None:
        """The newest complete checkpoint of a vnode, or None."""
        return next(iter(self.of(vnode).complete()), None)

    def reach(self, vnode: Vnode) -> BatchTime:
        """What the newest checkpoint of a vnode covers, or the empty one."""
        manifest = self.newest(vnode)
        return self.covers.of_base(vnode) if manifest is None else self.covers.of(manifest)

    def _identity(self, vnode: Vnode) -> Identity:
        spec = self._job.spec
        return Identity(
            cluster=self._job.ports.settings.cluster,
            job=spec.uid,
            operator=spec.operator.name,
            vnode=vnode,
        )

    # --- where vnodes can be opened from ---------------------------------------------------------

    def base(self, vnode: Vnode) -> tuple[str, BatchTime] | None:
        """The newest checkpoint from which the log goes on without a gap; None if there is none."""
        known = self._whole.get(vnode)
        manifest = self.newest(vnode)
        directory = ""
        if manifest is not None:
            directory = self._disk.path_of(self.of(vnode).path_of(manifest.checkpoint_id))
        reach = self.reach(vnode)
        if known is not None and known[0] == directory:
            return directory, reach
        if not self.log_continues(vnode, reach):
            return None
        self._whole[vnode] = (directory, reach)
        return directory, reach

    def log_continues(self, vnode: Vnode, since: BatchTime) -> bool:
        """Whether the log has all of a vnode from the batch after `since` to the newest decided.

        A worker that knows of no decided record knows nothing of what it lacks.
        """
        if self._job.state.decided is None:
            return False
        at = since
        for time in self._job.log.batches(since, self._job.decided_time):
            if not at.precedes(time) or not self._job.log.has(time, vnode):
                return False
            at = time
        return at >= self._job.decided_time

    def log_from(self, vnode: Vnode) -> BatchTime | None:
        """The first batch of the contiguous log of a vnode that ends at the newest decided."""
        start: BatchTime | None = None
        for time in reversed(self._job.log.batches(BASE, self._job.decided_time)):
            gap = start is not None and not time.precedes(start)
            if gap or not self._job.log.has(time, vnode):
                break
            start = time
        return start

    def forget_whole(self) -> None:
        """The log may have a gap, or pieces were added: look again."""
        self._whole.clear()

    # --- taking checkpoints ----------------------------------------------------------------------

    def due(self, instance: Instance) -> tuple[Vnode, ...]:
        """Vnodes of an instance to be checkpointed before its next batch."""
        return tuple(
            vnode
            for vnode in self._due.get(instance.id, ())
            if vnode not in self._busy and self._is_new(vnode, instance.applied.get(vnode, BASE))
        )

    def _is_new(self, vnode: Vnode, covers: BatchTime) -> bool:
        newest = self.newest(vnode)
        return newest is None or newest.covers < covers

    def begin_checkpoint(self, vnode: Vnode, covers: BatchTime) -> tuple[str, str]:
        """An id and a directory for a new checkpoint."""
        self._busy.add(vnode)
        for queue in self._due.values():
            if vnode in queue:
                queue.remove(vnode)
        checkpoint_id = f"{covers.generation}-{covers.batch}-{self._job.ports.settings.worker}"
        return checkpoint_id, self._disk.path_of(self.of(vnode).begin(checkpoint_id))

    def checkpoint_written(
        self, vnode: Vnode, checkpoint_id: str, answer: m.Checkpointed | None
    ) -> None:
        """Hash and publish what RocksDB wrote, in slices between messages."""
        if answer is None:
            self.of(vnode).abandon(checkpoint_id)
            self._busy.discard(vnode)
            return
        epoch = self._job.epoch()
        vnodes = self._job.spec.vnodes
        width = KEY_GROUPS // vnodes
        manifest = Manifest(
            identity=self._identity(vnode),
            operator_version=self._job.spec.operator.digest,
            vnodes=vnodes,
            checkpoint_id=checkpoint_id,
            last_batch=answer.last_batch,
            covers=answer.covers,
            epoch=epoch.number if epoch is not None else 0,
            parallelism=len(epoch.instances) if epoch is not None else 1,
            ranges=((vnode * width, (vnode + 1) * width),),
        )

        def finished(whole: Manifest) -> None:
            event("checkpoint", vnode=vnode, covers=whole.covers, bytes=whole.total_bytes)

        self.work(self.of(vnode).finish(manifest), finished, vnode)

    def work(self, steps: Steps[Any], done: Callable[[Any], None], vnode: Vnode) -> None:
        """Take on work on a vnode's checkpoints, to be done in slices by `step`."""
        self._busy.add(vnode)

        def ended(result: Any) -> None:
            self._busy.discard(vnode)
            self.forget_whole()
            done(result)

        self._tasks.append((steps, ended, f"vnode {vnode}"))

    @property
    def has_work(self) -> bool:
        """Whether `step` has something to do."""
        return bool(self._tasks)

    def step(self) -> None:
        """Do one slice of the work taken on. What fails is given up and said."""
        if not self._tasks:
            return
        steps, done, what = self._tasks[0]
        try:
            next(steps)
        except StopIteration as end:
            self._tasks.popleft()
            done(end.value)
        except (RhinoError, OSError) as fault:
            self._tasks.popleft()
            event("checkpoint-failed", what=what, fault=fault)
            self._busy.discard(Vnode(int(what.removeprefix("vnode "))))

    # --- as batches are released -----------------------------------------------------------------

    def tick(self) -> None:
        """Look at what was released since the last time: coverage, turns, trimming."""
        job = self._job
        if job.continuity() != self._continuity:
            self._continuity = job.continuity()
            self.forget_whole()
        self._note_touched()
        self._wished()
        if job.released <= self._released:
            return
        self._released = job.released
        for vnode in self._kept_whole():
            manifest = self.newest(vnode)
            last = BASE if manifest is None else manifest.last_batch
            if self._touched.get(vnode, BASE) <= last:
                name = BASE_ID if manifest is None else manifest.checkpoint_id
                self.covers.advance(vnode, name, job.released)
        for instance, vnodes in job.owners_now().items():
            self._due[instance] = self._turn(vnodes)
        self._since_trim += 1
        if self._since_trim >= limits.TRIM_EVERY_BATCHES:
            self._since_trim = 0
            self.trim()

    def _note_touched(self) -> None:
        """Which vnodes the released batches have touched."""
        for time in self._job.log.batches(self._noted, self._job.released):
            record = self._job.log.record(time)
            for vnode, rows in record.rows.items() if record is not None else ():
                if rows:
                    self._touched[vnode] = time
            self._noted = time

    def _kept_whole(self) -> list[Vnode]:
        epoch = self._job.epoch()
        if epoch is None:
            return []
        held = epoch.held_by(self._job.ports.settings.worker)
        return [vnode for vnode in held if self.base(vnode) is not None]

    def _turn(self, vnodes: frozenset[Vnode]) -> list[Vnode]:
        """The vnodes whose turn it is: those that hold the log up most."""
        share = -(-len(vnodes) // limits.CHECKPOINT_ROUND_BATCHES)
        if self._job.log.size() > limits.LOG_BYTES_AIM:
            share *= 8
        floors = {vnode: self._floor(vnode) for vnode in vnodes}
        behind = [v for v in vnodes if self._is_stale(v) or self._holds_up(floors[v])]
        return sorted(behind, key=lambda v: (floors[v], v))[:share]

    def _is_stale(self, vnode: Vnode) -> bool:
        """Whether a batch has touched the vnode since its newest checkpoint."""
        return self._touched.get(vnode, BASE) > self.reach(vnode)

    def _holds_up(self, floor: BatchTime) -> bool:
        """Whether the log is kept long for the older of two checkpoints, though nothing changes."""
        released = self._job.released
        if released.generation != floor.generation:
            return True
        return released.batch - floor.batch > 2 * limits.CHECKPOINT_ROUND_BATCHES

    def _floor(self, vnode: Vnode) -> BatchTime:
        """The last batch that may leave the log as far as a vnode goes."""
        complete = self.of(vnode).complete()
        here = self._job.ports.settings.worker
        foreign = len(complete) == 1 and not complete[0].checkpoint_id.endswith(f"-{here}")
        keep = 1 if foreign else limits.CHECKPOINTS_RETAINED
        return self.covers.floor(vnode, complete, keep=keep)

    def _wished(self) -> None:
        """Checkpoints that the controller asks for, because a copy shall start from them."""
        for instance, vnodes in self._job.owners_now().items():
            queue = self._due.setdefault(instance, [])
            for vnode in self._job.desired.checkpoint:
                if vnode in vnodes and self._is_stale(vnode) and vnode not in queue:
                    queue.append(vnode)

    def trim(self) -> None:
        """Remove from log and disk what no vnode here can need any more (design, section 5)."""
        job = self._job
        epoch = job.epoch()
        if epoch is None or job.state.decided is None:
            return
        here = job.ports.settings.worker
        warm = {wish.vnode for wish in job.desired.warm}
        held = set(epoch.held_by(here)) | warm | {v for vs in job.unmade().values() for v in vs}
        self.covers.persist()
        self.leases.expire(job.ports.clock.monotonic())
        for vnode in [v for v in self._kept if v not in held and v not in self._busy]:
            del self._kept[vnode]
            self._disk.remove(f"{job.root}/ckpt/{vnode}")
        floors = []
        for vnode in sorted(held):
            kept = self.of(vnode)
            kept.retain(self.leases, limits.CHECKPOINTS_RETAINED)
            floors.append(self._floor(vnode))
            self.covers.forget(vnode, [each.checkpoint_id for each in kept.complete()])
        floor = min([*floors, job.released])
        freed = job.log.trim(
            BatchTime(floor.generation, floor.batch + 1), job.state.decided.position
        )
        if freed:
            event("log-trimmed", job=job.spec.uid, through=floor, bytes=freed)
