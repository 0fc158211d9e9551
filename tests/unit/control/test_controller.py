"""The controller's loop: calls, waits, deletion, a full disk, and what people are shown."""

import errno
import threading
from collections.abc import Iterator

import pytest

from rhinoctl import limits
from rhinoctl.control.controller import Controller, Waiting
from rhinoctl.errors import Busy, DeadlineExceeded, Degraded, UnknownJob
from rhinoctl.ids import JobName, WorkerId
from rhinoctl.protocol import views
from rhinoctl.protocol.handover import Kind, Phase
from rhinoctl.protocol.jobs import VnodeUse
from rhinoctl.protocol.ports import WriteBatch
from rhinoctl.protocol.views import Health
from tests.fakes.store import FakeStore
from tests.fakes.wire import Faults
from tests.unit.control.bench import NAME, Bench, registration

W1, W2 = WorkerId("w1"), WorkerId("w2")


def started(*, workers: int = 2, **changes: object) -> Bench:
    bench = Bench(workers=workers)
    bench.register(**changes)
    return bench


def silence(bench: Bench, *names: WorkerId) -> None:
    for name in names:
        bench.workers[name].silent = True
    bench.run(limits.WORKER_DOWN_S + limits.HEARTBEAT_TIMEOUT_S + 1.0)


# --- calls ---------------------------------------------------------------------------------------


@pytest.fixture
def stopped(monkeypatch: pytest.MonkeyPatch) -> Controller:
    """A controller whose loop does not turn, and callers that do not wait long for it."""
    monkeypatch.setattr(limits, "CALL_WAIT_S", 0.05)
    bench = Bench(workers=0)
    bench.schedule.remove("controller")
    return bench.controller


def test_a_call_that_the_loop_did_not_come_to_is_not_carried_out_later(
    stopped: Controller,
) -> None:
    done: list[int] = []
    with pytest.raises(Busy, match="nothing was done") as caught:
        stopped.call(lambda: done.append(1))
    assert caught.value.remedy
    stopped.step(0.0)
    assert done == []


def test_calls_that_wait_are_bounded(stopped: Controller) -> None:
    """Invariant 12."""
    for _ in range(limits.CALLS_WAITING_MAX):
        stopped.submit(lambda: None)
    with pytest.raises(Busy, match="too many") as caught:
        stopped.submit(lambda: None)
    assert caught.value.remedy
    stopped.step(0.0)
    stopped.submit(lambda: None)


def test_a_call_right_after_the_start_waits_until_the_workers_have_answered() -> None:
    bench = started()
    bench.restart_controller()
    assert bench.rescale(3).id == "op-1"
    status = bench.call(lambda c: c.status())
    assert status.health is Health.OK


def test_a_silent_worker_does_not_keep_the_calls_waiting() -> None:
    bench = started()
    bench.workers[W2].silent = True
    bench.restart_controller()
    begun = bench.clock.monotonic()
    status = bench.call(lambda c: c.status())
    assert bench.clock.monotonic() - begun <= limits.HEARTBEAT_TIMEOUT_S + 0.5
    assert [w.health for w in status.workers] == [Health.OK, Health.DOWN]


# --- what people see -----------------------------------------------------------------------------


@pytest.mark.parametrize("ready", [True, False])
def test_what_an_instance_fails_at_is_said_though_no_query_runs(ready: bool) -> None:
    bench = started()
    assert bench.call(lambda c: c.status()).findings == ()
    bench.workers[W2].ready, bench.workers[W2].fault = ready, "w1: 000012.sst is torn"
    bench.run(2.0)
    status = bench.call(lambda c: c.status())
    assert status.health is Health.DEGRADED
    (finding,) = status.findings
    assert "on worker w2" in finding.what
    assert "000012.sst is torn" in finding.what
    assert "`rhinoctl failover i1`" in finding.remedy


def test_status_names_what_is_wrong_and_what_to_type() -> None:
    bench = started()
    bench.run(1.5)
    assert bench.controller.status().findings == ()
    silence(bench, W2)
    status = bench.controller.status()
    assert status.health is Health.DEGRADED
    assert [w.vnodes_owned for w in status.workers] == [2, 2]
    found = " ".join(finding.what for finding in status.findings)
    assert "worker w2" in found
    assert "instance i1" not in found, "its worker is down: that is said already"
    assert all(finding.remedy for finding in status.findings)
    silence(bench, W1)
    assert bench.controller.status().health is Health.DOWN


@pytest.mark.parametrize("apart", [True, False])
def test_a_worker_of_another_version_is_named_and_not_given_up(apart: bool) -> None:
    """As one that is silent is."""
    bench = Bench(workers=3)
    bench.register(replication=1)
    bench.driver().go_on(3)
    bench.workers[W2].apart, bench.workers[W2].mute = apart, not apart
    bench.run(4 * limits.LEASE_OF_WORKER_S + limits.WORKER_DOWN_S)
    status = bench.controller.status()
    begun = [each.kind for each in bench.controller.operation_list().operations]
    assert begun == ([] if apart else [Kind.FAILOVER])
    said = [finding for finding in status.findings if "worker w2" in finding.what]
    assert said
    assert any("version 4" in each.what and "upgrade" in each.remedy for each in said) is apart
    if apart:
        bench.workers[W2].apart = False
        bench.run(2 * limits.HEARTBEAT_S)
        assert bench.controller.status().findings == ()


def test_a_job_shows_its_operation_and_members_while_it_moves() -> None:
    bench = started()
    driver = bench.driver()
    driver.go_on(2)
    op = bench.handover(0, to="i1").id
    for _ in range(6):
        driver.go_on()
        bench.run(0.2)
    view = bench.job()
    assert view.live
    assert view.members[0] in ((W2,), (W1,))  # type: ignore[index]
    assert {o.id for o in bench.controller.operation_list().operations} == {op}
    assert bench.controller.operation(op).job == NAME


def test_a_worker_that_answers_as_another_is_not_taken_for_it() -> None:
    bench = started()
    bench.workers[W2].name = W1
    bench.run(limits.WORKER_DOWN_S + 2.0)
    status = bench.controller.status()
    assert [w.health for w in status.workers] == [Health.OK, Health.DOWN]
    assert any("answers as worker w1" in finding.what for finding in status.findings)


# --- deletion ------------------------------------------------------------------------------------


def test_a_deleted_job_is_gone_from_all_workers_and_then_from_the_store() -> None:
    bench = started()
    uid = bench.job().uid
    bench.call(lambda c: c.delete(NAME))
    with pytest.raises(UnknownJob):
        bench.job()
    assert bench.controller.job_list().jobs == ()
    bench.run(3.0)
    assert all(not worker.desks for worker in bench.workers.values())
    bench.restart_controller()
    bench.run(3.0)
    assert bench.register().uid != uid


def test_deletion_waits_for_a_worker_that_is_down() -> None:
    bench = started()
    silence(bench, W2)
    bench.call(lambda c: c.delete(NAME))
    bench.run(5.0)
    assert not bench.workers[W1].desks
    bench.restart_controller()
    bench.run(5.0)
    bench.workers[W2].silent = False
    bench.run(5.0)
    assert not bench.workers[W2].desks


SLOW = Faults(delay_s=(0.05, 0.05))


def test_a_job_that_is_deleted_before_any_worker_has_told_of_it_leaves_nothing() -> None:
    """A worker has got the wish for it, and its report is under way."""
    bench = Bench()
    bench.run(1.0)
    bench.network.faults = SLOW
    call = bench.submit(lambda c: c.register(registration()))
    bench.until(lambda: any(worker.desks for worker in bench.workers.values()))
    bench.call(lambda c: c.delete(NAME))
    bench.run(5.0)
    assert all(not worker.desks for worker in bench.workers.values())
    assert call.ended
    with pytest.raises(UnknownJob):
        call.result()


@pytest.mark.parametrize("delay_s", [0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.7])
def test_a_deletion_while_the_job_is_installed(delay_s: float) -> None:
    """The controller outlives the end of an epoch record of a job that is gone."""
    bench = Bench()
    bench.run(1.0)
    bench.network.faults = SLOW
    call = bench.submit(lambda c: c.register(registration()))
    bench.run(delay_s)
    bench.call(lambda c: c.delete(NAME))
    bench.run(limits.FENCE_DEADLINE_S + limits.SEAL_DEADLINE_S + limits.APPLY_DEADLINE_S)
    assert call.ended
    assert bench.controller.status().health is Health.OK
    bench.register()


def test_a_job_in_use_is_not_deleted() -> None:
    bench = started()
    driver = bench.driver()
    driver.poll()
    with pytest.raises(Busy, match="live query"):
        bench.call(lambda c: c.delete(NAME))
    bench.restart_controller()
    with pytest.raises(Busy, match="live query"):
        bench.call(lambda c: c.delete(NAME))
    bench.run(limits.SESSION_LIVE_S + 1.0)
    for worker in bench.workers.values():
        worker.use = VnodeUse.COPYING
    op = bench.rescale(3).id
    with pytest.raises(Busy, match=op) as caught:
        bench.call(lambda c: c.delete(NAME))
    assert f"rhinoctl op abort {op}" in caught.value.remedy
    bench.abort(op)
    bench.call(lambda c: c.delete(NAME))


# --- a full disk ---------------------------------------------------------------------------------


class FullStore(FakeStore):
    full = False

    def write(self, batch: WriteBatch) -> None:
        if self.full:
            raise OSError(errno.ENOSPC, "No space left on device")
        super().write(batch)


def test_a_full_disk_refuses_calls_is_shown_and_heals() -> None:
    """Design, section 14: full disk that never heals."""
    store = FullStore()
    bench = Bench(store=store)
    bench.register()
    driver = bench.driver()
    driver.go_on(2)
    op = bench.handover(0, to="i1").id
    store.full = True
    with pytest.raises(Degraded, match="No space left"):
        bench.abort(op)
    with pytest.raises(Degraded) as caught:
        bench.call(lambda c: c.register(registration(name=JobName("other"))))
    assert caught.value.remedy
    driver.go_on(10)
    bench.run(1.0)
    status = bench.controller.status()
    assert status.health is Health.DEGRADED
    assert any("store" in finding.what for finding in status.findings)
    phase = bench.operation(op).phase
    assert phase in (Phase.PLANNED, Phase.WARMING)
    store.full = False
    for _ in range(20):
        driver.go_on()
        bench.run(0.2)
    assert bench.operation(op).phase is Phase.COMPLETE
    assert bench.controller.status().findings == ()


def test_a_full_disk_refuses_a_session_that_waited() -> None:
    store = FullStore()
    bench = Bench(store=store)
    bench.register()
    bench.session("r1")
    request = views.TakeSession(query_id="q1", run_id="r2", batch=0)
    call = bench.submit(lambda c: c.take_session(NAME, request))
    bench.run(1.0)
    assert not call.ended
    store.full = True
    bench.until(lambda: call.ended, within_s=limits.SESSION_LIVE_S + 1.0)
    with pytest.raises(Degraded):
        call.result()
    store.full = False
    assert bench.session("r2").session == 3, "the number was not used up"


def test_what_is_offered_was_persisted() -> None:
    """“Persist, then send”: a proposal that the store did not take is not offered."""
    store = FullStore()
    bench = Bench(store=store)
    bench.register()
    driver = bench.driver()
    driver.go_on(1)
    for worker in bench.workers.values():
        worker.use = VnodeUse.COPYING
    bench.handover(0, to="i1")
    store.full = True
    bench.run(2.0)
    assert driver.poll().proposal is None
    store.full = False
    bench.run(2.0)
    assert driver.poll().proposal is not None


# --- the API's callers in threads ----------------------------------------------------------------


@pytest.fixture
def turning() -> Iterator[Controller]:
    """A controller whose loop turns in a thread, in a cluster without workers."""
    bench = Bench(workers=0)
    over = threading.Event()

    def turn() -> None:
        while not over.wait(0.001):
            bench.controller.step(0.0)

    thread = threading.Thread(target=turn)
    thread.start()
    yield bench.controller
    over.set()
    thread.join()


def test_calls_from_many_threads_are_answered(turning: Controller) -> None:
    answers: list[views.JobList] = []
    threads = [
        threading.Thread(target=lambda: answers.append(turning.call(turning.job_list)))
        for _ in range(20)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [views.JobList(jobs=())] * 20


def test_an_error_of_a_call_is_its_callers(turning: Controller) -> None:
    with pytest.raises(UnknownJob):
        turning.call(lambda: turning.job("nobody"))
    assert turning.call(turning.job_list) == views.JobList(jobs=())


def test_a_call_whose_answer_does_not_come_may_have_been_carried_out(
    turning: Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "CALL_WAIT_S", 0.5)
    monkeypatch.setattr(limits, "START_WAIT_S", 0.0)
    never = Waiting(ready=lambda: None, late=lambda: None, deadline=float("inf"))
    with pytest.raises(DeadlineExceeded) as caught:
        turning.call(lambda: never)
    assert "before you repeat it" in caught.value.remedy


# --- a store that is refused ---------------------------------------------------------------------


def test_every_call_but_those_that_only_look_is_refused_with_the_store() -> None:
    """Who adds a call has to say which it is: `recover` is what the store is made anew by."""
    looks = {"status", "job_list", "job", "groups", "operation_list", "operation", "evidence"}
    looks |= {"disks"}
    loop = {"call", "submit", "step", "check_accepted"}
    public = {name: f for name, f in vars(Controller).items() if not name.startswith("_")}
    unchecked = {name for name, f in public.items() if not hasattr(f, "__wrapped__")}
    assert unchecked == looks | loop | {"recover"}
