"""A whole cluster in one thread and virtual time: the real loops of controller, agents, instances
and batch driver over fakes of clock, network, disks and stores.

    world = World(seed=1)
    query = world.start_query()
    world.until(lambda: query.directory.committed >= 5)
    operation = world.handover([0, 1], "i1")
    world.until_ended(operation)
    world.finish(query, batches=20)

Everything is repeated by the seed. An exception of a loop is the test's: in production a loop
outlives it, here it is a fault that was found.
"""

from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from random import Random
from typing import Any

from rhinoctl import limits
from rhinoctl.control.controller import Controller, Waiting
from rhinoctl.control.settings import ControllerSettings
from rhinoctl.ids import BatchTime, InstanceId, JobName, JobUid, OpId, Vnode, WorkerId
from rhinoctl.protocol import views
from rhinoctl.protocol.epochs import Epoch
from rhinoctl.protocol.handover import ENDED
from rhinoctl.protocol.messages import Message, decode, encode
from rhinoctl.protocol.ports import Address, Clock
from tests.fakes.clock import FakeClock
from tests.fakes.schedule import Schedule
from tests.fakes.store import FakeStore
from tests.fakes.wire import NOWHERE, QUIET, FakeNetwork, Faults, Request
from tests.fakes.world_host import Host
from tests.fakes.world_input import Row, Workload
from tests.fakes.world_process import Killed, Process, ProcessStore, ProcessWire, Trap
from tests.fakes.world_spark import Query, SparkDirectory

JOB = JobName("counts")
CONTROLLER = Address("controller")
PATIENCE_S = 120.0
"""Virtual seconds after which something that should happen has not."""


class HostsNetwork(FakeNetwork):
    """Faults are of the network between hosts; what an agent says to its instances is not lost.

    `late_s` delays requests by their kind, e.g. ``{"FetchChunk": 20.0}``; `rewrite` makes other
    requests of them.
    """

    def __init__(self, chance: Random, clock: FakeClock, faults: Faults) -> None:
        super().__init__(chance, clock, faults)
        self.late_s: dict[str, float] = {}
        self.rewrite: Callable[[Message], Message] | None = None

    def transmit(self, request: Request) -> None:
        if self.rewrite is not None:
            request.data = encode(self.rewrite(decode(request.data)))
        kind = type(decode(request.data)).__name__ if self.late_s else ""
        with self._faults_on_the_way(request):
            if kind in self.late_s:
                request.started = True
                self.after(self.late_s[kind], lambda: self._arrive(request))
            else:
                super().transmit(request)

    def answer(self, request: Request, *given: Any, **more: Any) -> None:
        with self._faults_on_the_way(request):
            super().answer(request, *given, **more)

    @contextmanager
    def _faults_on_the_way(self, request: Request) -> Iterator[None]:
        faults = self.faults
        self.faults = QUIET if "/run/" in request.to else faults
        yield
        self.faults = faults


class World:
    """A cluster of `workers` with one job of `vnodes` and `instances`, not started yet; each worker
    has so many `disks`.

    With `leisure` loops look after their own affairs so much more seldom, which costs less.
    """

    def __init__(
        self,
        seed: int = 1,
        *,
        workers: int = 3,
        vnodes: int = 8,
        instances: int = 2,
        replication: int = 0,
        disks: int = 1,
        auto_failover: bool = True,
        copies_bytes_s: int = 0,
        scrub_bytes_s: int = 0,
        faults: Faults = QUIET,
        workload: Workload | None = None,
        leisure: float = 1.0,
    ) -> None:
        self.cluster = "c"
        self.vnodes = vnodes
        self.instances = instances
        self.replication = replication
        self.disks = disks
        self.auto_failover = auto_failover
        self.copies_bytes_s = copies_bytes_s
        self.scrub_bytes_s = scrub_bytes_s
        self.leisure = leisure
        self.workload = workload or Workload(vnodes=vnodes, of=vnodes)
        self.chance = Random(seed)
        self.clock = FakeClock()
        self.network = self.new_network(Random(seed + 1), faults)
        self.schedule = Schedule(self.network, Random(seed + 2))
        self.traps: list[Trap] = []
        self.hosts = {
            name: Host(self, name) for name in (WorkerId(f"w{n + 1}") for n in range(workers))
        }
        self.queries: list[Query] = []
        self.directories: list[SparkDirectory] = []
        self.mishaps_expected = False
        self.firewalled = False
        self.controller: Controller | None = None
        self._controller_process: Process | None = None
        self._controller_wire: ProcessWire | None = None
        self._store = FakeStore()
        self._uids: dict[JobName, JobUid] = {}
        for host in self.hosts.values():
            host.start_agent()
        self.start_controller()

    # --- what a simulator makes otherwise --------------------------------------------------------

    def new_network(self, chance: Random, faults: Faults) -> HostsNetwork:
        """The network between all processes."""
        return HostsNetwork(chance, self.clock, faults)

    def process(self, name: str) -> Process:
        """A process that starts now."""
        return Process(name, self.traps)

    def clock_of(self, host: str) -> Clock:
        """The clock of a host."""
        return self.clock

    # --- the controller --------------------------------------------------------------------------

    def start_controller(self) -> None:
        """Start the controller over its store."""
        assert self.controller is None
        process = self._controller_process = self.process("controller")
        inner = self.network.wire(None, origin=CONTROLLER)
        wire = self._controller_wire = ProcessWire(inner, process)
        settings = ControllerSettings(
            cluster=self.cluster,
            store="store",
            listen="listen",
            token_file="token",
            workers={name: host.address for name, host in self.hosts.items()},
            auto_failover=self.auto_failover,
        )
        self.controller = Controller(
            settings,
            clock=self.clock_of("controller"),
            wire=wire,
            store=ProcessStore(self._store, process),
            listening=self._listening,
        )
        self.schedule.add("controller", wire.inner, self._controller_life(self.controller))

    def _listening(self, beacon: str) -> bool | None:
        """Whether an instance listens at an address (`rhinoctl.wire.beacon`)."""
        if self.firewalled:
            return None
        running = (one for host in self.hosts.values() for one in host.instances.values())
        return any(one.settings.listen == beacon for one in running)

    def _controller_life(self, controller: Controller) -> Generator[float, None, None]:
        try:
            while True:
                controller.step(0.0)
                yield limits.CONTROLLER_WAIT_S * self.leisure
        except Killed:
            return

    def kill_controller(self) -> None:
        """kill -9."""
        if self._controller_process is None or self._controller_wire is None:
            return
        self._controller_process.alive = False
        self._controller_wire.inner.crash()
        self.schedule.remove("controller")
        self.controller = self._controller_process = self._controller_wire = None

    def copy_store(self) -> FakeStore:
        """A copy of the controller's store, as a backup has it."""
        return self._store.copied()

    def swap_store(self, store: FakeStore | None = None) -> None:
        """kill -9 of the controller; its next start is over a store that is lost or an old copy."""
        self.kill_controller()
        self._store = FakeStore() if store is None else store.copied()

    def replace_store(self, store: FakeStore | None = None) -> None:
        """kill -9 of the controller, and another one over a store that is lost or an old copy."""
        self.swap_store(store)
        self.start_controller()

    def objections(self) -> frozenset[WorkerId]:
        """The workers that do not listen to the controller, once all that answer have told."""
        status: views.StatusView = self.call(lambda c: c.status())
        return frozenset(status.refused_by)

    def recover(self, *without: str, dry_run: bool = False) -> views.RecoveryView:
        """`controller recover`."""
        request = views.RecoverRequest(without=tuple(map(WorkerId, without)), dry_run=dry_run)
        view: views.RecoveryView = self.call(lambda c: c.recover(request))
        return view

    def submit(
        self, function: Callable[[Controller], Any], origin: Address = NOWHERE
    ) -> "Future[Any]":
        """A call of the API on its way. Raises ConnectionError while there is no controller, or
        none that `origin` reaches; an answer that does not get back never comes."""
        controller = self.controller
        if controller is None or self.network.is_cut(origin, CONTROLLER):
            raise ConnectionRefusedError("the controller does not run")
        future = controller.submit(lambda: function(controller))
        return Future() if self.network.is_cut(CONTROLLER, origin) else future

    def call(self, function: Callable[[Controller], Any]) -> Any:
        """A call of the API, as the CLI makes it; raises what the API refuses with, and
        ConnectionError if the controller ends meanwhile."""
        found = self._answer(self.submit(function))
        return self._answer(found.answer) if isinstance(found, Waiting) else found

    def _answer(self, future: "Future[Any]") -> Any:
        asked = self.controller
        self.until(lambda: future.done() or self.controller is not asked, "an answer of the API")
        if not future.done():
            raise ConnectionResetError("the controller has ended")
        return future.result()

    # --- jobs and operations ---------------------------------------------------------------------

    def start_query(
        self,
        directory: SparkDirectory | None = None,
        *,
        job: JobName = JOB,
        name: str = "",
        takeover: bool = False,
        settled: bool = True,
    ) -> Query:
        """Start a query, in a new directory or an old one; `settled`: wait for its first batch."""
        if directory is None:
            directory = self.new_directory()
        name = name or f"driver{len(self.queries)}"
        query = Query(self, job, directory, self.workload, name=name, takeover=takeover)
        self.queries.append(query)
        if settled:
            seen = directory.committed
            self.until(lambda: directory.committed > seen, f"a batch of {name}")
        return query

    def new_directory(self, first: int = 0) -> SparkDirectory:
        """The checkpoint directory of a query that begins, at an offset of its source."""
        directory = SparkDirectory(query_id=f"q{len(self.directories)}", first=first)
        self.directories.append(directory)
        return directory

    def handover(self, vnodes: Iterable[int], to: str, job: JobName = JOB) -> OpId:
        """Ask for a handover."""
        request = views.HandoverRequest(vnodes=tuple(map(Vnode, vnodes)), to=InstanceId(to))
        return self.call(lambda c: c.handover(job, request)).id

    def rescale(self, instances: int, job: JobName = JOB) -> OpId:
        """Ask for a rescale."""
        request = views.RescaleRequest(instances=instances)
        return self.call(lambda c: c.rescale(job, request)).id

    def failover(self, target: str, **more: Any) -> tuple[views.OperationView, ...]:
        """Ask for a failover."""
        request = views.FailoverRequest(target=target, **more)
        return self.call(lambda c: c.failover(request)).operations

    def switchover(self, target: str, to: str | None = None) -> tuple[views.OperationView, ...]:
        """Ask for a switchover."""
        request = views.SwitchoverRequest(target=target, to=to)
        return self.call(lambda c: c.switchover(request)).operations

    def drain(self, worker: str) -> tuple[views.OperationView, ...]:
        """Ask for a drain."""
        request = views.DrainRequest(worker=WorkerId(worker))
        return self.call(lambda c: c.drain(request)).operations

    def set_replication(self, replication: int, job: JobName = JOB) -> None:
        """Ask for another number of copies."""
        self.call(lambda c: c.set_job(job, views.SetJob(replication=replication)))

    def status(self) -> views.StatusView:
        """What `rhinoctl status` shows."""
        return self.call(lambda c: c.status())

    def groups(self, job: JobName = JOB) -> views.GroupsView:
        """The replica groups, as the controller shows them."""
        return self.call(lambda c: c.groups(job, views.GroupsRequest()))

    def abort(self, operation: OpId, reason: str = "a test") -> views.OperationView:
        """Ask for the old layout."""
        return self.call(lambda c: c.abort(operation, views.AbortRequest(reason=reason)))

    def bind(self, job: JobName = JOB) -> None:
        """Allow a new stream: `job bind --new-stream`."""
        self.call(lambda c: c.bind(job, views.BindRequest(new_stream=True)))

    def delete(self, job: JobName = JOB) -> None:
        """Delete a job."""
        self.call(lambda c: c.delete(job))

    def operation(self, operation: OpId) -> views.OperationView:
        """An operation, as the controller shows it."""
        return self.call(lambda c: c.operation(operation))

    def controller_views(self) -> tuple[views.OperationView, ...]:
        """All operations, as `op list` shows them."""
        listed: views.OperationList = self.call(lambda c: c.operation_list())
        return listed.operations

    def until_ended(self, operation: OpId, within_s: float = PATIENCE_S) -> views.OperationView:
        """Wait for an operation's end, over a restart of the controller if need be."""

        def ended() -> bool:
            if self.controller is None:
                return False
            return self.controller.operation(operation).phase in ENDED

        self.until(ended, f"the end of {operation}", within_s)
        return self.operation(operation)

    def epoch(self, job: JobName = JOB) -> Epoch:
        """The newest epoch that a worker knows to be decided."""
        return max(self._epochs(job), key=lambda epoch: epoch.number)

    def knows_epoch(self, job: JobName = JOB) -> bool:
        """Whether any worker that runs knows one."""
        return bool(self._epochs(job))

    def _epochs(self, job: JobName) -> list[Epoch]:
        uid = self.uid(job)
        return [
            desk.job.state.decided.next_epoch
            for host in self.hosts.values()
            if host.agent is not None
            and (desk := host.agent.desks.get(uid)) is not None
            and desk.job.state.decided is not None
        ]

    def uid(self, job: JobName = JOB) -> JobUid:
        """The identity of the job of this name that was started last."""
        if self.controller is not None:
            self._uids[job] = self.controller.job(job).uid
        return self._uids[job]

    # --- time and faults -------------------------------------------------------------------------

    def run(self, for_s: float) -> None:
        """Let time pass."""
        self.schedule.run(for_s)

    def until(
        self, condition: Callable[[], bool], what: str = "", within_s: float = PATIENCE_S
    ) -> None:
        """Let time pass until something holds; fail if it does not come."""
        if not self.schedule.run(within_s, condition):
            raise AssertionError(f"{what or 'what was waited for'}: not in {within_s:.0f} s")

    def trap(self, process: str, step: str, then: Callable[[], object], **more: Any) -> Trap:
        """Act when a process does something; see `Trap`."""
        trap = Trap(process=process, step=step, then=then, **more)
        self.traps.append(trap)
        return trap

    def until_sprung(self, trap: Trap) -> None:
        """Wait until a trap has sprung."""
        self.until(lambda: trap.sprung, f"{trap.process}: {trap.step} {trap.holding}")

    # --- the oracle ------------------------------------------------------------------------------

    def finish(self, query: Query, batches: int, within_s: float = 600.0) -> None:
        """Let a query commit up to a batch, then compare outputs and state with the inputs."""
        directory = query.directory
        self.until(lambda: directory.committed >= batches, f"batch {batches}", within_s)
        query.limit = 0
        self.until(lambda: not query.running, "the query's end")
        self.check(query.job)

    def check(self, job: JobName = JOB) -> None:
        """Outputs and state equal those of the inputs, each processed once (invariant 2)."""
        expected, inputs = self.workload.expected(), self.inputs(job)
        outputs: dict[BatchTime, list[Any]] = {}
        for query in self.queries:
            if query.uid == self.uid(job):
                outputs |= query.directory.outputs
        for time in sorted(inputs):
            expected.take(time, inputs[time])
            for made in outputs.get(time, ()):
                assert made == expected.outputs[time], f"output of batch {time}"
        agents = [host.agent for host in self.hosts.values() if host.agent is not None]
        assert self.mishaps_expected or not any(agent.mishaps for agent in agents)
        self.until(lambda: self._applied(job, max(inputs)), "all owners to be up to date")
        assert self.state(job) == expected.totals

    def inputs(self, job: JobName = JOB) -> dict[BatchTime, list[Row]]:
        """The rows of each batch that was put out."""
        found: dict[BatchTime, list[Row]] = {}
        for query in self.queries:
            if query.uid == self.uid(job):
                found |= query.directory.inputs
        return found

    def _applied(self, job: JobName, time: BatchTime) -> bool:
        return all(at >= time for at in self.positions(job).values())

    def positions(self, job: JobName = JOB) -> dict[Vnode, BatchTime]:
        """How far each vnode is applied at its owner."""
        epoch, uid = self.epoch(job), self.uid(job)
        found = dict.fromkeys(map(Vnode, epoch.vnodes()), BatchTime(0, -2))
        for instance, worker in epoch.instances.items():
            for pid in self.hosts[worker].pids(instance, uid):
                running = self.hosts[worker].instances[pid].instance
                if running is not None:
                    owned = epoch.owned_by(instance)
                    found |= {v: at for v, at in running.positions.items() if v in owned}
        return found

    def state(self, job: JobName = JOB) -> dict[str, tuple[int, int]]:
        """The totals of all keys, read at the vnodes' owners."""
        epoch, uid = self.epoch(job), self.uid(job)
        found: dict[str, tuple[int, int]] = {}
        for v in map(Vnode, epoch.vnodes()):
            owner = epoch.routes[v].owner
            (pid,) = self.hosts[epoch.owner_worker(v)].pids(owner, uid)
            running = self.hosts[epoch.owner_worker(v)].instances[pid].instance
            assert running is not None
            running.spill(v)
            for piece in self.workload.bound().scan(running.open_stores[v]):
                mine = self.workload.totals(piece)
                assert not mine.keys() & found.keys(), f"a key of vnode {v} is in two vnodes"
                found |= mine
        return found
