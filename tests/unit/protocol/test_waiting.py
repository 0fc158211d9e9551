"""What an operation is said to wait for, phase by phase."""

from dataclasses import replace
from typing import Any

import pytest

from rhinoctl.ids import BatchTime, InstanceId, JobUid, OpId, Vnode, WorkerId
from rhinoctl.protocol.failover import GivenUp
from rhinoctl.protocol.handover import Facts, Phase
from rhinoctl.protocol.jobs import VnodeUse
from rhinoctl.protocol.messages import VnodeReport
from rhinoctl.protocol.recovery import Failover
from rhinoctl.protocol.waiting import by_hand, failover_waits_for, waits_for
from tests.unit.protocol.handover_walk import epoch
from tests.unit.protocol.test_handover import FULL, MOVED, after, facts

W1, W2, W3 = WorkerId("w1"), WorkerId("w2"), WorkerId("w3")
I1, V0 = InstanceId("i1"), Vnode(0)
CUT = epoch(5, {I1: W2}, (I1, "w3"))


def seen(**changes: Any) -> Facts:
    applied = VnodeReport(use=VnodeUse.OWNED, applied=BatchTime(0, 9))
    found = Facts(
        epoch=CUT,
        epoch_from=BatchTime(0, 9),
        reached={W2: 5, W3: 5},
        driver_epoch=None,
        copies={W2: {V0: applied}},
        ready=frozenset({I1}),
    )
    return replace(found, **changes)


def failover(phase: Phase, **changes: Any) -> Failover:
    return Failover(
        op=OpId("op-2"),
        job=JobUid("j-1"),
        gone=GivenUp(workers=frozenset({W1})),
        why="lost",
        decided=None,
        phase=phase,
        **changes,
    )


def test_a_handover_says_what_keeps_it() -> None:
    warming = after(facts(FULL), facts(FULL, copies={}))
    assert waits_for(warming, facts(FULL, copies={}).facts) == (
        "vnode 1, 2 to be followed by its target",
    )
    armed = after(facts(FULL), facts(FULL))
    assert waits_for(armed, facts(FULL).facts) == ("the record that begins epoch 4",)
    (_, silent) = waits_for(armed, facts(FULL, reached={W1: 3}).facts)
    assert "w2" in silent
    marked = after(facts(FULL), facts(FULL), facts(MOVED, reached={W1: 4, W2: 3}))
    late = facts(MOVED, reached={W1: 4, W2: 3}, driver_epoch=3).facts
    assert waits_for(marked, late) == (
        "worker w2 to report epoch 4",
        "the driver to report epoch 4",
    )
    assert waits_for(replace(marked, phase=Phase.COMPLETE), late) == ()


@pytest.mark.parametrize(
    ("state", "changes", "words"),
    [
        (failover(Phase.ARMED, proposal=CUT), {}, ["the cut"]),
        (failover(Phase.ARMED, proposal=CUT), {"reached": {W2: 4}}, ["the cut", "w3"]),
        (failover(Phase.MARKED, epoch=5), {}, []),
        (failover(Phase.MARKED, epoch=5), {"reached": {W2: 5}}, ["w3 to report epoch 5"]),
        (
            failover(Phase.MARKED, epoch=5, origins={V0: I1}, marker=BatchTime(0, 9)),
            {"copies": {}},
            ["vnode 0 to be recovered"],
        ),
        (failover(Phase.MARKED, epoch=5), {"driver_epoch": 4}, ["the driver"]),
        (failover(Phase.COMPLETE), {"reached": {}}, []),
    ],
)
def test_a_failover_says_what_keeps_it(
    state: Failover, changes: dict[str, Any], words: list[str]
) -> None:
    told = failover_waits_for(state, seen(**changes))
    assert len(told) == len(words)
    assert all(word in each for word, each in zip(words, told, strict=True))


def test_by_hand_with_force_only_where_state_would_be_lost() -> None:
    known = epoch(3, {InstanceId("i0"): W1, I1: W2}, (InstanceId("i0"), "w3"), (I1, ""))
    w1, both = GivenUp(workers=frozenset({W1})), GivenUp(workers=frozenset({W1, W2}))
    assert by_hand(known, w1.workers, w1) == "`rhinoctl failover w1`"
    typed = by_hand(known, both.workers, both)
    assert "`rhinoctl failover w1`, `rhinoctl failover w2 --force`" in typed
    assert "vnode 1 " in typed
