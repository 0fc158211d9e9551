"""Replica groups, replication and checkpoints by hand: shown, planned, waited for, degraded."""

import json
import os
import signal
from typing import Any

import pytest

from rhinoctl.errors import Exit
from rhinoctl.ids import BatchTime
from rhinoctl.ops import checkpoint as checkpoint_ops
from rhinoctl.ops import groups as ops
from rhinoctl.protocol import codec, views
from rhinoctl.protocol.epochs import Role
from tests.fakes import controller as fake
from tests.fakes.controller import FakeController

GROUPS = "/v1/jobs/clicks/groups"
CHECKPOINT = "/v1/jobs/clicks/checkpoint"
SET = "/v1/jobs/clicks/set"


def joining(worker: str, **changes: Any) -> views.MemberView:
    fields = {"role": Role.JOINING, "whole": False, "lag_s": None, **changes}
    return fake.member(worker, **fields)


MOVING = fake.groups(
    *(fake.group(v, fake.member("w2"), planned=("w2", "w3")) for v in range(3)),
    fake.group(3, fake.member("w2"), joining("w3")),
    fake.group(4, fake.member("w1"), joining("w3", whole=True), planned=("w3",)),
    fake.group(8, fake.member("w1"), fake.member("w2", whole=False)),
    replication=2,
)
"""Copies that join, gather, are whole, and leave; one of which files are missing."""

LACKING = fake.groups(
    *(fake.group(v, fake.member("w2")) for v in range(4)),
    *(fake.group(v) for v in range(4, 6)),
    replication=2,
    lacking=8,
    reasons=(
        "replication 2 needs 3 workers, there are 2",
        "worker w1 has no room for 2 vnodes",
    ),
)
"""As planned, but the plan has not all copies."""

UNWANTED = fake.groups(
    *(fake.group(v, fake.member("w2"), planned=()) for v in range(4)), replication=0
)
UNREADABLE = fake.groups(
    *(fake.group(v, fake.member("w2")) for v in range(8)),
    unreadable={"w3": "segment 0-621.seg was decided and cannot be read"},
)
"""As planned without the worker that cannot read what it has."""

NONE = fake.groups(*(fake.group(v) for v in range(8)), replication=0)

SHOWN: list[tuple[str, tuple[str, ...], views.GroupsView, Exit]] = [
    ("show", (), fake.groups(), Exit.DONE),
    ("show-vnodes", ("--vnodes",), fake.groups(), Exit.DONE),
    ("show-moving", (), MOVING, Exit.DEGRADED),
    ("show-lacking", (), LACKING, Exit.DEGRADED),
    ("show-unreadable", (), UNREADABLE, Exit.DEGRADED),
    ("show-none", (), NONE, Exit.DONE),
]
PLANNED: list[tuple[str, tuple[str, ...], views.GroupsView, Exit]] = [
    ("plan", ("--replication", "2"), MOVING, Exit.HAS_CHANGES),
    ("plan-nothing", (), fake.groups(), Exit.DONE),
    ("plan-lacking", ("--replication", "2"), LACKING, Exit.DONE),
    ("plan-leaves", ("--replication", "0"), UNWANTED, Exit.HAS_CHANGES),
]


@pytest.mark.parametrize(("name", "options", "view", "exit_code"), SHOWN + PLANNED)
def test_groups(
    controller: FakeController,
    run: Any,
    golden: Any,
    name: str,
    options: tuple[str, ...],
    view: views.GroupsView,
    exit_code: Exit,
) -> None:
    controller.answers["POST", GROUPS] = view
    argv = ("groups", name.split("-")[0], "clicks", *options)
    ended = run(*argv)
    assert ended.exit_code == exit_code
    golden(f"groups-{name}", ended)
    wanted = int(options[1]) if "--replication" in options else None
    assert controller.asked == [("POST", GROUPS, {"replication": wanted})]
    as_json = run(*argv, "--json")
    assert as_json.exit_code == exit_code
    assert codec.from_json(views.GroupsView, json.loads(as_json.stdout)) == view


def test_a_copy_without_another_place_is_no_change(controller: FakeController, run: Any) -> None:
    """It is not planned, but stays: one more would be missing without it."""
    chain = fake.group(0, fake.member("w2"), planned=())
    view = fake.groups(chain, lacking=1, leaves=1, reasons=("worker w2 has no room for 1 vnode",))
    controller.answers["POST", GROUPS] = view
    assert run("groups", "plan", "clicks").exit_code == Exit.DONE
    assert run("groups", "apply", "clicks").exit_code == Exit.DEGRADED


# --- apply ---------------------------------------------------------------------------------------


def test_apply_waits_until_all_is_as_planned(
    controller: FakeController, run: Any, golden: Any
) -> None:
    controller.answers["POST", GROUPS] = [
        fake.groups(fake.group(0, planned=("w2",))),
        fake.groups(fake.group(0, joining("w2"))),
        fake.groups(fake.group(0, fake.member("w2"))),
    ]
    ended = run("groups", "apply", "clicks")
    assert ended.exit_code == Exit.DONE
    golden("groups-apply", ended)
    assert len(controller.asked) == 3


def test_apply_waits_for_those_that_leave(controller: FakeController, run: Any) -> None:
    controller.answers["POST", GROUPS] = [UNWANTED, NONE]
    assert run("groups", "apply", "clicks").exit_code == Exit.DONE
    assert len(controller.asked) == 2


def test_apply_over_a_restart_of_the_controller(controller: FakeController, run: Any) -> None:
    controller.answers["POST", GROUPS] = [UNWANTED, fake.problem("not-running", "x"), NONE]
    assert run("groups", "apply", "clicks").exit_code == Exit.DONE


def test_apply_ends_degraded_if_the_rest_has_no_place(
    controller: FakeController, run: Any, golden: Any
) -> None:
    controller.answers["POST", GROUPS] = [MOVING, LACKING]
    ended = run("groups", "apply", "clicks")
    assert ended.exit_code == Exit.DEGRADED
    golden("groups-apply-lacking", ended)


def test_apply_does_not_wait_for_a_batch_of_a_query_that_does_not_run(
    controller: FakeController, run: Any, golden: Any
) -> None:
    chain = fake.group(0, joining("w2"))
    controller.answers["POST", GROUPS] = fake.groups(chain, waits_for_batch=True)
    ended = run("groups", "apply", "clicks")
    assert ended.exit_code == Exit.DEGRADED
    golden("groups-apply-no-query", ended)
    assert len(controller.asked) == 1


def test_apply_has_a_deadline(
    controller: FakeController, run: Any, golden: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ops, "APPLY_DEADLINE_S", 0.01)
    controller.answers["POST", GROUPS] = MOVING
    ended = run("groups", "apply", "clicks")
    assert ended.exit_code == Exit.DEGRADED
    golden("groups-apply-deadline", ended)


def test_ctrl_c_while_copies_are_waited_for(
    controller: FakeController, interrupted: Any, golden: Any
) -> None:
    def press(body: bytes) -> views.GroupsView:
        os.kill(os.getpid(), signal.SIGINT)
        return MOVING

    controller.answers["POST", GROUPS] = [MOVING, press]
    ended = interrupted("groups", "apply", "clicks")
    assert ended.exit_code == 130
    golden("groups-apply-interrupted", ended)


# --- replication ---------------------------------------------------------------------------------


def test_replication_is_set(controller: FakeController, run: Any, golden: Any) -> None:
    detail = "job clicks wants 2 further copies of each vnode"
    controller.answers["POST", SET] = views.Acknowledged(detail=detail)
    ended = run("job", "set", "clicks", "replication=2")
    assert ended.exit_code == Exit.DONE
    golden("job-set", ended)
    assert controller.asked == [("POST", SET, {"replication": 2})]


# --- checkpoints ---------------------------------------------------------------------------------


def test_a_checkpoint_is_asked_for_once_and_waited_for(
    controller: FakeController, run: Any, golden: Any
) -> None:
    controller.answers["POST", CHECKPOINT] = [
        fake.checkpoint(done=3, replicated=1),
        fake.checkpoint(replicated=12),
        fake.checkpoint(),
    ]
    ended = run("checkpoint", "clicks")
    assert ended.exit_code == Exit.DONE
    golden("checkpoint", ended)
    assert [body for _, _, body in controller.asked] == [
        {"through": None},
        {"through": [0, 41]},
        {"through": [0, 41]},
    ]


def test_a_checkpoint_as_json(controller: FakeController, run: Any) -> None:
    controller.answers["POST", CHECKPOINT] = fake.checkpoint()
    ended = run("checkpoint", "clicks", "--json")
    found = codec.from_json(views.CheckpointView, json.loads(ended.stdout))
    assert found == fake.checkpoint()


@pytest.mark.parametrize(
    ("name", "changes"),
    [("checkpoint-slow", {"done": 13, "replicated": 9}), ("checkpoint-lag", {"replicated": 12})],
)
def test_a_checkpoint_that_does_not_end_says_what_is_missing(
    controller: FakeController,
    run: Any,
    golden: Any,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    changes: dict[str, int],
) -> None:
    monkeypatch.setattr(checkpoint_ops, "CHECKPOINT_DEADLINE_S", 0.01)
    controller.answers["POST", CHECKPOINT] = fake.checkpoint(**changes)
    ended = run("checkpoint", "clicks")
    assert ended.exit_code == Exit.DEGRADED
    golden(name, ended)


def test_a_checkpoint_whose_query_ends_has_begun(
    controller: FakeController, run: Any, golden: Any
) -> None:
    ended = fake.problem("refused", "job clicks: no query runs")
    controller.answers["POST", CHECKPOINT] = [fake.checkpoint(done=3, replicated=1), ended]
    found = run("checkpoint", "clicks")
    assert found.exit_code == Exit.DEGRADED
    golden("checkpoint-ended", found)


def test_a_checkpoint_that_is_refused_has_not_begun(controller: FakeController, run: Any) -> None:
    controller.answers["POST", CHECKPOINT] = fake.problem("refused", "job clicks: no query runs")
    assert run("checkpoint", "clicks").exit_code == Exit.REFUSED


def test_ctrl_c_while_a_checkpoint_is_waited_for(
    controller: FakeController, interrupted: Any, golden: Any
) -> None:
    def press(body: bytes) -> views.CheckpointView:
        os.kill(os.getpid(), signal.SIGINT)
        return fake.checkpoint(replicated=12)

    controller.answers["POST", CHECKPOINT] = [fake.checkpoint(done=3, replicated=1), press]
    ended = interrupted("checkpoint", "clicks")
    assert ended.exit_code == 130
    golden("checkpoint-interrupted", ended)


def test_a_checkpoint_of_a_job_without_batches(
    controller: FakeController, run: Any, golden: Any
) -> None:
    controller.answers["POST", CHECKPOINT] = fake.checkpoint(through=BatchTime(0, -1))
    ended = run("checkpoint", "clicks")
    assert ended.exit_code == Exit.DONE
    golden("checkpoint-none", ended)
    assert len(controller.asked) == 1
