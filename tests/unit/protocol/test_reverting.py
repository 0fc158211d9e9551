"""The way back from a complete operation, by example."""

from collections.abc import Mapping

import pytest

from rhinoctl.ids import InstanceId, JobUid, OpId, Vnode, WorkerId
from rhinoctl.protocol.epochs import Epoch
from rhinoctl.protocol.handover import Handover, Kind, Phase
from rhinoctl.protocol.reverting import Way, plan_revert
from tests.unit.protocol.handover_walk import epoch

W1, W2, W3 = WorkerId("w1"), WorkerId("w2"), WorkerId("w3")
I0, I1, I2 = InstanceId("i0"), InstanceId("i1"), InstanceId("i2")
V0, V1, V2 = Vnode(0), Vnode(1), Vnode(2)

BEFORE = {I0: W1, I1: W2}
OUT = {**BEFORE, I2: W3}


def done(
    moves: Mapping[Vnode, InstanceId],
    before: Mapping[InstanceId, WorkerId],
    after: Mapping[InstanceId, WorkerId],
) -> Handover:
    return Handover(
        op=OpId("op-1"),
        kind=Kind.RESCALE,
        job=JobUid("j-1"),
        moves=moves,
        instances=after,
        before=before,
        workers={},
        deadline=1.0,
        phase=Phase.COMPLETE,
    )


def way(
    now: Epoch,
    operation: Handover,
    origins: Mapping[Vnode, InstanceId],
    usable: frozenset[WorkerId] = frozenset({W1, W2, W3}),
) -> Way:
    return plan_revert(now, operation, origins, usable)


SCALED_OUT = done({V1: I2, V2: I2}, BEFORE, OUT)
ORIGINS = {V1: I0, V2: I1}


def test_what_began_with_the_operation_retires_and_vnodes_go_home() -> None:
    found = way(epoch(9, OUT, (I0, ""), (I2, ""), (I2, "")), SCALED_OUT, ORIGINS)
    assert found.plan.moves == ORIGINS
    assert found.plan.instances == BEFORE
    assert (found.stays, found.elsewhere) == ({}, ())


def test_what_began_with_it_and_has_got_more_since_stays() -> None:
    found = way(epoch(9, OUT, (I2, ""), (I2, ""), (I2, "")), SCALED_OUT, ORIGINS)
    assert (found.plan.moves, found.plan.instances) == (ORIGINS, OUT)


def test_an_instance_that_has_retired_begins_again_on_its_worker() -> None:
    scaled_in = done({V2: I0}, BEFORE, {I0: W1})
    found = way(epoch(9, {I0: W1}, (I0, ""), (I0, ""), (I0, "")), scaled_in, {V2: I1})
    assert (found.plan.moves, found.plan.instances) == ({V2: I1}, BEFORE)
    assert found.plan.before == {I0: W1}


def test_an_instance_that_began_after_the_operation_stays() -> None:
    later = {**OUT, InstanceId("i3"): W1}
    found = way(epoch(9, later, (I0, ""), (I2, ""), (I2, "")), SCALED_OUT, ORIGINS)
    assert found.plan.instances == {**BEFORE, InstanceId("i3"): W1}


def test_what_is_back_already_is_left_alone() -> None:
    found = way(epoch(9, OUT, (I0, ""), (I0, ""), (I2, "")), SCALED_OUT, ORIGINS)
    assert found.plan.moves == {V2: I1}
    found = way(epoch(9, BEFORE, (I0, ""), (I0, ""), (I1, "")), SCALED_OUT, ORIGINS)
    assert found.plan.empty


def test_what_was_moved_on_is_said() -> None:
    found = way(epoch(9, OUT, (I0, ""), (I1, ""), (I2, "")), SCALED_OUT, ORIGINS)
    assert found.elsewhere == (V1,)


@pytest.mark.parametrize(
    ("now", "usable", "word"),
    [
        ({I0: W1, I2: W3}, frozenset({W1, W3}), "drained"),
        ({I0: W1, I1: W2, I2: W3}, frozenset({W1, W3}), "drained"),
        ({I0: W1, I1: W3, I2: W3}, frozenset({W1, W2, W3}), "another instance"),
    ],
    ids=["its worker is gone", "its worker is to be empty", "its name is taken"],
)
def test_a_vnode_without_a_home_stays_with_the_reason(
    now: Mapping[InstanceId, WorkerId], usable: frozenset[WorkerId], word: str
) -> None:
    found = way(epoch(9, now, (I0, ""), (I2, ""), (I2, "")), SCALED_OUT, ORIGINS, usable)
    assert found.plan.moves == {V1: I0}
    assert found.plan.instances == now, "the instance that still owns one goes on"
    assert list(found.stays) == [V2]
    assert word in found.stays[V2]


def test_an_operation_of_an_older_controller_has_only_origins() -> None:
    moved = done({V1: I1}, {}, BEFORE)
    found = way(epoch(9, BEFORE, (I0, ""), (I1, ""), (I1, "")), moved, {V1: I0})
    assert (found.plan.moves, found.plan.instances) == ({V1: I0}, BEFORE)
    found = way(epoch(9, {I1: W2}, (I1, ""), (I1, ""), (I1, "")), moved, {V1: I0})
    assert list(found.stays) == [V1]
