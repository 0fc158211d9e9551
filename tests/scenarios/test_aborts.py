"""A handover that is given up: the old layout, and nothing left behind (design, section 14)."""

import errno

import pytest

from rhinoctl import limits
from rhinoctl.ids import OpId, Vnode
from rhinoctl.protocol.handover import Phase
from rhinoctl.protocol.views import RevertRequest
from tests.fakes.world import World
from tests.fakes.world_spark import Query


def left_behind(world: World, worker: str) -> list[str]:
    """Everything under the job's directory of a worker that speaks of a copy or of a half-made
    file."""
    disk = world.hosts[worker].disk
    root = f"jobs/{world.uid()}"
    found = []
    for vnode in disk.list(f"{root}/ckpt"):
        found += [f"{vnode}/{name}" for name in disk.list(f"{root}/ckpt/{vnode}")]
    return [name for name in found if "." in name]


@pytest.mark.parametrize("chunks", [*(pytest.param(n, marks=pytest.mark.slow) for n in (0, 1)), 3])
def test_an_abort_while_copying_leaves_no_partial_files(chunks: int) -> None:
    world = World(workers=3)
    query = world.start_query()
    world.until(lambda: query.directory.committed >= 20)
    operation = world.rescale(3)

    def abort() -> None:
        assert world.controller is not None
        controller = world.controller
        controller.submit(lambda: controller.abort(operation, _reason()))

    trap = world.trap("w3", "send FetchChunk", abort, skip=chunks)
    world.until_sprung(trap)
    assert world.until_ended(operation).phase is Phase.ABORTED
    world.run(limits.TIDY_S + 5.0)
    assert left_behind(world, "w3") == []
    assert world.hosts["w3"].disk.list(f"jobs/{world.uid()}/ckpt") == []
    assert world.hosts["w3"].instances == {}, "the instance started for it is ended"
    assert {world.epoch().routes[v].owner for v in world.epoch().vnodes()} == {"i0", "i1"}
    world.finish(query, batches=query.directory.committed + 15)
    assert query.failures == []


def _reason():  # type: ignore[no-untyped-def]
    from rhinoctl.protocol.views import AbortRequest

    return AbortRequest(reason="a test")


def test_an_abort_at_half_of_a_throttled_move_leaves_no_partial_files() -> None:
    """T5."""
    world = World(workers=3, copies_bytes_s=300)
    query = world.start_query()
    world.until(lambda: query.directory.committed >= 20)
    operation = world.rescale(3)

    def half() -> bool:
        agent = world.hosts["w3"].agent
        desk = agent.desks.get(world.uid()) if agent is not None else None
        if desk is None:
            return False
        copied = [desk.copies.progress(Vnode(v)) for v in world.epoch().vnodes()]
        done, total = (sum(sizes) for sizes in zip(*copied, strict=True))
        return 0 < total <= 2 * done < 2 * total

    world.until(half, "half of it")
    assert world.abort(operation).phase is Phase.ABORTED
    world.run(limits.TIDY_S + 5.0)
    assert left_behind(world, "w3") == []
    assert world.hosts["w3"].disk.list(f"jobs/{world.uid()}/ckpt") == []
    world.finish(query, batches=query.directory.committed + 15)
    assert query.failures == []


@pytest.mark.parametrize("phase", [Phase.PLANNED, Phase.WARMING, Phase.ARMED])
def test_an_abort_before_the_marker_ends_at_one_of_the_two_layouts(phase: Phase) -> None:
    world = World(workers=2)
    query = world.start_query()
    world.until(lambda: query.directory.committed >= 12)
    operation = world.handover([0], "i1")
    if phase is not Phase.PLANNED:
        trap = world.trap("controller", "store.write op/", _nothing, holding=f"phase={phase.value}")
        world.until_sprung(trap)
    world.abort(operation)
    view = world.until_ended(operation)
    assert view.phase in (Phase.ABORTED, Phase.COMPLETE)
    owner = world.epoch().routes[Vnode(0)].owner
    assert owner == ("i1" if view.phase is Phase.COMPLETE else "i0")
    world.finish(query, batches=query.directory.committed + 15)
    assert query.failures == []


def _nothing() -> None:
    pass


def test_another_handover_can_follow_an_abort() -> None:
    world = World(workers=3)
    query = world.start_query()
    world.until(lambda: query.directory.committed >= 12)
    operation = world.rescale(3)
    trap = world.trap("w3", "send FetchChunk", _nothing, skip=1)
    world.until_sprung(trap)
    world.abort(operation)
    assert world.until_ended(operation).phase is Phase.ABORTED
    again = world.rescale(3)
    assert world.until_ended(again).phase is Phase.COMPLETE
    world.finish(query, batches=query.directory.committed + 15)
    assert query.failures == []


def test_a_worker_that_takes_no_part_any_more_keeps_nothing() -> None:
    """Its instances end, its copies and its log go, once all others are past it."""
    world = World(workers=3)
    query = world.start_query()
    world.until(lambda: query.directory.committed >= 12)
    assert world.until_ended(world.rescale(3)).phase is Phase.COMPLETE
    world.until(lambda: query.directory.committed >= 30)
    assert world.until_ended(world.rescale(2)).phase is Phase.COMPLETE
    world.until(lambda: "w3" not in world.epoch().workers)
    world.until(lambda: world.hosts["w3"].disk.list("jobs") == [], "w3 to forget the job")
    assert world.hosts["w3"].instances == {}
    world.until(lambda: query.directory.committed >= 45)
    assert world.until_ended(world.rescale(3)).phase is Phase.COMPLETE
    world.finish(query, batches=query.directory.committed + 15)
    assert query.failures == []


def test_a_rescale_is_reverted_while_records_flow() -> None:
    """Design, section 7: the way back is a new handover, and rows count once through both."""
    world = World(workers=3)
    query = world.start_query()
    world.until(lambda: query.directory.committed >= 12)
    before = world.epoch()
    operation = world.rescale(4)
    assert world.until_ended(operation).phase is Phase.COMPLETE
    world.until(lambda: query.directory.committed >= 25)
    assert world.controller is not None
    back = world.call(lambda c: c.revert(operation, RevertRequest()))
    assert world.until_ended(back.id).phase is Phase.COMPLETE
    after = world.epoch()
    assert after.instances == before.instances
    assert [r.owner for r in after.routes] == [r.owner for r in before.routes]
    world.finish(query, batches=query.directory.committed + 15)
    assert query.failures == []


def test_a_paused_rescale_waits_with_whole_copies_and_then_goes_on() -> None:
    world = World(workers=3)
    query = world.start_query()
    world.until(lambda: query.directory.committed >= 12)
    before = world.epoch()
    operation = world.rescale(3)
    world.call(lambda c: c.pause(operation))
    world.run(5.0)
    assert world.operation(operation).phase is Phase.PAUSED
    assert [r.owner for r in world.epoch().routes] == [r.owner for r in before.routes]
    moved = world.operation(operation).moves
    assert all("w3" in world.epoch().full_holders(vnode) for vnode in moved)
    world.kill_controller()
    world.start_controller()
    world.run(1.0)
    world.call(lambda c: c.resume(operation))
    assert world.until_ended(operation).phase is Phase.COMPLETE
    world.finish(query, batches=query.directory.committed + 15)
    assert query.failures == []


def armed(world: World) -> tuple[Query, OpId]:
    """A query, and a handover whose proposal is on its way to it."""
    query = world.start_query()
    world.until(lambda: query.directory.committed >= 12)
    query.trigger_s = 1.0
    operation = world.handover([0, 1], "i1")
    trap = world.trap("controller", "store.write op/", _nothing, holding="phase=armed", after=True)
    world.until_sprung(trap)
    return query, operation


def at_one_layout(world: World, query: Query, operation: OpId) -> None:
    """The operation ends, at the old layout or, if the marker came first, at the new one."""
    view = world.until_ended(operation)
    owner = "i1" if view.phase is Phase.COMPLETE else "i0"
    assert {world.epoch().routes[v].owner for v in (0, 1)} == {owner}
    world.run(limits.TIDY_S + 5.0)
    assert not any(left_behind(world, worker) for worker in world.hosts)
    world.finish(query, batches=query.directory.committed + 10)
    assert query.failures == []


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("phase", ["aborting", "aborted"])
def test_an_abort_whose_controller_dies_ends_all_the_same(phase: str, after: bool) -> None:
    """Design, section 14: a rollback that fails itself. There is none to fail: the way to the old
    layout is a phase, which goes on from what is seen."""
    world = World(workers=2)
    query, operation = armed(world)
    step = {"holding": f"phase={phase}", "after": after}
    trap = world.trap("controller", "store.write op/", world.kill_controller, **step)
    world.submit(lambda c: c.abort(operation, _reason()))
    world.until_sprung(trap)
    world.run(2.0)
    world.start_controller()
    at_one_layout(world, query, operation)
    if phase == "aborted":  # else the driver may have had the marker decided before
        assert world.operation(operation).phase is Phase.ABORTED


@pytest.mark.parametrize(
    "victim",
    ["target", "store", *(pytest.param(v, marks=pytest.mark.slow) for v in ("origin", "driver"))],
)
def test_an_abort_that_meets_another_fault_ends(victim: str) -> None:
    """Design, section 14: a rollback that fails itself."""
    world = World(workers=2)
    query, operation = armed(world)
    refused: list[str] = []

    def refuse() -> None:
        refused.append("once more")
        raise OSError(errno.ENOSPC, "No space left on device")

    strikes = {
        "origin": world.hosts["w1"].kill_agent,
        "target": world.hosts["w2"].kill_agent,
        "driver": query.kill,
        "store": lambda: None,
    }
    step = {"holding": "phase=aborting", "after": True}
    struck = world.trap("controller", "store.write op/", strikes[victim], **step)
    if victim == "store":
        world.mishaps_expected = True
        for _ in range(3):
            world.trap("controller", "store.write op/", refuse, holding="phase=aborted")
    world.submit(lambda c: c.abort(operation, _reason()))
    world.until_sprung(struck)
    world.run(3.0)
    for host in world.hosts.values():
        if not host.runs:
            host.start_agent()
    if victim == "driver":
        query = world.start_query(query.directory)
    at_one_layout(world, query, operation)
    assert len(refused) == (3 if victim == "store" else 0)
