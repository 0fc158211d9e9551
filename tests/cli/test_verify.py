"""Verification by hand: waited for, and every way in which it may not be well."""

import json
import os
import signal
from dataclasses import replace
from typing import Any

import pytest

from rhinoctl.errors import Exit
from rhinoctl.ids import JobUid, Vnode, WorkerId
from rhinoctl.ops import verify as ops
from rhinoctl.protocol import codec, views
from rhinoctl.protocol.verification import Checked
from tests.fakes import controller as fake
from tests.fakes.controller import FakeController

VERIFY = "/v1/jobs/clicks/verify"
ROT = {"state": Checked.BAD, "file": "000012.sst", "why": "its content has changed"}

WHOLE = fake.verification()
WAITING = fake.verification(
    fake.verified(0, "w1", fake.checked(41, "w1"), fake.checked(33, "w1", state=Checked.WAITING)),
    fake.verified(0, "w2", told=False),
)
BAD = fake.verification(
    fake.verified(3, "w1", fake.checked(41, "w1"), fake.checked(36, "w1")),
    fake.verified(3, "w2", fake.checked(41, "w1", **ROT), fake.checked(36, "w1", **ROT)),
)
BROKEN = fake.verification(
    fake.verified(3, "w1", fake.checked(41, "w1")), fake.verified(3, "w2", broken=True)
)
MANY = fake.verification(*(fake.verified(v, "w2", fake.checked(41, "w1", **ROT)) for v in range(6)))
SILENT = fake.verification(
    fake.verified(3, "w1", fake.checked(41, "w1")),
    fake.verified(3, "w2", told=False),
    silent=("w2",),
)
UNREADABLE = replace(
    fake.verification(fake.verified(3, "w1", fake.checked(41, "w1"))),
    unreadable={WorkerId("w2"): "segment 0-621.seg was decided and cannot be read"},
)
UNREAD = fake.verification(
    fake.verified(3, "w1", fake.checked(41, "w1", state=Checked.UNREAD, why="no room left")),
    deep=True,
)


def deep(digests: dict[str, str], *, numbers: tuple[int, int] = (41, 41)) -> views.VerifyView:
    pairs = zip(digests.items(), numbers, strict=True)
    return fake.verification(
        *(fake.verified(3, w, fake.checked(n, "w1", digest=d * 16)) for (w, d), n in pairs),
        deep=True,
    )


EQUAL = deep({"w1": "9f3c", "w2": "9f3c"})
UNEQUAL = deep({"w1": "9f3c", "w2": "07aa"})
APART = deep({"w1": "9f3c", "w2": "07aa"}, numbers=(41, 36))

SHOWN = [
    ("verify", (), WHOLE, Exit.DONE),
    ("verify-bad", (), BAD, Exit.DEGRADED),
    ("verify-many-bad", (), MANY, Exit.DEGRADED),
    ("verify-broken", (), BROKEN, Exit.DEGRADED),
    ("verify-silent", (), SILENT, Exit.DEGRADED),
    ("verify-unreadable", (), UNREADABLE, Exit.DEGRADED),
    ("verify-unread", ("--deep",), UNREAD, Exit.DEGRADED),
    ("verify-equal", ("--deep",), EQUAL, Exit.DONE),
    ("verify-unequal", ("--deep",), UNEQUAL, Exit.DEGRADED),
    ("verify-apart", ("--deep",), APART, Exit.DONE),
]


@pytest.mark.parametrize(("name", "options", "view", "exit_code"), SHOWN)
def test_verify(
    controller: FakeController,
    run: Any,
    golden: Any,
    name: str,
    options: tuple[str, ...],
    view: views.VerifyView,
    exit_code: Exit,
) -> None:
    controller.answers["POST", VERIFY] = view
    ended = run("verify", "clicks", *options)
    assert ended.exit_code == exit_code
    golden(name, ended)
    as_json = run("verify", "clicks", *options, "--json")
    assert as_json.exit_code == exit_code
    assert codec.from_json(views.VerifyView, json.loads(as_json.stdout)) == view


def test_a_round_is_named_until_it_is_over(
    controller: FakeController, run: Any, golden: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ops, "LOOK_S", 0.01)
    gone = fake.problem("not-running", "it is started again")
    controller.answers["POST", VERIFY] = [WAITING, WAITING, gone, EQUAL]
    ended = run("verify", "clicks", "--vnodes", "3,0-1", "--deep")
    assert ended.exit_code == Exit.DONE
    golden("verify-waits", ended)
    named = {"vnodes": [0, 1, 3], "deep": True, "round": WAITING.round}
    assert [body for _, _, body in controller.asked] == [{**named, "round": ""}, *[named] * 3]


def test_a_round_in_which_nothing_is_read_any_more_ends(
    controller: FakeController, run: Any, golden: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ops, "LOOK_S", 0.01)
    monkeypatch.setattr(ops, "STALL_S", 0.0)
    controller.answers["POST", VERIFY] = WAITING
    ended = run("verify", "clicks")
    assert ended.exit_code == Exit.DEGRADED
    golden("verify-stalled", ended)


@pytest.mark.parametrize(
    ("code", "exit_code"),
    [("unknown-job", 3), ("unknown-vnode", 3), ("busy", 6)],
)
def test_what_the_controller_refuses(
    controller: FakeController, run: Any, code: str, exit_code: int
) -> None:
    controller.answers["POST", VERIFY] = fake.problem(code, "refused")
    assert run("verify", "clicks").exit_code == exit_code


def test_ctrl_c(controller: FakeController, interrupted: Any, golden: Any) -> None:
    def press(body: bytes) -> views.VerifyView:
        os.kill(os.getpid(), signal.SIGINT)
        return WAITING

    controller.answers["POST", VERIFY] = [WAITING, press]
    ended = interrupted("verify", "clicks")
    assert ended.exit_code == 130
    golden("verify-interrupted", ended)


def test_what_was_bad_is_told_by_status(controller: FakeController, run: Any, golden: Any) -> None:
    workers = (fake.worker(1), fake.worker(2, found_bad=3), fake.worker(3))
    controller.answers["GET", "/v1/status"] = fake.status(workers=workers)
    ended = run("status")
    assert ended.exit_code == Exit.DONE
    golden("status-found-bad", ended)


def test_a_worker_that_cannot_read_a_job_is_not_well(
    controller: FakeController, run: Any, golden: Any
) -> None:
    poor = fake.worker(2, health=views.Health.DEGRADED, unreadable=(JobUid("clicks-1"),))
    finding = views.Finding(
        what="worker w2 cannot read what it has of job clicks: segment 0-621.seg was decided and"
        " cannot be read; batches wait for it: it has whole copies",
        remedy="give up what it has of the job: `rhinoctl failover w2`",
    )
    controller.answers["GET", "/v1/status"] = fake.status(
        health=views.Health.DEGRADED,
        workers=(fake.worker(1), poor, fake.worker(3)),
        findings=(finding,),
    )
    ended = run("status")
    assert ended.exit_code == Exit.DEGRADED
    golden("status-unreadable", ended)


def test_copies_in_the_place_of_links_are_told_by_status(
    controller: FakeController, run: Any, golden: Any
) -> None:
    """T9: it is right, and costs: a note, no finding."""
    workers = (fake.worker(1), fake.worker(2, links_refused="EXDEV"), fake.worker(3))
    controller.answers["GET", "/v1/status"] = fake.status(workers=workers)
    ended = run("status")
    assert ended.exit_code == Exit.DONE
    golden("status-copies-for-links", ended)


def test_a_copy_counts_once_its_worker_has_told_of_it() -> None:
    assert WHOLE.over
    assert not WAITING.over
    assert SILENT.over
    assert ops.silent(SILENT) == ["w2"]
    assert ops.waiting(WAITING) == ["w1", "w2"]
    assert ops.apart(APART) == [Vnode(3)]
    assert ops.apart(UNEQUAL) == []
