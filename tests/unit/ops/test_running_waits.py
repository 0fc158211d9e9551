"""What is heard while processes are waited for, and what becomes of those after one that failed."""

from dataclasses import replace

import pytest

from rhinoctl.errors import Exit
from rhinoctl.ops import running, steps
from rhinoctl.ops.deploy import DeployRequest, deploy
from rhinoctl.ops.steps import QUIET_S, REMIND_S, Waiting
from rhinoctl.remote.host import Command
from rhinoctl.remote.ssh import Login
from tests.fakes.deploy_host import fleet_of_fakes
from tests.unit.ops.test_deploy import World, failing
from tests.unit.ops.test_running import AWAY, world

__all__ = ["world"]


def restarted(world: World, *names: str) -> running.HostsView:
    open_fleet = lambda inventory, login: fleet_of_fakes(world.hosts)  # noqa: E731
    return running.restart(
        world.inventory, names, Login(), lambda text: None, open_fleet, world._status
    )


def test_what_is_waited_for_is_told_after_a_while_and_again_if_it_is_another() -> None:
    now, told = [0.0], list[str]()
    waiting = Waiting(told.append, quiet_s=QUIET_S, clock=lambda: now[0])

    def at(second: float, what: str) -> int:
        now[0] = second
        waiting.on(what)
        return len(told)

    assert at(QUIET_S - 1, "the agent") == 0
    assert at(QUIET_S - 0.5, "the controller") == 0
    assert at(QUIET_S, "the agent") == 1
    assert at(QUIET_S + 1, "the agent") == 1
    assert at(QUIET_S + 2, "the controller") == 2
    assert at(QUIET_S + 3, "the controller") == 2
    assert at(QUIET_S + 2 + REMIND_S, "the controller") == 3


def test_who_starts_what_hangs_hears_what_is_waited_for(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steps, "QUIET_S", 0.0)
    world.sick = {"w1"}
    told: list[str] = []

    def tell(text: str) -> None:
        told.append(text)
        world.sick.clear()

    open_fleet = lambda inventory, login: fleet_of_fakes(world.hosts)  # noqa: E731
    view = running.start(world.inventory, (), Login(), tell, open_fleet, world._status)
    assert [text.split(":")[0] for text in told] == ["w1"]
    assert running.exit_of(view) is Exit.DONE


@pytest.mark.parametrize(
    ("failed", "left"), [("controller", ["w1", "w2"]), ("w1", ["w2"]), ("w2", [])]
)
def test_who_comes_after_one_that_failed_is_named_as_not_restarted(
    world: World, failed: str, left: list[str]
) -> None:
    world.hosts[failed].before = failing("", AWAY)
    pids = {name: world.hosts[name].running for name in left}
    view = restarted(world)
    assert [(f.host, f.code) for f in view.faults] == [
        (failed, "host-unreachable"),
        *((name, "not-tried") for name in left),
    ]
    for fault in view.faults[1:]:
        assert f"`rhinoctl restart {' '.join(left)}`" in fault.remedy
    assert {name: world.hosts[name].running for name in left} == pids
    assert not any(world.hosts[name].asked("stop ") for name in left)
    assert running.exit_of(view) is Exit.PARTIAL


def test_nothing_is_restarted_while_something_is_worse_than_before(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "SETTLE_S", 0.2)

    def before(command: Command) -> None:
        if command.what.startswith("start "):
            world.sick = {"w2"}

    world.hosts["w1"].before = before
    view = restarted(world)
    assert [(f.host, f.code) for f in view.faults] == [("w2", "not-tried")]
    assert "worker w2 is not well" in view.faults[0].reason
    assert not world.hosts["w2"].asked("stop ")


def test_a_deployment_tells_of_each_thing_that_it_waits_for_once(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of an agent that is started, and of one that was left as it is."""
    monkeypatch.setattr(steps, "QUIET_S", 0.0)
    world.hosts["w2"].running.clear()
    world.sick = {"w1", "w2"}
    world.heard.lines.clear()
    means = replace(world.means(), look_back_s=1.0)
    deploy(DeployRequest(inventory=world.inventory), Login(), world.heard, lambda plan: None, means)
    waits = [line for line in world.heard.lines if "waiting" in line]
    assert waits == [
        "w2: waiting for the agent: it has not reported to the controller",
        "waiting: w1: its agent runs, and does not report to the controller",
    ]
