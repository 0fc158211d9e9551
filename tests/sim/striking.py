"""How each fault of `tests.sim.faults` strikes a cluster, and how a plan is carried out."""

from collections.abc import Callable, Generator
from functools import partial
from random import Random
from typing import Any

from rhinoctl import limits
from rhinoctl.control.controller import Controller
from rhinoctl.errors import DiskFull, RhinoError
from rhinoctl.ids import DiskId, InstanceId, Vnode, WorkerId
from rhinoctl.protocol import views
from rhinoctl.protocol.disks import DiskAction, DiskRequest
from rhinoctl.protocol.handover import ENDED, Phase
from tests.fakes.store import FakeStore
from tests.fakes.world import JOB
from tests.fakes.world_host import Host
from tests.fakes.world_process import Killed
from tests.fakes.world_spark import Query, SparkDirectory
from tests.sim import faults as f
from tests.sim.cluster import NEIGHBOUR, SimWorld
from tests.sim.person import Person
from tests.sim.plan import Plan

RESTART_S = 1.0
REPAIR_S = 2.0
"""After which a person looks whether the query is refused for offsets that were lost."""

ASK_S = 0.001
"""After the step of the controller's at which something is asked for."""

NEIGHBOUR_S = 0.5
"""The pause between two batches of another job."""

HELP_S = 2.0
"""How often they look at the controller and at a stream that has not begun."""


class Striking:
    """Carries a plan out. `query` is the newest run of the driver, `directory` that of the next
    one; `done` tells what happened, `rotten` has the inodes of files with a wrong byte, by
    worker; `person` helps where the design asks for it."""

    def __init__(self, world: SimWorld, plan: Plan) -> None:
        self.done: list[str] = []
        self.replication = self.fewest = plan.setup.replication  # the last, the fewest asked for
        self.over = self.healed = False
        self.stays_dead: str | None = None
        self.rotten: set[tuple[str, int]] = set()
        self._world = world
        self._plan = plan
        self._lost_offsets: list[tuple[int, tuple[int, int], int]] = []
        world.mishaps_expected = setup_is_rough(plan)
        self.query = self._run_query()
        self.directory = self.query.directory
        self.person = Person(world, self.note)
        self.neighbour = self._start_neighbour() if plan.setup.neighbour else None
        world.uid()  # to be known also when the controller is away

    def _run_query(self, directory: SparkDirectory | None = None, **more: bool) -> Query:
        query = self._world.start_query(directory, **more)
        query.trigger_s = self._plan.setup.trigger_s
        return query

    def _start_neighbour(self) -> Query:
        """Another job on the same workers, with a slower query that nobody kills."""
        query = self._world.start_query(job=NEIGHBOUR)
        query.trigger_s = NEIGHBOUR_S
        self._world.uid(NEIGHBOUR)
        return query

    def begin(self) -> None:
        """Let the plan be carried out from now on."""
        wire, looks = self._world.network.wire(None), self._world.network.wire(None)
        self._world.schedule.add("the plan", wire, self._fate())
        self._world.schedule.add("a person", looks, self._help())

    def _help(self) -> Generator[float, None, None]:
        """A person looks as long as the cluster lives."""
        while True:
            yield HELP_S
            self.help()

    def help(self) -> None:
        """A person looks at what the cluster asks for, and knows who stays dead; see `Person`."""
        self.person.recover(*(() if self.stays_dead is None else (self.stays_dead,)))
        self.person.bind(self.directory)

    def _fate(self) -> Generator[float, None, None]:
        for planned in self._plan.events:
            yield planned.wait_s
            self._plan_to(planned)
        yield REPAIR_S
        self.over = True

    def _plan_to(self, planned: f.Planned) -> None:
        lies = planned.ambush
        if lies is None:
            self._strike(planned.fault)
            return
        process = self.query.name if lies.process == "driver" else lies.process
        self._world.trap(
            process,
            lies.step,
            lambda: self._strike(planned.fault, process),
            after=lies.after,
            skip=lies.skip,
            holding=lies.holding,
        )

    def _strike(self, fault: f.Fault, process: str | None = None) -> None:
        """`process` has run into an ambush."""
        where = f" at a step of {process}" if process else ""
        self.note(f"{fault}{where}")
        if isinstance(fault, f.CrashInstance):
            self._crash_instance(fault, process)
        elif isinstance(fault, f.Freeze):
            self._freeze(fault, process)
        elif process is not None and isinstance(fault, f.Asked):
            # once the step, in the middle of which the controller is, is over
            self._world.network.after(ASK_S, lambda: _STRIKES[type(fault)](self, fault))
        else:
            _STRIKES[type(fault)](self, fault)

    def note(self, what: str) -> None:
        """Something happens now."""
        self.done.append(f"{self._world.clock.monotonic():8.3f}  {what}")

    # --- processes -------------------------------------------------------------------------------

    def _host(self, worker: str) -> Host:
        return self._world.hosts[WorkerId(worker)]

    def revive(self, besides: str | None = None) -> None:
        """Start everything that is dead."""
        self._start_controller()
        for host in self._world.hosts.values():
            if host.name != besides:
                self.plug_again(host)
                self._start_agent(host)
        self.start_driver()

    def _crash_instance(self, fault: f.CrashInstance, process: str | None) -> None:
        host = self._host(fault.worker)
        pids = host.pids(process.partition("/")[2]) if process else []
        pids = pids or sorted(host.instances)
        if pids:
            host.kill_pid(pids[fault.nth % len(pids)])
            self._struck(fault)

    def _crash_agent(self, fault: f.CrashAgent) -> None:
        host = self._host(fault.worker)
        if host.agent is not None:
            host.kill_agent()
            self._struck(fault)
        self._world.network.after(fault.back_s, lambda: self._start_agent(host))

    def _restart_agent(self, fault: f.RestartAgent) -> None:
        """It is back some time after it has ended, if it was not killed before it could end."""
        host = self._host(fault.worker)
        if host.agent is not None:
            host.end_agent()
            self._struck(fault)
        leaving = host.agent

        def ended() -> None:
            if leaving is not None and host.agent is leaving:
                self._world.network.after(RESTART_S, ended)
            else:
                self._start_agent(host)

        self._world.network.after(limits.FAREWELL_S + fault.back_s, ended)

    def _start_agent(self, host: Host) -> None:
        """Nothing is done if it runs. One that cannot start, since its disk is full, is started
        again, as by whoever supervises it."""
        if host.name == self.stays_dead:
            return
        if host.runs:
            return
        try:
            host.start_agent()
        except (OSError, DiskFull) as fault:
            self.note(f"     the agent of {host.name} cannot start: {fault}")
            host.kill_agent()
            self._world.network.after(RESTART_S, lambda: self._start_agent(host))

    def _crash_worker(self, fault: f.CrashWorker) -> None:
        host = self._host(fault.worker)
        if host.agent is not None or host.instances:
            host.lose()
            self._struck(fault)
        self._world.network.after(fault.back_s, lambda: self._start_agent(host))

    def _crash_controller(self, fault: f.CrashController) -> None:
        if self._world.controller is not None:
            self._world.kill_controller()
            self._struck(fault)
        self._world.network.after(fault.back_s, self._start_controller)

    def _start_controller(self) -> None:
        if self._world.controller is None:
            try:
                self._world.start_controller()
            except Killed:
                self._world.kill_controller()

    def _lose_store(self, fault: f.LoseStore) -> None:
        self._swap_store(fault, fault.back_s, None)

    def _roll_back_store(self, fault: f.RollBackStore) -> None:
        copy = self._world.copy_store()
        strike = partial(self._swap_store, fault, fault.back_s, copy)
        self._world.network.after(fault.after_s, strike)

    def _swap_store(self, fault: f.Fault, back_s: float, store: FakeStore | None) -> None:
        if self.healed:
            return
        self.note(f"     the store is {'lost' if store is None else 'an old copy'} now")
        if self._world.swap_store(store):
            self._struck(fault)
        self._world.network.after(back_s, self._start_controller)

    def _crash_driver(self, fault: f.CrashDriver) -> None:
        if self.query.running:
            self.query.kill()
            self._struck(fault)
        self._world.network.after(fault.back_s, self.start_driver)

    def start_driver(self) -> None:
        """The next run of the query, if none runs."""
        if not self.query.running:
            self.query = self._run_query(self.directory, settled=False)

    def _power_loss(self, fault: f.PowerLoss) -> None:
        self._lose_power(fault, fault.workers, fault.back_s, None)

    def _torn_power(self, fault: f.TornPower) -> None:
        self._lose_power(fault, fault.workers, fault.back_s, Random(fault.draw))

    def _lose_power(
        self, fault: f.Fault, workers: tuple[str, ...], back_s: float, keep: Random | None
    ) -> None:
        for worker in workers:
            host = self._host(worker)
            before = host.disk.tally.copy()
            host.power_loss(keep)
            gone = host.disk.tally - before
            if gone["torn"] or (gone["lost"] and keep is None):
                self._struck(fault)
            self._world.network.after(back_s, partial(self._start_agent, host))

    def _freeze(self, fault: f.Freeze, process: str | None) -> None:
        name = process or fault.process
        if name == "driver":
            name = self.query.name
        worker, _, instance = name.partition("/")
        if instance and not self._host(worker).pids(instance):
            there = [one.settings.instance for one in self._host(worker).instances.values()]
            name = f"{worker}/{sorted(there)[0]}" if there else worker
        self._world.freeze(name, fault.for_s)

    # --- network, disks, clocks ------------------------------------------------------------------

    def _on_the_way(self, fault: Any) -> None:
        self._world.network.begin(fault, fault.for_s)

    def _full_disk(self, fault: f.FullDisk) -> None:
        disk = self._host(fault.worker).disk
        disk.capacity_bytes = disk.bytes_used() + fault.room_bytes
        self._world.network.after(fault.for_s, lambda: setattr(disk, "capacity_bytes", None))

    def _bit_rot(self, fault: f.BitRot) -> None:
        chance, host = Random(fault.draw), self._host(fault.worker)
        disk = chance.choice([host.disk, *host.further.values()]) if host.further else host.disk
        if disk.gone:
            return
        there = [path for path in disk.files("jobs") if disk.size(path)]
        part = chance.choice(["/ckpt/", "/ckpt/", "/log/"])
        paths = [path for path in there if part in path]
        if not paths:
            return
        path = chance.choice(paths)
        stamp = disk.stamp(path)
        assert stamp is not None
        disk.rot(path, chance.randrange(stamp.size))
        if part == "/log/":
            self._world.rotten_log.add((WorkerId(fault.worker), path.rpartition("/")[2]))
        else:
            self.rotten.add((fault.worker, stamp.inode))
        self.note(f"     {path.partition('/')[2]} has another byte")
        self._struck(fault)

    def _unplug_disk(self, fault: f.UnplugDisk) -> None:
        host = self._host(fault.worker)
        path = f"/{host.name}/2"
        host.unplug(path)
        self._struck(fault)
        self._world.network.after(fault.back_s, lambda: self.plug_again(host))

    def plug_again(self, host: Host) -> None:
        """A disk that was unplugged is back; its agent takes it at its next start."""
        for path, disk in host.further.items():
            if disk.gone:
                host.plug_again(path)
                host.kill_agent()
                self._start_agent(host)

    def _retire_disk(self, fault: f.RetireDisk) -> None:
        request = DiskRequest(
            action=DiskAction.RETIRE, worker=WorkerId(fault.worker), disk=DiskId("d2")
        )
        self.ask(fault, lambda c: c.change_disks(request))

    def _jump_clock(self, fault: f.JumpClock) -> None:
        self._world.host_clock(fault.host).skew_s += fault.by_s
        self._struck(fault)

    # --- Spark -----------------------------------------------------------------------------------

    def _take_over(self, fault: f.TakeOver) -> None:
        zombie = self.query
        if not zombie.running:
            return
        self.query = self._run_query(self.directory, takeover=True, settled=False)
        self._world.network.after(fault.zombie_s, zombie.kill)
        self._struck(fault)

    def kill_drivers(self, besides: Query | None = None) -> None:
        """No run of the query lives on."""
        for query in self._world.queries:
            if query.running and query not in (besides, self.neighbour):
                query.kill()

    def _lose_offsets(self, fault: f.LoseOffsets) -> None:
        self.kill_drivers()
        directory = self.directory
        lost = directory.lose_offsets()
        if lost is not None:
            self._lost_offsets.append((*lost, directory.marks[lost[0]]))
            self._struck(fault)
            self._world.network.after(fault.back_s + REPAIR_S, self.repair)
        self._world.network.after(fault.back_s, self.start_driver)

    def repair(self) -> None:
        """A person restores the offset log of a query that was refused for its offsets."""
        refused = any("offsets_differ" in failure for failure in self.query.failures)
        directory = self.directory
        pending = [lost for lost in self._lost_offsets if lost[0] > directory.committed]
        if not refused or not pending:
            return
        batch, planned, mark = pending[0]
        self._lost_offsets.remove(pending[0])
        if batch in directory.planned:
            other = (batch, directory.planned[batch], directory.marks[batch])
            self._lost_offsets.append(other)
        self.note(f"the offsets of batch {batch} are restored")
        self.kill_drivers()
        directory.planned[batch], directory.marks[batch] = planned, mark
        self.start_driver()

    def _lose_commit(self, fault: f.LoseCommit) -> None:
        self.kill_drivers()
        if self.directory.lose_commit():
            self._struck(fault)
        self._world.network.after(fault.back_s, self.start_driver)

    def _new_stream(self, fault: f.NewStream) -> None:
        self.kill_drivers()
        self.directory = self._world.new_directory(self.directory.planned_to)
        self._lost_offsets.clear()
        self._struck(fault)
        self._world.network.after(fault.back_s, self.start_driver)

    def _idle(self, fault: f.Idle) -> None:
        query = self.query
        query.idle = True
        self._world.network.after(fault.for_s, lambda: setattr(query, "idle", False))
        self._struck(fault)

    # --- what people ask for ---------------------------------------------------------------------

    def ask(self, fault: f.Fault, function: Callable[[Controller], Any]) -> None:
        """A call of the API; what becomes of it is noted."""
        try:
            future = self._world.submit(function)
        except (RhinoError, ConnectionError) as refused:
            self.note(f"     refused: {refused}")
            return

        def answered(_: Any) -> None:
            fault_of = future.exception()
            if isinstance(fault_of, RhinoError):
                self.note(f"     refused: {fault_of.code}")
            elif fault_of is None:
                self._struck(fault)

        future.add_done_callback(answered)

    def _handover(self, fault: f.Handover) -> None:
        try:
            instances = sorted(self._world.epoch().instances)
        except ValueError:
            self.note("     nobody knows of an epoch")
            return
        request = views.HandoverRequest(
            vnodes=tuple(map(Vnode, fault.vnodes)),
            to=InstanceId(instances[fault.to % len(instances)]),
        )
        self.ask(fault, lambda c: c.handover(JOB, request))

    def _rescale(self, fault: f.Rescale) -> None:
        request = views.RescaleRequest(instances=fault.instances)
        self.ask(fault, lambda c: c.rescale(JOB, request))

    def _switchover(self, fault: f.Switchover) -> None:
        request = views.SwitchoverRequest(target=fault.worker, to=None)
        self.ask(fault, lambda c: c.switchover(request))

    def _drain(self, fault: f.Drain) -> None:
        request = views.DrainRequest(worker=WorkerId(fault.worker))
        self.ask(fault, lambda c: c.drain(request))

    def _checkpoint(self, fault: f.Checkpoint) -> None:
        self.ask(fault, lambda c: c.checkpoint(JOB, views.CheckpointRequest()))

    def _abort(self, fault: f.Abort) -> None:
        request = views.AbortRequest(reason="the plan")
        controller = self._world.controller
        for view in () if controller is None else controller.operation_list().operations:
            if view.phase not in ENDED:
                self.ask(fault, partial(Controller.abort, op=view.id, request=request))

    def _pause(self, fault: f.Pause) -> None:
        controller = self._world.controller
        for view in () if controller is None else controller.operation_list().operations:
            if view.phase not in ENDED:
                self.ask(fault, partial(Controller.pause, op=view.id))
        self._world.network.after(fault.for_s, self.person.resume)

    def _revert(self, fault: f.Revert) -> None:
        controller = self._world.controller
        listed = () if controller is None else controller.operation_list().operations
        complete = [view.id for view in listed if view.phase is Phase.COMPLETE]
        if fault.nth < len(complete):
            again = partial(Controller.revert, op=complete[fault.nth])
            self.ask(fault, partial(again, request=views.RevertRequest()))

    def _hand_back(self, fault: f.HandBack) -> None:
        def ask() -> None:
            controller = self._world.controller
            listed = () if controller is None else controller.operation_list().operations
            handed = [v for v in listed if v.phase is Phase.COMPLETE and v.job == JOB and v.origins]
            if not handed:
                return
            origins = handed[0].origins
            to = min(origins.values())
            vnodes = tuple(sorted(vnode for vnode, origin in origins.items() if origin == to))
            self.ask(fault, lambda c: c.handover(JOB, views.HandoverRequest(vnodes=vnodes, to=to)))

        self._world.network.after(fault.after_s, ask)

    def _set_replication(self, fault: f.SetReplication) -> None:
        self.replication = fault.replication
        self.fewest = min(self.fewest, fault.replication)
        request = views.SetJob(replication=fault.replication)
        self.ask(fault, lambda c: c.set_job(JOB, request))

    def fail_over(self, fault: f.Failover) -> None:
        """Ask for a failover."""
        request = views.FailoverRequest(target=fault.worker)
        self.ask(fault, lambda c: c.failover(request))

    def _struck(self, fault: f.Fault) -> None:
        self._world.struck[type(fault)] += 1


def setup_is_rough(plan: Plan) -> bool:
    """Whether a disk may refuse something, so that turns of agents may fail."""
    rough = (f.FullDisk, f.BitRot, f.UnplugDisk)
    return any(isinstance(event.fault, rough) for event in plan.events)


_STRIKES: dict[type[f.Fault], Callable[[Striking, Any], None]] = {
    f.Drop: Striking._on_the_way,
    f.Duplicate: Striking._on_the_way,
    f.Delay: Striking._on_the_way,
    f.Reorder: Striking._on_the_way,
    f.LoseAnswer: lambda self, fault: self._world.network.lose_answer(fault),
    f.LoseCall: lambda self, fault: self._world.lose_call(),
    f.CutOneWay: lambda self, fault: self._world.network.sever(fault),
    f.CrashAgent: Striking._crash_agent,
    f.RestartAgent: Striking._restart_agent,
    f.CrashWorker: Striking._crash_worker,
    f.CrashController: Striking._crash_controller,
    f.CrashDriver: Striking._crash_driver,
    f.PowerLoss: Striking._power_loss,
    f.TornPower: Striking._torn_power,
    f.FullDisk: Striking._full_disk,
    f.SlowDisk: lambda self, fault: self._world.slow_down(fault),
    f.BitRot: Striking._bit_rot,
    f.UnplugDisk: Striking._unplug_disk,
    f.RetireDisk: Striking._retire_disk,
    f.JumpClock: Striking._jump_clock,
    f.TakeOver: Striking._take_over,
    f.LoseStore: Striking._lose_store,
    f.RollBackStore: Striking._roll_back_store,
    f.LoseOffsets: Striking._lose_offsets,
    f.LoseCommit: Striking._lose_commit,
    f.NewStream: Striking._new_stream,
    f.Idle: Striking._idle,
    f.Handover: Striking._handover,
    f.Rescale: Striking._rescale,
    f.Switchover: Striking._switchover,
    f.Drain: Striking._drain,
    f.Checkpoint: Striking._checkpoint,
    f.Abort: Striking._abort,
    f.Pause: Striking._pause,
    f.Revert: Striking._revert,
    f.HandBack: Striking._hand_back,
    f.SetReplication: Striking._set_replication,
    f.Failover: Striking.fail_over,
}
