"""`WindowAggregate` by example: what may be declared, what is late, when a window is over."""

from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rhinoctl.errors import MissingColumn, UnsupportedOperator, UsageError
from rhinoctl.operators import Applied, ArithmeticOverflow, WindowAggregate, from_spec
from rhinoctl.operators.windows import Panes
from rhinoctl.protocol.records import Watermarks
from tests.unit.operators.driving import Instance, routed, with_key_group

TIME = pa.timestamp("us", "UTC")
FRAME = pa.schema([("user", pa.string()), ("at", TIME), ("price", pa.int64())])


def declare(**changes: Any) -> WindowAggregate:
    given: dict[str, Any] = {
        "keys": ["user"],
        "aggregates": {"n": "count"},
        "time": "at",
        "window": "10 s",
        "watermark": "2 s",
        **changes,
    }
    return WindowAggregate(**given)


def rows(*given: tuple[str | None, float | None, int | None]) -> pa.Table:
    """Users, seconds since 1970, prices."""
    times = [None if s is None else round(s * 1e6) for _, s, _ in given]
    columns = [
        pa.array([user for user, _, _ in given], pa.string()),
        pa.array(times, pa.int64()).cast(TIME),
        pa.array([price for _, _, price in given], pa.int64()),
    ]
    return with_key_group(pa.table(columns, schema=FRAME), ["user"])


def marks(late_s: float, evict_s: float) -> Watermarks:
    return Watermarks(late_ms=round(late_s * 1000), evict_ms=round(evict_s * 1000))


def run(instance: Instance, table: pa.Table, watermarks: Watermarks) -> dict[Any, int]:
    slices = routed(instance.bound.pre_aggregate(table), instance.vnodes)
    found = {}
    for row in instance.apply(slices, watermarks).output.to_pylist():
        start = round(row["window"]["start"].timestamp())
        assert row["window"]["end"].timestamp() == start + instance.bound.operator.window_us / 1e6
        found[start, row["user"]] = row["n"]
    return found


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"slide": "11 s"}, "shorter than its slide"),
        ({"window": "0 s"}, "longer than zero|more than zero|positive"),
        ({"watermark": "-1 s"}, "negative|-1 s"),
        ({"window": "1 month"}, "month"),
        ({"window": "soon"}, "soon"),
        ({"window": "1 h", "slide": "1 s"}, "3600 windows"),
        ({"output": "complete"}, "complete"),
        ({"output": "append", "watermark": None}, "append"),
        ({"keys": ["window"]}, "a key is named .window."),
        ({"aggregates": {"window": "count"}}, "an aggregate is named .window."),
        ({"keys": []}, "key"),
        ({"time": "__at"}, "__at"),
        ({"time": None}, "time=None"),
        ({"time": ["at"]}, r"time=\['at'\]"),
        ({"time": ""}, "time=''"),
        ({"keys": [1]}, r"keys=\[1\]"),
        ({"aggregates": [("n", "count")]}, "aggregates="),
    ],
)
def test_what_cannot_be_declared_is_refused_with_a_remedy(
    changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(UsageError, match=words) as refused:
        declare(**changes)
    assert refused.value.remedy


@pytest.mark.parametrize("held", [pa.int64(), pa.string(), pa.date32(), pa.duration("us")], ids=str)
def test_a_time_column_of_another_type_is_named(held: pa.DataType) -> None:
    frame = pa.schema([("user", pa.string()), ("at", held)])
    with pytest.raises(UnsupportedOperator, match="'at'"):
        declare().bind(frame)


def test_a_missing_time_column_is_named() -> None:
    with pytest.raises(MissingColumn, match="'at'"):
        declare().bind(pa.schema([("user", pa.string())]))


def test_a_time_without_zone_makes_windows_without_zone() -> None:
    local = pa.timestamp("us")
    bound = declare().bind(pa.schema([("user", pa.string()), ("at", local)]))
    assert bound.result_schema.field("window").type == pa.struct([("start", local), ("end", local)])


def test_a_declaration_is_a_value() -> None:
    one = declare(slide="5 s", output="append")
    assert from_spec(one.spec()) == one
    assert declare(window="10 seconds", watermark="2000 ms") == declare()
    assert declare() != declare(watermark=None)
    assert one.columns() == ("user", "at")
    assert declare(watermark=None).bind(FRAME).delays_ms == ()
    assert one.evicts
    assert not declare(watermark=None).evicts


def test_the_bounds_of_lateness_and_of_eviction() -> None:
    """A window that ends at the watermark is over: neither a microsecond sooner nor later."""
    instance = Instance(declare(output="append").bind(FRAME), vnodes=4)
    assert run(instance, rows(("a", 9.999999, 1), ("a", 10.0, 1)), marks(0, 9.999)) == {}
    assert run(instance, rows(), marks(9.999, 10)) == {(0, "a"): 1}
    assert run(instance, rows(("a", 9.5, 1)), marks(10, 10)) == {}, "late, and not put out again"
    assert run(instance, rows(("b", 19.9, 1)), marks(10, 20)) == {(10, "a"): 1, (10, "b"): 1}
    assert instance.state().num_rows == 0


def test_a_row_counts_for_those_of_its_windows_that_are_not_late() -> None:
    instance = Instance(declare(slide="5 s").bind(FRAME), vnodes=4)
    assert run(instance, rows(("a", 12, 1)), marks(15, 15)) == {(10, "a"): 1}
    assert run(instance, rows(("a", 12, 1)), marks(15, 15)) == {(10, "a"): 2}
    assert run(instance, rows(("a", 12, 1)), marks(20, 20)) == {}


def test_rows_without_time_or_before_1970() -> None:
    instance = Instance(declare(watermark=None).bind(FRAME), vnodes=4)
    found = run(instance, rows(("a", None, 1), ("a", -0.000001, 1), (None, -10, 1)), marks(0, 0))
    assert found == {(-10, "a"): 1, (-10, None): 1}
    late = Instance(declare().bind(FRAME), vnodes=4)
    assert run(late, rows(("a", -5, 1)), marks(0, 0)) == {}, (
        "as in Spark: the watermark begins at 0"
    )


def test_event_times_are_rounded_down_and_null_without_rows() -> None:
    bound = declare().bind(FRAME)
    assert bound.event_times(rows(("a", 1.0019, 1), ("b", None, 1))) == (1001,)
    assert bound.event_times(rows(("a", -0.0001, 1))) == (-1,)
    assert bound.event_times(rows(("a", None, 1))) == (None,)


def test_a_sum_that_overflows_leaves_the_state_as_it_was() -> None:
    """Also one that overflows only where panes come together to a window."""
    bound = declare(slide="5 s", aggregates={"n": "count", "s": ("sum", "price")}).bind(FRAME)
    instance = Instance(bound, vnodes=1)
    run(instance, rows(("a", 1, 2**62)), marks(0, 0))
    before = instance.state()
    with pytest.raises(ArithmeticOverflow, match="user='a'"):
        run(instance, rows(("a", 6, 2**62)), marks(0, 0))
    assert instance.state() == before


def test_panes_of_windows_that_the_slide_does_not_divide() -> None:
    panes = Panes(window=7, slide=3)
    assert panes.length == 1
    of, starts = panes.windows(np.array([0, 6]))
    assert sorted(zip(of.tolist(), starts.tolist(), strict=True)) == [
        *[(0, -6), (0, -3), (0, 0)],
        *[(1, 0), (1, 3), (1, 6)],
    ]
    assert panes.first_window_after(7) == 3
    assert panes.first_window_after(6) == 0


def test_a_day_has_24_hours_when_clocks_change() -> None:
    instance = Instance(declare(window="1 day", watermark=None).bind(FRAME), vnodes=4)
    change = datetime(2024, 3, 31, 1, 30, tzinfo=UTC).timestamp()
    midnight = datetime(2024, 3, 31, tzinfo=UTC).timestamp()
    assert run(instance, rows(("a", change, 1)), marks(0, 0)) == {(midnight, "a"): 1}


# --- times that no state holds -------------------------------------------------------------------


def instants(*times_us: int) -> pa.Table:
    columns = [
        pa.array(["a"] * len(times_us)),
        pa.array(times_us, pa.int64()).cast(TIME),
        pa.array([1] * len(times_us), pa.int64()),
    ]
    return with_key_group(pa.table(columns, schema=FRAME), ["user"])


def windows_of(applied: Applied) -> list[tuple[int, int]]:
    column = applied.output["window"].combine_chunks()
    starts, ends = (column.field(name).cast(pa.int64()).to_pylist() for name in ("start", "end"))
    return sorted(zip(starts, ends, strict=True))


@settings(max_examples=40, deadline=None)
@given(pane=st.integers(1, 2**45), slide=st.integers(1, 5), more=st.integers(0, 5))
def test_a_time_that_is_staged_can_be_applied_up_to_the_bounds(
    pane: int, slide: int, more: int
) -> None:
    size, step = (slide + more) * pane, slide * pane
    given: dict[str, Any] = {"window": f"{size} microseconds", "slide": f"{step} microseconds"}
    bound = declare(**given, watermark=None).bind(FRAME)
    bounds = Panes(size, step).bounds()

    def windows(time: int) -> list[tuple[int, int]]:
        starts = [time // step * step - back * step for back in range(size // step + 1)]
        return sorted((start, start + size) for start in starts if start + size > time)

    for time in (bounds.least, bounds.greatest):
        instance = Instance(bound, 2)
        assert windows_of(instance.run([instants(time)])) == windows(time)
        assert instance.state().num_rows == 1
    for time in (bounds.least - 1, bounds.greatest + 1):
        if -(2**63) <= time < 2**63:
            with pytest.raises(UnsupportedOperator, match="time column 'at'"):
                bound.pre_aggregate(instants(0, time))

    over = Instance(declare(**given, output="append").bind(FRAME), 2)
    first, last = bounds.greatest - size, bounds.greatest
    over.apply(routed(over.bound.pre_aggregate(instants(first, last)), 2))
    marks = Watermarks(late_ms=0, evict_ms=last // 1000)
    ended = {each for each in windows(first) if each[1] <= last // 1000 * 1000}
    assert set(windows_of(over.apply([], marks))) == ended


def test_a_time_that_no_state_holds_is_named_with_its_column_and_the_bound() -> None:
    with pytest.raises(UnsupportedOperator) as refused:
        declare().bind(FRAME).pre_aggregate(instants(0, 9_223_372_036_850_000_000))
    message = refused.value.message
    assert "time column 'at' has a row at 294247-01-10T04:00:50.000000Z" in message
    assert " to 294238-" in message
    assert "at < '9999-01-01'" in refused.value.remedy
    with pytest.raises(UnsupportedOperator, match="at > '0001-01-01'"):
        declare().bind(FRAME).pre_aggregate(instants(0, 5 - 2**63))
