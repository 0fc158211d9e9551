"""New keys and certificates for what runs, over hosts in memory."""

from pathlib import Path

import pytest

from rhinoctl.config.clusters import ClusterHome
from rhinoctl.errors import Exit, NotRunning
from rhinoctl.ops.deploy import DeployRequest, DeployView, HostState, deploy, exit_of
from rhinoctl.ops.deployed import clusters_directory
from rhinoctl.remote.ssh import Login
from tests.unit.ops.test_deploy import World, states


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return World(tmp_path)


def renew(world: World) -> DeployView:
    request = DeployRequest(inventory=world.inventory, renew=True)
    return deploy(request, Login(), world.heard, world.plans.append, world.means())


def test_new_keys_are_a_deployment_that_restarts_everything_once(world: World) -> None:
    world.deploy()
    key = world.hosts["w1"].files["/opt/rhinoctl/agent/tls.key"]
    view = renew(world)
    assert exit_of(view) is Exit.DONE
    assert all(host.restarts for host in view.hosts)
    assert world.hosts["w1"].files["/opt/rhinoctl/agent/tls.key"] != key
    assert exit_of(world.deploy(dry_run=True)) is Exit.DONE


def test_new_keys_are_no_first_deployment(world: World) -> None:
    with pytest.raises(NotRunning, match="not deployed from this machine"):
        renew(world)
    world.deploy(dry_run=True)  # now there is an identity
    home = ClusterHome(clusters_directory() / "clicks", "clicks")
    issued = {path: path.read_bytes() for path in home.directory.glob("issued/*")}
    with pytest.raises(NotRunning, match="nothing is deployed"):
        renew(world)
    assert not any(host.changed for host in world.hosts.values())
    assert {path: path.read_bytes() for path in home.directory.glob("issued/*")} == issued


def test_a_host_without_keys_gets_no_new_ones(world: World) -> None:
    world.deploy("controller", "w1")
    view = renew(world)
    assert states(view) == {
        "controller": HostState.DONE,
        "w1": HostState.DONE,
        "w2": HostState.FAILED,
    }
    assert not world.hosts["w2"].changed
