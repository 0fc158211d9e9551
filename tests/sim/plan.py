"""From a seed, what the cluster is and what will happen to it.

Nothing is drawn but here, so a fault may be left out and the rest stays. What no design can bear is
not drawn: bits rot on one worker, of a cluster with copies, and then no other worker is lost.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random

from tests.sim import faults as f

VNODES = 8
FAULTS = (8, 20)

DISKS_EVERY = 7
"""In one of so many seeds workers have two disks."""

TO_AND_FRO_EVERY = 6
"""In one of so many seeds vnodes are handed to and fro at the beginning."""

STEPS = ("disk.", "disk.sync", "disk.append", "disk.rename", "send ", "reply ")
CONTROLLER_STEPS = ("store.write", "send Heartbeat", "send ")
PHASES = ("phase=planned", "phase=warming", "phase=warming", "phase=armed", "phase=armed")
DRIVER_STEPS = ("plan", "send Put", "send Seal", "send Apply", "staged", "then", "commit")
ANSWERED = ("Fence", "Open", "Put", "Seal", "Apply", "Heartbeat", "FetchOutput", "OfferCheckpoint")


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """The cluster and its job. Workers have so many `disks`. `outsider` stays dead in the liveness
    phase if there are copies; `rotten` is the worker whose disk may rot; `lost_last` is lost after
    the judgement. With a `neighbour` there is a second job on the same workers."""

    workers: int
    instances: int
    replication: int
    windows: bool
    trigger_s: float
    delays_s: tuple[float, float]
    disks: int = 1
    outsider: str | None = None
    rotten: str | None = None
    lost_last: str | None = None
    neighbour: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """The workers."""
        return tuple(f"w{n + 1}" for n in range(self.workers))


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A run, but for the order of turns, which the seed draws, too."""

    seed: int
    setup: Setup
    events: tuple[f.Planned, ...]
    numbers: tuple[int, ...]

    def without(self, left_out: frozenset[int]) -> "Plan":
        """The same plan with some faults (by number) left out, and the others in their time."""
        events, numbers, waits = [], [], 0.0
        for number, event in zip(self.numbers, self.events, strict=True):
            waits += event.wait_s
            if number not in left_out:
                events.append(replace(event, wait_s=waits))
                numbers.append(number)
                waits = 0.0
        return replace(self, events=tuple(events), numbers=tuple(numbers))

    def __str__(self) -> str:
        listed = zip(self.numbers, self.events, strict=True)
        return "\n".join([f"{self.setup}", *(f"{n:4d}  {event}" for n, event in listed)])


def plan_of(seed: int) -> Plan:
    """The plan of a seed."""
    chance = Random(f"plan {seed}")
    setup = _setup(chance)
    if seed % DISKS_EVERY == 3:
        setup = replace(setup, disks=2)
    draw = _Draw(chance, setup)
    events = tuple(draw.planned() for _ in range(chance.randint(*FAULTS)))
    if seed % TO_AND_FRO_EVERY == 3:
        events = draw.to_and_fro() + events
    return Plan(seed=seed, setup=setup, events=events, numbers=tuple(range(len(events))))


def _setup(chance: Random) -> Setup:
    workers = chance.choice([2, 3, 3, 3, 4])
    replication = min(chance.choice([0, 0, 1, 1, 1, 2]), workers - 1)
    names = [f"w{n + 1}" for n in range(workers)]
    rotten = chance.choice(names) if replication and chance.random() < 0.3 else None
    able = replication > 0 and workers > 2
    outsider = chance.choice(names) if able and chance.random() < 0.3 else None
    last = chance.choice(names) if able and outsider is None and chance.random() < 0.3 else None
    return Setup(
        workers=workers,
        instances=chance.randint(1, 3),
        replication=replication,
        windows=chance.random() < 0.2,
        trigger_s=chance.choice([0.03, 0.1, 0.1, 0.3]),
        delays_s=chance.choice([(0.0005, 0.0005), (0.0005, 0.01), (0.0005, 0.03)]),
        outsider=rotten if rotten and outsider else outsider,
        rotten=rotten,
        lost_last=rotten if rotten and last else last,
        neighbour=chance.random() < 0.1,
    )


def _at_phase(phase: str) -> f.Ambush:
    """When the next operation has come to a phase."""
    return f.Ambush(process="controller", step="store.write op/", after=True, skip=0, holding=phase)


class _Draw:
    """Draws faults for a cluster."""

    def __init__(self, chance: Random, setup: Setup) -> None:
        self._chance = chance
        self._setup = setup
        self._deaths = self._weighed(
            (4, self._crash_instance),
            (3, self._crash_agent),
            (2, self._restart_agent),
            (3, self._crash_worker),
            (3, lambda: f.CrashController(back_s=self._away())),
            (3, lambda: f.CrashDriver(back_s=self._away())),
            (2, lambda: f.PowerLoss(workers=self._struck(), back_s=self._away())),
            (3, self._torn_power),
            (3, self._freeze),
        )
        self._others = self._weighed(
            (2, lambda: f.Drop(chance=chance.choice([0.02, 0.1, 0.5]), for_s=self._a_while())),
            (1, self._duplicate),
            (2, self._delay),
            (2, self._reorder),
            (3, self._lose_answer),
            (1, lambda: f.LoseCall()),
            (2, self._cut),
            (2, self._full_disk),
            (1, self._slow_disk),
            (2, lambda: f.JumpClock(host=self._host(), by_s=chance.choice([-3600, -5, 5, 86400]))),
            (2, lambda: f.TakeOver(zombie_s=chance.uniform(0.1, 3.0))),
            (1, lambda: f.LoseStore(back_s=self._away())),
            (2, self._roll_back),
            (1, lambda: f.LoseOffsets(back_s=self._away())),
            (1, lambda: f.LoseCommit(back_s=self._away())),
            (1, lambda: f.NewStream(back_s=self._away())),
            (1, lambda: f.Idle(for_s=self._a_while())),
        )
        if setup.rotten is not None:
            self._others += [self._bit_rot] * 8
        if setup.disks > 1:
            self._others += [self._unplug_disk] * 4
        self._asked = self._weighed(
            (5, self._handover),
            (3, lambda: f.Rescale(instances=chance.randint(1, 4))),
            (2, lambda: f.Switchover(worker=chance.choice(setup.names))),
            (1, lambda: f.Drain(worker=chance.choice(setup.names))),
            (1, f.Checkpoint),
            (2, f.Abort),
            (2, lambda: f.Pause(for_s=self._a_while())),
            (4, lambda: f.Revert(nth=chance.choice([0, 0, 0, 0, 1]))),
            (2, self._set_replication),
            (1, lambda: f.Failover(worker=self._victim())),
        )
        if setup.disks > 1:
            self._asked += [lambda: f.RetireDisk(worker=chance.choice(setup.names))] * 3

    @staticmethod
    def _weighed(
        *choices: tuple[int, Callable[[], f.Fault]],
    ) -> list[Callable[[], f.Fault]]:
        return [draw for weight, draw in choices for _ in range(weight)]

    def planned(self) -> f.Planned:
        """One fault and its time."""
        chance = self._chance
        wait_s = chance.choice([0.02, 0.1, 0.3, 0.8, 1.5])
        group = chance.choice([self._deaths, self._deaths, self._others, self._asked, self._asked])
        fault = chance.choice(group)()
        ambush = None
        if isinstance(fault, f.RollBackStore):  # something is lost by it
            skip = chance.choice([0, 0, 1, 3])
            ambush = f.Ambush(process="controller", step="store.write", after=False, skip=skip)
        elif isinstance(fault, f.Revert):
            ambush = _at_phase("phase=complete")
        elif isinstance(fault, f.Abort | f.Pause) and chance.random() < 0.8:
            ambush = _at_phase(chance.choice(PHASES))
        elif group is self._deaths or isinstance(fault, f.LoseStore):
            ambush = self._ambush(fault) if chance.random() < 0.6 else None
        elif isinstance(fault, f.LoseCommit):  # later Spark does not go back
            ambush = f.Ambush(process="driver", step="commit", after=True, skip=0)
        return f.Planned(wait_s=wait_s, fault=fault, ambush=ambush)

    def to_and_fro(self) -> tuple[f.Planned, ...]:
        """A handover, and others that take it back one after the other."""
        chance, complete = self._chance, _at_phase("phase=complete")
        backs = [f.HandBack(after_s=chance.choice([0.05, 0.1, 0.2, 0.5, 1.0])) for _ in range(3)]
        return (
            f.Planned(wait_s=1.5, fault=self._handover()),
            *(
                f.Planned(wait_s=0.02, fault=back, ambush=replace(complete, skip=number))
                for number, back in enumerate(backs)
            ),
            f.Planned(wait_s=8.0, fault=f.Checkpoint()),
        )

    def _ambush(self, fault: f.Fault) -> f.Ambush:
        steps: tuple[str, ...]
        match fault:
            case f.CrashController() | f.LoseStore() | f.Freeze(process="controller"):
                process, steps = "controller", CONTROLLER_STEPS
            case f.CrashDriver() | f.Freeze(process="driver"):
                process, steps = "driver", DRIVER_STEPS
            case f.CrashInstance(worker=worker):
                process, steps = self._instance(worker), STEPS
            case f.PowerLoss(workers=workers) | f.TornPower(workers=workers):
                process, steps = self._on(workers[0]), STEPS
            case (
                f.CrashAgent(worker=worker)
                | f.RestartAgent(worker=worker)
                | f.CrashWorker(worker=worker)
            ):
                process, steps = self._on(worker), STEPS
            case _:
                assert isinstance(fault, f.Freeze)
                process, steps = fault.process, STEPS
        return f.Ambush(
            process=process,
            step=self._chance.choice(steps),
            after=self._chance.random() < 0.6,
            skip=self._chance.choice([0, 0, 1, 2, 5, 12]),
        )

    def _on(self, worker: str) -> str:
        return self._chance.choice([worker, worker, self._instance(worker)])

    def _instance(self, worker: str) -> str:
        """An instance that is likely to be there: the first are one on each worker."""
        number = self._setup.names.index(worker)
        return f"{worker}/i{self._chance.choice([number, number, number, 3])}"

    # --- who and how long ------------------------------------------------------------------------

    def _victim(self) -> str:
        """A worker that may be lost."""
        return self._setup.rotten or self._chance.choice(self._setup.names)

    def _struck(self) -> tuple[str, ...]:
        if self._setup.rotten is None and self._chance.random() < 0.3:
            return self._setup.names
        return (self._victim(),)

    def _host(self) -> str:
        return self._chance.choice([*self._setup.names, "controller", "driver"])

    def _away(self) -> float:
        return self._chance.choice([0.05, 0.3, 1.0, 4.0, 9.0])

    def _a_while(self) -> float:
        return self._chance.choice([0.3, 1.0, 4.0, 9.0])

    # --- faults ----------------------------------------------------------------------------------

    def _roll_back(self) -> f.Fault:
        after_s = self._chance.choice([0.3, 1.0, 1.0, 4.0])
        return f.RollBackStore(after_s=after_s, back_s=self._away())

    def _crash_instance(self) -> f.Fault:
        worker = self._chance.choice(self._setup.names)
        return f.CrashInstance(worker=worker, nth=self._chance.randint(0, 2))

    def _crash_agent(self) -> f.Fault:
        return f.CrashAgent(worker=self._victim(), back_s=self._away())

    def _restart_agent(self) -> f.Fault:
        return f.RestartAgent(worker=self._victim(), back_s=self._away())

    def _crash_worker(self) -> f.Fault:
        return f.CrashWorker(worker=self._victim(), back_s=self._away())

    def _torn_power(self) -> f.Fault:
        draw = self._chance.randrange(1 << 30)
        return f.TornPower(workers=self._struck(), draw=draw, back_s=self._away())

    def _freeze(self) -> f.Fault:
        worker = self._victim()
        process = self._chance.choice([worker, self._instance(worker), "controller", "driver"])
        return f.Freeze(process=process, for_s=self._a_while())

    def _duplicate(self) -> f.Fault:
        chance = self._chance.choice([0.05, 0.3, 1.0])
        within_s = self._chance.choice([0.01, 1.0, 5.0])
        return f.Duplicate(chance=chance, within_s=within_s, for_s=self._a_while())

    def _delay(self) -> f.Fault:
        by_s = self._chance.choice([0.05, 0.3, 2.5] if self._setup.rotten is None else [0.05])
        return f.Delay(worker=self._victim(), by_s=by_s, for_s=self._a_while())

    def _reorder(self) -> f.Fault:
        chance, by_s = self._chance.choice([0.1, 0.5]), self._chance.choice([0.05, 0.5])
        return f.Reorder(chance=chance, by_s=by_s, for_s=self._a_while())

    def _lose_answer(self) -> f.Fault:
        worker, kind = self._chance.choice(self._setup.names), self._chance.choice(ANSWERED)
        return f.LoseAnswer(worker=worker, request=kind, times=self._chance.randint(1, 3))

    def _cut(self) -> f.Fault:
        others = [*self._setup.names, "controller", "driver"]
        one = self._victim()
        others.remove(one)
        other = self._chance.choice(others)
        pair = self._chance.sample([one, other], 2)
        return f.CutOneWay(sender=pair[0], receiver=pair[1], for_s=self._a_while())

    def _full_disk(self) -> f.Fault:
        room = self._chance.choice([0, 500, 3000])
        return f.FullDisk(worker=self._victim(), room_bytes=room, for_s=self._a_while())

    def _slow_disk(self) -> f.Fault:
        sync_s = self._chance.choice([0.01, 0.1, 0.5])
        return f.SlowDisk(worker=self._victim(), sync_s=sync_s, for_s=self._a_while())

    def _unplug_disk(self) -> f.Fault:
        """Always the same worker's: what one loses another has."""
        worker = self._setup.rotten or self._setup.names[0]
        return f.UnplugDisk(worker=worker, back_s=self._chance.choice([0.5, 8.0, 20.0]))

    def _bit_rot(self) -> f.Fault:
        assert self._setup.rotten is not None
        return f.BitRot(worker=self._setup.rotten, draw=self._chance.randrange(1 << 30))

    def _handover(self) -> f.Fault:
        vnodes = self._chance.sample(range(VNODES), self._chance.randint(1, 3))
        return f.Handover(vnodes=tuple(sorted(vnodes)), to=self._chance.randint(0, 3))

    def _set_replication(self) -> f.Fault:
        least = 0 if self._setup.rotten is None else 1
        most = min(2, self._setup.workers - 1)
        return f.SetReplication(replication=self._chance.randint(least, most))
