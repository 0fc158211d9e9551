"""Redundancy: raised before it is lowered, and lowered only beyond what is wanted."""

from hypothesis import given
from hypothesis import strategies as st

from rhinoctl.ids import InstanceId, Vnode, WorkerId
from rhinoctl.protocol.chains import lowered
from rhinoctl.protocol.epochs import Epoch, Member, Role, Route, successor_fault, with_moves

W1, W2, W3, W4 = (WorkerId(f"w{n}") for n in range(1, 5))
WORKERS = (W1, W2, W3, W4)
I0, I1 = InstanceId("i0"), InstanceId("i1")


def epoch(*chains: tuple[InstanceId, str], workers: tuple[WorkerId, ...] = WORKERS) -> Epoch:
    """A chain is an owner and its members, e.g. ``(I0, "w2 w3?")``: w3 is joining."""
    routes = []
    for owner, text in chains:
        members = tuple(
            Member(
                worker=WorkerId(word.rstrip("?")),
                role=Role.JOINING if word.endswith("?") else Role.FULL,
            )
            for word in text.split()
        )
        routes.append(Route(owner=owner, members=members))
    return Epoch(
        number=3,
        workers={worker: f"{worker}.sock" for worker in workers},
        instances={I0: W1, I1: W2},
        routes=tuple(routes),
    )


@st.composite
def chains(draw: st.DrawFn) -> Epoch:
    routes = []
    for _ in range(draw(st.integers(1, 4))):
        owner = draw(st.sampled_from((I0, I1)))
        others = [w for w in WORKERS if w != {I0: W1, I1: W2}[owner]]
        members = draw(st.lists(st.sampled_from(others), unique=True))
        words = [draw(st.sampled_from((worker, f"{worker}?"))) for worker in members]
        routes.append((owner, " ".join(words)))
    return epoch(*routes)


@given(chains(), st.integers(0, 3))
def test_only_members_beyond_the_wanted_number_leave(before: Epoch, replication: int) -> None:
    after = lowered(before, replication) or before
    for v in before.vnodes():
        vnode = Vnode(v)
        assert after.owner_worker(vnode) == before.owner_worker(vnode)
        old, new = before.routes[v].members, after.routes[v].members
        assert len(new) == min(len(old), replication)
        assert [m for m in old if m in new] == list(new)
        full = [m for m in old if m.role is Role.FULL]
        assert [m for m in new if m.role is Role.FULL] == full[:replication]


@given(chains(), st.integers(0, 3))
def test_the_next_epoch_may_follow_and_needs_no_other(before: Epoch, replication: int) -> None:
    after = lowered(before, replication)
    if after is None:
        return
    assert successor_fault(before, after) is None
    assert lowered(after, replication) is None


@given(chains(), st.integers(0, 3))
def test_workers_leave_with_their_last_duty(before: Epoch, replication: int) -> None:
    after = lowered(before, replication)
    if after is None:
        return
    assert set(after.workers) == after.listeners()


def test_joining_members_go_first_and_then_the_last_full_ones() -> None:
    before = epoch((I0, "w2? w3 w4"))
    two, one = lowered(before, 2), lowered(before, 1)
    assert two is not None
    assert [m.worker for m in two.routes[0].members] == [W3, W4]
    assert one is not None
    assert [m.worker for m in one.routes[0].members] == [W3]


def test_the_former_owner_leaves_after_the_move_and_not_with_it() -> None:
    """Design, section 6: redundancy is raised before it is lowered."""
    joined = epoch((I0, "w2"), (I1, ""), workers=(W1, W2))
    moved = with_moves(joined, {Vnode(0): I1}, joined.instances)
    assert moved.full_holders(Vnode(0)) == (W2, W1)
    after = lowered(moved, 0)
    assert after is not None
    assert after.full_holders(Vnode(0)) == (W2,)
    assert after.number == moved.number + 1
    assert W1 in after.workers, "it still runs an instance"


def test_a_chain_that_is_too_short_is_left_to_handovers() -> None:
    assert lowered(epoch((I0, ""), (I1, "w1")), 2) is None
