"""Records, answers and batch states for the tests of the protocol's parts."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from rhinoctl.ids import BASE, NO_ATTEMPT, Attempt, BatchTime, JobUid, Vnode, WorkerId
from rhinoctl.protocol import batches
from rhinoctl.protocol import messages as m
from rhinoctl.protocol.batches import Answered, BatchState, Event, Receipt, Staged, Task
from rhinoctl.protocol.epochs import Epoch, with_moves
from rhinoctl.protocol.failover import GivenUp, plan_cut
from rhinoctl.protocol.records import ORIGIN, DecisionRecord, Position, RecordId, SliceName
from rhinoctl.protocol.sessions import Lineage
from tests.fakes.cluster.scenarios import I0, I1, TWO, V0, W1, W2, epoch

HEADER = m.Header(cluster="c", job=JobUid("j"), session=1, epoch=1)
FIRST = epoch(TWO, ((I0, "w2"), (I1, "")))
"""w1 owns vnode 0, with w2 as a full member; w2 owns vnode 1."""
MOVED = with_moves(FIRST, {V0: I1}, TWO)
"""The next epoch: vnode 0 belongs to w2, too."""
_CUT = plan_cut(FIRST, GivenUp(workers=frozenset({W1}))).epoch
assert _CUT is not None
CUT = _CUT
"""The next epoch: w1 is lost, and vnode 0 belongs to w2."""
JOINING = epoch({I0: W1}, ((I0, "w2?"),))
"""w1 owns vnode 0, which w2 has joined."""


def record(
    batch: int,
    counter: int,
    after: RecordId = ORIGIN,
    *,
    session: int = 1,
    step: int = 0,
    voters: tuple[WorkerId, ...] = (W1, W2),
    next_epoch: Epoch = FIRST,
    operator: str = "count",
) -> DecisionRecord:
    """A record of batch `batch` by attempt `session`.`counter`."""
    return DecisionRecord(
        position=Position(0, batch, step),
        attempt=Attempt(session, counter),
        after=after,
        epoch=next_epoch.number,
        voters=voters,
        next_epoch=next_epoch,
        start_offsets=str(batch) if batch > 0 else "",
        end_offsets=str(batch + 1) if batch >= 0 else "",
        operator=operator if batch >= 0 else "",
        rows={},
    )


FOUNDING = replace(
    record(-1, 1, RecordId(Position(*BASE, 0), NO_ATTEMPT), step=1), epoch=0, rows={}
)
"""The epoch record that begins the job."""


def task(batch: int = 0, **changes: str) -> Task:
    """A batch as Spark runs it."""
    plain = Task(
        time=BatchTime(0, batch),
        start_offsets=str(batch) if batch > 0 else "",
        end_offsets=str(batch + 1),
        operator="count",
    )
    return replace(plain, **changes)  # type: ignore[arg-type]


def lineage(
    last: DecisionRecord | None = FOUNDING, *, fenced: bool = True, session: int = 2
) -> Lineage:
    """What a session knows after `last`."""
    holds = FIRST if last is None else last.next_epoch
    return Lineage(
        cluster="c", job=JobUid("j"), session=session, epoch=holds, last=last, fenced=fenced
    )


def fence_answer(
    decided: DecisionRecord | None = FOUNDING, sealed: DecisionRecord | None = None
) -> m.FenceAnswer:
    return m.FenceAnswer(header=HEADER, decided=decided, sealed=sealed)


DONE = m.Done(header=HEADER)


def refusal(code: m.RefusalCode) -> m.Refusal:
    return m.Refusal(header=HEADER, code=code, detail="as the test says")


def sealed(state: BatchState, *missing: tuple[int, Vnode]) -> m.SealAnswer:
    """A worker's answer to the state's record."""
    assert state.record is not None
    return m.SealAnswer(header=HEADER, record=state.record.id, missing=missing)


def applied(state: BatchState, *, released: bool = False) -> m.ApplyAnswer:
    """A worker has applied the state's record."""
    assert state.record is not None
    return m.ApplyAnswer(
        header=HEADER, record=state.record.id, outputs=(), applied_at=1.0, released=released
    )


def receipts() -> tuple[Receipt, ...]:
    """One channel with a row for each vnode of `FIRST`."""
    names = tuple(SliceName(vnode=Vnode(v), rows=1, size=8, checksum=v) for v in (0, 1))
    return (Receipt(channel=0, task_attempt=0, slices=names),)


@dataclass
class Run:
    """A batch machine and what it has asked for last."""

    state: BatchState
    effects: tuple[batches.Effect, ...] = ()

    def on(self, *events: Event) -> "Run":
        """Let events happen."""
        for event in events:
            self.state, self.effects = batches.step(self.state, event)
        return self

    def answer(self, message: m.Message, *workers: WorkerId) -> "Run":
        """The same answer from each of the workers."""
        return self.on(*(Answered(worker=worker, message=message) for worker in workers))

    @property
    def sends(self) -> list[batches.Send]:
        """The last step's messages to workers."""
        return [effect for effect in self.effects if isinstance(effect, batches.Send)]


def begun(lineage_: Lineage, task_: Task, proposal: Epoch | None = None) -> Run:
    return Run(*batches.begin(lineage_, task_, proposal))


def fencing(task_: Task | None = None) -> Run:
    """The fence is out to both workers."""
    return begun(lineage(None, fenced=False), task_ or task())


def fenced(task_: Task, answers: Mapping[WorkerId, m.FenceAnswer]) -> Run:
    """Both have answered, w2 last."""
    run = fencing(task_)
    for worker in sorted(answers):
        run.answer(answers[worker], worker)
    return run


def opening(proposal: Epoch | None = None, first: Epoch = FIRST) -> Run:
    """The first attempt at batch 0 is being opened."""
    return begun(lineage(replace(FOUNDING, next_epoch=first)), task(), proposal)


def staging(proposal: Epoch | None = None, first: Epoch = FIRST) -> Run:
    return opening(proposal, first).answer(DONE, *sorted(first.voters()))


def staged(run: Run, *failures: str) -> Staged:
    """The Spark job of the state's attempt has ended."""
    assert run.state.attempt is not None
    return Staged(attempt=run.state.attempt, receipts=receipts(), failures=failures)


def sealing(proposal: Epoch | None = None, first: Epoch = FIRST) -> Run:
    run = staging(proposal, first)
    return run.on(staged(run))


def applying() -> Run:
    run = sealing()
    return run.answer(sealed(run.state), W1, W2)


def cutting(run: Run | None = None) -> Run:
    """w1 was given up while the batch was so far."""
    return (run or staging()).on(batches.Proposed(epoch=CUT))


def restaged(run: Run, workers: Iterable[WorkerId]) -> Run:
    """From OPENING to SEALING once more."""
    run.answer(DONE, *workers)
    return run.on(staged(run))
