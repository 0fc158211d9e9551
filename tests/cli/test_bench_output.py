"""What the bench ends with: a table of where the time goes, and its one object."""

import json
from dataclasses import replace

import pytest

from rhinoctl.ops.bench_figures import Added, BenchResult, Figures
from rhinoctl.render.bench import bench_table
from rhinoctl.render.output import emit
from tests.cli.shown import Golden, Shown

RHINO = Figures(
    batches=10,
    rows=1_000_040,
    rows_out=900_000,
    rows_per_s=1_234_567.8,
    batch_ms=810.0,
    batch_ms_max=1_012.5,
    seconds={
        "open": 0.004,
        "stage": 0.42,
        "seal": 0.031,
        "apply": 0.21,
        "output": 0.052,
        "driver": 0.012,
        "spark": 0.081,
    },
    spark_seconds={"latestOffset": 0.012, "queryPlanning": 0.02, "walCommit": 0.021},
)
SPARK = replace(
    RHINO,
    rows_per_s=987_654.3,
    batch_ms=1_012.5,
    batch_ms_max=12_345.0,
    seconds={"query": 0.93, "driver": 0.0, "spark": 0.082},
    spark_seconds={"latestOffset": 0.012, "walCommit": 0.022, "commitOffsets": 0.02},
)
SMALL = replace(RHINO, batches=30, rows=1_000, batch_ms=143.0, seconds={"stage": 0.05})
RESULT = BenchResult(
    query="counts",
    rows=1_000_040,
    state_mb=0,
    sink="fetch",
    rounds=2,
    rhino=RHINO,
    spark=SPARK,
    ratio=1.25,
    added=Added(rows=1_000, rhino=SMALL, empty_ms=65.5, added_ms=77.5),
)


@pytest.mark.parametrize(
    ("name", "result"),
    [("whole", RESULT), ("steady", replace(RESULT, state_mb=100, sink="drop", added=None))],
)
def test_the_end(
    capfd: pytest.CaptureFixture[str], golden: Golden, name: str, result: BenchResult
) -> None:
    emit(result, False, bench_table)
    golden(f"bench-{name}", Shown(capfd.readouterr().out))


def test_the_one_object(capfd: pytest.CaptureFixture[str], golden: Golden) -> None:
    emit(RESULT, True, bench_table)
    out = capfd.readouterr().out
    golden("bench-json", Shown(out))
    image = json.loads(out)
    assert image["ratio"] == 1.25
    assert image["rhino"].keys() == image["spark"].keys()
    assert image["added"]["added_ms"] == 77.5
