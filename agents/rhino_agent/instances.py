"""One instance of a job on this worker: its process, and the one command that it works on.

The agent sends a command, waits for its answer, and chooses the next one from what it then knows
(`rhinoctl.protocol.feeding`). A process that died is reaped before the next incarnation starts; one
that outlived its agent is asked what it has, and adopted.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from rhino_agent.launcher import ProcessName
from rhino_agent.ports import Ports, event
from rhino_agent.settings import InstanceSettings, settings_bytes
from rhinoctl import limits
from rhinoctl.ids import BatchTime, Incarnation, InstanceId, Vnode
from rhinoctl.protocol import codec
from rhinoctl.protocol import messages as m
from rhinoctl.protocol.jobs import JobSpec
from rhinoctl.protocol.ports import Address, Envelope


@dataclass(frozen=True, slots=True, kw_only=True)
class Birth:
    """What is durable of an instance's last start; `pid` 0 while it is not known."""

    incarnation: int
    pid: int
    born: int
    listen: str


class Instance:
    """The agent's view of one instance process."""

    def __init__(self, ports: Ports, spec: JobSpec, root: str, instance: InstanceId) -> None:
        self.id = instance
        self.applied: dict[Vnode, BatchTime] = {}
        self.state_bytes: dict[Vnode, int] = {}
        self.applies: deque[tuple[BatchTime, float]] = deque(maxlen=limits.APPLIES_KEPT)
        self.ready = False
        self.busy = False
        self.fault = ""
        self.rss_bytes = 0
        self._ports = ports
        self._spec = spec
        self._root = root
        self._birth_path = f"{root}/instances/{instance}.json"
        self._birth = self._read_birth()
        self._asked_at = 0.0
        self._started_at = 0.0

    @property
    def incarnation(self) -> Incarnation:
        return Incarnation(self._birth.incarnation)

    @property
    def pid(self) -> int:
        return self._birth.pid

    def ensure_running(self) -> None:
        """Start it, or start it again after its death; ask a started one until it answers."""
        now = self._ports.clock.monotonic()
        if not self._alive():
            if now - self._started_at >= limits.INSTANCE_RESTART_S or not self._started_at:
                self._start(now)
        elif not self.ready and not self.busy and now - self._asked_at > limits.INSTANCE_POLL_S:
            self._asked_at = now
            status = m.InstanceStatus(header=self._header())
            self.command(status, self._on_status, timeout_s=limits.INSTANCE_START_S)

    def command(
        self, message: m.Message, done: Callable[[Envelope], None], *, timeout_s: float
    ) -> None:
        """Give it its one command; `done` hears the answer unless the process died over it."""
        self.busy = True
        incarnation = self._birth.incarnation

        def answered(envelope: Envelope) -> None:
            if incarnation != self._birth.incarnation:
                return
            self.busy = False
            if envelope.message is None:
                self.ready = False
            done(envelope)

        self._ports.ask(Address(self._birth.listen), message, answered, timeout_s=timeout_s)

    def stop(self) -> None:
        """End the process, whatever it does, and reap it."""
        if self._alive():
            self._ports.launcher.kill(self._process())
            event("instance-stopped", instance=self.id, pid=self._birth.pid)
        self._ports.disk.remove(self._birth_path)
        self._ports.disk.remove(f"{self._root}/live/{self.id}")
        self._forget()

    def let_go(self) -> None:
        """End the process but keep what names it, for an agent that stops in an orderly way."""
        if self._alive():
            self._ports.launcher.kill(self._process())
        self._forget()

    def _forget(self) -> None:
        self.applied, self.state_bytes = {}, {}
        self.ready = self.busy = False

    def _alive(self) -> bool:
        return self._birth.pid > 0 and self._ports.launcher.alive(self._process())

    def _process(self) -> ProcessName:
        return ProcessName(pid=self._birth.pid, born=self._birth.born)

    def _read_birth(self) -> Birth:
        if self._ports.disk.size(self._birth_path) is None:
            return Birth(incarnation=0, pid=0, born=0, listen="")
        birth: Birth = codec.loads(Birth, self._ports.disk.read(self._birth_path))
        return birth

    def _start(self, now: float) -> None:
        if self._birth.pid:
            self._ports.launcher.kill(self._process())
            event("instance-died", instance=self.id, pid=self._birth.pid)
        self._forget()
        incarnation = self._birth.incarnation + 1
        settings = self._ports.settings
        live = f"{self._root}/live/{self.id}/{incarnation}"
        listen = f"grpc+unix://{settings.run}/{settings.worker}-{self.id}-{incarnation}.sock"
        self._birth = Birth(incarnation=incarnation, pid=0, born=0, listen=listen)
        disk = self._ports.disk
        disk.write_atomic(self._birth_path, codec.dumps(self._birth))
        for old in disk.list(f"{self._root}/live/{self.id}"):
            disk.remove(f"{self._root}/live/{self.id}/{old}")
        path = f"{self._root}/instances/{self.id}.settings.json"
        disk.write_atomic(path, settings_bytes(self._settings(live, listen, incarnation)))
        process = self._ports.launcher.start(
            disk.path_of(path), disk.path_of(f"{self._root}/instances/{self.id}.log")
        )
        self._birth = Birth(
            incarnation=incarnation, pid=process.pid, born=process.born, listen=listen
        )
        disk.write_atomic(self._birth_path, codec.dumps(self._birth))
        self._started_at = now
        event("instance-started", instance=self.id, pid=process.pid, incarnation=incarnation)

    def _settings(self, live: str, listen: str, incarnation: int) -> InstanceSettings:
        settings = self._ports.settings
        return InstanceSettings(
            cluster=settings.cluster,
            job=self._spec,
            instance=self.id,
            incarnation=incarnation,
            worker=settings.worker,
            disk=settings.disk,
            live=self._ports.disk.path_of(live),
            listen=listen,
            token_file=settings.token_file,
            cache_bytes=settings.cache_bytes,
            buffer_bytes=settings.buffer_bytes,
            agent_parent=settings.parent,
        )

    def _header(self) -> m.Header:
        header = self._ports.header(self._spec.uid)
        return m.Header(cluster=header.cluster, job=header.job, incarnation=self._birth.incarnation)

    def _on_status(self, envelope: Envelope) -> None:
        state = envelope.message
        if not isinstance(state, m.InstanceState):
            return
        self.ready = True
        self.applied = dict(state.vnodes)
        self.rss_bytes = state.rss_bytes
        event("instance-ready", instance=self.id, pid=self.pid, vnodes=len(self.applied))
