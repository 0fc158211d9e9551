"""The NEXMark queries of demo and benchmarks: each as a job of ours, and as Spark's own.

``counts``  running aggregates of the bids on each auction
``q5``      hot items: bids on each auction in windows of 60 s that slide by 10 s (NBQ5)
``q8``      new users: persons with the auctions that they open within 12 hours (NBQ8)

as the Rhino paper states them, section 5.1.2. `own` is what Spark computes itself, batch or stream.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from rhinoctl.errors import UsageError
from rhinoctl.operators import Operator, RunningAggregate, WindowAggregate, WindowJoin
from rhinoctl.spark.nexmark import PLACES, Kind, NexmarkSpec, rows_before
from rhinoctl.spark.tagging import tagged

Read = Callable[..., DataFrame]
"""Makes the frame of one kind of event: ``read(stream="bid")``."""


PAD_BYTES = 1000
"""Bytes of padding in each preloaded value: a megabyte of state is about a thousand keys."""


def padded_rows(state_mb: int) -> int:
    """Preloaded rows that make about so many megabytes of state."""
    return state_mb * (1 << 20) // (PAD_BYTES + 48)


def rows_a_cycle(kinds: Sequence[Kind]) -> int:
    """Rows of some kinds among `CYCLE` events."""
    return sum(len(PLACES[kind]) for kind in kinds)


def rows_between(kinds: Sequence[Kind], preload: int, start: int, end: int) -> int:
    """Rows of some kinds, of which the first is preloaded, among the events start <= n < end."""
    spec = NexmarkSpec(preload=preload, preload_kind=kinds[0])
    return sum(rows_before(spec, kind, end) - rows_before(spec, kind, start) for kind in kinds)


class NexmarkQuery(ABC):
    """One query. `padded`: preloaded rows carry a pad, and state keeps it."""

    name: ClassVar[str]
    kinds: ClassVar[tuple[Kind, ...]]
    """The streams that it reads; the first is the one that is preloaded."""

    last_by: ClassVar[tuple[str, ...]] = ()
    """The key whose newest row is the result, in update mode; none where every row is one."""

    mode: ClassVar[str] = "append"
    """Spark's output mode for its own query."""

    def __init__(self, *, padded: bool = False) -> None:
        self.padded = padded

    @abstractmethod
    def operator(self) -> Operator:
        """The stateful step, as an operator of ours."""

    @abstractmethod
    def frame(self, read: Read) -> DataFrame:
        """What the operator takes."""

    @abstractmethod
    def own(self, read: Read) -> DataFrame:
        """Spark's own query, with the columns of the operator's result."""

    def over(self, result: DataFrame, watermark_ms: int) -> DataFrame:
        """The rows of `own` over everything that are to be out by a watermark."""
        return result


class Counts(NexmarkQuery):
    """Read-modify-write of a row for each auction."""

    name = "counts"
    kinds = (Kind.BID,)
    last_by = ("auction",)
    mode = "update"

    def operator(self) -> Operator:
        aggregates: dict[str, Any] = {
            "bids": "count",
            "total": ("sum", "price"),
            "lowest": ("min", "price"),
            "highest": ("max", "price"),
            "mean": ("avg", "price"),
        }
        if self.padded:
            aggregates["pad"] = ("max", "pad")
        return RunningAggregate(keys=["auction"], aggregates=aggregates)

    def frame(self, read: Read) -> DataFrame:
        return read(stream="bid")

    def own(self, read: Read) -> DataFrame:
        aggregates = [
            F.count("*").alias("bids"),
            F.sum("price").alias("total"),
            F.min("price").alias("lowest"),
            F.max("price").alias("highest"),
            F.avg("price").alias("mean"),
        ]
        if self.padded:
            aggregates.append(F.max("pad").alias("pad"))
        return read(stream="bid").groupBy("auction").agg(*aggregates)


class HotItems(NexmarkQuery):
    """Q5: sliding windows, read-modify-write, put out when they are over."""

    name = "q5"
    kinds = (Kind.BID,)
    window, slide, delay = "60 seconds", "10 seconds", "2 seconds"

    def operator(self) -> Operator:
        aggregates: dict[str, Any] = {"bids": "count"}
        if self.padded:
            aggregates["pad"] = ("max", "pad")
        return WindowAggregate(
            keys=["auction"],
            time="time",
            window=self.window,
            slide=self.slide,
            watermark=self.delay,
            aggregates=aggregates,
            output="append",
        )

    def frame(self, read: Read) -> DataFrame:
        return read(stream="bid")

    def own(self, read: Read) -> DataFrame:
        aggregates = [F.count("*").alias("bids")]
        if self.padded:
            aggregates.append(F.max("pad").alias("pad"))
        window = F.window("time", self.window, self.slide).alias("window")
        bids = read(stream="bid").withWatermark("time", self.delay)
        return bids.groupBy(window, "auction").agg(*aggregates)

    def over(self, result: DataFrame, watermark_ms: int) -> DataFrame:
        return result.where(F.col("window.end") <= F.timestamp_millis(F.lit(watermark_ms)))


class NewUsers(NexmarkQuery):
    """Q8: a join within windows; state that is appended to, and large."""

    name = "q8"
    kinds = (Kind.PERSON, Kind.AUCTION)
    window, delay = "12 hours", "10 seconds"

    def operator(self) -> Operator:
        person = ["id", "name", *(["pad"] if self.padded else [])]
        return WindowJoin(
            keys={"left": ["id"], "right": ["seller"]},
            time="time",
            window=self.window,
            watermark=self.delay,
            select={"left": person, "right": ["auction", "reserve"]},
        )

    def frame(self, read: Read) -> DataFrame:
        return tagged(left=read(stream="person"), right=self._auctions(read))

    def own(self, read: Read) -> DataFrame:
        window = F.window("time", self.window).alias("window")
        pad = ["pad"] if self.padded else []
        persons = read(stream="person").withWatermark("time", self.delay)
        auctions = self._auctions(read).withWatermark("time", self.delay)
        left = persons.select(window, "id", "name", *pad)
        right = auctions.select(window, "seller", "auction", "reserve")
        same = (left["id"] == right["seller"]) & (left["window"] == right["window"])
        joined = left.join(right, same)
        columns = [left["window"], *(left[name] for name in ("id", "name", *pad))]
        return joined.select(*columns, right["auction"], right["reserve"])

    @staticmethod
    def _auctions(read: Read) -> DataFrame:
        return read(stream="auction").select(
            F.col("id").alias("auction"), "seller", "reserve", "time"
        )


QUERIES: Mapping[str, type[NexmarkQuery]] = {
    query.name: query for query in (Counts, HotItems, NewUsers)
}


def query_of(name: str, *, padded: bool = False) -> NexmarkQuery:
    """The query of a name. Raises UsageError."""
    if name not in QUERIES:
        raise UsageError(
            f"there is no query {name!r}", remedy=f"choose one of: {', '.join(QUERIES)}"
        )
    return QUERIES[name](padded=padded)
