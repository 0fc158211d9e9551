"""Deployments that change where workers are found, or find one that does not do its part."""

import json
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from rhinoctl.config.clusters import ClusterHome
from rhinoctl.config.rates import Rate, Rates
from rhinoctl.errors import Exit, HostUnreachable, NotRunning
from rhinoctl.ops.deploy import HostState, Means, exit_of
from rhinoctl.ops.deployed import Deployed, clusters_directory
from rhinoctl.protocol.views import Health, StatusView
from rhinoctl.remote.host import Command
from tests.unit.ops.test_deploy import INVENTORY, World, failing, states

AWAY = HostUnreachable("w2: cannot be reached", remedy="see that it runs")


class Addressed(World):
    """A controller that hears of a worker only if that listens where it looks for it, both by the
    settings that they were started with."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.known: dict[str, str] = {}
        self.ports: dict[str, int] = {}
        self.started: list[str] = []
        self.hangs = False
        for name, host in self.hosts.items():
            host.before = lambda command, name=name: self.starts(name, command)

    def starts(self, name: str, command: Command) -> None:
        if not command.what.startswith("start "):
            return
        self.started.append(name)
        role = "controller" if name == "controller" else "agent"
        settings = json.loads(self.hosts[name].files[f"/opt/rhinoctl/{role}/settings.json"][1])
        if name == "controller":
            self.known = settings["workers"]
        else:
            self.ports[name] = urlsplit(settings["listen"]).port or 0

    def _status(self, cluster: Deployed) -> StatusView:
        said = super()._status(cluster)
        if self.hangs:
            raise NotRunning("it does not answer", remedy="look")
        workers = []
        for each in said.workers:
            at = urlsplit(self.known[each.id])
            found = (at.hostname, at.port) == (each.id, self.ports.get(each.id))
            health = each.health if found else Health.DOWN
            workers.append(replace(each, address=self.known[each.id], health=health))
        return replace(said, workers=tuple(workers))

    def means(self) -> Means:
        return replace(super().means(), look_back_s=0.0)

    def well(self) -> set[str]:
        status = self._status(None)  # type: ignore[arg-type]
        return {each.id for each in status.workers if each.health is Health.OK}

    def write(self, old: str = "", new: str = "", more: str = "") -> None:
        self.inventory.write_text(INVENTORY.replace(old, new) + more)


def home() -> ClusterHome:
    return ClusterHome(clusters_directory() / "clicks", "clicks")


def issued() -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in home().directory.glob("issued/*")}


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Addressed:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    made = Addressed(tmp_path)
    rates = {name: Rate(address=name, bytes_s=1e9) for name in ("w1", "w2")}
    with home().claimed():
        home().keep_rates(Rates(measured_at=0.0, workers=rates))
    made.deploy()
    assert made.well() == {"w1", "w2"}
    made.started.clear()
    return made


# --- addresses -----------------------------------------------------------------------------------


def test_another_port_of_all_agents_is_a_deployment_like_others(world: Addressed) -> None:
    world.write(more="ports: {agent: 7600}\n")
    view = world.deploy()
    assert set(states(view).values()) == {HostState.DONE}
    assert world.started[0] == "controller"
    assert world.well() == {"w1", "w2"}


def test_an_agent_that_moves_is_started_before_one_that_waits_for_all_to_be_well(
    world: Addressed,
) -> None:
    world.write("host: w2", "host: w2, port: 7700", more="agent: {cache_mb: 33}\n")
    assert exit_of(world.deploy()) is Exit.DONE
    assert world.started == ["controller", "w2", "w1"]
    assert world.well() == {"w1", "w2"}


def test_workers_that_are_refused_keep_all_that_they_have(world: Addressed) -> None:
    certificates = issued()
    world.write("- {host: w1}\n  - {host: w2}", "- {host: w2, name: w1}\n  - {host: w1, name: w2}")
    world.hosts["w1"].facts["machine_id"] = "w2"
    world.hosts["w2"].facts["machine_id"] = "w1"
    view = world.deploy()
    assert states(view) == {
        "controller": HostState.UNCHANGED,
        "w1": HostState.FAILED,
        "w2": HostState.FAILED,
    }
    remedies = {host.host: host.remedy for host in view.of(HostState.FAILED)}
    for name, remedy in remedies.items():
        assert remedy == f"put its line in the inventory right: {name} is on {name}"
    assert (world.started, world.well()) == ([], {"w1", "w2"})
    assert issued() == certificates
    world.write()
    for name in ("w1", "w2"):
        world.hosts[name].facts["machine_id"] = name
    assert set(states(world.deploy()).values()) == {HostState.UNCHANGED}


def test_a_worker_that_is_away_keeps_its_address_while_the_controller_changes(
    world: Addressed,
) -> None:
    world.write("- {host: w2}", "- {host: typo, name: w2}")
    world.inventory.write_text(world.inventory.read_text().replace("c1}", "c1, lease_s: 7}"))
    before = world.hosts["w2"].before
    world.hosts["w2"].before = failing("", AWAY)
    view = world.deploy()
    assert states(view) == {
        "controller": HostState.DONE,
        "w1": HostState.UNCHANGED,
        "w2": HostState.UNREACHABLE,
    }
    assert world.well() == {"w1", "w2"}
    assert any("w2" in line and "//w2:7471" in line for line in world.heard.lines)
    world.hosts["w2"].before = before
    assert states(world.deploy())["controller"] is HostState.DONE
    assert "//typo:" in world.known["w2"]


def test_a_part_of_the_hosts_loses_no_worker(world: Addressed) -> None:
    world.write(more="ports: {agent: 7600}\n")
    assert states(world.deploy("controller")) == {"controller": HostState.UNCHANGED}
    view = world.deploy("w1")
    assert states(view) == {"w1": HostState.NOT_TRIED}
    assert "controller,w1" in view.hosts[0].remedy
    assert world.well() == {"w1", "w2"}
    assert exit_of(world.deploy("controller", "w1")) is Exit.DONE
    assert world.well() == {"w1", "w2"}
    assert exit_of(world.deploy()) is Exit.DONE
    assert world.well() == {"w1", "w2"}


# --- what was left as it is ----------------------------------------------------------------------


def test_an_agent_that_hangs_is_named_though_nothing_had_to_be_done(world: Addressed) -> None:
    world.sick.add("w2")
    view = world.deploy()
    assert (exit_of(view), view.run) == (Exit.PARTIAL, "")
    assert states(view)["w1"] is HostState.UNCHANGED
    (failed,) = view.of(HostState.FAILED)
    assert (failed.host, failed.code) == ("w2", "deadline-exceeded")
    assert "restart w2" in failed.remedy
    world.write("c1}", "c1, lease_s: 7}")
    view = world.deploy()
    assert (exit_of(view), bool(view.run)) == (Exit.PARTIAL, True)
    assert states(view) == {
        "controller": HostState.DONE,
        "w1": HostState.UNCHANGED,
        "w2": HostState.FAILED,
    }
    world.sick.clear()
    assert exit_of(world.deploy()) is Exit.DONE


def test_a_controller_that_hangs_is_named_and_no_agent_is(world: Addressed) -> None:
    world.hangs = True
    view = world.deploy()
    assert exit_of(view) is Exit.PARTIAL
    assert [host.host for host in view.of(HostState.FAILED)] == ["controller"]
    assert not world.started


def test_a_dry_run_does_not_wait_for_anybody(world: Addressed) -> None:
    world.hangs = True
    assert exit_of(world.deploy(dry_run=True)) is Exit.DONE
