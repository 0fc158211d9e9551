"""Rhino, section 4.1: its sentences, checked on the model of a cluster.

The paper's timestamps are our batches, its instances are the owners of the model, and its handover
marker is the field of a decision record that names the next epoch (design, sections 4 and 7).
"""

from itertools import pairwise

import pytest

from rhinoctl.ids import BatchTime, InstanceId, Vnode, WorkerId
from rhinoctl.protocol import messages as m
from rhinoctl.protocol import worker
from rhinoctl.protocol.records import DecisionRecord
from tests.fakes.cluster import scenarios
from tests.fakes.cluster.exploring import crashes_only, explore
from tests.fakes.cluster.scenarios import BETWEEN, GROWN, I0, I1, I2, PROMOTED, V0, W3, WITHIN
from tests.fakes.cluster.workers import Request
from tests.fakes.cluster.world import Scenario, World

HANDOVERS: dict[str, tuple[Scenario, InstanceId, InstanceId]] = {
    "within a worker": (WITHIN, I0, I2),
    "between workers": (PROMOTED, I0, I1),
    "between batches": (BETWEEN, I0, I1),
    "to a new worker": (GROWN, I0, I2),
}
"""Jobs in which vnode 0 goes from an origin to a target."""

each_handover = pytest.mark.parametrize(
    ("scenario", "origin", "target"), HANDOVERS.values(), ids=HANDOVERS.keys()
)


def markers(world: World) -> list[DecisionRecord]:
    return [record for record in world.oracle.history if record.is_marker]


def handover_marker(world: World, target: InstanceId) -> DecisionRecord:
    """The marker from which on the target owns vnode 0."""
    return next(r for r in markers(world) if r.next_epoch.routes[V0].owner == target)


def processed_by(world: World, vnode: Vnode) -> dict[BatchTime, InstanceId]:
    """Who has acknowledged each batch of a vnode."""
    acknowledged = world.oracle.acknowledged
    return {time: who for (v, time), (who, _) in sorted(acknowledged.items()) if v == vnode}


@each_handover
def test_records_until_t_are_processed_with_a_configuration_and_from_t_with_a_new_one(
    scenario: Scenario, origin: InstanceId, target: InstanceId
) -> None:
    """4.1.1: "This ends the epoch E_{a,t} and starts E_{t,b}. As a result, records with timestamp
    in interval [a, t] are processed with a configuration and records with timestamp in [t, b] are
    processed with a new configuration." """
    world = World(scenario).run()
    t = handover_marker(world, target).time
    owners = processed_by(world, V0)
    assert {owner for time, owner in owners.items() if BatchTime(0, 0) <= time <= t} == {origin}
    assert {owner for time, owner in owners.items() if time > t} == {target}


@each_handover
def test_an_epoch_is_the_interval_between_two_consecutive_reconfigurations(
    scenario: Scenario, origin: InstanceId, target: InstanceId
) -> None:
    """4.1.1: "A configuration epoch E_{a,b} is the non-overlapping time interval between two
    consecutive reconfigurations [...]. The first epoch begins with the deployment of a query." """
    history = World(scenario).run().oracle.history
    assert history[0].next_epoch == scenario.first
    for before, after in pairwise(history):
        assert after.epoch == before.next_epoch.number
        assert after.next_epoch.number - after.epoch in (0, 1)


@each_handover
def test_during_an_epoch_each_instance_processes_records_using_fixed_parameters(
    scenario: Scenario, origin: InstanceId, target: InstanceId
) -> None:
    """4.1.1: "During an epoch, each instance processes records using fixed parameters, i.e.,
    assigned worker, input and output channels, state partition, and assigned virtual nodes." """
    world = World(scenario).run()
    for (vnode, time), (instance, _) in world.oracle.acknowledged.items():
        if time.batch >= 0:
            assert world.oracle.staged_in(time).routes[vnode].owner == instance


@each_handover
def test_a_marker_carries_the_configuration_update_to_the_instances_to_reconfigure(
    scenario: Scenario, origin: InstanceId, target: InstanceId
) -> None:
    """4.1.1: "A handover marker carries the configuration update that involves the origin and
    target instances and their upstream and downstream instances." Ours is in the log of each of
    their workers, at the same place among the data."""
    world = World(scenario).run()
    marker = handover_marker(world, target)
    old = world.oracle.history[world.oracle.history.index(marker) - 1].next_epoch
    concerned = {old.instances[origin], marker.next_epoch.instances[target]}
    assert concerned <= set(marker.voters)
    for name in marker.voters:
        mine = world.workers[name].segments[marker.id].record
        assert (mine.next_epoch, mine.position) == (marker.next_epoch, marker.position)


def test_when_an_instance_receives_all_markers_no_record_older_than_t_is_in_flight() -> None:
    """4.1.1: "When an instance receives all markers, no record older than t is in-flight. As a
    result, the instance reaches its synchronization point and the reconfiguration takes place."

    The marker is decided when every worker has sealed it: from then on, whatever is still under way
    of that batch or an earlier one is taken by nobody."""
    world, pushed = World(PROMOTED), dict[int, tuple[WorkerId, m.Put]]()
    while not any(record.is_batch for record in markers(world)):
        for _, _, entry in world.queue:
            if isinstance(entry, Request) and isinstance(entry.message, m.Put):
                pushed[entry.number] = (entry.to, entry.message)
        world.tick()
    assert pushed
    for to, put in pushed.values():
        state = world.workers[to].state
        after, effects = worker.step(state, put)
        assert after == state
        assert [type(effect) for effect in effects] == [worker.Reply]


def test_target_instances_must_wait_for_state_migration_to_complete(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """4.1.1: "Target instances, however, must wait for state migration to complete." The target's
    worker joins, but gets no copy: the job goes on for as long as one cares to wait, at the
    origin."""
    monkeypatch.setattr(World, "gather", lambda world: None)
    world = World(GROWN)
    while world.committed < 8:
        world.tick()
    epoch = world.oracle.history[-1].next_epoch
    assert W3 in epoch.holders(V0)
    assert W3 not in epoch.full_holders(V0)
    assert set(processed_by(world, V0).values()) == {I0}


@each_handover
def test_theorem_1_the_target_receives_the_state_at_t_and_then_processes_later_records(
    scenario: Scenario, origin: InstanceId, target: InstanceId
) -> None:
    """4.1.3, theorem 1: "1) T receives S^{t-1} at t and then processes records with keys in
    (k_l, k_q] and timestamps greater than t". When T acknowledges its first batch, the vnode has
    all that O has made of the batches until t, and that batch."""
    world = World(scenario)
    while target not in processed_by(world, V0).values():
        world.tick()
    t = handover_marker(world, target).time
    first = min(time for time, owner in processed_by(world, V0).items() if owner == target)
    assert first == BatchTime(0, t.batch + 1)
    at = world.workers[handover_marker(world, target).next_epoch.instances[target]]
    rows = [row for applied in at.copy_of(V0) for row in applied.rows]
    until = range(first.batch + 1)
    assert sorted(rows) == [row for b in until for row in world.workload.of_vnode(b, V0)]


@pytest.mark.parametrize("scenario", [WITHIN, PROMOTED], ids=["within-a-worker", "between-workers"])
def test_theorem_1_the_handover_completes_in_finite_time(scenario: Scenario) -> None:
    """4.1.3, theorem 1: "2) the handover completes in finite time". The paper adds (4.1.2) "that
    the handover protocol is not fault-tolerant": ours completes whoever dies, and wherever."""
    assert explore(World(scenario), crashes_only).runs > 100


def test_the_handover_is_completed_when_all_have_acknowledged() -> None:
    """4.1.2, step 4: "When all instances successfully send an acknowledgment, the HM marks the
    handover as completed." Every worker of the new epoch has it when the batch is done."""
    world = World(PROMOTED)
    while not world.oracle.delivered:
        world.tick()
    marker = handover_marker(world, I1)
    assert marker.time == BatchTime(0, 0)
    for name in marker.next_epoch.voters():
        epoch = world.workers[name].state.epoch()
        assert epoch is not None
        assert epoch.number == marker.next_epoch.number


def test_the_origin_releases_unneeded_resources() -> None:
    """4.1.2, step 3: the origin "releases unneeded resources"; ours does so by a later epoch, when
    redundancy is lowered, so that the way back stays open until then."""
    world = World(GROWN).run()
    moved, last = handover_marker(world, I2), world.oracle.history[-1]
    assert scenarios.W1 in moved.next_epoch.full_holders(V0)
    assert scenarios.W1 not in last.next_epoch.workers
