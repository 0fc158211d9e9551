"""Every verb has a help, and it ends with an example and the exit codes."""

from collections.abc import Iterator
from typing import Any

import pytest
from typer.main import get_command

from rhinoctl import __version__
from rhinoctl.cli import app
from rhinoctl.errors import Exit


def verbs(command: Any, *path: str) -> Iterator[tuple[tuple[str, ...], Any]]:
    yield path, command
    for name, below in getattr(command, "commands", {}).items():
        yield from verbs(below, *path, name)


ALL = list(verbs(get_command(app)))
LEAVES = [(path, command) for path, command in ALL if not hasattr(command, "commands")]


@pytest.mark.parametrize("path", [path for path, _ in ALL], ids=lambda path: " ".join(path) or "-")
def test_help(path: tuple[str, ...], run: Any, golden: Any) -> None:
    ended = run(*path, "--help")
    assert ended.exit_code == Exit.DONE
    golden("-".join(["help", *path]), ended)


def test_the_version_is_an_option_too(run: Any) -> None:
    ended = run("--version")
    assert (ended.exit_code, ended.stdout) == (Exit.DONE, f"rhinoctl {__version__}\n")


@pytest.mark.parametrize(("path", "command"), LEAVES, ids=lambda value: str(value))
def test_every_verb_has_an_example_its_exit_codes_and_json(
    path: tuple[str, ...], command: Any
) -> None:
    assert f"rhinoctl {' '.join(path)}" in command.epilog
    assert "Exit codes:" in command.epilog
    assert any("--json" in parameter.opts for parameter in command.params)


def test_the_issue_s_verbs_are_there() -> None:
    wanted = (
        "demo status handover rescale local-up local-down local-status job-list job-show job-bind"
        " job-set job-delete op-list op-show op-watch op-abort op-revert op-pause"
        " op-resume op-repair doctor"
        " job-repair-offsets version bench-steady"
        " failover switchover drain checkpoint groups-show groups-plan groups-apply verify"
        " disk-list disk-add disk-retire disk-scrub"
        " controller-recover controller-backup controller-restore init config-validate check"
        " deploy replay upgrade undeploy start stop restart logs"
        " hosts-list hosts-add hosts-remove hosts-exec hosts-rotate-keys"
    )
    assert {"-".join(path) for path, _ in LEAVES} == set(wanted.split())
