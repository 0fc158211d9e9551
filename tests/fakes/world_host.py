"""A worker's machine: a disk, an agent, and the instance processes that the agent started."""

import errno
import itertools
import json
import os
from collections.abc import Generator
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any

from rhino_agent.agent import Agent, next_incarnation
from rhino_agent.instance import Instance
from rhino_agent.launcher import ProcessName
from rhino_agent.ports import Ports
from rhino_agent.settings import AgentSettings, InstanceSettings
from rhinoctl import limits
from rhinoctl.ids import InstanceId, JobUid, WorkerId
from rhinoctl.operators import bound_from_json
from rhinoctl.protocol import codec
from rhinoctl.protocol.ports import Address
from rhinoctl.state.disks import Disks, Owner
from rhinoctl.state.spread import SpreadDisk
from tests.fakes.disk import FakeDisk
from tests.fakes.mounts import Mounts
from tests.fakes.spread import spread
from tests.fakes.world_process import Killed, Process, ProcessDisk, ProcessWire
from tests.fakes.world_store import DiskDigester, DiskFiles, DiskStores

if TYPE_CHECKING:
    from tests.fakes.world import World

START_S = 0.3
"""How long an instance process takes until it listens."""

BALLAST_BYTES = 1 << 10
"""Enough for what a start writes."""

SMALL_BYTES = 4 << 10
"""Some thirty rows: spills between checkpoints, and rows that are dropped from the cache."""


@dataclass(eq=False)
class InstanceProcess:
    """An instance process from its start to its end."""

    process: Process
    pid: int
    settings: InstanceSettings
    wire: ProcessWire | None = None
    instance: Instance | None = None


class Host:
    """One worker. `kill_agent` leaves its instances running; `power_loss` ends everything, and the
    disks lose what was not durable. `further` are the disks besides the first, by directory; one
    is pulled by `unplug`."""

    def __init__(self, world: "World", name: WorkerId) -> None:
        self.name = name
        self.address = Address(f"grpc+unix:///{name}.sock")
        self.disk = FakeDisk()
        self.further: dict[str, FakeDisk] = {}
        for number in range(2, world.disks + 1):
            self.plug(f"/{name}/{number}")
        self.agent: Agent | None = None
        self.instances: dict[int, InstanceProcess] = {}
        self._world = world
        self._process: Process | None = None
        self._wire: ProcessWire | None = None
        self._pids = itertools.count(100)

    def plug(self, path: str, **more: Any) -> FakeDisk:
        """A new, empty disk in a directory of this host."""
        number = 2 + len(self.further)
        disk = self.further[path] = FakeDisk(mount=f"{path}/", number=number, **more)
        return disk

    def whole(self) -> SpreadDisk:
        """All disks that are there as one, as they are now: to be read from."""
        return spread([self.disk, *(disk for disk in self.further.values() if not disk.gone)])

    def unplug(self, path: str) -> None:
        """The disk in a directory answers nothing any more."""
        self.further[path].gone = True

    def plug_again(self, path: str) -> None:
        """It is back, as it was."""
        self.further[path].gone = False

    # --- the agent -------------------------------------------------------------------------------

    def start_agent(self) -> None:
        """Start the agent, as `rhino_agent.__main__` does."""
        assert self.agent is None
        process = self._process = self._world.process(self.name)
        disk = SpreadDisk(ProcessDisk(self.disk, process), "disk")
        self._wire = ProcessWire(self._world.network.wire(self.address), process)
        seen = ProcessDisk(Mounts(self.disk, self.further), process)
        try:
            incarnation = next_incarnation(disk)
            owner = Owner(cluster=self._world.cluster, worker=self.name, incarnation=incarnation)
            disks = Disks(disk, partial(self._open_disk, process), owner, self._settings().disks)
            ports = Ports(
                settings=self._settings(),
                clock=self._world.clock_of(self.name),
                wire=self._wire,
                disk=disk,
                launcher=self,
                digester=lambda: DiskDigester(seen),
                incarnation=incarnation,
            )
            self.agent = Agent(ports, disks, pid=next(self._pids))
        except Killed:
            self.kill_agent()
            return
        loop = self._agent_life(self.agent, process)
        self._world.schedule.add(self.name, self._wire.inner, loop)

    def _open_disk(self, process: Process, path: str, number: int, *, fresh: bool) -> ProcessDisk:
        """What is in a directory (`rhinoctl.state.disks.Opener`)."""
        if path not in self.further:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return ProcessDisk(self.further[path], process)

    @property
    def runs(self) -> bool:
        """Whether the agent runs, or is just starting: that may take its time on a slow disk."""
        return self._process is not None

    def _settings(self) -> AgentSettings:
        return AgentSettings(
            cluster=self._world.cluster,
            worker=self.name,
            disk="disk",
            run="/run",
            listen=self.address,
            token_file="token",
            cache_bytes=SMALL_BYTES,
            buffer_bytes=SMALL_BYTES,
            replication_bytes_s=self._world.copies_bytes_s,
            ballast_bytes=BALLAST_BYTES,
            scrub_bytes_s=self._world.scrub_bytes_s,
            disks=tuple(f"/{self.name}/{n}" for n in range(2, self._world.disks + 1)),
        )

    def _agent_life(self, agent: Agent, process: Process) -> Generator[float, None, None]:
        try:
            while not agent.left:
                process.touch("turn")
                agent.step(0.0)
                pause_s = limits.AGENT_WAIT_S * self._world.leisure
                yield 0.001 if agent.has_work else pause_s
            agent.stop_instances()
        except Killed:
            return
        self.kill_agent()

    def kill_agent(self) -> None:
        """kill -9 of the agent alone."""
        if self._process is None:
            return
        self._process.alive = False
        self._world.schedule.remove(self.name)
        assert self._wire is not None
        self._wire.inner.crash()
        self._process = self._wire = self.agent = None

    def end_agent(self) -> None:
        """SIGTERM: it says farewell, and ends with its instances."""
        assert self.agent is not None
        self.agent.leave()

    def power_loss(self, keep: Random | None = None) -> None:
        """Everything on the host ends, and the disk forgets what was not durable."""
        self.kill_agent()
        for pid in list(self.instances):
            self.kill_pid(pid)
        for disk in (self.disk, *self.further.values()):
            disk.crash(keep)

    def lose(self) -> None:
        """kill -9 of the agent and of all instances; the disk stays as it is."""
        self.kill_agent()
        for pid in list(self.instances):
            self.kill_pid(pid)

    # --- instance processes: the agent's launcher ------------------------------------------------

    def start(self, settings_path: str, log_path: str) -> ProcessName:
        """Start an instance process (`rhino_agent.launcher.Launcher`)."""
        settings = codec.loads(InstanceSettings, self.disk.read(settings_path))
        pid = next(self._pids)
        process = self._world.process(f"{self.name}/{settings.instance}")
        started = self.instances[pid] = InstanceProcess(process, pid, settings)
        self._world.network.after(START_S, lambda: self._listen(started))
        return ProcessName(pid=pid, born=pid)

    def _listen(self, started: InstanceProcess) -> None:
        process, settings = started.process, started.settings
        if not process.alive:
            return
        disk = ProcessDisk(Mounts(self.disk, self.further), process)
        wire = ProcessWire(self._world.network.wire(Address(settings.listen)), process)
        started.wire = wire
        started.instance = Instance(
            settings,
            wire=wire,
            clock=self._world.clock_of(self.name),
            stores=DiskStores(disk),
            files=DiskFiles(disk),
            operator=bound_from_json(json.loads(settings.job.operator.spec)),
            rss_bytes=lambda: 1 << 20,
        )
        loop = self._instance_life(started, started.instance)
        self._world.schedule.add(f"{self.name}#{started.pid}", wire.inner, loop)

    def _instance_life(
        self, started: InstanceProcess, instance: Instance
    ) -> Generator[float, None, None]:
        try:
            while not instance.stopping:
                instance.step(0.0)
                yield limits.LOOP_WAIT_S
        except Killed:
            pass
        self.kill_pid(started.pid)

    def alive(self, process: ProcessName) -> bool:
        """Whether this process runs (`rhino_agent.launcher.Launcher`)."""
        return process.pid in self.instances

    def stopped(self, process: ProcessName) -> bool:
        """Whether it stands still (`rhino_agent.launcher.Launcher`)."""
        return self._world.schedule.is_paused(f"{self.name}#{process.pid}")

    def kill(self, process: ProcessName) -> None:
        """End a process and reap it (`rhino_agent.launcher.Launcher`)."""
        self.kill_pid(process.pid)

    def kill_pid(self, pid: int) -> None:
        """kill -9 of one instance process."""
        gone = self.instances.pop(pid, None)
        if gone is None:
            return
        gone.process.alive = False
        self._world.schedule.remove(f"{self.name}#{pid}")
        if gone.wire is not None:
            gone.wire.inner.crash()

    def pids(self, instance: str, job: JobUid | None = None) -> list[int]:
        """The processes of an instance."""
        return [
            pid
            for pid, one in self.instances.items()
            if one.settings.instance == InstanceId(instance) and job in (None, one.settings.job.uid)
        ]
