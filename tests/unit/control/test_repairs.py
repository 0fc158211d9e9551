"""What the controller tells doctor, and an operation whose workers are asked again."""

import copy

import pytest

from rhinoctl import limits
from rhinoctl.errors import (
    Busy,
    DeadlineExceeded,
    SecondSession,
    UnknownOperation,
    WorkerUnreachable,
)
from rhinoctl.ids import BatchTime, OpId, WorkerId
from rhinoctl.protocol import codec, views
from rhinoctl.protocol.batches import FaultKind
from rhinoctl.protocol.diagnosis import Facts, diagnose
from rhinoctl.protocol.evidence import ClusterEvidence
from rhinoctl.protocol.findings import Check
from rhinoctl.protocol.handover import Phase
from tests.fakes.store import FakeStore
from tests.unit.control.bench import NAME, Bench
from tests.unit.control.test_operations import hold_copies, run_to, started

W2 = WorkerId("w2")


def repair(bench: Bench, op: OpId) -> views.RepairView:
    view: views.RepairView = bench.call(lambda c: c.repair(op))
    return view


def checks(bench: Bench) -> set[Check]:
    """What doctor finds, over the codec as a client gets it."""
    evidence = bench.controller.evidence()
    assert codec.loads(ClusterEvidence, codec.dumps(evidence)) == evidence
    return {finding.check for finding in diagnose(Facts(cluster=evidence))}


def unsound(bench: Bench) -> set[Check]:
    """Besides that the fakes of this bench report no checkpoints, and nothing of members."""
    return checks(bench) - {Check.OWNER_NOT_WHOLE, Check.COPY_NOT_WHOLE}


def test_a_cluster_that_runs_is_sound() -> None:
    bench = started()
    bench.driver().go_on(3)
    bench.run(1.0)
    assert unsound(bench) == set()


@pytest.mark.slow
def test_a_silent_worker_and_a_late_operation_are_found() -> None:
    bench = started()
    op = bench.handover(0, to="i1").id
    run_to(bench, op, Phase.ARMED)
    bench.workers[W2].silent = True
    bench.run(limits.HANDOVER_DEADLINE_S + 10.0)
    assert unsound(bench) == {Check.WORKER_SILENT, Check.FAILOVER_BRAKED, Check.OPERATION_LATE}
    late = repair(bench, op)
    assert late.silent == (W2,)
    assert any("w2" in each for each in late.waits_for)
    bench.workers[W2].silent = False
    ended = repair(bench, op)
    assert ended.silent == ()
    bench.until(lambda: bench.operation(op).phase in (Phase.COMPLETE, Phase.ABORTED))
    assert repair(bench, op).waits_for == ()
    with pytest.raises(UnknownOperation):
        repair(bench, OpId("op-77"))


def test_what_an_operation_waits_for_is_said() -> None:
    bench = started()
    hold_copies(bench)
    op = bench.rescale(3).id
    bench.run(1.0)
    assert "to be followed" in repair(bench, op).waits_for[0]
    bench.call(lambda c: c.pause(op))
    assert repair(bench, op).waits_for == (f"somebody to go on with it: `rhinoctl op resume {op}`",)


def test_a_store_of_the_past_is_found() -> None:
    """Agents have persisted a session that a restored store does not have."""
    bench = started()
    past = copy.deepcopy(bench.store)
    bench.driver().go_on(2)
    bench.store = past
    bench.restart_controller()
    bench.run(1.0)
    assert Check.STORE_OLD in checks(bench)


def test_a_job_that_the_controller_does_not_know_is_found() -> None:
    bench = started()
    bench.store = FakeStore()
    bench.restart_controller()
    bench.run(1.0)
    assert checks(bench) == {Check.UNKNOWN_JOB}


# --- what was decided last -----------------------------------------------------------------------


def decided(bench: Bench) -> views.DecidedView:
    view: views.DecidedView = bench.call(lambda c: c.decided(NAME))
    return view


def test_the_last_decided_record_is_found_by_a_fence() -> None:
    """No older run of the query can decide anything after that (invariant 10)."""
    bench = started()
    assert decided(bench).batch is None
    driver = bench.driver()
    driver.go_on(4)
    with pytest.raises(SecondSession):
        decided(bench)
    bench.run(limits.SESSION_LIVE_S + 1.0)
    for worker in bench.workers.values():
        worker.restart()  # none of them knows its newest record to be decided
    view = decided(bench)
    assert (view.batch, view.start_offsets, view.end_offsets) == (BatchTime(0, 3), "3", "4")
    assert view.query_id == "q1"
    zombie = driver.decide()
    assert zombie.fault is not None
    assert zombie.fault.kind is FaultKind.FENCED


def test_an_epoch_record_repeats_the_offsets() -> None:
    bench = started()
    bench.driver().go_on(4)
    bench.run(limits.SESSION_LIVE_S + 1.0)
    run_to(bench, bench.handover(0, to="i1").id, Phase.COMPLETE)
    bench.run(1.0)
    assert (decided(bench).batch, decided(bench).end_offsets) == (BatchTime(0, 3), "4")


def test_what_was_decided_is_not_told_while_a_worker_is_silent_or_an_operation_runs() -> None:
    bench = started()
    hold_copies(bench)
    op = bench.handover(0, to="i1").id
    with pytest.raises(Busy, match=op):
        decided(bench)
    bench.abort(op)
    run_to(bench, op, Phase.ABORTED)
    bench.run(2.0)
    bench.workers[W2].silent = True
    call = bench.submit(lambda c: c.decided(NAME))
    bench.until(lambda: call.ended)
    with pytest.raises((WorkerUnreachable, DeadlineExceeded)):
        call.result()
