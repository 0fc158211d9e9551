"""The disks of workers by hand: shown, added, emptied, read through, and every refusal."""

import json
import os
import signal
from typing import Any

import pytest

from rhinoctl.errors import Exit
from rhinoctl.ids import DiskId
from rhinoctl.ops import disks as ops
from rhinoctl.protocol import codec
from rhinoctl.protocol.disks import DiskAction, DiskList, DiskState, ScrubView
from tests.fakes import controller as fake
from tests.fakes.controller import FakeController

DISKS = "/v1/disks"
LOST = {"state": DiskState.LOST, "vnodes": 0, "bytes": 0, "free_bytes": 0}
GONE = "its marker is not there; is it mounted?"

WELL = fake.disks()
MIXED = fake.disks(
    fake.disk("w1", "d1", vnodes=14, bytes=41_000_000),
    fake.disk("w1", "d2", vnodes=2, bytes=7_000_000, state=DiskState.RETIRING),
    fake.disk("w1", "d3", shares=DiskId("d1"), vnodes=0, bytes=0),
    fake.disk("w2", "d1"),
    fake.disk("w2", "d2", fault=GONE, **LOST),
)
SILENT = fake.disks(fake.disk("w1", "d1"), fake.disk("w2", "d1", live=False))

SHOWN = [
    ("disk-list", (), WELL, Exit.DONE),
    ("disk-list-worker", ("w2",), WELL, Exit.DONE),
    ("disk-list-lost", (), MIXED, Exit.DEGRADED),
    ("disk-list-silent", (), SILENT, Exit.DEGRADED),
    ("disk-list-unknown", ("w9",), WELL, Exit.REFUSED),
]


def retiring(vnodes: int, **changes: Any) -> DiskList:
    state = DiskState.RETIRING if vnodes else DiskState.EMPTY
    fields = {"vnodes": vnodes, "bytes": vnodes * 3_000_000, "state": state}
    return fake.disks(fake.disk("w1", "d2", **{**fields, **changes}))


def scrubbing(done: int, *bad: str, number: int = 1) -> DiskList:
    scrub = ScrubView(
        number=number,
        done_bytes=done,
        total_bytes=24_000_000,
        files=done // 1_000_000,
        over=done == 24_000_000,
        bad=bad,
    )
    return fake.disks(fake.disk("w1", "d2", scrub=scrub))


ROT = "job clicks, vnode 3, checkpoint 0-41-w1, file 000012.sst: its content has changed"


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ops, "LOOK_S", 0.01)


@pytest.mark.parametrize(("name", "options", "found", "exit_code"), SHOWN)
def test_list(
    controller: FakeController,
    run: Any,
    golden: Any,
    name: str,
    options: tuple[str, ...],
    found: DiskList,
    exit_code: Exit,
) -> None:
    controller.answers["GET", DISKS] = found
    ended = run("disk", "list", *options)
    assert ended.exit_code == exit_code
    golden(name, ended)


def test_list_as_json(controller: FakeController, run: Any) -> None:
    controller.answers["GET", DISKS] = MIXED
    ended = run("disk", "list", "--json")
    assert ended.exit_code == Exit.DEGRADED
    assert codec.from_json(DiskList, json.loads(ended.stdout)) == MIXED


def test_add(controller: FakeController, run: Any, golden: Any) -> None:
    added = fake.disk("w1", "d2", vnodes=0, bytes=0)
    controller.answers["POST", DISKS] = fake.disks(added)
    ended = run("disk", "add", "w1", "/mnt/d2/rhino")
    assert ended.exit_code == Exit.DONE
    golden("disk-add", ended)
    ((_, _, asked),) = controller.asked
    assert asked == {"action": "add", "worker": "w1", "path": "/mnt/d2/rhino", "disk": ""}


@pytest.mark.parametrize("code", ["disk-refused", "unwritable-directory", "unknown-worker"])
def test_a_directory_that_is_refused(controller: FakeController, run: Any, code: str) -> None:
    controller.answers["POST", DISKS] = fake.problem(code, "it is not empty", "name an empty one")
    ended = run("disk", "add", "w1", "/mnt/b")
    assert ended.exit_code == Exit.REFUSED
    assert "name an empty one" in ended.stderr


def test_retire_waits_until_the_disk_is_empty(
    controller: FakeController, run: Any, golden: Any
) -> None:
    controller.answers["POST", DISKS] = retiring(8)
    stale = fake.disks(fake.disk("w1", "d2"))
    gone = fake.problem("not-running", "it is started again")
    controller.answers["GET", DISKS] = [stale, retiring(8), gone, retiring(1), retiring(0)]
    ended = run("disk", "retire", "w1:d2")
    assert ended.exit_code == Exit.DONE
    golden("disk-retire", ended)
    assert controller.asked[0][2]["action"] == DiskAction.RETIRE.value
    assert len(controller.asked) == 6


def test_retire_ends_though_the_agent_was_started_again_and_counts_its_scrubs_anew(
    controller: FakeController, run: Any
) -> None:
    scrubbed = ScrubView(number=2, over=True)
    controller.answers["POST", DISKS] = retiring(8, scrub=scrubbed)
    looks = [retiring(1, scrub=scrubbed), retiring(1), retiring(0)]
    controller.answers["GET", DISKS] = looks
    ended = run("disk", "retire", "w1:d2")
    assert ended.exit_code == Exit.DONE
    assert "may be taken away" in ended.stdout


def test_retire_ends_if_the_agent_was_started_again_before_the_first_look(
    controller: FakeController, run: Any
) -> None:
    controller.answers["POST", DISKS] = retiring(8, scrub=ScrubView(number=2, over=True))
    controller.answers["GET", DISKS] = [retiring(1), retiring(0)]
    assert run("disk", "retire", "w1:d2").exit_code == Exit.DONE


def test_retire_ends_if_the_empty_disk_is_gone_already(
    controller: FakeController, run: Any
) -> None:
    controller.answers["POST", DISKS] = retiring(8)
    nothing = DiskList(disks=())  # of a controller that was started again
    looks = [retiring(1), nothing, fake.disks(fake.disk("w1", "d1"))]
    controller.answers["GET", DISKS] = looks
    ended = run("disk", "retire", "w1:d2")
    assert ended.exit_code == Exit.DONE
    assert "may be taken away" in ended.stdout


def test_retire_gives_up_on_a_worker_that_is_never_heard_of_again(
    controller: FakeController, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ops, "STALL_S", 0.1)
    controller.answers["POST", DISKS] = retiring(8)
    controller.answers["GET", DISKS] = fake.disks(fake.disk("w1", "d2", live=False))
    ended = run("disk", "retire", "w1:d2")
    assert ended.exit_code == Exit.DEGRADED


def test_retire_without_waiting(controller: FakeController, run: Any, golden: Any) -> None:
    controller.answers["POST", DISKS] = retiring(8)
    ended = run("disk", "retire", "w1:d2", "--no-wait")
    assert ended.exit_code == Exit.DONE
    golden("disk-retire-no-wait", ended)


def test_a_disk_that_is_not_emptied(
    controller: FakeController, run: Any, golden: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ops, "STALL_S", 0.0)
    stuck = retiring(2, fault="vnode 3 does not leave it: no space left on device")
    controller.answers["POST", DISKS] = retiring(2)
    controller.answers["GET", DISKS] = stuck
    ended = run("disk", "retire", "w1:d2")
    assert ended.exit_code == Exit.DEGRADED
    golden("disk-retire-stuck", ended)


def test_a_lost_disk_is_given_up(controller: FakeController, run: Any) -> None:
    controller.answers["POST", DISKS] = retiring(0)
    assert run("disk", "retire", "w1:d2", "--lost").exit_code == Exit.DONE
    assert controller.asked[0][2]["action"] == DiskAction.GIVE_UP.value


@pytest.mark.parametrize("target", ["w1", "w1:", ":d2", "w1:d2:d3"])
def test_what_names_no_disk(run: Any, controller: FakeController, target: str) -> None:
    assert run("disk", "retire", target).exit_code == Exit.USAGE
    assert controller.asked == []


SCRUBS = [
    ("disk-scrub", [scrubbing(12_000_000), scrubbing(24_000_000)], Exit.DONE),
    ("disk-scrub-bad", [scrubbing(12_000_000), scrubbing(24_000_000, ROT)], Exit.DEGRADED),
]


@pytest.mark.parametrize(("name", "looks", "exit_code"), SCRUBS)
def test_scrub(
    controller: FakeController,
    run: Any,
    golden: Any,
    name: str,
    looks: list[DiskList],
    exit_code: Exit,
) -> None:
    controller.answers["POST", DISKS] = scrubbing(0)
    controller.answers["GET", DISKS] = [scrubbing(24_000_000, number=0), *looks]
    ended = run("disk", "scrub", "w1:d2")
    assert ended.exit_code == exit_code
    golden(name, ended)
    assert controller.asked[0][2]["disk"] == "d2"


def test_a_scrub_in_which_nothing_is_read_any_more(
    controller: FakeController, run: Any, golden: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ops, "STALL_S", 0.0)
    controller.answers["POST", DISKS] = controller.answers["GET", DISKS] = scrubbing(5_000_000)
    ended = run("disk", "scrub", "w1")
    assert ended.exit_code == Exit.DEGRADED
    golden("disk-scrub-stalled", ended)


@pytest.mark.parametrize("looked", [True, False])
def test_a_scrub_of_which_a_restarted_agent_knows_nothing(
    controller: FakeController,
    run: Any,
    golden: Any,
    monkeypatch: pytest.MonkeyPatch,
    looked: bool,
) -> None:
    monkeypatch.setattr(ops, "BEHIND_S", 0.05)
    controller.answers["POST", DISKS] = scrubbing(0)
    first = [scrubbing(5_000_000)] if looked else []
    forgotten = fake.disks(fake.disk("w1", "d2", scrub=ScrubView(over=True)))
    controller.answers["GET", DISKS] = [*first, forgotten]
    ended = run("disk", "scrub", "w1:d2")
    assert ended.exit_code == Exit.DEGRADED
    golden("disk-scrub-forgotten", ended)


def test_ctrl_c_ends_the_waiting_only(
    controller: FakeController, interrupted: Any, golden: Any
) -> None:
    def press(body: bytes) -> DiskList:
        os.kill(os.getpid(), signal.SIGINT)
        return retiring(8)

    controller.answers["POST", DISKS] = retiring(8)
    controller.answers["GET", DISKS] = press
    ended = interrupted("disk", "retire", "w1:d2")
    assert ended.exit_code == 130
    golden("disk-retire-interrupted", ended)
