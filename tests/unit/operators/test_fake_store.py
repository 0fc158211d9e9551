"""The crash of `FakeStore`; the rest of it is the Store port's contract suite."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rhinoctl.protocol.ports import WriteBatch
from tests.fakes.store import FakeStore

names = st.sampled_from([b"a", b"b", b"c", b"d"])
batches = st.builds(
    lambda puts, deletes, ranges: WriteBatch(
        keys=list(puts), values=list(puts.values()), deletes=deletes, delete_ranges=ranges
    ),
    st.dictionaries(names, st.binary(max_size=1)),
    st.lists(names, max_size=2),
    st.lists(st.tuples(names, names), max_size=1),
)


@given(st.lists(batches | st.none(), max_size=8), st.data())
@settings(deadline=None)
def test_a_crash_leaves_a_prefix_no_shorter_than_the_last_flush(
    steps: list[WriteBatch | None], data: st.DataObject
) -> None:
    """`None` is a flush."""
    store = FakeStore()
    images = [[]]
    for step in steps:
        if step is None:
            store.flush()
        else:
            store.write(step)
            images.append(list(store.scan()))
    assert store.written == len(images) - 1
    prefix = data.draw(st.none() | st.integers(store.flushed, store.written))
    flushed = store.flushed
    store.crash(prefix)
    assert list(store.scan()) == images[flushed if prefix is None else prefix]
    store.write(WriteBatch(keys=[b"z"], values=[b""]))
    assert list(store.scan(b"z")) == [(b"z", b"")]


def test_a_crash_loses_no_more_than_that() -> None:
    store = FakeStore()
    store.write(WriteBatch(keys=[b"a"], values=[b"1"]))
    store.flush()
    for prefix in (0, 2):
        with pytest.raises(ValueError, match="between 1 and 1"):
            store.crash(prefix)


def test_a_checkpoint_is_restored_into_a_store_of_its_own(tmp_path) -> None:
    store = FakeStore()
    entries = {bytes([at]): bytes([at]) * at for at in range(5)}
    store.write(WriteBatch(keys=list(entries), values=list(entries.values())))
    store.checkpoint(str(tmp_path / "image"))
    store.write(WriteBatch(deletes=[b"\1"]))
    restored = FakeStore.restore(str(tmp_path / "image"))
    assert dict(restored.scan()) == entries
