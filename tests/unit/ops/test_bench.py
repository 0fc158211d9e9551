"""The bench's arithmetic, and in which order it runs what."""

from dataclasses import replace

import pytest

from rhinoctl.errors import ResultMismatch, UsageError
from rhinoctl.ops import bench
from rhinoctl.ops.bench_figures import Batch, Engine, Measured, added, compare, figures

REQUEST = bench.BenchRequest(
    query="counts",
    rows=1000,
    batches=3,
    warm_up=2,
    rounds=2,
    state_mb=7,
    sink="fetch",
    added=True,
    keep=False,
)


def batch(batch_s: float, *, rows: int = 1000, rows_out: int = 10, **seconds: float) -> Batch:
    return Batch(
        rows=rows, rows_out=rows_out, batch_s=batch_s, seconds=seconds, spark_seconds={"wal": 0.01}
    )


def measured(engine: Engine, *batches: Batch) -> Measured:
    return Measured(engine=engine, batches=batches)


def test_figures_are_medians_and_the_slowest() -> None:
    found = figures([batch(0.1, apply=0.05), batch(0.2, apply=0.08), batch(2.0, seal=1.5)])
    assert (found.batches, found.rows, found.rows_out) == (3, 1000, 30)
    assert (found.batch_ms, found.batch_ms_max) == (200.0, 2000.0)
    assert found.rows_per_s == 5000.0
    assert found.seconds == {"apply": 0.05, "seal": 0.0}
    assert found.spark_seconds == {"wal": 0.01}


def test_throughput_is_the_median_of_batches_and_not_of_all_time() -> None:
    """A batch with more rows in more time is as fast."""
    assert figures([batch(0.1), batch(1.0, rows=10_000), batch(0.1)]).rows_per_s == 10_000.0


def test_the_ratio_takes_the_batches_of_all_rounds_together() -> None:
    rounds = [
        measured(Engine.RHINO, batch(0.1), batch(0.1)),
        measured(Engine.SPARK, batch(0.2), batch(0.3)),
        measured(Engine.SPARK, batch(0.2), batch(9.0)),
        measured(Engine.RHINO, batch(0.1), batch(9.0)),
    ]
    rhino, spark, ratio = compare(rounds)
    assert (rhino.batches, spark.batches) == (4, 4)
    assert rhino.rows_per_s == 10_000.0
    assert spark.rows_per_s == pytest.approx((1000 / 0.2 + 1000 / 0.3) / 2, abs=0.1)
    assert ratio == pytest.approx(rhino.rows_per_s / spark.rows_per_s, abs=0.001)
    assert ratio > 1


def test_engines_that_did_other_work_are_not_compared() -> None:
    rhino = measured(Engine.RHINO, batch(0.1))
    with pytest.raises(ResultMismatch):
        compare([rhino, measured(Engine.SPARK, batch(0.1, rows_out=11))])
    compare([rhino, measured(Engine.SPARK, batch(0.1, rows_out=-1))])


def test_what_a_small_batch_adds() -> None:
    found = added(
        [
            measured(Engine.EMPTY, batch(0.030, rows_out=-1)),
            measured(Engine.RHINO, batch(0.100), batch(0.110), batch(0.9)),
            measured(Engine.EMPTY, batch(0.040, rows_out=-1), batch(0.050, rows_out=-1)),
        ],
        1000,
    )
    assert (found.rhino.batch_ms, found.empty_ms, found.added_ms) == (110.0, 40.0, 70.0)


def test_rounds_begin_with_one_engine_and_with_the_other() -> None:
    steps = bench.plan(REQUEST)
    engines = [[segment.engine.value for segment in step.segments] for step in steps]
    rounds = [["rhino"], ["spark"], ["spark"], ["rhino"]]
    assert engines == [*rounds, ["empty", "rhino", "empty"]]
    steady = [segment for step in steps[:4] for segment in step.segments]
    assert {(s.rows, s.warm_up, s.batches, s.state_mb) for s in steady} == {(1000, 2, 3, 7)}
    assert [step.needs_cluster for step in steps] == [True, False, False, True, True]


def test_both_engines_are_measured_on_the_same_input() -> None:
    rhino, spark, *_ = (step.segments[0] for step in bench.plan(REQUEST))
    for name in ("rows", "warm_up", "batches", "state_mb"):
        assert getattr(rhino, name) == getattr(spark, name)


@pytest.mark.parametrize("wrong", [{"query": "q6"}, {"query": ""}, {"sink": "x"}])
def test_what_is_not_there_is_refused(wrong: dict[str, str]) -> None:
    with pytest.raises(UsageError) as refused:
        bench.check(replace(REQUEST, **wrong))
    assert next(iter(wrong.values())) in refused.value.message
    assert "counts" in refused.value.remedy or "fetch" in refused.value.remedy
