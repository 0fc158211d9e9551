"""The agent's view of an instance: heard of exactly once, replaced when silent, never two."""

from dataclasses import dataclass, field
from random import Random

import pytest

from rhino_agent.instances import Instance
from rhino_agent.launcher import ProcessName
from rhino_agent.ports import Ports
from rhino_agent.settings import AgentSettings, InstanceSettings
from rhinoctl import limits
from rhinoctl.ids import BASE, InstanceId, JobName, JobUid, Vnode, WorkerId
from rhinoctl.protocol import codec
from rhinoctl.protocol import messages as m
from rhinoctl.protocol.jobs import JobSpec
from rhinoctl.protocol.ports import Address, Envelope
from tests.fakes.clock import FakeClock
from tests.fakes.disk import FakeDisk
from tests.fakes.wire import FakeNetwork, FakeWire
from tests.fakes.world_spark import operator_spec


@dataclass
class Processes:
    """A launcher whose processes are wires that a test answers at."""

    network: FakeNetwork
    disk: FakeDisk
    started: list[InstanceSettings] = field(default_factory=list)
    wires: dict[int, FakeWire] = field(default_factory=dict)
    standing: set[int] = field(default_factory=set)
    fails: bool = False

    def start(self, settings_path: str, log_path: str) -> ProcessName:
        settings = codec.loads(InstanceSettings, self.disk.read(settings_path))
        self.started.append(settings)
        pid = 100 + len(self.started)
        self.wires[pid] = self.network.wire(Address(settings.listen))
        if self.fails:
            raise KeyboardInterrupt("the agent is killed here")
        return ProcessName(pid=pid, born=pid)

    def alive(self, process: ProcessName) -> bool:
        return process.pid in self.wires

    def stopped(self, process: ProcessName) -> bool:
        return process.pid in self.standing

    def kill(self, process: ProcessName) -> None:
        wire = self.wires.pop(process.pid, None)
        if wire is not None:
            wire.crash()


class Bench:
    """An agent's world with one instance in it."""

    def __init__(self, listen: str = "grpc+unix:///w1.sock") -> None:
        self.clock = FakeClock()
        self.network = FakeNetwork(Random(1), self.clock)
        self.disk = FakeDisk()
        self.processes = Processes(self.network, self.disk)
        self.wire = self.network.wire(Address(listen))
        settings = AgentSettings(
            cluster="c",
            worker=WorkerId("w1"),
            disk="disk",
            run="/run",
            listen=self.wire.address,
            token_file="token",
            cache_bytes=1,
            buffer_bytes=1,
        )
        self.ports = Ports(
            settings=settings,
            clock=self.clock,
            wire=self.wire,
            disk=self.disk,
            launcher=self.processes,
        )
        self.ready: list[InstanceId] = []
        self.beacon = ""

    def instance(self, uid: str = "job-1", name: str = "i0") -> Instance:
        spec = JobSpec(
            uid=JobUid(uid),
            name=JobName("job"),
            vnodes=4,
            replication=0,
            operator=operator_spec(),
        )
        return Instance(self.ports, spec, f"jobs/{uid}", InstanceId(name), self.ready.append)

    def run(self, instance: Instance, for_s: float, *, answer: bool = True) -> None:
        """Let the agent look after the instance, which answers its questions or does not."""
        end = self.clock.monotonic() + for_s
        while self.clock.monotonic() < end:
            instance.ensure_running()
            self.network.deliver_until(self.clock.monotonic() + 0.05)
            for wire in list(self.processes.wires.values()):
                while answer and wire.waiting():
                    self._answer(wire)
            while self.wire.waiting():
                envelope = self.wire.receive(0.0)
                assert envelope is not None
                self.ports.answered(envelope)

    def _answer(self, wire: FakeWire) -> None:
        envelope = wire.receive(0.0)
        assert envelope is not None
        assert envelope.message is not None
        header = envelope.message.header
        if isinstance(envelope.message, m.InstanceStatus):
            state = m.InstanceState(
                header=header,
                instance=InstanceId("i0"),
                vnodes={},
                rss_bytes=1,
                beacon=self.beacon,
            )
            wire.reply(envelope, state)
        else:
            wire.reply(envelope, m.Done(header=header))
            if isinstance(envelope.message, m.StopInstance):
                (pid,) = [p for p, w in self.processes.wires.items() if w is wire]
                self.processes.kill(ProcessName(pid=pid, born=pid))


def open_vnode(instance: Instance) -> m.OpenVnode:
    header = m.Header(cluster="c", job=JobUid("job-1"), incarnation=instance.incarnation)
    return m.OpenVnode(header=header, vnode=Vnode(0), base="", covers=BASE)


def test_it_is_started_and_asked_until_it_answers() -> None:
    bench = Bench()
    instance = bench.instance()
    bench.run(instance, 1.0)
    assert instance.ready
    assert bench.ready == ["i0"]
    assert [one.incarnation for one in bench.processes.started] == [1]


def test_one_that_died_is_started_again_as_the_next_incarnation_after_a_pause() -> None:
    bench = Bench()
    instance = bench.instance()
    bench.run(instance, 0.2)
    bench.processes.kill(ProcessName(pid=instance.pid, born=instance.pid))
    bench.run(instance, 0.2)
    assert len(bench.processes.started) == 1
    bench.run(instance, 2 * limits.INSTANCE_RESTART_S)
    assert [one.incarnation for one in bench.processes.started] == [1, 2]
    assert instance.ready


def test_whoever_gave_a_command_hears_once_that_the_process_died_over_it() -> None:
    bench = Bench()
    instance = bench.instance()
    bench.run(instance, 1.0)
    heard: list[Envelope] = []
    instance.command(open_vnode(instance), heard.append, timeout_s=60.0)
    bench.processes.kill(ProcessName(pid=instance.pid, born=instance.pid))
    bench.run(instance, 3.0)
    assert [envelope.message for envelope in heard] == [None]
    assert not instance.busy
    assert instance.ready


def test_one_that_is_stopped_over_a_command_is_heard_of_and_leaves_nothing() -> None:
    bench = Bench()
    instance = bench.instance()
    bench.run(instance, 1.0)
    heard: list[Envelope] = []
    instance.command(open_vnode(instance), heard.append, timeout_s=60.0)
    instance.stop()
    assert [envelope.message for envelope in heard] == [None]
    assert bench.disk.list("jobs/job-1/instances") == []
    assert bench.processes.wires == {}


def test_one_that_does_not_answer_is_replaced_after_its_deadline() -> None:
    bench = Bench()
    instance = bench.instance()
    bench.run(instance, 1.0)
    instance.ready = False
    bench.run(instance, limits.COMMAND_DEADLINE_S - 5.0, answer=False)
    assert len(bench.processes.started) == 1
    bench.run(instance, 20.0, answer=False)
    assert len(bench.processes.started) == 2


def test_one_that_is_stopped_is_replaced_soon() -> None:
    bench = Bench()
    instance = bench.instance()
    bench.run(instance, 1.0)
    heard: list[Envelope] = []
    instance.command(open_vnode(instance), heard.append, timeout_s=60.0)
    bench.processes.standing = {instance.pid}
    bench.run(instance, limits.STOPPED_LOOKS - 2.0, answer=False)
    assert (len(bench.processes.started), heard) == (1, [])
    bench.run(instance, 5.0, answer=False)
    assert len(bench.processes.started) == 2
    assert [envelope.message for envelope in heard] == [None]
    bench.run(instance, 60.0)
    assert instance.ready
    assert len(bench.processes.started) == 2


def test_one_that_goes_on_in_time_and_one_whose_agent_stood_still_are_left_alone() -> None:
    bench = Bench()
    instance = bench.instance()
    bench.run(instance, 1.0)
    for _ in range(3):
        bench.processes.standing = {instance.pid}
        bench.run(instance, limits.STOPPED_LOOKS - 2.0)
        bench.processes.standing = set()
        bench.run(instance, 1.5)
    bench.processes.standing = {instance.pid}
    bench.run(instance, 1.5)
    bench.clock.advance(600.0)
    bench.run(instance, 1.5)
    assert len(bench.processes.started) == 1


def test_one_that_outlived_its_agent_is_adopted() -> None:
    bench = Bench()
    bench.run(bench.instance(), 1.0)
    adopted = bench.instance()
    bench.run(adopted, 1.0)
    assert adopted.ready
    assert adopted.incarnation == 1
    assert len(bench.processes.started) == 1


def test_on_a_unix_socket_its_own_is_its_beacon() -> None:
    bench = Bench()
    instance = bench.instance()
    bench.run(instance, 1.0)
    assert instance.beacon == instance.listen
    assert bench.processes.started[0].beacons is None


def test_on_tcp_it_tells_its_beacon_also_to_the_agent_that_adopts_it() -> None:
    """It chooses one of the ports after the agent's, which only the kernel knows to be free."""
    bench = Bench("grpc+tls://0.0.0.0:7471")
    bench.beacon = "tcp://:7473"
    instance = bench.instance()
    bench.run(instance, 1.0)
    assert bench.processes.started[0].beacons == ("0.0.0.0", 7472)
    assert instance.beacon == "tcp://:7473"
    adopted = bench.instance()
    assert adopted.beacon == "", "until it has answered, it is not known"
    bench.run(adopted, 1.0)
    assert adopted.beacon == "tcp://:7473"
    bench.processes.kill(ProcessName(pid=adopted.pid, born=adopted.pid))
    bench.beacon = "tcp://:7472"
    bench.run(adopted, 2 * limits.INSTANCE_RESTART_S)
    assert (adopted.incarnation, adopted.beacon) == (2, "tcp://:7472")


def test_one_whose_pid_was_never_noted_does_not_live_on_beside_its_successor() -> None:
    bench = Bench()
    bench.processes.fails = True
    with pytest.raises(KeyboardInterrupt):
        bench.instance().ensure_running()
    bench.processes.fails = False
    assert len(bench.processes.wires) == 1
    successor = bench.instance()
    bench.run(successor, 2.0)
    assert successor.incarnation == 2
    assert list(bench.processes.wires) == [successor.pid]


def test_instances_of_one_name_of_two_jobs_listen_at_two_places() -> None:
    bench = Bench()
    one, two = bench.instance("job-1"), bench.instance("job-2")
    one.ensure_running()
    two.ensure_running()
    assert len({settings.listen for settings in bench.processes.started}) == 2
