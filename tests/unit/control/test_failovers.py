"""Instances that have nothing to open their vnodes from."""

from rhinoctl import limits
from rhinoctl.control.failovers import Bereft
from rhinoctl.ids import BASE, InstanceId, JobUid, WorkerId
from rhinoctl.protocol import messages as m
from rhinoctl.protocol.jobs import VnodeUse
from tests.fakes.clock import FakeClock
from tests.unit.protocol.handover_walk import epoch

W1, W2 = WorkerId("w1"), WorkerId("w2")
I0, I1 = InstanceId("i0"), InstanceId("i1")
UID = JobUid("clicks-1")
EPOCH = epoch(3, {I0: W1, I1: W2}, (I0, "w2"), (I1, "w1"))


def told(*bereft: int, of: WorkerId = W1) -> m.JobReport:
    """A worker's report of the vnodes that it owns."""
    mine = {v: v in bereft for v in EPOCH.owned_by(I0 if of == W1 else I1)}
    vnodes = {v: m.VnodeReport(use=VnodeUse.OWNED, bereft=lacks) for v, lacks in mine.items()}
    return m.JobReport(
        session=1,
        sealed=None,
        decided=None,
        epoch=EPOCH,
        epoch_from=None,
        released=BASE,
        log_bytes=0,
        vnodes=vnodes,
        instances={},
    )


def test_an_instance_is_given_up_once_it_has_been_bereft_for_a_while() -> None:
    clock = FakeClock()
    bereft = Bereft(clock)
    reports = {W1: told(0), W2: told(of=W2)}
    assert bereft.failed(UID, EPOCH, reports) == frozenset()
    clock.advance(limits.BEREFT_S)
    assert bereft.failed(UID, EPOCH, reports) == {I0}


def test_one_that_has_its_copy_in_time_is_not() -> None:
    clock = FakeClock()
    bereft = Bereft(clock)
    for lacking in ((0,), (), (0,)):
        assert bereft.failed(UID, EPOCH, {W1: told(*lacking), W2: told(of=W2)}) == frozenset()
        clock.advance(limits.BEREFT_S / 2)
    assert bereft.failed(UID, EPOCH, {W1: told(0), W2: told(of=W2)}) == frozenset()


def test_an_instance_whose_name_is_given_again_has_its_time_again() -> None:
    """It was given up for that before; its heirs make one of the same name."""
    clock = FakeClock()
    bereft = Bereft(clock)
    reports = {W1: told(0), W2: told(of=W2)}
    without = epoch(4, {I1: W2}, (I1, "w1"), (I1, ""))
    bereft.failed(UID, EPOCH, reports)
    clock.advance(limits.BEREFT_S)
    assert bereft.failed(UID, without, reports) == frozenset()
    assert bereft.failed(UID, EPOCH, reports) == frozenset()
    clock.advance(limits.BEREFT_S)
    assert bereft.failed(UID, EPOCH, reports) == {I0}


def test_nobody_is_given_up_for_what_no_other_living_worker_has() -> None:
    clock = FakeClock()
    bereft = Bereft(clock)
    alone = epoch(3, {I0: W1, I1: W2}, (I0, ""), (I1, ""))
    for known, reports in ((EPOCH, {W1: told(0)}), (alone, {W1: told(0), W2: told(of=W2)})):
        assert bereft.failed(UID, known, reports) == frozenset()
        clock.advance(2 * limits.BEREFT_S)
        assert bereft.failed(UID, known, reports) == frozenset()
