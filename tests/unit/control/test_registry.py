"""What the controller must not forget, over SQLite and over the fake."""

import errno
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from rhinoctl import limits
from rhinoctl.control.registry import JobDocument, OperationDocument, Registry
from rhinoctl.errors import CorruptFile, UnknownJob, UnknownOperation
from rhinoctl.ids import BatchTime, InstanceId, JobName, JobUid, OpId, Vnode, WorkerId
from rhinoctl.protocol.claims import Claim
from rhinoctl.protocol.handover import Handover, Kind, Phase
from rhinoctl.protocol.jobs import JobSpec, OperatorSpec
from rhinoctl.protocol.placement import first_epoch
from rhinoctl.protocol.ports import Store, WriteBatch
from rhinoctl.state.sqlite import SqliteStore
from tests.fakes import controller as fake
from tests.fakes.store import FakeStore

EPOCH = first_epoch(vnodes=4, instances=2, workers={WorkerId("w1"): "w1.sock"})
Reopen = Callable[[], Store]


@pytest.fixture(params=["sqlite", "fake"])
def reopen(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Reopen]:
    """The store, each time as after a restart."""
    opened: list[Store] = []
    kept = FakeStore()

    def open_store() -> Store:
        for store in opened:
            store.close()
        if request.param == "fake":
            return kept
        opened.append(SqliteStore(str(tmp_path / "db")))
        return opened[-1]

    yield open_store
    for store in opened:
        store.close()


def document(name: str = "clicks", uid: str = "clicks-1") -> JobDocument:
    spec = JobSpec(
        uid=JobUid(uid),
        name=JobName(name),
        vnodes=4,
        replication=0,
        operator=OperatorSpec(name="running", spec="{}", digest="d"),
    )
    return JobDocument(spec=spec, epoch=EPOCH)


def handover(number: int, *, job: str = "clicks-1", phase: Phase = Phase.PLANNED) -> Handover:
    return Handover(
        op=OpId(f"op-{number}"),
        kind=Kind.HANDOVER,
        job=JobUid(job),
        moves={Vnode(0): InstanceId("i1")},
        instances=EPOCH.instances,
        workers=EPOCH.workers,
        deadline=600.0,
        phase=phase,
        proposal=EPOCH,
        marker=BatchTime(0, 7),
    )


def put(registry: Registry, state: Handover) -> OperationDocument:
    return registry.put_operation(state, fake.operation(id=state.op, phase=state.phase))


# --- jobs ----------------------------------------------------------------------------------------


def test_a_job_is_there_after_a_restart(reopen: Reopen) -> None:
    kept = replace(document(), installed=True, session=7, generation=2, epoch_from=BatchTime(2, 9))
    Registry(reopen()).put_job(kept)
    again = Registry(reopen())
    assert again.job("clicks") == kept
    assert again.jobs == {kept.spec.uid: kept}


def test_an_unknown_job_is_refused_with_those_that_are_known(reopen: Reopen) -> None:
    registry = Registry(reopen())
    with pytest.raises(UnknownJob, match="none"):
        registry.job("clicks")
    registry.put_job(document())
    registry.put_job(document("views", "views-1"))
    with pytest.raises(UnknownJob, match="clicks, views") as caught:
        registry.job("click")
    assert caught.value.remedy
    assert registry.find("click") is None


def test_a_deleted_job_is_unknown_and_its_name_is_free(reopen: Reopen) -> None:
    registry = Registry(reopen())
    old = registry.put_job(replace(document(), deleted=True))
    assert registry.find("clicks") is None
    new = registry.put_job(document(uid="clicks-2"))
    assert registry.job("clicks") == new
    registry.drop_job(old.spec.uid)
    assert Registry(reopen()).jobs == {new.spec.uid: new}


def test_a_session_number_is_persisted_before_it_is_given(reopen: Reopen) -> None:
    """Invariant 10: it is never given twice, whatever happens to the controller after that."""
    registry = Registry(reopen())
    uid = registry.put_job(document()).spec.uid
    numbers = [registry.next_session(uid) for _ in range(3)]
    again = Registry(reopen())
    assert [*numbers, again.next_session(uid)] == [1, 2, 3, 4]


# --- operations ----------------------------------------------------------------------------------


def test_an_operation_is_there_after_a_restart(reopen: Reopen) -> None:
    kept = put(Registry(reopen()), handover(1, phase=Phase.ARMED))
    again = Registry(reopen())
    assert again.operation("op-1") == kept
    assert again.running(JobUid("clicks-1")) == kept
    assert again.running(JobUid("clicks-2")) is None


def test_an_unknown_operation_is_refused(reopen: Reopen) -> None:
    with pytest.raises(UnknownOperation, match="op-9") as caught:
        Registry(reopen()).operation("op-9")
    assert caught.value.remedy


def test_an_ended_operation_runs_no_more(reopen: Reopen) -> None:
    registry = Registry(reopen())
    put(registry, handover(1))
    put(registry, handover(1, phase=Phase.ABORTED))
    assert registry.running(JobUid("clicks-1")) is None
    assert registry.operation("op-1").handover.phase is Phase.ABORTED


def test_an_operation_id_is_given_once(reopen: Reopen) -> None:
    """Also when the oldest are gone, and numerically: op-10 comes after op-9."""
    registry = Registry(reopen())
    for number in range(1, limits.OPERATIONS_KEPT + 30):
        assert registry.next_operation() == f"op-{number}"
        put(registry, handover(number, phase=Phase.COMPLETE))
    again = Registry(reopen())
    assert again.next_operation() == f"op-{limits.OPERATIONS_KEPT + 30}"
    assert again.operations == registry.operations


def test_ended_operations_are_kept_up_to_a_bound(reopen: Reopen) -> None:
    """Invariant 12. One that runs is kept however old it is."""
    registry = Registry(reopen())
    put(registry, handover(1, phase=Phase.ABORTING))
    for number in range(2, limits.OPERATIONS_KEPT + 12):
        put(registry, handover(number, phase=Phase.COMPLETE))
    again = Registry(reopen())
    assert again.operations == registry.operations
    assert "op-1" in again.operations
    assert "op-2" not in again.operations
    assert len(again.operations) <= limits.OPERATIONS_KEPT + 2


def test_an_old_operation_that_ends_is_still_there(reopen: Reopen) -> None:
    registry = Registry(reopen())
    put(registry, handover(1, phase=Phase.ARMED))
    for number in range(2, limits.OPERATIONS_KEPT + 12):
        put(registry, handover(number, phase=Phase.COMPLETE))
    for _ in range(2):  # it ends, and is measured
        ended = put(registry, handover(1, phase=Phase.ABORTED))
        assert registry.operation("op-1") == ended
    assert Registry(reopen()).operations == registry.operations


# --- what cannot be written ----------------------------------------------------------------------


class FullStore(FakeStore):
    """A store on a disk that is full at times."""

    full = False

    def write(self, batch: WriteBatch) -> None:
        if self.full:
            raise OSError(errno.ENOSPC, "No space left on device")
        super().write(batch)


def test_what_cannot_be_persisted_has_not_happened() -> None:
    store = FullStore()
    registry = Registry(store)
    job = registry.put_job(document())
    planned = put(registry, handover(1))
    store.full = True
    with pytest.raises(OSError, match="space"):
        registry.put_job(replace(job, installed=True))
    with pytest.raises(OSError, match="space"):
        registry.next_session(job.spec.uid)
    with pytest.raises(OSError, match="space"):
        put(registry, handover(1, phase=Phase.WARMING))
    with pytest.raises(OSError, match="space"):
        put(registry, handover(2))
    with pytest.raises(OSError, match="space"):
        registry.drop_job(job.spec.uid)
    assert registry.jobs == {job.spec.uid: job}
    assert registry.operations == {planned.handover.op: planned}


# --- which store it is ---------------------------------------------------------------------------


def begun(store: Store) -> Registry:
    registry = Registry(store)
    registry.begin()
    return registry


def claim_of(registry: Registry) -> Claim:
    assert registry.claim is not None
    return registry.claim


def test_nothing_is_claimed_before_it_is_persisted(reopen: Reopen) -> None:
    registry = Registry(reopen())
    assert registry.claim is None
    registry.begin()
    first = claim_of(registry)
    registry.begin()
    assert claim_of(registry) == first
    again = claim_of(begun(reopen()))
    assert (again.store, again.reign) == (first.store, first.reign)
    assert again.before == ((first.run, first.number),)
    assert again.run != first.run


def test_every_promise_raises_the_number_once_it_is_persisted(reopen: Reopen) -> None:
    registry = begun(reopen())
    job = document()
    promises: list[Callable[[], object]] = [
        lambda: registry.put_job(job),
        lambda: registry.next_session(job.spec.uid),
        lambda: put(registry, handover(1)),
        lambda: put(registry, handover(1, phase=Phase.ARMED)),
        lambda: registry.put_draining(frozenset({WorkerId("w1")})),
        lambda: registry.drop_job(job.spec.uid),
    ]
    for promise in promises:
        before = claim_of(registry)
        promise()
        after = claim_of(registry)
        assert (after.number, after.run) == (before.number + 1, before.run)
        registry = begun(reopen())
        assert claim_of(registry).before[-1] == (after.run, after.number), "it is durable"
    assert claim_of(registry).draining == {"w1"}


def test_what_people_are_told_raises_no_number(reopen: Reopen) -> None:
    """The progress of an operation is written often, and no agent need write for it."""
    registry = begun(reopen())
    put(registry, handover(1))
    before = claim_of(registry)
    state = handover(1)
    told = fake.operation(id=state.op, phase=state.phase, progress="half of it")
    registry.put_operation(state, told)
    assert claim_of(registry) == before
    assert Registry(reopen()).operation("op-1").view == told


def test_a_store_that_cannot_be_written_raises_no_number() -> None:
    store = FullStore()
    registry = begun(store)
    before = claim_of(registry)
    store.full = True
    with pytest.raises(OSError, match="space"):
        registry.put_job(document())
    assert claim_of(registry) == before
    other = Registry(store)
    with pytest.raises(OSError, match="space"):
        other.begin()
    assert other.claim is None


@pytest.mark.parametrize("at", [0, 0.5, 0.99])
def test_an_entry_that_has_rotted_is_named(at: float) -> None:
    store = FakeStore()
    registry = begun(store)
    registry.put_job(replace(document(), session=555))
    put(registry, handover(1))
    for key, value in list(store.scan()):
        rotten = bytearray(value)
        rotten[int(at * len(value))] ^= 1
        store.write(WriteBatch([key], [bytes(rotten)]))
        with pytest.raises(CorruptFile) as caught:
            Registry(store, "/var/controller.db")
        assert key.decode() in caught.value.message
        assert "move /var/controller.db away" in caught.value.remedy
        assert "controller recover" in caught.value.remedy
        store.write(WriteBatch([key], [value]))
    assert Registry(store).jobs == registry.jobs


def test_an_entry_under_another_key_is_named() -> None:
    """The checksum is of the value: a job under a key of which one bit rotted was forgotten."""
    store = FakeStore()
    registry = begun(store)
    registry.put_job(document())
    put(registry, handover(12))
    registry.put_draining(frozenset({WorkerId("w1")}))
    for key, value in list(store.scan()):
        for at in range(len(key)):
            rotten = bytearray(key)
            rotten[at] ^= 1
            other = bytes(rotten)
            store.write(WriteBatch([other], [value], [key]))
            with pytest.raises(CorruptFile) as caught:
                Registry(store, "/var/controller.db")
            assert other.decode() in caught.value.message
            assert "move /var/controller.db away" in caught.value.remedy
            store.write(WriteBatch([key], [value], [other]))
    assert Registry(store).jobs == registry.jobs


def test_a_number_that_a_worker_has_seen_is_not_given(reopen: Reopen) -> None:
    registry = begun(reopen())
    uid = registry.put_job(document()).spec.uid
    assert registry.next_session(uid) == 1
    assert registry.next_session(uid, 41) == 42
    registry.put_job(replace(registry.jobs[uid], given=1000))
    assert registry.next_session(uid, 7) == 1001
    assert registry.next_session(uid) == 1002
