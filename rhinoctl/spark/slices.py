"""A task's rows cut into named slices and pushed: the part of staging that knows nothing of Spark.

It runs in Spark's Python workers, and in tests that have no Spark.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from rhinoctl import limits
from rhinoctl.ids import KEY_GROUPS, Attempt, BatchTime, Vnode
from rhinoctl.operators.base import KEY_GROUP, BoundOperator
from rhinoctl.protocol import batches
from rhinoctl.protocol import messages as m
from rhinoctl.protocol.ports import Address, Buffer
from rhinoctl.protocol.records import SliceName
from rhinoctl.wire.call import CallFailed, call
from rhinoctl.wire.credentials import Credentials
from rhinoctl.wire.exchange import Answer


@dataclass(frozen=True, slots=True, kw_only=True)
class StagePlan:
    """What every task needs to know of a batch. `owners[v]` is vnode v's worker."""

    header: m.Header
    time: BatchTime
    attempt: Attempt
    owners: tuple[str, ...]
    addresses: Mapping[str, str]


class Call(Protocol):
    """How a put is sent; raises CallFailed."""

    def __call__(
        self,
        address: Address,
        message: m.Message,
        payload: Sequence[Buffer] = (),
        *,
        credentials: Credentials,
        timeout_s: float,
    ) -> Answer: ...


class Each(Protocol):
    """`map`, or what makes the calls at the same time."""

    def __call__(self, do: Callable[[str], str], subjects: list[str], /) -> Iterable[str]: ...


def together(do: Callable[[str], str], subjects: list[str]) -> Iterable[str]:
    """All calls at the same time: each waits for a chain of workers to have what it sends."""
    if len(subjects) < 2:
        return [do(subject) for subject in subjects]
    return _threads().map(do, subjects)


@cache
def _threads() -> ThreadPoolExecutor:
    """This process's; made with the first push, so never before a fork of Spark's daemon."""
    return ThreadPoolExecutor(limits.PUSHES_AT_ONCE, thread_name_prefix="rhino-push")


def push_rows(
    plan: StagePlan,
    operator: BoundOperator,
    table: pa.Table | None,
    *,
    credentials: Credentials,
    channel: int,
    task_attempt: int,
    send: Call = call,
    each: Each = map,
) -> tuple[batches.Receipt, list[str]]:
    """Push one channel's rows; a receipt for all slices, and a line for each failed push. `each`
    makes the pushes, one to a worker: one after the other, or together (`together`)."""
    slices = sliced(operator, table, len(plan.owners))
    by_worker: dict[str, list[tuple[SliceName, pa.Buffer]]] = {}
    for name, body in slices:
        by_worker.setdefault(plan.owners[name.vnode], []).append((name, body))

    def push(worker: str) -> str:
        mine = by_worker[worker]
        put = m.Put(
            header=plan.header,
            time=plan.time,
            attempt=plan.attempt,
            channel=channel,
            task_attempt=task_attempt,
            slices=tuple(name for name, _ in mine),
        )
        failure = _push(
            Address(plan.addresses[worker]), put, [b for _, b in mine], credentials, send
        )
        return f"channel {channel} to {worker}: {failure}" if failure else ""

    failures = [failure for failure in each(push, sorted(by_worker)) if failure]
    receipt = batches.Receipt(
        channel=channel,
        task_attempt=task_attempt,
        slices=tuple(name for name, _ in slices),
        max_event_ms=operator.event_times(table) if table is not None else (),
    )
    return receipt, failures


def _push(
    address: Address, put: m.Put, bodies: list[pa.Buffer], credentials: Credentials, send: Call
) -> str:
    """One put, tried again while nothing is known of it: the worker takes it once."""
    detail = ""
    for _ in range(limits.PUT_TRIES):
        try:
            answer, _ = send(
                address,
                put,
                [memoryview(body) for body in bodies],
                credentials=credentials,
                timeout_s=limits.PUT_TIMEOUT_S,
            )
        except CallFailed as fault:
            detail = str(fault)
            continue
        if isinstance(answer, m.Done):
            return ""
        return answer.detail if isinstance(answer, m.Refusal) else type(answer).__name__
    return detail or "no answer"


def sliced(
    operator: BoundOperator, rows: pa.Table | None, vnodes: int
) -> list[tuple[SliceName, pa.Buffer]]:
    """Rows of a task as named slices of the wire, by ascending vnode."""
    if rows is None or not rows.num_rows:
        return []
    table = operator.pre_aggregate(rows)
    if not table.num_rows:
        return []
    group = table.column(KEY_GROUP).to_numpy()
    vnode = group // (KEY_GROUPS // vnodes)
    order = np.argsort(vnode, kind="stable")
    ordered = pc.take(table, pa.array(order)).combine_chunks()
    batch = ordered.to_batches()[0]
    counts = np.bincount(vnode, minlength=vnodes)
    ends = np.cumsum(counts)
    found = []
    for number in np.flatnonzero(counts):
        rows = int(counts[number])
        body = batch.slice(int(ends[number]) - rows, rows).serialize()
        name = SliceName(
            vnode=Vnode(int(number)),
            rows=rows,
            size=body.size,
            checksum=xxhash.xxh3_64_intdigest(memoryview(body)),
        )
        found.append((name, body))
    return found
