"""The worker log: what was sealed survives a power loss, what was not leaves no trace.

Sentences of the design that are checked here: "appends the record, fsyncs once" (section 4),
invariants 3, 4, 9 and 13.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from rhinoctl.errors import CorruptFile, ForeignManifest
from rhinoctl.ids import BASE, NO_ATTEMPT, Attempt, BatchTime, InstanceId, Vnode, WorkerId
from rhinoctl.protocol.epochs import Epoch, Route
from rhinoctl.protocol.records import (
    ORIGIN,
    DecisionRecord,
    Link,
    Position,
    RecordId,
    SliceName,
    Winner,
)
from rhinoctl.state.disk import LocalDisk, StampingDisk
from rhinoctl.state.log import WorkerLog, parse_segment_name, segment_name
from tests.fakes.disk import FakeDisk

ROOT = "jobs/j-1/log"
W1, I0 = WorkerId("w1"), InstanceId("i0")
EPOCH = Epoch(number=1, workers={W1: "w1.sock"}, instances={I0: W1}, routes=(Route(owner=I0),) * 4)

Slices = Mapping[int, bytes]
"""The bytes by vnode."""


@pytest.fixture(params=["local", "fake"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> StampingDisk:
    return LocalDisk(str(tmp_path / "root")) if request.param == "local" else FakeDisk()


def names(slices: Slices) -> tuple[SliceName, ...]:
    return tuple(
        SliceName(
            vnode=Vnode(v), rows=len(data), size=len(data), checksum=xxhash.xxh3_64_intdigest(data)
        )
        for v, data in slices.items()
    )


def put(log: WorkerLog, at: Position, attempt: Attempt, key: tuple[int, int], s: Slices) -> None:
    log.append_put(at, attempt, key, names(s), list(s.values()))


def record(
    at: Position, attempt: Attempt, after: RecordId, winners: Mapping[tuple[int, int], Slices]
) -> DecisionRecord:
    rows: dict[Vnode, int] = {}
    for slices in winners.values():
        for name in names(slices):
            rows[name.vnode] = rows.get(name.vnode, 0) + name.rows
    return DecisionRecord(
        position=at,
        attempt=attempt,
        after=after,
        epoch=1,
        voters=(W1,),
        next_epoch=EPOCH,
        rows=rows,
        winners=tuple(
            Winner(channel=channel, task_attempt=task, slices=names(slices))
            for (channel, task), slices in winners.items()
        ),
    )


def at(batch: int, step: int = 0, generation: int = 0) -> Position:
    return Position(generation, batch, step)


ONE = Attempt(1, 1)
PUTS: Mapping[tuple[int, int], Slices] = {
    (0, 10): {0: b"zero of 0", 1: b"one of 0"},
    (1, 11): {1: b"one of 1", 3: b"three of 1"},
}


def seal_batch(
    log: WorkerLog,
    batch: int,
    after: RecordId,
    attempt: Attempt = ONE,
    puts: Mapping[tuple[int, int], Slices] = PUTS,
) -> RecordId:
    """Stage and seal a batch; returns the id of its record."""
    for key, slices in puts.items():
        put(log, at(batch), attempt, key, slices)
    sealed = record(at(batch), attempt, after, puts)
    log.seal(sealed)
    return sealed.id


def filled(disk: StampingDisk, batches: int) -> tuple[WorkerLog, list[RecordId]]:
    """A log with the job's first record and some batches."""
    log = WorkerLog(disk, ROOT)
    ids = [RecordId(at(-1, 1), Attempt(1, 0))]
    log.seal(record(at(-1, 1), Attempt(1, 0), RecordId(at(-1), NO_ATTEMPT), {}))
    for batch in range(batches):
        ids.append(seal_batch(log, batch, ids[-1], Attempt(1, batch + 1)))
    return log, ids


def loaded(disk: StampingDisk) -> WorkerLog:
    log = WorkerLog(disk, ROOT)
    log.load()
    return log


def contents(log: WorkerLog, batch: int, vnodes: set[int]) -> list[tuple[int, int, bytes]]:
    """(channel, vnode, bytes) of a batch in the order in which they are to be applied."""
    wanted = frozenset(Vnode(v) for v in vnodes)
    return [
        (winner.channel, place.vnode, bytes(log.read(path, place)))
        for path, winner, places in log.places(BatchTime(0, batch), wanted)
        for place in places
    ]


def path_of(batch: int, attempt: Attempt) -> str:
    return f"{ROOT}/{segment_name(at(batch), attempt)}"


# --- names ---------------------------------------------------------------------------------------


@given(
    st.integers(0, 99),
    st.integers(-9, 10**9),
    st.integers(0, 99),
    st.integers(0, 9999),
    st.integers(0, 9999),
    st.integers(0, 20),
)
def test_a_segment_name_tells_position_and_attempt(
    generation: int, batch: int, step: int, session: int, counter: int, piece: int
) -> None:
    position, attempt = Position(generation, batch, step), Attempt(session, counter)
    name = segment_name(position, attempt, piece)
    assert parse_segment_name(name) == (position, attempt)


def test_the_records_before_batch_0_have_names_too() -> None:
    assert parse_segment_name(segment_name(at(-1, 1), ONE)) == (at(-1, 1), ONE)


# --- sealing and loading -------------------------------------------------------------------------


def test_what_is_sealed_is_loaded_in_order(disk: StampingDisk) -> None:
    log, ids = filled(disk, 12)
    again = WorkerLog(disk, ROOT)
    records = again.load()
    assert [each.id for each in records] == ids
    assert again.records() == log.records()
    assert again.size() == log.size() > 0
    assert contents(again, 11, {0, 1, 2, 3}) == contents(log, 11, {0, 1, 2, 3})


def test_a_put_that_was_not_sealed_vanishes(disk: StampingDisk) -> None:
    log, ids = filled(disk, 2)
    put(log, at(2), Attempt(1, 9), (0, 1), {0: b"unsealed"})
    assert [each.id for each in loaded(disk).records()] == ids
    assert len(disk.list(ROOT)) == len(ids)


def test_an_empty_log_and_one_that_never_was(disk: StampingDisk) -> None:
    assert WorkerLog(disk, ROOT).load() == ()
    assert loaded(disk).links(BASE, BatchTime(9, 9)) == []


def test_an_empty_batch_is_sealed_like_any_other(disk: StampingDisk) -> None:
    log, ids = filled(disk, 1)
    seal_batch(log, 1, ids[-1], Attempt(1, 9), {})
    again = loaded(disk)
    assert again.record(BatchTime(0, 1)) is not None
    assert again.places(BatchTime(0, 1), frozenset({Vnode(0)})) == []


def test_a_file_that_is_no_segment_is_refused(disk: StampingDisk) -> None:
    disk.append(f"{ROOT}/notes.seg", [b"hello"])
    with pytest.raises(ForeignManifest, match=r"notes\.seg") as caught:
        WorkerLog(disk, ROOT).load()
    assert caught.value.remedy


# --- damage --------------------------------------------------------------------------------------


def _cut(disk: StampingDisk, path: str) -> None:
    disk.truncate(path, (disk.size(path) or 0) - 1)


def _emptied(disk: StampingDisk, path: str) -> None:
    disk.truncate(path, 0)


def _rotten_record(disk: StampingDisk, path: str) -> None:
    data = bytearray(disk.read(path))
    data[data.rindex(b"voters")] ^= 0xFF
    disk.write_atomic(path, data)


def _rotten_head(disk: StampingDisk, path: str) -> None:
    data = bytearray(disk.read(path))
    data[9] ^= 0xFF
    disk.write_atomic(path, data)


DAMAGES = [_cut, _emptied, _rotten_record, _rotten_head]


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_decided_segment_that_is_damaged_is_named(
    disk: StampingDisk, damage: Callable[[StampingDisk, str], None]
) -> None:
    """Invariant 9. Nothing is removed, so that there is something to repair."""
    _, ids = filled(disk, 3)
    damage(disk, path_of(1, ids[2].attempt))
    put(WorkerLog(disk, ROOT), at(3), Attempt(2, 1), (0, 1), {0: b"unsealed"})
    with pytest.raises(CorruptFile, match=segment_name(at(1), ids[2].attempt)) as caught:
        WorkerLog(disk, ROOT).load()
    assert caught.value.remedy
    assert len(disk.list(ROOT)) == len(ids) + 1


@pytest.mark.parametrize("damage", DAMAGES)
def test_the_newest_segment_is_torn_rather_than_damaged(
    disk: StampingDisk, damage: Callable[[StampingDisk, str], None]
) -> None:
    """No record follows it: its seal may never have ended."""
    _, ids = filled(disk, 3)
    damage(disk, path_of(2, ids[3].attempt))
    assert [each.id for each in loaded(disk).records()] == ids[:-1]
    assert len(disk.list(ROOT)) == len(ids) - 1


def test_a_record_whose_slices_did_not_reach_the_disk_was_not_sealed(disk: StampingDisk) -> None:
    """Pages reach the disk in any order: the last may be there, and one before it not."""
    _, ids = filled(disk, 2)
    path = path_of(1, ids[2].attempt)
    torn = bytes(disk.read(path)).replace(b"one of 1", bytes(8))
    disk.write_atomic(path, torn)
    assert [each.id for each in loaded(disk).records()] == ids[:-1]


def test_a_rotten_slice_of_a_decided_batch_is_found_where_it_is_read(disk: StampingDisk) -> None:
    """Invariant 9: nothing is served that was not verified; vnode and file are named."""
    _, ids = filled(disk, 2)
    path = path_of(0, ids[1].attempt)
    disk.write_atomic(path, bytes(disk.read(path)).replace(b"one of 1", b"one of 2"))
    again = loaded(disk)
    assert contents(again, 0, {0, 3}) == [(0, 0, b"zero of 0"), (1, 3, b"three of 1")]
    with pytest.raises(CorruptFile, match=rf"vnode 1 .*{segment_name(at(0), ids[1].attempt)}"):
        contents(again, 0, {1})


def test_an_attempt_below_the_newest_batch_may_be_unsealed(disk: StampingDisk) -> None:
    """The controller seals an epoch record after batch 1 while batch 2 is staged; its file is torn,
    and that of the open attempt, which it displaced, is still there."""
    _, ids = filled(disk, 2)
    log = WorkerLog(disk, ROOT)
    put(log, at(2), Attempt(1, 9), (0, 1), {0: b"open"})
    put(log, at(1, 1), Attempt(2, 1), (0, 1), {0: b"torn"})
    assert [each.id for each in loaded(disk).records()] == ids


# --- power loss ----------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(40))
def test_a_power_loss_at_any_time(seed: int) -> None:
    """Sealed batches are there with every slice; dropped and unsealed ones are not; and on."""
    chance, disk = Random(seed), FakeDisk()
    log, ids = filled(disk, 1)
    dropped: set[RecordId] = set()
    session, counter = 1, 1
    for batch in range(1, 12):
        for _ in range(chance.randrange(3)):
            counter += 1
            attempt = Attempt(session, counter)
            for key, slices in PUTS.items():
                put(log, at(batch), attempt, key, slices)
            if chance.random() < 0.3:
                log.seal(record(at(batch), attempt, ids[-1], PUTS))
            if chance.random() < 0.25:
                break
            log.drop(at(batch), attempt)
            dropped.add(RecordId(at(batch), attempt))
        if chance.random() < 0.4:
            disk.crash(chance if chance.random() < 0.8 else None)
            log, session, counter = WorkerLog(disk, ROOT), session + 1, 0
            found = {each.id for each in log.load()}
            assert set(ids) <= found
            assert not found & dropped
            for left in found - set(ids):
                log.drop(left.position, left.attempt)
            check_slices(log, ids)
        else:
            for left in {each.id for each in log.records()} - set(ids):
                log.drop(left.position, left.attempt)
        counter += 1
        ids.append(seal_batch(log, batch, ids[-1], Attempt(session, counter)))
    disk.crash(None)
    log = loaded(disk)
    assert {each.id for each in log.records()} == set(ids)
    check_slices(log, ids)


def check_slices(log: WorkerLog, ids: list[RecordId]) -> None:
    expected = [
        (channel, vnode, data)
        for (channel, _), held in PUTS.items()
        for vnode, data in held.items()
    ]
    for each in ids:
        if each.position.step == 0:
            assert contents(log, each.position.batch, {0, 1, 2, 3}) == expected


class PowerFails(Exception):
    pass


class FailingDisk(FakeDisk):
    """A disk whose power fails before a sync has ended."""

    failing = False

    def sync(self, paths: object) -> None:
        if self.failing:
            raise PowerFails
        super().sync(paths)  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", range(30))
def test_a_power_loss_in_the_middle_of_a_seal(seed: int) -> None:
    """The record is there with all its slices, or nothing of the attempt is."""
    disk = FailingDisk()
    log, ids = filled(disk, 2)
    disk.failing = True
    with pytest.raises(PowerFails):
        seal_batch(log, 2, ids[-1], Attempt(1, 9))
    disk.failing = False
    disk.crash(Random(seed))
    log = loaded(disk)
    found = [each.id for each in log.records()]
    assert found in (ids, [*ids, RecordId(at(2), Attempt(1, 9))])
    check_slices(log, found)
    assert len(disk.list(ROOT)) == len(found)


def test_only_what_was_synced_is_promised() -> None:
    """The seeded bug “acknowledge before persist”: without its sync, a seal is no promise."""

    class Lazy(FakeDisk):
        def sync(self, paths: object) -> None:
            pass

    disk = Lazy()
    filled(disk, 3)
    disk.crash(None)
    assert loaded(disk).records() == ()


# --- attempts ------------------------------------------------------------------------------------


def test_dropping_removes_one_attempt_and_nothing_else(disk: StampingDisk) -> None:
    log, ids = filled(disk, 1)
    for counter in (7, 8):
        put(log, at(1), Attempt(1, counter), (0, 1), {0: b"%d" % counter})
    log.drop(at(1), Attempt(1, 7))
    log.drop(at(1), Attempt(1, 5))
    assert bytes(log.open_bytes(at(1), Attempt(1, 8), (0, 1), Vnode(0))) == b"8"
    with pytest.raises(KeyError):
        log.open_bytes(at(1), Attempt(1, 7), (0, 1), Vnode(0))
    log.drop(at(1), Attempt(1, 8))
    assert [each.id for each in log.records()] == ids
    assert len(disk.list(ROOT)) == len(ids)


def test_a_dropped_seal_does_not_come_back() -> None:
    """Invariant 13, also after a power loss right after it."""
    disk = FakeDisk()
    log, ids = filled(disk, 1)
    gone = seal_batch(log, 1, ids[-1], Attempt(1, 7))
    log.drop(gone.position, gone.attempt)
    disk.crash(Random(0))
    assert [each.id for each in loaded(disk).records()] == ids


def test_losing_puts_are_not_read(disk: StampingDisk) -> None:
    """Two task attempts pushed channel 0; the record says which one counts."""
    log, ids = filled(disk, 0)
    put(log, at(0), ONE, (0, 1), {0: b"loser"})
    put(log, at(0), ONE, (0, 2), {0: b"winner"})
    log.seal(record(at(0), ONE, ids[-1], {(0, 2): {0: b"winner"}}))
    assert contents(log, 0, {0}) == [(0, 0, b"winner")]
    assert contents(loaded(disk), 0, {0}) == [(0, 0, b"winner")]


def test_a_put_may_come_in_parts(disk: StampingDisk) -> None:
    log, ids = filled(disk, 0)
    put(log, at(0), ONE, (0, 1), {0: b"a"})
    put(log, at(0), ONE, (0, 1), {2: b"b"})
    log.seal(record(at(0), ONE, ids[-1], {(0, 1): {0: b"a", 2: b"b"}}))
    assert contents(loaded(disk), 0, {0, 2}) == [(0, 0, b"a"), (0, 2, b"b")]


def test_an_attempt_begins_with_an_empty_file(disk: StampingDisk) -> None:
    """What is left under its name, e.g. after a crash without a load, is not appended to."""
    disk.append(path_of(0, ONE), [b"left over"])
    log, ids = filled(disk, 0)
    put(log, at(0), ONE, (0, 1), {0: b"a"})
    log.seal(record(at(0), ONE, ids[-1], {(0, 1): {0: b"a"}}))
    assert contents(loaded(disk), 0, {0}) == [(0, 0, b"a")]


# --- order ---------------------------------------------------------------------------------------


def test_places_come_by_channel_whatever_order_they_were_put_in(disk: StampingDisk) -> None:
    """Design, section 4: owners apply rows in (channel, sequence) order."""
    log, ids = filled(disk, 0)
    winners: dict[tuple[int, int], Slices] = {
        (channel, 1): {0: b"%d" % channel, 2: b"two"} for channel in (12, 3, 7, 0)
    }
    for key, slices in winners.items():
        put(log, at(0), ONE, key, slices)
    log.seal(record(at(0), ONE, ids[-1], winners))
    assert [channel for channel, _, _ in contents(log, 0, {0})] == [0, 3, 7, 12]
    assert contents(log, 0, {0, 2}) == contents(loaded(disk), 0, {0, 2})
    assert contents(log, 0, {1}) == []


def test_batches_are_those_after_one_and_through_another(disk: StampingDisk) -> None:
    log, ids = filled(disk, 4)
    log.seal(record(at(3, 1), Attempt(2, 1), ids[-1], {}))
    put(log, at(4), Attempt(2, 2), (0, 1), {0: b"open"})
    end = BatchTime(9, 0)
    assert log.links(BASE, end) == [Link(BatchTime(0, n), BatchTime(0, n - 1)) for n in range(4)]
    one = log.links(BatchTime(0, 1), BatchTime(0, 2))
    assert one == [Link(BatchTime(0, 2), BatchTime(0, 1))]
    assert log.record(BatchTime(0, 3)) is not None
    assert log.record(BatchTime(0, 4)) is None
    assert log.record(BASE) is None


# --- pieces: what a joining member fetches later -------------------------------------------------


def partial(disk: StampingDisk) -> tuple[WorkerLog, DecisionRecord]:
    """A log of a worker that holds vnode 0 only, and the record of batch 0."""
    log, ids = filled(disk, 0)
    whole = record(at(0), ONE, ids[-1], PUTS)
    mine = Winner(channel=0, task_attempt=10, slices=names({0: b"zero of 0"}))
    put(log, at(0), ONE, (0, 10), {0: b"zero of 0"})
    log.seal(DecisionRecord(**{**fields_of(whole), "winners": (mine,)}))
    return log, whole


def fields_of(of: DecisionRecord) -> dict[str, object]:
    return {name: getattr(of, name) for name in of.__slots__}


def fetch(log: WorkerLog, whole: DecisionRecord, vnode: int) -> None:
    """Add the slices of one vnode, as an answer to `FetchLog` has them."""
    puts, bodies = [], []
    for (channel, task), slices in PUTS.items():
        held = {v: data for v, data in slices.items() if v == vnode}
        if held:
            puts.append((channel, task, names(held)))
            bodies += list(held.values())
    winners = tuple(w.for_vnodes(frozenset({Vnode(vnode)})) for w in whole.winners)
    log.add_piece(DecisionRecord(**{**fields_of(whole), "winners": winners}), puts, bodies)


def test_a_vnode_is_whole_once_its_piece_is_there(disk: StampingDisk) -> None:
    log, whole = partial(disk)
    time = BatchTime(0, 0)
    assert [v for v in range(4) if log.has(time, Vnode(v))] == [0, 2]
    fetch(log, whole, 1)
    for each in (log, loaded(disk)):
        assert [v for v in range(4) if each.has(time, Vnode(v))] == [0, 1, 2]
        assert contents(each, 0, {0, 1}) == [
            (0, 0, b"zero of 0"),
            (0, 1, b"one of 0"),
            (1, 1, b"one of 1"),
        ]
        merged = each.record_for(time, frozenset({Vnode(0), Vnode(1)}))
        assert merged.winners == tuple(
            w.for_vnodes(frozenset({Vnode(0), Vnode(1)})) for w in whole.winners
        )


def test_pieces_are_numbered_and_go_with_their_batch(disk: StampingDisk) -> None:
    log, whole = partial(disk)
    fetch(log, whole, 1)
    fetch(log, whole, 3)
    assert sum("+" in name for name in disk.list(ROOT)) == 2
    fetch(loaded(disk), whole, 1)
    assert sum("+" in name for name in disk.list(ROOT)) == 3
    log = loaded(disk)
    log.drop(at(0), ONE)
    assert [name for name in disk.list(ROOT) if parse_segment_name(name)[0] == at(0)] == []
    assert log.record(BatchTime(0, 0)) is None


def test_a_torn_piece_is_fetched_again(disk: StampingDisk) -> None:
    log, whole = partial(disk)
    fetch(log, whole, 1)
    seal_batch(log, 1, whole.id, Attempt(1, 2))
    (piece,) = (name for name in disk.list(ROOT) if "+" in name)
    _cut(disk, f"{ROOT}/{piece}")
    again = loaded(disk)
    assert not again.has(BatchTime(0, 0), Vnode(1))
    fetch(again, whole, 1)
    assert again.has(BatchTime(0, 0), Vnode(1))


def test_a_piece_is_durable_when_it_is_there() -> None:
    disk = FakeDisk()
    log, whole = partial(disk)
    fetch(log, whole, 1)
    disk.crash(None)
    assert loaded(disk).has(BatchTime(0, 0), Vnode(1))


def test_a_worker_that_only_fetched_has_no_segment_of_its_own(disk: StampingDisk) -> None:
    log = WorkerLog(disk, ROOT)
    fetch(log, record(at(0), ONE, ORIGIN, PUTS), 3)
    again = loaded(disk)
    assert contents(again, 0, {0, 1, 2, 3}) == [(1, 3, b"three of 1")]
    assert [v for v in range(4) if again.has(BatchTime(0, 0), Vnode(v))] == [2, 3]


# --- trimming ------------------------------------------------------------------------------------


def test_trimming_frees_what_it_says(disk: StampingDisk) -> None:
    log, _ = filled(disk, 6)
    before = log.size()
    freed = log.trim(BatchTime(0, 3), at(5))
    assert freed > 0
    assert log.size() == before - freed
    assert [time for time, _ in log.links(BASE, BatchTime(9, 0))] == [
        BatchTime(0, n) for n in (3, 4, 5)
    ]
    assert loaded(disk).records() == log.records()
    assert log.trim(BatchTime(0, 3), at(5)) == 0


@given(st.integers(-1, 9), st.integers(0, 5), st.integers(0, 2))
def test_trimming_leaves_the_newest_record_and_the_one_it_follows(
    before: int, batches: int, changes: int
) -> None:
    """The one before says in which epoch the newest batch was staged: who owes its output."""
    disk = FakeDisk()
    log, ids = filled(disk, batches)
    for step in range(1, changes + 1):
        ids.append(RecordId(at(batches - 1, step + (batches == 0)), Attempt(2, step)))
        log.seal(record(ids[-1].position, ids[-1].attempt, ids[-2], {}))
    log.trim(BatchTime(0, before), ids[-1].position)
    kept = [each.id for each in log.records()]
    assert kept == ids[-len(kept) :]
    assert kept[-2:] == ids[-2:]
    assert all(each.position.time < BatchTime(0, before) for each in ids[: -len(kept)])
    assert [each.id for each in loaded(disk).records()] == kept


def test_trimming_leaves_what_is_not_decided(disk: StampingDisk) -> None:
    log, ids = filled(disk, 2)
    seal_batch(log, 2, ids[-1], Attempt(1, 9))
    log.trim(BatchTime(0, 99), ids[-1].position)
    assert [each.position.batch for each in log.records()] == [0, 1, 2]
