"""Real processes: which of them stand still, and that such a one can be ended."""

import os
import signal
import sys
import time
from pathlib import Path

from rhino_agent.launcher import ProcessLauncher, ProcessName

SLEEPS = (sys.executable, "-c", "import time; time.sleep(60)")


def until(launcher: ProcessLauncher, process: ProcessName, *, stopped: bool) -> None:
    for _ in range(500):
        if launcher.stopped(process) is stopped:
            return
        time.sleep(0.01)
    raise AssertionError(f"stopped is not {stopped}")


def test_a_process_that_is_stopped_is_seen_to_be_and_can_be_killed(tmp_path: Path) -> None:
    launcher = ProcessLauncher(SLEEPS)
    process = launcher.start("settings", str(tmp_path / "log"))
    assert not launcher.stopped(process)
    os.kill(process.pid, signal.SIGSTOP)
    until(launcher, process, stopped=True)
    assert launcher.alive(process)
    os.kill(process.pid, signal.SIGCONT)
    until(launcher, process, stopped=False)
    os.kill(process.pid, signal.SIGSTOP)
    until(launcher, process, stopped=True)
    launcher.kill(process)
    assert not launcher.alive(process)
    assert not launcher.stopped(process)
