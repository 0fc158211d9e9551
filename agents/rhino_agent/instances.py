"""One instance of a job on this worker: its process, and the one command that it works on.

The agent sends a command, waits for its answer, and chooses the next one from what it then knows
(`rhinoctl.protocol.feeding`). Invariants:

1. A process that died is reaped before the next incarnation starts; one that outlived its agent is
   asked what it has, and adopted.
2. Whoever gave a command hears of it exactly once, also when the process ends over it.
3. A process that is silent for `COMMAND_DEADLINE_S` is replaced, and so is one of which the agent
   never learnt the pid; one that somebody has stopped is much sooner: it does nothing meanwhile.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace

from rhino_agent.files import read_value
from rhino_agent.launcher import ProcessName
from rhino_agent.ports import Ports, event
from rhino_agent.settings import InstanceSettings, settings_bytes
from rhinoctl import limits
from rhinoctl.ids import BatchTime, Incarnation, InstanceId, Vnode
from rhinoctl.protocol import codec
from rhinoctl.protocol import messages as m
from rhinoctl.protocol.jobs import JobSpec
from rhinoctl.protocol.ports import Address, Envelope, Outcome
from rhinoctl.state.hashing import content_hash
from rhinoctl.wire.beacon import ports_after

Done = Callable[[Envelope], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Birth:
    """What is durable of an instance's last start; `pid` 0 while it is not known."""

    incarnation: int
    pid: int
    born: int
    listen: str


@dataclass(slots=True)
class Stray:
    """A process that an agent may have started just before it died, without noting its pid."""

    birth: Birth
    until: float
    next_at: float = 0.0


class Instance:
    """The agent's view of one instance process.

    `on_ready` is called when it has told what it has. `refusal` is why it cannot make the output
    that it owes; it is fed again when the output is asked for again. `fault` is its last setback,
    after which it is left alone until `not_before`; `poison` is the decided batch that its operator
    cannot apply, and why, until it has applied it.
    """

    def __init__(
        self,
        ports: Ports,
        spec: JobSpec,
        root: str,
        instance: InstanceId,
        on_ready: Callable[[InstanceId], None],
    ) -> None:
        self.id = instance
        self.applied: dict[Vnode, BatchTime] = {}
        self.state_bytes: dict[Vnode, int] = {}
        self.applies: deque[tuple[BatchTime, float]] = deque(maxlen=limits.APPLIES_KEPT)
        self.ready = False
        self.refusal: tuple[m.RefusalCode, str] | None = None
        self.fault = ""
        self.poison = ""
        self.setbacks = 0
        self.not_before = 0.0
        self.rss_bytes = 0
        self._beacon = ""
        self._beacons = ports_after(ports.settings.listen)
        self._ports = ports
        self._spec = spec
        self._root = root
        self._on_ready = on_ready
        self._birth_path = f"{root}/instances/{instance}.json"
        self._birth = self._read_birth()
        self._pending: Done | None = None
        self._given = 0
        self._stray: Stray | None = None
        self._asked_at = 0.0
        self._started_at: float | None = None
        self._looked_at = 0.0
        self._stopped_looks = 0
        self._heard_at = ports.clock.monotonic()

    @property
    def incarnation(self) -> Incarnation:
        return Incarnation(self._birth.incarnation)

    @property
    def pid(self) -> int:
        return self._birth.pid

    @property
    def busy(self) -> bool:
        """Whether a command is under way."""
        return self._pending is not None

    @property
    def alive(self) -> bool:
        """Whether its process runs."""
        return self._birth.pid > 0 and self._ports.launcher.alive(self._process())

    @property
    def listen(self) -> str:
        """Where its newest incarnation listens, empty before the first."""
        return self._birth.listen

    @property
    def beacon(self) -> str:
        """Where something listens as long as its process lives; empty while it is not known."""
        return self._birth.listen if self._beacons is None else self._beacon

    # --- commands --------------------------------------------------------------------------------

    def command(self, message: m.Command, done: Done, *, timeout_s: float) -> None:
        """Give it its one command; `done` hears the answer, or that none will come."""
        assert self._pending is None, f"{self.id} is busy"
        self._pending = done

        def answered(envelope: Envelope) -> None:
            if self._pending is not done:
                return
            self._pending = None
            if envelope.message is None:
                self.ready = False
            else:
                self._heard_at = self._ports.clock.monotonic()
            done(envelope)

        numbered = self._numbered(message)
        self._ports.ask(Address(self._birth.listen), numbered, answered, timeout_s=timeout_s)

    def _numbered(self, message: m.Command) -> m.Command:
        """The next command, as it is given."""
        self._given += 1
        turn = m.Turn(agent=self._ports.incarnation, number=self._given)
        return replace(message, turn=turn)

    def set_back(self, what: str) -> None:
        """Something came to nothing: leave it alone for a moment."""
        self.fault = what
        self.setbacks += 1
        self.not_before = self._ports.clock.monotonic() + limits.INSTANCE_RESTART_S
        event("instance-set-back", instance=self.id, what=what, times=self.setbacks)

    def went_well(self) -> None:
        """A command was done."""
        self.fault, self.setbacks = "", 0

    def _forget(self) -> None:
        """The process is gone, and with it what it had open and the command it was at."""
        self.applied, self.state_bytes = {}, {}
        self.ready, self._beacon = False, ""
        self._stopped_looks = 0
        done, self._pending = self._pending, None
        if done is not None:
            done(Envelope(message=None, outcome=Outcome.UNKNOWN, detail="the process ended"))

    # --- the process -----------------------------------------------------------------------------

    def ensure_running(self) -> None:
        """Start it, or start it again after its death; ask a started one until it answers."""
        now = self._ports.clock.monotonic()
        if self._stray is not None:
            self._end_stray(self._stray, now)
        if not self.alive:
            if self._started_at is None or now - self._started_at >= limits.INSTANCE_RESTART_S:
                self._started_at = self._heard_at = now
                self._start(now)
        elif self._stands_still(now):
            self.end("it is stopped")
        elif not self.ready and not self.busy:
            if now - self._heard_at > limits.COMMAND_DEADLINE_S:
                self.end("it does not answer")
            elif now - self._asked_at > limits.INSTANCE_POLL_S:
                self._asked_at = now
                status = m.InstanceStatus(header=self._header())
                self.command(status, self._on_status, timeout_s=limits.INSTANCE_START_S)

    def _stands_still(self, now: float) -> bool:
        """Look whether it is stopped; whether that was so at every one of the last looks."""
        if now - self._looked_at >= limits.STOPPED_LOOK_S:
            self._looked_at = now
            stopped = self._ports.launcher.stopped(self._process())
            self._stopped_looks = self._stopped_looks + 1 if stopped else 0
        return self._stopped_looks >= limits.STOPPED_LOOKS

    def _on_status(self, envelope: Envelope) -> None:
        state = envelope.message
        if not isinstance(state, m.InstanceState):
            return
        self.ready = True
        self.applied = dict(state.vnodes)
        self.rss_bytes = state.rss_bytes
        self._beacon = state.beacon
        event("instance-ready", instance=self.id, pid=self.pid, vnodes=len(self.applied))
        self._on_ready(self.id)

    def end(self, why: str) -> None:
        """Kill the process and reap it; the next incarnation begins from checkpoint and log."""
        event("instance-ended", instance=self.id, pid=self.pid, why=why)
        self._ports.launcher.kill(self._process())
        self._forget()

    def stop(self) -> None:
        """End the process for good, whatever it does, and remove what it had."""
        if self.alive:
            self.end("it is not wanted any more")
        self._forget()
        for path in (self._birth_path, self._settings_path):
            self._ports.disk.remove(path)
        self._ports.disk.remove(f"{self._root}/live/{self.id}")

    def let_go(self) -> None:
        """End the process but keep what names it, for an agent that stops in an orderly way."""
        if self.alive:
            self._ports.launcher.kill(self._process())
        self._forget()

    def _process(self) -> ProcessName:
        return ProcessName(pid=self._birth.pid, born=self._birth.born)

    def _read_birth(self) -> Birth:
        if self._ports.disk.size(self._birth_path) is None:
            return Birth(incarnation=0, pid=0, born=0, listen="")
        return read_value(self._ports.disk, Birth, self._birth_path)

    def _start(self, now: float) -> None:
        ports, before = self._ports, self._birth
        if before.pid:
            ports.launcher.kill(self._process())
            event("instance-died", instance=self.id, pid=before.pid)
        elif before.listen:
            self._stray = Stray(before, now + limits.INSTANCE_START_S)
        self._forget()
        incarnation = before.incarnation + 1
        live = f"{self._root}/live/{self.id}/{incarnation}"
        self._birth = Birth(incarnation=incarnation, pid=0, born=0, listen=self._socket())
        ports.disk.write_atomic(self._birth_path, codec.dumps(self._birth))
        for old in ports.disk.list(f"{self._root}/live/{self.id}"):
            ports.disk.remove(f"{self._root}/live/{self.id}/{old}")
        settings = self._settings(live, self._birth.listen, incarnation)
        ports.disk.write_atomic(self._settings_path, settings_bytes(settings))
        process = ports.launcher.start(
            ports.disk.path_of(self._settings_path),
            ports.disk.path_of(f"{self._root}/instances/{self.id}.log"),
        )
        self._birth = Birth(
            incarnation=incarnation,
            pid=process.pid,
            born=process.born,
            listen=self._birth.listen,
        )
        ports.disk.write_atomic(self._birth_path, codec.dumps(self._birth))
        event("instance-started", instance=self.id, pid=process.pid, incarnation=incarnation)

    def _socket(self) -> str:
        """Where the next incarnation listens: instances of two jobs may have one name."""
        settings = self._ports.settings
        job = content_hash(self._spec.uid.encode())[:8]
        name = f"{settings.worker}-{job}-{self.id}-{self._birth.incarnation + 1}"
        return f"grpc+unix://{settings.run}/{name}.sock"

    def _end_stray(self, stray: Stray, now: float) -> None:
        if now >= stray.until:
            self._stray = None
            return
        if now < stray.next_at:
            return
        stray.next_at = now + limits.INSTANCE_POLL_S * 4

        def answered(envelope: Envelope) -> None:
            if isinstance(envelope.message, m.Done) and self._stray is stray:
                event("stray-ended", instance=self.id, incarnation=stray.birth.incarnation)
                self._stray = None

        header = self._ports.header(self._spec.uid)
        stop = m.StopInstance(
            header=m.Header(
                cluster=header.cluster, job=header.job, incarnation=stray.birth.incarnation
            )
        )
        address = Address(stray.birth.listen)
        self._ports.ask(address, self._numbered(stop), answered, timeout_s=limits.INSTANCE_START_S)

    @property
    def _settings_path(self) -> str:
        return f"{self._root}/instances/{self.id}.settings.json"

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
            beacons=self._beacons,
        )

    def _header(self) -> m.Header:
        header = self._ports.header(self._spec.uid)
        return m.Header(cluster=header.cluster, job=header.job, incarnation=self._birth.incarnation)


def known_instances(
    ports: Ports, spec: JobSpec, root: str, on_ready: Callable[[InstanceId], None]
) -> list[Instance]:
    """The instances of a job that were started here before and not ended for good."""
    names = [
        name.removesuffix(".json")
        for name in ports.disk.list(f"{root}/instances")
        if name.endswith(".json") and not name.endswith(".settings.json")
    ]
    return [Instance(ports, spec, root, InstanceId(name), on_ready) for name in names]
