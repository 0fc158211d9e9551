"""The directories of a deployment, made on this machine as a host."""

import os
from pathlib import Path

import pytest

from rhinoctl import errors
from rhinoctl.remote.deployed import ask_deployed, make_directories, remove_deployed
from rhinoctl.state.manifests import encode_checked
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
    with pytest.raises(errors.HostUnfit, match="there is something in"):
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
    deploy(tmp_path, disk)
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


def test_lost_files_outlive_the_cluster(tmp_path: Path) -> None:
    disk = tmp_path / "data"
    (disk / "lost+found").mkdir(parents=True)
    deploy(tmp_path, disk)
    deployed = left(tmp_path)
    remove(tmp_path, disk, wipe=True)
    assert left(tmp_path) == {"data", "data/lost+found"}
    deploy(tmp_path, disk)
    remove(tmp_path, disk, wipe=False)
    assert left(tmp_path) == deployed - {"opt/agent"}
    remove(tmp_path, disk, wipe=True)
    assert left(tmp_path) == {"data", "data/lost+found"}


@pytest.mark.parametrize("name", ["file", ".hidden", "jobs"])
def test_one_with_something_in_it_is_no_directory_for_state(tmp_path: Path, name: str) -> None:
    disk = tmp_path / "data"
    disk.mkdir(mode=0o750)
    os.chown(disk, OTHER, OTHER)
    (disk / name).touch()
    with pytest.raises(errors.HostUnfit, match="data, and this cluster had no state there"):
        make(tmp_path, disk)
    assert "data" not in (tmp_path / "opt" / "made").read_text()
    facts = ask_deployed(LocalHost(), str(tmp_path / "opt"), [str(disk)], [])
    assert facts.strange([str(disk)]) == (str(disk),)


def test_what_was_prepared_here_and_taken_by_another_cluster_is_that_one_s(tmp_path: Path) -> None:
    disk = tmp_path / "data"
    make(tmp_path, disk)
    (disk / "theirs").touch()
    with pytest.raises(errors.HostUnfit):
        make(tmp_path, disk)
    remove(tmp_path, wipe=False)
    assert left(tmp_path) == {"data", "data/theirs"}


def test_a_disk_that_an_agent_was_given_is_one_and_can_be_wiped(tmp_path: Path) -> None:
    disk, more, other = tmp_path / "data", tmp_path / "more", tmp_path / "other"
    deploy(tmp_path, disk)
    for path, cluster in ((more, "clicks-1"), (other, "clicks-2")):
        path.mkdir()
        body = {"cluster": cluster, "mark": "w1-d2-1", "worker": "w1"}
        (path / "disk.json").write_bytes(encode_checked(body))
    named = [str(more), str(other)]
    facts = ask_deployed(LocalHost(), str(tmp_path / "opt"), named, [])
    assert facts.strange(named) == (str(other),)
    make(tmp_path, more)
    with pytest.raises(errors.HostUnfit):
        make(tmp_path, other)
    remove(tmp_path, disk, more, wipe=True)
    assert left(tmp_path) == {"more", "other", "other/disk.json"}


def test_what_the_record_does_not_have_is_not_touched(tmp_path: Path) -> None:
    disk, other = tmp_path / "data", tmp_path / "other"
    deploy(tmp_path, disk)
    other.mkdir()
    (other / "dear").touch()
    remove(tmp_path, other, wipe=True)
    assert {"other/dear", "data/jobs/1"} <= left(tmp_path)


def test_which_directories_are_of_state_is_said_by_the_record_whatever_is_named(
    tmp_path: Path,
) -> None:
    disk = tmp_path / "data" / "rhino"
    deploy(tmp_path, disk)
    facts = ask_deployed(LocalHost(), str(tmp_path / "opt"), [], [])
    above = str(tmp_path / "data")
    assert above in facts.made
    assert facts.own_state([above]) == (str(disk),)
    assert {str(disk)} <= facts.holds
    record = tmp_path / "opt" / "made"
    record.write_text("".join(f"{x}\n" for x in record.read_text().split("\n") if "state" not in x))
    facts = ask_deployed(LocalHost(), str(tmp_path / "opt"), [], [])
    assert facts.own_state([str(disk), "/elsewhere"]) == (str(disk),), "a record without marks"
    make(tmp_path, disk)
    assert f"state {disk}\n" in record.read_text()


def test_what_was_only_prepared_goes_without_a_trace(tmp_path: Path) -> None:
    disk = tmp_path / "data" / "rhino"
    make(tmp_path, disk)
    remove(tmp_path, disk, wipe=False)
    assert left(tmp_path) == set()


def test_state_that_was_there_and_is_gone_is_told_also_where_nobody_asks_for_it(
    tmp_path: Path,
) -> None:
    disk, other = tmp_path / "data", tmp_path / "other"
    make(tmp_path, disk)
    assert ask_deployed(LocalHost(), str(tmp_path / "opt"), [], []).gone == frozenset()
    disk.rename(tmp_path / "unmounted")
    facts = ask_deployed(LocalHost(), str(tmp_path / "opt"), [str(other)], [])
    assert facts.gone == {str(disk), str(other)}
