"""What this machine says of itself as a host."""

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from rhinoctl.remote.facts import ask_facts
from rhinoctl.remote.host import Command, Done
from tests.fakes.local_host import LocalHost


def test_what_is_no_directory_is_not_missing_whatever_it_is(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "dang").symlink_to(tmp_path / "nowhere")
    (tmp_path / "link").symlink_to(tmp_path)
    wrong = [str(tmp_path / each) for each in ("file", "dang", "dang/below", "file/below")]
    right = [str(tmp_path / each) for each in ("new", "link/new", "link")]
    found = ask_facts(LocalHost(), [*wrong, *right], []).directories
    assert [each.is_file for each in found] == [True] * 4 + [False] * 3
    assert [each.missing for each in found] == [False] * 4 + [True, True, False]


class ReadOnlyHost(LocalHost):
    """This machine, with a file system of its own at a directory, mounted read-only."""

    def __init__(self, mount: Path) -> None:
        super().__init__()
        mounting = 'mount -t tmpfs -o ro none "$0" && exec "$@"'
        self.argv = ("unshare", "-rm", "sh", "-c", mounting, str(mount))

    def run(self, command: Command) -> Done:
        return super().run(replace(command, argv=(*self.argv, *command.argv)))


def test_a_file_system_that_is_mounted_read_only_is_known(tmp_path: Path) -> None:
    host = ReadOnlyHost(tmp_path)
    if subprocess.run([*host.argv, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no file system may be mounted here")
    at, below = ask_facts(host, [str(tmp_path), str(tmp_path / "new")], []).directories
    for each in (at, below):
        assert (each.read_only, each.writable) == (True, False)
        assert (each.there, each.mount) == (str(tmp_path), str(tmp_path))
    (usual,) = ask_facts(LocalHost(), [str(tmp_path)], []).directories
    assert (usual.read_only, usual.writable) == (False, True)
