"""What is shown of the cluster, as a table and as JSON, from the same answers."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from rhinoctl.errors import Exit
from rhinoctl.ids import BatchTime, InstanceId, OpId, Vnode, WorkerId
from rhinoctl.ops.vnodes import format_vnodes
from rhinoctl.protocol import codec, views
from rhinoctl.protocol.handover import Kind, Phase
from tests.fakes import controller as fake
from tests.fakes.controller import FakeController

RUNNING = fake.operation(
    phase=Phase.WARMING,
    times={"planned": 1.0, "warming": 1.5},
    marker=None,
    pause_ms=None,
    total_ms=None,
    progress="copied 1 of 3 MB",
)
LOST = views.Finding(what="worker w3 is down, last seen 90 s ago", remedy="start its agent again")
DEGRADED = fake.status(
    health=views.Health.DEGRADED,
    workers=(
        fake.worker(1),
        fake.worker(2),
        fake.worker(3, health=views.Health.DOWN, seen_s=90.0, pid=0, log_bytes=None),
    ),
    jobs=(fake.job(operation=OpId("op-7")),),
    operations=(RUNNING,),
    findings=(LOST,),
)
IDLE = fake.job(
    live=False,
    session=0,
    batch=None,
    members={},
    query_id="",
    instances=(fake.instance(0, "w1", range(16), ready=False, pid=0, applied=None),),
)
RESCALE = fake.operation(
    id=OpId("op-8"),
    kind=Kind.RESCALE,
    moves={Vnode(v): InstanceId("i10" if v % 2 else "i4") for v in range(6)},
    origins={Vnode(v): InstanceId("i2") for v in range(6)},
    phase=Phase.ABORTED,
    reason="deadline passed while warming; not ready: vnode 4",
    marker=None,
    pause_ms=None,
)

KEPT = fake.job(
    replication=2,
    lacking=1,
    members={Vnode(v): (WorkerId("w2"), WorkerId("w3")) for v in range(4)},
    losses=(
        fake.loss("w1", vnodes=8),
        fake.loss("w2", stranded=1, batches=1, seconds=None),
        fake.loss("w3", vnodes=0),
    ),
    fetched_bytes=84_000_000,
    applied_bytes=60_000_000,
)
REPLICATED = fake.status(
    health=views.Health.DEGRADED,
    workers=(
        fake.worker(1, vnodes_held=9),
        fake.worker(2, draining=True, vnodes_held=4),
        fake.worker(3, draining=True, vnodes_owned=0),
    ),
    jobs=(fake.job(name="bids", replication=1, losses=(fake.loss("w1", seconds=14.2),)), KEPT),
    findings=(
        views.Finding(
            what="job clicks lacks 1 copy: worker w1 has no room for 1 vnode",
            remedy="see `rhinoctl groups show clicks`; start another worker",
        ),
    ),
)
NO_PAUSE = fake.operation(pause_ms=0.0)
NO_BATCH = fake.operation(pause_ms=None)

FEWER = fake.job(instances_asked=5)
"""A failover has left it fewer instances than were asked for."""

EMPTIED = fake.job(
    forfeited={
        Vnode(0): BatchTime(0, 12),
        Vnode(2): BatchTime(0, 12),
        Vnode(5): BatchTime(0, 40),
    }
)
"""State of it was given up, twice."""

FORFEITING = fake.failover(
    forfeited=(Vnode(0), Vnode(2)), forfeited_bytes=18_400, forfeited_seen=1_699_999_990.0
)
FORGOTTEN = fake.failover(id=OpId("op-10"), recover_ms=None, forfeited=(Vnode(0),))
"""As after a restart of the controller: nobody knows what was there."""

FAILING = fake.failover(
    phase=Phase.MARKED,
    recover_ms=None,
    replayed_batches=None,
    total_ms=None,
    bytes_moved=0,
    progress="3 of 8 vnodes recovered",
    times={"armed": 1.0, "marked": 1.25},
)

SHOWN: list[tuple[str, tuple[str, ...], str, Any, Exit]] = [
    ("status", ("status",), "/v1/status", fake.status(), Exit.DONE),
    ("status-degraded", ("status",), "/v1/status", DEGRADED, Exit.DEGRADED),
    ("status-copies", ("status",), "/v1/status", REPLICATED, Exit.DEGRADED),
    ("job-show-copies", ("job", "show", "clicks"), "/v1/jobs/clicks", KEPT, Exit.DONE),
    ("op-show-failover", ("op", "show", "op-9"), "/v1/ops/op-9", fake.failover(), Exit.DONE),
    ("op-show-forfeited", ("op", "show", "op-9"), "/v1/ops/op-9", FORFEITING, Exit.DONE),
    ("op-show-forgotten", ("op", "show", "op-10"), "/v1/ops/op-10", FORGOTTEN, Exit.DONE),
    (
        *("op-list-forfeited", ("op", "list"), "/v1/ops"),
        *(views.OperationList(operations=(FORGOTTEN, FORFEITING)), Exit.DONE),
    ),
    ("job-show-emptied", ("job", "show", "clicks"), "/v1/jobs/clicks", EMPTIED, Exit.DONE),
    ("status-emptied", ("status",), "/v1/status", fake.status(jobs=(EMPTIED,)), Exit.DONE),
    ("op-show-failing", ("op", "show", "op-9"), "/v1/ops/op-9", FAILING, Exit.DONE),
    (
        *("op-list-failover", ("op", "list"), "/v1/ops"),
        *(views.OperationList(operations=(FAILING, fake.failover())), Exit.DONE),
    ),
    ("job-list", ("job", "list"), "/v1/jobs", views.JobList(jobs=(fake.job(), IDLE)), Exit.DONE),
    ("job-list-none", ("job", "list"), "/v1/jobs", views.JobList(jobs=()), Exit.DONE),
    ("job-show", ("job", "show", "clicks"), "/v1/jobs/clicks", fake.job(), Exit.DONE),
    ("job-show-fewer", ("job", "show", "clicks"), "/v1/jobs/clicks", FEWER, Exit.DONE),
    ("status-fewer", ("status",), "/v1/status", fake.status(jobs=(FEWER,)), Exit.DONE),
    ("job-show-idle", ("job", "show", "clicks"), "/v1/jobs/clicks", IDLE, Exit.DONE),
    (
        *("op-list", ("op", "list"), "/v1/ops"),
        *(views.OperationList(operations=(RESCALE, RUNNING, fake.operation())), Exit.DONE),
    ),
    ("op-list-none", ("op", "list"), "/v1/ops", views.OperationList(operations=()), Exit.DONE),
    ("op-show", ("op", "show", "op-7"), "/v1/ops/op-7", fake.operation(), Exit.DONE),
    ("op-show-no-pause", ("op", "show", "op-7"), "/v1/ops/op-7", NO_PAUSE, Exit.DONE),
    ("op-show-no-batch", ("op", "show", "op-7"), "/v1/ops/op-7", NO_BATCH, Exit.DONE),
    ("op-show-aborted", ("op", "show", "op-8"), "/v1/ops/op-8", RESCALE, Exit.DONE),
]


@pytest.mark.parametrize(("name", "argv", "path", "view", "exit_code"), SHOWN)
def test_tables(
    controller: FakeController,
    run: Any,
    golden: Callable[[str, Any], None],
    name: str,
    argv: tuple[str, ...],
    path: str,
    view: Any,
    exit_code: Exit,
) -> None:
    controller.answers["GET", path] = view
    ended = run(*argv)
    assert ended.exit_code == exit_code
    golden(name, ended)


@pytest.mark.parametrize(("name", "argv", "path", "view", "exit_code"), SHOWN)
def test_json_is_the_whole_view(
    controller: FakeController,
    run: Any,
    name: str,
    argv: tuple[str, ...],
    path: str,
    view: Any,
    exit_code: Exit,
) -> None:
    controller.answers["GET", path] = view
    ended = run(*argv, "--json")
    assert ended.exit_code == exit_code
    assert codec.from_json(type(view), json.loads(ended.stdout)) == view
    assert ended.stderr == ""


@pytest.mark.parametrize("argv", [("status",), ("op", "show", "op-7")])
def test_json(controller: FakeController, run: Any, golden: Any, argv: tuple[str, ...]) -> None:
    small = fake.status(
        jobs=(fake.job(instances=(fake.instance(0, "w1", range(2)),), vnodes=2, members={}),),
        workers=(fake.worker(1),),
        findings=(LOST,),
    )
    controller.answers["GET", "/v1/status"] = small
    controller.answers["GET", "/v1/ops/op-7"] = fake.operation()
    golden(f"json-{'-'.join(argv[:2])}", run(*argv, "--json"))


def test_what_people_name_is_no_markup(controller: FakeController, run: Any) -> None:
    odd = fake.job(name="[bold]x[/bold]:smile:")
    controller.answers["GET", "/v1/jobs"] = views.JobList(jobs=(odd,))
    assert "[bold]x[/bold]:smile:" in run("job", "list").stdout


def test_all_vnodes_are_shown(controller: FakeController, run: Any) -> None:
    vnodes = tuple(Vnode(v) for v in range(0, 1024, 2))
    wide = replace(fake.instance(0, "w1", range(0)), vnodes=vnodes)
    controller.answers["GET", "/v1/jobs/clicks"] = fake.job(instances=(wide,), vnodes=1024)
    shown = "".join(run("job", "show", "clicks").stdout.split())
    assert format_vnodes(vnodes) in shown


def test_a_batch_that_cannot_be_applied_is_shown_with_the_operator_s_words(
    controller: FakeController, run: Any
) -> None:
    poison = "batch 0/42 at i0: [ARITHMETIC_OVERFLOW] sum(v) leaves the range of long"
    one = fake.instance(0, "w1", range(2), poison=poison)
    controller.answers["GET", "/v1/jobs/clicks"] = fake.job(instances=(one,), vnodes=2)
    assert f"cannot apply {poison}" in " ".join(run("job", "show", "clicks").stdout.split())
    found = fake.status(findings=(views.Finding(what=poison, remedy="do so"),))
    controller.answers["GET", "/v1/status"] = found
    assert poison in " ".join(run("status").stdout.split())


def test_what_an_instance_fails_at_is_shown_with_its_job(
    controller: FakeController, run: Any
) -> None:
    failing = fake.instance(0, "w1", range(2), fault="000012.sst is torn (corrupt-file)")
    controller.answers["GET", "/v1/jobs/clicks"] = fake.job(instances=(failing,), vnodes=2)
    shown = " ".join(run("job", "show", "clicks").stdout.split())
    assert "set back i0 on w1: 000012.sst is torn (corrupt-file)" in shown


def test_version(run: Any) -> None:
    image = json.loads(run("version", "--json").stdout)
    assert image.keys() == {"rhinoctl", "protocol", "format", "python", "pyspark"}
    assert run("version").exit_code == Exit.DONE


def test_batch_times_are_generation_and_batch(controller: FakeController, run: Any) -> None:
    controller.answers["GET", "/v1/jobs/clicks"] = fake.job(batch=BatchTime(2, 17))
    image = json.loads(run("job", "show", "clicks", "--json").stdout)
    assert image["batch"] == [2, 17]
    assert image["members"] == {"3": [WorkerId("w2")]}
