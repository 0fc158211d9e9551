"""The data source `rhino` under Spark: what Spark may do with offsets, and that rows stay equal."""

import json
import os
import pickle
import socket
import stat
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from rhinoctl.errors import Refused, UsageError
from rhinoctl.spark import nexmark
from rhinoctl.spark.marker import MarkerBell, MarkerListener
from rhinoctl.spark.nexmark import Kind
from rhinoctl.spark.source import (
    EventRange,
    GeneratorOptions,
    GeneratorStreamReader,
    MarkerStreamReader,
    mark,
    nexmark_batch,
    nexmark_stream,
    register,
)

pytestmark = pytest.mark.spark

BASE_MS = 1_700_000_000_000
"""A clock that started years ago: all events are there, and `events` bounds them."""

DEADLINE_S = 60


def until(true: Callable[[], object], query: StreamingQuery | None = None) -> None:
    """Poll; fail at the deadline, or with the query's own error when it ends before."""
    deadline = time.monotonic() + DEADLINE_S
    while not true():
        if query is not None and not query.isActive:
            raise query.exception() or AssertionError("the query ended")
        assert time.monotonic() < deadline, "not within the deadline"
        time.sleep(0.01)


class Batches:
    """What a query handed to `foreachBatch`, by batch id."""

    def __init__(self) -> None:
        self.tables: dict[int, pa.Table] = {}

    def __call__(self, df: DataFrame, batch: int) -> None:
        self.tables[batch] = df.toArrow()

    def rows(self) -> pa.Table:
        return in_order(pa.concat_tables(self.tables.values()))

    @property
    def count(self) -> int:
        return sum(table.num_rows for table in list(self.tables.values()))


def in_order(rows: pa.Table) -> pa.Table:
    """Sorted by creation time, which no two events share at the rates of these tests."""
    return rows.sort_by("time").combine_chunks()


def started(df: DataFrame, checkpoint: Path, sink: Batches, **trigger: bool) -> StreamingQuery:
    writer = df.writeStream.foreachBatch(sink).option("checkpointLocation", str(checkpoint))
    return (writer.trigger(**trigger) if trigger else writer).start()


def to_its_end(df: DataFrame, checkpoint: Path) -> tuple[Batches, StreamingQuery]:
    """Run with the trigger availableNow until it ends by itself."""
    sink = Batches()
    query = started(df, checkpoint, sink, availableNow=True)
    try:
        assert query.awaitTermination(DEADLINE_S)
    finally:
        query.stop()
    return sink, query


def offsets(query: StreamingQuery, source: int = 0) -> list[tuple[int, int]]:
    """Start and end of each batch that Spark reported, of one source with a one-number offset."""

    def number(offset: str | None) -> int:
        return next(iter(json.loads(offset).values())) if offset and offset != "null" else 0

    sources = [progress.sources[source] for progress in query.recentProgress]
    return [(number(each.startOffset), number(each.endOffset)) for each in sources]


@pytest.fixture
def bell() -> Iterator[MarkerBell]:
    with MarkerBell() as one:
        yield one


# ---------------------------------------------------------------------------- the generator


def test_stream_equals_batch_read_of_the_same_range(spark: SparkSession, tmp_path: Path) -> None:
    options = {"base_ms": BASE_MS, "events": 7_000, "preload": 1_000, "pad_bytes": 10, "seed": 3}
    limits = {"partitions": 1, "max_events_per_batch": 3_000, "preload_per_batch": 400}
    sink, query = to_its_end(nexmark_stream(spark, **options, **limits), tmp_path / "checkpoint")
    assert sink.rows().equals(in_order(nexmark_batch(spark, **options, partitions=3).toArrow()))
    assert sink.count == 1_000 + 6_000 * 46 // 50
    preload = [(0, 400), (400, 800), (800, 1_000)]
    assert offsets(query) == [*preload, (1_000, 4_000), (4_000, 7_000)]


@pytest.mark.parametrize("stream", [kind.value for kind in Kind])
def test_rows_do_not_depend_on_partitions(spark: SparkSession, stream: str) -> None:
    options = {"stream": stream, "base_ms": BASE_MS, "events": 5_000, "preload": 70}
    one, seven = (nexmark_batch(spark, **options, partitions=count) for count in (1, 7))
    assert seven.rdd.getNumPartitions() == 7
    rows = in_order(one.toArrow())
    assert rows.equals(in_order(seven.toArrow()))
    spec = GeneratorOptions.parse({"generator": "nexmark", **options}).spec
    assert rows.num_rows == nexmark.rows_before(spec, Kind(stream), 5_000)


def test_no_events_are_no_rows(spark: SparkSession) -> None:
    assert nexmark_batch(spark, events=0).count() == 0


def test_restart_from_a_checkpoint_continues(spark: SparkSession, tmp_path: Path) -> None:
    options = {"stream": "person", "base_ms": BASE_MS}
    first, _ = to_its_end(nexmark_stream(spark, **options, events=1_000), tmp_path / "checkpoint")
    longer = {**options, "events": 3_000, "partitions": 3}
    second, query = to_its_end(nexmark_stream(spark, **longer), tmp_path / "checkpoint")
    assert offsets(query) == [(1_000, 3_000)]
    assert set(first.tables).isdisjoint(second.tables)
    first.tables |= second.tables
    assert first.rows().equals(in_order(nexmark_batch(spark, **longer).toArrow()))

    with pytest.raises(StreamingQueryException, match=r"(?s)UsageError.*Remedy"):  # past the end
        to_its_end(nexmark_stream(spark, **options, events=10), tmp_path / "checkpoint")


def test_a_clock_file_holds_the_clock_until_told(spark: SparkSession, tmp_path: Path) -> None:
    clock = tmp_path / "clock"
    options = {"events": 5_000, "preload": 100, "clock_file": clock}
    sink = Batches()
    query = started(nexmark_stream(spark, **options), tmp_path / "checkpoint", sink)
    try:
        until(lambda: sink.count, query)
        assert sink.count == 100
        (tmp_path / "new").write_text(f"{BASE_MS}\n")
        os.replace(tmp_path / "new", clock)
        until(lambda: sink.count == 100 + 4_900 * 46 // 50, query)
    finally:
        query.stop()
    for given in (options, {**options, "clock_file": None, "base_ms": BASE_MS}):
        assert sink.rows().equals(in_order(nexmark_batch(spark, **given).toArrow()))


# ---------------------------------------------------------------------------- offsets alone


def reader(**options: object) -> GeneratorStreamReader:
    return GeneratorStreamReader(GeneratorOptions.parse({"generator": "nexmark", **options}))


def test_latest_offset_follows_the_clock_and_never_goes_below_its_start() -> None:
    ahead_ms = time.time_ns() // 1_000_000 + 3_600_000
    waiting = reader(base_ms=ahead_ms, preload=30)
    assert waiting.latestOffset({"n": 0}, ReadAllAvailable()) == {"n": 30}
    assert waiting.latestOffset({"n": 50}, ReadAllAvailable()) == {"n": 50}
    running = reader(base_ms=ahead_ms - 7_200_000, rate=1)
    low = running.latestOffset({"n": 0}, ReadAllAvailable())["n"]
    assert 3_600 <= low <= running.latestOffset({"n": 0}, ReadAllAvailable())["n"]
    assert running.latestOffset({"n": 0}, ReadMaxRows(5)) == {"n": 5}


def test_the_shares_of_tasks_need_no_clock_file(tmp_path: Path) -> None:
    (tmp_path / "clock").write_text(str(BASE_MS))
    shares = reader(clock_file=tmp_path / "clock", preload=10).partitions({"n": 0}, {"n": 100})
    (tmp_path / "clock").unlink()
    copies = pickle.loads(pickle.dumps(shares))
    assert all(isinstance(share, EventRange) and share.spec.base_ms == BASE_MS for share in copies)
    assert [(share.start, share.end) for share in copies] == [(0, 50), (50, 100)]


def test_a_replay_past_the_preload_needs_the_clock_file(tmp_path: Path) -> None:
    lost = reader(clock_file=tmp_path / "clock", preload=10)
    assert len(lost.partitions({"n": 0}, {"n": 10})) == 2
    with pytest.raises(UsageError):
        lost.partitions({"n": 0}, {"n": 100})


def test_an_empty_range_has_no_partitions() -> None:
    assert reader(base_ms=BASE_MS).partitions({"n": 7}, {"n": 7}) == []


# ---------------------------------------------------------------------------- bad options

WRONG: list[dict[str, object]] = [
    {"generator": "nexmarx", "base_ms": 0},
    {"stream": "bids", "base_ms": 0},
    {"skew": "cold", "base_ms": 0},
    {"skew": "zipf", "zipf_exponent": "1.5", "base_ms": 0},
    {"rate": -5, "base_ms": 0},
    {"rate": "fast", "base_ms": 0},
    {"partitions": 0, "base_ms": 0},
    {"max_events_per_batch": 0, "base_ms": 0},
    {"preload_per_batch": -1, "base_ms": 0},
    {"events": -1, "base_ms": 0},
    {"rates": 5, "base_ms": 0},
    {"base_ms": 0, "clock_file": "clock"},
    {},
]


@pytest.mark.parametrize("wrong", WRONG, ids=str)
def test_a_wrong_option_is_refused_in_the_driver(
    spark: SparkSession, wrong: dict[str, object]
) -> None:
    with pytest.raises(UsageError) as refused:
        nexmark_stream(spark, **wrong)
    assert refused.value.remedy


@pytest.mark.parametrize("wrong", [{}, {"events": 10, "clock_file": "no-such-clock"}], ids=str)
def test_a_batch_without_an_end_or_a_clock_is_refused(
    spark: SparkSession, wrong: dict[str, object]
) -> None:
    with pytest.raises(UsageError):
        nexmark_batch(spark, **wrong)


def test_a_clock_file_without_a_time_is_refused(tmp_path: Path) -> None:
    (tmp_path / "clock").write_text("soon")
    with pytest.raises(UsageError):
        reader(clock_file=tmp_path / "clock").latestOffset({"n": 0}, ReadAllAvailable())


def test_sparks_own_report_has_the_remedy(spark: SparkSession, tmp_path: Path) -> None:
    register(spark)
    with pytest.raises(AnalysisException, match=r"(?s)UsageError.*Remedy"):
        spark.readStream.format("rhino").option("generator", "nexmark").option("rate", 0).load()
    with pytest.raises(AnalysisException, match=r"(?s)UsageError.*Remedy"):
        spark.readStream.format("rhino").option("marker", "nowhere").load()
    clockless = spark.readStream.format("rhino").option("generator", "nexmark").load()
    with pytest.raises(StreamingQueryException, match=r"(?s)UsageError.*Remedy"):
        to_its_end(clockless, tmp_path / "checkpoint")


def test_only_a_stream_can_be_marked(spark: SparkSession, bell: MarkerBell) -> None:
    with pytest.raises(UsageError):
        mark(spark.range(5), bell)


# ---------------------------------------------------------------------------- the marker stream


def logged(query: StreamingQuery, batch: int) -> list[str]:
    """Each source's offset of a batch in Spark's offset log."""
    offsets = query._jsq.streamingQuery().offsetLog().get(batch).get().offsets()
    return [offsets.apply(source).get().json() for source in range(offsets.size())]


def test_a_ring_runs_a_batch_without_rows_and_is_in_the_offset_log(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Design, section 7: raising the counter makes Spark run a batch, for any source. The batch is
    replayed though the bell has gone, and the bell of the next run is above its offset."""
    checkpoint = tmp_path / "checkpoint"
    idle = nexmark_stream(spark, base_ms=BASE_MS, events=100)
    sink = Batches()
    with MarkerBell() as bell:
        marked = mark(idle, bell)
        assert marked.schema == idle.schema
        query = started(marked, checkpoint, sink)
        try:
            until(lambda: 0 in sink.tables, query)
            for batch in (1, 2):
                counter = bell.ring()
                until(lambda batch=batch: (checkpoint / f"commits/{batch}").exists(), query)
                assert logged(query, batch) == ['{"n": 100}', f'{{"marker": {counter}}}']
        finally:
            query.stop()
    assert [sink.tables[batch].num_rows for batch in range(3)] == [92, 0, 0]

    for name in ("2", ".2.crc"):
        (checkpoint / "commits" / name).unlink()
    sink.tables.clear()
    query = started(marked, checkpoint, sink)
    try:
        until(lambda: 2 in sink.tables, query)
    finally:
        query.stop()
    assert sink.tables[2].num_rows == 0

    with MarkerBell() as bell:
        query = started(mark(idle, bell), checkpoint, sink)
        try:
            assert bell.ring() > counter
            until(lambda: 3 in sink.tables, query)
        finally:
            query.stop()


def test_available_now_ends_though_the_clock_runs_and_the_bell_rings(
    spark: SparkSession, tmp_path: Path, bell: MarkerBell
) -> None:
    base_ms = time.time_ns() // 1_000_000 - 2_000
    stream = nexmark_stream(spark, base_ms=base_ms, rate=1_000, max_events_per_batch=1_000)
    ended = threading.Event()

    def ring_on() -> None:
        while not ended.wait(0.05):
            bell.ring()

    ringer = threading.Thread(target=ring_on)
    ringer.start()
    try:
        _, query = to_its_end(mark(stream, bell), tmp_path / "checkpoint")
    finally:
        ended.set()
        ringer.join()
    assert offsets(query)[:2] == [(0, 1_000), (1_000, 2_000)]
    markers = {end for _, end in offsets(query, source=1)}
    assert len(markers) == 1  # none of the rings is due


# ---------------------------------------------------------------------------- bell and listener


def listening(bell: MarkerBell) -> MarkerListener:
    return MarkerListener(bell.path)


def test_rings_reach_all_readers_and_only_grow(bell: MarkerBell) -> None:
    readers = [listening(bell) for _ in range(5)]
    counters = []
    while not all(reader.seen for reader in readers):
        counters.append(bell.ring())
    counters += [bell.ring() for _ in range(500)]
    assert counters == sorted(set(counters))
    until(lambda: {reader.seen for reader in readers} == {counters[-1]})


def test_threads_that_ring_get_counters_of_their_own(bell: MarkerBell) -> None:
    reader = listening(bell)
    counters: list[int] = []
    threads = [
        threading.Thread(target=lambda: counters.extend([bell.ring() for _ in range(200)]))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(counters)) == 800
    until(lambda: reader.seen == max(counters))


def test_a_late_reader_hears_the_last_ring(bell: MarkerBell) -> None:
    early = socket.socket(socket.AF_UNIX)
    early.connect(bell.path)
    counter = bell.ring()
    late = listening(bell)
    until(lambda: late.seen == counter)
    early.settimeout(DEADLINE_S)
    heard = b""
    while not heard.endswith(f"{counter} 0\n".encode()):
        heard += early.recv(100)
    early.close()


def test_a_bell_starts_above_what_it_is_told_and_at_the_clock() -> None:
    now_ms = time.time_ns() // 1_000_000
    with MarkerBell() as first, MarkerBell(above=now_ms + 10**9) as second:
        assert first.ring() >= now_ms
        assert second.ring() == now_ms + 10**9 + 1


def test_a_reader_that_takes_nothing_never_holds_the_bell_up(bell: MarkerBell) -> None:
    stuck = socket.socket(socket.AF_UNIX)
    stuck.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
    stuck.connect(bell.path)
    reader = listening(bell)
    counter = [bell.ring() for _ in range(50_000)][-1]
    until(lambda: reader.seen == counter)
    stuck.close()


def test_a_reader_waits_for_a_bell_and_comes_back_to_the_next_one(tmp_path: Path) -> None:
    path = tmp_path / "link"
    reader = MarkerListener(str(path))
    for _ in range(2):
        with MarkerBell() as bell:
            counter = bell.ring()
            path.symlink_to(bell.path)
            until(lambda counter=counter: reader.seen == counter)
        path.unlink()
    reader.stop()


def test_nonsense_on_the_socket_is_no_counter(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "bell"))
        server.listen()
        server.settimeout(DEADLINE_S)
        reader = MarkerListener(str(tmp_path / "bell"))
        for nonsense in (b"soon\n", b"1" * 100 + b"\n", b"12"):
            peer, _ = server.accept()
            peer.send(nonsense)
            peer.shutdown(socket.SHUT_WR)
            peer.settimeout(DEADLINE_S)
            assert peer.recv(1) == b""  # the reader has hung up
            peer.close()
            assert reader.seen == 0
        reader.stop()


def test_a_bell_is_private_and_leaves_nothing() -> None:
    bell = MarkerBell()
    directory = Path(bell.path).parent
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    counter = bell.ring()
    bell.close()
    bell.close()
    assert not directory.exists()
    assert bell.ring() == counter


def test_a_place_that_cannot_hold_a_socket_is_refused(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 100)
    deep.mkdir()
    with pytest.raises(UsageError):
        MarkerBell(directory=str(deep))
    assert not list(deep.iterdir())
    with pytest.raises(Refused):
        MarkerBell(directory=str(tmp_path / "none"))


def test_a_marker_reader_needs_no_bell() -> None:
    lonely = MarkerStreamReader("/nowhere/bell")
    assert lonely.latestOffset({"marker": 12}, ReadAllAvailable()) == {"marker": 12}
    assert lonely.partitions({"marker": 0}, {"marker": 12}) == []
    lonely.stop()
