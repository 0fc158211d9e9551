"""The instance's loop: a batch is taken once, poison changes nothing, a failing store ends it."""

import errno
from dataclasses import replace
from random import Random

import pyarrow as pa
import pytest

from rhino_agent.instance import LAST_BATCH, Instance
from rhino_agent.settings import InstanceSettings
from rhinoctl.errors import CorruptFile
from rhinoctl.ids import BASE, BatchTime, InstanceId, JobName, JobUid, Vnode, WorkerId
from rhinoctl.protocol import messages as m
from rhinoctl.protocol.jobs import JobSpec
from rhinoctl.protocol.ports import Address, WriteBatch
from rhinoctl.protocol.records import Watermarks
from rhinoctl.spark.slices import sliced
from tests.fakes.clock import FakeClock
from tests.fakes.disk import FakeDisk
from tests.fakes.schedule import Schedule
from tests.fakes.wire import FakeNetwork
from tests.fakes.world_input import Row, frame_of, operator, totals_of, vnode_of
from tests.fakes.world_process import Process, ProcessDisk
from tests.fakes.world_spark import operator_spec
from tests.fakes.world_store import DiskFiles, DiskStores, LiveStore

UID = JobUid("job-1")
HERE = Address("grpc+unix:///i0.sock")
HEADER = m.Header(cluster="c", job=UID, incarnation=3)
VNODES = 4
PLENTY = 1 << 20
ROWS: list[Row] = [(f"k{n}", n) for n in range(20)]


class Bench:
    """One instance with vnodes 0 and 1 open and empty, and who asks it. Without `buffer_bytes`, all
    is spilled after each command."""

    def __init__(self, *, buffer_bytes: int = 0, disk: FakeDisk | None = None) -> None:
        self.disk = disk or FakeDisk()
        self.network = FakeNetwork(Random(1), FakeClock())
        schedule = Schedule(self.network, Random(1))
        spec = JobSpec(
            uid=UID,
            name=JobName("job"),
            vnodes=VNODES,
            replication=0,
            operator=operator_spec(),
        )
        settings = InstanceSettings(
            cluster="c",
            job=spec,
            instance=InstanceId("i0"),
            incarnation=3,
            worker=WorkerId("w1"),
            disk="disk",
            live="live/i0/3",
            listen=HERE,
            token_file="token",
            cache_bytes=0,
            buffer_bytes=buffer_bytes,
            agent_parent=0,
        )
        wire = self.network.wire(HERE)
        disk = ProcessDisk(self.disk, Process("i0"))
        self.instance = Instance(
            settings,
            wire=wire,
            clock=self.network.clock,
            stores=DiskStores(disk),
            files=DiskFiles(disk),
            operator=operator(),
            rss_bytes=lambda: 1,
        )
        schedule.add("i0", wire, self.instance)
        for vnode in (0, 1):
            assert isinstance(self.open(vnode), m.Done)

    def ask(self, message: m.Message) -> m.Message:
        return self.network.call(HERE, message, timeout_s=5.0)[0]

    def open(self, vnode: int, base: str = "", covers: BatchTime = BASE) -> m.Message:
        return self.ask(m.OpenVnode(header=HEADER, vnode=Vnode(vnode), base=base, covers=covers))

    def batch(self, number: int, rows: list[Row] = ROWS, **changes: object) -> m.ApplyBatch:
        """A command, with its slices laid down in a segment."""
        mine = [row for row in rows if vnode_of(row[0], VNODES) < 2]
        parts, path = [], f"log/{number}.seg"
        for name, body in sliced(operator(), pa.Table.from_batches([frame_of(mine)]), VNODES):
            offset = self.disk.append(path, [bytes(body)])
            place = m.SlicePlace(
                vnode=name.vnode, offset=offset, size=name.size, checksum=name.checksum
            )
            parts.append(m.SegmentPart(path=path, places=(place,)))
        command = m.ApplyBatch(
            header=HEADER,
            time=BatchTime(0, number),
            vnodes=(Vnode(0), Vnode(1)),
            parts=tuple(parts),
            output=f"out/0-{number}/i0",
            owned=(Vnode(0), Vnode(1)),
            watermarks=Watermarks(),
            batch_time_ms=0,
        )
        return replace(command, **changes)  # type: ignore[arg-type]

    def counts(self) -> dict[str, int]:
        stores = self.instance.open_stores.values()
        pieces = [totals_of(piece) for store in stores for piece in operator().scan(store)]
        return {key: count for piece in pieces for key, (count, _) in piece.items()}

    def checkpoint(self, vnode: int, directory: str) -> m.Message:
        return self.ask(m.CheckpointVnode(header=HEADER, vnode=Vnode(vnode), directory=directory))

    def output(self, number: int) -> dict[str, tuple[int, int]]:
        (name,) = self.disk.list(f"out/0-{number}")
        body = self.disk.read(f"out/0-{number}/{name}")
        return totals_of(pa.ipc.open_stream(body).read_all())


def refusal(answer: m.Message) -> m.Refusal:
    assert isinstance(answer, m.Refusal), answer
    return answer


def test_a_batch_is_applied_and_its_output_written() -> None:
    bench = Bench()
    answer = bench.ask(bench.batch(0))
    assert isinstance(answer, m.BatchApplied)
    assert set(bench.counts().values()) == {1}
    assert {key: n for key, (n, _) in bench.output(0).items()} == bench.counts()
    assert answer.rows == len(bench.counts())


def test_the_same_command_again_is_answered_again_and_changes_nothing() -> None:
    bench = Bench()
    command = bench.batch(0)
    assert bench.ask(command) == bench.ask(command)
    assert set(bench.counts().values()) == {1}


def test_a_batch_that_a_vnode_is_past_is_refused() -> None:
    bench = Bench()
    bench.ask(bench.batch(0))
    bench.ask(bench.batch(1))
    code = refusal(bench.ask(bench.batch(0, output=""))).code
    assert code is m.RefusalCode.STALE_ATTEMPT
    assert set(bench.counts().values()) == {2}


def test_the_same_command_is_carried_out_on_a_vnode_that_was_opened_anew() -> None:
    bench = Bench()
    command = bench.batch(0, vnodes=(Vnode(0),), owned=(), output="")
    command = replace(command, parts=command.parts[:1])
    assert command.parts[0].places[0].vnode == 0
    bench.ask(command)
    before = bench.counts()
    bench.ask(m.CloseVnode(header=HEADER, vnode=Vnode(0)))
    bench.open(0)
    assert bench.counts() == {}
    bench.ask(command)
    assert bench.counts() == before


def test_a_follower_makes_no_output_of_what_others_own() -> None:
    bench = Bench()
    bench.ask(bench.batch(0, owned=(Vnode(1),)))
    assert {vnode_of(key, VNODES) for key in bench.output(0)} == {1}
    assert {vnode_of(key, VNODES) for key in bench.counts()} == {0, 1}


@pytest.mark.parametrize("buffer_bytes", [0, PLENTY])
def test_poison_is_told_with_the_batch_and_changes_nothing(buffer_bytes: int) -> None:
    bench = Bench(buffer_bytes=buffer_bytes)
    bench.ask(bench.batch(0, [("k1", 2**62)]))
    answer = refusal(bench.ask(bench.batch(1, [("k1", 2**62)])))
    assert answer.code is m.RefusalCode.POISON
    assert "batch 0/1" in answer.detail
    assert "k1" in answer.detail
    assert not bench.instance.stopping
    assert isinstance(bench.ask(bench.batch(1, [("k1", 5)])), m.BatchApplied)
    assert bench.output(1) == {"k1": (2, 2**62 + 5)}
    for vnode in (0, 1):
        bench.checkpoint(vnode, f"ckpt/{vnode}")
    assert bench.counts() == {"k1": 2}


def test_a_damaged_slice_is_the_workers_fault_not_the_batchs() -> None:
    bench = Bench()
    command = bench.batch(0)
    bench.disk.rot("log/0.seg", 40)
    answer = refusal(bench.ask(command))
    assert answer.code is m.RefusalCode.FAULT
    assert "log/0.seg" in answer.detail
    assert not bench.instance.stopping
    assert bench.counts() == {}


def test_a_batch_that_could_not_be_written_to_all_ends_the_process() -> None:
    bench = Bench()
    command = bench.batch(0)
    bench.disk.capacity_bytes = 0
    answer = refusal(bench.ask(command))
    assert answer.code is m.RefusalCode.FAULT
    assert bench.instance.stopping


def test_a_vnode_that_is_open_elsewhere_in_time_is_not_taken_for_open() -> None:
    bench = Bench()
    bench.ask(bench.batch(0))
    assert refusal(bench.open(0)).code is m.RefusalCode.STALE_ATTEMPT
    assert isinstance(bench.open(0, covers=BatchTime(0, 0)), m.Done)


def test_a_checkpoint_says_who_touched_last_and_what_it_covers() -> None:
    bench = Bench()
    bench.ask(bench.batch(0))
    bench.ask(bench.batch(1, []))
    ask = m.CheckpointVnode(header=HEADER, vnode=Vnode(0), directory="ckpt/1")
    answer = bench.ask(ask)
    assert isinstance(answer, m.Checkpointed)
    assert (answer.last_batch, answer.covers) == (BatchTime(0, 0), BatchTime(0, 1))
    assert refusal(bench.ask(ask)).code is m.RefusalCode.FAULT, "the directory exists"
    assert not bench.instance.stopping
    other = m.CheckpointVnode(header=HEADER, vnode=Vnode(3), directory="ckpt/2")
    assert refusal(bench.ask(other)).code is m.RefusalCode.NOT_FOUND


def test_a_closed_vnode_opens_from_its_checkpoint_with_the_runtimes_own_entry() -> None:
    bench = Bench()
    bench.ask(bench.batch(0))
    bench.ask(m.CheckpointVnode(header=HEADER, vnode=Vnode(0), directory="ckpt/1"))
    before = bench.counts()
    bench.ask(m.CloseVnode(header=HEADER, vnode=Vnode(0)))
    bench.ask(m.CloseVnode(header=HEADER, vnode=Vnode(0)))
    bench.open(0, "ckpt/1", BatchTime(0, 0))
    assert bench.counts() == before
    assert bench.instance.open_stores[Vnode(0)].get_many([LAST_BATCH]) == [b"0/0"]


@pytest.mark.parametrize("changes", [{"incarnation": 2}, {"job": JobUid("other")}])
def test_a_command_for_another_process_is_refused(changes: dict[str, object]) -> None:
    bench = Bench()
    header = replace(HEADER, **changes)  # type: ignore[arg-type]
    answer = refusal(bench.ask(m.InstanceStatus(header=header)))
    assert answer.code is m.RefusalCode.FENCED


def test_a_command_that_comes_after_a_later_one_is_refused() -> None:
    """What a dead agent gave may arrive after its successor has asked what there is, and what was
    given up after the command that took its place."""
    bench = Bench()
    late = bench.batch(0, turn=m.Turn(agent=3, number=9))
    status = m.InstanceStatus(header=HEADER, turn=m.Turn(agent=4, number=1))
    for _ in range(2):
        assert isinstance(bench.ask(status), m.InstanceState)
    assert refusal(bench.ask(late)).code is m.RefusalCode.FENCED
    assert set(bench.instance.positions.values()) == {BASE}
    bench.ask(bench.batch(0, turn=m.Turn(agent=4, number=3)))
    close = m.CloseVnode(header=HEADER, vnode=Vnode(0), turn=m.Turn(agent=4, number=2))
    assert refusal(bench.ask(close)).code is m.RefusalCode.FENCED
    assert set(bench.instance.positions.values()) == {BatchTime(0, 0)}


def test_stop_is_answered_first() -> None:
    bench = Bench()
    assert isinstance(bench.ask(m.StopInstance(header=HEADER)), m.Done)
    assert bench.instance.stopping


# --- write-behind ---------------------------------------------------------------------------------


def test_batches_stay_in_memory_until_a_checkpoint_which_has_them_all() -> None:
    bench = Bench(buffer_bytes=PLENTY)
    bench.ask(bench.batch(0))
    bench.ask(bench.batch(1))
    bench.ask(bench.batch(2, []))
    assert bench.counts() == {}
    answer = bench.checkpoint(0, "ckpt/0")
    assert isinstance(answer, m.Checkpointed)
    assert (answer.last_batch, answer.covers) == (BatchTime(0, 1), BatchTime(0, 2))
    assert bench.counts() == {key: 2 for key, _ in ROWS if vnode_of(key, VNODES) == 0}
    bench.ask(m.CloseVnode(header=HEADER, vnode=Vnode(0)))
    bench.open(0, "ckpt/0", BatchTime(0, 2))
    bench.ask(bench.batch(3))
    assert {n for n, _ in bench.output(3).values()} == {3}


def test_a_dead_instances_successor_begins_from_checkpoint_and_log() -> None:
    first = Bench(buffer_bytes=PLENTY)
    first.ask(first.batch(0))
    for vnode in (0, 1):
        first.checkpoint(vnode, f"ckpt/{vnode}")
    lost = first.batch(1)
    first.ask(lost)
    expected = first.output(1)
    second = Bench(buffer_bytes=PLENTY, disk=first.disk)
    for vnode in (0, 1):
        second.ask(m.CloseVnode(header=HEADER, vnode=Vnode(vnode)))
        second.open(vnode, f"ckpt/{vnode}", BatchTime(0, 0))
    assert set(second.counts().values()) == {1}
    second.disk.remove("out/0-1")
    second.ask(lost)
    assert second.output(1) == expected
    assert {n for n, _ in expected.values()} == {2}


def test_beyond_the_budget_the_largest_vnode_is_spilled_and_flushed_first() -> None:
    rows = [(f"k{n}", n) for n in range(200) if vnode_of(f"k{n}", VNODES) == 0]
    few = next((f"k{n}", n) for n in range(200) if vnode_of(f"k{n}", VNODES) == 1)
    bench = Bench(buffer_bytes=2000)
    bench.ask(bench.batch(0, [*rows, few]))
    assert bench.counts() == dict.fromkeys([key for key, _ in rows], 1)
    large, small = (bench.instance.open_stores[Vnode(vnode)] for vnode in (0, 1))
    assert large.dirty_bytes == 0
    assert large.get_many([LAST_BATCH]) == [b"0/0"]
    assert small.get_many([LAST_BATCH]) == [None]
    bench.ask(bench.batch(1, [few]))
    assert bench.output(1) == {few[0]: (2, 2 * few[1])}
    assert large.get_many([LAST_BATCH]) == [b"0/0"], "the batch did not touch it"


def test_what_is_not_spilled_counts_as_state() -> None:
    sizes = []
    for buffer_bytes in (PLENTY, 0):
        bench = Bench(buffer_bytes=buffer_bytes)
        answer = bench.ask(bench.batch(0))
        assert isinstance(answer, m.BatchApplied)
        sizes.append(answer.state_bytes)
    assert sizes[0].keys() == {0, 1}
    assert min(sizes[0].values()) > 0
    assert sizes[0] == sizes[1], "a batch is spilled after it is answered"


def test_a_spill_that_the_disk_refuses_ends_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(buffer_bytes=0)

    def full(self: LiveStore, batch: WriteBatch) -> None:
        raise OSError(errno.ENOSPC, "no space")

    monkeypatch.setattr(LiveStore, "write", full)
    assert isinstance(bench.ask(bench.batch(0)), m.BatchApplied), "the log has the batch"
    assert bench.instance.stopping


def test_a_vnode_whose_database_cannot_be_read_is_not_open(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()
    bench.ask(bench.batch(0))
    bench.checkpoint(0, "ckpt/0")
    bench.ask(m.CloseVnode(header=HEADER, vnode=Vnode(0)))

    def damaged(self: LiveStore, lo: bytes = b"", hi: bytes | None = None) -> None:
        raise CorruptFile("a block is damaged", remedy="none")

    with monkeypatch.context() as patched:
        patched.setattr(LiveStore, "scan", damaged)
        assert refusal(bench.open(0, "ckpt/0", BatchTime(0, 0))).code is m.RefusalCode.FAULT
    assert bench.instance.open_stores.keys() == {1}
    assert isinstance(bench.open(0, "ckpt/0", BatchTime(0, 0)), m.Done)
