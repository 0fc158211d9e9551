"""Jobs at the controller: made known, given sessions, offered epochs."""

from typing import Any

import pytest

from rhinoctl import limits
from rhinoctl.errors import (
    DeadlineExceeded,
    Exit,
    IdentityChanged,
    NoSuchWorkers,
    ParallelismOutOfRange,
    RhinoError,
    SecondSession,
    UnknownJob,
    UsageError,
)
from rhinoctl.ids import BatchTime, WorkerId
from rhinoctl.protocol import views
from rhinoctl.protocol.jobs import OperatorSpec
from tests.unit.control.bench import NAME, Bench, registration

# --- registration --------------------------------------------------------------------------------


def test_a_job_is_known_once_all_its_instances_are_ready() -> None:
    bench = Bench(workers=2)
    for worker in bench.workers.values():
        worker.ready = False
    call = bench.submit(lambda c: c.register(registration()))
    bench.run(5.0)
    assert not call.ended
    bench.workers["w1"].ready = True  # type: ignore[index]
    bench.run(5.0)
    assert not call.ended
    bench.workers["w2"].ready = True  # type: ignore[index]
    bench.until(lambda: call.ended)
    view = call.result()
    assert (view.epoch, len(view.instances), view.session) == (1, 2, 1)


def test_a_start_that_waits_in_vain_says_so() -> None:
    bench = Bench(workers=1)
    bench.workers["w1"].ready = False  # type: ignore[index]
    with pytest.raises(DeadlineExceeded) as caught:
        bench.register()
    assert caught.value.remedy
    bench.workers["w1"].ready = True  # type: ignore[index]
    bench.register()


def test_by_default_there_is_an_instance_on_each_worker() -> None:
    bench = Bench(workers=3)
    view = bench.register(instances=None)
    assert [i.worker for i in view.instances] == ["w1", "w2", "w3"]
    assert len(Bench(workers=3).register(instances=None, vnodes=2).instances) == 2


REFUSED: list[tuple[dict[str, Any], type[RhinoError]]] = [
    ({"instances": 0}, ParallelismOutOfRange),
    ({"instances": -1}, ParallelismOutOfRange),
    ({"instances": 5}, ParallelismOutOfRange),
    ({"vnodes": 0}, UsageError),
    ({"vnodes": -4}, UsageError),
    ({"vnodes": 3}, UsageError),
    ({"vnodes": 65536}, UsageError),
    ({"replication": -1}, UsageError),
    ({"name": ""}, UsageError),
    ({"name": "../../etc"}, UsageError),
    ({"name": "a b"}, UsageError),
    ({"name": "a" * 65}, UsageError),
]


@pytest.mark.parametrize(("wrong", "error"), REFUSED)
def test_a_registration_that_is_wrong_is_refused(
    wrong: dict[str, Any], error: type[RhinoError]
) -> None:
    bench = Bench()
    with pytest.raises(error) as caught:
        bench.register(**wrong)
    assert caught.value.exit_code is Exit.USAGE
    assert caught.value.remedy
    assert bench.controller.job_list().jobs == ()


def test_all_workers_of_the_inventory_are_needed_and_the_silent_are_named() -> None:
    bench = Bench(workers=3)
    bench.workers["w2"].silent = True  # type: ignore[index]
    with pytest.raises(NoSuchWorkers, match="w2"):
        bench.register()
    with pytest.raises(NoSuchWorkers, match="no worker"):
        Bench(workers=0).register()
    bench.workers["w2"].silent = False  # type: ignore[index]
    bench.run(3.0)
    bench.register()


def test_a_known_job_is_found_again_and_stays_as_it_is() -> None:
    bench = Bench()
    first = bench.register()
    assert bench.register(instances=4).uid == first.uid
    assert len(bench.job().instances) == 2


@pytest.mark.parametrize(
    "other", [{"operator": OperatorSpec(name="running", spec="{}", digest="d2")}, {"vnodes": 8}]
)
def test_another_identity_is_refused(other: dict[str, Any]) -> None:
    """Invariant 11."""
    bench = Bench()
    bench.register()
    with pytest.raises(IdentityChanged) as caught:
        bench.register(**other)
    assert caught.value.remedy


def test_a_controller_that_dies_while_it_installs_a_job_goes_on() -> None:
    bench = Bench()
    call = bench.submit(lambda c: c.register(registration()))
    for _ in range(40):
        bench.run(0.01)
        bench.restart_controller()
    bench.run(5.0)
    assert not call.ended
    view = bench.register()
    assert view.epoch == 1
    assert {d.state.epoch().number for w in bench.workers.values() for d in w.desks.values()} == {1}


def test_an_installation_that_fails_is_tried_again_after_a_pause() -> None:
    """Invariant 12: not in every turn of the loop, since each try takes a session number."""
    bench = Bench(workers=2)
    bench.run(1.0)
    call = bench.submit(lambda c: c.register(registration()))
    bench.workers["w2"].silent = True  # type: ignore[index]
    bench.until(lambda: call.ended, within_s=limits.START_WAIT_S + 5.0)
    with pytest.raises(DeadlineExceeded):
        call.result()
    tries = bench.job().session
    assert 1 <= tries <= limits.START_WAIT_S / limits.FENCE_DEADLINE_S + 1
    bench.workers["w2"].silent = False  # type: ignore[index]
    bench.register()


# --- sessions ------------------------------------------------------------------------------------


def test_sessions_are_numbered_and_each_begins_at_the_newest_epoch() -> None:
    bench = Bench()
    bench.register()
    first = bench.session("r1")
    again = bench.session("r1")
    assert again.session == first.session + 1
    assert (first.epoch.number, first.generation) == (1, 0)


def test_invariant_2_a_session_is_granted_with_the_cut_that_is_offered() -> None:
    """Whoever held the session before may have decided without those whom it gives up; a controller
    that has just started says so, too."""
    bench = Bench()
    bench.register()
    driver = bench.driver("r1")
    driver.go_on()
    assert bench.session("r1").cut is None
    bench.schedule.remove("w2")
    bench.run(2 * limits.LEASE_OF_WORKER_S)
    bench.session("r1")
    bench.call(lambda c: c.failover(views.FailoverRequest(target="w2", force=True)))
    for _ in range(2):
        cut = bench.session("r1").cut
        assert cut is not None
        assert (cut.lost, cut.forced) == ({WorkerId("w2")}, True)
        bench.restart_controller()


def test_a_second_run_is_refused_while_the_first_polls() -> None:
    """Invariant 10."""
    bench = Bench()
    bench.register()
    driver = bench.driver("r1")
    driver.poll()
    call = bench.submit(
        lambda c: c.take_session(NAME, views.TakeSession(query_id="q1", run_id="r2", batch=0))
    )
    bench.run(0.5)
    driver.poll()
    bench.until(lambda: call.ended, within_s=2.0)
    with pytest.raises(SecondSession, match="r1") as caught:
        call.result()
    assert caught.value.exit_code is Exit.REFUSED
    assert driver.poll().live


def test_a_run_that_was_killed_and_is_started_again_is_not_refused() -> None:
    bench = Bench()
    bench.register()
    bench.driver("r1").poll()
    begun = bench.clock.monotonic()
    grant = bench.session("r2")
    assert grant.session > 1
    assert bench.clock.monotonic() - begun <= limits.SESSION_LIVE_S + limits.POLL_WAIT_S


def test_a_takeover_is_granted_and_the_first_run_is_told() -> None:
    bench = Bench()
    bench.register()
    first = bench.driver("r1")
    first.poll()
    begun = bench.clock.monotonic()
    bench.session("r2", takeover=True)
    assert bench.clock.monotonic() - begun < 1.0
    assert not first.poll().live


def test_polls_of_an_older_session_do_not_keep_the_job() -> None:
    bench = Bench()
    bench.register()
    old = bench.driver("r1")
    bench.session("r2", takeover=True)
    bench.run(limits.SESSION_LIVE_S)
    old.poll()
    assert not bench.job().live
    bench.session("r3")


def test_another_query_is_refused_at_once() -> None:
    """Invariant 11: rows of a new stream are never dropped as already applied."""
    bench = Bench()
    bench.register()
    bench.driver("r1")
    begun = bench.clock.monotonic()
    with pytest.raises(IdentityChanged, match="q2") as caught:
        bench.session("r2", query_id="q2")
    assert "--new-stream" in caught.value.remedy
    assert bench.clock.monotonic() - begun < 1.0


def test_a_new_stream_opens_the_next_generation_once() -> None:
    bench = Bench()
    bench.register()
    bench.session("r1")
    bench.run(limits.SESSION_LIVE_S)
    answer = bench.call(lambda c: c.bind(NAME, views.BindRequest(new_stream=True)))
    assert answer.detail
    assert bench.session("r2", query_id="q2").generation == 1
    assert bench.session("r2", query_id="q2").generation == 1, "an answer that was lost"
    assert bench.session("r3", query_id="q2", takeover=True).generation == 1
    with pytest.raises(IdentityChanged):
        bench.session("r4", query_id="q1", takeover=True)
    bench.restart_controller()
    assert bench.job().generation == 1


def test_a_permission_is_taken_back_or_used_up_by_the_old_query() -> None:
    for used_up in (False, True):
        bench = Bench()
        bench.register()
        bench.session("r1")
        bench.run(limits.SESSION_LIVE_S)
        bench.call(lambda c: c.bind(NAME, views.BindRequest(new_stream=True)))
        if used_up:
            assert bench.session("r2").generation == 0
        else:
            bench.call(lambda c: c.bind(NAME, views.BindRequest(new_stream=False)))
        with pytest.raises(IdentityChanged):
            bench.session("r3", query_id="q2", takeover=True)


def test_a_job_with_a_live_query_is_not_bound() -> None:
    bench = Bench()
    bench.register()
    bench.session("r1")
    with pytest.raises(SecondSession):
        bench.call(lambda c: c.bind(NAME, views.BindRequest(new_stream=True)))


def test_calls_about_an_unknown_job_are_refused() -> None:
    bench = Bench()
    report = views.DriverReport(session=1, epoch=1, batch=None, revision=0)
    for call in (
        lambda c: c.job("x"),
        lambda c: c.delete("x"),
        lambda c: c.bind("x", views.BindRequest(new_stream=True)),
        lambda c: c.poll("x", report),
        lambda c: c.take_session("x", views.TakeSession(query_id="q", run_id="r", batch=0)),
        lambda c: c.rescale("x", views.RescaleRequest(instances=1)),
    ):
        with pytest.raises(UnknownJob):
            bench.call(call)


def test_after_a_restart_a_live_run_is_given_time_to_be_heard() -> None:
    """Its polls failed meanwhile: that they are not there yet says nothing."""
    bench = Bench()
    bench.register()
    driver = bench.driver("r1")
    bench.restart_controller()
    call = bench.submit(
        lambda c: c.take_session(NAME, views.TakeSession(query_id="q1", run_id="r2", batch=0))
    )
    bench.run(1.0)
    assert not call.ended
    driver.poll()
    bench.until(lambda: call.ended, within_s=1.0)
    with pytest.raises(SecondSession):
        call.result()


# --- offers --------------------------------------------------------------------------------------


def test_a_poll_is_answered_at_once_when_there_is_news_and_late_when_there_is_none() -> None:
    bench = Bench()
    bench.register()
    driver = bench.driver()
    begun = bench.clock.monotonic()
    first = driver.poll()
    assert bench.clock.monotonic() - begun < 0.5
    assert (first.proposal, first.live) == (None, True)
    begun = bench.clock.monotonic()
    assert driver.poll() == first
    assert limits.POLL_WAIT_S <= bench.clock.monotonic() - begun < limits.POLL_WAIT_S + 0.5


def test_a_proposal_ends_a_poll_that_waits() -> None:
    bench = Bench()
    bench.register()
    driver = bench.driver()
    first = driver.poll()
    bench.handover(0, to="i1")
    begun = bench.clock.monotonic()
    offers = [driver.poll() for _ in range(3)]
    assert bench.clock.monotonic() - begun < limits.POLL_WAIT_S
    assert len({offer.revision for offer in (first, *offers)}) > 1
    assert offers[-1].proposal is not None
    assert offers[-1].proposal.number == 2


def test_an_idle_job_is_woken_while_an_operation_waits_for_a_batch() -> None:
    bench = Bench()
    bench.register()
    driver = bench.driver()
    before = driver.poll().wake
    bench.run(3.0)
    assert driver.poll().wake == before, "nothing runs"
    bench.handover(0, to="i1")
    wakes = []
    for _ in range(8):
        wakes.append(driver.poll().wake)
        bench.run(limits.WAKE_EVERY_S)
    assert wakes == sorted(wakes)
    assert wakes[-1] >= before + 3


def test_revisions_and_wakes_grow_over_a_restart() -> None:
    """A driver that saw the offer of the controller before must see that of the new one."""
    bench = Bench()
    bench.register()
    driver = bench.driver()
    bench.handover(0, to="i1")
    before = [driver.poll() for _ in range(4)][-1]
    bench.run(1.0)
    bench.restart_controller()
    bench.run(1.0)
    after = driver.poll()
    assert after.revision > before.revision
    assert after.wake > before.wake


# --- epochs --------------------------------------------------------------------------------------


def test_the_epoch_does_not_go_back_when_workers_start_again() -> None:
    """Their newest record is not known to be decided then."""
    bench = Bench()
    bench.register()
    op = bench.rescale(3)
    bench.until(lambda: bench.operation(op.id).phase.value == "complete")
    bench.run(3.0)
    number = bench.job().epoch
    for worker in bench.workers.values():
        worker.restart()
    bench.run(3.0)
    known = [d.state.decided for w in bench.workers.values() for d in w.desks.values()]
    assert all(record is None or record.next_epoch.number < number for record in known)
    assert bench.job().epoch == number
    assert bench.session("r1").epoch.number == number


def test_a_job_starts_again_with_all_its_instances_after_a_restart_of_all() -> None:
    bench = Bench()
    bench.register()
    op = bench.rescale(3)
    bench.until(lambda: bench.operation(op.id).phase.value == "complete")
    for worker in bench.workers.values():
        worker.restart()
    bench.restart_controller()
    assert len(bench.register().instances) == 3
    driver = bench.driver()
    driver.go_on(2)
    bench.run(2.0)
    assert bench.job().batch == BatchTime(0, 1)
