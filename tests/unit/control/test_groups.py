"""How far copies are behind, which says who inherits."""

from dataclasses import replace

from rhinoctl.control.groups import batches_behind
from rhinoctl.ids import Attempt, BatchTime, Vnode, WorkerId
from rhinoctl.protocol import messages as m
from rhinoctl.protocol.jobs import VnodeUse
from rhinoctl.protocol.records import Position, RecordId
from tests.unit.control.test_failovers import W1, W2, told

V0 = Vnode(0)


def report(**copies: m.VnodeReport) -> m.JobReport:
    """Of a worker that knows of batch 9."""
    newest = RecordId(position=Position(0, 9, 0), attempt=Attempt(1, 1))
    vnodes = {Vnode(int(name[1:])): copy for name, copy in copies.items()}
    return replace(told(), decided=newest, vnodes=vnodes)


def held(covers: int | None, *, bereft: bool = False) -> m.VnodeReport:
    at = None if covers is None else BatchTime(0, covers)
    return m.VnodeReport(use=VnodeUse.OWNED, covers=at, bereft=bereft)


def test_copies_are_behind_by_what_an_heir_would_replay() -> None:
    reports = {W1: report(v0=held(7), v1=held(None)), W2: report(v0=held(9))}
    assert batches_behind(reports) == {(W1, V0): 2, (W2, V0): 0}


def test_a_copy_that_cannot_be_opened_tells_nothing() -> None:
    """Its checkpoint may be as new as anybody's, but rows after it have rotted in the log."""
    reports = {W1: report(v0=held(7, bereft=True)), W2: report(v0=held(3))}
    assert batches_behind(reports) == {(W2, V0): 6}


def test_while_nothing_is_decided_nothing_is_behind() -> None:
    reports: dict[WorkerId, m.JobReport] = {W1: told(0)}
    assert batches_behind(reports) == {}
