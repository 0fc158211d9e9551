"""Verification and scrub on the real loops: what rots is named, serves nobody and is replaced."""

from collections.abc import Callable

import pytest

from rhinoctl import limits
from rhinoctl.errors import Busy, UnknownJob, UnknownVnode
from rhinoctl.ids import JobName, Vnode
from rhinoctl.ops import verify as ops
from rhinoctl.protocol import views
from rhinoctl.protocol.verification import Checked
from tests.fakes.world import JOB, World
from tests.fakes.world_spark import Query
from tests.scenarios.test_copies import checkpoints, tables, warmed_up
from tests.scenarios.test_replication import settled


def verify(
    world: World, vnodes: tuple[int, ...] = (), *, deep: bool = False, within_s: float = 60.0
) -> views.VerifyView:
    """As the command does it."""
    request = views.VerifyRequest(vnodes=tuple(map(Vnode, vnodes)), deep=deep)
    begun: views.VerifyView = world.call(lambda c: c.verify(JOB, request))
    named = views.VerifyRequest(vnodes=request.vnodes, deep=deep, round=begun.round)
    looks = [begun]

    def over() -> bool:
        if world.controller is not None:
            looks.append(world.call(lambda c: c.verify(JOB, named)))
        return looks[-1].over

    world.until(over, "the end of a verification", within_s)
    return looks[-1]


def rot(world: World, worker: str, vnode: int) -> tuple[str, str]:
    """Flip a byte of the newest checkpoint; its id and the file."""
    newest = checkpoints(world, worker, vnode)[-1]
    path = tables(world, worker, newest)[0]
    world.hosts[worker].disk.rot(path, 0)
    checkpoint, file = path.split("/")[-2:]
    return checkpoint, file


def replicated(world: World, query: Query) -> None:
    """All workers of each chain have the owner's newest checkpoint; no batch runs any more."""
    query.idle = True
    for vnode in range(world.vnodes):
        world.until(lambda vnode=vnode: settled(world, vnode), f"vnode {vnode} everywhere")


def mended(world: World) -> Callable[[], bool]:
    """Whether no bad checkpoint is left to be replaced, as `status` says it."""

    def is_mended() -> bool:
        status: views.StatusView = world.call(lambda c: c.status())
        return not any("bad checkpoint" in finding.what for finding in status.findings)

    return is_mended


def test_all_is_whole_and_equal_while_the_job_runs() -> None:
    world = World(workers=3, instances=3, replication=1)
    query = warmed_up(world, batches=80)
    seen = query.directory.committed
    view = verify(world, deep=True)
    assert query.directory.committed > seen
    assert ops.error_of(view) is None
    assert len(view.copies) == 2 * world.vnodes
    assert {one.state for c in view.copies for one in c.checkpoints} == {Checked.WHOLE}
    assert ops.apart(view) == []
    assert all(each.equal for each in ops.compared(view))
    assert {each.vnode for each in ops.compared(view)} == set(map(Vnode, range(world.vnodes)))
    world.finish(query, batches=query.directory.committed + 5)


@pytest.mark.parametrize("whose", ["the owner's", "a member's"])
def test_a_flipped_byte_is_named_and_mended(whose: str) -> None:
    world = World(workers=3, instances=3, replication=2)
    query = warmed_up(world, batches=80)
    replicated(world, query)
    chain = world.epoch().holders(Vnode(3))
    worker = chain[0] if whose == "the owner's" else chain[2]
    checkpoint, file = rot(world, worker, 3)
    view = verify(world)
    found = ops.bad(view)
    assert {(b.worker, b.vnode, b.file) for b in found} == {(worker, 3, file)}
    assert checkpoint in {b.checkpoint for b in found}
    assert {b.why for b in found} == {"its content has changed"}
    assert ops.error_of(view) is not None
    status: views.StatusView = world.call(lambda c: c.status())
    assert [w.found_bad > 0 for w in status.workers] == [w.id == worker for w in status.workers]
    query.idle = False
    world.until(mended(world), "a good one in its place")
    replicated(world, query)
    assert ops.error_of(verify(world, deep=True)) is None
    query.idle = False
    world.finish(query, batches=query.directory.committed + 15)
    assert query.failures == []
