"""One seed: safety, liveness, judgement."""

import gc
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace

import pyarrow as pa

from rhinoctl.ids import Vnode, WorkerId
from rhinoctl.protocol.epochs import Epoch
from rhinoctl.protocol.handover import ENDED
from rhinoctl.protocol.records import ORIGIN
from tests.fakes.rows import Row, recording
from tests.sim import faults as f
from tests.sim.audit import Audit
from tests.sim.checkers import Watching
from tests.sim.cluster import SimWorld
from tests.sim.plan import Plan
from tests.sim.striking import HELP_S, Striking

SAFETY_S = 300.0
"""Virtual seconds in which a plan is carried out: nothing in it waits for the cluster."""

LIVENESS_S = 900.0
"""In which each operation ends, and the job goes on: longer than any deadline of the product."""

PERSON_S = 45.0
"""So long a person looks at a job that does not go on before they type a failover."""

NOTHING = "nothing"
"""The kind of finding of a seed that has found none."""

BATCHES = 5
"""Demanded in the liveness phase."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What came of a seed. `finding` is None if nothing was found."""

    plan: Plan
    finding: BaseException | None
    done: tuple[str, ...]
    failures: tuple[str, ...]
    struck: Counter[type[f.Fault]]
    digest: str
    virtual_s: float
    rows: frozenset[Row]

    @property
    def kind(self) -> str:
        """What was found, without its particulars: to compare findings of one seed."""
        if self.finding is None:
            return NOTHING
        number = getattr(self.finding, "invariant", "")
        return f"{type(self.finding).__name__} {number}".strip()


class Simulation:
    """A run of one plan. Without being `watchful` it is judged by its outcome only: outputs, state,
    and that it goes on."""

    def __init__(self, plan: Plan, *, watchful: bool = True) -> None:
        self.plan = plan
        self.world = SimWorld(plan)
        self.watching = Watching(self.world, watchful=watchful)
        self.world.look(self.watching)
        self.striking: Striking | None = None

    def run(self) -> None:
        """Raises what is found."""
        self.striking = Striking(self.world, self.plan)
        self.audit = Audit(self.world, self.watching, self.striking.rotten)
        self._safety(self.striking)
        self._liveness(self.striking)
        self._judgement(self.striking)

    # --- phases ----------------------------------------------------------------------------------

    def _safety(self, striking: Striking) -> None:
        striking.begin()
        done = len(striking.done)

        def something_happened() -> bool:
            return striking.over or len(striking.done) > done

        while not striking.over:
            self.world.until(something_happened, "the plan's end", SAFETY_S)
            done = len(striking.done)
            self.audit.look()

    def _liveness(self, striking: Striking) -> None:
        world = self.world
        world.heal()
        striking.healed = True
        outsider = self._outsider(striking)
        if outsider is not None:
            striking.note(f"{outsider} stays dead")
            striking.stays_dead = outsider
            world.hosts[WorkerId(outsider)].lose()
        striking.kill_drivers(besides=striking.query)
        striking.query.idle = False
        striking.revive(besides=outsider)
        self._is_listened_to()
        self._is_needed()
        self._goes_on()
        self._is_listened_to()
        striking.person.resume()
        self._operations_end()
        self._goes_on()
        self.audit.look()

    def _outsider(self, striking: Striking) -> str | None:
        """Who stays dead: it must not be the only one that has all of a vnode, nor the only one
        that will, since copies may be about to go where none are wanted."""
        outsider = self.plan.setup.outsider
        wanted = self.world.copies_wanted()
        if 0 in (striking.replication, striking.fewest if wanted is None else wanted):
            return None
        epochs = self._epochs() if outsider is not None else []
        if epochs is None:
            return None
        for epoch in epochs:
            holders = [set(epoch.full_holders(Vnode(v))) for v in epoch.vnodes()]
            if any(held <= {outsider} for held in holders):
                return None
        return outsider

    def _epochs(self) -> list[Epoch] | None:
        """The newest of each job that is decided, and those that may turn out to be; None if nobody
        is there to tell."""
        decided, striking = self.watching.decided[-1:], self.striking
        newest = decided[-1].position if decided else ORIGIN.position
        perhaps = [r for r in self.watching.records.values() if r.position > newest]
        found = [record.next_epoch for record in (*decided, *perhaps)]
        if striking is not None and striking.neighbour is not None:
            if not self.world.knows_epoch(striking.neighbour.job):
                return None
            found.append(self.world.epoch(striking.neighbour.job))
        return found

    def _is_needed(self) -> None:
        """Start who stays dead if another worker is given up as well, whether that one lives or
        not: what was offered is not taken back, so that its heirs are waited for."""
        striking, controller = self.striking, self.world.controller
        assert striking is not None
        if striking.stays_dead is None or controller is None:
            return
        if any(
            set(view.lost) - {striking.stays_dead}
            for view in controller.operation_list().operations
            if view.phase not in ENDED
        ):
            striking.note("so many cannot be lost: it is started, too")
            striking.stays_dead = None
            striking.revive()

    def _is_listened_to(self) -> None:
        """No worker objects to the controller's store any more, thanks to a person."""
        self._with_help(self.world.is_listened_to, "a store that all listen to")

    def _operations_end(self) -> None:
        """All that are under way now; those that a recovery of the store has forgotten have."""
        views = self.world.controller_views()
        running = {view.id for view in views if view.phase not in ENDED}

        def ended() -> bool:
            controller = self.world.controller
            if controller is None or not running:
                return not running
            there = {view.id: view.phase for view in controller.operation_list().operations}
            return all(there.get(op) in (None, *ENDED) for op in running)

        self._with_help(ended, f"the end of {', '.join(sorted(running))}")

    def _with_help(self, reached: Callable[[], bool], what: str) -> None:
        """Raises AssertionError if it is not reached in time."""
        assert self.striking is not None
        waited = 0.0
        while not self.world.schedule.run(HELP_S, reached):
            waited += HELP_S
            if waited > LIVENESS_S:
                raise AssertionError(f"{what}: not in {waited:.0f} s")
            self.striking.help()

    def _goes_on(self) -> None:
        """The job commits some batches more; a person is asked where the brakes of failover hold,
        and where offsets were lost."""
        striking, world = self.striking, self.world
        assert striking is not None
        queries = [query for query in (striking.query, striking.neighbour) if query is not None]
        wanted = [(query, query.directory.committed + BATCHES) for query in queries]
        waited = 0.0

        def there() -> bool:
            return all(query.directory.committed >= batch for query, batch in wanted)

        while not world.schedule.run(PERSON_S, there):
            waited += PERSON_S
            if waited > LIVENESS_S:
                why = [(str(q.job), batch, q.failures[-3:]) for q, batch in wanted]
                raise AssertionError(f"no batches in {waited:.0f} s: {why}")
            striking.repair()
            self._is_needed()
            if striking.stays_dead is not None:
                striking.note(f"a person types: failover {striking.stays_dead}")
                striking.fail_over(f.Failover(worker=striking.stays_dead))

    def _judgement(self, striking: Striking) -> None:
        world = self.world
        last = self.plan.setup.lost_last
        query = striking.query
        world.finish(query, query.directory.committed + BATCHES, LIVENESS_S)
        self._finish_neighbour(striking)
        self.audit.end()
        epoch = world.epoch()
        copies = min(len(epoch.full_holders(Vnode(v))) for v in epoch.vnodes())
        if last is None or copies < 2:
            return
        striking.note(f"{last} is lost for good")
        striking.stays_dead = last
        world.hosts[WorkerId(last)].lose()
        striking.start_driver()
        self._goes_on()
        query = striking.query
        world.finish(query, query.directory.committed + BATCHES, LIVENESS_S)
        self.audit.end()

    def _finish_neighbour(self, striking: Striking) -> None:
        """The other job is judged by its outcome only."""
        query = striking.neighbour
        if query is not None:
            self.world.finish(query, query.directory.committed + BATCHES, LIVENESS_S)
            striking.neighbour = None


def simulate(plan: Plan, *, watchful: bool = True) -> Outcome:
    """Run a plan to its end, or to the first finding.

    What it leaves behind is collected once, and Arrow has one thread, as in an instance's process.
    """
    pa.set_cpu_count(1)
    gc.disable()
    try:
        with recording() as taken:
            outcome = _simulate(plan, watchful)
        return replace(outcome, rows=frozenset(taken))
    finally:
        gc.enable()
        gc.collect()


def _simulate(plan: Plan, watchful: bool) -> Outcome:
    simulation = Simulation(plan, watchful=watchful)
    finding: BaseException | None = None
    try:
        simulation.run()
    except KeyboardInterrupt:
        raise
    except BaseException as fault:  # noqa: BLE001 - whatever a loop raises is a finding
        finding = fault
    striking, world = simulation.striking, simulation.world
    for host in world.hosts.values():
        world.struck[f.FullDisk] += host.disk.tally["refused"]
    return Outcome(
        plan=plan,
        finding=finding,
        done=tuple(striking.done) if striking is not None else (),
        failures=tuple(striking.query.failures) if striking is not None else (),
        struck=world.struck,
        digest=world.digest(),
        virtual_s=world.clock.monotonic(),
        rows=frozenset(),
    )
