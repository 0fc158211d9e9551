"""Which hosts are fit: each rule has a host that it is about."""

from dataclasses import replace
from typing import Any

import pytest

from rhinoctl.config.rates import Drift
from rhinoctl.ops.host_checks import (
    NOTHING,
    HostFinding,
    Ours,
    Part,
    Verdict,
    judge_drifts,
    judge_fleet,
    judge_host,
)
from rhinoctl.remote.facts import HostFacts, Room
from tests.fakes import facts as fakes
from tests.fakes.facts import GB, directory

PART = Part(
    name="w1",
    disks=("/d1", "/d2"),
    install_dir="/opt/rhinoctl",
    ports=(7471,),
    sudo=False,
    is_worker=True,
    memory_bytes=8 * GB,
    cpus=4,
)


def host(**changes: Any) -> HostFacts:
    """One on which an account without root may have units of systemd."""
    return fakes.host(**{"user_manager": True, "linger": True, **changes})


def poor(facts: HostFacts, part: Part = PART, ours: Ours = NOTHING) -> list[HostFinding]:
    return [each for each in judge_host(part, facts, ours) if each.verdict is not Verdict.PASS]


def test_a_host_that_is_fit_passes_every_check_and_none_is_left_out() -> None:
    found = judge_host(PART, host())
    assert poor(host()) == []
    assert all(each.remedy == "" and each.seen for each in found)
    assert {each.check for each in found} == {
        *("platform", "python", "user", "service", "clock", "temporary files"),
        *("memory", "processors", "open files", "port 7471", "spark"),
        *("directory /opt/rhinoctl", "directory /d1", "directory /d2"),
    }


FAIL, WARN = Verdict.FAIL, Verdict.WARN

ONE: dict[str, tuple[HostFacts, Verdict, str, str]] = {
    "another system": (host(system="Darwin"), FAIL, "platform", "Darwin"),
    "musl": (host(libc=""), FAIL, "platform", "another C library"),
    "an old glibc": (host(libc="glibc 2.17"), FAIL, "platform", "2.17"),
    "no python": (host(pythons=()), FAIL, "python", "none"),
    "an old python": (host(pythons=(((3, 10), "/p"),)), FAIL, "python", "3.10"),
    "a clock that is off": (host(clock_ahead_s=-601.0), FAIL, "clock", "601.0 s behind"),
    "a clock that is a little off": (host(clock_ahead_s=3.0), WARN, "clock", "3.0 s ahead"),
    "no temporary directory": (host(temp="no"), WARN, "temporary files", "no directory"),
    "an account that does not linger": (host(linger=False), WARN, "service", "not linger"),
    "little memory": (host(memory_bytes=4 * GB), FAIL, "memory", "4.3 GB"),
    "little memory left": (host(memory_free_bytes=GB), WARN, "memory", "1.1 GB available"),
    "few processors": (host(cpus=2), WARN, "processors", "2"),
    "few files": (host(open_files=8192), WARN, "open files", "8192"),
    "hardly any files": (host(open_files=1024), FAIL, "open files", "1024"),
    "a port that is taken": (host(ports_taken=frozenset({7471})), FAIL, "port 7471", "listens"),
    "no Spark": (host(spark=()), WARN, "spark", "no Spark worker"),
    "an old Spark": (host(spark=("3.5.4",)), FAIL, "spark", "3.5.4"),
}


@pytest.mark.parametrize("name", ONE)
def test_one_thing_that_is_wrong_is_one_finding_with_a_remedy(name: str) -> None:
    facts, verdict, check, seen = ONE[name]
    (found,) = poor(facts)
    assert (found.host, found.verdict, found.check) == ("w1", verdict, check)
    assert seen in found.seen
    assert found.remedy


DIRECTORY: dict[str, tuple[dict[str, Any], Verdict, str]] = {
    "a file": ({"is_file": True}, FAIL, "a file"),
    "of somebody else": ({"writable": False, "sync_s": None}, FAIL, "cannot be written"),
    "read-only": (
        {"writable": False, "sync_s": None, "read_only": True},
        *(FAIL, "/d1 is mounted read-only"),
    ),
    "nearly full": ({"space": Room(whole=GB, free=GB - 1)}, FAIL, "free of"),
    "rather full": ({"space": Room(whole=9 * GB, free=8 * GB)}, WARN, "free of"),
    "few inodes": ({"inodes": Room(whole=9_999, free=9)}, FAIL, "9 inodes"),
    "memory": ({"type": "tmpfs"}, WARN, "gone after a restart"),
    "a network": ({"type": "nfs"}, WARN, "over a network"),
    "no links": ({"links": False}, WARN, "makes no hard links"),
    "slow": ({"sync_s": 0.1}, WARN, "a sync takes 100 ms"),
    "unbearably slow": ({"sync_s": 1.0}, FAIL, "a sync takes 1000 ms"),
    "not mounted": ({"mount": "/d2"}, WARN, "one file system with"),
}


@pytest.mark.parametrize("name", DIRECTORY)
def test_directories_for_state(name: str) -> None:
    changes, verdict, seen = DIRECTORY[name]
    wrong = directory("/d1", **changes)
    (found,) = poor(host(directories=(directory("/opt/rhinoctl"), wrong, directory("/d2"))))
    assert (found.verdict, found.check.split(" ")[0]) == (verdict, "directory")
    assert seen in found.seen
    assert found.remedy


def test_a_directory_that_is_not_there_is_no_fault_unless_it_was_there() -> None:
    absent = directory("/d1", there="/")
    facts = host(directories=(directory("/opt/rhinoctl"), absent, directory("/d2")))
    assert poor(facts) == []
    (seen,) = [each.seen for each in judge_host(PART, facts) if each.check == "directory /d1"]
    assert seen.startswith("not there yet; / has ")
    (found,) = poor(facts, ours=Ours(known=frozenset({"/opt/rhinoctl", "/d1", "/d2"})))
    assert (found.verdict, found.check) == (FAIL, "directory /d1")
    assert "is gone" in found.seen
    assert "mount its disk" in found.remedy


def test_a_directory_for_state_with_something_strange_in_it_fails() -> None:
    facts = host(directories=tuple(map(directory, ("/opt/rhinoctl", "/d1", "/d2"))))
    (found,) = poor(facts, ours=Ours(strange=frozenset({"/d2"})))
    assert (found.verdict, found.check) == (FAIL, "directory /d2")
    assert "empty" in found.remedy


def test_nothing_is_executed_in_a_temporary_directory_but_spark_s_libraries() -> None:
    assert poor(host(temp="noexec"), replace(PART, is_worker=False)) == []
    (found,) = poor(host(temp="noexec"))
    assert (found.verdict, found.check) == (WARN, "temporary files")
    assert "java.io.tmpdir" in found.remedy


def test_what_runs_of_ours_is_not_in_its_own_way() -> None:
    taken = host(ports_taken=frozenset({7470, 7471}))
    part = replace(PART, ports=(7471, 7470))
    ours = Ours(listens={7471: "agent"}, installed=True)
    (found,) = poor(taken, part, ours)
    assert (found.verdict, found.check) == (FAIL, "port 7470")
    agent = [each.seen for each in judge_host(part, taken, ours) if each.check == "port 7471"]
    assert agent == ["our agent listens there"]
    (before,) = poor(host(linger=False))
    (after,) = poor(host(linger=False), ours=ours)
    assert after.remedy == f"{before.remedy}; then `rhinoctl restart`"


def test_what_another_cluster_has_is_named() -> None:
    (found,) = poor(host(), ours=Ours(installed=True, foreign="orders-1f2e"))
    assert (found.verdict, found.check) == (FAIL, "cluster")
    assert "orders-1f2e" in found.seen


def test_a_network_that_is_another_than_copies_are_placed_for() -> None:
    slower, unknown = judge_drifts(
        [
            Drift(worker="w1", kept=1e9, days=40, now=1e8),
            Drift(worker="w2", kept=None, days=40, now=1e7),
        ]
    )
    assert (slower.host, slower.check, slower.verdict) == ("w1", "network", WARN)
    assert "100 MB/s now" in slower.seen
    assert "1.0 GB/s, as measured 40 days ago" in slower.seen
    assert "fastest" in unknown.seen
    assert "check --apply" in slower.remedy


def test_what_is_not_known_is_not_taken_for_zero() -> None:
    unknown = directory("/d1", space=None, inodes=None, sync_s=None)
    facts = host(open_files=None, directories=(directory("/opt/rhinoctl"), unknown))
    assert poor(facts, replace(PART, disks=("/d1",))) == []


def test_what_the_inventory_asks_for_makes_a_difference() -> None:
    root = replace(PART, sudo=True)
    assert [each.check for each in poor(host(), root)] == ["user"]
    assert poor(host(sudo=True), root) == poor(host(uid=0), root) == []
    closed = directory("/opt/rhinoctl", writable=False)
    there = host(sudo=True, directories=(closed, directory("/d1"), directory("/d2")))
    assert poor(there, root) == []
    bare = directory("/d1", links=False)
    facts = host(directories=(directory("/opt/rhinoctl"), bare, directory("/d2")))
    (found,) = poor(facts, replace(PART, require_hardlink=True))
    assert found.verdict is FAIL
    noexec = host(
        directories=(directory("/opt/rhinoctl", executes=False), directory("/d1"), directory("/d2"))
    )
    assert [each.seen for each in poor(noexec)] == ["nothing may be executed there"]
    assert "spark" not in {
        each.check for each in judge_host(replace(PART, is_worker=False), host())
    }


def test_hosts_beside_each_other() -> None:
    assert judge_fleet({"w1": host(), "w2": host(machine_id="b2")}) == ()
    assert judge_fleet({"w1": host(machine_id=""), "w2": host(machine_id="")}) == ()
    (found,) = judge_fleet({"w1": host(), "w2": host()})
    assert (found.host, found.verdict, "w1" in found.seen) == ("w2", FAIL, True)
    mixed = judge_fleet({"w1": host(), "w2": host(machine_id="b2", spark=("4.3.0",))})
    assert [(each.host, each.verdict) for each in mixed] == [("w1", WARN), ("w2", WARN)]


@pytest.mark.parametrize("changes", [{"read_only": True, "mount": "/mnt"}, {}])
@pytest.mark.parametrize("sudo", [False, True])
def test_root_is_not_told_to_become_root(changes: dict[str, Any], sudo: bool) -> None:
    closed = directory("/d1", writable=False, sync_s=None, **changes)
    facts = host(uid=0, directories=(directory("/opt/rhinoctl"), closed, directory("/d2")))
    (found,) = poor(facts, replace(PART, sudo=sudo))
    assert found.verdict is FAIL
    assert "sudo" not in found.remedy
    assert ("/mnt" in found.remedy) is bool(changes)
