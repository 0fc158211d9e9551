"""`rhinoctl job repair-offsets`: what is written, what is kept, and what is refused untouched."""

import json
from pathlib import Path
from typing import Any

import pytest

from rhinoctl.errors import Exit
from rhinoctl.ids import BatchTime, JobName
from rhinoctl.ops.offset_log import read_entry
from rhinoctl.protocol import views
from tests.cli.test_doctor import Damage
from tests.cli.test_doctor import checkpoint as spark_s
from tests.fakes import controller as fake
from tests.fakes.controller import FakeController
from tests.unit.protocol import test_diagnosis as seen

V2 = json.dumps({"0": '{"n": 7}', "1": None}, sort_keys=True)


def decided(**changes: Any) -> views.DecidedView:
    fields: dict[str, Any] = {
        "job": JobName("clicks"),
        "query_id": "q1",
        "generation": 0,
        "batch": BatchTime(0, 3),
        "start_offsets": '["2"]',
        "end_offsets": '["3"]',
        "batch_time_ms": 1_700_000_000_123,
    }
    return views.DecidedView(**{**fields, **changes})


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Batch 3 is planned and not committed."""
    made = spark_s(tmp_path / "ck", newest=3, committed=2)
    (made / "offsets" / ".3.crc").write_bytes(b"crc of what Spark wrote")
    (made / "commits" / "2").write_text('v1\n{"nextBatchWatermarkMs":77}')
    return made


@pytest.fixture
def serving(controller: FakeController) -> FakeController:
    controller.answers["POST", "/v1/jobs/clicks/decided"] = decided()
    controller.answers["GET", "/v1/evidence"] = seen.cluster()
    return controller


def gone_past(controller: FakeController) -> None:
    """A worker knows that Spark has gone past batch 3."""
    report = seen.job_report(seen.I0, 0, released=BatchTime(0, 3))
    evidence = seen.cluster(seen.worker(seen.W1, {seen.UID: report}))
    controller.answers["GET", "/v1/evidence"] = evidence


def repair(run: Any, path: Path, *more: str) -> Any:
    return run("job", "repair-offsets", "clicks", "--checkpoint", str(path), *more)


def files(path: Path) -> dict[str, bytes]:
    return {str(f.relative_to(path)): f.read_bytes() for f in path.rglob("*") if f.is_file()}


def lose(path: Path) -> None:
    (path / "offsets" / "3").unlink()
    (path / "offsets" / ".3.crc").unlink()


def tear(path: Path) -> None:
    (path / "offsets" / "3").write_text("v1\n{")


def replace(path: Path) -> None:
    file = path / "offsets" / "3"
    file.write_text(file.read_text().removesuffix("3") + "9")


@pytest.mark.parametrize("damage", [lose, tear, replace])
def test_the_decided_offsets_are_written(
    serving: FakeController, run: Any, path: Path, damage: Damage
) -> None:
    damage(path)
    before = files(path)
    ended = repair(run, path, "--json")
    assert ended.exit_code == Exit.DONE
    entry = read_entry(path, 3)
    assert (entry.version, entry.offsets) == ("v1", '["3"]')
    assert entry.metadata == {
        "batchWatermarkMs": 77,
        "batchTimestampMs": 1_700_000_000_123,
        "conf": {},
    }
    assert not (path / "offsets" / ".3.crc").exists(), "Spark would refuse the new file by it"
    kept = json.loads(ended.stdout)["kept"]
    for name in ("3", ".3.crc"):
        old = before.get(f"offsets/{name}")
        assert old is None or (Path(kept) / name).read_bytes() == old
    unchanged = {name: data for name, data in before.items() if not name.endswith(("/3", ".3.crc"))}
    assert unchanged.items() <= files(path).items()
    assert repair(run, path, "--json").exit_code == Exit.DONE, "and then there is nothing to do"


def test_a_dry_run_writes_nothing(
    serving: FakeController,
    run: Any,
    path: Path,
    golden: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(path.parent)
    replace(path)
    before = files(path)
    ended = repair(run, Path("ck"), "--dry-run")
    assert ended.exit_code == Exit.HAS_CHANGES
    golden("repair-offsets-dry-run", ended)
    assert files(path) == before
    golden("repair-offsets", repair(run, Path("ck")))


def test_what_is_sound_is_left_alone(serving: FakeController, run: Any, path: Path) -> None:
    for batch in (2, 3):  # not committed yet, and committed
        (path / "commits" / str(batch)).write_text("v1\n{}")
        before = files(path)
        assert repair(run, path).exit_code == Exit.DONE
        assert files(path) == before
    (path / "offsets" / "4").write_text("v1\n{}\n4")  # undecided, as after any kill of a driver
    before = files(path)
    assert repair(run, path).exit_code == Exit.DONE
    assert files(path) == before


def torn_after(path: Path) -> None:
    """Spark has committed batch 3 and planned another one, which nobody has decided."""
    (path / "commits" / "3").write_text("v1\n{}")
    (path / "offsets" / "4").write_text("v1\n{")
    (path / "offsets" / ".4.crc").write_bytes(b"crc of what Spark wrote")


def test_a_torn_entry_of_an_undecided_batch_is_taken_away(
    serving: FakeController,
    run: Any,
    path: Path,
    golden: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(path.parent)
    torn_after(path)
    before = files(path)
    ended = repair(run, Path("ck"), "--dry-run")
    assert ended.exit_code == Exit.HAS_CHANGES
    golden("repair-offsets-undecided-dry-run", ended)
    assert files(path) == before
    golden("repair-offsets-undecided", repair(run, Path("ck")))
    kept, gone = path / "offsets-before-repair-of-4", ("4", ".4.crc")
    assert {name: (kept / name).read_bytes() for name in gone} == {
        name: before[f"offsets/{name}"] for name in gone
    }
    assert not any((path / "offsets" / name).exists() for name in gone)
    assert read_entry(path, 3).offsets == '["3"]'
    assert "nothing to do" in repair(run, path).stdout


def test_of_a_query_without_a_decided_batch_only_a_torn_first_entry_is_taken_away(
    serving: FakeController, run: Any, tmp_path: Path
) -> None:
    serving.answers["POST", "/v1/jobs/clicks/decided"] = decided(batch=None)
    path = spark_s(tmp_path / "ck", newest=0, committed=-1)
    assert repair(run, path).exit_code == Exit.REFUSED
    (path / "offsets" / "0").write_text("v1\n{")
    assert repair(run, path, "--dry-run").exit_code == Exit.HAS_CHANGES
    assert repair(run, path).exit_code == Exit.DONE
    assert not (path / "offsets" / "0").exists()


@pytest.mark.parametrize("damage", [lambda path: None, lose, tear, replace])
def test_the_commit_of_a_batch_that_spark_had_gone_past_is_written(
    serving: FakeController, run: Any, path: Path, damage: Damage
) -> None:
    """It would be replayed, and is refused then: its output is not kept any more."""
    gone_past(serving)
    damage(path)
    assert repair(run, path, "--dry-run").exit_code == Exit.HAS_CHANGES
    assert not (path / "commits" / "3").exists()
    assert repair(run, path).exit_code == Exit.DONE
    assert read_entry(path, 3).offsets == '["3"]'
    assert (path / "commits" / "3").read_text() == (path / "commits" / "2").read_text()
    assert "nothing to do" in repair(run, path).stdout


def test_a_torn_commit_is_written_as_the_one_before_it(
    serving: FakeController, run: Any, path: Path
) -> None:
    for batch in (2, 3):  # of the batch before the decided one, and of that
        good, torn = path / "commits" / str(batch - 1), path / "commits" / str(batch)
        torn.write_text("v1\n{")
        assert repair(run, path).exit_code == Exit.DONE
        assert torn.read_text() == good.read_text()
        kept = path / f"commits-before-repair-of-{batch}" / str(batch)
        assert kept.read_text() == "v1\n{"


def test_a_first_commit_has_none_before_it(
    serving: FakeController, run: Any, tmp_path: Path
) -> None:
    first = decided(batch=BatchTime(0, 0), start_offsets="", end_offsets='["0"]')
    serving.answers["POST", "/v1/jobs/clicks/decided"] = first
    path = spark_s(tmp_path / "ck", newest=0, committed=0)
    (path / "commits" / "0").write_text("")
    assert repair(run, path).exit_code == Exit.DONE
    assert json.loads((path / "commits" / "0").read_text().split("\n")[1])


@pytest.mark.parametrize("damage", [lose, tear])
def test_unreadable_offsets_of_a_committed_batch_are_written(
    serving: FakeController, run: Any, path: Path, damage: Damage
) -> None:
    """Spark reads them, too: they are where its next batch begins."""
    (path / "commits" / "3").write_text("v1\n{}")
    damage(path)
    assert repair(run, path).exit_code == Exit.DONE
    assert read_entry(path, 3).offsets == '["3"]'


def test_version_2_and_a_first_batch(serving: FakeController, run: Any, tmp_path: Path) -> None:
    """There is no entry before it whose settings could be taken."""
    path = spark_s(tmp_path / "ck", newest=-1, committed=-1)
    first = decided(batch=BatchTime(0, 0), start_offsets="", end_offsets=V2)
    serving.answers["POST", "/v1/jobs/clicks/decided"] = first
    assert repair(run, path).exit_code == Exit.DONE
    assert read_entry(path, 0).offsets == V2
    lines = (path / "offsets" / "0").read_text().split("\n")
    assert (lines[0], lines[2:]) == ("v2", ['0:{"n": 7}', "1:-"])


def commit(batch: int) -> Damage:
    return lambda path: (path / "commits" / str(batch)).write_text("v1\n{}")


def plan(batch: int, offsets: str) -> Damage:
    return lambda path: (path / "offsets" / str(batch)).write_text(f"v1\n{{}}\n{offsets}")


def lose_many(path: Path) -> None:
    for batch in (2, 3):
        (path / "offsets" / str(batch)).unlink()


UNSAFE: dict[str, tuple[tuple[Damage, ...], views.DecidedView]] = {
    "another query": ((replace,), decided(query_id="q9")),
    "the query is not known": ((lambda path: (path / "metadata").write_text(""),), decided()),
    "nothing is decided": ((replace,), decided(batch=None)),
    "another generation": ((replace,), decided(generation=1)),
    "Spark has committed it with other offsets": ((replace, commit(3)), decided()),
    "Spark has committed more": ((commit(4),), decided()),
    "Spark has planned more": ((plan(4, "4"),), decided()),
    "Spark has planned two more": ((commit(3), plan(4, "4"), plan(5, "5")), decided()),
    "the commit before is lost": (
        (lambda path: [(path / "commits" / str(b)).unlink() for b in (1, 2)],),
        decided(),
    ),
    "more offsets are lost": ((lose_many,), decided()),
    "the batch before ended elsewhere": ((plan(2, "8"), replace), decided()),
}


@pytest.mark.parametrize("name", UNSAFE)
def test_what_is_not_safe_is_refused_untouched(
    serving: FakeController, run: Any, path: Path, name: str
) -> None:
    damages, record = UNSAFE[name]
    serving.answers["POST", "/v1/jobs/clicks/decided"] = record
    for damage in damages:
        damage(path)
    before = files(path)
    ended = repair(run, path)
    assert ended.exit_code == Exit.REFUSED
    assert "(cannot-repair-offsets)" in ended.stderr
    assert files(path) == before


def test_a_live_query_is_refused(serving: FakeController, run: Any, path: Path) -> None:
    replace(path)
    before = files(path)
    live = fake.problem("second-session", "job clicks has a live query")
    serving.answers["POST", "/v1/jobs/clicks/decided"] = live
    assert repair(run, path).exit_code == Exit.REFUSED
    assert files(path) == before
