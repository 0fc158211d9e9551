"""Which vnodes are checkpointed: the targets are kept with as few as can be, and all have turns."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from rhinoctl import limits
from rhinoctl.ids import BatchTime, Vnode
from rhinoctl.protocol.pacing import (
    ApplySpeed,
    ReplayCost,
    Waiting,
    batches_between,
    by_age,
    by_replay,
    round_batches,
)

COST = ReplayCost(row_s=0.001)
ROUND = limits.CHECKPOINT_ROUND_BATCHES


def waiting(*rows: int) -> dict[Vnode, Waiting]:
    return {Vnode(v): Waiting(rows=n, batches=1, kept=2) for v, n in enumerate(rows)}


def aged(*ages: tuple[int, int]) -> dict[Vnode, Waiting]:
    return {Vnode(v): Waiting(rows=0, batches=b, kept=k) for v, (b, k) in enumerate(ages)}


# --- what a replay takes --------------------------------------------------------------------------


def measured(batches: list[tuple[int, float]]) -> ReplayCost:
    speed = ApplySpeed()
    for rows, seconds in batches:
        speed = speed.after(rows, seconds)
    return speed.cost


def test_nothing_is_known_at_first() -> None:
    assert ApplySpeed().cost.predict_s(1000, 10**9) == 0.0


def test_batches_of_several_sizes_tell_what_a_row_takes() -> None:
    cost = measured([(rows, 0.2 + rows * 0.003) for rows in (10, 200, 30, 400, 5) * 20])
    assert abs(cost.batch_s - 0.2) < 0.05
    assert abs(cost.row_s - 0.003) < 0.0003


def test_large_batches_of_one_size_are_due_to_their_rows() -> None:
    cost = measured([(1_000_000, 0.3)] * 50)
    assert abs(cost.predict_s(0, 1_000_000) - 0.3) < 1e-6
    assert cost.batch_s < 1e-6


def test_small_batches_of_one_size_take_what_they_take_whatever_is_in_them() -> None:
    cost = measured([(20, 0.1)] * 50)
    assert abs(cost.batch_s - 0.1) <= 20 * limits.ROW_S_MAX + 1e-9
    assert measured([(0, 0.1)] * 50).row_s == 0.0


def test_the_speed_follows_the_last_batches() -> None:
    cost = measured([(1_000_000, 1.0)] * 50 + [(1_000_000, 0.1)] * 50)
    assert cost.predict_s(1, 1_000_000) < 0.11


@given(st.lists(st.tuples(st.integers(0, 10**6), st.floats(0.0, 100.0)), min_size=1, max_size=40))
def test_neither_part_is_negative_and_the_whole_is_the_mean(
    batches: list[tuple[int, float]],
) -> None:
    speed = ApplySpeed()
    for rows, seconds in batches:
        speed = speed.after(rows, seconds)
    cost = speed.cost
    assert cost.batch_s >= 0
    assert cost.row_s >= 0
    predicted = speed.batches * cost.batch_s + speed.rows * cost.row_s
    assert abs(predicted - speed.seconds) <= 1e-6 * max(1.0, speed.seconds)


# --- turns ----------------------------------------------------------------------------------------


def test_a_round_is_the_shorter_the_longer_batches_take() -> None:
    assert round_batches(ReplayCost(), 1.0) == ROUND
    assert round_batches(ReplayCost(batch_s=0.001), 1.0) == ROUND
    assert round_batches(ReplayCost(batch_s=0.05), 1.0) == 20
    assert round_batches(ReplayCost(batch_s=9.0), 1.0) == limits.CHECKPOINT_ROUND_LEAST_BATCHES


def test_those_furthest_behind_come_first() -> None:
    assert by_age(aged((3, 4), (9, 10), (5, 6)), 2) == [1, 2]
    assert by_age(aged((3, 30), (9, 10)), 1) == [0], "half of what the log is kept for counts"
    assert by_age(aged((3, 4)), 0) == by_age(aged((3, 4)), -1) == []


def test_an_untouched_vnode_has_a_turn_for_the_sake_of_the_log_alone() -> None:
    assert by_age(aged((0, 2 * ROUND)), 9) == []
    assert by_age(aged((0, 2 * ROUND + 1)), 9) == [0]


@given(st.integers(1, 40), st.integers(1, 4))
def test_every_vnode_has_its_turn_within_a_round(vnodes: int, each: int) -> None:
    """All are touched by each batch, and so many are taken: none is passed over, from the empty
    checkpoints on."""
    newest, older = dict.fromkeys(range(vnodes), -1), dict.fromkeys(range(vnodes), -1)
    longest = -(-vnodes // each)
    for batch in range(6 * longest):
        ages = aged(*((batch - newest[v], batch - older[v]) for v in range(vnodes)))
        assert all(one.batches <= longest for one in ages.values())
        for vnode in by_age(ages, each):
            older[vnode], newest[vnode] = newest[vnode], batch


def test_batches_of_an_earlier_generation_are_not_counted() -> None:
    assert batches_between(BatchTime(1, 3), BatchTime(1, 10)) == 7
    assert batches_between(BatchTime(1, 30), BatchTime(2, 10)) == 11
    assert batches_between(BatchTime(1, 10), BatchTime(1, 3)) == 0


# --- rows -----------------------------------------------------------------------------------------


def test_nothing_is_due_within_the_target() -> None:
    assert by_replay(waiting(300, 300, 400), COST, 1.0, 9) == []


def test_the_largest_go_first_and_no_more_than_needed() -> None:
    assert by_replay(waiting(100, 900, 200, 500), COST, 1.0, 9) == [1]
    assert by_replay(waiting(100, 900, 200, 500), COST, 0.5, 9) == [1, 3]


def test_without_a_known_speed_only_age_counts() -> None:
    assert by_replay(waiting(10**9), ReplayCost(), 1.0, 9) == []


def test_what_batches_take_is_not_mended_by_sparing_rows() -> None:
    """Half of the target is left for the rows, at least."""
    slow = replace(waiting(0)[Vnode(0)], rows=400, batches=100)
    assert by_replay({Vnode(0): slow}, ReplayCost(0.1, 0.001), 1.0, 9) == []
    assert by_replay({Vnode(0): slow}, ReplayCost(0.1, 0.002), 1.0, 9) == [0]
    assert by_replay({Vnode(0): slow}, ReplayCost(0.0, 0.002), 1.0, 9) == []


@given(
    st.lists(st.integers(0, 5000), min_size=1, max_size=12),
    st.floats(0.1, 10.0),
    st.integers(1, 12),
)
def test_the_target_is_kept_if_it_can_be(rows: list[int], target_s: float, most: int) -> None:
    known = waiting(*rows)
    chosen = by_replay(known, COST, target_s, most)
    left = sum(each.rows for vnode, each in known.items() if vnode not in chosen)
    assert len(chosen) == most or COST.predict_s(0, left) <= target_s + 1e-9
    if chosen:
        without_last = left + known[chosen[-1]].rows
        assert COST.predict_s(0, without_last) > target_s - 1e-9, "one too many"
