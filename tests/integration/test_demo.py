"""The demo's end, whatever brings it about: no process is left."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from rhinoctl.remote.local import ProcessName, remove_run_directory
from rhinoctl.remote.proc import born
from rhinoctl.spark.demo import compared

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


@pytest.mark.spark
def test_the_verdict_counts_rows_that_are_missing_and_too_many(spark: SparkSession) -> None:
    """As often as they are missing; null is equal to null, NaN to NaN, and -0.0 to 0.0."""
    schema = "`a.b` string, n double"
    shared = [("x", 1.0), (None, None), ("y", float("nan")), ("z", 0.0), ("x", 1.0)]
    oracle = spark.createDataFrame([*shared, ("gone", 2.0), ("gone", 2.0)], schema)
    ours = spark.createDataFrame([*shared[:3], ("z", -0.0), ("x", 1.0), ("x", 1.0)], schema)
    assert compared(oracle, ours) == {"rows": 7, "missing": 2, "extra": 1}
    assert compared(oracle, oracle) == {"rows": 7, "missing": 0, "extra": 0}
    nothing = oracle.limit(0)
    assert compared(nothing, ours.limit(3)) == {"rows": 0, "missing": 0, "extra": 3}
