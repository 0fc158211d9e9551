"""The directories of a deployment, made on this machine as a host."""

import os
from pathlib import Path

import pytest

from rhinoctl import errors
from rhinoctl.remote.deployed import ask_deployed, make_directories, remove_deployed
from tests.fakes.local_host import LocalHost

ROOT, OTHER, THIRD = 0, 1, 2
"""Accounts: root, and two that every Debian has (daemon, bin)."""

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="gives files to other accounts")


def owners(*paths: Path) -> list[int]:
    return [path.stat().st_uid for path in paths]


def make(tmp_path: Path, disk: Path, user: str = "daemon") -> None:
    wanted = [(str(tmp_path / "opt"), 0o755, False), (str(disk), 0o700, True)]
    make_directories(LocalHost(), str(tmp_path / "opt"), user, wanted, root=False)


def deploy(tmp_path: Path, disk: Path) -> None:
    """What a deployment leaves, by and large."""
    make(tmp_path, disk)
    (tmp_path / "opt" / "cluster").write_text("clicks-1\n")
    (tmp_path / "opt" / "agent").mkdir()
    (disk / "jobs" / "1").mkdir(parents=True, exist_ok=True)
    (disk / ".hidden").touch()


def remove(tmp_path: Path, *disks: Path, wipe: bool) -> None:
    names = [str(disk) for disk in disks]
    remove_deployed(LocalHost(), str(tmp_path / "opt"), names, wipe=wipe, root=False)


def left(tmp_path: Path) -> set[str]:
    return {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")}


def test_what_is_new_is_the_account_s_and_written_down(tmp_path: Path) -> None:
    disk = tmp_path / "data" / "rhino"
    make(tmp_path, disk)
    assert owners(disk, tmp_path / "opt") == [OTHER, OTHER]
    assert disk.stat().st_mode & 0o777 == 0o700
    record = (tmp_path / "opt" / "made").read_text().split("\n")
    assert {f"new {disk}", f"new {disk.parent}", f"new {tmp_path / 'opt'}"} <= {*record}


def test_one_that_somebody_else_has_something_in_is_left_alone(tmp_path: Path) -> None:
    disk = tmp_path / "data"
    disk.mkdir(mode=0o750)
    (disk / "theirs").mkdir()
    os.chown(disk / "theirs", THIRD, THIRD)
    with pytest.raises(errors.HostUnfit, match="data belongs to root, and there is something in"):
        make(tmp_path, disk)
    assert owners(disk, disk / "theirs") == [ROOT, THIRD]
    assert disk.stat().st_mode & 0o777 == 0o750
    assert "data" not in (tmp_path / "opt" / "made").read_text()


def test_the_top_of_a_file_system_is_taken_though_lost_files_have_a_place_there(
    tmp_path: Path,
) -> None:
    disk = tmp_path / "data"
    (disk / "lost+found").mkdir(parents=True)
    make(tmp_path, disk)
    assert owners(disk, disk / "lost+found") == [OTHER, ROOT]
    assert f"had {disk}" in (tmp_path / "opt" / "made").read_text().split("\n")


def test_state_goes_with_the_cluster_to_another_account(tmp_path: Path) -> None:
    disk = tmp_path / "data"
    disk.mkdir()
    make(tmp_path, disk)
    (disk / "state").touch()
    os.chown(disk / "state", OTHER, OTHER)
    make(tmp_path, disk, user="bin")
    assert owners(disk, disk / "state") == [THIRD, THIRD]


def test_state_that_is_kept_is_still_known_as_ours_and_can_be_wiped_later(tmp_path: Path) -> None:
    disk, other = tmp_path / "data" / "rhino", tmp_path / "data" / "other"
    deploy(tmp_path, disk)
    make(tmp_path, other)
    assert ask_deployed(LocalHost(), str(tmp_path / "opt"), [], []).installed
    remove(tmp_path, disk, other, wipe=False)
    kept = {"data", "data/rhino", "data/rhino/.hidden", "data/rhino/jobs", "data/rhino/jobs/1"}
    assert left(tmp_path) == {"opt", "opt/cluster", "opt/made", *kept}
    facts = ask_deployed(LocalHost(), str(tmp_path / "opt"), [str(disk), str(other)], [])
    assert (facts.identity, facts.installed) == ("clicks-1", False)
    assert str(disk) in facts.made
    assert str(other) not in facts.made, "it was empty, and is no disk that has vanished"
    remove(tmp_path, disk, other, wipe=True)
    assert left(tmp_path) == set()


def test_what_a_directory_held_before_outlives_the_cluster(tmp_path: Path) -> None:
    disk = tmp_path / "data"
    (disk / "lost+found").mkdir(parents=True)
    os.chown(disk, OTHER, OTHER)
    (disk / "theirs & more").write_text("dear")
    (disk / ".dear").mkdir()
    deploy(tmp_path, disk)
    deployed = left(tmp_path)
    remove(tmp_path, disk, wipe=True)
    dear = {"data", "data/lost+found", "data/theirs & more", "data/.dear"}
    assert left(tmp_path) == dear
    deploy(tmp_path, disk)
    remove(tmp_path, disk, wipe=False)
    assert left(tmp_path) == deployed - {"opt/agent"}
    remove(tmp_path, disk, wipe=True)
    assert left(tmp_path) == dear


def test_what_was_only_prepared_goes_without_a_trace(tmp_path: Path) -> None:
    disk = tmp_path / "data" / "rhino"
    make(tmp_path, disk)
    remove(tmp_path, disk, wipe=False)
    assert left(tmp_path) == set()
