"""A deployed controller's store in a backup, over hosts in memory."""

from pathlib import Path

import pytest

from rhinoctl.config import backup as files
from rhinoctl.config.clusters import ClusterHome, Member
from rhinoctl.control.registry import Registry
from rhinoctl.errors import (
    AlreadyRunning,
    CorruptFile,
    ForeignManifest,
    HostUnfit,
    NotRunning,
    Refused,
)
from rhinoctl.ops import controller_away
from rhinoctl.ops.deployed import clusters_directory
from rhinoctl.protocol import codec
from rhinoctl.protocol.views import problem_of
from rhinoctl.remote.host import Command, Done
from rhinoctl.remote.ssh import Login
from rhinoctl.state.sqlite import SqliteStore
from tests.fakes.deploy_host import FakeHost, fleet_of_fakes
from tests.unit.ops.test_deploy import INVENTORY, World
from tests.unit.ops.test_running import stopped, world

__all__ = ["world"]


class StoreHost(FakeHost):
    """A controller's host with a store that is read and replaced."""

    store: bytes = b""
    refuses: BaseException | None = None

    def run(self, command: Command) -> Done:
        if not command.what.endswith("the controller's store"):
            return super().run(command)
        assert command.argv[-3:] == (
            "rhinoctl.config.store_image",
            command.what.split()[0],
            "/var/lib/rhinoctl/controller/controller.db",
        )
        if self.refuses is not None:
            said = codec.dumps(problem_of(self.refuses))  # type: ignore[arg-type]
            return Done(5, b"", b"a warning\nimage refused problem=" + said + b"\n")
        if command.changes:
            self.store = command.input
            return Done(0, b"", b"")
        return Done(0, self.store, b"")


@pytest.fixture
def host(world: World, tmp_path: Path) -> StoreHost:
    """The controller's, with a store that has a claim."""
    old = world.hosts["controller"]
    made = StoreHost(**{name: getattr(old, name) for name in old.__dataclass_fields__})
    world.hosts["controller"] = made
    (tmp_path / "store").mkdir()
    store = SqliteStore(str(tmp_path / "store/controller.db"))
    Registry(store)
    store.close()
    made.store = files.image_of(tmp_path / "store/controller.db")
    return made


def home() -> ClusterHome:
    return ClusterHome(clusters_directory() / "clicks", "clicks")


def backup(world: World, file: Path) -> files.BackupHeader:
    open_fleet = lambda inventory, login: fleet_of_fakes(world.hosts)  # noqa: E731
    return controller_away.backup(world.inventory, file, Login(), open_fleet)


def restore(world: World, file: Path) -> files.BackupHeader:
    open_fleet = lambda inventory, login: fleet_of_fakes(world.hosts)  # noqa: E731
    return controller_away.restore(world.inventory, file, Login(), open_fleet)


def test_what_was_backed_up_is_there_again_with_the_keys_that_are_gone(
    world: World, host: StoreHost, tmp_path: Path
) -> None:
    image, known = host.store, home().read()
    assert known is not None
    header = backup(world, tmp_path / "b")
    assert header.cluster == known.identity
    assert not host.changed
    stopped(world, "controller")
    host.store = b""
    home().forget()
    assert restore(world, tmp_path / "b") == header
    assert host.store == image
    assert home().read() == known
    assert home().seat() == Member(host="c1", machine="controller")
    assert set(home().members()) == {"w1", "w2"}


def test_keys_that_are_here_stay(world: World, host: StoreHost, tmp_path: Path) -> None:
    backup(world, tmp_path / "b")
    home().renew(access=True)
    known = home().read()
    stopped(world, "controller")
    restore(world, tmp_path / "b")
    assert home().read() == known


def test_nothing_is_replaced_under_a_controller_that_runs(
    world: World, host: StoreHost, tmp_path: Path
) -> None:
    backup(world, tmp_path / "b")
    with pytest.raises(AlreadyRunning, match="the controller runs") as fault:
        restore(world, tmp_path / "b")
    assert "rhinoctl stop controller" in fault.value.remedy
    assert not host.changed


def test_another_cluster_s_backup_is_refused(world: World, host: StoreHost, tmp_path: Path) -> None:
    for name, other, key in (("b", "clicks-99", "authority.json"), ("local", "0f3a", "token")):
        contents = {"store": host.store, key: b"{}"}
        files.keep(tmp_path / name, other, contents, now=0.0, store="store")
    stopped(world, "controller")
    world.forget_commands()
    for name in ("b", "local"):
        with pytest.raises(ForeignManifest, match="is a backup of cluster"):
            restore(world, tmp_path / name)
    home().forget()
    with pytest.raises(ForeignManifest):
        restore(world, tmp_path / "local")
    assert home().read() is None
    assert not any(each.commands for each in world.hosts.values())


def test_why_a_store_cannot_be_read_is_said_and_no_file_is_written(
    world: World, host: StoreHost, tmp_path: Path
) -> None:
    host.refuses = CorruptFile("controller.db is damaged", remedy="use another backup")
    with pytest.raises(CorruptFile, match=r"controller: controller\.db is damaged"):
        backup(world, tmp_path / "b")
    host.refuses = None
    host.store = b"half of one"
    with pytest.raises(CorruptFile):
        backup(world, tmp_path / "b")
    assert not (tmp_path / "b").exists()


def test_a_file_that_is_there_is_not_replaced(
    world: World, host: StoreHost, tmp_path: Path
) -> None:
    (tmp_path / "b").write_text("dear")
    with pytest.raises(Refused, match="is there already"):
        backup(world, tmp_path / "b")
    assert (tmp_path / "b").read_text() == "dear"
    assert not host.commands


def test_a_backup_is_of_the_controller_s_own_machine(
    world: World, host: StoreHost, tmp_path: Path
) -> None:
    host.facts = {"machine_id": "another"}
    with pytest.raises(HostUnfit, match="controller was deployed on c1"):
        backup(world, tmp_path / "b")
    world.inventory.write_text(INVENTORY.replace("clicks", "others"))
    with pytest.raises(NotRunning, match="was not deployed from this machine"):
        backup(world, tmp_path / "b")
