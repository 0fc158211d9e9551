"""Epochs: what the next one may be, over random layouts and changes."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rhinoctl.ids import InstanceId, Vnode, WorkerId
from rhinoctl.protocol.epochs import (
    Epoch,
    Member,
    Role,
    Route,
    epoch_fault,
    successor_fault,
    with_chains_cut,
    with_members_full,
    with_members_joining,
    with_moves,
)
from tests.fakes.cluster.scenarios import I0, I1, I2, TWO, V0, V1, W1, W2, W3, epoch

WORKERS = tuple(WorkerId(f"w{n}") for n in range(5))
ADDRESSES = {worker: f"{worker}.sock" for worker in WORKERS}
roles = st.sampled_from(Role)
quick = settings(max_examples=60, deadline=None)


@st.composite
def epochs(draw: st.DrawFn) -> Epoch:
    """Up to four instances on up to five workers, up to six vnodes, and chains of any length."""
    homes = draw(st.lists(st.sampled_from(WORKERS), min_size=1, max_size=4))
    instances = {InstanceId(f"i{n}"): worker for n, worker in enumerate(homes)}
    routes = []
    for _ in range(draw(st.integers(1, 6))):
        owner = draw(st.sampled_from(sorted(instances)))
        others = [worker for worker in WORKERS if worker != instances[owner]]
        chain = draw(st.lists(st.sampled_from(others), unique=True, max_size=3))
        members = tuple(Member(worker=worker, role=draw(roles)) for worker in chain)
        routes.append(Route(owner=owner, members=members))
    named = {*homes, *(m.worker for route in routes for m in route.members)}
    return Epoch(
        number=draw(st.integers(1, 9)),
        workers={worker: ADDRESSES[worker] for worker in sorted(named)},
        instances=instances,
        routes=tuple(routes),
    )


def vnode_sets(of: Epoch) -> st.SearchStrategy[list[Vnode]]:
    return st.lists(st.sampled_from([Vnode(v) for v in of.vnodes()]), unique=True)


@st.composite
def changes(draw: st.DrawFn, of: Epoch) -> Epoch:
    """Any change that the four functions make of an epoch, within what they are meant for."""
    kind = draw(st.sampled_from(("join", "full", "move", "cut")))
    vnodes = draw(vnode_sets(of))
    if kind == "join":
        joins = {v: draw(st.sampled_from(WORKERS)) for v in vnodes}
        return with_members_joining(of, joins, ADDRESSES)
    if kind == "full":
        members = {v: [m.worker for m in of.routes[v].members] for v in vnodes}
        fulls = {v: draw(st.sampled_from(ws)) for v, ws in members.items() if ws}
        return with_members_full(of, fulls)
    if kind == "move":
        homes = {v: sorted(of.full_holders(v)) for v in vnodes}
        moves = {
            v: draw(st.sampled_from(sorted(on)))
            for v, holders in homes.items()
            if (on := [i for i, worker in of.instances.items() if worker in holders])
        }
        return with_moves(of, moves, of.instances)
    drops = {v: frozenset(draw(st.sets(st.sampled_from(WORKERS)))) for v in vnodes}
    return with_chains_cut(of, drops)


@quick
@given(st.data())
def test_a_change_makes_an_epoch_that_may_follow(data: st.DataObject) -> None:
    """Invariants 1 and 2 of the module hold after any number of changes, and each is lawful."""
    now = data.draw(epochs())
    for _ in range(3):
        following = data.draw(changes(now))
        assert epoch_fault(following) is None
        assert successor_fault(now, following) is None
        assert following.number == now.number + 1
        now = following


@quick
@given(st.data())
def test_a_change_touches_nothing_else(data: st.DataObject) -> None:
    now = data.draw(epochs())
    vnodes = data.draw(vnode_sets(now))
    joined = with_members_joining(now, dict.fromkeys(vnodes, WORKERS[0]), ADDRESSES)
    for v in now.vnodes():
        assert joined.routes[v].owner == now.routes[v].owner
        assert now.full_holders(Vnode(v)) == joined.full_holders(Vnode(v))
        if v not in vnodes:
            assert joined.routes[v] == now.routes[v]
    assert joined.voters() == now.voters(), "a joining member is not waited for"


@quick
@given(st.data())
def test_a_move_keeps_every_full_copy(data: st.DataObject) -> None:
    """The origin stays a full member until redundancy is lowered."""
    now = data.draw(epochs())
    vnode = data.draw(st.sampled_from([Vnode(v) for v in now.vnodes()]))
    full = now.full_holders(vnode)
    targets = sorted(i for i, worker in now.instances.items() if worker in full)
    target = data.draw(st.sampled_from(targets))
    moved = with_moves(now, {vnode: target}, now.instances)
    assert moved.routes[vnode].owner == target
    assert set(moved.full_holders(vnode)) == set(full)
    assert set(moved.holders(vnode)) == set(now.holders(vnode))


@quick
@given(epochs(), epochs())
def test_no_epoch_follows_in_which_a_copy_comes_from_nowhere(old: Epoch, new: Epoch) -> None:
    """Whatever two epochs: if one may follow the other, every full holder of the next had a place
    in the chain, every head was full, and every voter got the marker."""
    new = replace(new, number=old.number + 1)
    if successor_fault(old, new) is not None or len(old.routes) != len(new.routes):
        return
    for v in old.vnodes():
        vnode = Vnode(v)
        assert new.owner_worker(vnode) in old.full_holders(vnode)
        assert set(new.full_holders(vnode)) <= set(old.holders(vnode))
    assert new.voters() <= old.listeners()


NOW = epoch(TWO, ((I0, "w2 w3?"), (I1, "")))

UNLAWFUL: dict[str, Epoch] = {
    "the same number": replace(NOW),
    "a number too far": replace(NOW, number=3),
    "another number of vnodes": replace(NOW, number=2, routes=NOW.routes[:1]),
    "a move to a joining member": with_moves(NOW, {V0: I2}, {**TWO, I2: W3}),
    "a move to a stranger": with_moves(NOW, {V1: I0}, TWO),
    "full without joining": replace(
        NOW,
        number=2,
        routes=(NOW.routes[0], Route(owner=I1, members=(Member(worker=W1, role=Role.FULL),))),
    ),
    "an instance moves to a worker without its vnodes": replace(
        NOW, number=2, instances={I0: W1, I1: W1}
    ),
    "an instance on a worker that holds nothing": replace(
        with_members_full(NOW, {}),
        instances={**TWO, I2: WorkerId("w9")},
        workers={**NOW.workers, WorkerId("w9"): "w9.sock"},
    ),
}


@pytest.mark.parametrize("new", UNLAWFUL.values(), ids=UNLAWFUL.keys())
def test_an_unlawful_successor_is_refused(new: Epoch) -> None:
    assert successor_fault(NOW, new)


FAULTY: dict[str, dict[str, object]] = {
    "an instance on an unknown worker": {"instances": {**TWO, I2: WorkerId("w9")}},
    "an owner that is no instance": {"routes": (Route(owner=I2), Route(owner=I1))},
    "a member beside itself": {
        "routes": (Route(owner=I0, members=(Member(worker=W1, role=Role.FULL),)), Route(owner=I1))
    },
    "a member that the epoch does not name": {
        "routes": (
            Route(owner=I0, members=(Member(worker=WorkerId("w9"), role=Role.FULL),)),
            Route(owner=I1),
        )
    },
}


@pytest.mark.parametrize("changes_", FAULTY.values(), ids=FAULTY.keys())
def test_a_faulty_epoch_cannot_be_made(changes_: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="epoch 1"):
        replace(NOW, **changes_)  # type: ignore[arg-type]


def test_whose_word_counts() -> None:
    assert NOW.voters() == {W1, W2}
    assert NOW.listeners() == {W1, W2, W3}
    assert NOW.holders(V0) == (W1, W2, W3)
    assert NOW.full_holders(V0) == (W1, W2)
    assert NOW.fully_held_by(W2) == (V0, V1)
    assert (NOW.held_by(W3), NOW.fully_held_by(W3)) == ((V0,), ())
    assert NOW.owned_by(I1) == (V1,)
    assert NOW.role_of(W1, V1) is None


def test_a_worker_that_is_of_no_use_any_more_leaves_the_epoch() -> None:
    gone = with_chains_cut(NOW, {V0: frozenset({W3})})
    assert set(gone.workers) == {W1, W2}
    assert set(with_chains_cut(NOW, {V0: frozenset({W2})}).workers) == {W1, W2, W3}
