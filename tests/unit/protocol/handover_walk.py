"""A small model of a cluster in which a handover is walked through every state that can be reached.

Epochs are decided one after another; workers learn of them late and report late; copies progress
and fall back; the driver dies, and takes a proposal or does not, also one that was withdrawn;
somebody asks for an abort, for a pause or its end, and the deadline passes, at any moment. The
controller holds nothing but the bytes of the last persisted state, decoded anew for each step, and
may forget all that it was told at any moment. `Broken` is raised where an invariant does not hold.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from rhinoctl import limits
from rhinoctl.ids import BatchTime, InstanceId, JobUid, OpId, Vnode, WorkerId
from rhinoctl.protocol import codec
from rhinoctl.protocol import handover as hm
from rhinoctl.protocol.epochs import Epoch, Member, Role, Route, successor_fault
from rhinoctl.protocol.handover import (
    AbortAsked,
    Handover,
    Kind,
    Observed,
    PauseAsked,
    Phase,
    ResumeAsked,
)
from rhinoctl.protocol.jobs import VnodeUse
from rhinoctl.protocol.messages import VnodeReport

DEADLINE = 600.0
SOON, LATE = 1.0, DEADLINE + limits.PAUSE_MAX_S
"""LATE is beyond every deadline and bound."""

Step = Callable[[Handover, hm.Event, float], Handover]


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """A handover to be walked. `stray` is an epoch that the driver was offered by what came before
    this operation, and may still take; with `pauses` somebody may pause it."""

    name: str
    start: Epoch
    moves: Mapping[Vnode, InstanceId]
    instances: Mapping[InstanceId, WorkerId]
    stray: Epoch | None = None
    pauses: bool = False

    def planned(self) -> Handover:
        return Handover(
            op=OpId("op-1"),
            kind=Kind.HANDOVER,
            job=JobUid("j-1"),
            moves=self.moves,
            instances=self.instances,
            workers={w: address(w) for w in set(self.instances.values())},
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
        yield self.ask(world, AbortAsked(reason="asked for"))
        if self.handover(world).phase is Phase.PAUSED:
            yield self.ask(world, ResumeAsked())
        elif self._may_be_paused(world):
            yield self.ask(world, PauseAsked())
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

    def _may_be_paused(self, world: World) -> bool:
        """A pause that began when it is LATE would end later than there is time here."""
        return self.scenario.pauses and not world.late and hm.may_pause(self.handover(world))

    def ask(self, world: World, event: hm.Event) -> World:
        after = self._stepped(world, event)
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
        """Everybody does the next thing, and nothing fails; a pause is long enough to end."""
        stuck |= self.handover(world).phase is Phase.PAUSED
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


def address(worker: WorkerId) -> str:
    return f"{worker}.sock"


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
        workers={w: address(w) for w in sorted(used)},
        instances=instances,
        routes=tuple(listed),
    )
