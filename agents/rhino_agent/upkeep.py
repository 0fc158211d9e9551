"""Checkpoints of a job on this worker: taken in turn, kept, and the log trimmed behind them.

Checkpoints are rolling: a few vnodes a batch, in the gap in which Spark stages, so that no batch
waits for all (design, section 5). A vnode that no batch has touched since its newest checkpoint
needs no new one: its coverage moves on.
"""

import math
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from rhino_agent.holdings import Holdings
from rhino_agent.instances import Instance
from rhino_agent.job import Job
from rhino_agent.ports import event
from rhinoctl import limits
from rhinoctl.errors import CorruptFile, RhinoError
from rhinoctl.ids import BASE, KEY_GROUPS, BatchTime, InstanceId, Vnode
from rhinoctl.protocol import messages as m
from rhinoctl.protocol import pacing
from rhinoctl.protocol.pacing import ApplySpeed, Waiting
from rhinoctl.state.checkpoints import Level, VnodeCheckpoints
from rhinoctl.state.hashing import Steps
from rhinoctl.state.manifests import Manifest


@dataclass(frozen=True, slots=True)
class Work:
    """Slices of work on a vnode's checkpoints, and who hears how they ended."""

    vnode: Vnode
    steps: Steps[Any]
    done: Callable[[Any], None]
    failed: Callable[[Exception], None]


LOG = "log"
"""In the place of a checkpoint's id: what was bad is a slice of the log."""


class Bad(NamedTuple):
    """Why a checkpoint was set aside, and what it covered; or a slice, and its batch."""

    fault: str
    covers: BatchTime


class Upkeep:
    """The care for the checkpoints of every vnode here, and the work on them in slices. Copies of
    the `awaited` vnodes come from other workers in the place of what is not whole here."""

    def __init__(self, job: Job, holdings: Holdings) -> None:
        self.holdings = holdings
        self._job = job
        self._due: dict[InstanceId, list[Vnode]] = {}
        self._credit: dict[InstanceId, float] = {}
        self._speed: dict[InstanceId, ApplySpeed] = {}
        self._writing: set[Vnode] = set()
        self._not_before: dict[Vnode, float] = {}
        self._held: set[Vnode] = set()
        self._suspected: set[tuple[Vnode, str]] = set()
        self._bad: dict[tuple[Vnode, str], Bad] = {}
        self._tainted: dict[Vnode, set[tuple[InstanceId, int]]] = {}
        self._opening: set[tuple[Vnode, InstanceId, int]] = set()
        self.found_bad = 0
        self.awaited: frozenset[Vnode] = frozenset()
        self._work: deque[Work] = deque()
        self._released = BASE
        self._since_trim = 0
        self._tidy_at = 0.0
        self._continuity = job.continuity()

    # --- opening ---------------------------------------------------------------------------------

    def base(self, vnode: Vnode) -> tuple[str, BatchTime] | None:
        """See `rhino_agent.feeder.Bases`."""
        base = self.holdings.base(vnode)
        return None if base is None else (self.holdings.directory(base, vnode), base.reach)

    def awaits(self, vnode: Vnode) -> bool:
        """See `rhino_agent.feeder.Bases`."""
        return vnode in self.awaited

    def sound(self, vnode: Vnode) -> bool:
        """See `rhino_agent.feeder.Bases`. A base whose stamps do not prove it is hashed first."""
        base = self.holdings.base(vnode)
        if base is None or base.manifest is None:
            return base is not None
        checkpoint_id = base.manifest.checkpoint_id
        if self.holdings.of(vnode).is_stamped(checkpoint_id):
            return True
        self.suspect(vnode, checkpoint_id)
        return False

    def opening(self, instance: Instance, vnode: Vnode) -> None:
        """An instance is about to open the vnode: its base stays meanwhile."""
        self._tainted.get(vnode, set()).discard((instance.id, instance.incarnation))
        self._opening.add((vnode, instance.id, instance.incarnation))
        base = self.holdings.base(vnode)
        if base is not None:
            until = self._job.ports.clock.monotonic() + limits.COMMAND_DEADLINE_S
            self.holdings.leases.take(vnode, base.name, instance.id, until=until)

    def opened(self, instance: Instance, vnode: Vnode, *, well: bool) -> None:
        """It has. If it could not, the base is looked at: a bad one must not be tried for ever."""
        self.holdings.leases.release(instance.id)
        self._opening = {one for one in self._opening if one[:2] != (vnode, instance.id)}
        if not well:
            base = self.holdings.base(vnode)
            if base is not None and base.manifest is not None:
                self.suspect(vnode, base.manifest.checkpoint_id)

    def suspect(self, vnode: Vnode, checkpoint_id: str) -> None:
        """Somebody found a checkpoint bad: verify it, and set it aside if it is."""
        if (vnode, checkpoint_id) in self._suspected:
            return
        kept, leases = self.holdings.of(vnode), self.holdings.leases
        holder = f"verify {checkpoint_id}"

        def steps() -> Steps[None]:
            if _has(kept, checkpoint_id):
                leases.take(vnode, checkpoint_id, holder, until=math.inf)
                yield from kept.verify(checkpoint_id, Level.HASHES)

        def ended(fault: Exception | None) -> None:
            leases.release(holder)
            self._suspected.discard((vnode, checkpoint_id))
            if isinstance(fault, CorruptFile):
                self.set_aside(kept, checkpoint_id, fault.message)

        self._suspected.add((vnode, checkpoint_id))
        self.work(steps(), ended, ended, vnode)

    def suspect_gone(self, vnode: Vnode) -> None:
        """See, by the names alone, which of the vnode's checkpoints have vanished, in whole or in
        part, and suspect them."""
        for checkpoint_id in self.holdings.of(vnode).gone():
            self.suspect(vnode, checkpoint_id)

    def set_aside(self, kept: VnodeCheckpoints, checkpoint_id: str, fault: str) -> None:
        """A checkpoint is bad: it serves nobody. What has files in common with it is suspected, and
        so are the live databases of its vnode, which link files of it. Of one that has vanished no
        file is known to be bad: only what vanished with it is suspected."""
        vnode = kept.identity.vnode
        bad = next((m for m in kept.complete() if m.checkpoint_id == checkpoint_id), None)
        if bad is None or not self.holdings.has(kept):
            return
        vanished = kept.has_nothing_of(checkpoint_id)
        kept.set_aside(checkpoint_id, fault)
        event("checkpoint-bad", vnode=vnode, checkpoint=checkpoint_id, fault=fault)
        self.found_bad += 1
        self._bad[vnode, checkpoint_id] = Bad(fault, bad.covers)
        for instance, vnodes in self._job.owners_now().items():
            if vnode in vnodes and vnode not in self._due.get(instance, ()):
                self._due.setdefault(instance, []).insert(0, vnode)
        if not vanished:
            self._taint(vnode)
            files = {entry.blake3 for entry in bad.files}
            for other in kept.complete():
                if any(entry.blake3 in files for entry in other.files):
                    self.suspect(vnode, other.checkpoint_id)
        self.suspect_gone(vnode)

    def doubt_log(self, time: BatchTime, vnodes: Iterable[Vnode]) -> None:
        """What the log has of a batch could not be applied or served: read it, and let go of what
        is not what was written. It comes from another full holder. Where there was something, the
        rest of the vnode's log is read, too."""
        for vnode in self._reread(time, frozenset(vnodes)):
            later = [at for at, _ in self._job.log.links(time, self._job.decided_time)]
            self.work(self._read_on(vnode, later), _nothing, _nothing, vnode)

    def _read_on(self, vnode: Vnode, times: list[BatchTime]) -> Steps[None]:
        for time in times:
            self._reread(time, frozenset({vnode}))
            yield 0

    def _reread(self, time: BatchTime, vnodes: frozenset[Vnode]) -> list[Vnode]:
        found = self._job.log.reread(time, vnodes)
        for vnode, fault in found.items():
            event("log-slice-bad", vnode=vnode, batch=time, fault=fault)
            self._bad[vnode, LOG] = Bad(fault, time)
        if found:
            self.holdings.look_again()
        return list(found)

    def bad(self) -> dict[tuple[Vnode, str], str]:
        """Why checkpoints were set aside, or slices of the log let go of, as long as there is no
        good checkpoint that is as new."""
        here = self.holdings.vnodes()
        self._bad = {
            (vnode, name): bad
            for (vnode, name), bad in self._bad.items()
            if vnode in here
            and not any(good.covers >= bad.covers for good in self.holdings.of(vnode).complete())
        }
        return {key: bad.fault for key, bad in self._bad.items()}

    def _taint(self, vnode: Vnode) -> None:
        open_at = (i for i in self._job.instances.values() if vnode in i.applied)
        self._tainted[vnode] = {
            *((instance.id, instance.incarnation) for instance in open_at),
            *((instance, incarnation) for v, instance, incarnation in self._opening if v == vnode),
        }

    def is_tainted(self, instance: Instance, vnode: Vnode) -> bool:
        """See `rhino_agent.feeder.Bases`. Without a sound base, what is open is the best there is;
        what is suspected may turn out to be bad as well."""
        tainted = (instance.id, instance.incarnation) in self._tainted.get(vnode, ())
        if not tainted or self.is_busy(vnode) or self.holdings.base(vnode) is None:
            return False
        return self.sound(vnode)

    # --- taking checkpoints ----------------------------------------------------------------------

    def due(self, instance: Instance) -> tuple[Vnode, ...]:
        """Vnodes of an instance to be checkpointed before its next batch."""
        return tuple(
            vnode
            for vnode in self._due.get(instance.id, ())
            if not self.is_busy(vnode)
            and self._is_new(vnode, instance.applied.get(vnode, BASE))
            and self._job.ports.clock.monotonic() >= self._not_before.get(vnode, 0.0)
        )

    def _is_new(self, vnode: Vnode, covers: BatchTime) -> bool:
        newest = self.holdings.newest(vnode)
        return newest is None or newest.covers < covers

    def begin_checkpoint(self, vnode: Vnode, covers: BatchTime) -> tuple[str, str]:
        """An id and a directory for a new checkpoint. Raises OSError if the disk refuses: the turn
        of the vnode comes again in a while, and batches go on."""
        for queue in self._due.values():
            if vnode in queue:
                queue.remove(vnode)
        checkpoint_id = f"{covers.generation}-{covers.batch}-{self._job.ports.settings.worker}"
        now = self._job.ports.clock.monotonic()
        self._not_before[vnode] = now + limits.CHECKPOINT_PAUSE_S
        directory = self._job.ports.disk.path_of(self.holdings.of(vnode).begin(checkpoint_id))
        del self._not_before[vnode]
        self._writing.add(vnode)
        return checkpoint_id, directory

    def checkpoint_written(
        self, vnode: Vnode, checkpoint_id: str, answer: m.Checkpointed | None
    ) -> None:
        """Hash and publish what RocksDB wrote, in slices between messages."""
        self._writing.discard(vnode)
        if answer is None:
            try:
                self.holdings.of(vnode).abandon(checkpoint_id)
            except OSError as fault:  # what is left is removed by the next `retain`
                event("checkpoint-not-removed", vnode=vnode, fault=fault)
            return
        epoch = self._job.epoch()
        vnodes = self._job.spec.vnodes
        width = KEY_GROUPS // vnodes
        manifest = Manifest(
            identity=self.holdings.identity(vnode),
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
            self.suspect_gone(vnode)

        def failed(fault: Exception) -> None:
            event("checkpoint-failed", vnode=vnode, fault=fault)
            if isinstance(fault, CorruptFile):
                self._taint(vnode)

        self.work(self.holdings.of(vnode).finish(manifest), finished, failed, vnode)

    # --- work in slices --------------------------------------------------------------------------

    def work(
        self,
        steps: Steps[Any],
        done: Callable[[Any], None],
        failed: Callable[[Exception], None],
        vnode: Vnode,
    ) -> None:
        """Take on work on a vnode's checkpoints, to be done in slices by `step`."""
        self._work.append(Work(vnode, steps, done, failed))

    @property
    def has_work(self) -> bool:
        """Whether `step` has something to do."""
        return bool(self._work)

    def is_busy(self, vnode: Vnode) -> bool:
        """Whether somebody works on the vnode's checkpoints, or keeps others from it."""
        return vnode in self._held or self.works_on(vnode)

    def works_on(self, vnode: Vnode) -> bool:
        """Whether somebody works on the vnode's checkpoints."""
        return vnode in self._writing or any(work.vnode == vnode for work in self._work)

    def hold(self, vnode: Vnode) -> None:
        """Nothing new comes to the vnode's checkpoints until `let_go`."""
        self._held.add(vnode)

    def is_held(self, vnode: Vnode) -> bool:
        """Whether nothing may come to the vnode's checkpoints."""
        return vnode in self._held

    def let_go(self, vnode: Vnode) -> None:
        """What comes to the vnode's checkpoints may come again."""
        self._held.discard(vnode)

    def relocated(self, vnode: Vnode) -> None:
        """The vnode's checkpoints are on another disk, or on none any more: what is open of it is
        opened anew."""
        self.holdings.reload(vnode)
        self._taint(vnode)

    def step(self) -> None:
        """Do one slice of the work taken on."""
        if not self._work:
            return
        work = self._work[0]
        try:
            next(work.steps)
        except StopIteration as end:
            self._work.popleft()
            work.done(end.value)
        except (RhinoError, OSError) as fault:
            self._work.popleft()
            work.failed(fault)

    # --- as batches are released -----------------------------------------------------------------

    def tick(self) -> None:
        """Look at what has happened since the last time: coverage, turns, trimming, left-overs."""
        job = self._job
        for record in [r for r in job.forfeits if r.time <= job.decided_time]:
            job.forfeits.remove(record)
            self.holdings.forfeit(record.next_epoch.forfeited, record.time)
        if job.continuity() != self._continuity:
            self._continuity = job.continuity()
            self.holdings.look_again()
        if job.released > self._released:
            self._released = job.released
            self._batch_released()
        self._wished()
        now = job.ports.clock.monotonic()
        if now >= self._tidy_at:
            self._tidy_at = now + limits.TIDY_S
            self.holdings.expire(now)
            self._remove_strangers()
            if job.pressed:
                job.pressed = False
                self.trim()

    def _batch_released(self) -> None:
        job, holdings = self._job, self.holdings
        holdings.note_touched()
        epoch = job.epoch()
        if epoch is not None:
            for vnode in epoch.held_by(job.ports.settings.worker):
                if holdings.base(vnode) is not None:
                    holdings.advance(vnode, job.released)
        for instance, vnodes in job.owners_now().items():
            self._due[instance] = self._turn(instance, vnodes)
        self._since_trim += 1
        if self._since_trim >= limits.TRIM_EVERY_BATCHES:
            self._since_trim = 0
            self.trim()

    def applied(self, instance: Instance, rows: int, seconds: float) -> None:
        """See `rhino_agent.feeder.Bases`."""
        self._speed[instance.id] = self.speed(instance.id).after(rows, seconds)

    def speed(self, instance: InstanceId) -> ApplySpeed:
        """How fast an instance has applied rows."""
        return self._speed.get(instance, ApplySpeed())

    def _turn(self, instance: InstanceId, vnodes: frozenset[Vnode]) -> list[Vnode]:
        """The vnodes whose turn it is: those that are furthest behind, at a pace of one round of
        all in so many batches, and those without which the predicted replay of the rows of all is
        within its target."""
        waiting = {vnode: self._waiting(vnode) for vnode in vnodes if not self.is_busy(vnode)}
        target_s, cost = self._job.ports.settings.replay_target_s, self.speed(instance).cost
        batches = pacing.round_batches(cost, target_s)
        if self._job.log.size() > limits.LOG_BYTES_AIM:
            batches = min(batches, limits.CHECKPOINT_ROUND_BATCHES // limits.CHECKPOINT_HASTE)
        earned = len(vnodes) / batches
        credit = min(self._credit.get(instance, 1.0), 1.0) + earned
        chosen = pacing.by_age(waiting, int(credit))
        self._credit[instance] = credit - len(chosen)
        for vnode in chosen:
            del waiting[vnode]
        most = max(1, len(vnodes) // limits.CHECKPOINT_ROUND_LEAST_BATCHES)
        return chosen + pacing.by_replay(waiting, cost, target_s, most - len(chosen))

    def _waiting(self, vnode: Vnode) -> Waiting:
        holdings, released = self.holdings, self._job.released
        rows, _ = holdings.waiting(vnode)
        reach = holdings.reach(vnode) if holdings.is_stale(vnode) else released
        return Waiting(
            rows=rows,
            batches=pacing.batches_between(reach, released),
            kept=pacing.batches_between(holdings.oldest_reach(vnode), released),
        )

    def _wished(self) -> None:
        """Checkpoints that the controller asks for, because a copy shall start from them."""
        if not self._job.desired.checkpoint:
            return
        for instance, vnodes in self._job.owners_now().items():
            queue = self._due.setdefault(instance, [])
            for vnode in self._job.desired.checkpoint:
                if vnode in vnodes and self.holdings.is_stale(vnode) and vnode not in queue:
                    queue.append(vnode)

    # --- what may go -----------------------------------------------------------------------------

    def _needed(self) -> set[Vnode]:
        """The vnodes whose copies stay: held, about to be followed, or owed an output of."""
        epoch = self._job.epoch()
        held = () if epoch is None else epoch.held_by(self._job.ports.settings.worker)
        warm = {wish.vnode for wish in self._job.desired.warm}
        return {*held, *warm, *(v for duty in self._job.unmade() for v in duty.vnodes)}

    def _remove_strangers(self) -> None:
        """Remove the copies of vnodes that this worker does not hold any more."""
        if not self._job.told or self._job.epoch() is None:
            return
        needed = self._needed()
        for vnode in self.holdings.vnodes():
            if vnode in needed or self.is_busy(vnode) or self.holdings.is_lent(vnode):
                continue
            self.holdings.remove(vnode)
            event("copy-removed", job=self._job.spec.uid, vnode=vnode)

    def trim(self) -> None:
        """Remove from log and disk what no vnode here can need any more (design, section 5).

        On a full disk coverage cannot be made durable: what is durable already decides then, and
        makes room.
        """
        job, holdings = self._job, self.holdings
        if job.epoch() is None or job.state.decided is None:
            return
        try:
            holdings.covers.persist()
        except OSError as fault:
            event("coverage-not-durable", job=job.spec.uid, fault=fault)
        floors = [job.released]
        for vnode in sorted(self._needed()):
            kept = holdings.of(vnode)
            kept.retain(holdings.leases, limits.CHECKPOINTS_RETAINED)
            floors.append(holdings.floor(vnode))
            holdings.covers.forget(vnode, [each.checkpoint_id for each in kept.complete()])
        for instance in job.instances.values():
            floors += instance.applied.values()
        through = min(floors)
        freed = job.trim_log(through)
        if freed:
            event("log-trimmed", job=job.spec.uid, through=through, bytes=freed)


def _has(kept: VnodeCheckpoints, checkpoint_id: str) -> bool:
    return any(each.checkpoint_id == checkpoint_id for each in kept.complete())


def _nothing(_: object) -> None:
    """What was read has been taken note of."""
