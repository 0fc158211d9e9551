"""The demo's end, whatever brings it about: no process is left."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rhinoctl.remote.local import ProcessName, remove_run_directory
from rhinoctl.remote.proc import born

GONE_S = 30.0


def descendants(pid: int) -> set[ProcessName]:
    """All processes below one, by parents; those of sessions of their own have it as parent too."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            parents[int(entry.name)] = (int(fields[1]), int(fields[19]))
    found: set[ProcessName] = set()
    below = {pid}
    while below:
        below = {child for child, (parent, _) in parents.items() if parent in below}
        found |= {ProcessName(child, parents[child][1]) for child in below}
    return found


@pytest.mark.spark
@pytest.mark.parametrize(
    "number",
    [
        signal.SIGINT,
        pytest.param(signal.SIGTERM, marks=pytest.mark.slow),
        pytest.param(signal.SIGKILL, marks=pytest.mark.slow),
    ],
)
def test_no_process_is_left(tmp_path: Path, number: signal.Signals) -> None:
    demo = subprocess.Popen(
        [sys.executable, "-m", "rhinoctl.cli", "demo", "--workers", "2", "--seconds", "60"],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    assert demo.stderr is not None
    with demo.stderr:
        assert any("first batch" in line for line in demo.stderr)
        started = descendants(demo.pid)
        demo.send_signal(number)
        demo.wait(GONE_S)
    # The controller, two agents, the job, its JVM; instances and Python workers by then.
    assert len(started) >= 5
    deadline = time.monotonic() + GONE_S
    while (left := [p for p in started if born(p.pid) == p.born]) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert left == []
    if number is signal.SIGKILL:
        for path in tmp_path.glob("*/cluster/cluster.json"):
            remove_run_directory(json.loads(path.read_bytes())["run"])
    else:
        assert demo.returncode == 130
        assert list(tmp_path.iterdir()) == []
