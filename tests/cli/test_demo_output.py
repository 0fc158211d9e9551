"""What the demo shows: one look at it, its lines without a terminal, its end, its one object."""

import json
from dataclasses import replace

import pytest

from rhinoctl.errors import OperationAborted, ResultMismatch
from rhinoctl.ids import OpId, WorkerId
from rhinoctl.ops.demo import DemoFailover, DemoHandover, DemoOutcome, DemoResult
from rhinoctl.ops.demo_tally import Batch, Frame, Latency, Preloading, Verdict
from rhinoctl.protocol.handover import Kind, Phase
from rhinoctl.render.demo import demo_table
from rhinoctl.render.live import DemoDisplay, demo_frame
from rhinoctl.render.output import emit
from tests.cli.shown import Golden, Shown
from tests.fakes import controller as fake

LATENCY = Latency(p50=180.0, p99=410.5, max=1234.5)
BATCH = Batch(batch=41, rows_in=9000, rows_out=700, batch_ms=450.0, latency_ms=LATENCY, epoch=7)
RESCALE = fake.operation(id=OpId("op-1"), kind=Kind.RESCALE, pause_ms=None, total_ms=12_345.0)
WARMING = fake.operation(phase=Phase.WARMING, progress="copied 1 of 3 MB", pause_ms=None)
FRAME = Frame(
    stage="running",
    passed_s=22.4,
    seconds=45.0,
    preloading=None,
    rows_per_s=19_876.5,
    rows_in=448_000,
    last=BATCH,
    instances=fake.job().instances,
    operations=(RESCALE, WARMING),
)
PRELOADING = replace(
    FRAME,
    stage="filling the state",
    passed_s=None,
    preloading=Preloading(rows=25_000, of=100_000),
    last=replace(BATCH, latency_ms=None),
    operations=(),
)
STARTING = replace(PRELOADING, stage="starting Spark", preloading=None, last=None, instances=())

RESULT = DemoResult(
    query="counts",
    batches=80,
    rows_in=828_000,
    rows_out=251_470,
    latency_ms=LATENCY,
    handovers=(
        DemoHandover(
            id=OpId("op-7"),
            kind=Kind.HANDOVER,
            vnodes=tuple(sorted(WARMING.moves)),
            pause_ms=41.5,
            total_ms=2000.0,
            bytes_moved=3_200_000,
            state_bytes=6_400_000,
        ),
    ),
    failovers=(
        DemoFailover(
            worker=WorkerId("w1"),
            vnodes=22,
            detect_ms=31.2,
            recover_ms=912.0,
            bytes_fetched=0,
            replayed_batches=18,
        ),
    ),
    oracle=Verdict(rows=97_433, missing=0, extra=0, equal=True),
)
WRONG = replace(RESULT, oracle=Verdict(rows=97_433, missing=1, extra=2, equal=False))
GOOD = DemoOutcome(result=RESULT, operations=(RESCALE, fake.operation()), faults=(), directory=None)
BAD = replace(GOOD, result=WRONG, operations=(), directory="/tmp/rhinoctl-demo-x")


@pytest.mark.parametrize(
    ("name", "frame"), [("running", FRAME), ("preloading", PRELOADING), ("starting", STARTING)]
)
def test_one_look(
    capfd: pytest.CaptureFixture[str], golden: Golden, name: str, frame: Frame
) -> None:
    emit(frame, False, demo_frame)
    golden(f"demo-frame-{name}", Shown(capfd.readouterr().out))


def test_lines_without_a_terminal(capfd: pytest.CaptureFixture[str], golden: Golden) -> None:
    with DemoDisplay() as display:
        for frame in (STARTING, STARTING, PRELOADING, FRAME, FRAME):
            display.show(frame)
        display.show(replace(FRAME, operations=(RESCALE, fake.operation()), stage="done"))
    out, err = capfd.readouterr()
    assert out == ""
    golden("demo-lines", Shown(err))


@pytest.mark.parametrize(("name", "outcome"), [("equal", GOOD), ("different", BAD)])
def test_the_end(
    capfd: pytest.CaptureFixture[str], golden: Golden, name: str, outcome: DemoOutcome
) -> None:
    emit(outcome, False, demo_table)
    golden(f"demo-{name}", Shown(capfd.readouterr().out))


def test_the_one_object(capfd: pytest.CaptureFixture[str], golden: Golden) -> None:
    emit(RESULT, True, demo_table)
    out = capfd.readouterr().out
    golden("demo-json", Shown(out))
    image = json.loads(out)
    wanted = "query batches rows_in rows_out latency_ms handovers failovers oracle"
    assert list(image) == wanted.split()
    wanted = "id kind vnodes pause_ms total_ms bytes_moved state_bytes"
    assert list(image["handovers"][0]) == wanted.split()


def test_how_it_ends() -> None:
    assert GOOD.error is None
    assert isinstance(BAD.error, ResultMismatch)
    assert isinstance(replace(BAD, faults=("op-7 was aborted",)).error, ResultMismatch)
    assert isinstance(replace(GOOD, faults=("op-7 was aborted",)).error, OperationAborted)
