"""Watermarks from record to record: design, section 4, by example and at random."""

from hypothesis import given
from hypothesis import strategies as st

from rhinoctl.protocol import watermarks
from rhinoctl.protocol.records import NO_WATERMARKS, Watermarks


def run(delays: tuple[int, ...], *batches: tuple[int | None, ...]) -> list[Watermarks]:
    found = [NO_WATERMARKS]
    for greatest in batches:
        found.append(watermarks.of_batch(found[-1], delays, greatest))
    return found[1:]


def test_a_batch_s_own_rows_move_the_watermark_of_the_next() -> None:
    first, second, third = run((10,), (100,), (130,), ())
    assert (first.late_ms, first.evict_ms) == (0, 0)
    assert (second.late_ms, second.evict_ms) == (0, 90)
    assert (third.late_ms, third.evict_ms) == (90, 120)
    assert second.rose
    assert not first.rose
    assert watermarks.after(third, (10,)) == third.evict_ms, "nothing more comes of no rows"


def test_it_never_falls_and_late_rows_count() -> None:
    marks = run((5,), (100,), (20,), (101,))
    assert [each.evict_ms for each in marks] == [0, 95, 95]
    assert [each.max_event_ms for each in marks] == [(100,), (100,), (101,)]


def test_the_slower_input_holds_it_back_and_one_without_rows_holds_it_at_zero() -> None:
    marks = run((0, 10), (100, None), (200, None), (200, 150), ())
    assert [each.evict_ms for each in marks] == [0, 0, 0, 140]


def test_before_1970_it_stays_at_zero() -> None:
    assert [each.evict_ms for each in run((0,), (-500,), (-20,), ())] == [0, 0, 0]


def test_without_a_delay_there_is_none() -> None:
    assert run((), (), ()) == [NO_WATERMARKS, NO_WATERMARKS]


@given(
    st.tuples(st.integers(0, 50), st.integers(0, 50)),
    st.lists(st.tuples(*[st.none() | st.integers(-100, 1000)] * 2), max_size=8),
)
def test_it_is_the_least_of_the_inputs(
    delays: tuple[int, int], batches: list[tuple[int | None, int | None]]
) -> None:
    for number, marks in enumerate(run(delays, *batches)):
        before = batches[:number]
        inputs = []
        for at in (0, 1):
            seen = [pair[at] for pair in before if pair[at] is not None]
            inputs.append(max(seen, default=delays[at]) - delays[at])
        held = [min(run_inputs) for run_inputs in _prefixes(delays, before)]
        assert marks.evict_ms == max([0, min(inputs), *held])


def _prefixes(
    delays: tuple[int, int], batches: list[tuple[int | None, int | None]]
) -> list[tuple[int, int]]:
    found = []
    for end in range(len(batches) + 1):
        pair = []
        for at in (0, 1):
            seen = [b[at] for b in batches[:end] if b[at] is not None]
            pair.append(max(seen, default=delays[at]) - delays[at])
        found.append((pair[0], pair[1]))
    return found
