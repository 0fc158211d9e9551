"""Fetching the outputs of a batch from the workers: the part that knows nothing of Spark.

It runs in the driver, in Spark's Python workers, and in tests that have no Spark.
"""

import time
from collections.abc import Callable, Mapping

import pyarrow as pa

from rhinoctl import limits
from rhinoctl.errors import WorkerUnreachable
from rhinoctl.protocol import messages as m
from rhinoctl.protocol.ports import Address
from rhinoctl.protocol.records import RecordId
from rhinoctl.spark.slices import Call
from rhinoctl.wire.call import CallFailed, call
from rhinoctl.wire.credentials import Credentials


def fetch_output(
    name: m.OutputName,
    record: RecordId,
    header: m.Header,
    addresses: Mapping[str, str],
    credentials: Credentials,
    *,
    patience_s: float = limits.OUTPUT_DEADLINE_S,
    send: Call = call,
    now: Callable[[], float] = time.monotonic,
    pause: Callable[[float], object] = time.sleep,
) -> pa.Table:
    """One instance's output of a decided batch, waiting for its worker if need be.

    A worker that was started again since it applied the batch has lost the output, and does not
    know yet that the batch is decided: it is told again, and makes it again. Raises
    WorkerUnreachable after `patience_s`: it may be lost, and somebody else have the output.
    """
    address = Address(addresses[name.worker])
    fetch = m.FetchOutput(header=header, instance=name.instance, time=name.time, part=name.part)
    apply = m.Apply(header=header, record=record)
    deadline = now() + patience_s
    while True:
        try:
            answer, payload = send(
                address, fetch, credentials=credentials, timeout_s=limits.OUTPUT_TIMEOUT_S
            )
            if isinstance(answer, m.Done):
                return pa.ipc.open_stream(pa.py_buffer(payload[0])).read_all()
            detail = answer.detail if isinstance(answer, m.Refusal) else type(answer).__name__
            left_s = deadline - now()
            if left_s > 0:
                send(address, apply, credentials=credentials, timeout_s=left_s)
        except CallFailed as fault:
            detail = str(fault)
        if now() >= deadline:
            raise WorkerUnreachable(
                f"the output of batch {name.time} by instance {name.instance} cannot be fetched:"
                f" {detail}",
                remedy="see `rhinoctl status`; start the query again once the worker answers",
            )
        pause(limits.RETRY_DELAY_S)
