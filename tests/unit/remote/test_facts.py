"""What this machine says of itself as a host."""

from pathlib import Path

from rhinoctl.remote.facts import ask_facts
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
