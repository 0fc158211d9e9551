"""Which disks a worker has: added and refused, there and gone, retired, and after every crash."""

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from rhino_agent.agent import next_incarnation
from rhinoctl.errors import CorruptFile, DiskFull, DiskRefused, RhinoError, UnknownDisk
from rhinoctl.ids import DiskId
from rhinoctl.protocol.disks import DiskState
from rhinoctl.state.disk import LocalDisk
from rhinoctl.state.disks import Disks, Owner
from rhinoctl.state.spread import Place, SpreadDisk

D2 = DiskId("d2")


class Site:
    """A worker's directories, of which an agent is started again and again."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.starts = 0

    def path(self, name: str) -> str:
        return str(self.root / name)

    def start(self, *configured: str, worker: str = "w1", first: str = "d1") -> Disks:
        self.starts += 1
        whole = SpreadDisk(LocalDisk(self.path(first)), self.path(first))
        owner = Owner(cluster="c", worker=worker, incarnation=self.starts)
        return Disks(whole, opener, owner, [self.path(name) for name in configured])


def opener(path: str, number: int, *, fresh: bool) -> LocalDisk:
    if not fresh and not os.path.isdir(path):
        raise FileNotFoundError(path)
    return LocalDisk(path, number=number)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def states(disks: Disks) -> dict[str, DiskState]:
    return {member.name: member.state for member in disks.spread.members}


def fill(disks: Disks, vnodes: int = 4) -> None:
    for vnode in range(vnodes):
        disks.spread.append(f"jobs/j/ckpt/{vnode}/a/x", [b"x"])


def places(disks: Disks, name: str = "d2") -> list[str]:
    return [place.vnode for place in disks.spread.places(disks.member(DiskId(name)))]


def refused(call: Callable[[], object], kind: type[RhinoError] = DiskRefused) -> str:
    with pytest.raises(kind) as caught:
        call()
    assert caught.value.remedy
    return str(caught.value.message)


def test_one_disk_has_neither_list_nor_marker(site: Site) -> None:
    disks = site.start()
    fill(disks)
    site.start()
    assert os.listdir(site.path("d1")) == ["jobs"]


def test_configured_and_added_disks_are_there_after_a_restart(site: Site) -> None:
    site.start("d2").add(site.path("deep/d3"))
    for _ in range(2):
        assert states(site.start("d2")) == dict.fromkeys(("d1", "d2", "d3"), DiskState.IN_USE)
    assert states(site.start()) == dict.fromkeys(("d1", "d2", "d3"), DiskState.IN_USE)


def test_an_added_disk_knows_what_was_there_before(site: Site) -> None:
    disks = site.start()
    fill(disks)
    disks.add(site.path("d2"))
    assert places(disks, "d1") == ["0", "1", "2", "3"]
    disks.spread.append("jobs/j/ckpt/4/a/x", [b"x"])
    assert places(disks) == ["4"]


def test_directories_that_cannot_become_a_disk(site: Site) -> None:
    disks = site.start("d2")
    os.makedirs(site.path("full/something"))
    os.makedirs(site.path("d1/below"))
    os.symlink(site.path("d2"), site.path("again"))
    (site.root / "file").write_text("x")
    assert "no absolute path" in refused(lambda: disks.add("d3"))
    assert "disk d2 of worker w1 already" in refused(lambda: disks.add(site.path("d2")))
    assert "disk d2 of worker w1 already" in refused(lambda: disks.add(site.path("again")))
    assert "disk d1 of worker w1 already" in refused(lambda: disks.add(site.path("d1")))
    assert "inside" in refused(lambda: disks.add(site.path("d1/below")))
    assert "around" in refused(lambda: disks.add(str(site.root)))
    assert "not empty: something" in refused(lambda: disks.add(site.path("full")))
    refused(lambda: disks.add(site.path("file/d3")), RhinoError)
    assert states(site.start("d2")) == dict.fromkeys(("d1", "d2"), DiskState.IN_USE)


def test_another_workers_disk_is_named(site: Site) -> None:
    site.start("d2")
    other = site.start(worker="w2", first="other")
    assert "disk of worker w1 of cluster c" in refused(lambda: other.add(site.path("d2")))


@pytest.mark.parametrize("above", ["d1", "d2", "link"])
def test_a_directory_inside_another_workers_disk_is_refused(site: Site, above: str) -> None:
    """Also for one that nobody heard of yet, or that is named by another way."""
    next_incarnation(site.start("d2").spread)
    os.symlink(site.path("d2"), site.path("link"))
    other = site.start(worker="w2", first="other")
    assert "inside" in refused(lambda: other.add(site.path(f"{above}/deep/new")))
    assert not os.path.exists(site.path(f"{above}/deep"))


def test_a_file_of_somebody_else_above_a_directory_does_not_matter(site: Site) -> None:
    for name in ("disk.json", "incarnation.json"):
        (site.root / name).write_text("{}")
    site.start().add(site.path("d2"))


def test_a_worker_that_lost_its_first_disk_does_not_take_its_others_for_its_own(
    site: Site,
) -> None:
    fill(site.start("d2"))
    assert "not empty: jobs" in refused(lambda: site.start("d2", first="new"))


def test_an_add_that_was_broken_off_is_gone_on_with(site: Site) -> None:
    """Its marker is there, and the list does not know of it."""
    site.start("d2")
    os.remove(site.path("d1/disks.json"))
    disks = site.start()
    assert disks.add(site.path("d2")).state is DiskState.IN_USE
    assert states(site.start()) == dict.fromkeys(("d1", "d2"), DiskState.IN_USE)


def test_a_damaged_list_is_refused(site: Site) -> None:
    site.start("d2")
    (site.root / "d1/disks.json").write_text('{"blake3": "", "body": {}}')
    assert "disks.json" in refused(lambda: site.start("d2"), CorruptFile)


def test_a_mount_that_is_missing_is_lost_and_nothing_is_written_there(site: Site) -> None:
    disks = site.start("d2")
    fill(disks)
    assert places(disks) == ["1", "3"]
    os.rename(site.path("d2"), site.path("away"))
    os.mkdir(site.path("d2"))
    disks = site.start("d2")
    assert states(disks)["d2"] is DiskState.LOST
    assert "is it mounted" in disks.member(D2).fault
    assert disks.spread.list("jobs/j/ckpt") == ["0", "2"]
    fill(disks)
    assert places(disks, "d1") == ["0", "1", "2", "3"]
    assert os.listdir(site.path("d2")) == []
    os.rmdir(site.path("d2"))
    assert states(site.start("d2"))["d2"] is DiskState.LOST
    assert not os.path.exists(site.path("d2"))


def test_a_disk_in_the_place_of_another_is_not_taken_for_it(site: Site) -> None:
    site.start("d2").add(site.path("d3"))
    os.rename(site.path("d2"), site.path("x"))
    os.rename(site.path("d3"), site.path("d2"))
    os.rename(site.path("x"), site.path("d3"))
    disks = site.start("d2")
    assert {disks.member(DiskId(name)).fault for name in ("d2", "d3")} == {
        "another disk is in its place"
    }


def test_a_disk_that_comes_back_has_what_is_nowhere_else(site: Site) -> None:
    disks = site.start("d2")
    fill(disks)
    os.rename(site.path("d2"), site.path("away"))
    disks = site.start("d2")
    disks.spread.append("jobs/j/ckpt/1/b/newer", [b"x"])
    os.rename(site.path("away"), site.path("d2"))
    disks = site.start("d2")
    assert states(disks)["d2"] is DiskState.IN_USE
    assert places(disks) == ["3"]
    assert disks.spread.list("jobs/j/ckpt/1") == ["b"]
    assert os.listdir(site.path("d2/jobs/j/ckpt")) == ["3"]


def test_a_disk_that_goes_while_the_agent_runs(site: Site) -> None:
    disks = site.start("d2")
    fill(disks)
    assert disks.find_lost() == []
    os.rename(site.path("d2"), site.path("away"))
    ((member, lost),) = disks.find_lost()
    assert member.name == D2
    assert lost == [Place("j", "1"), Place("j", "3")]
    assert disks.find_lost() == []
    assert states(site.start("d2"))["d2"] is DiskState.LOST
    assert "which is lost" in refused(lambda: site.start("d2").add(site.path("d2")))


def test_a_disk_that_refuses_for_too_long_is_lost_if_it_is_in_use(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    disks = site.start("d2")
    disks.add(site.path("d3"))
    fill(disks)
    assert disks.find_refusing() == {}
    disks.retire(DiskId("d3"), 0)
    monkeypatch.setattr(LocalDisk, "refusal", lambda _: OSError(errno.EROFS, "Read-only"))
    why = "it cannot be written to: Read-only"
    assert disks.find_refusing() == dict.fromkeys(("d1", "d2", "d3"), why)
    assert disks.find_lost() == [], "it may be for a moment"
    ((member, lost),) = disks.find_lost({DiskId("d1"): why, D2: why})
    assert (member.name, member.fault) == (D2, why)
    assert lost
    assert states(disks) == {
        "d1": DiskState.IN_USE,
        "d2": DiskState.LOST,
        "d3": DiskState.RETIRING,
    }
    assert disks.find_refusing().keys() == {"d1", "d3"}
    assert disks.give_up(D2).state is DiskState.EMPTY


def test_an_agent_starts_without_a_disk_that_refuses(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(site.start("d2"))
    with monkeypatch.context() as patch:
        patch.setattr(LocalDisk, "refusal", lambda _: OSError(errno.EROFS, "Read-only"))
        disks = site.start("d2")
        assert states(disks)["d2"] is DiskState.LOST
        assert "cannot be written to: Read-only" in disks.member(D2).fault
    assert states(site.start("d2"))["d2"] is DiskState.IN_USE


def test_what_cannot_be_retired(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    disks = site.start("d2")
    assert "has its log" in refused(lambda: disks.retire(DiskId("d1"), 0))
    assert "it has d1, d2" in refused(lambda: disks.retire(DiskId("d9"), 0), UnknownDisk)
    monkeypatch.setattr(disks.spread.first, "free_bytes", lambda: 10)
    assert "room for 10 B" in refused(lambda: disks.retire(D2, 11), DiskFull)
    assert states(disks)["d2"] is DiskState.IN_USE
    os.rename(site.path("d2"), site.path("away"))
    disks.find_lost()
    assert "is lost" in refused(lambda: disks.retire(D2, 0))


@pytest.mark.parametrize("configured", [(), ("d2",)])
def test_a_lost_disk_is_given_up_and_does_not_come_back(
    site: Site, configured: tuple[str, ...]
) -> None:
    disks = site.start(*configured)
    if not configured:
        disks.add(site.path("d2"))
    fill(disks)
    assert "is in use, not lost" in refused(lambda: disks.give_up(D2))
    on_it = places(disks)
    assert on_it
    os.rename(site.path("d2"), site.path("away"))
    disks = site.start(*configured)
    assert disks.give_up(D2).state is DiskState.EMPTY
    assert ("d2" in states(site.start(*configured))) is bool(configured)
    os.rename(site.path("away"), site.path("d2"))
    disks = site.start(*configured)
    assert not {*on_it} & {*disks.spread.list("jobs/j/ckpt")}
    if configured:
        assert os.listdir(site.path("d2/jobs/j/ckpt")) == []
    else:
        assert "not empty: jobs" in refused(lambda: disks.add(site.path("d2")))


def move(disks: Disks, vnode: str) -> None:
    """As the agent moves a vnode, to the first disk."""
    first, place = disks.member(DiskId("d1")), Place("j", vnode)
    assert first.disk is not None
    first.disk.append(f"moving/j-{vnode}/a/x", [b"x"])
    disks.moved(place, f"moving/j-{vnode}", first)


def test_a_retired_disk_is_empty_once_its_vnodes_and_databases_are_gone(site: Site) -> None:
    disks = site.start("d2")
    fill(disks)
    live = disks.spread.path_of("jobs/j/live/i0/1/3")
    os.makedirs(live)
    disks.retire(D2, 0)
    assert disks.retire(D2, 0).state is DiskState.RETIRING, "a second time changes nothing"
    disks = site.start("d2")
    assert states(disks)["d2"] is DiskState.RETIRING
    move(disks, "1")
    assert disks.find_empty() == []
    move(disks, "3")
    assert disks.find_empty() == [], "an instance has a database there"
    os.rmdir(live)
    assert [member.name for member in disks.find_empty()] == ["d2"]
    assert places(disks, "d1") == ["0", "1", "2", "3"]
    assert states(site.start("d2"))["d2"] is DiskState.EMPTY


def test_an_empty_disk_may_go_and_come_again(site: Site) -> None:
    disks = site.start()
    disks.add(site.path("d2"))
    disks.retire(D2, 0)
    disks.find_empty()
    added = disks.add(site.path("d2"))
    assert (added.name, states(disks)) == ("d3", dict.fromkeys(("d1", "d3"), DiskState.IN_USE))
    disks.retire(DiskId("d3"), 0)
    disks.find_empty()
    os.rename(site.path("d2"), site.path("away"))
    assert disks.find_lost() == []
    assert states(disks) == states(site.start()) == {"d1": DiskState.IN_USE}


def test_in_the_place_of_an_empty_disk_another_directory_is_looked_at_as_any(site: Site) -> None:
    disks = site.start("d2")
    disks.retire(D2, 0)
    disks.find_empty()
    os.rename(site.path("d2"), site.path("away"))
    os.makedirs(site.path("d2/jobs/of/somebody"))
    assert "not empty: jobs" in refused(lambda: disks.add(site.path("d2")))
    assert os.path.isdir(site.path("d2/jobs/of/somebody"))


def test_a_configured_disk_that_was_retired_stays_so(site: Site) -> None:
    disks = site.start("d2")
    disks.retire(D2, 0)
    disks.find_empty()
    os.rename(site.path("d2"), site.path("away"))
    assert states(site.start("d2"))["d2"] is DiskState.EMPTY
    assert not os.path.exists(site.path("d2"))


def test_of_a_vnode_on_two_disks_the_one_that_is_retired_has_it(site: Site) -> None:
    """The crash came between the two renames of a move."""
    disks = site.start("d2")
    fill(disks)
    disks.retire(D2, 0)
    disks.spread.first.append("jobs/j/ckpt/1/a/x", [b"x"])
    disks.spread.append("jobs/j/ckpt/1/b/newer", [b"x"])
    disks.spread.first.append("moving/j-3/a/x", [b"x"])
    disks = site.start("d2")
    assert disks.spread.list("jobs/j/ckpt/1") == ["a", "b"]
    assert sorted(os.listdir(site.path("d1/jobs/j/ckpt"))) == ["0", "2"]
    assert not os.path.exists(site.path("d1/moving"))
