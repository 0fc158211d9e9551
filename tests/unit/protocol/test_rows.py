"""The machines that have no table in the code: their rows, and that each is taken.

A worker's phase is what it has of a job (`tests.fakes.rows.phase_of`). All requests of two sessions
over a few records are sent to it in every order: the rows that are taken are those of the table,
no more and no less. The tables of the batch and of the handover are compared in test_transitions.py
and test_handover.py; the simulator's seeds with all four, in tests/sim/test_sim.py.
"""

from collections.abc import Iterator
from dataclasses import replace

from rhinoctl.ids import Attempt, BatchTime, JobUid, OpId
from rhinoctl.protocol import messages as m
from rhinoctl.protocol import recovery, worker
from rhinoctl.protocol.epochs import Epoch
from rhinoctl.protocol.failover import GivenUp
from rhinoctl.protocol.handover import Facts, Phase
from rhinoctl.protocol.jobs import VnodeUse
from rhinoctl.protocol.recovery import Failover
from rhinoctl.protocol.worker import WorkerState
from tests.fakes.cluster.scenarios import I0, V0, W1, W2, epoch
from tests.fakes.rows import FAILOVER, WORKER, Row, recording
from tests.unit.protocol.building import CUT, FIRST, FOUNDING
from tests.unit.protocol.test_worker import CHANGE, ONE, ZERO, apply, header, open_, put, seal

AGAIN = replace(ZERO, attempt=Attempt(2, 1))
"""The same batch by another session."""

FOLLOWED = epoch({I0: W1}, ((I0, "w2?"), (I0, "w2?")))
"""w1 owns both vnodes, which w2 has joined: it is not waited for."""

RECORDS = (ZERO, ONE, CHANGE, AGAIN)
DEPTH = 5


def requests() -> Iterator[worker.Request]:
    """All that is asked of a worker."""
    yield seal(FOUNDING)
    for session in (1, 2):
        yield m.Fence(header=header(session))
        yield apply(FOUNDING, session)
    for of in RECORDS:
        yield seal(of)
        yield apply(of, of.attempt.session)
        if of.is_batch:
            asked = open_(of)
            yield asked
            yield replace(asked, epoch=FOLLOWED)
            yield put(of, 0)
            yield m.Resend(header=asked.header, time=of.time, attempt=of.attempt)


def walked() -> set[Row]:
    """The rows of every order of so many requests."""
    asked = tuple(requests())
    with recording() as taken:
        states, seen = [WorkerState(worker=W1), WorkerState(worker=W2)], set()
        for _ in range(DEPTH):
            after = [worker.step(state, request)[0] for state in states for request in asked]
            states = []
            for state in after:
                if repr(state) not in seen:
                    seen.add(repr(state))
                    states.append(state)
    return taken


def test_a_worker_takes_each_row_and_no_other() -> None:
    taken = walked()
    assert sorted(WORKER - taken) == [], "never taken"
    assert sorted(taken - WORKER) == [], "not in the table"


# --- failover ------------------------------------------------------------------------------------

BOTH = GivenUp(workers=frozenset({W1, W2}))
AT = BatchTime(0, 3)
LOST = Failover(
    op=OpId("op-1"), job=JobUid("j"), gone=GivenUp(workers=frozenset({W1})), why="", decided=AT
)


def facts(holds: Epoch = FIRST, *, reached: int = 0, applied: BatchTime | None = None) -> Facts:
    """What is seen of a job whose heir is w2."""
    report = m.VnodeReport(use=VnodeUse.OWNED, applied=applied)
    return Facts(
        epoch=holds,
        epoch_from=AT,
        reached={W2: reached},
        driver_epoch=None,
        copies={W2: {V0: report}},
        ready=frozenset(),
    )


def step(state: Failover, seen: Facts) -> Failover:
    return recovery.step(state, seen, {}, 1.0)


def test_a_failover_takes_each_row_and_no_other() -> None:
    with recording() as taken:
        offered = step(LOST, facts())
        assert (offered.phase, offered.proposal) == (Phase.ARMED, CUT)
        stranded = step(replace(LOST, gone=BOTH), facts())
        assert (stranded.phase, stranded.proposal) == (Phase.ABORTED, None)
        marked = step(offered, facts(CUT))
        assert (marked.phase, marked.marker) == (Phase.MARKED, AT)
        assert step(marked, facts(CUT, reached=CUT.number)) == marked  # the heir is behind
        there = facts(CUT, reached=CUT.number, applied=AT)
        assert step(marked, there).phase is Phase.COMPLETE
        assert step(offered, there).phase is Phase.COMPLETE  # all of it while nobody looked
        more = recovery.with_more(marked, BOTH, "w2, too")
        assert (more.phase, more.gone) == (Phase.ARMED, BOTH)
        assert recovery.with_more(marked, LOST.gone, "again") == marked
        assert recovery.with_more(offered, BOTH, "w2, too").phase is Phase.ARMED
    assert sorted(FAILOVER - taken) == [], "never taken"
    assert sorted(taken - FAILOVER) == [], "not in the table"
