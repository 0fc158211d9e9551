"""Handover, rescale, abort: the plan, the wait, the ends, and Ctrl-C in the middle."""

import json
import os
import signal
from typing import Any

import pytest

from rhinoctl.errors import Exit
from rhinoctl.ids import OpId
from rhinoctl.protocol import views
from rhinoctl.protocol.handover import Kind, Phase
from tests.fakes import controller as fake
from tests.fakes.controller import FakeController

HANDOVER = ("handover", "clicks", "--vnodes", "3,12", "--to", "i1")
RESCALE = ("rescale", "clicks", "--instances", "4")


def looks(*phases: Phase, **changes: Any) -> list[views.OperationView]:
    return [
        fake.operation(
            phase=phase,
            pause_ms=41.5 if phase is Phase.COMPLETE else None,
            total_ms=2000.0 if phase in (Phase.COMPLETE, Phase.ABORTED) else None,
            progress=f"progress of {phase.value}",
            **changes,
        )
        for phase in phases
    ]


@pytest.fixture
def serving(controller: FakeController) -> FakeController:
    controller.answers["GET", "/v1/jobs/clicks"] = fake.job()
    return controller


def test_a_handover_is_waited_for(serving: FakeController, run: Any, golden: Any) -> None:
    begun, *later = looks(Phase.PLANNED, Phase.WARMING, Phase.ARMED, Phase.MARKED, Phase.COMPLETE)
    serving.answers["POST", "/v1/jobs/clicks/handover"] = begun
    serving.answers["GET", "/v1/ops/op-7"] = later
    ended = run(*HANDOVER)
    assert ended.exit_code == Exit.DONE
    golden("handover", ended)
    assert serving.asked[0][2] == {"vnodes": [3, 12], "to": "i1", "dry_run": False}


def test_json_has_the_operation_and_nothing_else(serving: FakeController, run: Any) -> None:
    begun, *later = looks(Phase.PLANNED, Phase.COMPLETE)
    serving.answers["POST", "/v1/jobs/clicks/handover"] = begun
    serving.answers["GET", "/v1/ops/op-7"] = later
    ended = run(*HANDOVER, "--json")
    assert json.loads(ended.stdout)["phase"] == "complete"


def test_the_pause_is_waited_for(serving: FakeController, run: Any) -> None:
    done = looks(Phase.COMPLETE)[0]
    late = fake.operation(pause_ms=None)
    serving.answers["POST", "/v1/jobs/clicks/handover"] = looks(Phase.PLANNED)[0]
    serving.answers["GET", "/v1/ops/op-7"] = [late, late, done]
    assert json.loads(run(*HANDOVER, "--json").stdout)["pause_ms"] == 41.5


def test_an_aborted_one(serving: FakeController, run: Any, golden: Any) -> None:
    begun, *later = looks(Phase.PLANNED, Phase.ABORTED, kind=Kind.RESCALE, reason="no time left")
    serving.answers["POST", "/v1/jobs/clicks/rescale"] = begun
    serving.answers["GET", "/v1/ops/op-7"] = later
    ended = run(*RESCALE)
    assert ended.exit_code == Exit.ABORTED
    golden("rescale-aborted", ended)


def test_an_operation_that_somebody_else_began_is_followed(
    serving: FakeController, run: Any, golden: Any
) -> None:
    serving.answers["GET", "/v1/ops/op-7"] = looks(Phase.WARMING, Phase.MARKED, Phase.COMPLETE)
    ended = run("op", "watch", "op-7")
    assert ended.exit_code == Exit.DONE
    golden("op-watch", ended)
    serving.answers["GET", "/v1/ops/op-7"] = looks(Phase.WARMING, Phase.ABORTED, reason="no time")
    assert run("op", "watch", "op-7").exit_code == Exit.ABORTED


def test_no_wait(serving: FakeController, run: Any) -> None:
    serving.answers["POST", "/v1/jobs/clicks/rescale"] = looks(Phase.PLANNED)[0]
    ended = run(*RESCALE, "--no-wait", "--json")
    assert ended.exit_code == Exit.DONE
    assert json.loads(ended.stdout)["phase"] == "planned"
    assert [path for _, path, _ in serving.asked] == ["/v1/jobs/clicks/rescale"]


def test_a_dry_run_with_changes(serving: FakeController, run: Any, golden: Any) -> None:
    serving.answers["POST", "/v1/jobs/clicks/handover"] = looks(Phase.PLANNED, id=OpId(""))[0]
    ended = run(*HANDOVER, "--dry-run")
    assert ended.exit_code == Exit.HAS_CHANGES
    golden("handover-dry-run", ended)
    assert [body["dry_run"] for _, _, body in serving.asked] == [True]


def test_a_dry_run_that_only_ends_instances_has_changes(serving: FakeController, run: Any) -> None:
    planned = looks(Phase.PLANNED, id=OpId(""), moves={}, origins={})[0]
    serving.answers["POST", "/v1/jobs/clicks/rescale"] = planned
    ended = run(*RESCALE, "--dry-run")
    assert ended.exit_code == Exit.HAS_CHANGES
    assert "instances without vnodes end" in ended.stdout


@pytest.mark.parametrize("argv", [(*HANDOVER, "--dry-run"), HANDOVER])
def test_nothing_to_do(serving: FakeController, run: Any, golden: Any, argv: Any) -> None:
    empty = looks(Phase.COMPLETE, id=OpId(""), moves={}, origins={})[0]
    serving.answers["POST", "/v1/jobs/clicks/handover"] = empty
    ended = run(*argv)
    assert ended.exit_code == Exit.DONE
    golden("handover-nothing" + ("-dry-run" if "--dry-run" in argv else ""), ended)


def test_ctrl_c_leaves_the_operation_running(
    serving: FakeController, interrupted: Any, golden: Any
) -> None:
    def interrupt(body: bytes) -> views.OperationView:
        os.kill(os.getpid(), signal.SIGINT)
        return looks(Phase.WARMING)[0]

    serving.answers["POST", "/v1/jobs/clicks/handover"] = looks(Phase.WARMING)[0]
    serving.answers["GET", "/v1/ops/op-7"] = interrupt
    ended = interrupted(*HANDOVER)
    assert ended.exit_code == 130
    golden("handover-interrupted", ended)
    assert [verb for verb, _, _ in serving.asked] == ["POST", "GET"]


def test_a_controller_may_be_away_for_a_while(serving: FakeController, run: Any) -> None:
    done = looks(Phase.COMPLETE)[0]
    serving.answers["POST", "/v1/jobs/clicks/handover"] = looks(Phase.PLANNED)[0]
    serving.answers["GET", "/v1/ops/op-7"] = [b"hang up", fake.problem("not-running", "x"), done]
    assert run(*HANDOVER).exit_code == Exit.DONE


def test_abort(controller: FakeController, run: Any, golden: Any) -> None:
    begun, *later = looks(Phase.ABORTING, Phase.ABORTED, reason="too slow")
    controller.answers["POST", "/v1/ops/op-7/abort"] = begun
    controller.answers["GET", "/v1/ops/op-7"] = later
    ended = run("op", "abort", "op-7", "--reason", "too slow")
    assert ended.exit_code == Exit.DONE
    golden("op-abort", ended)
    assert controller.asked[0][2] == {"reason": "too slow"}


def test_an_abort_that_comes_too_late(controller: FakeController, run: Any, golden: Any) -> None:
    controller.answers["POST", "/v1/ops/op-7/abort"] = looks(Phase.MARKED)[0]
    controller.answers["GET", "/v1/ops/op-7"] = looks(Phase.COMPLETE)[0]
    ended = run("op", "abort", "op-7")
    assert ended.exit_code == Exit.REFUSED
    golden("op-abort-late", ended)


@pytest.mark.parametrize("kind", [Kind.HANDOVER, Kind.FAILOVER])
def test_an_abort_of_what_has_ended_says_when_and_how(
    controller: FakeController, run: Any, golden: Any, kind: Kind
) -> None:
    controller.answers["POST", "/v1/ops/op-7/abort"] = looks(Phase.COMPLETE, kind=kind)[0]
    ended = run("op", "abort", "op-7")
    assert ended.exit_code == Exit.REFUSED
    golden(f"op-abort-ended-{kind.value}", ended)


def test_revert(serving: FakeController, run: Any, golden: Any) -> None:
    begun, *later = looks(Phase.PLANNED, Phase.COMPLETE, id=OpId("op-8"), reverts=OpId("op-7"))
    serving.answers["POST", "/v1/ops/op-7/revert"] = begun
    serving.answers["GET", "/v1/ops/op-8"] = later
    ended = run("op", "revert", "op-7")
    assert ended.exit_code == Exit.DONE
    golden("op-revert", ended)
    assert serving.asked[0][2] == {"dry_run": False}


def test_a_revert_that_leaves_some_where_they_are(
    serving: FakeController, run: Any, golden: Any
) -> None:
    reason = "not all of op-7 goes back: vnode 5: i2 was on worker w3, which is lost"
    planned = looks(Phase.PLANNED, id=OpId(""), reverts=OpId("op-7"), reason=reason)[0]
    serving.answers["POST", "/v1/ops/op-7/revert"] = planned
    ended = run("op", "revert", "op-7", "--dry-run")
    assert ended.exit_code == Exit.HAS_CHANGES
    golden("op-revert-dry-run", ended)


def test_pause_and_resume(serving: FakeController, run: Any, golden: Any) -> None:
    paused, going, *later = looks(Phase.PAUSED, Phase.WARMING, Phase.COMPLETE)
    serving.answers["POST", "/v1/ops/op-7/pause"] = paused
    serving.answers["POST", "/v1/ops/op-7/resume"] = going
    serving.answers["GET", "/v1/ops/op-7"] = later
    ended = run("op", "pause", "op-7")
    assert ended.exit_code == Exit.DONE
    golden("op-pause", ended)
    ended = run("op", "resume", "op-7")
    assert ended.exit_code == Exit.DONE
    golden("op-resume", ended)


def test_a_pause_that_comes_too_late(controller: FakeController, run: Any, golden: Any) -> None:
    late = "handover op-7 is armed: its marker may be decided already"
    controller.answers["POST", "/v1/ops/op-7/pause"] = fake.problem("cannot-pause", late)
    ended = run("op", "pause", "op-7")
    assert ended.exit_code == Exit.REFUSED
    golden("op-pause-late", ended)
