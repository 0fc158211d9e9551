"""Which rows of the machines' transition tables are taken.

    with recording() as taken:
        simulate(plan)

The machines are pure functions of modules, so that a recorder stands in their place for as long as
it is wanted, and production knows nothing of it. Two machines have their table as data. The other
two decide by what they see; their rows are derived from what goes in and comes out, and written
down here.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rhinoctl.protocol import batches, handover, recovery, worker

Row = tuple[str, str, str, str]
"""Machine, phase, event, next phase."""


def tabled(machine: str, table: Mapping[tuple[Any, type], frozenset[Any]]) -> frozenset[Row]:
    """The rows of a table that the code consults."""
    return frozenset(
        (machine, phase.value, event.__name__, after.value)
        for (phase, event), targets in table.items()
        for after in targets
    )


def phase_of(state: worker.WorkerState) -> str:
    """What a worker has of a job, in one word."""
    if state.opened is not None:
        return "open"
    if state.sealed is not None:
        return "sealed"
    return "empty" if state.decided is None else "decided"


def _rows(machine: str, text: str) -> frozenset[Row]:
    """Lines of ``phase, event: next phase, next phase``."""
    found = set()
    for line in text.strip().splitlines():
        before, _, afters = line.partition(":")
        phase, event = before.replace(",", " ").split()
        found |= {(machine, phase, event, after.strip()) for after in afters.split(",")}
    return frozenset(found)


FAILOVER = _rows(
    "failover",
    """
    armed, Observed: armed, marked, complete, aborted
    armed, MoreLost: armed
    marked, Observed: marked, complete
    marked, MoreLost: marked, armed
    """,
)
"""`Observed`: workers have reported; `MoreLost`: `recovery.with_more`."""

WORKER = _rows(
    "worker",
    """
    empty, Fence: empty
    empty, Open: empty, open
    empty, Put: empty
    empty, Resend: empty
    empty, Seal: empty, sealed
    empty, Apply: empty
    decided, Fence: decided
    decided, Open: decided, open
    decided, Put: decided
    decided, Resend: decided
    decided, Seal: decided, sealed
    decided, Apply: decided
    open, Fence: open, decided, empty
    open, Open: open, decided, empty
    open, Put: open, decided, empty
    open, Resend: open, decided, empty
    open, Seal: open, sealed, decided, empty
    open, Apply: open, decided, empty
    sealed, Fence: sealed
    sealed, Open: sealed, open
    sealed, Put: sealed
    sealed, Resend: sealed
    sealed, Seal: sealed
    sealed, Apply: sealed, decided
    """,
)
"""Whatever is refused leaves the phase as it is, but that a newer session ends what is open."""

TABLES = (
    tabled("batch", batches.TRANSITIONS)
    | tabled("handover", handover.TRANSITIONS)
    | FAILOVER
    | WORKER
)


@contextmanager
def recording() -> Iterator[set[Row]]:
    """Every row that is taken meanwhile."""
    taken: set[Row] = set()
    steps = batches.step, handover.step, recovery.step, recovery.with_more, worker.step
    batch_step, handover_step, recovery_step, with_more, worker_step = steps

    def batch(state: Any, event: Any) -> Any:
        found = batch_step(state, event)
        taken.add(("batch", state.phase.value, type(event).__name__, found[0].phase.value))
        return found

    def move(state: Any, event: Any, now: float) -> Any:
        after = handover_step(state, event, now)
        taken.add(("handover", state.phase.value, type(event).__name__, after.phase.value))
        return after

    def recover(state: Any, *given: Any) -> Any:
        after = recovery_step(state, *given)
        taken.add(("failover", state.phase.value, "Observed", after.phase.value))
        return after

    def more(state: Any, *given: Any) -> Any:
        after = with_more(state, *given)
        taken.add(("failover", state.phase.value, "MoreLost", after.phase.value))
        return after

    def work(state: Any, request: Any) -> Any:
        found = worker_step(state, request)
        row = (phase_of(state), type(request).__name__, phase_of(found[0]))
        taken.add(("worker", *row))
        return found

    batches.step, handover.step = batch, move  # type: ignore[assignment]
    recovery.step, recovery.with_more, worker.step = recover, more, work
    try:
        yield taken
    finally:
        batches.step, handover.step, recovery.step, recovery.with_more, worker.step = steps
