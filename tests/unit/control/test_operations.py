"""Operations from request to end: what is refused, what is persisted, what is shown."""

import logging
from collections.abc import Mapping

import pytest

from rhinoctl import limits
from rhinoctl.control.operations import pause_s
from rhinoctl.errors import (
    Busy,
    CannotPause,
    Exit,
    NoSuchWorkers,
    ParallelismOutOfRange,
    Refused,
    UnknownInstance,
    UnknownOperation,
    UnknownVnode,
)
from rhinoctl.ids import BASE, NO_OPERATION, BatchTime, OpId, Vnode, WorkerId
from rhinoctl.protocol import views
from rhinoctl.protocol.handover import Phase
from rhinoctl.protocol.jobs import VnodeUse
from tests.unit.control.bench import Bench, Driver, registration

W1, W2, W3 = WorkerId("w1"), WorkerId("w2"), WorkerId("w3")


def started(*, workers: int = 2, **changes: object) -> Bench:
    bench = Bench(workers=workers)
    bench.register(**changes)
    return bench


def run_to(bench: Bench, op: OpId, phase: Phase, driver: Driver | None = None) -> None:
    """Go on, with batches if there is a driver, until an operation is in a phase."""
    for turn in range(400):
        if bench.operation(op).phase is phase:
            return
        if driver is not None and turn % 5 == 4:  # reports come between its batches
            driver.go_on()
        bench.run(0.05)
    raise AssertionError(f"{op} is {bench.operation(op).phase}, not {phase}")


def hold_copies(bench: Bench) -> None:
    """Copies make no progress from now on."""
    for worker in bench.workers.values():
        worker.use = VnodeUse.COPYING


# --- requests ------------------------------------------------------------------------------------


def test_a_switchover_says_why_there_is_nowhere_to_go() -> None:
    bench = started()

    def refusal(target: str, to: str) -> str:
        request = views.SwitchoverRequest(target=target, to=to)
        with pytest.raises(Refused) as caught:
            bench.call(lambda c: c.switchover(request))
        return caught.value.message

    assert refusal("w1", "w1") == "what w1 owns of job clicks is on worker w1 already"
    assert refusal("w1", "i0") == "what w1 owns of job clicks is on worker w1 already"
    bench.call(lambda c: c.drain(views.DrainRequest(worker=W2, dry_run=False)))
    bench.run(5.0)
    assert refusal("w1", "w2") == "worker w2 is drained: it gets no vnodes"


@pytest.mark.parametrize("vnodes", [(4,), (-1,), (0, 99), ()])
def test_an_unknown_vnode_is_refused_with_those_that_there_are(vnodes: tuple[int, ...]) -> None:
    bench = started()
    with pytest.raises(UnknownVnode) as caught:
        bench.handover(*vnodes, to="i1")
    assert "0 to 3" in caught.value.remedy
    assert caught.value.exit_code is Exit.REFUSED
    assert bench.controller.operation_list().operations == ()


def test_an_unknown_instance_is_refused_with_those_that_there_are() -> None:
    bench = started()
    with pytest.raises(UnknownInstance, match="i0, i1"):
        bench.handover(0, to="i7")


@pytest.mark.parametrize("instances", [0, -3, 5])
@pytest.mark.parametrize("dry_run", [False, True])
def test_the_parallelism_has_bounds(instances: int, dry_run: bool) -> None:
    bench = started()
    with pytest.raises(ParallelismOutOfRange, match="1 to 4") as caught:
        bench.rescale(instances, dry_run=dry_run)
    assert caught.value.exit_code is Exit.USAGE
    assert bench.controller.operation_list().operations == ()


def test_an_unknown_operation_is_refused() -> None:
    with pytest.raises(UnknownOperation, match="op-3"):
        started().abort(OpId("op-3"))


def test_a_second_operation_is_refused_by_the_name_of_the_first() -> None:
    """Design, section 14: two operators at once."""
    bench = started()
    hold_copies(bench)
    first = bench.rescale(3)
    for again in (lambda: bench.rescale(4), lambda: bench.handover(0, to="i1")):
        with pytest.raises(Busy, match=first.id) as caught:
            again()
        assert caught.value.exit_code is Exit.BUSY
        assert f"rhinoctl op abort {first.id}" in caught.value.remedy
    bench.restart_controller()
    with pytest.raises(Busy, match=first.id):
        bench.rescale(4)
    assert [o.id for o in bench.controller.operation_list().operations] == [first.id]


def test_a_job_that_is_not_installed_is_refused() -> None:
    bench = Bench(workers=1)
    bench.run(1.0)
    bench.workers[W1].silent = True
    bench.submit(lambda c: c.register(registration(instances=1)))
    bench.run(0.5)
    with pytest.raises(Refused, match="not installed"):
        bench.rescale(2)


def test_requests_while_no_worker_answers() -> None:
    """They are refused, and the controller lives on."""
    bench = started()
    for worker in bench.workers.values():
        worker.silent = True
    bench.run(limits.WORKER_DOWN_S + limits.HEARTBEAT_TIMEOUT_S + 1.0)
    with pytest.raises(NoSuchWorkers):
        bench.rescale(3)
    with pytest.raises(NoSuchWorkers):
        bench.rescale(3, dry_run=True)
    with pytest.raises(Refused, match="w2"):
        bench.handover(0, to="i1")
    assert bench.controller.status().health.value == "down"
    assert bench.controller.operation_list().operations == ()


@pytest.mark.parametrize("dry_run", [False, True])
@pytest.mark.parametrize(("vnode", "to"), [(0, "i1"), (3, "i0")])
def test_a_move_to_or_from_a_worker_that_is_down_is_refused_by_its_name(
    vnode: int, to: str, dry_run: bool
) -> None:
    """Prechecks are the same code for a dry run (style, rule 12)."""
    bench = started()
    bench.workers[W2].silent = True
    bench.run(limits.WORKER_DOWN_S + limits.HEARTBEAT_TIMEOUT_S + 1.0)
    with pytest.raises(Refused, match="w2"):
        bench.handover(vnode, to=to, dry_run=dry_run)


@pytest.mark.parametrize("dry_run", [False, True])
def test_nothing_to_do_leaves_no_trace(dry_run: bool) -> None:
    """Style, rule 12: an empty plan is the end of it."""
    bench = started()
    for view in (bench.handover(0, 1, to="i0", dry_run=dry_run), bench.rescale(2, dry_run=dry_run)):
        assert (view.id, view.phase, view.moves) == (NO_OPERATION, Phase.COMPLETE, {})
    assert bench.controller.operation_list().operations == ()


def test_a_dry_run_shows_the_plan_and_leaves_no_trace() -> None:
    bench = started()
    view = bench.rescale(4, dry_run=True)
    assert (view.id, view.phase, len(view.moves)) == (NO_OPERATION, Phase.PLANNED, 2)
    bench.run(2.0)
    assert bench.controller.operation_list().operations == ()
    assert bench.rescale(4).id == "op-1"
    assert bench.rescale(4, dry_run=True).moves == view.moves, "beside one that runs"


# --- progress ------------------------------------------------------------------------------------


def test_a_handover_is_taken_by_the_driver_and_measured() -> None:
    bench = started()
    driver = bench.driver()
    driver.go_on(12)
    op = bench.handover(0, to="i1").id
    run_to(bench, op, Phase.COMPLETE, driver)
    bench.run(2.0)
    driver.go_on(3)
    bench.run(2.0)
    view = bench.operation(op)
    assert view.origins == {Vnode(0): "i0"}
    assert view.pause_ms is not None
    assert view.total_ms is not None
    assert list(view.times) == ["planned", "warming", "armed", "marked", "complete"]
    assert [i.vnodes for i in bench.job().instances] == [(1,), (0, 2, 3)]


def test_without_a_driver_the_controller_writes_the_epochs() -> None:
    bench = started()
    op = bench.handover(0, to="i1").id
    run_to(bench, op, Phase.COMPLETE)
    assert bench.operation(op).marker == BASE
    bench.run(1.0)
    assert not bench.operation(op).live
    assert bench.operation(op).pause_ms is None, "nothing was applied that could pause"


def test_a_live_driver_is_not_fenced_by_a_controller_that_starts_again() -> None:
    """It has not polled yet: that says nothing."""
    bench = started()
    driver = bench.driver()
    driver.go_on(3)
    op = bench.handover(0, to="i1").id
    bench.restart_controller()
    bench.run(1.0)
    driver.go_on()
    run_to(bench, op, Phase.COMPLETE, driver)
    assert bench.job().session == driver.lineage.session


def test_complete_waits_for_a_driver_that_may_live() -> None:
    """Invariant 7, over a restart of the controller."""
    bench = started()
    driver = bench.driver()
    driver.go_on(3)
    op = bench.handover(0, to="i1").id
    run_to(bench, op, Phase.MARKED, driver)
    bench.restart_controller()
    bench.run(2.0)
    assert bench.operation(op).phase is Phase.MARKED
    driver.poll()
    bench.run(1.0)
    assert bench.operation(op).phase is Phase.COMPLETE


def test_complete_waits_for_the_report_of_a_new_session() -> None:
    """Invariant 7: what the driver before it had reached is not its own."""
    bench = started()
    driver = bench.driver()
    driver.go_on(3)
    op = bench.handover(0, to="i1").id
    run_to(bench, op, Phase.ARMED, driver)
    bench.workers[W1].mute = True
    driver.go_on()
    driver.poll()
    later = bench.driver("r2", takeover=True)
    bench.workers[W1].mute = False
    bench.run(limits.HEARTBEAT_TIMEOUT_S + 0.5)
    assert bench.operation(op).phase is Phase.MARKED
    later.batch = driver.batch
    later.go_on()
    later.poll()
    bench.run(0.5)
    assert bench.operation(op).phase is Phase.COMPLETE


def test_a_driver_that_died_is_not_waited_for_long() -> None:
    bench = started()
    driver = bench.driver()
    driver.go_on(3)
    op = bench.handover(0, to="i1").id
    run_to(bench, op, Phase.MARKED, driver)
    bench.restart_controller()
    bench.run(limits.SESSION_LIVE_S + 1.0)
    assert bench.operation(op).phase is Phase.COMPLETE


@pytest.mark.parametrize("phase", [Phase.WARMING, Phase.ARMED])
def test_an_abort_before_the_marker_leaves_the_old_layout(phase: Phase) -> None:
    bench = started()
    driver = bench.driver()
    driver.go_on(2)
    if phase is Phase.WARMING:
        hold_copies(bench)
    op = bench.handover(0, to="i1").id
    for _ in range(20):
        if bench.operation(op).phase is phase:
            break
        driver.poll()
        if bench.operation(op).phase is not phase:
            driver.decide()
    bench.abort(op)
    run_to(bench, op, Phase.ABORTED, driver)
    assert bench.operation(op).reason == "enough"
    driver.go_on(3)
    bench.run(3.0)
    assert [i.vnodes for i in bench.job().instances] == [(0, 1), (2, 3)]
    assert bench.handover(0, to="i1").id == "op-2"


def test_an_abort_after_the_marker_changes_nothing() -> None:
    bench = started()
    driver = bench.driver()
    driver.go_on(2)
    op = bench.handover(0, to="i1").id
    run_to(bench, op, Phase.MARKED, driver)
    assert bench.abort(op).phase is Phase.MARKED
    run_to(bench, op, Phase.COMPLETE, driver)
    assert bench.abort(op).phase is Phase.COMPLETE


def test_the_deadline_passes_also_while_no_worker_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Invariant 6: design, section 14, an operation stuck for ever."""
    monkeypatch.setattr(limits, "HANDOVER_DEADLINE_S", 60.0)
    bench = started()
    hold_copies(bench)
    op = bench.handover(0, to="i1").id
    bench.run(1.0)
    for worker in bench.workers.values():
        worker.silent = True
    bench.run(limits.HANDOVER_DEADLINE_S)
    view = bench.operation(op)
    assert view.phase is Phase.ABORTED
    assert "vnode 0" in view.reason


def test_a_phase_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    bench = started()
    with caplog.at_level(logging.INFO, "rhino.controller"):
        op = bench.handover(0, to="i1").id
        run_to(bench, op, Phase.COMPLETE)
    phases = [r.args[2] for r in caplog.records if str(r.msg).startswith("handover ") and r.args]
    assert phases == ["warming", "armed", "marked", "complete"]


def test_an_instance_that_owns_nothing_retires() -> None:
    bench = started()
    op = bench.handover(2, 3, to="i0").id
    run_to(bench, op, Phase.COMPLETE)
    plan = bench.rescale(1, dry_run=True)
    assert (plan.moves, plan.phase) == ({}, Phase.PLANNED)
    op = bench.rescale(1).id
    run_to(bench, op, Phase.COMPLETE)
    bench.run(2.0)
    assert [i.id for i in bench.job().instances] == ["i0"]
    assert bench.operation(op).pause_ms is None


@pytest.mark.parametrize("workers", [1, 2])
def test_an_operation_goes_on_from_what_a_restarted_cluster_reports(workers: int) -> None:
    """After a power loss of all, workers report an epoch in which an instance that has retired
    still owns vnodes; the next operation is planned on the newest that was ever decided."""
    bench = started(workers=workers, instances=3)
    driver = bench.driver()
    driver.go_on(3)
    bench.run(limits.SESSION_LIVE_S + 1.0)
    run_to(bench, bench.handover(0, to="i1").id, Phase.COMPLETE)
    run_to(bench, bench.rescale(2).id, Phase.COMPLETE)
    assert [i.vnodes for i in bench.job().instances] == [(1, 3), (0, 2)]
    for worker in bench.workers.values():
        worker.restart()
    bench.restart_controller()
    bench.run(1.0)
    run_to(bench, bench.rescale(1).id, Phase.COMPLETE)
    assert [i.vnodes for i in bench.job().instances] == [(0, 1, 2, 3)]


def test_a_retired_origin_stays_to_tell_its_last_apply() -> None:
    bench = started(workers=1, instances=3)
    driver = bench.driver()
    driver.go_on(12)
    uid = bench.job().uid
    op = bench.rescale(2).id
    run_to(bench, op, Phase.MARKED, driver)
    bench.run(0.3)
    assert set(bench.workers[W1].desired[uid].instances) == {"i0", "i1", "i2"}
    run_to(bench, op, Phase.COMPLETE, driver)
    driver.go_on(2)
    bench.run(2.0)
    assert set(bench.workers[W1].desired[uid].instances) == {"i0", "i1"}
    assert bench.operation(op).pause_ms is not None


def test_the_pause_waits_for_the_last_apply_of_the_origin() -> None:
    bench = started()
    driver = bench.driver()
    driver.go_on(12)
    bench.workers[W1].told_until = BatchTime(0, 10)
    op = bench.handover(0, to="i1").id
    run_to(bench, op, Phase.COMPLETE, driver)
    driver.go_on(2)
    bench.run(2.0)
    assert bench.operation(op).pause_ms is None
    bench.workers[W1].told_until = BatchTime(1, 0)
    bench.run(2.0)
    assert bench.operation(op).pause_ms is not None


# --- redundancy after it -------------------------------------------------------------------------


def test_the_origin_leaves_the_chain_once_its_output_is_released() -> None:
    """Invariant 14: who left before would take the output of the marker's batch away."""
    bench = started()
    driver = bench.driver()
    driver.go_on(3)
    op = bench.handover(0, to="i1").id
    run_to(bench, op, Phase.MARKED, driver)
    marker = bench.operation(op).marker
    assert marker is not None
    bench.run(limits.SESSION_LIVE_S + 3.0)
    assert bench.operation(op).phase is Phase.COMPLETE
    assert bench.job().members == {Vnode(0): (W1,)}, "no query runs that could release it"
    again = bench.driver("r2")
    again.batch = marker.batch
    again.decide()
    again.go_on(3)
    bench.run(2.0)
    again.go_on(2)
    bench.run(2.0)
    assert bench.job().members == {}


def test_a_worker_that_has_left_forgets_the_job() -> None:
    """Design, invariant 8. Not sooner than all know a batch after it: no fence asks for it then."""
    bench = started(workers=3, instances=3)
    driver = bench.driver()
    driver.go_on(3)
    op = bench.rescale(2).id
    run_to(bench, op, Phase.COMPLETE, driver)
    gone = {W1, W2, W3} - {i.worker for i in bench.job().instances}
    assert all(bench.workers[w].desks for w in gone), "it is a member still"
    for _ in range(8):
        driver.go_on()
        bench.run(1.0)
    assert all(not bench.workers[w].desks for w in gone)
    assert all(bench.workers[w].desks for w in {W1, W2, W3} - gone)
    for worker in bench.workers.values():
        worker.restart()
    later = bench.driver("r2", takeover=True)
    later.batch = driver.batch
    later.go_on(2)
    op = bench.rescale(3).id
    run_to(bench, op, Phase.COMPLETE, later)
    assert all(bench.workers[w].desks for w in gone), "and may come back"


def test_a_worker_that_has_left_is_kept_while_a_fence_may_ask_for_it() -> None:
    """It voted on the record that lets it go, which after a restart of all may be undecided."""
    bench = started(workers=3, instances=3)
    driver = bench.driver()
    driver.go_on(3)
    run_to(bench, bench.rescale(2).id, Phase.COMPLETE, driver)
    members = bench.job().members
    for _ in range(20):
        driver.go_on()
        bench.run(limits.HEARTBEAT_S + 0.2)
        if not bench.job().members:
            break
    assert members
    assert not bench.job().members
    bench.run(3.0)
    assert all(worker.desks for worker in bench.workers.values())
    for worker in bench.workers.values():
        worker.restart()
    bench.restart_controller()
    later = bench.driver("r2", takeover=True)
    later.batch = driver.batch
    later.go_on(2)


# --- the pause -----------------------------------------------------------------------------------

STEADY = {0: 0.0, 1: 1.0, 2: 2.0, 3: 3.0}

PAUSES: list[tuple[str, Mapping[int, float], Mapping[int, float], int, float | None]] = [
    ("the usual gap", STEADY, {4: 4.0}, 3, 0.0),
    ("half a second more", STEADY, {4: 4.5, 5: 9.0}, 3, 0.5),
    ("sooner than usual", STEADY, {4: 3.2}, 3, 0.0),
    ("what the target did before", STEADY, {2: 2.1, 3: 3.1, 4: 4.25}, 3, 0.25),
    ("what the origin did after", {**STEADY, 4: 3.9}, {4: 4.25}, 3, 0.25),
    ("not applied yet", STEADY, {3: 3.1}, 3, None),
    ("nothing of the origin", {}, {4: 4.5}, 3, None),
    ("the target's first is not known", STEADY, {6: 6.0}, 3, None),
    ("one batch before", {3: 3.0}, {4: 3.5}, 3, 0.5),
    ("an origin that did not tell its last", {0: 0.0, 1: 1.0, 2: 2.0}, {4: 4.5}, 3, 0.5),
    ("before the first batch", {}, {0: 0.5}, -1, 0.0),
    ("one slow batch is no usual gap", {0: 0.0, 1: 1.0, 2: 6.0, 3: 7.0}, {4: 8.5}, 3, 0.5),
]


@pytest.mark.parametrize(("before", "after", "marker", "pause"), [p[1:] for p in PAUSES])
def test_the_pause(
    before: Mapping[int, float], after: Mapping[int, float], marker: int, pause: float | None
) -> None:
    """Design, section 13."""
    found = pause_s(times(before), times(after), BatchTime(0, marker))
    assert found == (None if pause is None else pytest.approx(pause))


def times(at: Mapping[int, float]) -> dict[BatchTime, float]:
    return {BatchTime(0, batch): seconds for batch, seconds in at.items()}


def test_the_usual_gap_is_that_of_the_ten_batches_before() -> None:
    slow = {batch: 10.0 * batch for batch in range(20)}
    fast = {20 + n: 200.0 + n for n in range(10)}
    found = pause_s(times({**slow, **fast}), times({30: 210.5}), BatchTime(0, 29))
    assert found == pytest.approx(0.5)


def test_the_pause_over_a_new_generation() -> None:
    before = {BatchTime(0, n): float(n) for n in range(5)}
    found = pause_s(before, {BatchTime(1, 0): 7.0}, BatchTime(0, 4))
    assert found == pytest.approx(2.0)


# --- pauses --------------------------------------------------------------------------------------


def test_a_paused_operation_moves_nothing_until_it_is_resumed() -> None:
    bench = started()
    driver = bench.driver()
    driver.go_on(3)
    op = bench.handover(0, to="i1").id
    assert bench.call(lambda c: c.pause(op)).phase is Phase.PAUSED
    assert bench.call(lambda c: c.pause(op)).phase is Phase.PAUSED, "it is so already"
    for _ in range(20):
        bench.run(0.5)
        driver.go_on()
    bench.restart_controller()
    bench.run(1.0)
    driver.go_on()
    view = bench.operation(op)
    assert (view.phase, view.progress) == (Phase.PAUSED, "1 of 1 vnodes follow")
    assert bench.controller.status().operations == (view,)
    assert Vnode(0) in bench.job().instances[0].vnodes
    with pytest.raises(Busy, match=f"handover {op} .* is paused") as caught:
        bench.rescale(3)
    assert f"rhinoctl op resume {op}" in caught.value.remedy
    assert f"rhinoctl op abort {op}" in caught.value.remedy
    assert "op watch" not in caught.value.remedy, "it does not end by itself"
    bench.call(lambda c: c.resume(op))
    run_to(bench, op, Phase.COMPLETE, driver)
    times = bench.operation(op).times
    assert times["paused"] < times["resumed"] <= times["armed"]


def test_a_paused_operation_does_not_wake_an_idle_job() -> None:
    bench = started()
    driver = bench.driver()
    driver.go_on(3)
    op = bench.handover(0, to="i1").id
    bench.call(lambda c: c.pause(op))
    for _ in range(10):
        driver.go_on()
        bench.run(0.5)
    woken = driver.poll().wake
    for _ in range(4):
        assert driver.poll().wake == woken


def test_a_pause_has_a_bound() -> None:
    bench = started()
    hold_copies(bench)
    op = bench.rescale(3).id
    bench.call(lambda c: c.pause(op))
    bench.clock.advance(limits.PAUSE_MAX_S)
    run_to(bench, op, Phase.ABORTED)
    assert "paused" in bench.operation(op).reason
    with pytest.raises(CannotPause, match="aborted"):
        bench.call(lambda c: c.resume(op))


def test_an_armed_operation_is_not_paused() -> None:
    bench = started()
    driver = bench.driver()
    driver.go_on(3)
    op = bench.handover(0, to="i1").id
    run_to(bench, op, Phase.ARMED, driver)
    with pytest.raises(CannotPause, match="armed") as caught:
        bench.call(lambda c: c.pause(op))
    assert caught.value.exit_code is Exit.REFUSED
    assert f"rhinoctl op abort {op}" in caught.value.remedy
    assert bench.call(lambda c: c.resume(op)).phase is Phase.ARMED, "it runs: nothing to do"
    run_to(bench, op, Phase.COMPLETE, driver)
    with pytest.raises(CannotPause, match="complete"):
        bench.call(lambda c: c.pause(op))
