"""What may happen to a cluster: each fault is a value that says all there is to say of it.

Nothing here acts; `tests.sim.striking` does. Workers are named (``w1``), processes as in
`tests.fakes.world_process`: ``w1`` is an agent, ``w1/i0`` an instance, and besides there are
``controller`` and ``driver``.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """The root of all faults."""


# --- the network between hosts -------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Drop(Fault):
    """Requests and answers are lost."""

    chance: float
    for_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Duplicate(Fault):
    """Requests come twice, the second time up to `within_s` later."""

    chance: float
    within_s: float
    for_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Delay(Fault):
    """All that one worker gets and says is late."""

    worker: str
    by_s: float
    for_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Reorder(Fault):
    """Some messages are overtaken by what is sent up to `by_s` after them."""

    chance: float
    by_s: float
    for_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LoseAnswer(Fault):
    """The next answers of a worker to a kind of request are lost; what they say is done."""

    worker: str
    request: str
    times: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LoseCall(Fault):
    """The controller does what a driver asks for next, and its answer does not get back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CutOneWay(Fault):
    """Nothing gets from one host to another."""

    sender: str
    receiver: str
    for_s: float


# --- processes -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class CrashInstance(Fault):
    """kill -9 of an instance; its agent starts it again. `nth` of those that the worker has."""

    worker: str
    nth: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CrashAgent(Fault):
    """kill -9 of an agent alone."""

    worker: str
    back_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartAgent(Fault):
    """SIGTERM of an agent: it says farewell, and ends with its instances."""

    worker: str
    back_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CrashWorker(Fault):
    """kill -9 of an agent and its instances; the disk stays as it is."""

    worker: str
    back_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CrashController(Fault):
    """kill -9 of the controller."""

    back_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CrashDriver(Fault):
    """kill -9 of the driver; the next run of the query splits its rows otherwise."""

    back_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerLoss(Fault):
    """Workers end, and their disks forget all that was not synced."""

    workers: tuple[str, ...]
    back_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TornPower(Fault):
    """As `PowerLoss`; of what was not synced any part may stay, or be zeros. `draw` seeds it."""

    workers: tuple[str, ...]
    draw: int
    back_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Freeze(Fault):
    """SIGSTOP of a process, and SIGCONT. Instead of an instance that is not there another one of
    its worker's."""

    process: str
    for_s: float


# --- the controller's store ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class LoseStore(Fault):
    """The controller dies, and its store is gone. A person who is told that workers object to the
    new one recovers it."""

    back_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RollBackStore(Fault):
    """The controller's store is copied; so much later the controller dies, and begins over the
    copy. As with a lost one, a person recovers it."""

    after_s: float
    back_s: float


# --- disks and clocks ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class FullDisk(Fault):
    """A worker's disk takes so many bytes more, and then no more for a while."""

    worker: str
    room_bytes: int
    for_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowDisk(Fault):
    """Each sync of a worker's agent takes so long."""

    worker: str
    sync_s: float
    for_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class BitRot(Fault):
    """A byte of a checkpoint's file or of the log is another one. `draw` chooses file and byte."""

    worker: str
    draw: int


@dataclass(frozen=True, slots=True, kw_only=True)
class UnplugDisk(Fault):
    """A worker's second disk answers nothing but errors; later it is back, and the agent is started
    again."""

    worker: str
    back_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RetireDisk(Fault):
    """Somebody wants a worker's second disk to be emptied."""

    worker: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JumpClock(Fault):
    """A host's wall jumps; ``controller`` is one, too."""

    host: str
    by_s: float


# --- Spark ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class TakeOver(Fault):
    """A new run starts with ``takeover=True`` while the old one's callback lives on for a while."""

    zombie_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LoseOffsets(Fault):
    """The driver dies, and the newest file of the offset log is gone. A person who is told that
    offsets differ puts it back."""

    back_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LoseCommit(Fault):
    """The driver dies between two batches, and the newest file of the commit log is gone."""

    back_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class NewStream(Fault):
    """The driver dies, and the query's directory is deleted. The next run begins a new stream, for
    which a person binds the job."""

    back_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Idle(Fault):
    """The source has nothing for a while: only the marker stream wakes the query."""

    for_s: float


# --- what people ask for -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked(Fault):
    """The root of what is asked of the controller. It may refuse."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Handover(Asked):
    """To the `to`-th instance, counted round."""

    vnodes: tuple[int, ...]
    to: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Rescale(Asked):
    """To so many instances."""

    instances: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Switchover(Asked):
    """Everything off a worker."""

    worker: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Drain(Asked):
    """Everything off a worker, copies too."""

    worker: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint(Asked):
    """Of every vnode."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Abort(Asked):
    """Of whatever is under way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause(Asked):
    """Of whatever is under way; it is resumed after a while."""

    for_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Revert(Asked):
    """Of the `nth` newest operation that is complete."""

    nth: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HandBack(Asked):
    """A handover of what the newest complete one has taken from an instance, back to it: so long
    after that, when its worker may have left the chains and not yet closed the vnodes."""

    after_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SetReplication(Asked):
    """To so many copies."""

    replication: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Failover(Asked):
    """Of a worker that is dead, or refused."""

    worker: str


# --- when ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Ambush:
    """When a process does something whose name begins with `step` and has `holding` in it, after
    `skip` other times: before it or, with `after`, once it has done it."""

    process: str
    step: str
    after: bool
    skip: int
    holding: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A fault and its time: so long after the one before, or in an ambush laid then."""

    wait_s: float
    fault: Fault
    ambush: Ambush | None = None

    def __str__(self) -> str:
        lies = self.ambush
        if lies is None:
            return f"+{self.wait_s:.2f} s {self.fault}"
        where = f"{'after' if lies.after else 'before'} {lies.step!r} number {lies.skip + 1}"
        what = f" with {lies.holding}" if lies.holding else ""
        return f"+{self.wait_s:.2f} s {self.fault} in ambush {where}{what} of {lies.process}"


KINDS: tuple[type[Fault], ...] = tuple(
    kind
    for kind in list(globals().values())
    if isinstance(kind, type) and issubclass(kind, Fault) and kind not in (Fault, Asked)
)
"""Every kind of fault."""
