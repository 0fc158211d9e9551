"""What is said of a command that has failed on a host."""

import pytest

from rhinoctl.errors import CommandFailed
from rhinoctl.remote.host import Command, checked
from tests.fakes.local_host import LocalHost


def failure(command: Command) -> CommandFailed:
    with pytest.raises(CommandFailed) as raised:
        checked(LocalHost("w1"), command)
    return raised.value


def test_a_command_is_to_be_run_by_hand_if_it_can_be_typed() -> None:
    found = failure(Command(argv=("ls", "/not there"), what="look"))
    assert found.message.startswith("w1: look: ")
    assert found.remedy.endswith(": ls '/not there'")


@pytest.mark.parametrize(
    "command",
    [
        Command(argv=("sh", "-s", "/opt/x", "yes"), what="tidy up", input=b"exit 3\n"),
        Command(argv=("sh", "-c", "true\nexit 3"), what="tidy up"),
    ],
    ids=["script through stdin", "script of many lines"],
)
def test_a_script_is_told_by_what_it_was_for(command: Command) -> None:
    found = failure(command)
    assert found.message == "w1: tidy up: it said nothing (exit code 3)"
    assert "sh" not in found.remedy.split()
    assert "on w1" in found.remedy
