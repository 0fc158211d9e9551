"""Releases on this machine as a host: whole or not there, and switched in one step."""

import fcntl
import hashlib
import importlib.resources
import os
import subprocess
import sys
import threading
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from rhinoctl import errors
from rhinoctl.remote import releases
from rhinoctl.remote.environment import UNUSED_S, Environment, write_archive
from rhinoctl.remote.host import Untouched
from rhinoctl.remote.packages import Entry, this_platform
from rhinoctl.remote.releases import (
    Installed,
    install_environment,
    installed,
    remove_old,
    switch,
)
from tests.fakes.local_host import LocalHost

HOST = LocalHost()


def environment(cache: Path, text: str = "X = 1\n") -> Environment:
    entries = [Entry("site/x.py", text.encode()), Entry("run", b"#!/bin/sh\n", executable=True)]
    return write_archive(entries, this_platform(), cache, lambda said: None)


def install(made: Environment, where: Path) -> bool:
    return install_environment(HOST, made, str(where), python=sys.executable, root=False)


def test_the_same_content_is_the_same_archive_wherever_and_whenever_it_is_made(
    tmp_path: Path,
) -> None:
    first = environment(tmp_path / "a")
    (tmp_path / "file").write_text("X = 1\n")
    os.utime(tmp_path / "file", (1, 1))
    others = [Entry("run", b"#!/bin/sh\n", executable=True), Entry("site/x.py", tmp_path / "file")]
    second = write_archive(others, this_platform(), tmp_path / "b", lambda said: None)
    assert (first.digest, first.sha256) == (second.digest, second.sha256)
    assert first.archive.read_bytes() == second.archive.read_bytes()
    assert environment(tmp_path / "a", "X = 2\n").digest != first.digest


def test_an_archive_of_the_cache_is_taken_if_it_is_whole(tmp_path: Path) -> None:
    said: list[str] = []

    def made() -> Environment:
        return write_archive([Entry("run", b"1")], this_platform(), tmp_path, said.append)

    whole = made()
    content = whole.archive.read_bytes()
    assert made() == whole
    assert len(said) == 1
    whole.archive.write_bytes(content[:-1])
    assert made() == whole
    assert whole.archive.read_bytes() == content
    assert len(said) == 2
    assert hashlib.sha256(content).hexdigest() == whole.sha256
    assert len(list(tmp_path.iterdir())) == 2


def test_archives_that_nobody_used_for_long_go(tmp_path: Path) -> None:
    used, unused = environment(tmp_path), environment(tmp_path, "X = 2\n")
    torn = tmp_path / ".new-torn"
    torn.touch()
    for file in (used.archive, unused.archive, torn):
        os.utime(file, (time.time(), time.time() - UNUSED_S + 60))
    assert environment(tmp_path) == used
    for file in (unused.archive, torn):
        os.utime(file, (time.time(), time.time() - UNUSED_S - 60))
    environment(tmp_path, "X = 3\n")
    assert used.archive.exists()
    assert [path for path in tmp_path.iterdir() if unused.name in path.name or path == torn] == []


def test_a_release_is_installed_once_and_is_not_current_by_that(tmp_path: Path) -> None:
    made, opt = environment(tmp_path), tmp_path / "opt"
    assert installed(HOST, str(opt), root=False) == Installed(releases=(), current=None)
    assert [install(made, opt), install(made, opt)] == [True, False]
    assert installed(HOST, str(opt), root=False) == Installed(releases=(made.name,), current=None)
    release = opt / "versions" / made.name
    assert (release / "site/x.py").read_text() == "X = 1\n"
    assert os.access(release / "run", os.X_OK)
    assert list((release / "site/__pycache__").iterdir())


@pytest.mark.parametrize("fault", ["other bytes", "cut short", "no archive"])
def test_what_did_not_arrive_whole_is_not_there(tmp_path: Path, fault: str) -> None:
    made, opt = environment(tmp_path), tmp_path / "opt"
    content = made.archive.read_bytes()
    if fault == "other bytes":
        made = replace(made, sha256="0" * 64)
    else:
        made.archive.write_bytes(content[:-20] if fault == "cut short" else b"hello")
    with pytest.raises(errors.CommandFailed, match="was not installed"):
        install(made, opt)
    assert list((opt / "versions").iterdir()) == []
    made.archive.write_bytes(content)
    assert install(replace(made, sha256=hashlib.sha256(content).hexdigest()), opt)


def test_what_an_interrupted_installation_has_left_is_cleared_away(tmp_path: Path) -> None:
    made, opt = environment(tmp_path), tmp_path / "opt"
    left = opt / "versions" / f".new-{made.name}/site"
    left.mkdir(parents=True)
    (left / "half.py").touch()
    assert installed(HOST, str(opt), root=False).releases == ()
    assert install(made, opt)
    assert [path.name for path in (opt / "versions").iterdir()] == [made.name]
    assert not (opt / "versions" / made.name / "site/half.py").exists()


class Upload:
    """An installation that is sent its archive by hand, a byte at a time."""

    def __init__(self, made: Environment, where: Path) -> None:
        script = Path(str(importlib.resources.files("rhinoctl_data.templates"))) / "unpack.py"
        argv = [sys.executable, "-I", str(script), str(where / "versions"), made.name, made.sha256]
        argv += [f"{releases.SILENT_S:g}", f"{releases.WAIT_S:g}"]
        self.process = subprocess.Popen(argv, stdin=subprocess.PIPE, stderr=subprocess.PIPE)
        self.left = made.archive.read_bytes()
        self.send(20)
        deadline = time.monotonic() + 10
        while not is_locked(where / "versions"):
            assert time.monotonic() < deadline
            time.sleep(0.01)

    def send(self, count: int) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(self.left[:count])
        self.process.stdin.flush()
        self.left = self.left[count:]

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


def is_locked(directory: Path) -> bool:
    try:
        there = os.open(directory, os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(there, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(there)
    return False


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(releases, "SILENT_S", 0.5)
    monkeypatch.setattr(releases, "WAIT_S", 1.5)


@pytest.mark.usefixtures("impatient")
def test_an_installation_whose_sender_is_gone_without_a_word_stands_in_nobody_s_way(
    tmp_path: Path,
) -> None:
    made, opt = environment(tmp_path), tmp_path / "opt"
    with closing(Upload(made, opt)) as stale:
        assert install(made, opt)
        _, said = stale.process.communicate()
    assert b"nothing has come for 0.5 s" in said
    assert [path.name for path in (opt / "versions").iterdir()] == [made.name]
    assert (opt / "versions" / made.name / "site/x.py").read_text() == "X = 1\n"


@pytest.mark.usefixtures("impatient")
def test_an_installation_that_is_being_sent_goes_on_and_the_other_is_told_so(
    tmp_path: Path,
) -> None:
    made, opt = environment(tmp_path), tmp_path / "opt"
    ended = threading.Event()

    def feed() -> None:
        while not ended.wait(0.1):
            live.send(1)

    with closing(Upload(made, opt)) as live:
        feeding = threading.Thread(target=feed)
        feeding.start()
        try:
            with pytest.raises(errors.CommandFailed, match="is under way in") as raised:
                install(made, opt)
        finally:
            ended.set()
            feeding.join()
        live.send(len(live.left))
        live.process.communicate()
        assert live.process.returncode == 0
    assert "who else deploys" in raised.value.remedy
    assert not install(made, opt)


def test_the_current_release_is_one_that_is_there(tmp_path: Path) -> None:
    opt = tmp_path / "opt"
    old, new = environment(tmp_path), environment(tmp_path, "X = 2\n")
    for made in (old, new):
        install(made, opt)
        assert switch(HOST, made.name, str(opt), root=False)
        assert not switch(HOST, made.name, str(opt), root=False)
        assert (opt / "current").resolve().name == made.name
    with pytest.raises(errors.CommandFailed):
        switch(HOST, "not-there", str(opt), root=False)
    assert installed(HOST, str(opt), root=False).current == new.name
    assert sorted(path.name for path in opt.iterdir()) == ["current", "versions"]


def test_old_releases_go_but_for_the_current_one_the_last_and_those_in_use(tmp_path: Path) -> None:
    opt = tmp_path / "opt"
    names = []
    for number in range(5):
        made = environment(tmp_path, f"X = {number}\n")
        install(made, opt)
        os.utime(opt / "versions" / made.name, (number, number))
        names.append(made.name)
    switch(HOST, names[0], str(opt), root=False)
    dry = Untouched(HOST, lambda name, command: None)
    assert remove_old(dry, str(opt), root=False) == ()
    mapped = opt / "versions" / names[2] / "site/library.so"
    mapped.write_bytes(bytes(4096))
    code = (
        "import mmap, sys\n"
        "with open(sys.argv[1], 'r+b') as file, mmap.mmap(file.fileno(), 0):\n"
        "    print(flush=True)\n"
        "    input()\n"
    )
    argv = [sys.executable, "-c", code, str(mapped)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as user:
        assert user.stdout is not None
        user.stdout.readline()
        assert set(remove_old(HOST, str(opt), root=False)) == {names[1], names[3]}
        user.communicate(b"\n")
    left = installed(HOST, str(opt), root=False)
    assert left == Installed(releases=(names[4], names[2], names[0]), current=names[0])
    assert remove_old(HOST, str(opt), root=False) == (names[2],)
