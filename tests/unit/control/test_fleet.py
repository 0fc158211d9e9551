"""The workers as the controller sees them: heartbeats, and what is made of the answers."""

from dataclasses import dataclass, field, replace
from random import Random

import pytest

from rhinoctl import limits
from rhinoctl.control.fleet import Applies, Fleet
from rhinoctl.ids import BASE, BatchTime, InstanceId, JobUid, Vnode, WorkerId
from rhinoctl.protocol import messages as m
from rhinoctl.protocol.claims import Claim
from rhinoctl.protocol.epochs import Epoch
from rhinoctl.protocol.placement import first_epoch
from rhinoctl.protocol.ports import Address, Envelope
from tests.fakes.clock import FakeClock
from tests.fakes.wire import FakeNetwork, FakeWire

W1, W2 = WorkerId("w1"), WorkerId("w2")
JOB = JobUid("j-1")
I0 = InstanceId("i0")
CLAIM = Claim(reign=1, store="s", run="r", number=1)
FIRST = first_epoch(vnodes=2, instances=2, workers={W1: "w1.sock", W2: "w2.sock"})


def epoch(number: int) -> Epoch:
    return Epoch(
        number=number, workers=FIRST.workers, instances=FIRST.instances, routes=FIRST.routes
    )


@dataclass
class Scripted:
    """A fleet of two workers whose answers the test writes itself."""

    clock: FakeClock = field(default_factory=FakeClock)
    claim: Claim | None = CLAIM

    def __post_init__(self) -> None:
        self.network = FakeNetwork(Random(1), self.clock)
        self.wire = self.network.wire(None, origin=Address("controller"))
        self.workers: dict[WorkerId, FakeWire] = {
            name: self.network.wire(Address(f"{name}.sock")) for name in (W1, W2)
        }
        addresses = {name: f"{name}.sock" for name in (W2, W1)}
        self.fleet = Fleet("c", addresses, self.wire, self.clock)
        self.asked: dict[WorkerId, list[Envelope]] = {W1: [], W2: []}

    def tick(self, seconds: float = 0.0) -> None:
        """Let time pass, ask who is due, and bring what was sent."""
        self.clock.advance(seconds)
        self.fleet.tick(lambda worker: (), limits.HEARTBEAT_S, self.claim)
        self.network.deliver_until(self.clock.monotonic() + 0.01)
        for name, wire in self.workers.items():
            while (envelope := wire.receive(0)) is not None:
                self.asked[name].append(envelope)

    def answer(self, name: WorkerId, message: m.Message) -> None:
        self.workers[name].reply(self.asked[name].pop(), message)
        self.take()

    def take(self) -> None:
        self.network.deliver_until(self.clock.monotonic() + 0.01)
        while (envelope := self.wire.receive(0)) is not None:
            assert self.fleet.deliver(envelope)

    def report(self, name: WorkerId, **changes: object) -> None:
        """Answer a heartbeat with what a worker has of the job; `job` None: it has none."""
        job = changes.pop("job", job_report())
        fields: dict[str, object] = {
            "header": m.Header(cluster="c"),
            "worker": name,
            "pid": 1,
            "wall": 0.0,
            "free_bytes": 0,
            "jobs": {} if job is None else {JOB: job},
        }
        self.answer(name, m.WorkerReport(**{**fields, **changes}))  # type: ignore[arg-type]


def job_report(**changes: object) -> m.JobReport:
    fields: dict[str, object] = {
        "session": 1,
        "sealed": None,
        "decided": None,
        "epoch": epoch(1),
        "epoch_from": BASE,
        "released": BASE,
        "log_bytes": 0,
        "vnodes": {Vnode(0): m.VnodeReport(use="owned")},  # type: ignore[arg-type]
        "instances": {},
    }
    return m.JobReport(**{**fields, "vnodes": {}, **changes})  # type: ignore[arg-type]


def test_each_worker_is_asked_once_a_period() -> None:
    bench = Scripted()
    bench.tick()
    bench.tick(limits.HEARTBEAT_S / 2)
    assert [len(asked) for asked in bench.asked.values()] == [1, 1]
    bench.report(W1)
    bench.tick(limits.HEARTBEAT_S / 2 + 0.1)
    assert [len(asked) for asked in bench.asked.values()] == [1, 2], "a lost message is no silence"


def test_a_silent_worker_is_not_asked_without_end() -> None:
    bench = Scripted()
    for _ in range(20):
        bench.tick(limits.HEARTBEAT_S / 8)
        bench.fleet.suspect(W2)
    assert len(bench.asked[W2]) == limits.HEARTBEATS_AT_ONCE
    assert len(bench.asked[W1]) < limits.HEARTBEATS_AT_ONCE


def test_a_late_answer_does_not_displace_a_newer_one() -> None:
    bench = Scripted()
    bench.tick()
    bench.tick(limits.HEARTBEAT_S + 0.1)
    bench.report(W1, pid=2)
    bench.report(W1, pid=1)
    seen = bench.fleet.workers[W1].report
    assert seen is not None
    assert seen.pid == 2


def test_a_worker_lives_while_it_reports() -> None:
    bench = Scripted()
    bench.tick()
    assert bench.fleet.live() == []
    bench.report(W2)
    bench.report(W1)
    assert bench.fleet.live() == [W1, W2]
    bench.clock.advance(limits.WORKER_DOWN_S - 0.1)
    assert bench.fleet.live() == [W1, W2]
    assert set(bench.fleet.reports(JOB)) == {W1, W2}
    bench.clock.advance(0.2)
    assert bench.fleet.live() == []
    assert bench.fleet.reports(JOB) == {}
    assert bench.fleet.newest_epoch(JOB) is None


def test_it_is_settled_once_every_worker_has_answered_or_has_not() -> None:
    bench = Scripted()
    bench.tick()
    bench.report(W1)
    assert not bench.fleet.settled()
    bench.clock.advance(limits.HEARTBEAT_TIMEOUT_S)
    bench.take()
    assert bench.fleet.settled()
    assert bench.fleet.live() == [W1]


def test_answers_that_are_no_reports_are_kept_as_reasons() -> None:
    bench = Scripted()
    bench.tick()
    header = m.Header(cluster="c")
    bench.answer(W1, m.Refusal(header=header, code=m.RefusalCode.FOREIGN, detail="another one"))
    bench.report(W2, worker=W1)
    assert bench.fleet.live() == []
    assert bench.fleet.workers[W1].detail == "another one"
    assert "w1" in bench.fleet.workers[W2].detail
    bench.tick(limits.HEARTBEAT_S)
    bench.report(W1)
    assert bench.fleet.workers[W1].detail == ""


def test_what_is_no_answer_to_a_heartbeat_is_somebody_elses() -> None:
    bench = Scripted()
    bench.tick()
    stray = Envelope(message=m.Done(header=m.Header(cluster="c")), request=999)
    assert not bench.fleet.deliver(stray)
    assert not bench.fleet.deliver(Envelope(message=None, handle=1))


def test_the_newest_epoch_is_that_of_whoever_knows_most() -> None:
    bench = Scripted()
    bench.tick()
    bench.report(W1, job=job_report(epoch=epoch(3), epoch_from=BatchTime(0, 7)))
    bench.report(W2, job=job_report(epoch=epoch(2), epoch_from=BatchTime(0, 9)))
    assert bench.fleet.newest_epoch(JOB) == (epoch(3), BatchTime(0, 7))
    assert bench.fleet.newest_epoch(JobUid("j-2")) is None


@pytest.mark.parametrize("swapped", [False, True])
def test_an_epoch_began_where_the_earliest_says(swapped: bool) -> None:
    """A worker whose log was trimmed names its oldest record, not the marker."""
    bench = Scripted()
    bench.tick()
    one, other = (W2, W1) if swapped else (W1, W2)
    bench.report(one, job=job_report(epoch=epoch(3), epoch_from=BatchTime(1, 2)))
    bench.report(other, job=job_report(epoch=epoch(3), epoch_from=BatchTime(0, 7)))
    assert bench.fleet.newest_epoch(JOB) == (epoch(3), BatchTime(0, 7))


def test_a_worker_without_records_says_nothing_of_epochs() -> None:
    bench = Scripted()
    bench.tick()
    bench.report(W1, job=job_report(epoch=None, epoch_from=None))
    bench.report(W2, job=None)
    assert bench.fleet.newest_epoch(JOB) is None
    assert set(bench.fleet.reports(JOB)) == {W1}


def test_a_report_tells_what_was_known_when_it_was_asked_for() -> None:
    bench = Scripted()
    bench.tick()
    moment = bench.clock.monotonic()
    bench.report(W1)
    bench.report(W2)
    assert not bench.fleet.all_told_since(moment), "they were asked before"
    bench.tick(limits.HEARTBEAT_S)
    bench.report(W1)
    assert not bench.fleet.all_told_since(moment)
    bench.report(W2)
    assert bench.fleet.all_told_since(moment)
    bench.clock.advance(limits.WORKER_DOWN_S)
    assert not bench.fleet.all_told_since(moment), "who is silent may have missed the news"


def test_apply_times_are_kept_within_a_bound_and_forgotten_with_the_job() -> None:
    """Invariant 12."""
    bench = Scripted()
    bench.tick()
    applies = tuple((BatchTime(0, n), float(n)) for n in range(8 * limits.APPLIES_KEPT))
    one = m.InstanceReport(pid=1, incarnation=1, ready=True, applied=None, applies=applies)
    bench.report(W1, job=job_report(instances={I0: one}))
    kept = bench.fleet.applies[JOB, I0].at
    assert max(kept) == applies[-1][0]
    assert len(kept) <= 4 * limits.APPLIES_KEPT
    bench.fleet.forget(JOB)
    assert bench.fleet.applies == {}


def test_an_apply_that_was_repeated_counts_from_its_last_time() -> None:
    applies = Applies()
    applies.add(((BatchTime(0, 1), 1.0),))
    applies.add(((BatchTime(0, 1), 2.0), (BatchTime(0, 2), 3.0)))
    assert applies.at == {BatchTime(0, 1): 2.0, BatchTime(0, 2): 3.0}


# --- which store they listen to ------------------------------------------------------------------

OTHER = replace(CLAIM, store="another")


def said(bench: Scripted) -> set[Claim | None]:
    """The claims of the last heartbeats."""
    found: set[Claim | None] = set()
    for asked in bench.asked.values():
        message = asked[-1].message
        assert isinstance(message, m.Heartbeat)
        found.add(message.claim)
    return found


def test_a_worker_that_objects_is_only_looked_at_and_so_are_all() -> None:
    bench = Scripted()
    bench.tick()
    assert said(bench) == {CLAIM}
    header = m.Header(cluster="c")
    bench.answer(W1, m.Refusal(header=header, code=m.RefusalCode.STALE_STORE, detail="it is old"))
    bench.report(W2, ruler=CLAIM)
    assert bench.fleet.objections() == {W1: "it is old"}
    bench.tick(limits.HEARTBEAT_S + 0.1)
    assert said(bench) == {None}
    bench.report(W1, ruler=OTHER)
    assert list(bench.fleet.objections()) == [W1], "it answers, and objects all the same"
    assert bench.fleet.live() == [W1, W2]


def test_an_objection_stays_known_when_its_worker_falls_silent() -> None:
    bench = Scripted()
    bench.tick()
    bench.report(W1, ruler=OTHER)
    for _ in range(20):
        bench.tick(limits.HEARTBEAT_S / 2)
    assert W1 not in bench.fleet.live()
    assert list(bench.fleet.objections()) == [W1]


def test_an_objection_ends_with_a_worker_that_knows_nothing() -> None:
    """As one on a new disk."""
    bench = Scripted()
    bench.tick()
    bench.report(W1, ruler=OTHER)
    bench.tick(limits.HEARTBEAT_S + 0.1)
    bench.report(W1, ruler=None)
    assert bench.fleet.objections() == {}


def test_a_controller_that_has_not_begun_only_looks() -> None:
    bench = Scripted()
    bench.claim = None
    bench.tick()
    assert said(bench) == {None}
    bench.report(W1, ruler=OTHER)
    assert bench.fleet.objections() == {}, "there is nothing to object to yet"


def test_a_change_of_the_store_is_told_at_once() -> None:
    bench = Scripted()
    bench.tick()
    bench.tick(limits.HEARTBEAT_BUSY_S + 0.01)
    assert len(bench.asked[W1]) == 1
    bench.claim = replace(CLAIM, number=2)
    bench.tick()
    assert len(bench.asked[W1]) == 2
    bench.tick(limits.HEARTBEAT_BUSY_S + 0.01)
    assert len(bench.asked[W1]) == 2, "and once"


def test_the_highest_session_of_a_job_and_jobs_of_nobody() -> None:
    bench = Scripted()
    bench.tick()
    bench.report(W1, job=job_report(session=7))
    bench.report(W2, job=job_report(session=4))
    assert bench.fleet.session(JOB) == 7
    assert bench.fleet.session(JobUid("another")) == 0
    assert bench.fleet.strangers({JOB}) == {}
    assert bench.fleet.strangers(()) == {JOB: [W1, W2]}


def test_a_worker_of_another_version_is_not_silent_and_not_used() -> None:
    """It answers, so it is not lost; what it has is not known, so nothing is planned with it."""
    bench = Scripted()
    bench.tick()
    bench.report(W1)
    bench.report(W2)
    apart = m.Refusal(
        header=m.Header(cluster="c"), code=m.RefusalCode.VERSION, detail="speaks version 3"
    )
    while bench.clock.monotonic() < 2 * limits.WORKER_DOWN_S:
        bench.tick(limits.HEARTBEAT_S / 2)
        if bench.asked[W1]:
            bench.answer(W1, apart)
        if bench.asked[W2]:
            bench.report(W2)
    seen = bench.fleet.workers[W1]
    assert seen.heard_at == pytest.approx(bench.clock.monotonic(), abs=limits.HEARTBEAT_S)
    assert seen.detail == "speaks version 3"
    assert (bench.fleet.live(), bench.fleet.apart()) == ([W2], {W1})
    bench.tick(limits.HEARTBEAT_S)
    bench.report(W1)
    assert (bench.fleet.live(), bench.fleet.apart()) == ([W1, W2], frozenset())


def test_a_worker_of_another_version_that_never_reported_is_not_silent() -> None:
    bench = Scripted()
    bench.tick()
    apart = m.Refusal(header=m.Header(cluster="c"), code=m.RefusalCode.VERSION, detail="")
    bench.answer(W1, apart)
    assert bench.fleet.workers[W1].heard_at is not None
    assert bench.fleet.live() == []
