"""The bench on real engines, as small as it gets: the numbers fit together, and nothing is left."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROWS = 460


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(300)  # two Spark drivers and a cluster, on a machine that may be loaded
def test_both_engines_do_the_same_work(tmp_path: Path) -> None:
    argv = ["bench", "steady", "--rows", str(ROWS), "--batches", "1", "--rounds", "1"]
    argv += ["--warm-up", "1", "--no-added", "--json"]
    done = subprocess.run(
        [sys.executable, "-m", "rhinoctl.cli", *argv],
        capture_output=True,
        text=True,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    rhino, spark = found["rhino"], found["spark"]
    assert found["added"] is None
    assert found["ratio"] == pytest.approx(rhino["rows_per_s"] / spark["rows_per_s"], rel=0.01)
    assert rhino["seconds"].keys() == {
        "open",
        "stage",
        "seal",
        "apply",
        "output",
        "driver",
        "spark",
    }
    assert spark["seconds"].keys() == {"query", "driver", "spark"}
    assert 0 < rhino["rows_out"] == spark["rows_out"] <= ROWS
    for engine in (rhino, spark):
        assert (engine["batches"], engine["rows"]) == (1, ROWS)
        assert all(spent >= 0 for spent in engine["seconds"].values())
        # One batch, so that the median of each part is that batch's.
        assert 1000 * sum(engine["seconds"].values()) == pytest.approx(engine["batch_ms"], abs=1)
        assert engine["rows_per_s"] == pytest.approx(1000 * ROWS / engine["batch_ms"], rel=0.01)
    assert list(tmp_path.iterdir()) == []
