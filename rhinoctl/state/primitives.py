"""State management primitives (SEEP, sections 3.2 and 3.3) over what a worker keeps.

SEEP divides the state of an operator, and so do we:

- *processing state* θ: one store per vnode;
- its *timestamp* τ: the last batch that is in it, what a checkpoint covers;
- *buffer state* β: the slices after τ. SEEP keeps them upstream, here they are in the worker log;
- *routing state*: which instance owns which vnode, the routes of an epoch.

Keys are split into vnodes once, and each vnode has files of its own. So to partition and to merge
rewrites nothing: it is to say who owns which vnode from the next epoch on.

Invariants (numbers of the design, section 10):

5. A restored store is a complete, verified checkpoint, and β is whole from its τ on, or it is
   refused. What is trimmed from β is in the older of the checkpoints that are retained, too.
9. What does not match its hash is never served: it is set aside and the next older one is used.

Work on files comes in slices (`Steps`); `hashing.finish` does it at once.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from rhinoctl.errors import CorruptFile, NoCopy
from rhinoctl.ids import BatchTime, InstanceId, Vnode
from rhinoctl.protocol.epochs import Epoch
from rhinoctl.protocol.ports import Store
from rhinoctl.protocol.records import DecisionRecord, Position
from rhinoctl.state.checkpoints import KEEP, Level, VnodeCheckpoints
from rhinoctl.state.covers import Covers
from rhinoctl.state.hashing import SLICE_BYTES, Steps
from rhinoctl.state.log import WorkerLog
from rhinoctl.state.manifests import FileEntry, Manifest

__all__ = [
    "BufferState",
    "backup_state",
    "buffer_state",
    "checkpoint_state",
    "merge_state",
    "partition_buffer_state",
    "partition_state",
    "replay_buffer_state",
    "restore_state",
    "trim_buffer_state",
]

S = TypeVar("S", bound=Store)


@dataclass(frozen=True, slots=True, kw_only=True)
class BufferState:
    """β of some vnodes: for each, the batches after its τ up to and with `through`. It says where
    the slices are; they stay in the log until `trim_buffer_state`."""

    after: Mapping[Vnode, BatchTime]
    through: BatchTime


# --- processing state ----------------------------------------------------------------------------


def checkpoint_state(store: Store, kept: VnodeCheckpoints, draft: Manifest) -> Steps[Manifest]:
    """Take a checkpoint of a vnode's live store (SEEP, 3.2, *checkpoint-state*): θ and τ.

    `draft` is the manifest without files; its `covers` is τ, the last batch that was written to the
    store. The store goes on meanwhile, and only files that are new are hashed. Raises
    FileExistsError if the id is taken; what fails leaves nothing behind.
    """
    making = kept.begin(draft.checkpoint_id)
    try:
        store.checkpoint(kept.disk.path_of(making))
    except BaseException:
        kept.abandon(draft.checkpoint_id)
        raise
    whole: Manifest = yield from kept.finish(draft)
    return whole


def backup_state(
    manifest: Manifest, source: VnodeCheckpoints, target: VnodeCheckpoints
) -> Steps[int]:
    """Copy a checkpoint to another disk (SEEP, 3.2, *backup-state*); returns the bytes copied.

    Files whose content the target has, in whatever checkpoint, are linked there; what comes is
    verified and durable before the checkpoint is listed. A backup that was interrupted goes on
    where it stood, and one that is there already costs nothing. Raises CorruptFile if the source
    has other content than the manifest says.
    """
    if any(own.checkpoint_id == manifest.checkpoint_id for own in target.complete()):
        return 0
    copied = 0
    for entry in target.missing(manifest):
        copied += yield from _copy(manifest, entry, source, target)
    yield from target.adopt(manifest)
    return copied


def _copy(
    manifest: Manifest, entry: FileEntry, source: VnodeCheckpoints, target: VnodeCheckpoints
) -> Steps[int]:
    """Append what has not arrived of one file; returns the bytes appended."""
    path = f"{source.path_of(manifest.checkpoint_id)}/{entry.name}"
    incoming = target.incoming(manifest, entry)
    begun = at = target.disk.size(incoming) or 0
    while True:
        chunk = source.disk.read(path, at, min(SLICE_BYTES, entry.size - at))
        target.disk.append(incoming, [chunk])
        at += len(chunk)
        yield len(chunk)
        if at >= entry.size:
            return at - begun
        if not chunk:
            raise CorruptFile(
                f"{path} has {at} bytes, not {entry.size}",
                remedy="set the checkpoint aside; an older one or another worker's copy serves",
            )


def restore_state(
    kept: VnodeCheckpoints,
    covers: Covers,
    open_store: Callable[[str | None], S],
    *,
    level: Level = Level.HASHES,
) -> Steps[tuple[S, BatchTime]]:
    """A live store from the newest good checkpoint, and its τ (SEEP, 3.2, *restore-state*).

    `open_store` gets the checkpoint's directory, to be linked from and never opened in place, as
    ``RocksStores.open(live, base=…)`` does. A checkpoint that is bad is set aside, and the next
    older one is used; after the last one the empty one, which `open_store` is told by None. Whether
    the log goes on from τ is for `buffer_state` to say.
    """
    for manifest in kept.complete():
        checkpoint_id = manifest.checkpoint_id
        try:
            yield from kept.verify(checkpoint_id, level)
            store = open_store(kept.disk.path_of(kept.path_of(checkpoint_id)))
        except CorruptFile as fault:
            kept.set_aside(checkpoint_id, fault.message)
        else:
            return store, covers.of(manifest)
    return open_store(None), covers.of_base(kept.identity.vnode)


# --- buffer state --------------------------------------------------------------------------------


def buffer_state(
    log: WorkerLog, after: Mapping[Vnode, BatchTime], through: BatchTime
) -> BufferState:
    """β of vnodes whose τ are given, up to a decided batch (SEEP, 3.1).

    Raises NoCopy, naming the vnode, if the log does not have all of it: a store that was restored
    to such a τ cannot be brought up to date here.
    """
    for vnode, since in sorted(after.items()):
        reached = log.reach(vnode, since, through)
        if reached < through:
            raise NoCopy(
                f"the log has vnode {vnode} up to batch {reached} only, from {since} to {through}",
                remedy="restore it from another holder of the vnode",
            )
    return BufferState(after=dict(after), through=through)


def replay_buffer_state(
    log: WorkerLog, buffer: BufferState
) -> Iterator[tuple[DecisionRecord, list[tuple[Vnode, memoryview]]]]:
    """Batch by batch what is to be applied again (SEEP, Algorithm 1, *replay-buffer-state*).

    A batch comes with its record, which has the watermarks, and the slices of the vnodes that lack
    it, by channel; it may have none. Raises CorruptFile for a slice that does not match its
    checksum.
    """
    first = min(buffer.after.values(), default=buffer.through)
    for time, _ in log.links(first, buffer.through):
        vnodes = frozenset(vnode for vnode, since in buffer.after.items() if since < time)
        slices = [
            (place.vnode, log.read(path, place))
            for path, _, places in log.places(time, vnodes)
            for place in places
        ]
        yield log.record_for(time, vnodes), slices


def trim_buffer_state(
    log: WorkerLog,
    covers: Covers,
    copies: Iterable[VnodeCheckpoints],
    newest: Position,
    *,
    keep: int = KEEP,
) -> int:
    """Remove from the log what no copy here needs (SEEP, 3.1, *trim*); returns the bytes freed.

    Not the newest checkpoint of a vnode decides but the oldest of the newest `keep`, so that β goes
    back to one that can serve when the newest is bad. `newest` is the place of the last decided
    batch, whose record stays.
    """
    covers.persist()
    floors = [covers.floor(kept.identity.vnode, kept.complete(), keep=keep) for kept in copies]
    through = min(floors, default=newest.time)
    return log.trim(BatchTime(through.generation, through.batch + 1), newest)


# --- routing state, and with it all the rest -----------------------------------------------------


def partition_state(
    epoch: Epoch, instance: InstanceId, into: Sequence[InstanceId]
) -> dict[Vnode, InstanceId]:
    """The vnodes of an instance, split evenly over others by contiguous ranges (SEEP, Algorithm 2).

    It is the routing that `epochs.with_moves` and `epochs.with_cut` take. θ and τ go with their
    vnode; for β see `partition_buffer_state`. `into` may name the instance itself. Raises
    ValueError for a name that is there twice, and for more names than vnodes.
    """
    vnodes = epoch.owned_by(instance)
    if not 1 <= len(into) <= len(vnodes) or len(set(into)) != len(into):
        raise ValueError(f"{len(vnodes)} vnodes of {instance} into {', '.join(into) or 'nothing'}")
    return {vnode: into[n * len(into) // len(vnodes)] for n, vnode in enumerate(vnodes)}


def merge_state(
    epoch: Epoch, instances: Iterable[InstanceId], into: InstanceId
) -> dict[Vnode, InstanceId]:
    """The vnodes of several instances, given to one (SEEP, 3.3, *merge*): the way back."""
    return {vnode: into for instance in instances for vnode in epoch.owned_by(instance)}


def partition_buffer_state(
    buffer: BufferState, owners: Mapping[Vnode, InstanceId]
) -> dict[InstanceId, BufferState]:
    """β by the new owners of its vnodes (SEEP, Algorithm 2, *partition-buffer-state*). Raises
    KeyError for a vnode without an owner: no tuple may be left out."""
    shares: dict[InstanceId, dict[Vnode, BatchTime]] = {}
    for vnode, since in buffer.after.items():
        shares.setdefault(owners[vnode], {})[vnode] = since
    return {
        owner: BufferState(after=after, through=buffer.through) for owner, after in shares.items()
    }
