"""What an agent refuses, and what it makes of the controller's wishes."""

from dataclasses import replace

import pytest
import xxhash

from rhinoctl.ids import Attempt, BatchTime, InstanceId, JobUid, Vnode, WorkerId
from rhinoctl.protocol import messages as m
from rhinoctl.protocol.claims import Claim
from rhinoctl.protocol.ports import Address
from rhinoctl.protocol.records import SliceName
from rhinoctl.wire.exchange import CallFailed
from tests.fakes.world import World


class Bench:
    """Worker w1 of a job that has run for a while and has no controller and no query any more."""

    def __init__(self) -> None:
        self.world = World(workers=2)
        self.query = self.world.start_query()
        self.world.until(lambda: self.query.directory.committed >= 10)
        self.query.kill()
        self.uid = self.world.uid()
        self.world.kill_controller()
        self.world.run(0.5)
        self.host = self.world.hosts["w1"]

    def ask(self, message: m.Message, payload: tuple[bytes, ...] = ()) -> m.Message:
        call = self.world.network.call
        return call(self.host.address, message, payload, timeout_s=5.0, origin=Address("a test"))[0]

    def heartbeat(self, *jobs: m.DesiredJob, worker: str = "w1") -> m.Message:
        """A heartbeat of the controller that was killed."""
        assert self.host.agent is not None
        look = m.Heartbeat(header=m.Header(cluster="c"), worker=WorkerId("w1"), jobs=())
        seen = self.ask(look)
        assert isinstance(seen, m.WorkerReport)
        return self.ask(replace(look, worker=WorkerId(worker), jobs=jobs, claim=seen.ruler))

    def wish(self, **wishes: object) -> m.DesiredJob:
        assert self.host.agent is not None
        spec = self.host.agent.desks[self.uid].job.spec
        return replace(m.DesiredJob(spec=spec), **wishes)  # type: ignore[arg-type]

    def header(self, **changes: object) -> m.Header:
        header = m.Header(cluster="c", job=self.uid, session=1000)
        return replace(header, **changes)  # type: ignore[arg-type]


def code(answer: m.Message) -> m.RefusalCode | None:
    return answer.code if isinstance(answer, m.Refusal) else None


def test_messages_of_another_cluster_job_or_worker_are_refused() -> None:
    bench = Bench()
    fence = m.Fence(header=bench.header())
    assert code(bench.ask(fence)) is None
    foreign = replace(fence, header=bench.header(cluster="another"))
    assert code(bench.ask(foreign)) is m.RefusalCode.FOREIGN
    unknown = replace(fence, header=bench.header(job=JobUid("another")))
    assert code(bench.ask(unknown)) is m.RefusalCode.UNKNOWN_JOB
    assert code(bench.heartbeat(worker="w2")) is m.RefusalCode.FOREIGN
    assert code(bench.ask(m.StopInstance(header=bench.header()))) is m.RefusalCode.FOREIGN


def test_a_put_whose_bytes_are_not_what_their_names_say_is_refused() -> None:
    bench = Bench()
    assert bench.host.agent is not None
    state = bench.host.agent.desks[bench.uid].job.state
    decided = state.sealed or state.decided
    assert decided is not None
    time = BatchTime(0, decided.time.batch + 1)
    attempt = Attempt(1000, 1)
    opening = m.Open(
        header=bench.header(),
        time=time,
        attempt=attempt,
        after=decided.id,
        epoch=decided.next_epoch,
    )
    assert isinstance(bench.ask(opening), m.Done)
    body = b"some bytes"
    name = SliceName(
        vnode=Vnode(0), rows=1, size=len(body), checksum=xxhash.xxh3_64_intdigest(body)
    )
    put = m.Put(
        header=bench.header(),
        time=time,
        attempt=attempt,
        channel=0,
        task_attempt=1,
        slices=(name,),
    )
    assert code(bench.ask(put, (b"other byte",))) is m.RefusalCode.FAULT
    assert code(bench.ask(put, (b"some bytes and more",))) is m.RefusalCode.FAULT
    assert code(bench.ask(put, ())) is m.RefusalCode.FAULT
    assert isinstance(bench.ask(put, (body,)), m.Done)


def test_instances_stay_until_the_controller_has_been_heard() -> None:
    """A target that is wanted by a wish only is not ended because its agent was started again."""
    bench = Bench()
    bench.heartbeat(bench.wish(instances=(InstanceId("i7"),)))
    bench.world.until(lambda: len(bench.host.pids("i7")) == 1)
    bench.host.kill_agent()
    bench.host.start_agent()
    bench.world.run(3.0)
    assert len(bench.host.pids("i7")) == 1
    bench.heartbeat(bench.wish())
    bench.world.run(1.0)
    assert bench.host.pids("i7") == []


def test_a_job_that_is_not_named_has_no_wishes_but_keeps_what_its_epoch_says() -> None:
    bench = Bench()
    bench.heartbeat(bench.wish(instances=(InstanceId("i7"),)))
    bench.world.until(lambda: len(bench.host.pids("i7")) == 1)
    bench.heartbeat()
    bench.world.run(1.0)
    assert bench.host.pids("i7") == []
    assert len(bench.host.pids("i0")) == 1


def test_old_news_that_a_worker_has_left_changes_nothing() -> None:
    bench = Bench()
    number = bench.world.epoch().number
    bench.heartbeat(bench.wish(left=number))
    bench.heartbeat(bench.wish(left=number - 1))
    assert bench.host.agent is not None
    assert bench.uid in bench.host.agent.desks


def test_a_worker_that_has_left_removes_everything() -> None:
    bench = Bench()
    number = bench.world.epoch().number
    bench.heartbeat(bench.wish(left=number + 1))
    assert bench.host.disk.list("jobs") == []
    assert bench.host.instances == {}


def test_a_setback_of_an_instance_is_reported() -> None:
    bench = Bench()
    assert bench.host.agent is not None
    instance = bench.host.agent.desks[bench.uid].job.instances[InstanceId("i0")]
    instance.set_back("a test")
    report = bench.heartbeat(bench.wish())
    assert isinstance(report, m.WorkerReport)
    assert report.jobs[bench.uid].instances[InstanceId("i0")].fault == "a test"
    assert report.jobs[bench.uid].instances[InstanceId("i0")].ready, "it answers"


# --- which controller it listens to --------------------------------------------------------------


def look(bench: Bench) -> m.WorkerReport:
    answer = bench.ask(m.Heartbeat(header=m.Header(cluster="c"), worker=WorkerId("w1"), jobs=()))
    assert isinstance(answer, m.WorkerReport)
    return answer


def claim_of(bench: Bench) -> Claim:
    ruler = look(bench).ruler
    assert ruler is not None
    return ruler


def tell(bench: Bench, claim: Claim, *jobs: m.DesiredJob) -> m.Message:
    header = m.Header(cluster="c")
    return bench.ask(m.Heartbeat(header=header, worker=WorkerId("w1"), jobs=jobs, claim=claim))


def restart(bench: Bench) -> None:
    """Power is lost, and back."""
    bench.host.power_loss()
    bench.host.start_agent()
    bench.world.run(0.5)


def has_job(bench: Bench) -> bool:
    assert bench.host.agent is not None
    return bench.uid in bench.host.agent.desks


def test_a_look_changes_nothing_and_tells_all() -> None:
    bench = Bench()
    assert bench.host.agent is not None
    job = bench.host.agent.desks[bench.uid].job
    desired = job.desired
    found = look(bench)
    assert job.desired == desired
    keepsake = found.keepsakes[bench.uid]
    assert keepsake.spec == job.spec
    assert keepsake.memo is not None
    assert keepsake.memo.session == bench.query.sessions[-1]
    assert keepsake.memo.run_id == bench.query.run_id
    assert found.jobs[bench.uid].epoch == bench.world.epoch()


def test_what_a_stale_store_wishes_is_not_done() -> None:
    """Not even the removal of a job."""
    bench = Bench()
    known = claim_of(bench)
    for stale in (
        replace(known, store="another"),
        replace(known, run="another", before=()),
        replace(known, run="next", before=((known.run, known.number - 1),)),
        replace(known, reign=known.reign - 1, number=known.number + 99),
    ):
        assert code(tell(bench, stale, bench.wish(dropped=True))) is m.RefusalCode.STALE_STORE
        assert code(tell(bench, stale)) is m.RefusalCode.STALE_STORE
    assert has_job(bench)
    assert claim_of(bench) == known


def test_a_wish_that_was_overtaken_is_not_done() -> None:
    bench = Bench()
    known = claim_of(bench)
    newer = replace(known, number=known.number + 1)
    assert code(tell(bench, newer, bench.wish())) is None
    late = tell(bench, known, bench.wish(dropped=True))
    assert isinstance(late, m.WorkerReport), "it is no fault"
    assert has_job(bench)
    assert claim_of(bench) == newer


def test_a_claim_is_durable_before_anything_is_done_by_it() -> None:
    bench = Bench()
    newer = replace(claim_of(bench), number=1000)
    trap = bench.world.trap("w1", "disk.rename jobs/", bench.host.power_loss)
    with pytest.raises(CallFailed):
        tell(bench, newer, bench.wish(dropped=True))
    assert trap.sprung
    bench.host.start_agent()
    bench.world.run(0.5)
    assert claim_of(bench) == newer


def test_the_same_claim_again_costs_no_write() -> None:
    bench = Bench()
    known = claim_of(bench)
    tell(bench, known, bench.wish())
    traps = [
        bench.world.trap("w1", f"disk.write_atomic {path}", lambda: None)
        for path in ("claim.json", f"jobs/{bench.uid}/memo.json", f"jobs/{bench.uid}/spec.json")
    ]
    for _ in range(3):
        tell(bench, known, bench.wish())
    assert not any(trap.sprung for trap in traps)
    tell(bench, replace(known, number=1000), bench.wish())
    assert [trap.sprung for trap in traps] == [True, False, False]


def test_a_full_disk_does_not_silence_the_worker() -> None:
    """It would be taken for dead; what it cannot write it knows as long as it lives."""
    bench = Bench()
    known = claim_of(bench)
    newer = replace(known, number=known.number + 1)
    bench.host.disk.capacity_bytes = 0
    assert isinstance(tell(bench, newer, bench.wish()), m.WorkerReport)
    old = replace(known, run="next", before=((known.run, known.number),))
    assert code(tell(bench, old, bench.wish())) is m.RefusalCode.STALE_STORE
    bench.host.disk.capacity_bytes = None
    tell(bench, newer, bench.wish())
    restart(bench)
    assert claim_of(bench) == newer


def test_another_replication_is_kept() -> None:
    bench = Bench()
    wish = bench.wish()
    tell(bench, claim_of(bench), replace(wish, spec=replace(wish.spec, replication=5)))
    restart(bench)
    assert look(bench).keepsakes[bench.uid].spec.replication == 5


def unreadable(bench: Bench) -> m.WorkerReport:
    """The agent is started again over a decided segment that is bad."""
    root = f"jobs/{bench.uid}/log"
    bench.host.kill_agent()
    segment = sorted(bench.host.disk.list(root))[1]
    bench.host.disk.corrupt(f"{root}/{segment}", b"not a segment")
    bench.host.start_agent()
    return look(bench)


def aside(bench: Bench) -> list[str]:
    return bench.host.disk.list("bad")


def test_what_cannot_be_read_is_told_and_refused_until_it_is_set_aside() -> None:
    bench = Bench()
    gone = bench.wish(left=bench.world.epoch().number, keep=True)
    report = unreadable(bench)
    assert report.jobs == {}
    assert report.unreadable[bench.uid].damaged
    assert ".seg" in report.unreadable[bench.uid].fault
    assert code(bench.ask(m.Fence(header=bench.header()))) is m.RefusalCode.BUSY
    before = len(bench.host.pids("i0"))
    assert before == 1, "it was not ended with its agent"
    bench.heartbeat(replace(gone, aside=report.header.incarnation))
    assert aside(bench) == [bench.uid]
    assert bench.host.disk.list("jobs") == []
    assert look(bench).unreadable == {}
    assert code(bench.ask(m.Fence(header=bench.header()))) is m.RefusalCode.UNKNOWN_JOB
    bench.world.run(1.0)
    assert bench.host.pids("i0") == []


def test_nothing_is_set_aside_for_news_of_another_start() -> None:
    """That start may have had a part in the job, which the controller does not know of."""
    bench = Bench()
    gone = bench.wish(left=bench.world.epoch().number, keep=True)
    report = unreadable(bench)
    for wish in (
        gone,
        replace(gone, aside=report.header.incarnation - 1),
        replace(gone, left=None),
    ):
        bench.heartbeat(wish)
        assert aside(bench) == []
        assert bench.uid in look(bench).unreadable


def test_what_can_be_read_is_not_set_aside() -> None:
    bench = Bench()
    seen = look(bench)
    bench.heartbeat(bench.wish(keep=True, left=1, aside=seen.header.incarnation))
    assert aside(bench) == []
    assert bench.uid in look(bench).jobs


def test_what_was_set_aside_last_is_kept_and_goes_with_its_job() -> None:
    bench = Bench()
    gone, new = bench.wish(left=bench.world.epoch().number, keep=True), bench.wish()
    report = unreadable(bench)
    bench.heartbeat(replace(gone, aside=report.header.incarnation))
    bench.heartbeat(new)
    assert bench.uid in look(bench).jobs
    assert aside(bench) == [bench.uid]
    bench.heartbeat(replace(new, dropped=True))
    assert aside(bench) == []
    assert bench.host.disk.list("jobs") == []
