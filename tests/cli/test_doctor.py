"""`rhinoctl doctor` and `op repair`: what is shown, what --fix does, and how they end."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rhinoctl import limits
from rhinoctl.errors import Exit
from rhinoctl.ids import WorkerId
from rhinoctl.protocol import views
from rhinoctl.protocol.evidence import ClusterEvidence
from rhinoctl.protocol.handover import Phase
from tests.fakes import controller as fake
from tests.fakes.controller import FakeController
from tests.unit.protocol import test_diagnosis as seen


def sick() -> ClusterEvidence:
    """A braked failover, a log that has grown, and an operation that is late."""
    grown = {seen.UID: replace(seen.REPORTS[seen.W1], log_bytes=limits.LOG_BYTES_AIM + 1)}
    late = seen.running(Phase.MARKED).operations
    jobs = (seen.job(braked="2 of 3 workers are lost"),)
    return seen.cluster(seen.worker(seen.W1, grown), jobs=jobs, operations=late)


@pytest.fixture
def serving(controller: FakeController) -> FakeController:
    controller.answers["GET", "/v1/jobs/clicks"] = fake.job()
    controller.answers["GET", "/v1/evidence"] = seen.cluster()
    return controller


def test_a_sound_cluster(serving: FakeController, run: Any, golden: Any) -> None:
    ended = run("doctor")
    assert ended.exit_code == Exit.DONE
    golden("doctor-ok", ended)


def test_findings(serving: FakeController, run: Any, golden: Any) -> None:
    serving.answers["GET", "/v1/evidence"] = sick()
    ended = run("doctor")
    assert ended.exit_code == Exit.DEGRADED
    golden("doctor", ended)
    found = json.loads(run("doctor", "--json").stdout)
    assert (found["state"], len(found["findings"])) == ("broken", 3)
    assert [method for method, _, _ in serving.asked] == ["GET", "GET"], "it only looks"


def test_a_job_that_cannot_be_read(serving: FakeController, run: Any, golden: Any) -> None:
    serving.answers["GET", "/v1/evidence"] = seen.cluster(seen.blind(seen.TORN))
    ended = run("doctor")
    assert ended.exit_code == Exit.DEGRADED
    golden("doctor-unreadable", ended)


def test_fix_does_what_is_safe_and_says_so(serving: FakeController, run: Any, golden: Any) -> None:
    serving.answers["GET", "/v1/evidence"] = sick()
    serving.answers["POST", "/v1/jobs/clicks/checkpoint"] = fake.checkpoint(done=3)
    repaired = repair_view(Phase.COMPLETE, waits_for=())
    serving.answers["POST", "/v1/ops/op-4/repair"] = repaired
    ended = run("doctor", "--fix")
    assert ended.exit_code == Exit.DEGRADED, "what was found is shown as it was"
    golden("doctor-fix", ended)
    changing = [path for method, path, _ in serving.asked if method == "POST"]
    assert changing == ["/v1/ops/op-4/repair", "/v1/jobs/clicks/checkpoint"]


def test_a_fix_that_is_refused_is_said(serving: FakeController, run: Any) -> None:
    serving.answers["GET", "/v1/evidence"] = sick()
    serving.answers["POST", "/v1/jobs/clicks/checkpoint"] = fake.problem("refused", "no query runs")
    serving.answers["POST", "/v1/ops/op-4/repair"] = fake.problem("busy", "too many calls")
    ended = run("doctor", "--fix", "--json")
    assert len(json.loads(ended.stdout)["done"]) == 2
    assert "no query runs" in ended.stdout


def test_another_job_s_findings_are_left_out(serving: FakeController, run: Any) -> None:
    other = replace(seen.job(braked="lost"), name="views", uid="views-1")
    serving.answers["GET", "/v1/evidence"] = seen.cluster(jobs=(seen.job(), other))
    assert run("doctor", "--job", "clicks").exit_code == Exit.DONE
    assert run("doctor").exit_code == Exit.DEGRADED


def checkpoint(path: Path, *, newest: int, committed: int, query_id: str = "q1") -> Path:
    """A checkpoint directory of Spark's, as far as it is read."""
    (path / "offsets").mkdir(parents=True)
    (path / "commits").mkdir()
    (path / "metadata").write_text(json.dumps({"id": query_id}))
    metadata = json.dumps({"batchWatermarkMs": 0, "batchTimestampMs": 1, "conf": {}})
    for batch in range(newest + 1):
        (path / "offsets" / str(batch)).write_text(f"v1\n{metadata}\n{batch}")
    for batch in range(committed + 1):
        (path / "commits" / str(batch)).write_text("v1\n{}")
    return path


Damage = Callable[[Path], Any]


@pytest.mark.parametrize(
    ("damage", "check"),
    [
        (lambda path: None, ""),
        (lambda path: (path / "offsets" / "40").unlink(), "offsets-behind"),
        (lambda path: (path / "offsets" / "40").write_text("v1\n{"), "offsets-unreadable"),
        (lambda path: (path / "offsets" / "40").write_text("v1\n{}\n41"), "offsets-differ"),
        (lambda path: (path / "metadata").write_text('{"id": "q2"}'), "offsets-other-query"),
        (lambda path: (path / "commits" / "41").write_text(""), "offsets-ahead"),
        (lambda path: (path / "commits" / "39").write_text("v1\n{"), "commit-unreadable"),
        (lambda path: (path / "commits" / "39").write_text("v1"), "commit-unreadable"),
        (lambda path: (path / "offsets" / "41").write_text("v1\n{"), "offsets-unreadable"),
    ],
    ids=[
        *("sound", "lost", "torn", "other", "another query", "committed"),
        *("torn commit", "half a commit", "torn and undecided"),
    ],
)
def test_spark_s_checkpoint_is_compared(
    serving: FakeController, run: Any, tmp_path: Path, damage: Damage, check: str
) -> None:
    path = checkpoint(tmp_path / "ck", newest=40, committed=39)
    damage(path)
    ended = run("doctor", "--job", "clicks", "--checkpoint", str(path), "--json")
    found = [finding["check"] for finding in json.loads(ended.stdout)["findings"]]
    assert found == ([check] if check else [])


@pytest.mark.parametrize(
    "argv",
    [
        ("doctor", "--checkpoint", "ck"),
        ("doctor", "--job", "clicks", "--checkpoint", "s3://bucket/ck"),
        ("doctor", "--job", "clicks", "--checkpoint", "nowhere"),
    ],
    ids=["no job", "not local", "no checkpoint"],
)
def test_a_checkpoint_that_cannot_be_read(
    serving: FakeController, run: Any, argv: tuple[str, ...]
) -> None:
    assert run(*argv).exit_code == Exit.USAGE


# --- op repair -----------------------------------------------------------------------------------


def repair_view(phase: Phase, **changes: Any) -> views.RepairView:
    fields: dict[str, Any] = {
        "operation": fake.operation(phase=phase, pause_ms=None, total_ms=None, reason=""),
        "asked": (WorkerId("w1"), WorkerId("w2")),
        "silent": (),
        "waits_for": ("worker w2 to report epoch 4",),
    }
    return views.RepairView(**{**fields, **changes})


def test_repair_of_what_still_waits(controller: FakeController, run: Any, golden: Any) -> None:
    late = repair_view(Phase.MARKED, silent=(WorkerId("w2"),))
    controller.answers["POST", "/v1/ops/op-7/repair"] = late
    ended = run("op", "repair", "op-7")
    assert ended.exit_code == Exit.DEGRADED
    golden("op-repair", ended)


def test_repair_of_what_is_paused_says_how_it_goes_on(controller: FakeController, run: Any) -> None:
    controller.answers["POST", "/v1/ops/op-7/repair"] = repair_view(Phase.PAUSED)
    ended = run("op", "repair", "op-7")
    assert ended.exit_code == Exit.DEGRADED
    assert "rhinoctl op resume op-7" in ended.stderr
    assert "op watch" not in ended.stderr


@pytest.mark.parametrize(
    ("phase", "exit_code"), [(Phase.COMPLETE, Exit.DONE), (Phase.ABORTED, Exit.ABORTED)]
)
def test_repair_of_what_has_ended(
    controller: FakeController, run: Any, phase: Phase, exit_code: Exit
) -> None:
    view = repair_view(phase, asked=(), waits_for=())
    controller.answers["POST", "/v1/ops/op-7/repair"] = view
    assert run("op", "repair", "op-7").exit_code == exit_code
