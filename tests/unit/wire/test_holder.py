"""The loop around the batch machine: what it sends when, and which answers it takes."""

from dataclasses import dataclass, field, replace
from random import Random

import pytest

from rhinoctl import limits
from rhinoctl.ids import BASE, BatchTime, InstanceId, JobUid, Vnode, WorkerId
from rhinoctl.protocol import batches
from rhinoctl.protocol import messages as m
from rhinoctl.protocol import worker as machine
from rhinoctl.protocol.batches import FaultKind, Phase
from rhinoctl.protocol.epochs import Epoch, Member, Role, Route, with_chains_cut
from rhinoctl.protocol.ports import Address, Envelope
from rhinoctl.protocol.sessions import Lineage
from rhinoctl.wire.holder import BatchRun
from tests.fakes.clock import FakeClock
from tests.fakes.schedule import Schedule
from tests.fakes.wire import FakeNetwork, FakeWire

W1, W2 = WorkerId("w1"), WorkerId("w2")
I0, I1 = InstanceId("i0"), InstanceId("i1")
ADDRESSES = {W1: "w1.sock", W2: "w2.sock"}
EPOCH = Epoch(
    number=1,
    workers=ADDRESSES,
    instances={I0: W1, I1: W2},
    routes=(Route(owner=I0), Route(owner=I1)),
)


@dataclass
class Worker:
    """The real machine of a worker; `ignores` are kinds of requests that it does not answer yet."""

    name: WorkerId
    wire: FakeWire
    state: machine.WorkerState = field(init=False)
    ignores: tuple[type, ...] = ()
    taken: list[m.Message] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.state = machine.WorkerState(worker=self.name)

    def step(self, timeout_s: float) -> None:
        while (envelope := self.wire.receive(0)) is not None:
            message = envelope.message
            assert message is not None
            self.taken.append(message)
            if not isinstance(message, self.ignores):
                self._take(envelope)

    def _take(self, envelope: Envelope) -> None:
        self.state, effects = machine.step(self.state, envelope.message)  # type: ignore[arg-type]
        for effect in effects:
            if isinstance(effect, machine.Reply):
                self.wire.reply(envelope, effect.message)
            elif isinstance(effect, machine.ReplyWhenApplied):
                answer = m.ApplyAnswer(
                    header=m.Header(cluster="c"), record=effect.record.id, outputs=(), applied_at=0
                )
                self.wire.reply(envelope, answer)

    def count(self, kind: type) -> int:
        return sum(isinstance(message, kind) for message in self.taken)


class Bench:
    """Two workers and whoever holds the session."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.network = FakeNetwork(Random(1), self.clock)
        self.schedule = Schedule(self.network, Random(2))
        self.wire = self.network.wire(None, origin=Address("holder"))
        self.workers = {}
        for name, address in ADDRESSES.items():
            wire = self.network.wire(Address(address))
            self.workers[name] = Worker(name, wire)
            self.schedule.add(name, wire, self.workers[name])
        self.lineage = Lineage(cluster="c", job=JobUid("j-1"), session=1, epoch=EPOCH)

    def installed(self, epoch: Epoch = EPOCH) -> Lineage:
        """The lineage after the job's first record."""
        self.lineage = replace(self.lineage, epoch=epoch)
        task = batches.Task(time=BASE, change=epoch)
        state = self.run(task).run()
        assert state.phase is Phase.DONE
        self.lineage = state.lineage
        return self.lineage

    def run(self, task: batches.Task, **given: object) -> BatchRun:
        fields: dict[str, object] = {"wire": self.wire, "clock": self.clock, "task": task}
        return BatchRun(**{**fields, "lineage": self.lineage, **given})  # type: ignore[arg-type]

    def batch(self, number: int = 0, **given: object) -> BatchRun:
        task = batches.Task(
            time=BatchTime(0, number), start_offsets=str(number), end_offsets=str(number + 1)
        )
        return self.run(task, stage=nothing, **given)


def nothing(stage: batches.Stage) -> batches.Staged:
    return batches.Staged(attempt=stage.attempt, receipts=())


def test_a_batch_goes_through_its_phases_and_each_is_timed() -> None:
    bench = Bench()
    bench.installed()
    run = bench.batch()
    assert run.run().phase is Phase.DONE
    assert set(run.seconds) == {Phase.OPENING, Phase.STAGING, Phase.SEALING, Phase.APPLYING}
    assert all(spent >= 0 for spent in run.seconds.values())


def test_the_proposal_is_asked_for_when_the_rows_are_staged() -> None:
    """So that a proposal which came while Spark was at work is in the record."""
    bench = Bench()
    bench.installed()
    order: list[str] = []
    moved = Epoch(
        number=2,
        workers=ADDRESSES,
        instances={I0: W1, I1: W2, InstanceId("i2"): W1},
        routes=(Route(owner=InstanceId("i2")), Route(owner=I1)),
    )

    def stage(asked: batches.Stage) -> batches.Staged:
        order.append("staged")
        return nothing(asked)

    def proposal() -> Epoch | None:
        order.append("asked")
        return moved if "staged" in order else None

    task = batches.Task(time=BatchTime(0, 0), end_offsets="1")
    state = bench.run(task, stage=stage, proposal=proposal).run()
    assert order[order.index("staged") + 1] == "asked"
    assert state.lineage.epoch == moved


def test_a_silent_worker_is_asked_again_after_a_pause() -> None:
    bench = Bench()
    bench.installed()
    bench.workers[W2].ignores = (m.Open,)
    run = bench.batch()
    bench.schedule.run(0.1)
    while bench.workers[W2].count(m.Open) < 2:
        run.step(0.05)
    waited = bench.clock.monotonic()
    assert waited >= limits.REQUEST_TIMEOUT_S["opening"] + limits.RETRY_DELAY_S
    bench.workers[W2].ignores = ()
    assert run.run().phase is Phase.DONE


def test_a_phase_ends_at_its_deadline_with_the_silent_named() -> None:
    """Invariant 12."""
    bench = Bench()
    bench.installed()
    bench.workers[W2].ignores = (m.Open,)
    begun = bench.clock.monotonic()
    state = bench.batch().run()
    assert state.fault is not None
    assert (state.fault.kind, state.fault.workers) == (FaultKind.UNREACHABLE, (W2,))
    took = bench.clock.monotonic() - begun
    assert limits.OPEN_DEADLINE_S <= took < limits.OPEN_DEADLINE_S + 1.0


def test_an_answer_to_an_earlier_phase_is_not_taken_for_one_of_this() -> None:
    """A worker's `Done` to a repeated `Open` comes while the batch is sealed."""
    bench = Bench()
    bench.installed()
    run = bench.batch()
    late: list[Envelope] = []
    while run.state.phase is not Phase.DONE:
        envelope = bench.wire.receive(1.0)
        assert envelope is not None
        if run.state.phase is Phase.OPENING:
            late.append(envelope)
        assert run.deliver(envelope)
        for old in late:
            assert not run.deliver(old), "each request has one answer"
        run.tick()


def test_what_is_not_its_own_is_left_to_others() -> None:
    """The controller's loop has answers to heartbeats beside those to epoch records."""
    bench = Bench()
    run = bench.run(batches.Task(time=BASE, change=EPOCH))
    assert not run.deliver(Envelope(message=None, request=12345))
    assert not run.deliver(Envelope(message=None, handle=1))
    assert run.run().phase is Phase.DONE
    assert not run.deliver(Envelope(message=None, request=12345))


@pytest.mark.parametrize("addresses", [ADDRESSES, {}])
def test_a_worker_that_no_epoch_names_is_found_in_the_inventory(
    addresses: dict[WorkerId, str],
) -> None:
    """It has to be told of the record that lets it go, which does not name its address."""
    bench = Bench()
    chain = (Member(worker=W2, role=Role.FULL),)
    held = Epoch(
        number=1,
        workers=ADDRESSES,
        instances={I0: W1},
        routes=(Route(owner=I0, members=chain),),
    )
    bench.installed(held)
    cut = with_chains_cut(held, {Vnode(0): frozenset({W2})})
    assert W2 not in cut.workers
    state = bench.run(batches.Task(time=BASE, change=cut), addresses=addresses).run()
    assert state.phase is Phase.DONE, "who has left is not waited for"
    bench.schedule.run(0.1)
    told = bench.workers[W2].state.decided == state.record
    assert told == bool(addresses)


def test_an_epoch_record_stages_nothing() -> None:
    bench = Bench()
    bench.installed()
    task = batches.Task(time=BatchTime(0, 0), end_offsets="1")
    with pytest.raises(LookupError, match="stages nothing"):
        bench.run(task).run()
