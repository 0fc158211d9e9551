"""``rhinoctl controller``: recoveries, backups and restores as people see them."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rhinoctl.config import backup
from rhinoctl.config import cluster as config
from rhinoctl.errors import Exit
from rhinoctl.ids import BatchTime, JobName, JobUid, WorkerId
from rhinoctl.protocol import views
from rhinoctl.state.sqlite import SqliteStore
from tests.fakes import controller as fake
from tests.fakes.controller import FakeController

RECOVER = "/v1/recover"


def recovery(**changes: Any) -> views.RecoveryView:
    """Two jobs, one of which has a failover under way."""
    why = "its store is an old copy: it lacks the last 7 of 52 changes"
    first = views.RecoveredJob(
        name=JobName("clicks"),
        uid=JobUid("clicks-5f0e"),
        epoch=7,
        batch=BatchTime(0, 41),
        session=3,
        instances=4,
        replication=1,
        query_id="1d9c7f6e-8a55-4d57-9d0b-6f6f3ad1b001",
        workers=(WorkerId("w1"), WorkerId("w2")),
    )
    second = replace(first, name=JobName("bids"), uid=JobUid("bids-77aa"), batch=None)
    second = replace(second, gone=("w3",), note="its query is not known", query_id="")
    fields: dict[str, Any] = {
        "needed": True,
        "reign": 2,
        "objections": {WorkerId("w1"): why, WorkerId("w2"): why},
        "jobs": (first, second),
        "silent": (WorkerId("w3"),),
        "draining": (WorkerId("w2"),),
        "left_out": (JobUid("tried-12ab"),),
        "operation": 9,
    }
    return views.RecoveryView(**{**fields, **changes})


NOTHING = recovery(
    needed=False, reign=1, objections={}, jobs=(), silent=(), draining=(), left_out=()
)
SILENT = fake.problem(
    "refused",
    "worker w3 does not answer: what only it knows would be lost",
    "start its agent; or go on without it, if it is lost for good: --without w3",
)


@pytest.mark.parametrize("dry_run", [True, False])
def test_a_recovery(controller: FakeController, run: Any, golden: Any, dry_run: bool) -> None:
    controller.answers["POST", RECOVER] = recovery()
    more = ("--dry-run",) if dry_run else ()
    ended = run("controller", "recover", "--without", "w3", *more)
    assert ended.exit_code == (Exit.HAS_CHANGES if dry_run else Exit.DONE)
    golden(f"controller-recover{'-dry-run' if dry_run else ''}", ended)
    assert controller.asked == [("POST", RECOVER, {"without": ["w3"], "dry_run": dry_run})]


@pytest.mark.parametrize("dry_run", [True, False])
def test_nothing_to_recover(
    controller: FakeController, run: Any, golden: Any, dry_run: bool
) -> None:
    controller.answers["POST", RECOVER] = NOTHING
    ended = run("controller", "recover", *(["--dry-run"] if dry_run else []))
    assert ended.exit_code == Exit.DONE
    golden(f"controller-recover-nothing{'-dry-run' if dry_run else ''}", ended)


def test_a_recovery_as_json(controller: FakeController, run: Any) -> None:
    controller.answers["POST", RECOVER] = recovery()
    found = json.loads(run("controller", "recover", "--json").stdout)
    assert [job["name"] for job in found["jobs"]] == ["clicks", "bids"]
    assert controller.asked[0][2] == {"without": [], "dry_run": False}


def test_a_recovery_with_a_silent_worker(controller: FakeController, run: Any, golden: Any) -> None:
    controller.answers["POST", RECOVER] = SILENT
    ended = run("controller", "recover")
    assert ended.exit_code == Exit.REFUSED
    golden("controller-recover-silent", ended)


# --- backups -------------------------------------------------------------------------------------


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cluster's directory whose controller does not run."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "mine"
    path.mkdir()
    cluster = config.new_cluster(path, cache_mb=1, buffer_mb=1)
    config.write_cluster(path, replace(cluster, cluster="0f3a9c51d2b4e688"))
    config.make_token(cluster.token_file)
    SqliteStore(str(path / backup.STORE)).close()
    return path


def shown(ended: Any, tmp_path: Path) -> Any:
    """A transcript without what changes from run to run."""

    def without(text: str) -> str:
        text = text.replace(str(tmp_path), "TMP")
        return re.sub(r"\d{4}-\d\d-\d\d [\d:.]+ UTC", "A-MOMENT", text)

    argv = tuple(without(each) for each in ended.argv)
    return replace(ended, argv=argv, stdout=without(ended.stdout), stderr=without(ended.stderr))


def test_a_backup_and_its_restore(directory: Path, run: Any, golden: Any, tmp_path: Path) -> None:
    where = ("--cluster", str(directory))
    ended = run("controller", "backup", "monday", *where)
    assert ended.exit_code == Exit.DONE
    golden("controller-backup", shown(ended, tmp_path))
    again = run("controller", "backup", "monday", *where)
    assert again.exit_code == Exit.REFUSED
    golden("controller-backup-again", shown(again, tmp_path))
    ended = run("controller", "restore", "monday", *where)
    assert ended.exit_code == Exit.DONE
    golden("controller-restore", shown(ended, tmp_path))


def test_restores_that_are_refused(directory: Path, run: Any, golden: Any, tmp_path: Path) -> None:
    where = ("--cluster", str(directory))
    run("controller", "backup", "monday", *where)
    data = bytearray((tmp_path / "monday").read_bytes())
    data[len(data) // 2] ^= 1
    (tmp_path / "damaged").write_bytes(data)
    (tmp_path / "foreign").write_text("another program's")
    store = SqliteStore(str(directory / backup.STORE))
    for name, file, code in (
        ("damaged", "damaged", Exit.NEEDS_REPAIR),
        ("foreign", "foreign", Exit.REFUSED),
        ("missing", "missing", Exit.REFUSED),
        ("running", "monday", Exit.REFUSED),
    ):
        ended = run("controller", "restore", file, *where)
        assert ended.exit_code == code, name
        golden(f"controller-restore-{name}", shown(ended, tmp_path))
    store.close()
