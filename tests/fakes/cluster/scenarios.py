"""Small jobs for the exhaustive tests; every worker, vnode and batch in them has a purpose."""

from collections.abc import Mapping

from rhinoctl.ids import InstanceId, Vnode, WorkerId
from rhinoctl.protocol.epochs import (
    Epoch,
    Member,
    Role,
    Route,
    with_chains_cut,
    with_members_full,
    with_members_joining,
    with_moves,
)
from tests.fakes.cluster.inputs import Workload
from tests.fakes.cluster.world import EpochRecord, Goal, Scenario

W1, W2, W3 = WorkerId("w1"), WorkerId("w2"), WorkerId("w3")
I0, I1, I2 = InstanceId("i0"), InstanceId("i1"), InstanceId("i2")
V0, V1, V2 = Vnode(0), Vnode(1), Vnode(2)


def epoch(
    instances: Mapping[InstanceId, WorkerId],
    routes: tuple[tuple[InstanceId, str], ...],
    *,
    idle: tuple[WorkerId, ...] = (),
) -> Epoch:
    """Epoch 1. A route is an owner and its members, e.g. ``(I0, "w2 w3?")``: w3 is joining."""
    listed = []
    for owner, text in routes:
        members = tuple(
            Member(
                worker=WorkerId(word.rstrip("?")),
                role=Role.JOINING if word.endswith("?") else Role.FULL,
            )
            for word in text.split()
        )
        listed.append(Route(owner=owner, members=members))
    named = {*instances.values(), *idle, *(m.worker for r in listed for m in r.members)}
    return Epoch(
        number=1,
        workers={worker: f"{worker}.sock" for worker in sorted(named)},
        instances=instances,
        routes=tuple(listed),
    )


# --- goals ---------------------------------------------------------------------------------------


def moved(moves: Mapping[Vnode, InstanceId], instances: Mapping[InstanceId, WorkerId]) -> Goal:
    """The vnodes belong to their targets; wanted once every target's worker is a full member."""

    def goal(now: Epoch) -> Epoch | None:
        if all(now.routes[v].owner == target for v, target in moves.items()):
            return None
        return with_moves(now, moves, instances)

    return goal


def moved_among(moves: Mapping[Vnode, InstanceId]) -> Goal:
    """As `moved`, among the instances that there are; given up with a target."""

    def goal(now: Epoch) -> Epoch | None:
        left = {v: i for v, i in moves.items() if i in now.instances and now.routes[v].owner != i}
        return with_moves(now, left, now.instances) if left else None

    return goal


def taken_over(vnode: Vnode, target: InstanceId, instances: Mapping[InstanceId, WorkerId]) -> Goal:
    """The target's worker joins the vnode's chain, becomes full, and the target takes over."""
    worker = instances[target]

    def goal(now: Epoch) -> Epoch | None:
        if now.routes[vnode].owner == target:
            return None
        role = now.role_of(worker, vnode)
        if role is None:
            return with_members_joining(now, {vnode: worker}, {worker: f"{worker}.sock"})
        if role is Role.JOINING:
            return with_members_full(now, {vnode: worker})
        return with_moves(now, {vnode: target}, instances)

    return goal


def joined(vnode: Vnode, worker: WorkerId) -> Goal:
    """The worker is in the vnode's chain."""

    def goal(now: Epoch) -> Epoch | None:
        if now.role_of(worker, vnode) is not None:
            return None
        return with_members_joining(now, {vnode: worker}, {worker: f"{worker}.sock"})

    return goal


def full(vnode: Vnode, worker: WorkerId) -> Goal:
    """The worker, which has joined the vnode's chain, is a full member."""

    def goal(now: Epoch) -> Epoch | None:
        if now.role_of(worker, vnode) is Role.FULL:
            return None
        return with_members_full(now, {vnode: worker})

    return goal


def cut(vnode: Vnode, worker: WorkerId) -> Goal:
    """The worker has left the vnode's chain."""

    def goal(now: Epoch) -> Epoch | None:
        if worker == now.owner_worker(vnode) or worker not in now.holders(vnode):
            return None
        return with_chains_cut(now, {vnode: frozenset({worker})})

    return goal


def in_turn(*goals: Goal) -> Goal:
    """Each goal once those before it are reached."""

    def goal(now: Epoch) -> Epoch | None:
        return next((wish for each in goals if (wish := each(now)) is not None), None)

    return goal


# --- jobs ----------------------------------------------------------------------------------------

TWO = {I0: W1, I1: W2}

PLAIN = Scenario(
    name="two workers, no chain",
    first=epoch(TWO, ((I0, ""), (I1, ""))),
    workload=Workload(vnodes=2, sizes=(3, 0)),
    batches=2,
)

CHAIN = Scenario(
    name="each worker a member behind the other",
    first=epoch(TWO, ((I0, "w2"), (I1, "w1"))),
    workload=Workload(vnodes=2, sizes=(3, 2)),
    batches=2,
)

LONG_CHAIN = Scenario(
    name="a chain over three workers, with a joining member in the middle",
    first=epoch({I0: W1}, ((I0, "w2? w3"),)),
    workload=Workload(vnodes=1, sizes=(2, 2)),
    batches=2,
)

WITHIN = Scenario(
    name="a marker moves a vnode between two instances of one worker",
    first=epoch({I0: W1, I1: W2, I2: W1}, ((I0, ""), (I1, ""), (I2, ""))),
    workload=Workload(vnodes=3, sizes=(4, 3)),
    batches=2,
    proposals=((0, moved({V0: I2}, {I0: W1, I1: W2, I2: W1})),),
)

PROMOTED = Scenario(
    name="a marker hands a vnode to a full member",
    first=epoch(TWO, ((I0, "w2"), (I1, ""))),
    workload=Workload(vnodes=2, sizes=(3, 3)),
    batches=2,
    proposals=((0, moved({V0: I1}, TWO)),),
)

GROWN = Scenario(
    name="markers make a worker join, become full, take over, and the origin's worker leave",
    first=epoch({I0: W1, I1: W2}, ((I0, ""), (I1, ""))),
    workload=Workload(vnodes=2, sizes=(2, 2, 2, 2, 2)),
    batches=5,
    proposals=((0, in_turn(taken_over(V0, I2, {I1: W2, I2: W3}), cut(V0, W1))),),
)

JOINED = Scenario(
    name="a joining member becomes full by a marker, and takes over",
    first=epoch({I0: W1}, ((I0, "w2?"),)),
    workload=Workload(vnodes=1, sizes=(2, 2, 2)),
    batches=3,
    proposals=((0, taken_over(V0, I1, TWO)),),
)

OWNER_JOINED = Scenario(
    name="an owner of one vnode becomes a full member of another",
    first=epoch(TWO, ((I0, "w2?"), (I1, ""))),
    workload=Workload(vnodes=2, sizes=(2, 2)),
    batches=2,
    proposals=((0, full(V0, W2)),),
)

BETWEEN = Scenario(
    name="an epoch record without a live session hands a vnode over between batches",
    first=epoch(TWO, ((I0, "w2"), (I1, ""))),
    workload=Workload(vnodes=2, sizes=(3, 2)),
    batches=2,
    records=(EpochRecord(after=0, goal=moved({V0: I1}, TWO), live=False),),
)

TWICE_BETWEEN = Scenario(
    name="the owner of an uncommitted batch leaves, and the layout changes once more",
    first=epoch(TWO, ((I0, "w2"), (I1, ""))),
    workload=Workload(vnodes=2, sizes=(2, 2)),
    batches=2,
    records=(
        EpochRecord(after=0, goal=in_turn(moved({V0: I1}, {I1: W2}), cut(V0, W1)), live=False),
        EpochRecord(after=0, goal=joined(V1, W3), live=False),
    ),
)

GROWN_BETWEEN = Scenario(
    name="epoch records of the live session make a worker join, become full and take over",
    first=epoch({I0: W1}, ((I0, ""),)),
    workload=Workload(vnodes=1, sizes=(2, 2)),
    batches=2,
    records=(EpochRecord(after=0, goal=taken_over(V0, I1, TWO), live=True),),
)

ALL = (
    PLAIN,
    CHAIN,
    LONG_CHAIN,
    WITHIN,
    PROMOTED,
    JOINED,
    OWNER_JOINED,
    BETWEEN,
    TWICE_BETWEEN,
    GROWN_BETWEEN,
    GROWN,
)

# --- jobs of which a worker is given up ----------------------------------------------------------

THREE = {I0: W1, I1: W2, I2: W3}

BEHIND_EACH_OTHER = Scenario(
    name="two workers, either can be lost",
    first=epoch(TWO, ((I0, "w2"), (I1, "w1"))),
    workload=Workload(vnodes=2, sizes=(3, 2)),
    batches=2,
)

RING = Scenario(
    name="three workers in a ring, one copy each",
    first=epoch(THREE, ((I0, "w2"), (I1, "w3"), (I2, "w1"))),
    workload=Workload(vnodes=3, sizes=(4, 3)),
    batches=2,
)

TWO_COPIES = Scenario(
    name="two copies, two workers can be lost",
    first=epoch(THREE, ((I0, "w2 w3"), (I1, "w3 w1"), (I2, "w1 w2"))),
    workload=Workload(vnodes=3, sizes=(4, 3)),
    batches=2,
)

LOST_AT_A_MARKER = Scenario(
    name="a vnode is handed to a member while a worker is lost",
    first=epoch(THREE, ((I0, "w2"), (I1, "w3"), (I2, "w1"))),
    workload=Workload(vnodes=3, sizes=(3, 3)),
    batches=2,
    proposals=((0, moved_among({V0: I1})),),
)

LOST_BETWEEN = Scenario(
    name="an epoch record without a live session, and a worker is lost",
    first=epoch(TWO, ((I0, "w2"), (I1, "w1"))),
    workload=Workload(vnodes=2, sizes=(3, 2)),
    batches=2,
    records=(EpochRecord(after=0, goal=moved_among({V0: I1}), live=False),),
)

LOSABLE = (BEHIND_EACH_OTHER, RING, TWO_COPIES, LOST_AT_A_MARKER, LOST_BETWEEN)
