"""T9: an agent on a disk without hard links says so once, or does not start."""

import errno
import logging
import os
from pathlib import Path

import pytest

from rhino_agent.__main__ import host_limits, look_at_links
from rhino_agent.settings import AgentSettings
from rhinoctl.errors import LinksRefused
from rhinoctl.ids import WorkerId
from rhinoctl.state.disk import LocalDisk

REFUSALS = [errno.EXDEV, errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK]


def settings(disk: Path, *, require_hardlink: bool) -> AgentSettings:
    return AgentSettings(
        cluster="c",
        worker=WorkerId("w1"),
        disk=str(disk),
        run=str(disk),
        listen="grpc+unix:///w1.sock",
        token_file="token",
        cache_bytes=1,
        buffer_bytes=1,
        require_hardlink=require_hardlink,
    )


def refusing(number: int):  # type: ignore[no-untyped-def]
    def link(source: str, target: str) -> None:
        raise OSError(number, os.strerror(number), source, None, target)

    return link


@pytest.mark.parametrize("number", REFUSALS)
def test_a_disk_without_links_is_taken_or_refused_as_told(tmp_path: Path, number: int) -> None:
    link = refusing(number)
    found = look_at_links(settings(tmp_path, require_hardlink=False), link=link)
    assert found is not None
    assert found.errno == number
    with pytest.raises(LinksRefused) as caught:
        look_at_links(settings(tmp_path, require_hardlink=True), link=link)
    assert str(tmp_path) in caught.value.message
    assert "--no-require-hardlink" in caught.value.remedy


def test_a_disk_with_links_is_taken_always(tmp_path: Path) -> None:
    assert look_at_links(settings(tmp_path, require_hardlink=True)) is None
    assert host_limits().links_refused == ""


def test_what_the_start_has_told_is_not_told_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """One warning a host, however many files become copies."""
    link = refusing(errno.EXDEV)
    disk = LocalDisk(str(tmp_path), link=link)
    found = look_at_links(settings(tmp_path, require_hardlink=False), link=link)
    assert found is not None
    disk.announce(found)
    disk.append("one", [b"bytes"])
    for number in range(3):
        disk.link("one", f"copy-{number}")
    assert disk.copies == 3
    (told,) = caplog.records
    assert told.levelno == logging.WARNING
    assert "EXDEV" in told.getMessage()
