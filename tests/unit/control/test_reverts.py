"""`op revert` at the controller: what is refused, and the layout that it leads to."""

import pytest

from rhinoctl.errors import Busy, CannotRevert, Exit, UnknownOperation
from rhinoctl.ids import NO_OPERATION, OpId, Vnode, WorkerId
from rhinoctl.protocol import views
from rhinoctl.protocol.handover import Kind, Phase
from tests.unit.control.bench import Bench
from tests.unit.control.test_operations import hold_copies, run_to, started


def revert(bench: Bench, op: OpId, *, dry_run: bool = False) -> views.OperationView:
    view: views.OperationView = bench.call(
        lambda c: c.revert(op, views.RevertRequest(dry_run=dry_run))
    )
    return view


def complete(bench: Bench, view: views.OperationView) -> views.OperationView:
    run_to(bench, view.id, Phase.COMPLETE)
    return view


def layout(bench: Bench) -> dict[str, tuple[int, ...]]:
    return {i.id: tuple(i.vnodes) for i in bench.job().instances}


def test_a_handover_is_taken_back_by_another() -> None:
    bench = started()
    before = layout(bench)
    op = complete(bench, bench.handover(0, 1, to="i1")).id
    plan = revert(bench, op, dry_run=True)
    assert (plan.id, plan.phase, dict(plan.moves)) == (
        NO_OPERATION,
        Phase.PLANNED,
        {0: "i0", 1: "i0"},
    )
    assert layout(bench) != before
    back = complete(bench, revert(bench, op))
    assert (back.kind, back.reverts, back.origins) == (Kind.HANDOVER, op, {0: "i1", 1: "i1"})
    assert layout(bench) == before
    assert revert(bench, op).phase is Phase.COMPLETE, "what is back is nothing to do"
    complete(bench, revert(bench, back.id))
    assert layout(bench) != before


@pytest.mark.parametrize("instances", [4, 1])
def test_a_rescale_is_taken_back_with_its_instances(instances: int) -> None:
    bench = started()
    before = layout(bench)
    op = complete(bench, bench.rescale(instances)).id
    assert bench.job().instances_asked == instances
    bench.restart_controller()
    bench.run(1.0)
    back = complete(bench, revert(bench, op))
    assert back.kind is Kind.RESCALE
    assert layout(bench) == before
    assert bench.job().instances_asked == 2


def test_what_runs_is_not_reverted_but_aborted() -> None:
    bench = started()
    hold_copies(bench)
    op = bench.rescale(3).id
    with pytest.raises(CannotRevert, match=op) as caught:
        revert(bench, op)
    assert caught.value.exit_code is Exit.REFUSED
    assert f"rhinoctl op abort {op}" in caught.value.remedy
    bench.abort(op)
    run_to(bench, op, Phase.ABORTED)
    with pytest.raises(CannotRevert, match="moved nothing"):
        revert(bench, op)
    with pytest.raises(UnknownOperation):
        revert(bench, OpId("op-9"))


def test_another_operation_comes_first_by_its_name() -> None:
    bench = started()
    op = complete(bench, bench.handover(0, to="i1")).id
    hold_copies(bench)
    second = bench.rescale(4).id
    with pytest.raises(Busy, match=second) as caught:
        revert(bench, op)
    assert caught.value.exit_code is Exit.BUSY
    assert dict(revert(bench, op, dry_run=True).moves) == {0: "i0"}


def test_whoever_moved_a_vnode_on_is_named() -> None:
    bench = started(instances=3)
    op = complete(bench, bench.handover(0, to="i1")).id
    later = complete(bench, bench.handover(0, to="i2")).id
    with pytest.raises(CannotRevert, match=f"handover {later}, to i2") as caught:
        revert(bench, op)
    assert f"rhinoctl op revert {later}" in caught.value.remedy
    complete(bench, revert(bench, later))
    complete(bench, revert(bench, op))
    assert Vnode(0) in layout(bench)["i0"]


def test_a_drained_worker_gets_nothing_back_until_it_may_have_some() -> None:
    bench = started()
    before = layout(bench)
    request = views.DrainRequest(worker=WorkerId("w1"))
    (drain,) = bench.call(lambda c: c.drain(request)).operations
    complete(bench, drain)
    with pytest.raises(CannotRevert, match="w1") as caught:
        revert(bench, drain.id)
    assert "--undo" in caught.value.remedy
    undo = views.DrainRequest(worker=WorkerId("w1"), undo=True)
    bench.call(lambda c: c.drain(undo))
    complete(bench, revert(bench, drain.id))
    assert layout(bench) == before
