"""The handover machine: its table, and every way through it in a small model of a cluster.

The walk visits every state that the model can reach. In it epochs are decided one after another;
workers learn of them late and report late; copies progress and fall back; the driver dies, and
takes a proposal or does not, also one that was withdrawn; somebody asks for an abort, and the
deadline passes, at any moment. The controller holds nothing but the bytes of the last persisted
state, decoded anew for each step, and may forget all that it was told at any moment.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

import pytest

from rhinoctl import limits
from rhinoctl.ids import BatchTime, InstanceId, JobUid, OpId, Vnode, WorkerId
from rhinoctl.protocol import codec
from rhinoctl.protocol import handover as hm
from rhinoctl.protocol.epochs import Epoch, Member, Role, Route, successor_fault, with_chains_cut
from rhinoctl.protocol.handover import AbortAsked, Handover, Kind, Observed, Phase
from rhinoctl.protocol.jobs import VnodeUse
from rhinoctl.protocol.messages import VnodeReport

W1, W2 = WorkerId("w1"), WorkerId("w2")
I0, I1, I2 = InstanceId("i0"), InstanceId("i1"), InstanceId("i2")
V0, V1, V2 = Vnode(0), Vnode(1), Vnode(2)
ADDRESSES = {W1: "w1.sock", W2: "w2.sock"}
DEADLINE = 600.0
SOON, LATE = 1.0, DEADLINE

Step = Callable[[Handover, hm.Event, float], Handover]


# --- the model -----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """A handover to be walked. `stray` is an epoch that the driver was offered by what came before
    this operation, and may still take."""

    name: str
    start: Epoch
    moves: Mapping[Vnode, InstanceId]
    instances: Mapping[InstanceId, WorkerId]
    stray: Epoch | None = None

    def planned(self) -> Handover:
        return Handover(
            op=OpId("op-1"),
            kind=Kind.HANDOVER,
            job=JobUid("j-1"),
            moves=self.moves,
            instances=self.instances,
            workers={w: ADDRESSES[w] for w in set(self.instances.values())},
            deadline=DEADLINE,
        )


LEVELS = 5
"""How far the targets' copies are, all vnodes together: 0 not here, 1 some are whole, 2 all are
whole, 3 all follow but the instance is not ready or too far behind, 4 all follow."""

NOT_TOLD, OLD, NEW = range(3)
"""What the controller has heard of a worker's or the driver's epoch: nothing since it started, the
one before the newest, the newest. Nobody lags by two: who proposes has seen the last."""


class World(NamedTuple):
    """All that the future depends on. `history` has the decided epochs by their place in `Walk`."""

    persisted: bytes
    history: tuple[int, ...]
    seen: bool  # whether the controller has persisted the newest epoch
    told: tuple[int, ...]  # by worker
    level: int
    held: int | None  # what the driver holds of the offers it has heard
    driver: bool  # whether a session lives
    polled: int
    late: bool


class Broken(AssertionError):
    """An invariant does not hold."""


def require(held: bool, invariant: str) -> None:
    if not held:
        raise Broken(invariant)


@dataclass
class Walk:
    """Everything reachable in one scenario under one step function."""

    scenario: Scenario
    step: Step = hm.step
    epochs: list[Epoch] = field(default_factory=list)
    names: dict[bytes, int] = field(default_factory=dict)
    taken: set[tuple[Phase, type, Phase]] = field(default_factory=set)
    states: int = 0
    decoded: dict[bytes, Handover] = field(default_factory=dict)
    stepped: dict[tuple[object, ...], bytes] = field(default_factory=dict)
    offers: dict[bytes, int | None] = field(default_factory=dict)
    follows: dict[tuple[int, int], bool] = field(default_factory=dict)
    level_of: dict[tuple[WorkerId, int], Mapping[Vnode, VnodeReport]] = field(default_factory=dict)

    # --- epochs and states as keys ---------------------------------------------------------------

    def name(self, epoch: Epoch) -> int:
        key = codec.dumps(epoch)
        if key not in self.names:
            self.names[key] = len(self.epochs)
            self.epochs.append(epoch)
        return self.names[key]

    def handover(self, world: World) -> Handover:
        """The operation, as a controller that has just started reads it."""
        if world.persisted not in self.decoded:
            self.decoded[world.persisted] = codec.loads(Handover, world.persisted)
        return self.decoded[world.persisted]

    def newest(self, world: World) -> Epoch:
        return self.epochs[world.history[-1]]

    @cached_property
    def workers(self) -> tuple[WorkerId, ...]:
        named = {*self.scenario.start.workers, *self.scenario.instances.values()}
        return tuple(sorted(named))

    def begin(self) -> World:
        scenario = self.scenario
        return World(
            persisted=codec.dumps(scenario.planned()),
            history=(self.name(scenario.start),),
            seen=True,
            told=(NOT_TOLD,) * len(self.workers),
            level=0 if self._must_copy() else 2,
            held=None if scenario.stray is None else self.name(scenario.stray),
            driver=True,
            polled=NOT_TOLD,
            late=False,
        )

    def _must_copy(self) -> bool:
        start, scenario = self.scenario.start, self.scenario
        return any(
            start.role_of(scenario.instances[target], vnode) is not Role.FULL
            for vnode, target in scenario.moves.items()
        )

    # --- what may happen -------------------------------------------------------------------------

    def next_worlds(self, world: World) -> Iterator[World]:
        """Every world that one occurrence leads to."""
        yield self.observe(world)
        yield self.ask_abort(world)
        yield world._replace(told=(NOT_TOLD,) * len(world.told), polled=NOT_TOLD)  # it crashes
        yield world._replace(late=True)
        if world.driver:
            yield world._replace(driver=False, held=None, polled=NOT_TOLD)
            yield world._replace(held=self._offered(world))
            yield world._replace(polled=NEW)
            yield self.decide(world, world.held)
        else:
            yield world._replace(driver=True)
            yield self.decide(world, self._offered(world))
        for place in range(len(self.workers)):
            yield from self.worker_reports(world, place)
        yield self.copies_progress(world)
        if world.level == LEVELS - 1:
            yield world._replace(level=2)  # the target starts again

    def observe(self, world: World) -> World:
        """The controller looks at what it was told, steps, and persists."""
        op = self.handover(world)
        if op.ended or not any(world.told):
            return world
        after = self._stepped(world, Observed(facts=self.facts(world)))
        return self._checked(world, op, world._replace(persisted=after))

    def ask_abort(self, world: World) -> World:
        after = self._stepped(world, AbortAsked(reason="asked for"))
        return self._checked(world, self.handover(world), world._replace(persisted=after))

    def _stepped(self, world: World, event: hm.Event) -> bytes:
        about = (*world[:5], world.driver, world.polled) if isinstance(event, Observed) else ()
        key = (world.persisted, type(event), world.late, *about)
        if key not in self.stepped:
            before = self.handover(world)
            after = self.step(before, event, LATE if world.late else SOON)
            self.taken.add((before.phase, type(event), after.phase))
            self.stepped[key] = codec.dumps(after)
        return self.stepped[key]

    def facts(self, world: World) -> hm.Facts:
        told = {w: t for w, t in zip(self.workers, world.told, strict=True) if t != NOT_TOLD}
        newest = self.newest(world).number
        return hm.Facts(
            epoch=self.epochs[world.history[-1 if world.seen else -2]],
            epoch_from=BatchTime(0, len(world.history)),
            reached={w: newest if t == NEW else newest - 1 for w, t in told.items()},
            driver_epoch=newest * (world.polled == NEW) if world.driver else None,
            copies={w: self.copies(w, world.level) for w in told},
            ready=frozenset(
                target
                for target in self.scenario.moves.values()
                if self.scenario.instances[target] in told and world.level != 3
            ),
        )

    def copies(self, worker: WorkerId, level: int) -> Mapping[Vnode, VnodeReport]:
        """The vnode reports of a worker for the moved vnodes that are to go to it."""
        if (worker, level) not in self.level_of:
            found = {}
            for place, (vnode, target) in enumerate(sorted(self.scenario.moves.items())):
                if self.scenario.instances[target] == worker:
                    found[vnode] = copy_report(target, level, first=place == 0)
            self.level_of[worker, level] = found
        return self.level_of[worker, level]

    def _offered(self, world: World) -> int | None:
        if world.persisted not in self.offers:
            proposal = self.handover(world).proposal
            self.offers[world.persisted] = None if proposal is None else self.name(proposal)
        return self.offers[world.persisted]

    def decide(self, world: World, proposal: int | None) -> World:
        """A batch or an epoch record is decided, with the proposal if it may follow. In a model
        without rows a batch that is decided without one changes nothing."""
        if proposal is None or not self._may_follow(world.history[-1], proposal):
            return world
        after = world._replace(
            history=(*world.history, proposal),
            seen=False,
            told=tuple(min(told, OLD) for told in world.told),
            polled=min(world.polled, OLD),
        )
        self._check_layout(world, after)
        return after

    def _may_follow(self, old: int, new: int) -> bool:
        if (old, new) not in self.follows:
            self.follows[old, new] = successor_fault(self.epochs[old], self.epochs[new]) is None
        return self.follows[old, new]

    def worker_reports(self, world: World, place: int) -> Iterator[World]:
        """A worker tells the newest epoch, or, if it lags or was started again, the one before."""
        told = world.told
        if told[place] != NEW:
            yield world._replace(told=_put(told, place, NEW), seen=True)
        if told[place] != OLD and len(world.history) > 1:
            yield world._replace(told=_put(told, place, OLD))

    def copies_progress(self, world: World) -> World:
        """Copies get ahead while their worker is in the chains, and while they are wanted."""
        op = self.handover(world)
        if world.level == LEVELS - 1 or not hm.warm_wishes(op):
            return world
        newest = self.newest(world)
        held = all(op.instances[t] in newest.holders(v) for v, t in op.moves.items())
        return world._replace(level=world.level + 1) if held else world

    # --- what must hold --------------------------------------------------------------------------

    def moved(self, epoch: Epoch) -> bool:
        """Whether the epoch has the layout that is wanted; the old and the new are all there is."""
        wanted, start = self.scenario, self.scenario.start
        layout = (owners(epoch), epoch.instances)
        old = (owners(start), start.instances)
        new = ({**owners(start), **wanted.moves}, wanted.instances)
        require(layout in (old, new), f"some has moved, some has not: {layout}")
        return layout == new

    def _check_layout(self, world: World, after: World) -> None:
        """An epoch was decided. Invariant 1: whoever owns a vnode in it can serve it."""
        moved, op = self.moved(self.newest(after)), self.handover(world)
        changed = moved != self.moved(self.newest(world))
        if changed and op.ended:
            raise Broken(f"vnodes move after the operation is {op.phase.value}")
        if changed:
            require(moved, "vnodes move back")

    def _checked(self, world: World, before: Handover, after: World) -> World:
        """The controller has made a step that is now persisted."""
        op = self.handover(after)
        if op.phase is before.phase:
            return after
        newest = self.newest(after)
        if op.phase is Phase.ARMED:
            follow = self._told_copies(world)
            require(follow, "invariant 1: armed before the targets follow")
            require(op.proposal is not None and self.moved(op.proposal), "armed for nothing")
        if op.phase is Phase.MARKED:
            require(self.moved(newest), "invariant 1: MARKED, but nothing has moved")
        if op.phase is Phase.ABORTED:
            require(not self.moved(newest), "ABORTED, but vnodes have moved")
        if op.phase is Phase.COMPLETE:
            require(self.moved(newest), "COMPLETE, but nothing has moved")
            for worker, told in zip(self.workers, world.told, strict=True):
                reached = told == NEW or worker not in newest.listeners()
                require(reached, f"invariant 7: COMPLETE before {worker} has said so")
            told = world.polled == NEW or not world.driver
            require(told, "invariant 7: COMPLETE before the driver has said so")
        return after

    def _told_copies(self, world: World) -> bool:
        on = {self.scenario.instances[t] for t in self.scenario.moves.values()}
        told = dict(zip(self.workers, world.told, strict=True))
        follow = world.level == LEVELS - 1 or not on
        return follow and all(told[worker] != NOT_TOLD for worker in on)

    # --- the walk --------------------------------------------------------------------------------

    def run(self) -> None:
        """Visit everything; then demand that each world comes to its end once nothing fails."""
        first = self.begin()
        seen = {first}
        pending = [first]
        while pending:
            world = pending.pop()
            for after in self.next_worlds(world):
                if after not in seen:
                    seen.add(after)
                    pending.append(after)
        self.states = len(seen)
        for stuck in (False, True):
            self._all_end(seen, stuck=stuck)

    def _all_end(self, worlds: set[World], *, stuck: bool) -> None:
        """Invariant 6: from each world the operation ends, without a person. `stuck`: the copies
        make no progress any more, and time passes."""
        fine: set[World] = set()
        for world in worlds:
            way: dict[World, None] = {}
            while world not in fine and not self.handover(world).ended:
                if world in way:
                    raise Broken(f"invariant 6: {self.handover(world)} does not end: {world}")
                way[world] = None
                world = self.fair_round(world, stuck=stuck)
            fine.update(way)

    def fair_round(self, world: World, *, stuck: bool) -> World:
        """Everybody does the next thing, and nothing fails."""
        world = world._replace(seen=True, told=(NEW,) * len(self.workers), late=world.late or stuck)
        if world.driver:
            world = world._replace(polled=NEW)
        world = self.observe(world)
        if world.driver:
            world = world._replace(held=self._offered(world))
        world = self.decide(world, self._offered(world))
        return world if stuck else self.copies_progress(world)


def owners(epoch: Epoch) -> dict[Vnode, InstanceId]:
    return {Vnode(v): route.owner for v, route in enumerate(epoch.routes)}


def _put(items: tuple[int, ...], place: int, item: int) -> tuple[int, ...]:
    return (*items[:place], item, *items[place + 1 :])


def copy_report(target: InstanceId, level: int, *, first: bool) -> VnodeReport:
    """One vnode's copy at a level; the first vnode is a level ahead where that differs."""
    if level == 0 or (level == 1 and not first):
        return VnodeReport(use=VnodeUse.COPYING)
    if level <= 2:
        return VnodeReport(use=VnodeUse.READY)
    lag = 0 if first or level == LEVELS - 1 else limits.LAG_BATCHES_MAX + 1
    return VnodeReport(use=VnodeUse.FOLLOWING, instance=target, lag_batches=lag)


def epoch(
    number: int, instances: Mapping[InstanceId, WorkerId], *routes: tuple[InstanceId, str]
) -> Epoch:
    """An epoch. A route is an owner and its members, e.g. ``(I0, "w2 w3?")``: w3 is joining."""
    listed = []
    for owner, members in routes:
        named = tuple(
            Member(
                worker=WorkerId(word.rstrip("?")),
                role=Role.JOINING if word.endswith("?") else Role.FULL,
            )
            for word in members.split()
        )
        listed.append(Route(owner=owner, members=named))
    used = {*instances.values(), *(m.worker for r in listed for m in r.members)}
    return Epoch(
        number=number,
        workers={w: ADDRESSES[w] for w in sorted(used)},
        instances=instances,
        routes=tuple(listed),
    )


# --- the walks -----------------------------------------------------------------------------------

SPARE = epoch(1, {I0: W1, I1: W1}, (I0, "w2"), (I0, ""), (I1, ""))

SCENARIOS = (
    Scenario(
        name="a new instance on a new worker",
        start=epoch(1, {I0: W1}, (I0, ""), (I0, ""), (I0, "")),
        moves={V1: I1, V2: I1},
        instances={I0: W1, I1: W2},
    ),
    Scenario(
        name="a new instance on the same worker",
        start=epoch(1, {I0: W1}, (I0, ""), (I0, "")),
        moves={V1: I1},
        instances={I0: W1, I1: W1},
    ),
    Scenario(
        name="an instance retires to a worker that has one of its vnodes already",
        start=epoch(1, {I0: W1, I1: W2}, (I0, ""), (I1, "w1"), (I1, "")),
        moves={V1: I0, V2: I0},
        instances={I0: W1},
    ),
    Scenario(
        name="an instance without vnodes retires",
        start=epoch(1, {I0: W1, I1: W2}, (I0, ""), (I0, "")),
        moves={},
        instances={I0: W1},
    ),
    Scenario(
        name="within a worker, while the driver still holds a cut of the chain",
        start=SPARE,
        moves={V0: I1, V1: I1},
        instances={I0: W1, I1: W1},
        stray=with_chains_cut(SPARE, {V0: frozenset({W2})}),
    ),
)
NEW_WORKER, NEW_INSTANCE = SCENARIOS[:2]


@pytest.fixture(scope="module")
def walks() -> tuple[Walk, ...]:
    """Every scenario, walked to its end: a broken invariant fails all tests that ask for it."""
    walked = tuple(Walk(scenario) for scenario in SCENARIOS)
    for walk in walked:
        walk.run()
    return walked


def test_nothing_breaks_an_invariant(walks: tuple[Walk, ...]) -> None:
    """Invariants 1, 6 and 7, and that vnodes have moved all or none, in every world."""
    assert sum(walk.states for walk in walks) > 20_000


def test_every_row_of_the_table_is_taken(walks: tuple[Walk, ...]) -> None:
    taken = {way for walk in walks for way in walk.taken}
    table = {
        (before, event, after)
        for (before, event), afters in hm.TRANSITIONS.items()
        for after in afters
    }
    assert taken == table


# Seeded bugs: each is a step that does what a wrong machine would do.


def arms_early(state: Handover, event: hm.Event, now: float) -> Handover:
    """Takes a whole copy for a target that follows."""
    if isinstance(event, Observed):
        copies = {
            worker: {
                vnode: replace(report, use=VnodeUse.FOLLOWING, instance=state.moves[vnode])
                for vnode, report in reports.items()
                if report.use is not VnodeUse.COPYING
            }
            for worker, reports in event.facts.copies.items()
        }
        event = Observed(
            facts=replace(event.facts, copies=copies, ready=frozenset(state.moves.values()))
        )
    return hm.step(state, event, now)


def completes_at_the_first_report(state: Handover, event: hm.Event, now: float) -> Handover:
    """Says COMPLETE as soon as one worker reports the epoch."""
    if isinstance(event, Observed):
        reached = dict.fromkeys(state.workers, event.facts.epoch.number)
        reached |= dict.fromkeys(event.facts.epoch.listeners(), event.facts.epoch.number)
        event = Observed(facts=replace(event.facts, reached=reached))
    return hm.step(state, event, now)


def forgets_the_driver(state: Handover, event: hm.Event, now: float) -> Handover:
    """Says COMPLETE though the live session has not reported."""
    if isinstance(event, Observed):
        event = Observed(facts=replace(event.facts, driver_epoch=None))
    return hm.step(state, event, now)


def aborts_at_once(state: Handover, event: hm.Event, now: float) -> Handover:
    """Believes that a proposal which it withdraws cannot be taken any more."""
    after = hm.step(state, event, now)
    return replace(after, phase=Phase.ABORTED) if after.phase is Phase.ABORTING else after


def never_gives_up(state: Handover, event: hm.Event, now: float) -> Handover:
    """Has no deadline."""
    return hm.step(state, event, min(now, SOON))


def moves_one_by_one(state: Handover, event: hm.Event, now: float) -> Handover:
    """Proposes a part of the moves first."""
    after = hm.step(state, event, now)
    if after.phase is not Phase.ARMED or after.proposal is None:
        return after
    first = min(after.moves)
    routes = list(after.proposal.routes)
    for vnode in after.moves.keys() - {first}:
        routes[vnode] = replace(routes[vnode], owner=I0, members=())
    return replace(after, proposal=replace(after.proposal, routes=tuple(routes)))


@pytest.mark.parametrize(
    ("bug", "scenario", "invariant"),
    [
        (arms_early, NEW_WORKER, "invariant 1"),
        (completes_at_the_first_report, NEW_WORKER, "invariant 7"),
        (forgets_the_driver, NEW_INSTANCE, "invariant 7"),
        (aborts_at_once, NEW_INSTANCE, "(?i)aborted"),
        (never_gives_up, NEW_WORKER, "invariant 6"),
        (moves_one_by_one, NEW_WORKER, "some has moved, some has not"),
    ],
)
def test_a_seeded_bug_is_caught(bug: Step, scenario: Scenario, invariant: str) -> None:
    with pytest.raises(Broken, match=invariant):
        Walk(scenario, bug).run()


# --- the table -----------------------------------------------------------------------------------

START = NEW_WORKER.start
JOINING = epoch(2, {I0: W1}, (I0, ""), (I0, "w2?"), (I0, "w2?"))
FULL = epoch(3, {I0: W1}, (I0, ""), (I0, "w2"), (I0, "w2"))
MOVED = epoch(4, {I0: W1, I1: W2}, (I0, ""), (I1, "w1"), (I1, "w1"))
FOLLOWING = VnodeReport(use=VnodeUse.FOLLOWING, instance=I1)


def facts(now: Epoch, at_w2: VnodeReport = FOLLOWING, **changes: object) -> Observed:
    """What the controller sees when all have reached an epoch and all copies are alike."""
    found = hm.Facts(
        epoch=now,
        epoch_from=BatchTime(0, 7),
        reached=dict.fromkeys(now.workers, now.number),
        driver_epoch=now.number,
        copies={W2: {V1: at_w2, V2: at_w2}},
        ready=frozenset({I1}),
    )
    return Observed(facts=replace(found, **changes))  # type: ignore[arg-type]


def after(*events: hm.Event, now: float = SOON) -> Handover:
    """The state after events, each of them at `now`."""
    state = NEW_WORKER.planned()
    for event in events:
        state = hm.step(state, event, now)
    return state


def test_a_move_between_workers_takes_the_epochs_join_full_and_move() -> None:
    """Rhino, section 3.5.2: a new worker needs a bulk copy before the handover."""
    copying = VnodeReport(use=VnodeUse.COPYING)
    join = after(facts(START), facts(START, copying))
    assert join.phase is Phase.WARMING
    assert join.proposal is not None
    assert join.proposal.role_of(W2, V0) is None
    assert [join.proposal.role_of(W2, v) for v in (V1, V2)] == [Role.JOINING, Role.JOINING]
    assert join.proposal.workers[W2] == ADDRESSES[W2]
    assert hm.step(join, facts(JOINING, copying), SOON).proposal is None
    full = hm.step(join, facts(JOINING, VnodeReport(use=VnodeUse.READY)), SOON)
    assert full.proposal is not None
    assert [full.proposal.role_of(W2, v) for v in (V1, V2)] == [Role.FULL, Role.FULL]
    armed = hm.step(full, facts(FULL), SOON)
    assert (armed.phase, armed.armed, armed.proposal) == (Phase.ARMED, 4, MOVED)


def test_one_copy_that_is_not_whole_keeps_all_from_becoming_full() -> None:
    lacking = {W2: {V1: FOLLOWING, V2: VnodeReport(use=VnodeUse.COPYING)}}
    state = after(facts(START), facts(JOINING, copies=lacking))
    assert (state.phase, state.proposal) == (Phase.WARMING, None)


@pytest.mark.parametrize(
    "changes",
    [
        {"copies": {W2: {V1: FOLLOWING, V2: VnodeReport(use=VnodeUse.READY)}}},
        {"copies": {W2: {V1: FOLLOWING}}},
        {"copies": {}},
        {"copies": {W2: {V1: FOLLOWING, V2: replace(FOLLOWING, instance=I2)}}},
        {
            "copies": {
                W2: {
                    V1: FOLLOWING,
                    V2: replace(FOLLOWING, lag_batches=limits.LAG_BATCHES_MAX + 1),
                }
            }
        },
        {"ready": frozenset({I0})},
    ],
    ids=["closed", "no report", "worker silent", "another follows", "lag", "instance not ready"],
)
def test_state_leaves_only_when_every_target_follows(changes: dict[str, object]) -> None:
    """The condition in the module's docstring, one clause after the other."""
    state = after(facts(START), facts(FULL, **changes))
    assert (state.phase, state.proposal) == (Phase.WARMING, None)
    late = hm.step(state, facts(FULL, **changes), LATE)
    assert late.phase is Phase.ABORTED
    assert hm.step(state, facts(FULL), SOON).phase is Phase.ARMED


def test_a_lag_within_the_bound_is_caught_up_by_the_marker() -> None:
    lag = replace(FOLLOWING, lag_batches=limits.LAG_BATCHES_MAX)
    assert after(facts(START), facts(FULL, lag)).phase is Phase.ARMED


def test_the_marker_is_the_record_that_began_the_epoch() -> None:
    state = after(facts(START), facts(FULL), facts(MOVED, epoch_from=BatchTime(1, 40)))
    assert (state.phase, state.marker, state.proposal) == (Phase.MARKED, BatchTime(1, 40), None)


@pytest.mark.parametrize(
    "changes",
    [
        {"reached": {W1: 4, W2: 3}},
        {"reached": {W1: 4}},
        {"driver_epoch": 3},
        {"driver_epoch": 0},
    ],
    ids=["one worker behind", "one silent", "driver behind", "driver not heard of"],
)
def test_complete_waits_for_all(changes: dict[str, object]) -> None:
    """Invariant 7; the origin's worker, still a member, and the live driver are among them."""
    marked = after(facts(START), facts(FULL), facts(MOVED, **changes))
    assert hm.step(marked, facts(MOVED, **changes), LATE).phase is Phase.MARKED
    assert hm.step(marked, facts(MOVED), SOON).phase is Phase.COMPLETE
    assert hm.step(marked, facts(MOVED, driver_epoch=None), SOON).phase is Phase.COMPLETE


def test_an_armed_proposal_stays_as_it_was_persisted() -> None:
    """Nothing is made anew for an epoch number that may be on its way already."""
    armed = after(facts(START), facts(FULL))
    assert hm.step(armed, facts(FULL, VnodeReport(use=VnodeUse.READY)), SOON) == armed


def test_an_abort_of_an_armed_handover_offers_an_epoch_that_moves_nothing() -> None:
    asked = after(facts(START), facts(FULL), AbortAsked(reason="enough"))
    assert (asked.phase, asked.proposal) == (Phase.ABORTING, None)
    offered = hm.step(asked, facts(FULL), SOON)
    assert offered.proposal == replace(FULL, number=4)
    assert hm.step(offered, facts(replace(FULL, number=4)), SOON).phase is Phase.ABORTED
    assert hm.step(offered, facts(MOVED), SOON).phase is Phase.MARKED


def test_the_first_reason_of_an_abort_is_kept() -> None:
    asked = after(facts(START), facts(FULL), AbortAsked(reason="one"), AbortAsked(reason="two"))
    assert asked.reason == "one"
    late = after(facts(START), facts(START), facts(START, VnodeReport(use=VnodeUse.COPYING)))
    assert hm.step(late, facts(START), LATE).reason != ""


def test_targets_follow_until_the_marker_is_decided_or_cannot_be() -> None:
    wished = {
        phase: bool(hm.warm_wishes(replace(NEW_WORKER.planned(), phase=phase))) for phase in Phase
    }
    assert {phase for phase, is_wished in wished.items() if is_wished} == {
        *(Phase.WARMING, Phase.ARMED, Phase.ABORTING, Phase.MARKED)
    }


@pytest.mark.parametrize("phase", sorted(hm.ENDED, key=lambda phase: phase.value))
def test_an_ended_handover_observes_nothing(phase: Phase) -> None:
    with pytest.raises(LookupError):
        hm.step(replace(NEW_WORKER.planned(), phase=phase), facts(START), SOON)


def test_every_phase_that_is_entered_has_its_time() -> None:
    state = NEW_WORKER.planned()
    events = (facts(START), facts(FULL), facts(MOVED), facts(MOVED))
    for now, event in enumerate(events):
        state = hm.step(state, event, float(now))
    assert state.times == {"warming": 0.0, "armed": 1.0, "marked": 2.0, "complete": 3.0}


def test_a_state_is_read_back_as_it_was_written() -> None:
    """A controller that crashes anywhere goes on from the same state."""
    state = NEW_WORKER.planned()
    for event in (facts(START), facts(JOINING), facts(FULL), facts(MOVED), facts(MOVED)):
        state = hm.step(state, event, SOON)
        assert codec.loads(Handover, codec.dumps(state)) == state
