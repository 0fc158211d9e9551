"""What the user's ``then`` gets of a batch: Arrow in the driver, or a lazy frame."""

import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from rhinoctl import limits
from rhinoctl.errors import WorkerUnreachable
from rhinoctl.protocol import batches
from rhinoctl.protocol import messages as m
from rhinoctl.protocol.records import RecordId
from rhinoctl.spark.outputs import fetch_output
from rhinoctl.wire.credentials import Credentials


@dataclass(frozen=True)
class Result:
    """The rows that a batch put out, after it was applied.

    It may be handed over again with the same batch id, with the same rows: `then` must bear that,
    as Spark says of `foreachBatch`. `state` has the decision record and where the batch stands;
    `again` finds out anew who has the outputs, once one of those is lost.
    """

    spark: SparkSession
    schema: pa.Schema
    credentials: Credentials
    state: batches.BatchState
    addresses: dict[str, str]
    again: "Callable[[], Result]"

    @property
    def outputs(self) -> tuple[m.OutputName, ...]:
        """The parts of the result, by who has them."""
        return self.state.outputs

    @property
    def rows(self) -> int:
        """Rows of the result."""
        return sum(name.rows for name in self.outputs)

    @cached_property
    def arrow(self) -> pa.Table:
        """The whole result in the driver's memory. Raises WorkerUnreachable if it is nowhere."""
        deadline = time.monotonic() + limits.OUTPUT_DEADLINE_S
        result = self
        while True:
            try:
                return result._fetched()
            except WorkerUnreachable:
                if time.monotonic() >= deadline:
                    raise
                result = self.again()

    def _fetched(self) -> pa.Table:
        wanted = self._wanted()
        if len(wanted) <= 1:
            tables = [self._fetch(name) for name in wanted]
        else:
            with ThreadPoolExecutor(min(len(wanted), limits.FETCHES_MAX)) as pool:
                tables = list(pool.map(self._fetch, wanted))
        return pa.concat_tables([self.schema.empty_table(), *tables])

    @cached_property
    def df(self) -> DataFrame:
        """The result as a frame: from the driver's copy if it is small, fetched by tasks if not."""
        if sum(name.size for name in self.outputs) <= limits.LOCAL_FRAME_BYTES:
            return self.spark.createDataFrame(self.arrow)
        names = self._wanted()
        schema = from_arrow_schema(self.schema)
        return self.spark.range(len(names), numPartitions=len(names)).mapInArrow(
            _fetcher(names, self._record, self._header, self.addresses, self.credentials), schema
        )

    def _wanted(self) -> list[m.OutputName]:
        return [name for name in self.outputs if name.rows]

    def _fetch(self, name: m.OutputName) -> pa.Table:
        return fetch_output(
            name,
            self._record,
            self._header,
            self.addresses,
            self.credentials,
            patience_s=limits.OUTPUT_PATIENCE_S,
        )

    @property
    def _header(self) -> m.Header:
        return self.state.lineage.header()

    @property
    def _record(self) -> RecordId:
        assert self.state.record is not None
        return self.state.record.id


def _fetcher(
    names: list[m.OutputName],
    record: RecordId,
    header: m.Header,
    addresses: dict[str, str],
    credentials: Credentials,
) -> object:
    def fetch(source: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for piece in source:
            for number in piece.column(0).to_pylist():
                name = names[number]
                yield from fetch_output(name, record, header, addresses, credentials).to_batches()

    return fetch
