"""The controller is killed at every phase of a handover: the operation ends all the same."""

import pytest

from rhinoctl.ids import InstanceId, Vnode
from rhinoctl.protocol.handover import Phase
from rhinoctl.protocol.views import HandoverRequest
from tests.fakes.world import JOB, World

PHASES = ("planned", "warming", "armed", "marked", "complete")


@pytest.mark.parametrize(
    "after", [False, True], ids=["before it is written", "after it is written"]
)
@pytest.mark.parametrize("phase", PHASES)
def test_a_controller_killed_at_a_phase(phase: str, after: bool) -> None:
    world = World(workers=2)
    query = world.start_query()
    world.until(lambda: query.directory.committed >= 10)

    trap = world.trap(
        "controller",
        "store.write op/",
        world.kill_controller,
        holding=f"phase={phase}",
        after=after,
    )
    request = HandoverRequest(vnodes=(Vnode(0), Vnode(1)), to=InstanceId("i1"))
    future = world.submit(lambda c: c.handover(JOB, request))
    world.until_sprung(trap)
    world.run(2.0)
    world.start_controller()
    assert world.controller is not None
    operations = world.controller.operation_list().operations
    if phase == "planned" and not after:
        assert not operations
        assert not future.done()
        operation = world.handover([0, 1], "i1")
    else:
        operation = operations[0].id
    assert world.until_ended(operation).phase is Phase.COMPLETE
    assert world.epoch().routes[Vnode(0)].owner == "i1"
    world.finish(query, batches=query.directory.committed + 15)
    assert query.failures == []
    assert len(query.sessions) == 1, "a live session is not fenced by a new controller"


def test_batches_go_on_while_the_controller_is_down() -> None:
    world = World(workers=2)
    query = world.start_query()
    world.kill_controller()
    seen = query.directory.committed
    world.until(lambda: query.directory.committed >= seen + 20)
    world.start_controller()
    world.finish(query, batches=seen + 25)
    assert query.failures == []
    assert len(query.sessions) == 1


def test_a_taken_handover_goes_on_while_the_controller_is_down() -> None:
    """The marker may be decided without the controller; it learns of it when it is back."""
    world = World(workers=2)
    query = world.start_query()
    world.until(lambda: query.directory.committed >= 10)
    operation = world.handover([0], "i1")
    before = world.epoch().number
    world.until(lambda: world.operation(operation).phase is Phase.ARMED)
    world.kill_controller()
    world.until(lambda: world.epoch().number > before + 2)
    world.run(20.0)
    world.start_controller()
    assert world.until_ended(operation).phase is Phase.COMPLETE
    world.finish(query, batches=query.directory.committed + 10)
    assert query.failures == []
