"""Every fault at every place: a world is cloned between two ticks, hurt, and run to its end."""

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from random import Random

from rhinoctl.ids import WorkerId
from rhinoctl.protocol import batches
from rhinoctl.protocol import worker as machine
from tests.fakes.cluster.drivers import Answer
from tests.fakes.cluster.invariants import Broken
from tests.fakes.cluster.workers import ModelWorker, Request
from tests.fakes.cluster.world import Resume, Rules, Scenario, World

DOWN_S = 0.15
"""A worker's restart: longer than a few retries."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A name for people, and what it does to a world; the world is then run to its end."""

    name: str
    strike: Callable[[World], None]


# --- the driver ----------------------------------------------------------------------------------


def _paused_until(resumable: Callable[[World], bool]) -> Callable[[World], None]:
    """Stop the driver, and let it go on (a zombie) once its successor is so far."""

    def strike(world: World) -> None:
        index = world.pause_driver()
        while not world.ended and not resumable(world):
            world.tick()
        world.put(0.0, Resume(index))

    return strike


def _unfenced(world: World) -> bool:
    return len(world.drivers) > 1 and world.driver.state is not None


def _phase(*phases: batches.Phase) -> Callable[[World], bool]:
    def reached(world: World) -> bool:
        state = world.driver.state
        return len(world.drivers) > 1 and state is not None and state.phase in phases

    return reached


def _never(world: World) -> bool:
    return False


DRIVER_FAULTS = (
    Fault("dies, what it sent arrives", lambda w: w.kill_driver(in_flight_lost=False)),
    Fault("dies, what it sent is lost", lambda w: w.kill_driver(in_flight_lost=True)),
    Fault("is stopped, goes on before the next has fenced", _paused_until(_unfenced)),
    Fault(
        "is stopped, goes on while the next opens",
        _paused_until(_phase(batches.Phase.OPENING, batches.Phase.APPLYING)),
    ),
    Fault(
        "is stopped, goes on while the next seals",
        _paused_until(_phase(batches.Phase.SEALING, batches.Phase.DONE)),
    ),
    Fault("is stopped, goes on at the end", _paused_until(_never)),
)

# --- workers -------------------------------------------------------------------------------------


def _crash(name: WorkerId) -> Fault:
    return Fault(f"{name} crashes", lambda w: w.crash_worker(name))


def _down(name: WorkerId) -> Fault:
    return Fault(f"{name} is down for a while", lambda w: w.crash_worker(name, down_s=DOWN_S))


def _undone(name: WorkerId) -> Fault:
    return Fault(
        f"{name} loses power, removals come undone",
        lambda w: w.crash_worker(name, drops_survive=False),
    )


def _power_loss(world: World) -> None:
    world.kill_driver(in_flight_lost=True)
    for name in world.workers:
        world.crash_worker(name, drops_survive=False)


POWER_LOSS = Fault("power loss of all", _power_loss)
LOSS = Fault("the next message is lost", lambda w: w.lose_next())


def faults_here(world: World) -> Iterator[Fault]:
    """The faults that differ from those a tick ago: of who has acted, and of what comes next."""
    acted, driver = world.acted, world.driver
    if driver.alive and acted == ("driver", driver.index):
        yield from DRIVER_FAULTS
    if acted is not None and acted[0] == "worker":
        worker = world.workers[acted[1]]
        yield _crash(worker.name)
        yield _down(worker.name)
        if worker.removed:
            yield _undone(worker.name)
        if driver.alive and driver.state is not None and driver.state.phase in DECIDING:
            yield POWER_LOSS
    if world.busy is None and world.queue and isinstance(world.queue[0][2], Request | Answer):
        yield LOSS


def crashes_only(world: World) -> Iterator[Fault]:
    """Of `faults_here`, the deaths: few enough to try every pair."""
    if world.driver.alive and world.acted == ("driver", world.driver.index):
        yield DRIVER_FAULTS[0]
    if world.acted is not None and world.acted[0] == "worker":
        yield _crash(world.acted[1])


def losses(world: World) -> Iterator[Fault]:
    """A worker is lost at this place: dead for good, dead for a while, or cut off and back with all
    that it had. Only once, and only where each vnode has another full holder."""
    if not world.initialised or world.acted is None:
        return
    for name in sorted(world.workers):
        if name in world.observed().workers and not world.given_up:
            yield Fault(f"{name} is lost", _lost(name, crashed=True, back_s=math.inf))
            yield Fault(f"{name} is lost and comes back", _lost(name, crashed=True, back_s=BACK_S))
            yield Fault(f"{name} is cut off", _lost(name, crashed=False, back_s=BACK_S))


def losses_and_deaths(world: World) -> Iterator[Fault]:
    """First a loss, then whoever dies, or stops and goes on, or a message is lost."""
    if not world.given_up and not any(w.up_at > world.now for w in world.workers.values()):
        yield from (fault for fault in losses(world) if "is lost" in fault.name)
    elif world.driver.alive and world.acted == ("driver", world.driver.index):
        yield DRIVER_FAULTS[0]
        yield DRIVER_FAULTS[3]
    elif world.acted is not None and world.acted[0] == "worker":
        yield _crash(world.acted[1])


def _lost(name: WorkerId, *, crashed: bool, back_s: float) -> Callable[[World], None]:
    return lambda world: world.lose_worker(name, crashed=crashed, back_s=back_s)


BACK_S = 0.6
"""A lost worker that comes back does so after the cut."""

DECIDING = frozenset({batches.Phase.SEALING, batches.Phase.APPLYING})


@dataclass
class Tally:
    """What was tried."""

    runs: int = 0
    ticks: int = 0

    def add(self, more: "Tally") -> None:
        """Count these, too."""
        self.runs += more.runs
        self.ticks += more.ticks


def explore(
    world: World,
    faults: Callable[[World], Iterable[Fault]] = faults_here,
    *,
    depth: int = 1,
) -> Tally:
    """Try each fault at each place of the world's run, and with `depth` 2 each pair of faults.

    Raises `Broken`, with place and fault in its notes.
    """
    tally = Tally()
    while not world.ended:
        world.tick()
        for fault in faults(world) if world.drivers else ():
            place = f"{world.scenario.name}, tick {world.ticks} of {world.acted}: {fault.name}"
            with _noted(place):
                tally.add(_struck(world.clone(), fault, faults, depth))
    world.oracle.verify(world)
    return tally


def _struck(
    world: World, fault: Fault, faults: Callable[[World], Iterable[Fault]], depth: int
) -> Tally:
    start = world.ticks
    fault.strike(world)
    if depth > 1:
        return explore(world, faults, depth=depth - 1)
    world.run()
    return Tally(runs=1, ticks=world.ticks - start)


@contextmanager
def _noted(place: str) -> Iterator[None]:
    try:
        yield
    except (Broken, LookupError) as broken:
        broken.add_note(place)
        raise


# --- old messages --------------------------------------------------------------------------------


def repeat_everything(world: World, *, killed_in: batches.Phase | None = None) -> Tally:
    """Deliver every request a second time, at every later place where its worker has changed.

    The driver is killed once, when it comes to the phase `killed_in`. A delivery that changes
    nothing and asks for nothing but an answer is counted and not followed further.
    """
    tally, killed = Tally(), killed_in is None
    seen: dict[WorkerId, list[Request]] = {name: [] for name in world.workers}
    while not world.ended:
        world.tick()
        state = world.driver.state if world.drivers else None
        if not killed and state is not None and state.phase is killed_in:
            killed = True
            world.kill_driver(in_flight_lost=False)
        if world.acted is None or world.acted[0] != "worker" or world.busy is not None:
            continue
        worker = world.workers[world.acted[1]]
        assert worker.request is not None
        seen[worker.name].append(worker.request)
        for old in seen[worker.name]:
            if _changes_nothing(world, worker, old):
                tally.add(Tally(runs=1))
                continue
            fault = Fault(f"again {old.message}", _again(old))
            with _noted(f"{world.scenario.name}, tick {world.ticks}: {fault.name}"):
                tally.add(_struck(world.clone(), fault, faults_here, 1))
    world.oracle.verify(world)
    return tally


def _changes_nothing(world: World, worker: ModelWorker, old: Request) -> bool:
    state, effects = world.rules.worker_step(worker.state, old.message)
    answers = (machine.Reply, machine.ReplyWhenApplied)
    return state == worker.state and all(isinstance(effect, answers) for effect in effects)


def _again(old: Request) -> Callable[[World], None]:
    def strike(world: World) -> None:
        nobody = Request(
            to=old.to, message=old.message, bodies=old.bodies, asker=None, number=old.number
        )
        world.happen(nobody)

    return strike


# --- chance --------------------------------------------------------------------------------------


def storm(scenario: Scenario, seed: int, rules: Rules | None = None) -> World:
    """One run with messages that overtake each other, and several faults at random places.

    First a safety phase with faults, then nothing fails any more and the job must get to its end.
    The same seed is the same run.
    """
    chance = Random(seed)
    world = World(scenario, rules, chance)
    left = chance.randrange(2, 9)
    stopped: list[int] = []
    try:
        while not world.ended or stopped:
            if world.ended or (stopped and chance.random() < 0.01):
                world.put(0.0, Resume(stopped.pop()))
            if left and world.drivers and chance.random() < 0.02:
                left -= 1
                _strike_by_chance(world, chance, stopped)
            elif chance.random() < 0.05:
                _repeat_by_chance(world, chance)
            if world.busy is not None or world.queue:
                world.tick()
        world.oracle.verify(world)
    except (Broken, LookupError) as broken:
        broken.add_note(f"{scenario.name}: seed {seed}")
        raise
    return world


def _strike_by_chance(world: World, chance: Random, stopped: list[int]) -> None:
    name = chance.choice(sorted(world.workers))
    kind = chance.randrange(7)
    if kind == 0 and world.driver.alive and not world.driver.paused:
        world.kill_driver(in_flight_lost=chance.random() < 0.5)
    elif kind == 1 and world.driver.alive and not world.driver.paused:
        stopped.append(world.pause_driver())
    elif kind == 2:
        world.crash_worker(name, down_s=chance.choice((0.02, 0.5, 5.0, 40.0)))
    elif kind == 3 and world.driver.alive and not world.driver.paused:
        _power_loss(world)
    elif kind == 4:
        world.crash_worker(name, drops_survive=False)
    elif isinstance(world.queue[0][2] if world.queue else None, Request | Answer):
        world.lose_next()


def _repeat_by_chance(world: World, chance: Random) -> None:
    requests = [entry[2] for entry in world.queue if isinstance(entry[2], Request)]
    if requests:
        old = chance.choice(requests)
        again = Request(
            to=old.to, message=old.message, bodies=old.bodies, asker=None, number=old.number
        )
        world.put(chance.choice((0.001, 0.02, 0.2, 4.0)), again)
