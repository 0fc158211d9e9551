"""`RunningAggregate` where the property test does not look: edges, errors, what is not touched."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from rhinoctl.errors import IdentityChanged, UnknownVnode
from rhinoctl.ids import BASE, Vnode
from rhinoctl.operators import ArithmeticOverflow, BatchContext, RunningAggregate
from rhinoctl.operators.running import BoundRunningAggregate
from rhinoctl.protocol.ports import WriteBatch
from tests.unit.operators.driving import Instance, routed, with_key_group

LONG_MAX = 2**63 - 1
FRAME = pa.schema([("user", pa.string()), ("price", pa.int64())])
COUNTS = RunningAggregate(["user"], {"n": "count", "total": ("sum", "price")})


def rows(*given: tuple[str | None, int | None]) -> pa.Table:
    users, prices = zip(*given, strict=True) if given else ((), ())
    table = pa.table([pa.array(users, pa.string()), pa.array(prices, pa.int64())], schema=FRAME)
    return with_key_group(table, ["user"])


@pytest.fixture
def bound() -> BoundRunningAggregate:
    return COUNTS.bind(FRAME)


def results(table: pa.Table) -> dict[Any, tuple[Any, ...]]:
    return {row[0]: row[1:] for row in zip(*table.to_pydict().values(), strict=True)}


def test_a_batch_says_the_totals_of_the_keys_that_it_touches(bound: BoundRunningAggregate) -> None:
    instance = Instance(bound, vnodes=4)
    instance.run([rows(("a", 1), ("b", 2)), rows(("a", 10), (None, 5))])
    applied = instance.run([rows(("a", 100), (None, None))])
    assert results(applied.output) == {"a": (3, 111), None: (2, 5)}
    assert results(instance.state()) == {"a": (3, 111), "b": (1, 2), None: (2, 5)}


def test_output_is_by_vnode_with_counts(bound: BoundRunningAggregate) -> None:
    instance = Instance(bound, vnodes=8)
    applied = instance.run([rows(*((f"user {at}", at) for at in range(50))), rows(("user 7", 1))])
    assert applied.output.schema == bound.result_schema
    assert list(applied.output_vnodes) == sorted(instance.written)
    assert applied.output.num_rows == sum(applied.output_vnodes.values()) == 50
    start = 0
    for vnode, count in applied.output_vnodes.items():
        part = applied.output.slice(start, count)
        stored = pa.Table.from_batches(bound.scan(instance.stores[vnode]))
        assert sorted(part.to_pylist(), key=str) == sorted(stored.to_pylist(), key=str)
        start += count


def test_slices_of_a_vnode_may_be_apart(bound: BoundRunningAggregate) -> None:
    """(channel, sequence) order is not vnode order."""
    slices = [
        each
        for part in (rows(("a", 1), ("b", 1), ("c", 1)), rows(("c", 2), ("a", 2)))
        for each in routed(bound.pre_aggregate(part), 16)
    ]
    one, other = Instance(bound, vnodes=16), Instance(bound, vnodes=16)
    once = one.apply(slices)
    assert results(once.output) == {"a": (2, 3), "b": (1, 1), "c": (2, 3)}
    assert other.apply(slices).output == once.output
    assert other.written == one.written


@pytest.mark.parametrize(
    "held", [pa.int64(), pa.float64(), pa.string(), pa.decimal128(30, 0)], ids=str
)
def test_output_is_in_order_of_first_appearance(held: pa.DataType) -> None:
    """Also with so many keys that Arrow's own groups are out of order."""
    frame = pa.schema([("user", held), ("day", pa.date32())])
    numbers = np.random.default_rng(5).integers(0, 30_000, 60_000)
    users = pa.array(numbers).cast(held)
    days = pa.array((numbers % 9).astype(np.int32)).cast(pa.date32())
    table = with_key_group(pa.table([users, days], schema=frame), ["user", "day"])
    bound = RunningAggregate(["user", "day"], {"n": "count"}).bind(frame)
    once = bound.pre_aggregate(table)
    assert once["user"].to_pylist() == list(dict.fromkeys(users.to_pylist()))
    slices = [*routed(once, 8), *routed(once, 8)]
    instance = Instance(bound, vnodes=8)
    applied = instance.apply(slices)
    in_order = [user for _, batch in slices[:8] for user in batch["user"].to_pylist()]
    assert applied.output["user"].to_pylist() == in_order
    assert list(applied.output_vnodes) == list(range(8))
    assert sum(len(batch.keys) for batch in instance.written.values()) == once.num_rows
    assert sum(applied.output["n"].to_pylist()) == 2 * len(numbers)


def test_nothing_comes_of_nothing(bound: BoundRunningAggregate) -> None:
    instance = Instance(bound, vnodes=2)
    empty = bound.pre_aggregate(rows())
    assert empty.schema == bound.wire_schema
    for slices in ([], [(Vnode(0), batch) for batch in empty.to_batches()]):
        applied = instance.apply(slices)
        assert (instance.written, applied.output_vnodes) == ({}, {})
        assert applied.output == bound.result_schema.empty_table()
    assert instance.state() == bound.result_schema.empty_table()


def test_a_task_may_pre_aggregate_in_parts(bound: BoundRunningAggregate) -> None:
    whole = rows(("a", 1), ("b", 2), ("a", 3), ("a", None))
    once, parts = Instance(bound, vnodes=4), Instance(bound, vnodes=4)
    once.run([whole])
    parts.run([whole.slice(0, 1), whole.slice(1, 2), whole.slice(3)])
    assert results(parts.state()) == results(once.state()) == {"a": (3, 4), "b": (1, 2)}


def test_pre_aggregation_takes_the_columns_by_name(bound: BoundRunningAggregate) -> None:
    given = rows(("a", 1))
    shuffled = given.select(["__kg", "price", "user"]).append_column("more", pa.array([0]))
    assert bound.pre_aggregate(shuffled) == bound.pre_aggregate(given)


def test_apply_writes_nothing_itself(bound: BoundRunningAggregate) -> None:
    instance = Instance(bound, vnodes=1)
    slices = routed(bound.pre_aggregate(rows(("a", 1))), 1)
    context = BatchContext(time=BASE, vnodes=frozenset(instance.stores))
    bound.apply(slices, instance.held, context)
    assert instance.stores[Vnode(0)].written == 0


def test_the_runtime_s_own_keys_are_not_scanned(bound: BoundRunningAggregate) -> None:
    instance = Instance(bound, vnodes=1)
    instance.run([rows(("a", 1))])
    instance.stores[Vnode(0)].write(WriteBatch(keys=[b"\xff\xfflast"], values=[b"1"]))
    assert results(instance.state()) == {"a": (1, 1)}


class TestOverflow:
    def test_in_a_task(self, bound: BoundRunningAggregate) -> None:
        with pytest.raises(ArithmeticOverflow, match=r"ARITHMETIC_OVERFLOW.*price") as error:
            bound.pre_aggregate(rows(("a", 1), ("b", LONG_MAX), ("b", 1)))
        assert (error.value.key, error.value.vnode) == ("user='b'", None)

    def test_between_slices(self, bound: BoundRunningAggregate) -> None:
        instance = Instance(bound, vnodes=2)
        with pytest.raises(ArithmeticOverflow) as error:
            instance.run([rows(("a", 1), ("b", -LONG_MAX)), rows(("b", -2))])
        (owner,) = (vnode for vnode, _ in routed(bound.pre_aggregate(rows(("b", 1))), 2))
        assert (error.value.key, error.value.vnode) == ("user='b'", owner)

    def test_with_the_state_which_stays_as_it_was(self, bound: BoundRunningAggregate) -> None:
        instance = Instance(bound, vnodes=2)
        instance.run([rows(("a", 5), ("b", LONG_MAX))])
        before = instance.state()
        with pytest.raises(ArithmeticOverflow, match="vnode"):
            instance.run([rows(("a", 1), ("b", 1))])
        assert instance.state() == before
        instance.run([rows(("b", -1))])
        assert results(instance.state())["b"] == (2, LONG_MAX - 1)

    def test_is_judged_by_the_exact_sum(self, bound: BoundRunningAggregate) -> None:
        instance = Instance(bound, vnodes=1)
        instance.run([rows(("a", LONG_MAX), ("a", LONG_MAX), ("a", -LONG_MAX), ("a", -7))])
        instance.run([rows(("b", -LONG_MAX - 1), ("c", LONG_MAX), ("c", None))])
        expected = {"a": (4, LONG_MAX - 7), "b": (1, -LONG_MAX - 1), "c": (2, LONG_MAX)}
        assert results(instance.state()) == expected

    def test_wraps_without_ansi(self) -> None:
        wrapping = RunningAggregate(["user"], {"total": ("sum", "price")}, ansi=False)
        instance = Instance(wrapping.bind(FRAME), vnodes=1)
        instance.run([rows(("a", LONG_MAX), ("a", 1))])
        instance.run([rows(("a", -1))])
        assert results(instance.state()) == {"a": (LONG_MAX,)}

    def test_no_float_overflows(self) -> None:
        frame = pa.schema([("user", pa.string()), ("x", pa.float64())])
        bound = RunningAggregate(["user"], {"total": ("sum", "x"), "mean": ("avg", "x")}).bind(
            frame
        )
        instance = Instance(bound, vnodes=1)
        for value in (1.7e308, 1.7e308, float("-inf")):
            table = pa.table({"user": ["a"], "x": [value]}, schema=frame)
            instance.run([with_key_group(table, ["user"])])
        assert str(results(instance.state())) == "{'a': (nan, nan)}"


def test_a_slice_without_a_store_is_refused(bound: BoundRunningAggregate) -> None:
    slices = routed(bound.pre_aggregate(rows(("a", 1))), 1)
    with pytest.raises(UnknownVnode, match="vnode 0"):
        bound.apply(slices, bound.state(), BatchContext(time=BASE, vnodes=frozenset()))


def test_a_slice_of_another_operator_is_refused(bound: BoundRunningAggregate) -> None:
    other = RunningAggregate(["user"], {"n": "count"}).bind(FRAME)
    instance = Instance(bound, vnodes=1)
    with pytest.raises(IdentityChanged, match="vnode 0"):
        instance.apply(routed(other.pre_aggregate(rows(("a", 1))), 1))


def test_a_frame_whose_types_changed_is_refused(bound: BoundRunningAggregate) -> None:
    table = rows(("a", 1))
    changed = table.set_column(1, "price", pa.array([1.5]))
    with pytest.raises(IdentityChanged, match="'price' was int64"):
        bound.pre_aggregate(changed)


def test_many_rows_are_scanned_in_batches(
    bound: BoundRunningAggregate, monkeypatch: pytest.MonkeyPatch
) -> None:
    instance = Instance(bound, vnodes=1)
    instance.run([rows(*((str(at), at) for at in range(100)))])
    every = instance.state()
    monkeypatch.setattr("rhinoctl.operators.table.SCAN_ROWS", 7)
    assert len(list(bound.scan(instance.stores[Vnode(0)]))) == 15
    assert instance.state() == every
