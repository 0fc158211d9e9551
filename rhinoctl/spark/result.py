"""What the user's ``then`` gets of a batch: Arrow in the driver, or a lazy frame."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from rhinoctl import limits
from rhinoctl.errors import WorkerUnreachable
from rhinoctl.protocol import batches
from rhinoctl.protocol import messages as m
from rhinoctl.protocol.ports import Address
from rhinoctl.wire.call import CallFailed, call
from rhinoctl.wire.secret import Secret


@dataclass(frozen=True)
class Result:
    """The rows that a batch put out, after it was applied.

    It may be handed over again with the same batch id, with the same rows: `then` must bear that,
    as Spark says of `foreachBatch`. `state` has the decision record and where the batch stands.
    """

    spark: SparkSession
    schema: pa.Schema
    header: m.Header
    outputs: tuple[m.OutputName, ...]
    addresses: dict[str, str]
    token: Secret
    state: batches.BatchState

    @property
    def rows(self) -> int:
        """Rows of the result."""
        return sum(name.rows for name in self.outputs)

    @cached_property
    def arrow(self) -> pa.Table:
        """The whole result in the driver's memory."""
        return pa.concat_tables(
            [self.schema.empty_table(), *(self._fetch(name) for name in self._wanted())]
        )

    @cached_property
    def df(self) -> DataFrame:
        """The result as a frame: from the driver's copy if it is small, fetched by tasks if not."""
        if sum(name.size for name in self.outputs) <= limits.LOCAL_FRAME_BYTES:
            return self.spark.createDataFrame(self.arrow)
        names = self._wanted()
        schema = from_arrow_schema(self.schema)
        return self.spark.range(len(names), numPartitions=len(names)).mapInArrow(
            _fetcher(names, self.header, self.addresses, self.token), schema
        )

    def _wanted(self) -> list[m.OutputName]:
        return [name for name in self.outputs if name.rows]

    def _fetch(self, name: m.OutputName) -> pa.Table:
        return fetch_output(name, self.header, self.addresses, self.token)


def _fetcher(
    names: list[m.OutputName], header: m.Header, addresses: dict[str, str], token: Secret
) -> object:
    def fetch(source: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for piece in source:
            for number in piece.column(0).to_pylist():
                yield from fetch_output(names[number], header, addresses, token).to_batches()

    return fetch


def fetch_output(
    name: m.OutputName, header: m.Header, addresses: dict[str, str], token: Secret
) -> pa.Table:
    """One instance's output of a batch. Raises WorkerUnreachable after some tries."""
    request = m.FetchOutput(header=header, instance=name.instance, time=name.time)
    detail = ""
    for _ in range(limits.PUT_TRIES):
        try:
            answer, payload = call(
                Address(addresses[name.worker]),
                request,
                token=token,
                timeout_s=limits.OUTPUT_TIMEOUT_S,
            )
        except CallFailed as fault:
            detail = str(fault)
            continue
        if isinstance(answer, m.Done):
            return pa.ipc.open_stream(pa.py_buffer(payload[0])).read_all()
        detail = answer.detail if isinstance(answer, m.Refusal) else type(answer).__name__
    raise WorkerUnreachable(
        f"the output of batch {name.time} by instance {name.instance} cannot be fetched: {detail}",
        remedy="see `rhinoctl status`; start the query again once the worker answers",
    )
