"""Which vnodes are checkpointed: the target is kept with as few as can be."""

from hypothesis import given
from hypothesis import strategies as st

from rhinoctl.ids import BatchTime, Vnode
from rhinoctl.protocol.pacing import ApplySpeed, Waiting, by_age, by_replay

SPEED = ApplySpeed(rows=1000.0, seconds=1.0)


def waiting(*rows: int) -> dict[Vnode, Waiting]:
    return {
        Vnode(v): Waiting(rows=count, floor=BatchTime(0, 100 - v)) for v, count in enumerate(rows)
    }


def test_nothing_is_due_within_the_target() -> None:
    assert by_replay(waiting(300, 300, 400), SPEED, 1.0, 9) == []


def test_the_largest_go_first_and_no_more_than_needed() -> None:
    assert by_replay(waiting(100, 900, 200, 500), SPEED, 1.0, 9) == [1]
    assert by_replay(waiting(100, 900, 200, 500), SPEED, 0.5, 9) == [1, 3]


def test_without_a_known_speed_only_age_counts() -> None:
    assert by_replay(waiting(10**9), ApplySpeed(), 1.0, 9) == []
    assert by_age(waiting(5, 5, 5), [Vnode(0), Vnode(1), Vnode(2)], 2) == [2, 1]
    assert by_age(waiting(5, 5, 5), [Vnode(0)], 0) == []


def test_the_speed_follows_the_last_batches() -> None:
    speed = ApplySpeed()
    for _ in range(50):
        speed = speed.after(1000, 1.0)
    assert abs(speed.predict_s(500) - 0.5) < 1e-9
    for _ in range(50):
        speed = speed.after(1000, 0.1)
    assert speed.predict_s(1000) < 0.11


@given(
    st.lists(st.integers(0, 5000), min_size=1, max_size=12),
    st.floats(0.1, 10.0),
    st.integers(1, 12),
)
def test_the_target_is_kept_if_it_can_be(rows: list[int], target_s: float, most: int) -> None:
    known = waiting(*rows)
    chosen = by_replay(known, SPEED, target_s, most)
    left = sum(each.rows for vnode, each in known.items() if vnode not in chosen)
    assert len(chosen) == most or SPEED.predict_s(left) <= target_s + 1e-9
    if chosen:
        without_last = left + known[chosen[-1]].rows
        assert SPEED.predict_s(without_last) > target_s - 1e-9, "one too many"
