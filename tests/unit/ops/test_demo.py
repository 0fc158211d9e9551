"""The demo's moves and its tally of what the job tells."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from rhinoctl import errors
from rhinoctl.control.client import ControlClient
from rhinoctl.ids import JobName, OpId, WorkerId
from rhinoctl.ops.demo_kill import Accident, victim_of
from rhinoctl.ops.demo_moves import MOVES, Moves, Step, single_moves
from rhinoctl.ops.demo_tally import Tally
from rhinoctl.protocol import views
from rhinoctl.protocol.handover import Phase
from rhinoctl.wire.secret import Secret
from tests.fakes import controller as fake
from tests.fakes.controller import TOKEN, FakeController

DEMO = JobName("demo")
W1 = WorkerId("w1")
LATENCY = {"p50": 1.0, "p99": 2, "max": 3.5}
BATCH = {
    "event": "batch",
    "batch": 1,
    "rows_in": 100,
    "rows_out": 10,
    "batch_ms": 20.5,
    "latency_ms": LATENCY,
    "epoch": 3,
    "of_a_later_version": True,
}


def owner_of(job: views.JobView, vnode: int) -> views.InstanceView:
    return next(i for i in job.instances if vnode in i.vnodes)


def test_single_moves_cross_instances_of_a_worker_and_workers() -> None:
    job = fake.job()
    request = single_moves(job)
    target = next(i for i in job.instances if i.id == request.to)
    origins = [owner_of(job, vnode) for vnode in request.vnodes]
    assert len(set(request.vnodes)) == 3
    assert target not in origins
    assert any(origin.worker == target.worker for origin in origins)
    assert any(origin.worker != target.worker for origin in origins)


def test_single_moves_on_one_worker() -> None:
    job = fake.job(instances=(fake.instance(0, "w1", range(8)), fake.instance(1, "w1", range(0))))
    request = single_moves(job)
    assert request.to == "i1"
    assert len(set(request.vnodes)) == 3


def test_single_moves_need_a_second_instance() -> None:
    with pytest.raises(errors.Refused):
        single_moves(fake.job(instances=(fake.instance(0, "w1", range(8)),)))


@pytest.fixture
def controller(tmp_path: Path) -> Iterator[FakeController]:
    with FakeController(tmp_path) as running:
        yield running


@pytest.fixture
def moves(controller: FakeController) -> Iterator[Moves]:
    controller.answers["GET", "/v1/jobs/demo"] = fake.job(name=DEMO)
    with ControlClient(controller.address, Secret(TOKEN)) as client:
        yield Moves(client, DEMO, MOVES)


def begins(controller: FakeController, verb: str, op: str, *phases: Phase) -> None:
    looks = [fake.operation(id=OpId(op), job=DEMO, phase=phase) for phase in phases]
    controller.answers["POST", f"/v1/jobs/demo/{verb}"] = looks[0]
    controller.answers["GET", f"/v1/ops/{op}"] = looks[1:] or looks


def test_each_step_waits_for_its_time_and_for_the_one_before(
    controller: FakeController, moves: Moves
) -> None:
    begins(controller, "rescale", "op-1", Phase.PLANNED, Phase.WARMING, Phase.COMPLETE)
    begins(controller, "handover", "op-2", Phase.PLANNED, Phase.COMPLETE)
    moves.advance(0.1)
    assert moves.begun == []
    moves.advance(0.3)
    assert [view.id for view in moves.begun] == ["op-1"]
    moves.advance(0.5)
    assert moves.running
    moves.advance(0.5)
    assert [view.id for view in moves.begun] == ["op-1", "op-2"]
    begins(controller, "rescale", "op-3", Phase.PLANNED, Phase.COMPLETE)
    moves.advance(0.8)
    moves.advance(0.8)
    moves.finish()
    assert [view.phase for view in moves.begun] == [Phase.COMPLETE] * len(MOVES)
    assert moves.faults == []


def test_what_aborts_or_never_begins_is_a_fault(controller: FakeController, moves: Moves) -> None:
    begins(controller, "rescale", "op-1", Phase.PLANNED, Phase.ABORTED)
    controller.answers["POST", "/v1/jobs/demo/handover"] = fake.problem("busy", "op-9 is running")
    moves.advance(0.3)
    moves.advance(0.4)
    moves.advance(0.5)
    moves.finish()
    assert len(moves.faults) == 3


def test_the_worker_with_the_most_vnodes_is_lost_if_there_are_copies() -> None:
    job = fake.job(
        instances=(fake.instance(0, "w1", range(3)), fake.instance(1, "w2", range(3, 8)))
    )
    assert victim_of(replace(job, replication=1)) == "w2"
    with pytest.raises(errors.Refused):
        victim_of(replace(job, replication=0))


def test_a_loss_of_which_nothing_comes_is_a_fault(controller: FakeController, moves: Moves) -> None:
    controller.answers["GET", "/v1/ops"] = views.OperationList(operations=())
    moves.steps = (Step(at=0.1, what="loss", begin=lambda *_: Accident(worker=W1, at=0.0)),)
    moves.advance(0.2)
    moves.advance(0.3)
    assert moves.running
    moves.finish()
    assert moves.faults == ["worker w1 was lost, and nothing came of it"]


def test_rows_are_counted_from_the_clock_on() -> None:
    tally = Tally()
    tally.take({"event": "started"}, 0.0)
    tally.take({"event": "preloading", "rows": 5, "of": 10}, 1.0)
    assert tally.preloading is not None
    tally.take(BATCH, 2.0)
    assert (tally.rows_in, tally.passed_s(2.0)) == (0, None)
    tally.take({"event": "clock"}, 3.0)
    for second in range(4, 14):
        tally.take(BATCH, float(second))
    assert tally.rows_in == 1000
    assert tally.rows_per_s(13.0) == pytest.approx(100.0)
    assert tally.passed_s(13.0) == 10.0


def test_the_result_and_a_fault_are_taken() -> None:
    tally = Tally()
    oracle = {"rows": 3, "missing": 0, "extra": 0, "equal": True}
    numbers = {"batches": 4, "rows_in": 5, "rows_out": 6}
    tally.take({"event": "result", **numbers, "latency_ms": LATENCY, "oracle": oracle}, 1.0)
    assert tally.result is not None
    assert tally.result.oracle.equal
    fault = {"event": "error", "code": "busy", "message": "m", "remedy": "r"}
    tally.take(fault, 2.0)
    assert tally.fault is not None
    tally.take({"event": "of a later version"}, 3.0)


def test_an_event_that_lacks_something() -> None:
    with pytest.raises(errors.RhinoError):
        Tally().take({"event": "batch", "batch": 1}, 0.0)
