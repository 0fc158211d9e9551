"""Handovers, kills and losses of power at random, first faults, then peace in which all must end.

The simulator (docs/simulator.md) does more of this; here are the seeds that found something before
there was one, and a few beside them.

A seed that fails is printed with the assertion; ``RHINO_SEEDS=17 pytest …`` runs it alone, and
``RHINO_SEEDS=100:200`` others.
"""

import os
from random import Random

import pytest

from rhinoctl.errors import RhinoError
from rhinoctl.protocol.handover import ENDED
from tests.fakes.wire import QUIET, Faults
from tests.fakes.world import World
from tests.fakes.world_spark import Query

UNSTEADY = Faults(delay_s=(0.0005, 0.01), lose_request=0.002, lose_answer=0.002, repeat=0.02)
FAULTS = 12


FOUND = (34, 80, 208, 2017)
"""Seeds that have found something."""


def seeds() -> list[int]:
    wanted = os.environ.get("RHINO_SEEDS")
    if wanted is None:
        return [*range(3), *FOUND]
    first, _, last = wanted.partition(":")
    return [*range(int(first), int(last) if last else int(first) + 1)]


class Chaos:
    """Something happens to a world every now and then; what was ended is started again."""

    def __init__(self, seed: int, *, copies: bool = False) -> None:
        self.chance = Random(seed)
        self.copies = copies
        self.world = World(
            seed,
            workers=3,
            instances=self.chance.choice([1, 2, 3]),
            replication=self.chance.choice([1, 1, 2]) if copies else 0,
            faults=self.chance.choice([QUIET, UNSTEADY]),
            leisure=2.0,
        )
        self.query = self.world.start_query()
        self.done: list[str] = []

    def happen(self) -> None:
        """One event, named in `done`."""
        events = [
            self.move,
            self.move,
            self.rescale,
            self.abort,
            self.kill_instance,
            self.kill_agent,
            self.power_loss,
            self.kill_controller,
            self.kill_driver,
            self.ambush,
            self.ambush,
            self.ambush,
        ]
        if self.copies:
            events += [self.lose, self.lose, self.lose, self.switchover, self.set_replication]
        self.revive()
        event = self.chance.choice(events)
        self.done.append(event.__name__)
        event()

    def move(self) -> None:
        epoch = self.world.epoch()
        vnodes = self.chance.sample(list(epoch.vnodes()), self.chance.randint(1, 3))
        self._asked(lambda: self.world.handover(vnodes, self.chance.choice([*epoch.instances])))

    def rescale(self) -> None:
        self._asked(lambda: self.world.rescale(self.chance.randint(1, 4)))

    def abort(self) -> None:
        running = [o.id for o in self.world.controller_views() if o.phase not in ENDED]
        for operation in running:
            self._asked(lambda operation=operation: self.world.abort(operation))

    def kill_instance(self) -> None:
        host = self.chance.choice(list(self.world.hosts.values()))
        if host.instances:
            host.kill_pid(self.chance.choice(list(host.instances)))

    def kill_agent(self) -> None:
        self.chance.choice(list(self.world.hosts.values())).kill_agent()

    def power_loss(self) -> None:
        self.chance.choice(list(self.world.hosts.values())).power_loss(self.chance)

    def lose(self) -> None:
        """A worker's processes end, for long enough to be given up, or nearly."""
        host = self.chance.choice(list(self.world.hosts.values()))
        host.lose()
        self.done[-1] += f" {host.name}"
        self.world.run(self.chance.choice([0.1, 0.5, 2.0, 6.0]))

    def switchover(self) -> None:
        target = self.chance.choice([*self.world.hosts, *self.world.epoch().instances])
        self._asked(lambda: self.world.switchover(target))

    def set_replication(self) -> None:
        self._asked(lambda: self.world.set_replication(self.chance.randint(0, 2)))

    def kill_controller(self) -> None:
        self.world.kill_controller()

    def kill_driver(self) -> None:
        self.query.kill()

    def ambush(self) -> None:
        """Something ends in the middle of what it does next."""
        host = self.chance.choice(list(self.world.hosts.values()))
        ends = {
            host.name: self.chance.choice([host.kill_agent, lambda: host.power_loss(self.chance)]),
            f"{host.name}/i{self.chance.randint(0, 3)}": lambda: host.power_loss(self.chance),
            "controller": self.world.kill_controller,
            self.query.name: self.query.kill,
        }
        process = self.chance.choice(list(ends))
        step = self.chance.choice(["disk.", "disk.sync", "send ", "reply ", "store.write"])
        self.world.trap(
            process,
            step,
            ends[process],
            after=self.chance.random() < 0.5,
            skip=self.chance.randint(0, 25),
        )
        self.done[-1] += f" {process} {step}"

    def revive(self) -> None:
        """What is dead is started again."""
        if self.world.controller is None:
            self.world.start_controller()
        for host in self.world.hosts.values():
            if host.agent is None:
                host.start_agent()
        if not self.query.running:
            self.query = self.world.start_query(self.query.directory, settled=False)

    def _asked(self, call) -> None:  # type: ignore[no-untyped-def]
        try:
            call()
        except RhinoError as refused:
            self.done[-1] += f" ({refused.code})"
        except ConnectionError:
            self.done[-1] += " (not answered)"


def peace(world: World, query: Query) -> None:
    """No more faults: every operation ends, and the job goes on."""
    world.network.faults = QUIET
    world.traps.clear()
    for operation in world.controller_views():
        if operation.phase not in ENDED:
            world.until_ended(operation.id, within_s=900)
    world.finish(query, batches=query.directory.committed + 5, within_s=900)


@pytest.mark.parametrize("copies", [False, True])
@pytest.mark.parametrize("seed", seeds())
def test_whatever_happens(seed: int, copies: bool) -> None:
    chaos = Chaos(seed, copies=copies)
    try:
        for _ in range(FAULTS):
            chaos.world.run(chaos.chance.uniform(0.05, 0.8))
            chaos.happen()
        chaos.world.traps.clear()
        chaos.revive()
        peace(chaos.world, chaos.query)
    except BaseException as fault:
        fault.add_note(f"seed {seed}: {', '.join(chaos.done)}; failures {chaos.query.failures}")
        raise
