"""The world of the fakes, with clocks, a network and processes that faults of a plan reach.

Every step of every process goes into the `digest`, so that two runs can be compared.
"""

import hashlib
import re
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from random import Random
from typing import Any, Protocol

from rhinoctl.control.controller import Controller
from rhinoctl.control.registry import JobDocument
from rhinoctl.ids import BASE, BatchTime, JobName, JobUid, WorkerId
from rhinoctl.protocol import codec
from rhinoctl.protocol.ports import Address, Clock
from rhinoctl.protocol.records import DecisionRecord
from tests.fakes.clock import HostClock
from tests.fakes.store import FakeStore
from tests.fakes.wire import NOWHERE, Faults
from tests.fakes.world import JOB, World
from tests.fakes.world_input import Row, Workload
from tests.fakes.world_process import Process
from tests.fakes.world_windows import WindowedWorkload
from tests.sim import faults as f
from tests.sim.network import SimNetwork, WireWatch
from tests.sim.plan import VNODES, Plan

STALLS_MAX = 3
"""Processes that stand in the middle of a step at a time: turns nest, and so do they."""

LEISURE = 4.0

NEIGHBOUR = JobName("another")
"""A second job on the same workers, if the plan has one."""

BYTES_EVERY = 8
"""In one of so many seeds messages go over the wire as bytes, as in all other tests; in the others,
as they are: they are frozen, and packing them would be a third of the work."""

_UID = re.compile(r"-[0-9a-f]{8}\b")
"""What the product draws by itself: the end of a job's uid."""


class Watch(WireWatch, Protocol):
    """Who sees all that happens; `decided` are the records that somebody acted on, in order."""

    decided: list[DecisionRecord]

    def stepped(self, process: str, step: str, *, after: bool) -> None: ...


class SimWorld(World):
    """A cluster as a plan wants it. `struck` counts what faults have really done; `rotten_log` has
    the segments of logs with a wrong byte, by worker and name."""

    network: SimNetwork

    def __init__(self, plan: Plan) -> None:
        setup = plan.setup
        self.struck: Counter[type[f.Fault]] = Counter()
        self.rotten_log: set[tuple[WorkerId, str]] = set()
        self.steps: list[str] = []
        self.watch: Watch | None = None
        self._clocks: dict[str, HostClock] = {}
        self._processes: dict[str, Process] = {}
        self._frozen: dict[str, tuple[Process, float]] = {}
        self._slow: dict[str, tuple[float, float]] = {}
        self._stalled = 0
        self._calls_lost = 0
        self._stores_lost: list[FakeStore] = []
        self._asked_status: tuple[Controller | None, Future[Any]] = (None, Future())
        workload = (WindowedWorkload if setup.windows else Workload)(vnodes=VNODES, of=VNODES)
        super().__init__(
            plan.seed,
            workers=setup.workers,
            vnodes=VNODES,
            instances=setup.instances,
            replication=setup.replication,
            disks=setup.disks,
            faults=Faults(delay_s=setup.delays_s),
            workload=workload,
            leisure=LEISURE,
        )
        self.network.bytes_sent = plan.seed % BYTES_EVERY == 0
        self.network.addresses = {host.address: str(host.name) for host in self.hosts.values()}

    def look(self, watch: Watch) -> None:
        """Have everything that happens seen from now on."""
        self.watch = self.network.watch = watch

    # --- what the world is made of ---------------------------------------------------------------

    def new_network(self, chance: Random, faults: Faults) -> SimNetwork:
        return SimNetwork(chance, self.clock, faults, self.struck)

    def process(self, name: str) -> Process:
        started = self._processes[name] = Process(name, self.traps, watch=self._stepped)
        return started

    def clock_of(self, host: str) -> Clock:
        return self.host_clock(host)

    def host_clock(self, host: str) -> HostClock:
        """A host's clock, whose wall may jump."""
        return self._clocks.setdefault(host, HostClock(self.clock))

    def submit(
        self, function: Callable[[Controller], Any], origin: Address = NOWHERE
    ) -> "Future[Any]":
        future = super().submit(function, origin)
        if self._calls_lost and self.network.host_of(origin) == "driver":
            self._calls_lost -= 1
            self.struck[f.LoseCall] += 1
            return Future()
        return future

    def controller_store(self) -> list[tuple[bytes, bytes]]:
        """What the controller has persisted, in stores that were lost, too."""
        stores = [*self._stores_lost, self._store]
        return [entry for store in stores for entry in store.scan()]

    def copies_wanted(self) -> int | None:
        """The replication of the usual job as the controller's store has it, which may be another
        than the last that was asked for; None if the store does not know the job."""
        for key, value in self._store.scan():
            if key.startswith(b"job/"):
                spec = codec.loads_checked(JobDocument, value).spec
                if spec.name == JOB:
                    return spec.replication
        return None

    def swap_store(self, store: FakeStore | None = None) -> bool:
        """Whether it was another one."""
        before = self._store
        self._stores_lost.append(before)
        super().swap_store(store)
        return list(before.scan()) != list(self._store.scan())

    def is_listened_to(self) -> bool:
        """Whether the controller runs, knows its workers, and none objects to its store."""
        controller = self.controller
        if controller is None:
            return False
        asked, future = self._asked_status
        if asked is not controller or future.done():
            self._asked_status = (controller, self.submit(lambda c: c.status()))
        return asked is controller and future.done() and not future.result().refused_by

    def inputs(self, job: JobName = JOB) -> dict[BatchTime, list[Row]]:
        """Also of batches that were decided in a stream that was deleted before they were put out:
        they are in the state."""
        found = super().inputs(job)
        newest = max(found, default=BASE).generation
        watched = self.watch is not None and job == JOB
        for record in self.watch.decided if watched else ():
            time = record.time
            if record.is_batch and time.generation < newest and time not in found:
                texts = (record.start_offsets, record.end_offsets)
                start, end = (int(text.partition("+")[0]) for text in texts)
                found[time] = self.workload.rows(start, end)
        return found

    def uid(self, job: JobName = JOB) -> JobUid:
        """Jobs are never deleted."""
        return self._uids.get(job) or super().uid(job)

    def digest(self) -> str:
        """Of every step of every process."""
        told = _UID.sub("", "".join(self.steps))
        return hashlib.blake2b(told.encode(), digest_size=8).hexdigest()

    # --- what faults do to processes -------------------------------------------------------------

    def lose_call(self) -> None:
        """The answer to the next call of a driver does not get back."""
        self._calls_lost += 1

    def freeze(self, name: str, for_s: float) -> None:
        """SIGSTOP: between two turns or, if the process is in the middle of one, at its next step.
        It is continued, unless it is dead by then."""
        process, stopped = self._processes.get(name), self._loops(name)
        if process is None or not process.alive or not stopped:
            return
        self.struck[f.Freeze] += 1
        self._frozen[name] = (process, self.clock.monotonic() + for_s)
        for entry in stopped:
            self.schedule.pause(entry)

        def thaw() -> None:
            for entry in stopped:
                if self.schedule.has(entry):
                    self.schedule.resume(entry)

        self.network.after(for_s, thaw)

    def slow_down(self, fault: f.SlowDisk) -> None:
        """Syncs of a worker's agent take so long for a while."""
        self._slow[fault.worker] = (self.clock.monotonic() + fault.for_s, fault.sync_s)

    def heal(self) -> None:
        """Nothing more of what lasts; what is frozen goes on."""
        self.traps.clear()
        self.network.heal()
        self._slow.clear()
        self._frozen.clear()
        self._calls_lost = 0
        for host in self.hosts.values():
            for disk in (host.disk, *host.further.values()):
                disk.capacity_bytes = None
        for name in list(self._processes):
            for entry in self._loops(name):
                self.schedule.resume(entry)

    def _loops(self, process: str) -> list[str]:
        worker, _, instance = process.partition("/")
        entries = [process, f"{process}-ear"]
        if instance:
            pids = self.hosts[WorkerId(worker)].pids(instance)
            entries = [f"{worker}#{pid}" for pid in pids]
        return [name for name in entries if self.schedule.has(name)]

    def _stepped(self, process: Process, step: str, after: bool) -> None:
        """A process is about to do something, or has done it."""
        now = self.clock.monotonic()
        self.steps.append(f"{now:.6f} {process.name} {step} {after}")
        if self.watch is not None:
            self.watch.stepped(process.name, step, after=after)
        stopped, until = self._frozen.get(process.name, (None, 0.0))
        wait_s = until - now if stopped is process else 0.0
        slow_until, sync_s = self._slow.get(process.name, (0.0, 0.0))
        if after and slow_until > now and step.startswith(("disk.sync", "disk.write_atomic")):
            self.struck[f.SlowDisk] += 1
            wait_s = max(wait_s, sync_s)
        if wait_s > 0 and self._stalled < STALLS_MAX:
            self._stalled += 1
            try:
                self.schedule.run(wait_s, lambda: not process.alive)
            finally:
                self._stalled -= 1
