"""State management primitives over real databases, real directories and a real worker log.

The operator counts: a batch adds to each key, so that a batch that is applied twice or not at all
shows. A worker that dies loses its live databases; backups of it were made before.
"""

import errno
import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

import pytest
import xxhash

from rhinoctl.errors import CorruptFile, NoCopy
from rhinoctl.ids import BASE, NO_ATTEMPT, Attempt, BatchTime, InstanceId, JobUid, Vnode, WorkerId
from rhinoctl.protocol.epochs import Epoch, Route, with_moves
from rhinoctl.protocol.ports import WriteBatch
from rhinoctl.protocol.records import DecisionRecord, Position, RecordId, SliceName, Winner
from rhinoctl.state import primitives
from rhinoctl.state.checkpoints import VnodeCheckpoints
from rhinoctl.state.covers import Covers
from rhinoctl.state.disk import LocalDisk
from rhinoctl.state.hashing import SLICE_BYTES, finish
from rhinoctl.state.log import WorkerLog
from rhinoctl.state.manifests import Identity, Manifest
from rhinoctl.state.primitives import BufferState
from rhinoctl.state.rocks import RocksStore, RocksStores
from tests.fakes.store import FakeStore

VNODES = tuple(Vnode(v) for v in range(4))
W1, W2 = WorkerId("w1"), WorkerId("w2")
I0, I1, I2 = InstanceId("i0"), InstanceId("i1"), InstanceId("i2")
EPOCH = Epoch(
    number=1,
    workers={W1: "w1.sock", W2: "w2.sock"},
    instances={I0: W1, I1: W2, I2: W2},
    routes=(Route(owner=I0),) * 4,
)
KEYS = 400
"""Keys of a vnode; a batch adds to one in eight of them."""

Content = dict[bytes, bytes]


def keys_of(vnode: Vnode, batch: int) -> list[bytes]:
    """What a batch counts of a vnode. Vnode 3 has no rows in odd batches."""
    if vnode == VNODES[3] and batch % 2:
        return []
    chance = random.Random(batch * 100 + vnode)
    return [b"%d/%04d" % (vnode, chance.randrange(KEYS)) for _ in range(KEYS // 8)]


def counted(through: int, vnodes: Sequence[Vnode] = VNODES) -> Content:
    """What the batches up to one come to, by the input alone."""
    counts = Counter(k for b in range(through + 1) for v in vnodes for k in keys_of(v, b))
    return {key: _value(key, count) for key, count in counts.items()}


def _value(key: bytes, count: int) -> bytes:
    """The count, and so much else that a vnode takes more than one table block."""
    return b"%08d" % count + random.Random(key).randbytes(150)


def content(stores: Mapping[Vnode, RocksStore]) -> Content:
    return {key: value for store in stores.values() for key, value in store.scan()}


class Worker:
    """One worker's disk, with checkpoints, log and live databases."""

    def __init__(self, root: Path) -> None:
        self.disk = LocalDisk(str(root))
        self.log = WorkerLog(self.disk, "log")
        self.covers = Covers(self.disk, "covers.json")
        self.kept = {v: self.checkpoints(v) for v in VNODES}
        self.databases = RocksStores()
        self.live: dict[Vnode, RocksStore] = {}
        self.last = RecordId(Position(*BASE, 1), Attempt(1, 0))

    def checkpoints(self, vnode: Vnode) -> VnodeCheckpoints:
        """What is kept of a vnode, as a process that starts anew finds it."""
        identity = Identity(cluster="c", job=JobUid("j"), operator="count", vnode=vnode)
        return VnodeCheckpoints(self.disk, f"ckpt/{vnode}", identity)

    def begin(self) -> None:
        """A job that is just deployed."""
        origin = RecordId(Position(*BASE, 0), NO_ATTEMPT)
        self.log.seal(record(self.last, origin, ()))
        for vnode in VNODES:
            self.live[vnode] = self.databases.open(self.disk.path_of(f"live/{vnode}"))

    def stage(self, batch: int) -> None:
        """A batch gets into the log, in two channels."""
        at, attempt = Position(0, batch, 0), Attempt(1, batch + 1)
        winners = []
        for channel in (0, 1):
            bodies = {v: b"\n".join(keys_of(v, batch)[channel::2]) for v in VNODES}
            bodies = {v: body for v, body in bodies.items() if body}
            names = tuple(name_of(v, body) for v, body in bodies.items())
            self.log.append_put(at, attempt, (channel, 7), names, list(bodies.values()))
            winners.append(Winner(channel=channel, task_attempt=7, slices=names))
        sealed = record(RecordId(at, attempt), self.last, tuple(winners))
        self.log.seal(sealed)
        self.last = sealed.id

    def run(self, batches: range) -> None:
        """Stage batches, and apply them to the live databases."""
        for batch in batches:
            self.stage(batch)
            before = {vnode: time_of(batch - 1) for vnode in self.live}
            self.replay(primitives.buffer_state(self.log, before, time_of(batch)), self.live)

    def replay(self, buffer: BufferState, stores: Mapping[Vnode, RocksStore]) -> list[int]:
        """Apply β; returns the rows of each batch."""
        rows = []
        for decided, slices in primitives.replay_buffer_state(self.log, buffer):
            for vnode, body in slices:
                add(stores[vnode], bytes(body).split(b"\n"))
            rows.append(sum(len(bytes(body).split(b"\n")) for _, body in slices))
            assert decided.time <= buffer.through
        return rows

    def checkpoint(self, vnode: Vnode, batch: int) -> Manifest:
        draft = Manifest(
            identity=self.kept[vnode].identity,
            operator_version="1",
            vnodes=len(VNODES),
            checkpoint_id=f"c{batch}",
            last_batch=time_of(batch),
            covers=time_of(batch),
            epoch=1,
        )
        live = self.live[vnode]
        return finish(primitives.checkpoint_state(live, self.kept[vnode], draft))

    def restore(self, vnode: Vnode) -> tuple[RocksStore, BatchTime]:
        """A live database of a vnode, and its τ."""
        opener = partial(self.databases.open, self.disk.path_of(f"live/{vnode}"))
        return finish(primitives.restore_state(self.kept[vnode], self.covers, opener))

    def recover(self, vnodes: Sequence[Vnode], through: int, log: "Worker") -> list[int]:
        """Restore vnodes and replay what is after; returns the rows replayed, by batch."""
        reached = {}
        for vnode in vnodes:
            self.live[vnode], reached[vnode] = self.restore(vnode)
        buffer = primitives.buffer_state(log.log, reached, time_of(through))
        return log.replay(buffer, self.live)

    def trim(self, newest: int, keep: int) -> int:
        kept, at = self.kept.values(), Position(0, newest, 0)
        return primitives.trim_buffer_state(self.log, self.covers, kept, at, keep=keep)


def name_of(vnode: Vnode, body: bytes) -> SliceName:
    checksum = xxhash.xxh3_64_intdigest(body)
    return SliceName(vnode=vnode, rows=body.count(b"\n") + 1, size=len(body), checksum=checksum)


def record(own: RecordId, after: RecordId, winners: tuple[Winner, ...]) -> DecisionRecord:
    rows: Counter[Vnode] = Counter()
    for winner in winners:
        rows.update({name.vnode: name.rows for name in winner.slices})
    return DecisionRecord(
        position=own.position,
        attempt=own.attempt,
        after=after,
        epoch=1,
        voters=(W1,),
        next_epoch=EPOCH,
        rows=dict(rows),
        winners=winners,
    )


def time_of(batch: int) -> BatchTime:
    return BatchTime(0, batch)


def add(store: RocksStore, keys: list[bytes]) -> None:
    """The operator: one more for each key."""
    counts = Counter(keys)
    before = store.get_many(list(counts))
    values = [
        _value(key, counts[key] + (int(old[:8]) if old else 0))
        for key, old in zip(counts, before, strict=True)
    ]
    store.write(WriteBatch(keys=list(counts), values=values))


def backup(vnode: Vnode, one: Worker, two: Worker) -> int:
    """Back up all that is complete of a vnode, the oldest first."""
    source, target = one.kept[vnode], two.kept[vnode]
    manifests = reversed(source.complete())
    return sum(finish(primitives.backup_state(m, source, target)) for m in manifests)


def flip_a_byte(worker: Worker, vnode: Vnode, checkpoint_id: str) -> None:
    """In the newest table of a checkpoint, which has an inode of its own."""
    place = worker.kept[vnode].path_of(checkpoint_id)
    name = max(name for name in worker.disk.list(place) if name.endswith(".sst"))
    path = Path(worker.disk.path_of(f"{place}/{name}"))
    data = bytearray(path.read_bytes())
    data[len(data) // 3] ^= 1
    path.unlink()
    path.write_bytes(data)


@pytest.fixture
def one(tmp_path: Path) -> Iterator[Worker]:
    """A worker with a job of 6 batches; each vnode has checkpoints of batches 1 and 3."""
    worker = Worker(tmp_path / "w1")
    worker.begin()
    for batch in range(6):
        worker.run(range(batch, batch + 1))
        if batch in (1, 3):
            for vnode in VNODES:
                worker.checkpoint(vnode, batch)
    assert content(worker.live) == counted(5)
    yield worker
    worker.databases.close()


@pytest.fixture
def two(tmp_path: Path) -> Iterator[Worker]:
    worker = Worker(tmp_path / "w2")
    yield worker
    worker.databases.close()


@pytest.fixture
def three(tmp_path: Path) -> Iterator[Worker]:
    worker = Worker(tmp_path / "w3")
    yield worker
    worker.databases.close()


# --- checkpoint and backup -----------------------------------------------------------------------


def test_a_checkpoint_has_the_state_of_its_time_and_the_store_goes_on(one: Worker) -> None:
    manifest = one.kept[VNODES[0]].complete()[0]
    assert manifest.covers == time_of(3)
    image = one.disk.path_of(one.kept[VNODES[0]].path_of(manifest.checkpoint_id))
    copy = one.databases.open(one.disk.path_of("copy"), base=image)
    assert dict(copy.scan()) == counted(3, VNODES[:1])
    assert dict(one.live[VNODES[0]].scan()) == counted(5, VNODES[:1])


def test_a_checkpoint_that_fails_leaves_nothing_behind(one: Worker) -> None:
    one.live[VNODES[0]].close()
    before = one.disk.list("ckpt/0")
    with pytest.raises(ValueError, match="closed"):
        one.checkpoint(VNODES[0], 5)
    assert one.disk.list("ckpt/0") == before == ["c1", "c3"]


def test_a_checkpoint_that_fails_half_way_leaves_nothing_behind(one: Worker) -> None:
    class FullDisk(FakeStore):
        def checkpoint(self, directory: str) -> None:
            Path(directory).mkdir()
            (Path(directory) / "000009.sst").write_bytes(b"half")
            raise OSError(errno.ENOSPC, "no space left on device")

    one.live[VNODES[0]] = FullDisk()
    before = one.disk.list("ckpt/0")
    with pytest.raises(OSError, match="no space"):
        one.checkpoint(VNODES[0], 5)
    assert one.disk.list("ckpt/0") == before


def test_a_second_backup_copies_nothing(one: Worker, two: Worker) -> None:
    first, second = one.kept[VNODES[0]].complete()[::-1]
    assert backup(VNODES[0], one, two) > 0
    assert two.kept[VNODES[0]].complete() == [second, first]
    assert backup(VNODES[0], one, two) == 0


def test_a_backup_copies_only_what_the_target_has_not(one: Worker, two: Worker) -> None:
    source, target = one.kept[VNODES[0]], two.kept[VNODES[0]]
    second, first = source.complete()
    whole = finish(primitives.backup_state(first, source, target))
    assert whole == first.total_bytes
    new = finish(primitives.backup_state(second, source, target))
    here = {entry.blake3 for entry in first.files}
    assert new == sum(entry.size for entry in second.files if entry.blake3 not in here)
    assert new < second.total_bytes


def test_an_interrupted_backup_goes_on_where_it_stood(one: Worker, two: Worker) -> None:
    source, target = one.kept[VNODES[0]], two.kept[VNODES[0]]
    manifest = source.complete()[0]
    steps = primitives.backup_state(manifest, source, target)
    there = next(steps) + next(steps)
    steps.close()
    assert there > 0
    assert target.complete() == []
    rest = finish(primitives.backup_state(manifest, source, target))
    assert rest == manifest.total_bytes - there
    assert target.complete() == [manifest]


def test_a_backup_goes_on_in_the_middle_of_a_file(one: Worker, two: Worker) -> None:
    """A broken transfer has left half of a file."""
    source, target = one.kept[VNODES[0]], two.kept[VNODES[0]]
    manifest = source.complete()[0]
    entry = max(target.missing(manifest), key=lambda e: e.size)
    path = f"{source.path_of(manifest.checkpoint_id)}/{entry.name}"
    half = one.disk.read(path, 0, entry.size // 2)
    assert 0 < len(half) < SLICE_BYTES
    two.disk.append(target.incoming(manifest, entry), [half])
    rest = finish(primitives.backup_state(manifest, source, target))
    assert rest == manifest.total_bytes - len(half)
    assert target.complete() == [manifest]


def test_a_bad_file_is_not_backed_up(one: Worker, two: Worker) -> None:
    flip_a_byte(one, VNODES[0], "c3")
    source, target = one.kept[VNODES[0]], two.kept[VNODES[0]]
    newest, older = source.complete()
    with pytest.raises(CorruptFile):
        finish(primitives.backup_state(newest, source, target))
    assert target.complete() == []
    finish(primitives.backup_state(older, source, target))
    assert target.complete() == [older]


def test_a_file_that_was_cut_off_is_not_backed_up(one: Worker, two: Worker) -> None:
    source, target = one.kept[VNODES[0]], two.kept[VNODES[0]]
    newest = source.complete()[0]
    name = max(newest.files, key=lambda entry: entry.size).name
    path = Path(one.disk.path_of(f"{source.path_of('c3')}/{name}"))
    data = path.read_bytes()
    path.unlink()
    path.write_bytes(data[:-1])
    with pytest.raises(CorruptFile, match=name):
        finish(primitives.backup_state(newest, source, target))
    assert target.complete() == []


# --- restore -------------------------------------------------------------------------------------


def test_recovery_is_scale_out_to_one(one: Worker, two: Worker) -> None:
    """SEEP, 4.2. The live databases are gone; another worker has backups, and the log the rest."""
    for vnode in VNODES:
        backup(vnode, one, two)
    one.databases.close()
    one.disk.remove("live")
    routing = primitives.partition_state(EPOCH, I0, [I1])
    assert routing == dict.fromkeys(VNODES, I1)
    replayed = two.recover(list(routing), 5, one)
    assert replayed == [sum(len(keys_of(v, b)) for v in VNODES) for b in (4, 5)]
    assert content(two.live) == counted(5)


def test_scale_out_to_two_halves_what_each_replays(one: Worker, two: Worker, three: Worker) -> None:
    for vnode in VNODES:
        backup(vnode, one, two)
        backup(vnode, one, three)
    one.databases.close()
    routing = primitives.partition_state(EPOCH, I0, [I1, I2])
    buffer = primitives.buffer_state(one.log, dict.fromkeys(VNODES, time_of(3)), time_of(5))
    shares = primitives.partition_buffer_state(buffer, routing)
    rows = {}
    for worker, instance in ((two, I1), (three, I2)):
        mine = [vnode for vnode, owner in routing.items() if owner == instance]
        for vnode in mine:
            worker.live[vnode], reached = worker.restore(vnode)
            assert reached == shares[instance].after[vnode]
        rows[instance] = sum(one.replay(shares[instance], worker.live))
        assert content(worker.live) == counted(5, mine)
    assert {**content(two.live), **content(three.live)} == counted(5)
    assert rows[I1] + rows[I2] == sum(len(keys_of(v, b)) for v in VNODES for b in (4, 5))
    assert 0 < rows[I2] <= rows[I1] == 2 * 2 * (KEYS // 8)


def test_a_checkpoint_is_not_opened_in_place(one: Worker) -> None:
    one.databases.close()
    one.disk.remove("live")
    one.recover(VNODES[:1], 5, one)
    before = one.kept[VNODES[0]].complete()[0]
    add(one.live[VNODES[0]], [b"0/more"])
    one.live[VNODES[0]].flush()
    one.kept[VNODES[0]] = one.checkpoints(VNODES[0])
    again = finish(
        primitives.restore_state(
            one.kept[VNODES[0]],
            one.covers,
            partial(one.databases.open, one.disk.path_of("again")),
        )
    )
    assert one.kept[VNODES[0]].complete()[0] == before
    assert dict(again[0].scan()) == counted(3, VNODES[:1])


def test_a_flipped_byte_is_found_and_the_older_checkpoint_serves(one: Worker, two: Worker) -> None:
    backup(VNODES[0], one, two)
    flip_a_byte(two, VNODES[0], "c3")
    store, reached = two.restore(VNODES[0])
    assert reached == time_of(1)
    assert dict(store.scan()) == counted(1, VNODES[:1])
    assert list(two.kept[VNODES[0]].damaged) == ["c3"]
    buffer = primitives.buffer_state(one.log, {VNODES[0]: reached}, time_of(5))
    one.replay(buffer, {VNODES[0]: store})
    assert dict(store.scan()) == counted(5, VNODES[:1])


def test_with_no_good_checkpoint_the_log_alone_serves_if_it_goes_back_to_the_start(
    one: Worker, two: Worker
) -> None:
    backup(VNODES[0], one, two)
    flip_a_byte(two, VNODES[0], "c3")
    flip_a_byte(two, VNODES[0], "c1")
    assert two.recover(VNODES[:1], 5, one) == [KEYS // 8] * 6
    assert content(two.live) == counted(5, VNODES[:1])


def test_an_untouched_vnode_is_replayed_from_where_its_checkpoint_reaches_now(one: Worker) -> None:
    """Batch 5 has nothing for vnode 3: its checkpoint of batch 4 reaches batch 5 without a new
    image, and is not replayed twice for that."""
    vnode = VNODES[3]
    one.databases.close()
    one.disk.remove("live")
    one.recover([vnode], 4, one)
    one.checkpoint(vnode, 4)
    one.covers.advance(vnode, "c4", time_of(5))
    one.databases.close()
    one.disk.remove("live")
    assert one.recover([vnode], 5, one) == []
    assert content({vnode: one.live[vnode]}) == counted(5, [vnode])


# --- trimming ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keep", "recovers"), [(2, True), (1, False)], ids=["as-it-is", "seeded-bug"]
)
def test_trim_behind_the_newest_checkpoint_is_found(one: Worker, keep: int, recovers: bool) -> None:
    """Seeded bug of the design's section 10: the newest checkpoint alone decides what is trimmed.
    Then it turns out to be bad, and the older one has no log to go on from."""
    assert one.trim(5, keep) > 0
    flip_a_byte(one, VNODES[0], "c3")
    one.databases.close()
    one.disk.remove("live")
    if recovers:
        one.recover(VNODES, 5, one)
        assert content(one.live) == counted(5)
    else:
        with pytest.raises(NoCopy, match="vnode 0"):
            one.recover(VNODES, 5, one)


def test_what_is_trimmed_is_what_the_older_checkpoint_has(one: Worker) -> None:
    assert one.trim(5, 2) > 0
    assert [time.batch for time, _ in one.log.links(BASE, time_of(9))] == [2, 3, 4, 5]
    with pytest.raises(NoCopy, match="vnode 2"):
        primitives.buffer_state(one.log, {VNODES[2]: time_of(0)}, time_of(5))
    assert one.trim(5, 2) == 0


# --- partition and merge -------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_partition_is_even_and_complete_and_merge_takes_it_back(count: int) -> None:
    names = [InstanceId(f"i{n}") for n in range(count)]
    placed = {**EPOCH.instances, **dict.fromkeys(names, W2)}
    routing = primitives.partition_state(EPOCH, I0, names)
    sizes = Counter(routing.values())
    assert list(routing) == list(VNODES)
    assert set(sizes) == set(names)
    assert max(sizes.values()) - min(sizes.values()) <= 1
    assert sorted(routing, key=lambda v: (names.index(routing[v]), v)) == list(VNODES)
    split = with_moves(EPOCH, routing, placed)
    merged = with_moves(split, primitives.merge_state(split, names, I0), placed)
    assert [r.owner for r in merged.routes] == [r.owner for r in EPOCH.routes]


@pytest.mark.parametrize("into", [[], [I1, I1], [InstanceId(f"i{n}") for n in range(5)]])
def test_a_partition_that_cannot_be_is_refused(into: list[InstanceId]) -> None:
    with pytest.raises(ValueError, match="4 vnodes of i0"):
        primitives.partition_state(EPOCH, I0, into)


def test_no_tuple_of_the_buffer_is_left_out() -> None:
    buffer = BufferState(after=dict.fromkeys(VNODES, BASE), through=time_of(5))
    with pytest.raises(KeyError):
        primitives.partition_buffer_state(buffer, {VNODES[0]: I1})
