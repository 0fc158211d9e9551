"""Failover, switchover and drain: the plans, the waits, the ends, and Ctrl-C in the middle."""

import json
import os
import signal
from typing import Any

import pytest

from rhinoctl.errors import Exit
from rhinoctl.ids import OpId, Vnode
from rhinoctl.ops import workers as ops
from rhinoctl.protocol import views
from rhinoctl.protocol.handover import Kind, Phase
from tests.fakes import controller as fake
from tests.fakes.controller import FakeController

FAILOVER = ("failover", "w1")
SWITCHOVER = ("switchover", "w1")
DRAIN = ("drain", "w1")

STRANDED = fake.problem(
    "no-copy",
    "vnodes 12-15 of job clicks have no other copy: 12.0 MB of state, the newest of batch 0/41,"
    " 40 s ago, would be lost",
    "start the agent of w1 again; or accept the loss with --force",
)
HEALTHY = fake.problem(
    "healthy-target",
    "worker w1 is healthy: it answered 0.3 s ago",
    "move what it owns with `rhinoctl switchover w1`, or take all off it: `rhinoctl drain w1`",
)
UNKNOWN = fake.problem(
    "unknown-worker",
    "there is no worker or instance w9: the workers are w1, w2, w3",
    "see `rhinoctl status`",
)


def several(*views_: views.OperationView) -> views.OperationList:
    return views.OperationList(operations=views_)


def begun(view: views.OperationView, phase: Phase | None = None) -> views.OperationView:
    """An operation as it was when it began, or in another phase."""
    if phase is None:
        phase = Phase.ARMED if view.kind is Kind.FAILOVER and view.id else Phase.PLANNED
    kept = ("id", "job", "kind", "moves", "origins")
    kept += ("forfeited", "forfeited_bytes", "forfeited_seen")
    image = {name: getattr(view, name) for name in kept}
    make = fake.failover if view.kind is Kind.FAILOVER else fake.operation
    unknown: dict[str, Any] = {"pause_ms": None, "recover_ms": None, "total_ms": None}
    changes = {**image, **unknown, "phase": phase, "replayed_batches": None, "bytes_moved": 0}
    changes["reason"] = view.reason if view.kind is Kind.FAILOVER else ""
    return make(**changes, marker=None, lost=view.lost, state_bytes=view.state_bytes)


SWITCHED = fake.operation(id=OpId("op-8"), kind=Kind.SWITCHOVER, bytes_moved=0)
DRAINED = fake.operation(id=OpId("op-8"), kind=Kind.DRAIN)
FORCED = fake.failover(
    id=OpId(""),
    forfeited=(Vnode(0), Vnode(2)),
    forfeited_bytes=18_400,
    forfeited_seen=1_699_999_990.0,
)
OTHER = fake.failover(id=OpId("op-10"), job="bids", recover_ms=1_210.0, replayed_batches=1)


@pytest.fixture
def serving(controller: FakeController) -> FakeController:
    """Jobs that are live, and no copy on w1 any more."""
    without = [fake.group(v, fake.member("w3")) for v in range(4, 8)]
    controller.answers |= {
        ("GET", "/v1/status"): fake.status(),
        ("GET", "/v1/jobs"): views.JobList(jobs=(fake.job(),)),
        ("GET", "/v1/jobs/clicks"): fake.job(),
        ("GET", "/v1/jobs/bids"): fake.job(name="bids"),
        ("POST", "/v1/jobs/clicks/groups"): fake.groups(*without),
    }
    return controller


def bodies(controller: FakeController, path: str) -> list[Any]:
    return [body for _, asked, body in controller.asked if asked == path]


# --- failover ------------------------------------------------------------------------------------


def test_a_failover_is_followed_for_each_job(
    serving: FakeController, run: Any, golden: Any
) -> None:
    serving.answers["POST", "/v1/failover"] = several(begun(fake.failover()), begun(OTHER))
    serving.answers["GET", "/v1/ops/op-9"] = [
        begun(fake.failover(), Phase.MARKED),
        fake.failover(),
    ]
    serving.answers["GET", "/v1/ops/op-10"] = OTHER
    ended = run(*FAILOVER)
    assert ended.exit_code == Exit.DONE
    golden("failover", ended)
    assert bodies(serving, "/v1/failover") == [
        {"target": "w1", "to": [], "parallel": None, "force": False, "dry_run": False}
    ]


def test_what_a_failover_is_asked_for(serving: FakeController, run: Any) -> None:
    serving.answers["POST", "/v1/failover"] = several()
    options = ("--to", "w2, i5,w2", "--parallel", "2", "--force", "--dry-run")
    assert run(*FAILOVER, *options).exit_code == Exit.DONE
    assert bodies(serving, "/v1/failover") == [
        {"target": "w1", "to": ["w2", "i5"], "parallel": 2, "force": True, "dry_run": True}
    ]


def test_the_time_of_recovery_is_waited_for(serving: FakeController, run: Any) -> None:
    serving.answers["POST", "/v1/failover"] = several(begun(fake.failover()))
    early = fake.failover(recover_ms=None)
    serving.answers["GET", "/v1/ops/op-9"] = [early, early, fake.failover()]
    found = json.loads(run(*FAILOVER, "--json").stdout)
    assert [view["recover_ms"] for view in found["operations"]] == [850.0]


def test_no_wait(serving: FakeController, run: Any) -> None:
    serving.answers["POST", "/v1/failover"] = several(begun(fake.failover()))
    ended = run(*FAILOVER, "--no-wait", "--json")
    assert ended.exit_code == Exit.DONE
    assert json.loads(ended.stdout)["operations"][0]["phase"] == "armed"
    assert len(serving.asked) == 1


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("unknown", UNKNOWN),
        ("no-copy", STRANDED),
        ("healthy", HEALTHY),
    ],
)
def test_a_failover_that_is_refused(
    serving: FakeController, run: Any, golden: Any, name: str, answer: views.Problem
) -> None:
    serving.answers["POST", "/v1/failover"] = answer
    ended = run("failover", "w9" if name == "unknown" else "w1")
    assert ended.exit_code == Exit.REFUSED
    golden(f"failover-{name}", ended)


# --- plans, and nothing to do --------------------------------------------------------------------

PLANS = [
    ("failover", FAILOVER, begun(fake.failover(id=OpId("")))),
    ("failover-forced", (*FAILOVER, "--force"), begun(FORCED)),
    ("failover-copies-only", FAILOVER, begun(fake.failover(id=OpId(""), moves={}, origins={}))),
    ("switchover", SWITCHOVER, begun(fake.operation(id=OpId(""), kind=Kind.SWITCHOVER))),
    ("drain", DRAIN, begun(fake.operation(id=OpId(""), kind=Kind.DRAIN))),
]


@pytest.mark.parametrize(("name", "argv", "plan"), PLANS)
def test_a_dry_run_with_changes(
    serving: FakeController, run: Any, golden: Any, name: str, argv: Any, plan: Any
) -> None:
    serving.answers["POST", f"/v1/{argv[0]}"] = several(plan)
    serving.answers["POST", "/v1/jobs/clicks/groups"] = fake.groups()
    ended = run(*argv, "--dry-run")
    assert ended.exit_code == Exit.HAS_CHANGES
    golden(f"{name}-dry-run", ended)
    assert [body["dry_run"] for body in bodies(serving, f"/v1/{argv[0]}")] == [True]


@pytest.mark.parametrize("dry_run", [False, True])
@pytest.mark.parametrize("argv", [FAILOVER, SWITCHOVER, DRAIN])
def test_nothing_to_do(
    serving: FakeController, run: Any, golden: Any, argv: Any, dry_run: bool
) -> None:
    serving.answers["POST", f"/v1/{argv[0]}"] = several()
    ended = run(*argv, *(["--dry-run"] if dry_run else []))
    assert ended.exit_code == Exit.DONE
    golden(f"{argv[0]}-nothing{'-dry-run' if dry_run else ''}", ended)


def test_a_drain_of_copies_alone_has_changes(serving: FakeController, run: Any) -> None:
    """An idle worker owns nothing, but others rely on the copies that it holds."""
    serving.answers["POST", "/v1/drain"] = several()
    serving.answers["POST", "/v1/jobs/clicks/groups"] = fake.groups(
        fake.group(8, fake.member("w1"))
    )
    assert run(*DRAIN, "--dry-run").exit_code == Exit.HAS_CHANGES


# --- switchover and drain ------------------------------------------------------------------------


def test_a_switchover(serving: FakeController, run: Any, golden: Any) -> None:
    serving.answers["POST", "/v1/switchover"] = several(begun(SWITCHED))
    serving.answers["GET", "/v1/ops/op-8"] = [begun(SWITCHED, Phase.ARMED), SWITCHED]
    ended = run(*SWITCHOVER, "--to", "w2")
    assert ended.exit_code == Exit.DONE
    golden("switchover", ended)
    assert bodies(serving, "/v1/switchover") == [{"target": "w1", "to": "w2", "dry_run": False}]


def test_one_of_two_was_aborted(serving: FakeController, run: Any, golden: Any) -> None:
    aborted = fake.operation(
        id=OpId("op-9"),
        job="bids",
        kind=Kind.SWITCHOVER,
        phase=Phase.ABORTED,
        reason="deadline passed while warming; not ready: vnode 3",
        pause_ms=None,
        marker=None,
    )
    serving.answers["POST", "/v1/switchover"] = several(begun(SWITCHED), begun(aborted))
    serving.answers["GET", "/v1/ops/op-8"] = SWITCHED
    serving.answers["GET", "/v1/ops/op-9"] = aborted
    ended = run(*SWITCHOVER)
    assert ended.exit_code == Exit.ABORTED
    golden("switchover-aborted", ended)


def test_two_of_two_were_aborted(serving: FakeController, run: Any) -> None:
    first, second = (
        fake.operation(id=OpId(op), kind=Kind.SWITCHOVER, phase=Phase.ABORTED, reason="asked for")
        for op in ("op-8", "op-9")
    )
    serving.answers["POST", "/v1/switchover"] = several(first, second)
    ended = run(*SWITCHOVER)
    assert ended.exit_code == Exit.ABORTED
    assert ended.stderr.count("error:") == 1
    assert all(op in ended.stderr for op in ("op-8", "op-9"))


def leaving(*vnodes: int, **changes: Any) -> views.GroupsView:
    """Copies on w1 that shall be on w2."""
    planned = {"planned": ("w2",)}
    chains = [fake.group(v, fake.member("w1"), **planned) for v in vnodes]
    return fake.groups(*chains, fake.group(4, fake.member("w3")), **changes)


def stuck() -> views.GroupsView:
    """Copies on w1 that have no other place, and stay."""
    chains = [fake.group(v, fake.member("w1"), planned=()) for v in (8, 9)]
    reasons = ("worker w2 has no room for 2 vnodes",)
    return fake.groups(*chains, lacking=2, reasons=reasons)


def test_a_drain_waits_until_nothing_is_held(
    serving: FakeController, run: Any, golden: Any
) -> None:
    serving.answers["POST", "/v1/drain"] = several(begun(DRAINED))
    serving.answers["GET", "/v1/ops/op-8"] = DRAINED
    last = fake.groups(fake.group(8, fake.member("w2")))
    serving.answers["POST", "/v1/jobs/clicks/groups"] = [leaving(8, 9), leaving(8), last]
    ended = run(*DRAIN)
    assert ended.exit_code == Exit.DONE
    golden("drain", ended)
    assert len(bodies(serving, "/v1/jobs/clicks/groups")) == 3


def test_a_drain_as_json(serving: FakeController, run: Any) -> None:
    serving.answers["POST", "/v1/drain"] = several(begun(DRAINED))
    serving.answers["GET", "/v1/ops/op-8"] = DRAINED
    found = json.loads(run(*DRAIN, "--json").stdout)
    assert (found["worker"], found["held"]) == ("w1", {})
    assert [view["id"] for view in found["operations"]] == ["op-8"]


BUSY = fake.problem("busy", "drain op-8 of job clicks is warming", "wait for it")


def test_a_drain_that_is_under_way_is_waited_for(serving: FakeController, run: Any) -> None:
    """As after Ctrl-C: the same command again is no error."""
    foreign = fake.operation(id=OpId("op-7"), kind=Kind.DRAIN, job="bids", phase=Phase.WARMING)
    running = (begun(DRAINED), foreign, begun(SWITCHED), fake.operation(kind=Kind.DRAIN))
    serving.answers["POST", "/v1/drain"] = [BUSY, several()]
    serving.answers["GET", "/v1/ops"] = several(*running)
    serving.answers["GET", "/v1/ops/op-8"] = DRAINED
    ended = run(*DRAIN, "--json")
    assert ended.exit_code == Exit.DONE
    assert [view["id"] for view in json.loads(ended.stdout)["operations"]] == ["op-8"]
    assert len(bodies(serving, "/v1/drain")) == 2


def test_a_drain_is_refused_while_something_else_is_under_way(
    serving: FakeController, run: Any
) -> None:
    serving.answers["POST", "/v1/drain"] = BUSY
    serving.answers["GET", "/v1/ops"] = several(begun(SWITCHED))
    assert run(*DRAIN).exit_code == Exit.BUSY


def test_a_drain_that_has_no_other_place_is_degraded(
    serving: FakeController, run: Any, golden: Any
) -> None:
    serving.answers["POST", "/v1/drain"] = several()
    serving.answers["POST", "/v1/jobs/clicks/groups"] = [leaving(8, 9), stuck()]
    ended = run(*DRAIN)
    assert ended.exit_code == Exit.DEGRADED
    golden("drain-stuck", ended)


def test_a_drain_that_only_a_batch_could_end_is_not_waited_for(
    serving: FakeController, run: Any, golden: Any
) -> None:
    view = fake.operation(id=OpId("op-8"), kind=Kind.DRAIN, pause_ms=None, live=False)
    serving.answers["POST", "/v1/drain"] = several(begun(DRAINED))
    serving.answers["GET", "/v1/ops/op-8"] = view
    serving.answers["POST", "/v1/jobs/clicks/groups"] = leaving(8, 9, waits_for_batch=True)
    ended = run(*DRAIN)
    assert ended.exit_code == Exit.DEGRADED
    golden("drain-no-query", ended)
    assert len(bodies(serving, "/v1/jobs/clicks/groups")) == 1


def test_a_drain_that_was_aborted_is_not_waited_for(
    serving: FakeController, run: Any, golden: Any
) -> None:
    aborted = fake.operation(
        id=OpId("op-8"), kind=Kind.DRAIN, phase=Phase.ABORTED, reason="asked for", pause_ms=None
    )
    serving.answers["POST", "/v1/drain"] = several(begun(aborted))
    serving.answers["GET", "/v1/ops/op-8"] = aborted
    serving.answers["POST", "/v1/jobs/clicks/groups"] = leaving(8)
    ended = run(*DRAIN)
    assert ended.exit_code == Exit.ABORTED
    golden("drain-aborted", ended)


def test_a_drain_that_does_not_end(
    serving: FakeController, run: Any, golden: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ops, "DRAIN_DEADLINE_S", 0.01)
    serving.answers["POST", "/v1/drain"] = several()
    serving.answers["POST", "/v1/jobs/clicks/groups"] = leaving(8)
    ended = run(*DRAIN)
    assert ended.exit_code == Exit.DEGRADED
    golden("drain-deadline", ended)


def test_a_worker_that_still_owns_is_waited_for(serving: FakeController, run: Any) -> None:
    """Its chain is as planned, but owners move by operations: it is not over."""
    owned, last = fake.group(0, fake.member("w2")), fake.group(4, fake.member("w2"))
    serving.answers["POST", "/v1/drain"] = several()
    serving.answers["POST", "/v1/jobs/clicks/groups"] = [fake.groups(owned), fake.groups(last)]
    assert run(*DRAIN).exit_code == Exit.DONE


def test_a_drain_that_is_not_waited_for(serving: FakeController, run: Any, golden: Any) -> None:
    serving.answers["POST", "/v1/drain"] = several()
    serving.answers["POST", "/v1/jobs/clicks/groups"] = leaving(8)
    ended = run(*DRAIN, "--no-wait")
    assert ended.exit_code == Exit.DONE
    golden("drain-no-wait", ended)


@pytest.mark.parametrize(
    ("name", "draining", "options", "exit_code"),
    [
        ("drain-undo", True, (), Exit.DONE),
        ("drain-undo-nothing", False, (), Exit.DONE),
        ("drain-undo-dry-run", True, ("--dry-run",), Exit.HAS_CHANGES),
        ("drain-undo-nothing-dry-run", False, ("--dry-run",), Exit.DONE),
    ],
)
def test_a_drain_is_undone(
    serving: FakeController,
    run: Any,
    golden: Any,
    name: str,
    draining: bool,
    options: tuple[str, ...],
    exit_code: Exit,
) -> None:
    workers = (fake.worker(1, draining=draining), fake.worker(2, draining=True))
    serving.answers["GET", "/v1/status"] = fake.status(workers=workers)
    serving.answers["POST", "/v1/drain"] = several()
    ended = run(*DRAIN, "--undo", *options)
    assert ended.exit_code == exit_code
    golden(name, ended)
    wanted = {"worker": "w1", "undo": True, "dry_run": bool(options)}
    assert bodies(serving, "/v1/drain") == [wanted]


# --- Ctrl-C --------------------------------------------------------------------------------------


def test_ctrl_c_leaves_all_operations_running(
    serving: FakeController, interrupted: Any, golden: Any
) -> None:
    def press(body: bytes) -> views.OperationView:
        os.kill(os.getpid(), signal.SIGINT)
        return begun(SWITCHED, Phase.WARMING)

    second = begun(fake.operation(id=OpId("op-9"), kind=Kind.SWITCHOVER, job="bids"))
    serving.answers["POST", "/v1/switchover"] = several(begun(SWITCHED), second)
    serving.answers["GET", "/v1/ops/op-8"] = press
    ended = interrupted(*SWITCHOVER)
    assert ended.exit_code == 130
    golden("switchover-interrupted", ended)


def test_ctrl_c_does_not_offer_to_abort_a_failover(
    serving: FakeController, interrupted: Any
) -> None:
    def press(body: bytes) -> views.OperationView:
        os.kill(os.getpid(), signal.SIGINT)
        return begun(fake.failover(), Phase.ARMED)

    serving.answers["POST", "/v1/failover"] = several(begun(fake.failover()))
    serving.answers["GET", "/v1/ops/op-9"] = press
    ended = interrupted(*FAILOVER)
    assert ended.exit_code == 130
    assert "op watch op-9" in ended.stderr
    assert "op abort" not in ended.stderr


def test_ctrl_c_leaves_a_drain_going_on(
    serving: FakeController, interrupted: Any, golden: Any
) -> None:
    def press(body: bytes) -> views.GroupsView:
        os.kill(os.getpid(), signal.SIGINT)
        return leaving(8)

    serving.answers["POST", "/v1/drain"] = several()
    serving.answers["POST", "/v1/jobs/clicks/groups"] = [leaving(8), press]
    ended = interrupted(*DRAIN)
    assert ended.exit_code == 130
    golden("drain-interrupted", ended)
