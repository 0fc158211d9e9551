"""What waits for a vnode's spill is seen as if the store had it."""

import pytest

from rhinoctl.operators.direct import ENTRY_BYTES
from rhinoctl.operators.join_state import HeldBack
from rhinoctl.protocol.ports import WriteBatch
from tests.fakes.store import FakeStore

BELOW_B = WriteBatch(delete_ranges=((b"", b"b"),))
NOTHING = WriteBatch()


@pytest.fixture
def store() -> FakeStore:
    store = FakeStore()
    store.write(WriteBatch(keys=[b"a", b"b", b"c"], values=[b"1", b"2", b"3"]))
    return store


def test_what_waits_is_seen_before_what_is_stored(store: FakeStore) -> None:
    held = HeldBack(store)
    held.write(WriteBatch(keys=[b"b"], values=[b"new"]))
    held.add([b"d"], [b"4"])
    assert held.get_many([b"d", b"c", b"b", b"e", b"a"]) == [b"4", b"3", b"new", None, b"1"]
    assert held.size == 6 + 2 * ENTRY_BYTES
    assert store.get_many([b"b", b"d"]) == [b"2", None]


def test_what_is_removed_is_not_seen(store: FakeStore) -> None:
    held = HeldBack(store)
    held.add([b"aa", b"bb"], [b"5", b"6"])
    held.write(BELOW_B)
    assert held.get_many([b"a", b"aa", b"b", b"bb"]) == [None, None, b"2", b"6"]
    assert held.size == 3 + ENTRY_BYTES
    held.add([b"ab"], [b"7"])  # what comes after the removal stays
    assert held.get_many([b"ab"]) == [b"7"]


@pytest.mark.parametrize("looked_up", [False, True])
def test_a_spill_has_everything_once(store: FakeStore, looked_up: bool) -> None:
    held = HeldBack(store)
    held.add([b"aa", b"bb"], [b"5", b"6"])
    if looked_up:
        held.get_many([b"aa"])
    held.write(BELOW_B)
    held.write(WriteBatch(keys=[b"c"], values=[b"8"]))
    store.write(held.taken(WriteBatch(keys=[b"c", b"d"], values=[b"9", b"10"])))
    assert dict(store.scan()) == {b"b": b"2", b"bb": b"6", b"c": b"9", b"d": b"10"}
    assert (held.taken(NOTHING), held.size) == (WriteBatch(keys=[], values=[]), 0)


def test_a_last_batch_may_remove(store: FakeStore) -> None:
    held = HeldBack(store)
    held.add([b"aa", b"bb"], [b"5", b"6"])
    store.write(held.taken(BELOW_B))
    assert dict(store.scan()) == {b"b": b"2", b"bb": b"6", b"c": b"3"}


@pytest.mark.parametrize(
    "batch", [WriteBatch(deletes=[b"a"]), WriteBatch(delete_ranges=((b"a", b"b"),))], ids=str
)
def test_other_removals_are_refused(store: FakeStore, batch: WriteBatch) -> None:
    with pytest.raises(ValueError, match="below a bound"):
        HeldBack(store).write(batch)
