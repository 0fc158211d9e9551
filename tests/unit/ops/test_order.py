"""In which order a deployment restarts agents."""

from pathlib import Path

import pytest

from rhinoctl.remote.host import Command
from tests.unit.ops.test_deploy import World


def test_an_agent_that_is_not_well_is_restarted_before_those_that_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else two were away at once."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    world = World(tmp_path)
    world.deploy()
    world.sick.add("w2")
    world.release = "1-b"
    stopped: list[str] = []

    def noting(name: str, command: Command) -> None:
        if command.what.startswith("stop "):
            stopped.append(name)

    for name in ("w1", "w2"):
        world.hosts[name].before = lambda command, name=name: noting(name, command)  # type: ignore[misc]
    world.deploy()
    assert stopped == ["w2", "w1"]
