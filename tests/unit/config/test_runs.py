"""The account of a run: true at every moment, found again by its name."""

from dataclasses import dataclass
from pathlib import Path

import pytest

from rhinoctl.config.runs import (
    HostState,
    Journal,
    RunFile,
    RunState,
    check_latest,
    find_run,
    new_run,
    read_run,
)
from rhinoctl.errors import Busy, ForeignManifest, UnknownRun


@dataclass(frozen=True)
class Entry:
    what: str


def a_run(
    now: float = 1000.0,
    inventory: str = "cluster: c\n",
    command: str = "deploy",
    **more: str,
) -> RunFile:
    return new_run(
        command=command,
        cluster="c",
        file="inventory.yml",
        inventory=inventory,
        now=lambda: now,
        **more,  # type: ignore[arg-type]
    )


def test_each_step_is_on_the_disk_when_it_begins_and_when_it_ends(tmp_path: Path) -> None:
    times = iter(range(100))
    directory = tmp_path / "c" / "runs"
    journal = Journal(directory, a_run(), now=lambda: float(next(times)))
    name = journal.run.id

    def seen() -> RunFile:
        return find_run(tmp_path, name)

    assert seen().state is RunState.RUNNING
    journal.begin("w1", "write files")
    (step,) = seen().hosts["w1"].steps
    assert (step.what, step.seconds) == ("write files", None)
    journal.end("w1")
    journal.begin("w1", "start agent")
    journal.end("w1", "it does not stay")
    journal.settle("w1", HostState.FAILED, "it does not stay")
    journal.audit(Entry("first"))
    journal.audit(Entry("second"))
    journal.close(RunState.PARTIAL)
    run = seen()
    assert (run.state, run.hosts["w1"].state) == (RunState.PARTIAL, HostState.FAILED)
    assert [step.seconds for step in run.hosts["w1"].steps] == [1.0, 1.0]
    assert [step.fault for step in run.hosts["w1"].steps] == ["", "it does not stay"]
    assert run.inventory == "cluster: c\n"
    lines = (directory / f"{name}.commands").read_text().splitlines()
    assert lines == ['{"what":"first"}', '{"what":"second"}']
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in directory.iterdir())


def test_a_run_that_is_not_there_or_is_damaged(tmp_path: Path) -> None:
    with pytest.raises(UnknownRun, match="no run r1"):
        find_run(tmp_path, "r1")
    journal = Journal(tmp_path / "c" / "runs", a_run())
    with pytest.raises(UnknownRun) as raised:
        find_run(tmp_path, "../../c/runs/x")
    assert journal.run.id in raised.value.remedy
    path = tmp_path / "c" / "runs" / f"{journal.run.id}.json"
    path.write_text(path.read_text()[:50])
    with pytest.raises(ForeignManifest):
        find_run(tmp_path, journal.run.id)


def test_a_run_is_stale_once_another_inventory_was_deployed(tmp_path: Path) -> None:
    old = Journal(tmp_path, a_run(1000.0)).run
    again = Journal(tmp_path, a_run(2000.0)).run
    check_latest(tmp_path, old)
    newer = Journal(tmp_path, a_run(3000.0, inventory="cluster: c # two\n")).run
    with pytest.raises(Busy, match=f"run {again.id} is stale: {newer.id}"):
        check_latest(tmp_path, again)
    check_latest(tmp_path, newer)
    other = a_run(4000.0, inventory="cluster: c # three\n", command="check")
    Journal(tmp_path, other)
    check_latest(tmp_path, newer)
    assert read_run(tmp_path / f"{old.id}.json") == old
