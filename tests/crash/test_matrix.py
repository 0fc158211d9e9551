"""T5, the crash matrix of a handover: each participant dies, or stands still, at each of its steps.

Real processes, of which one sends itself SIGKILL or SIGSTOP at a fault point
(`rhinoctl.wire.points`). What was killed is started again, what was stopped goes on after a while;
then the handover has to end within a minute, all moved or none, and the job to go on. When all
cells are through, the result is compared with Spark's own.

``make crash`` runs all cells, or so many, drawn at random: ``make crash CELLS=10 SEED=7``.
"""

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

import pytest

from rhinoctl.errors import DeadlineExceeded, NotRunning
from rhinoctl.ids import InstanceId, OpId, Vnode
from rhinoctl.protocol import codec
from rhinoctl.protocol.handover import ENDED, Kind, Phase
from rhinoctl.protocol.views import HandoverRequest, OperationView
from rhinoctl.wire.points import VARIABLE, Order
from tests.integration.running import JOB, Running

pytestmark = [pytest.mark.e2e, pytest.mark.spark, pytest.mark.timeout(300)]

MOVED = (Vnode(0), Vnode(1))
ENDS_WITHIN_S = 60.0
SPRINGS_WITHIN_S = 60.0
STANDSTILL_S = {"driver": 20.0}
STANDSTILL_OTHERS_S = 3.0

Steps = dict[str, Order]

CONTROLLER: Steps = {
    "before the operation is persisted": Order(does="write"),
    "after the operation is persisted": Order(does="write", after=True),
    "before the join is persisted": Order(does="write", skip=1),
    "after the join is persisted": Order(does="write", after=True, skip=1),
    "before a third change is persisted": Order(does="write", skip=2),
    "after a third change is persisted": Order(does="write", after=True, skip=2),
    "before a fifth change is persisted": Order(does="write", skip=4),
    "after a fifth change is persisted": Order(does="write", after=True, skip=4),
    "before a heartbeat with wishes": Order(does="send", skip=3),
    "after a heartbeat with wishes": Order(does="send", after=True, skip=3),
}
AGENT: Steps = {
    "before rows are appended": Order(does="append", skip=3),
    "after rows are appended": Order(does="append", after=True, skip=3),
    "before a seal is durable": Order(does="sync", holding="log/", skip=2),
    "after a seal is durable": Order(does="sync", holding="log/", after=True, skip=2),
    "before a seal is answered": Order(does="reply", holding="SealAnswer", skip=2),
    "after a seal is answered": Order(does="reply", holding="SealAnswer", after=True, skip=2),
    "before an apply is answered": Order(does="reply", holding="ApplyAnswer", skip=2),
    "after an apply is answered": Order(does="reply", holding="ApplyAnswer", after=True, skip=2),
}
ORIGIN: Steps = {
    **AGENT,
    "before a manifest is given": Order(does="reply", holding="ManifestOf"),
    "after a manifest is given": Order(does="reply", holding="ManifestOf", after=True),
}
TARGET: Steps = {
    **AGENT,
    "before a manifest is asked for": Order(does="send", holding="FetchManifest"),
    "after a manifest is asked for": Order(does="send", holding="FetchManifest", after=True),
    "before a vnode is opened": Order(does="send", holding="OpenVnode"),
    "after a vnode is opened": Order(does="send", holding="OpenVnode", after=True),
    "before it follows a batch": Order(does="send", holding="ApplyBatch", skip=1),
}
INSTANCE: Steps = {
    "before the first answer": Order(does="reply"),
    "after the first answer": Order(does="reply", after=True),
    **{
        f"{'after' if after else 'before'} answer {number}": Order(
            does="reply", after=after, skip=number
        )
        for number in (2, 5, 9)
        for after in (False, True)
    },
}
DRIVER: Steps = {
    f"{'after' if after else 'before'} {message.lower()} {number}": Order(
        does="send", holding=message, after=after, skip=number
    )
    for message, number in (("Open", 0), ("Open", 3), ("Seal", 1), ("Seal", 3), ("Apply", 2))
    for after in (False, True)
}
STEPS = {
    "controller": CONTROLLER,
    "origin": ORIGIN,
    "target": TARGET,
    "instance": INSTANCE,
    "driver": DRIVER,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """Who does what to itself, and when."""

    victim: str
    step: str
    stop: bool

    def __str__(self) -> str:
        return f"{self.victim} {'stopped' if self.stop else 'killed'} {self.step}"


def cells() -> list[Cell]:
    """Those that the environment asks for: all, or so many, drawn at random."""
    every = [
        Cell(victim=victim, step=step, stop=stop)
        for victim, steps in STEPS.items()
        for step in steps
        for stop in (False, True)
    ]
    wanted = os.environ.get("CELLS")
    if not wanted:
        return every
    return Random(int(os.environ.get("SEED") or 0)).sample(every, min(int(wanted), len(every)))


class Matrix:
    """A job on two workers of which two vnodes are handed to and fro."""

    def __init__(self, directory: Path) -> None:
        self.orders = directory / "orders"
        self.orders.mkdir()
        os.environ[VARIABLE] = str(self.orders)
        self.job = Running(
            directory, workers=2, instances=2, vnodes=16, rate=1000, seconds=7200, state_mb=2
        )
        self.job.start()
        self.job.until(lambda e: e["event"] == "clock")
        self._began = time.time()
        self.job.batches(2)

    def run(self, cell: Cell) -> None:
        """One cell. Raises AssertionError."""
        self._await_no_copies()
        view = self.job.client.job(JOB)
        owner = {v: i.id for i in view.instances for v in i.vnodes}
        origin = owner[MOVED[0]]
        assert {owner[v] for v in MOVED} == {origin}
        target = next(i.id for i in view.instances if i.id != origin)
        process = self._process(cell.victim, origin, target)
        known = {each.id for each in self.job.client.operations().operations}
        order = replace(STEPS[cell.victim][cell.step], stop=cell.stop)
        pid = self._pid(process)
        if cell.victim == "controller":
            self._give(process, order)
        asked = self._ask(target)
        if cell.victim != "controller":
            self._give(process, order)
        self._await_sprung(process)
        self._revive(cell, process, pid)
        operation = asked or self._operation_since(known)
        if operation is not None:
            phase = self._await_end(operation).phase
            self._check_layout(target if phase is Phase.COMPLETE else origin)
        self.job.batches(2)

    def finish(self) -> None:
        """End the stream and compare."""
        self.job.kill_job()
        self.job.start(seconds=int(time.time() - self._began) + 10)
        verdict = self.job.result()["oracle"]
        assert verdict["equal"], verdict
        assert verdict["rows"] > 0

    def close(self) -> None:
        """End everything."""
        os.environ.pop(VARIABLE)
        self.job.close()

    def _await_no_copies(self) -> None:
        """The last origin has left the chains: who has a copy still would have nothing to fetch."""
        deadline = time.monotonic() + 30.0
        while self.job.client.job(JOB).members:
            assert time.monotonic() < deadline, self.job.client.job(JOB).members
            self.job.batches(1)

    def _process(self, victim: str, origin: InstanceId, target: InstanceId) -> str:
        worker = {i.id: i.worker for i in self.job.client.job(JOB).instances}
        return {"origin": worker[origin], "target": worker[target], "instance": target}.get(
            victim, victim
        )

    def _pid(self, process: str) -> int:
        if process == "driver":
            return self.job.pid
        instances = {i.id: i.pid for i in self.job.client.job(JOB).instances}
        return instances.get(InstanceId(process)) or self.job.pid_of(process)

    def _give(self, process: str, order: Order) -> None:
        path = self.orders / process
        path.with_name(f"{process}.done").unlink(missing_ok=True)
        path.with_name("next").write_bytes(codec.dumps(order))
        path.with_name("next").rename(path)

    def _ask(self, target: InstanceId) -> OpId | None:
        """Ask for the handover; None if the controller did not live to answer."""
        with contextlib.suppress(NotRunning, DeadlineExceeded):
            return self.job.client.handover(JOB, HandoverRequest(vnodes=MOVED, to=target)).id
        return None

    def _await_sprung(self, process: str) -> None:
        done = self.orders / f"{process}.done"
        deadline = time.monotonic() + SPRINGS_WITHIN_S
        while not done.exists():
            assert time.monotonic() < deadline, f"{process} never came to that step"
            time.sleep(0.02)

    def _revive(self, cell: Cell, process: str, pid: int) -> None:
        if cell.stop:
            time.sleep(STANDSTILL_S.get(process, STANDSTILL_OTHERS_S))
            with contextlib.suppress(ProcessLookupError):  # its agent took it for dead
                os.kill(pid, signal.SIGCONT)
        elif process == "driver":
            self.job.kill_job()
            self.job.start(partitions=1 + len(cell.step) % 3)
        elif cell.victim != "instance":
            self.job.await_end(process)
            self.job.up()

    def _operation_since(self, known: set[OpId]) -> OpId | None:
        for each in self.job.client.operations().operations:
            if each.id not in known and each.kind is Kind.HANDOVER:
                return each.id
        return None

    def _await_end(self, operation: OpId) -> OperationView:
        deadline = time.monotonic() + ENDS_WITHIN_S
        view = None
        while time.monotonic() < deadline:
            with contextlib.suppress(NotRunning, DeadlineExceeded):
                view = self.job.client.operation(operation)
                if view.phase in ENDED:
                    return view
            time.sleep(0.1)
        raise AssertionError(f"not ended: {view}")

    def _check_layout(self, owner: InstanceId) -> None:
        deadline = time.monotonic() + 10.0
        while True:
            owned = {i.id: set(i.vnodes) for i in self.job.client.job(JOB).instances}
            if set(MOVED) <= owned[owner]:
                return
            assert time.monotonic() < deadline, owned
            time.sleep(0.1)


@pytest.fixture(scope="module")
def matrix(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Matrix]:
    made = Matrix(tmp_path_factory.mktemp("matrix"))
    yield made
    made.close()


@pytest.mark.parametrize("cell", cells(), ids=str)
def test_a_cell(matrix: Matrix, cell: Cell) -> None:
    matrix.run(cell)


def test_every_record_counted_once(matrix: Matrix) -> None:
    """After all the cells: the output and the state are Spark's own, row for row."""
    matrix.finish()
