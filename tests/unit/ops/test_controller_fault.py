"""What workers are told of whose controller cannot be deployed to: its own fault, where that is why
nobody answers."""

from pathlib import Path

import pytest

from rhinoctl.config.runs import HostState
from tests.unit.ops.test_deploy import World, states


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return World(tmp_path)


def test_agents_that_are_not_started_have_the_reason_and_remedy_of_the_controller_s_host(
    world: World,
) -> None:
    world.hosts["controller"].files["/opt/rhinoctl/cluster"] = (0o600, b"other-99\n")
    view = world.deploy()
    (failed,) = view.of(HostState.FAILED)
    assert (failed.host, failed.code) == ("controller", "foreign-manifest")
    left = view.of(HostState.NOT_TRIED)
    assert [host.host for host in left] == ["w1", "w2"]
    for host in left:
        assert failed.reason in host.reason
        assert host.remedy == failed.remedy


def test_agents_are_started_by_a_controller_that_answers_though_it_is_not_deployed_to(
    world: World,
) -> None:
    world.deploy("controller")
    world.hosts["controller"].facts = {"libc": ""}
    assert states(world.deploy()) == {
        "controller": HostState.FAILED,
        "w1": HostState.DONE,
        "w2": HostState.DONE,
    }
