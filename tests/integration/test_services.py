"""Supervised services, really run on this machine: killed, ended, found again, and nothing left."""

import os
import pwd
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rhinoctl import errors
from rhinoctl.remote.host import Untouched
from rhinoctl.remote.proc import born
from rhinoctl.remote.services import Service, Supervised, follow, restart
from rhinoctl.remote.supervised import ServiceState, processes_of, sweep
from tests.fakes.local_host import LocalHost

pytestmark = [pytest.mark.slow, pytest.mark.timeout(60)]
ROOT = Path(__file__).parents[2]

MODULE = """\
import os, signal, subprocess, sys, time
path = sys.argv[1]
mode = open(path).read().split()
print("began", os.getpid(), flush=True)
if "helper" in mode:  # as an agent starts instances: in sessions of their own
    subprocess.Popen(["sleep", "61"], start_new_session=True)
if "fails" in mode:
    print("no such disk", flush=True)
    sys.exit(3)
def farewell(number, frame):
    print("farewell", flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, signal.SIG_IGN if "deaf" in mode else farewell)
print("ready", flush=True)
while True:
    time.sleep(0.05)
"""


@pytest.fixture
def install_dir(tmp_path: Path) -> Path:
    """A release whose `site` has the few packages that the host's side needs."""
    release = tmp_path / "opt/versions/1-a"
    (release / "site").mkdir(parents=True)
    shutil.copy(ROOT / "templates/run.sh", release / "run")
    (release / "site/rhinoctl").symlink_to(ROOT / "rhinoctl")
    (release / "site/kept.py").write_text(MODULE)
    (tmp_path / "opt/current").symlink_to("versions/1-a")
    return tmp_path / "opt"


@pytest.fixture
def service(tmp_path: Path, install_dir: Path) -> Iterator[Service]:
    (tmp_path / "settings").write_text("plain")
    name = f"rhinoctl-test-{os.getpid()}-{tmp_path.name}"
    yield Service(
        name=name,
        module="kept",
        settings=str(tmp_path / "settings"),
        install_dir=str(install_dir),
        run_dir=str(tmp_path / "run"),
        python=sys.executable,
        user="",
    )
    sweep(name)


@pytest.fixture
def keeper() -> Supervised:
    return Supervised(LocalHost(), python=sys.executable, root=False)


def when(state: Callable[[], ServiceState], is_so: Callable[[ServiceState], bool]) -> ServiceState:
    until = time.monotonic() + 20
    while not is_so(found := state()):
        assert time.monotonic() < until, found
        time.sleep(0.05)
    return found


def ready(keeper: Supervised, service: Service, times: int = 1) -> None:
    until = time.monotonic() + 20
    while keeper.logs(service, 100).lines.count("ready") < times:
        assert time.monotonic() < until, keeper.logs(service)
        time.sleep(0.05)


def mode(service: Service, text: str) -> None:
    Path(service.settings).write_text(text)


def supervisor_of(service: Service) -> int:
    found = [
        process.pid
        for process in processes_of(service.name)
        if b"rhinoctl.remote.supervisor" in Path(f"/proc/{process.pid}/cmdline").read_bytes()
    ]
    assert len(found) == 1
    return found[0]


def test_a_service_is_started_once_and_ended_with_all_that_it_has_started(
    keeper: Supervised, service: Service
) -> None:
    assert keeper.state(service) == ServiceState(running=False, kept=False)
    assert keeper.logs(service).lines == ()
    with pytest.raises(errors.CommandFailed):
        keeper.start(service)
    mode(service, "helper")
    assert [keeper.define(service), keeper.define(service)] == [True, False]
    first = keeper.start(service)
    assert (first.running, first.kept, first.restarts) == (True, True, 0)
    assert abs(first.since - time.time()) < 20
    ready(keeper, service)
    assert keeper.start(service) == first
    assert os.getsid(first.pid) == first.pid
    assert len(processes_of(service.name)) == 3
    after = keeper.stop(service, 10)
    assert (after.running, after.kept, after.exit_code) == (False, False, 0)
    assert after.last_line == "farewell"
    assert processes_of(service.name) == []
    assert keeper.stop(service, 10) == after


def test_a_killed_process_is_started_again(keeper: Supervised, service: Service) -> None:
    keeper.define(service)
    first = keeper.start(service)
    ready(keeper, service)
    os.kill(first.pid, signal.SIGKILL)
    second = when(lambda: keeper.state(service), lambda s: s.running and s.pid != first.pid)
    assert (second.restarts, second.exit_code, second.kept) == (1, -9, True)


def test_a_supervisor_that_takes_over_keeps_the_process_of_one_that_was_killed(
    keeper: Supervised, service: Service
) -> None:
    keeper.define(service)
    first = keeper.start(service)
    ready(keeper, service)
    os.kill(supervisor_of(service), signal.SIGKILL)
    found = when(lambda: keeper.state(service), lambda s: not s.kept)
    assert (found.running, found.pid) == (True, first.pid)
    again = keeper.start(service)
    assert (again.pid, again.since, again.kept) == (first.pid, first.since, True)
    os.kill(first.pid, signal.SIGKILL)
    third = when(lambda: keeper.state(service), lambda s: s.running and s.pid != first.pid)
    assert third.exit_code is None  # it was not the child of who looked


def test_what_a_killed_supervisor_has_left_is_found_and_ended(
    keeper: Supervised, service: Service
) -> None:
    mode(service, "helper")
    keeper.define(service)
    first = keeper.start(service)
    ready(keeper, service)
    os.kill(supervisor_of(service), signal.SIGKILL)
    when(lambda: keeper.state(service), lambda s: not s.kept)
    assert not keeper.stop(service, 10).running
    assert born(first.pid) is None
    assert processes_of(service.name) == []
    assert keeper.logs(service).lines[-1] == "farewell"


def test_a_process_that_does_not_end_is_killed_after_the_patience(
    keeper: Supervised, service: Service
) -> None:
    mode(service, "deaf")
    keeper.define(service)
    keeper.start(service)
    ready(keeper, service)
    began = time.monotonic()
    assert not keeper.stop(service, 0.5).running
    assert 0.5 < time.monotonic() - began < 10
    assert processes_of(service.name) == []


def test_a_pid_that_was_used_again_is_nobody_s(
    keeper: Supervised, service: Service, tmp_path: Path
) -> None:
    keeper.define(service)
    keeper.start(service)
    keeper.stop(service, 10)
    record = tmp_path / "run" / service.name / "state.json"
    record.write_text(
        f'{{"supervisor":{os.getpid()},"supervisor_born":1,"child":{os.getpid()},"child_born":1,'
        '"since":0.0,"restarts":0,"exit_code":null}'
    )
    assert not keeper.state(service).running
    assert not keeper.stop(service, 1).running
    assert keeper.start(service).running


def test_a_crash_loop_is_seen_and_slows_down(keeper: Supervised, service: Service) -> None:
    mode(service, "fails")
    keeper.define(service)
    keeper.start(service)
    found = when(lambda: keeper.state(service), lambda s: s.restarts >= 1 and not s.running)
    assert (found.exit_code, found.last_line, found.kept) == (3, "no such disk", True)
    mode(service, "plain")
    mended = when(lambda: keeper.state(service), lambda s: s.running and s.restarts > 1)
    assert mended.kept
    mode(service, "fails")
    os.kill(mended.pid, signal.SIGKILL)
    when(lambda: keeper.state(service), lambda s: not s.running)
    assert not keeper.stop(service, 10).kept  # also while it waits
    assert processes_of(service.name) == []


def test_a_restart_is_of_the_release_that_is_current(
    keeper: Supervised, service: Service, install_dir: Path
) -> None:
    keeper.define(service)
    first = keeper.start(service)
    ready(keeper, service)
    shutil.copytree(install_dir / "versions/1-a", install_dir / "versions/2-b", symlinks=True)
    (install_dir / "current").unlink()
    (install_dir / "current").symlink_to("versions/2-b")
    environ = Path(f"/proc/{first.pid}/environ").read_bytes()
    assert b"/versions/1-a/site\0" in environ
    second = restart(keeper, service, 10)
    assert second.pid != first.pid
    assert b"/versions/2-b/site\0" in Path(f"/proc/{second.pid}/environ").read_bytes()


def test_the_log_is_followed_and_kept_short(
    keeper: Supervised, service: Service, tmp_path: Path
) -> None:
    keeper.define(service)
    keeper.start(service)
    ready(keeper, service)
    keeper.stop(service, 10)
    log = tmp_path / "run" / service.name / "log"
    seen: list[str] = []

    def pause(seconds: float) -> None:
        match len(seen):
            case 3:
                log.write_text(log.read_text() + "one\nhalf a l")
            case 4:
                log.write_text(log.read_text() + "ine\n")
            case 5:
                shutil.copy(log, log.with_name("log.1"))
                log.write_text("new\n")
            case _:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        seen.extend(line for lines in follow(keeper, service, 3, pause) for line in lines)
    assert seen[1:] == ["ready", "farewell", "one", "half a line", "new"]
    assert keeper.logs(service, 2).lines == ("half a line", "new")


def test_a_dry_run_starts_nothing_and_a_removal_leaves_nothing(
    keeper: Supervised, service: Service, tmp_path: Path
) -> None:
    told: list[str] = []
    dry = Supervised(
        Untouched(LocalHost(), lambda name, command: told.append(command.what)),
        python=sys.executable,
        root=False,
    )
    dry.define(service)
    dry.start(service)
    dry.stop(service, 1)
    assert not (tmp_path / "run").exists()
    assert told
    keeper.define(service)
    keeper.start(service)
    for _ in range(2):
        keeper.remove(service, 10)
    assert list((tmp_path / "run").iterdir()) == []
    assert processes_of(service.name) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, as by sudo")
def test_root_starts_it_as_the_user_that_it_is_for() -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as open_to_all:
        place = Path(open_to_all)
        place.chmod(0o755)
        site = place / "opt/current/site"
        shutil.copytree(ROOT / "rhinoctl", site / "rhinoctl")
        shutil.copy(ROOT / "templates/run.sh", place / "opt/current/run")
        (site / "kept.py").write_text(MODULE)
        (place / "settings").write_text("plain")
        service = Service(
            name=f"rhinoctl-test-{os.getpid()}-{place.name}",
            module="kept",
            settings=str(place / "settings"),
            install_dir=str(place / "opt"),
            run_dir=str(place / "run"),
            python=shutil.which("python3", path="/usr/bin") or "",
            user="nobody",
        )
        keeper = Supervised(LocalHost(), python=service.python, root=True)
        keeper.define(service)
        try:
            pid = keeper.start(service).pid
            ready(keeper, service)
            owners = {os.stat(f"/proc/{each}").st_uid for each in (pid, supervisor_of(service))}
            assert owners == {pwd.getpwnam("nobody").pw_uid}
            keeper.remove(service, 10)
            assert processes_of(service.name) == []
        finally:
            sweep(service.name)
