"""The Spark data source ``rhino``: a replayable generator, and the marker stream of a job.

    spark.readStream.format("rhino").option("generator", "nexmark")…     a stream of NEXMark events
    spark.readStream.format("rhino").schema(s).option("marker", path)…   no rows, offsets that wake

1. Rows are fixed by options and offsets: any range of offsets can be read again, split otherwise,
   by another process, and a restart from a checkpoint needs nothing else.
2. `latestOffset` is cheap, never blocks, and never goes below its start.
3. An error names the option, and carries its remedy into Spark's own report.

Spark makes these objects in processes of its own: the data source in one for each ``load()``, a
stream's reader in one for each run of the query (that reader is asked for offsets and partitions),
and another reader that is pickled into the tasks. So readers are plain values until they are asked.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructField, StructType

from rhinoctl.errors import UsageError
from rhinoctl.spark import nexmark
from rhinoctl.spark.marker import MarkerBell, MarkerListener, due_at
from rhinoctl.spark.nexmark import EVENTS_MAX, Kind, NexmarkSpec, check_range, refusal
from rhinoctl.spark.skew import Skew
from rhinoctl.spark.workers import settle

NAME: Final = "rhino"
PARTITIONS_MAX: Final = 4096

NUMBERS: Final[dict[str, int | None]] = {
    "seed": 0,
    "rate": 10_000,
    "keys": 100_000,
    "base_ms": None,
    "events": None,
    "preload": 0,
    "preload_ms": nexmark.PRELOAD_MS,
    "pad_bytes": 0,
    "partitions": 2,
    "max_events_per_batch": None,
    "preload_per_batch": 50_000,
    "zipf_exponent": 100,
    "hot_percent": 50,
    "hot_keys": 1,
}
"""The generator's options that are whole numbers, with their defaults."""

WORDS: Final = ("generator", "stream", "clock_file", "skew", "preload_kind")


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneratorOptions:
    """The generator's options, checked.

    ===================== ============================================================== =========
    option                                                                               default
    ===================== ============================================================== =========
    generator             ``nexmark``                                                    (needed)
    stream                ``bid``, ``auction`` or ``person``: the rows that are read     bid
    rate                  events of all kinds per second                                 10,000
    base_ms               unix time in milliseconds at which the clock starts            none
    clock_file            a file that holds base_ms as text once the clock has started   none
    events                the stream ends after so many, the preloaded ones included     none
    keys                  auctions that bids are drawn over                              100,000
    skew                  how keys are drawn: ``uniform``, ``zipf`` or ``hot``           uniform
    zipf_exponent         for ``zipf``: the exponent in hundredths (100 is 1.0)          100
    hot_percent           for ``hot``: the part of all draws that hot keys get           50
    hot_keys              for ``hot``: how many keys are hot                             1
    seed                                                                                 0
    preload               events that are there before the clock starts                  0
    preload_kind          what they are: ``bid``, ``auction`` or ``person``              bid
    preload_ms            unix time in milliseconds at which the first was created       2000-01-01
    pad_bytes             incompressible bytes that each of them carries                 0
    partitions            tasks that share a batch                                       2
    max_events_per_batch  events of all kinds in one micro-batch at most                 none
    preload_per_batch     preloaded events in one micro-batch at most                    50,000
    ===================== ============================================================== =========

    A stream needs exactly one of base_ms and clock_file, a batch read needs events. The clock file
    must be written whole (write and rename) and never change: rows are replayed with what it says.
    """

    spec: NexmarkSpec
    kind: Kind
    events: int | None
    partitions: int
    max_events_per_batch: int | None
    preload_per_batch: int
    clock_file: str | None

    def __post_init__(self) -> None:
        check_range("events", self.events, 0, EVENTS_MAX)
        check_range("partitions", self.partitions, 1, PARTITIONS_MAX)
        check_range("max_events_per_batch", self.max_events_per_batch, 1, EVENTS_MAX)
        check_range("preload_per_batch", self.preload_per_batch, 1, EVENTS_MAX)

    @classmethod
    def parse(cls, options: Mapping[str, object]) -> "GeneratorOptions":
        """Check options as Spark hands them over (names in any case, values as text).

        Raises UsageError that names the option.
        """
        given = {name.lower(): str(value).strip() for name, value in options.items()}
        for name in given:
            if name not in NUMBERS and name not in WORDS:
                raise refusal(
                    f"the data source {NAME} has no option {name}",
                    f"use some of {', '.join([*WORDS, *NUMBERS])}; or, for a marker stream, "
                    "marker alone",
                )
        _one_of("generator", given.get("generator"), ["nexmark"])
        stream = given.get("stream", Kind.BID.value).lower()
        _one_of("stream", stream, [kind.value for kind in Kind])
        early = given.get("preload_kind", Kind.BID.value).lower()
        _one_of("preload_kind", early, [kind.value for kind in Kind])
        skew = given.get("skew", Skew.UNIFORM.value).lower()
        _one_of("skew", skew, [each.value for each in Skew])
        number = {name: _number(name, given.get(name)) for name in NUMBERS}
        clock_file = given.get("clock_file") or None
        if clock_file is not None and number["base_ms"] is not None:
            raise refusal(
                "options base_ms and clock_file are both given",
                "give base_ms if the clock's start is known, clock_file if it is told later",
            )
        fields = {name: number[name] for name in NUMBERS if name in NexmarkSpec.__slots__}
        return cls(
            spec=NexmarkSpec(**fields, skew=Skew(skew), preload_kind=Kind(early)),  # type: ignore[arg-type]
            kind=Kind(stream),
            events=number["events"],
            partitions=number["partitions"] or 0,
            max_events_per_batch=number["max_events_per_batch"],
            preload_per_batch=number["preload_per_batch"] or 0,
            clock_file=clock_file,
        )

    def for_stream(self) -> "GeneratorOptions":
        """These options, if a stream can be read with them; raises UsageError if not."""
        if self.clock_file is None and self.spec.base_ms is None:
            raise refusal(
                "a stream of the generator needs a clock: neither base_ms nor clock_file is given",
                "give base_ms, the unix time in milliseconds at which the clock starts, or "
                "clock_file, a file that will hold it",
            )
        return self

    def for_batch(self) -> "GeneratorOptions":
        """These options, if a batch can be read with them; raises UsageError if not."""
        if self.events is None:
            raise refusal(
                "a batch read of the generator has no end: events is not given",
                "give events, the number of events of all kinds",
            )
        if self.events > self.spec.preload and self.started().base_ms is None:
            raise self.for_stream().no_clock(self.events)
        return self

    def started(self) -> NexmarkSpec:
        """The spec, with the clock's start if the clock file says it by now.

        Raises UsageError if the file holds something else.
        """
        if self.clock_file is None:
            return self.spec
        try:
            with open(self.clock_file, encoding="ascii", errors="replace") as file:
                text = file.read(64).strip()
        except FileNotFoundError:
            return self.spec
        except OSError as error:
            raise refusal(
                f"the clock file {self.clock_file} cannot be read: {error}",
                "make it a file that Spark's driver can read",
            ) from error
        if not text:
            return self.spec
        if not text.isdecimal():
            raise refusal(
                f"the clock file {self.clock_file} holds {text!r}, not a time",
                "write the clock's start into it as unix milliseconds",
            )
        return replace(self.spec, base_ms=int(text))

    def no_clock(self, n: int) -> UsageError:
        """The refusal to read up to event `n`, which is past the preload."""
        return refusal(
            f"event {n} is past the preload, and the clock file {self.clock_file} is missing",
            "put the file back with the time that it held, or start from a new checkpoint",
        )


def _one_of(name: str, value: str | None, known: Sequence[str]) -> None:
    if value is None or value.lower() not in known:
        raise refusal(
            f"option {name} is {value}, not {' or '.join(known)}"
            if value is not None
            else f"option {name} is missing",
            f"give {name} as {' or '.join(known)}",
        )


def _number(name: str, text: str | None) -> int | None:
    if not text:
        return NUMBERS[name]
    try:
        return int(text)
    except ValueError:
        raise refusal(
            f"option {name} is {text!r}, not a whole number", f"give {name} as digits"
        ) from None


# --- the generator


@dataclass(frozen=True, slots=True)
class EventRange(InputPartition):
    """The share of one task: the rows of a kind among start <= n < end."""

    spec: NexmarkSpec
    kind: Kind
    start: int
    end: int


def _split(spec: NexmarkSpec, kind: Kind, start: int, end: int, parts: int) -> list[EventRange]:
    """Contiguous shares of a range of events; none is empty."""
    cuts = [start + (end - start) * part // parts for part in range(parts + 1)]
    pairs = pairwise(cuts)
    return [EventRange(spec, kind, low, high) for low, high in pairs if low < high]


class GeneratorReader(DataSourceReader):
    """A batch read of the events [0, events): the oracle of a stream with the same options."""

    def __init__(self, options: GeneratorOptions) -> None:
        self._options = options.for_batch()

    def partitions(self) -> list[EventRange]:
        options, spec = self._options, self._options.started()
        shares = _split(spec, options.kind, 0, options.events or 0, options.partitions)
        return shares or [EventRange(spec, options.kind, 0, 0)]  # Spark would read a None for []

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(partition)


class GeneratorStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream of events; its offset ``{"n": n}`` is the number of events so far.

    Preloaded events are there at once, clock events once they have been created. A batch with
    preloaded events has no others.
    """

    def __init__(self, options: GeneratorOptions) -> None:
        self._options = options
        self._spec = options.spec
        self._target: int | None = None

    def initialOffset(self) -> dict:
        self._options.for_stream()
        return {"n": 0}

    def getDefaultReadLimit(self) -> ReadLimit:
        if self._options.max_events_per_batch is None and not self._options.spec.preload:
            return ReadAllAvailable()
        return ReadMaxRows(self._options.max_events_per_batch or EVENTS_MAX)

    def latestOffset(self, start: dict, limit: ReadLimit) -> dict:
        n = self._checked(start)
        end = self._available() if self._target is None else self._target
        if isinstance(limit, ReadMaxRows):
            end = min(end, n + limit.max_rows)
            if n < self._spec.preload:
                end = min(end, self._spec.preload, n + self._options.preload_per_batch)
        return {"n": max(n, end)}

    def reportLatestOffset(self) -> dict:
        return {"n": self._available()}

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self._available()

    def partitions(self, start: dict, end: dict) -> list[EventRange]:
        low, high = self._checked(start), self._checked(end)
        return _split(self._spec, self._options.kind, low, high, self._options.partitions)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(partition)

    def _learn_clock(self) -> None:
        """Take the clock's start from its file; once known it is never read again."""
        if self._spec.base_ms is None:
            self._spec = self._options.for_stream().started()

    def _available(self) -> int:
        """How many events exist by now."""
        self._learn_clock()
        spec = self._spec
        n = spec.preload
        if spec.base_ms is not None:
            elapsed_us = time.time_ns() // 1000 - spec.base_ms * 1000
            n += max(0, elapsed_us * spec.rate // 1_000_000)
        return min(n, EVENTS_MAX if self._options.events is None else self._options.events)

    def _checked(self, offset: dict) -> int:
        """The event number of an offset out of a checkpoint; refused if it is none of ours."""
        n = offset.get("n")
        most = EVENTS_MAX if self._options.events is None else self._options.events
        if not isinstance(n, int) or not 0 <= n <= most:
            raise refusal(
                f"the checkpoint is at {offset}, and this stream has the offsets n = 0 to {most}",
                "give the options that the checkpoint was made with, or a new checkpoint",
            )
        self._learn_clock()
        if n > self._spec.preload and self._spec.base_ms is None:
            raise self._options.no_clock(n)
        return n


def _read(partition: InputPartition) -> Iterator[pa.RecordBatch]:
    assert isinstance(partition, EventRange)
    settle()
    return nexmark.batches(partition.spec, partition.kind, partition.start, partition.end)


# --- the marker stream


class MarkerStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream without rows; its offset ``{"marker": counter}`` is the bell's counter.

    Offsets that Spark has logged need no bell. With the trigger availableNow Spark asks between
    batches only, and ends when nothing is new: so the bell is asked then for its last due ring,
    lest one of the batch before be missed; other rings do not prolong the run.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._listener: MarkerListener | None = None
        self._asks = False

    def _seen(self) -> int:
        if self._listener is None:  # not before it is asked: another reader is pickled into tasks
            try:
                self._listener = MarkerListener(self._path)
            except RuntimeError:  # no thread to be had now; an exception here would end the query
                return 0
        return self._listener.seen

    def initialOffset(self) -> dict:
        return {"marker": 0}

    def latestOffset(self, start: dict, limit: ReadLimit) -> dict:
        seen = due_at(self._path) if self._asks else self._seen()
        return {"marker": max(seen, start.get("marker", 0))}

    def prepareForTriggerAvailableNow(self) -> None:
        self._asks = True

    def partitions(self, start: dict, end: dict) -> list[InputPartition]:
        return []

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return iter(())

    def stop(self) -> None:
        if self._listener is not None:
            self._listener.stop()


# --- what Spark and jobs see


class RhinoDataSource(DataSource):
    """The data source ``rhino``; its options are those of `GeneratorOptions`, or ``marker``."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> StructType:
        if "marker" in self.options:
            raise refusal(
                "a marker stream has the columns of the stream that it is united with",
                "give them: .schema(df.schema)",
            )
        options = GeneratorOptions.parse(self.options)
        return from_arrow_schema(nexmark.schema(options.spec, options.kind))

    def reader(self, schema: StructType) -> DataSourceReader:
        if "marker" in self.options:
            raise refusal("a marker stream cannot be read as a batch", "use readStream")
        return GeneratorReader(self._generator_options(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        if "marker" not in self.options:
            return GeneratorStreamReader(self._generator_options(schema))
        others = sorted(name for name in self.options if name != "marker")
        if others or not self.options["marker"]:
            raise refusal(
                f"a marker stream takes the path of a bell and no other option: {others}",
                "give option marker alone, the path of the MarkerBell",
            )
        return MarkerStreamReader(self.options["marker"])

    def _generator_options(self, schema: StructType) -> GeneratorOptions:
        options = GeneratorOptions.parse(self.options)
        columns = nexmark.schema(options.spec, options.kind).names
        if schema.names != columns:
            raise refusal(
                f"the schema has columns {schema.names}, and the generator makes {columns}",
                "leave .schema(…) out",
            )
        return options


def register(spark: SparkSession) -> None:
    """Make ``format("rhino")`` known to a session. May be called again."""
    spark.dataSource.register(RhinoDataSource)


def nexmark_stream(spark: SparkSession, **options: object) -> DataFrame:
    """A stream of the generator. Options are those of `GeneratorOptions`, but `generator`.

    Raises UsageError here and not, as Spark would, when the query runs.
    """
    given = _given(options, GeneratorOptions.for_stream)
    register(spark)
    return spark.readStream.format(NAME).options(**given).load()


def nexmark_batch(spark: SparkSession, **options: object) -> DataFrame:
    """The events [0, events) as a batch: what a stream with the same options gives in the end.

    Raises UsageError if an option is missing or out of its range.
    """
    given = _given(options, GeneratorOptions.for_batch)
    register(spark)
    return spark.read.format(NAME).options(**given).load()


def _given(
    options: Mapping[str, object], check: Callable[[GeneratorOptions], object]
) -> dict[str, str]:
    """The options as text, without those that are None, checked."""
    given = {name: str(value) for name, value in options.items() if value is not None}
    given = {"generator": "nexmark", **given}
    check(GeneratorOptions.parse(given))
    return given


def mark(df: DataFrame, bell: MarkerBell) -> DataFrame:
    """The stream `df`, united with a marker stream: a ring of the bell makes its query run a batch.

    Raises UsageError if `df` is not a stream.
    """
    if not df.isStreaming:
        raise UsageError(
            "a batch cannot be united with the marker stream",
            remedy="give mark() what readStream made",
        )
    register(df.sparkSession)
    # Union goes by position. Names of its own, because a stream may have a name twice; no metadata,
    # because a watermark of `df` is not one of the marker stream.
    fields = [
        StructField(f"c{place}", field.dataType, field.nullable)
        for place, field in enumerate(df.schema.fields)
    ]
    stream = df.sparkSession.readStream.format(NAME).schema(StructType(fields))
    return df.union(stream.option("marker", bell.path).load())
