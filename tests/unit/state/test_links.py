"""T9: whether a disk makes hard links, asked before anything is at stake."""

import errno
import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from rhinoctl.state.links import link_refusal

REFUSALS = [errno.EXDEV, errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK]


def job_in(root: Path) -> Path:
    job = root / "jobs/a-uid"
    for name in ("ckpt/3/0-7-w1", "live/i0/1"):
        (job / name).mkdir(parents=True)
    return job


def files(root: Path) -> list[Path]:
    return [path for path in root.rglob("*") if path.is_file()]


@contextmanager
def mounted(*how: str | Path, undo: Sequence[str | Path] = ()) -> Iterator[None]:
    """A mount for the time of a test, which needs the rights to make one. `undo` mounts otherwise
    in the place of unmounting."""
    done = subprocess.run(["mount", *map(str, how)], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"no mounts here: {done.stderr.strip()}")
    try:
        yield
    finally:
        command = ["mount", *undo] if undo else ["umount", how[-1]]
        subprocess.run([*map(str, command)], check=True)


def test_a_disk_that_links_has_no_refusal(tmp_path: Path) -> None:
    job_in(tmp_path)
    assert link_refusal(str(tmp_path)) is None
    assert files(tmp_path) == []


@pytest.mark.parametrize("number", REFUSALS)
def test_a_refusal_is_found_and_nothing_is_left(tmp_path: Path, number: int) -> None:
    def refuse(source: str, target: str) -> None:
        raise OSError(number, os.strerror(number), source, None, target)

    found = link_refusal(str(tmp_path), link=refuse)
    assert found is not None
    assert found.errno == number
    assert files(tmp_path) == []


def test_another_failure_is_no_refusal(tmp_path: Path) -> None:
    def fail(source: str, target: str) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with pytest.raises(OSError, match="Input/output"):
        link_refusal(str(tmp_path), link=fail)
    assert files(tmp_path) == []


@pytest.mark.parametrize("which", ["ckpt", "live"])
def test_state_and_checkpoints_on_different_mounts(tmp_path: Path, which: str) -> None:
    job = job_in(tmp_path)
    with mounted("-t", "tmpfs", "none", job / which):
        found = link_refusal(str(tmp_path))
        assert found is not None
        assert found.errno == errno.EXDEV
        assert files(tmp_path) == []


def test_two_bind_mounts_of_one_file_system_are_two_mounts(tmp_path: Path) -> None:
    """The device number is the same at both ends, and links are refused: only trying tells."""
    root, elsewhere = tmp_path / "root", tmp_path / "elsewhere"
    job = job_in(root)
    elsewhere.mkdir()
    with mounted("--bind", elsewhere, job / "ckpt"):
        assert (job / "ckpt").stat().st_dev == (job / "live").stat().st_dev
        found = link_refusal(str(root))
        assert found is not None
        assert found.errno == errno.EXDEV


def test_one_mount_for_both_is_no_matter(tmp_path: Path) -> None:
    jobs = tmp_path / "jobs"
    jobs.mkdir()
    with mounted("-t", "tmpfs", "none", jobs):
        job_in(tmp_path)
        assert link_refusal(str(tmp_path)) is None
