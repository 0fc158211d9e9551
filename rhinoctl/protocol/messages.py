"""Every message between processes, in one module: frozen, validated, with one header.

A request is answered by the message named beside it or by `Refusal`. Job uid, session, epoch and
incarnation travel in the header, generation and attempt where a message has a batch; a lower one
than the receiver has persisted is refused (invariant 1). What may change here, and how that is
marked, is in docs/protocol/versions.md.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, ClassVar, NamedTuple

from rhinoctl.ids import NO_JOB, Attempt, BatchTime, InstanceId, JobUid, Vnode, WorkerId
from rhinoctl.protocol import codec
from rhinoctl.protocol.claims import Claim, Keepsake, Memo
from rhinoctl.protocol.disks import DiskReport, DiskRequest, DiskState
from rhinoctl.protocol.epochs import Epoch
from rhinoctl.protocol.jobs import JobSpec, VnodeUse
from rhinoctl.protocol.pacing import ReplayCost
from rhinoctl.protocol.records import (
    NO_WATERMARKS,
    DecisionRecord,
    RecordId,
    SliceName,
    Watermarks,
)
from rhinoctl.protocol.verification import BadCheckpoint, VerifyReport, VerifyWish


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """What every message carries."""

    cluster: str
    job: JobUid = NO_JOB
    session: int = 0
    epoch: int = 0
    incarnation: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """The root of all messages. `SINCE` is the version of the protocol that a kind came with."""

    SINCE: ClassVar[int] = 1

    header: Header


class RefusalCode(Enum):
    """Why a request was refused. The receiver has changed nothing. VERSION is said by the sender's
    own wire, of a peer that speaks no version in which it can be said; FULL for want of room."""

    FENCED = "fenced"
    FOREIGN = "foreign"
    UNKNOWN_JOB = "unknown_job"
    NOT_OPEN = "not_open"
    STALE_ATTEMPT = "stale_attempt"
    BEHIND = "behind"
    NOT_FOUND = "not_found"
    BUSY = "busy"
    FULL = "full"
    POISON = "poison"
    FAULT = "fault"
    STALE_STORE = "stale_store"
    VERSION = "version"


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal(Message):
    """The negative answer to any request; `detail` is for people."""

    code: RefusalCode
    detail: str


# --- the holder of the session (batch driver, or controller without one) to workers --------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Fence(Message):
    """Persist this session; refuse lower ones from now on. Answer: `FenceAnswer`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FenceAnswer(Message):
    """What the worker has: the newest record it knows to be decided, and the one it has sealed
    after it, if any, of which it does not know."""

    decided: DecisionRecord | None
    sealed: DecisionRecord | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Open(Message):
    """Start an attempt at a batch; anything of another attempt is dropped. Answer: `Done`.

    `after` is the last decided record: a worker that has it learns that it is decided, and the
    batch before is released, since Spark has committed it.
    """

    time: BatchTime
    attempt: Attempt
    after: RecordId
    epoch: Epoch


@dataclass(frozen=True, slots=True, kw_only=True)
class Put(Message):
    """One channel's slices for one worker; the payload has their bytes in the same order.
    Answer: `Done`, once appended to the log (not yet durable)."""

    time: BatchTime
    attempt: Attempt
    channel: int
    task_attempt: int
    slices: tuple[SliceName, ...]
    forwarded: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Seal(Message):
    """Append this record durably if all it names is held. Answer: `SealAnswer`."""

    record: DecisionRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class SealAnswer(Message):
    """`missing` empty: sealed. Otherwise the (channel, vnode) pairs that the worker lacks."""

    record: RecordId
    missing: tuple[tuple[int, Vnode], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Resend(Message):
    """Forward what you hold of an open attempt to the chain again. Answer: `Done`."""

    time: BatchTime
    attempt: Attempt


@dataclass(frozen=True, slots=True, kw_only=True)
class Apply(Message):
    """The record is decided. Answer: `ApplyAnswer`, once this worker's owners have applied it."""

    record: RecordId


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputName:
    """An instance's output of a batch, to be fetched from its worker; `part` as in
    `rhinoctl.protocol.duties`."""

    worker: WorkerId
    instance: InstanceId
    time: BatchTime
    rows: int
    size: int
    part: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplyAnswer(Message):
    """Applied by every owner on this worker. `applied_at` is wall time in seconds; `released` says
    that the record's batch is released, so that its outputs are not kept any more."""

    record: RecordId
    outputs: tuple[OutputName, ...]
    applied_at: float
    released: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchOutput(Message):
    """Answer: `Done` with the output as one Arrow IPC stream in the payload."""

    instance: InstanceId
    time: BatchTime
    part: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Done(Message):
    """It is done, and was done once however often it was asked."""


# --- controller to agents ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Warm:
    """One vnode that an instance here shall follow. `sources` are addresses of full holders, by
    worker, to copy from where this worker has no copy yet."""

    vnode: Vnode
    instance: InstanceId
    sources: Mapping[WorkerId, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """One vnode of which this worker, which joins its chain, shall have a copy; see `Warm`."""

    vnode: Vnode
    sources: Mapping[WorkerId, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class DesiredJob:
    """All that the controller wants of one worker for one job, beyond its newest epoch.

    It is complete each time: what is not named is not wanted (style, rule 4), and of a job that is
    not named nothing is. `checkpoint` names vnodes that shall be checkpointed at the next
    opportunity, `verify` which copies shall be verified; `dropped` says that the job is deleted.
    `left` is the number of the epoch, known to
    all who take part in it, since which this worker has no part in the job: it shall remove what
    it has, unless it knows of a later one, or (`keep`) only end what runs, since it shall join
    again and may use its files. `aside` is the start of the agent that cannot read what it has of
    the job, and that had no part in it at epoch `left` any more: it shall set all of it aside.
    """

    spec: JobSpec
    instances: tuple[InstanceId, ...] = ()
    warm: tuple[Warm, ...] = ()
    hold: tuple[Hold, ...] = ()
    checkpoint: tuple[Vnode, ...] = ()
    verify: VerifyWish | None = None
    dropped: bool = False
    left: int | None = None
    keep: bool = False
    memo: Memo | None = None
    aside: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat(Message):
    """The controller's wishes for a worker. Answer: `WorkerReport`, or a refusal if the worker does
    not listen to its `claim`. Without a claim it wishes nothing and only looks: the answer comes
    always, and has keepsakes."""

    worker: WorkerId
    jobs: tuple[DesiredJob, ...]
    claim: Claim | None = None
    stop: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class VnodeReport:
    """One vnode's copy on one worker; `covers` is what the newest checkpoint here covers, None
    without one. Of the log after it there are `replay_rows` in `replay_bytes`. `fetched_bytes` of
    its checkpoints have come to this worker since its agent started. It is `bereft` if the worker
    owns it, and has it neither open nor anything whole to open it from."""

    use: VnodeUse
    instance: InstanceId | None = None
    covers: BatchTime | None = None
    applied: BatchTime | None = None
    lag_batches: int = 0
    state_bytes: int = 0
    copied_bytes: int = 0
    copy_bytes: int = 0
    replay_rows: int = 0
    replay_bytes: int = 0
    fetched_bytes: int = 0
    bereft: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceReport:
    """One instance process. `applies` has the last batches: (time, wall seconds when applied);
    `replay_cost` is how long it takes for what it applies, None if it is not known yet; `beacon` an
    address at which something listens as long as the process lives, without a host if that is the
    agent's, empty while it is not known. `poison` names the decided
    batch that its operator cannot apply, and the operator's error; empty if there is none."""

    pid: int
    incarnation: int
    ready: bool
    applied: BatchTime | None
    applies: tuple[tuple[BatchTime, float], ...] = ()
    rss_bytes: int = 0
    fault: str = ""
    replay_cost: ReplayCost | None = None
    beacon: str = ""
    poison: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobReport:
    """What a worker has of a job. `epoch` is the one that its newest decided record makes hold,
    `epoch_from` the batch of the record that began it; `watermarks` are that record's.
    `fetched_bytes` of checkpoints have come to this worker since its agent started, and its owners
    have applied `applied_bytes` of rows. `verified` is how far it is with the round of verification
    that is wished; `found_bad` checkpoints were bad since its agent started, of which `bad` are not
    replaced yet, and `scrubbed_bytes` were read again by the scrub. `offsets` is the digest of the
    decided record's end offsets."""

    session: int
    sealed: RecordId | None
    decided: RecordId | None
    epoch: Epoch | None
    epoch_from: BatchTime | None
    released: BatchTime
    log_bytes: int
    vnodes: Mapping[Vnode, VnodeReport]
    instances: Mapping[InstanceId, InstanceReport]
    watermarks: Watermarks = NO_WATERMARKS
    fetched_bytes: int = 0
    applied_bytes: int = 0
    verified: VerifyReport | None = None
    bad: tuple[BadCheckpoint, ...] = ()
    found_bad: int = 0
    scrubbed_bytes: int = 0
    offsets: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unreadable:
    """Why an agent takes no part in a job of which it has something. `damaged`: a file is not what
    was written, so that it is of no use; otherwise the reason may go."""

    fault: str
    damaged: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerReport(Message):
    """A worker's observed state; `free_bytes` of its replica disk. One that is `leaving` was
    asked to end and will not be heard again before its next start. A process there may open
    `open_files`, an instance takes up to `instance_bytes` of its `memory_bytes`; 0: not known.
    `links_refused` names the error by which its file system refuses hard links, if it does. `ruler`
    is the newest claim that it has listened to, None before the first; `keepsakes` are of jobs of
    which nothing is wished. The room of several `disks` is summed up in `free_bytes`. Jobs that are
    `unreadable` are not in `jobs`."""

    worker: WorkerId
    pid: int
    wall: float
    free_bytes: int
    jobs: Mapping[JobUid, JobReport]
    leaving: bool = False
    open_files: int = 0
    memory_bytes: int = 0
    instance_bytes: int = 0
    links_refused: str = ""
    ruler: Claim | None = None
    keepsakes: Mapping[JobUid, Keepsake] = field(default_factory=dict)
    disks: tuple[DiskReport, ...] = ()
    unreadable: Mapping[JobUid, Unreadable] = field(default_factory=dict)

    @property
    def lowest_room(self) -> int:
        """What is free on the disk that has the least; a batch waits for any that is full."""
        rooms = [disk.free_bytes for disk in self.disks if disk.state is DiskState.IN_USE]
        return min(rooms, default=self.free_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeDisks(Message):
    """A person asks something of a worker's disks. Answer: `DisksChanged`."""

    request: DiskRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class DisksChanged(Message):
    """The disks that it was about, as they are now; or the code of the error that it was refused
    with, and what that says: nothing was changed then."""

    disks: tuple[DiskReport, ...] = ()
    code: str = ""
    message: str = ""
    remedy: str = ""


# --- agents to agents ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchManifest(Message):
    """Answer: `ManifestOf`. The checkpoint, and the log after it, is leased until some time after
    the last chunk. `bad` are checkpoints of this holder whose content the asker found to be other
    than their manifests say."""

    vnode: Vnode
    bad: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestOf(Message):
    """The newest complete checkpoint's manifest is the payload; it reaches up to `covers`. Without
    a payload the vnode was never checkpointed here, and begins empty at `covers`."""

    covers: BatchTime


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchChunk(Message):
    """Answer: `Done` with a piece of a checkpoint's file in the payload."""

    vnode: Vnode
    checkpoint: str
    file: str
    offset: int
    length: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchLog(Message):
    """Answer: `LogPiece` with the bytes of its slices in the payload: the first decided batch
    at or after `since` that is in the log, for some vnodes."""

    since: BatchTime
    vnodes: tuple[Vnode, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPiece(Message):
    """One decided batch's record and the puts for the vnodes asked for; record None: no more."""

    record: DecisionRecord | None
    puts: tuple[tuple[int, int, tuple[SliceName, ...]], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferCheckpoint(Message):
    """The next worker in a vnode's chain shall have this checkpoint, whose manifest is the payload;
    it reaches up to `covers`. Answer: `Done`, and later a `StoredCheckpoint`."""

    vnode: Vnode
    covers: BatchTime


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredCheckpoint(Message):
    """To who offered it: the checkpoint is durable at `worker` and at all that come after it in the
    chain, or (with a `fault`) it will not be. Answer: `Done`."""

    worker: WorkerId
    vnode: Vnode
    checkpoint: str
    fault: str = ""


# --- agent to its instances ----------------------------------------------------------------------


class Turn(NamedTuple):
    """The place of a command among all that an instance gets: the incarnation of the agent that
    gives it, and how many it has given."""

    agent: int = 0
    number: int = 0


FIRST_TURN = Turn()


@dataclass(frozen=True, slots=True, kw_only=True)
class Command(Message):
    """The root of what an agent has its instance do. One that comes after a later one is refused:
    whoever gave it is dead or has given it up, and what there is was asked for since."""

    turn: Turn = FIRST_TURN


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenVnode(Command):
    """Open a vnode's live database from a base checkpoint directory (empty: from nothing).
    Answer: `Done`. The directory is the checkpoint's, never written to; the database goes to the
    directory `live`, on the same disk (empty: below the instance's own)."""

    vnode: Vnode
    base: str
    covers: BatchTime
    live: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CloseVnode(Command):
    """Answer: `Done`. The live database is thrown away."""

    vnode: Vnode


@dataclass(frozen=True, slots=True, kw_only=True)
class SlicePlace:
    """Where a slice lies in a segment file of the worker log."""

    vnode: Vnode
    offset: int
    size: int
    checksum: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentPart:
    """Slices of one channel in one segment file, by its absolute path."""

    path: str
    places: tuple[SlicePlace, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplyBatch(Command):
    """Apply one decided batch to some vnodes, all of which have applied what comes before it.

    `parts` are in (channel, sequence) order. `output` is the absolute path for the results of the
    `owned` vnodes, empty if none are wanted. Answer: `BatchApplied`.
    """

    time: BatchTime
    vnodes: tuple[Vnode, ...]
    parts: tuple[SegmentPart, ...]
    output: str
    owned: tuple[Vnode, ...]
    watermarks: Watermarks
    batch_time_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchApplied(Message):
    """The batch is applied and, if asked for, its output is written: `<output>.<rows>.arrow`, an
    Arrow IPC stream of `size` bytes."""

    time: BatchTime
    rows: int
    size: int
    applied_at: float
    rss_bytes: int
    state_bytes: Mapping[Vnode, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointVnode(Command):
    """Write an image of a vnode's state into a new directory. Answer: `Checkpointed`."""

    vnode: Vnode
    directory: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpointed(Message):
    """The image is complete; `last_batch` touched the vnode last, `covers` was applied last."""

    vnode: Vnode
    last_batch: BatchTime
    covers: BatchTime


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceStatus(Command):
    """Answer: `InstanceState`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceState(Message):
    """What an instance has open, and up to which batch each vnode is applied; `beacon` as in
    `InstanceReport`, if it has one besides the address at which it was asked."""

    instance: InstanceId
    vnodes: Mapping[Vnode, BatchTime]
    rss_bytes: int
    beacon: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StopInstance(Command):
    """End the process after closing every database. Answer: `Done`."""


KINDS: dict[str, type[Message]] = {
    name: kind
    for name, kind in list(globals().items())
    if isinstance(kind, type) and issubclass(kind, Message)
}


def encode(message: Message, version: int | None = None) -> bytes:
    """A message as JSON bytes with its kind, as a version has it (None: our own). Raises
    `codec.CodecError`, also for a kind that the version has not."""
    kind = type(message)
    if version is not None and version < kind.SINCE:
        raise codec.CodecError(f"version {version} has no {kind.__name__}")
    body = codec.to_json(message, version=version)
    return codec.dumps({"kind": kind.__name__, "body": body})


def decode(data: bytes | bytearray | memoryview, version: int | None = None) -> Message:
    """The message in `data`, which is written in a version; raises `codec.CodecError` for anything
    else."""
    image: Mapping[str, Any] = codec.loads_image(data)
    kind = KINDS.get(str(image.get("kind")))
    if kind is None or (version is not None and version < kind.SINCE):
        raise codec.CodecError(f"unknown kind of message {image.get('kind')!r:.80}")
    message: Message = codec.from_json(kind, image.get("body"), version=version)
    return message
