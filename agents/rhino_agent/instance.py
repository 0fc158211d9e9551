"""An instance process: the vnodes' databases, and the operator that works on them.

It takes one command at a time from its agent, over the same ports as everything else, and keeps no
opinion of its own about what is decided. `python -m rhino_agent.instance SETTINGS`.
"""

import json
import logging
import os
import resource
import shutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from rhino_agent.settings import InstanceSettings, read_settings
from rhinoctl import limits
from rhinoctl.errors import RhinoError
from rhinoctl.ids import BatchTime, Vnode
from rhinoctl.operators import bound_from_json
from rhinoctl.operators.base import Applied, BoundOperator, Slice
from rhinoctl.protocol import messages as m
from rhinoctl.protocol.ports import Address, Clock, Envelope, Wire, WriteBatch
from rhinoctl.state.log import check_slice
from rhinoctl.state.rocks import RocksStore, RocksStores, StoreBudget
from rhinoctl.wire.clock import SystemClock
from rhinoctl.wire.flight import FlightWire
from rhinoctl.wire.secret import Secret

log = logging.getLogger("rhino.instance")

LAST_BATCH = b"\xff\xffrhino:last_batch"
"""The runtime's own entry in each store; operators' keys sort below (operators.keys)."""


class Instance:
    """The loop over Wire and Stores. `stores` opens a vnode's database in a live directory."""

    def __init__(
        self,
        settings: InstanceSettings,
        *,
        wire: Wire,
        clock: Clock,
        stores: RocksStores,
        operator: BoundOperator,
    ) -> None:
        self._settings = settings
        self._wire = wire
        self._clock = clock
        self._stores = stores
        self._operator = operator
        self._open: dict[Vnode, RocksStore] = {}
        self._applied: dict[Vnode, BatchTime] = {}
        self.stopping = False

    def step(self, timeout_s: float) -> None:
        """Take one command, answer it, and use the time after it to bound dirty bytes."""
        envelope = self._wire.receive(timeout_s)
        if envelope is None or envelope.message is None:
            return
        self._wire.reply(envelope, self._answer(envelope))
        self._stores.relieve()

    def _answer(self, envelope: Envelope) -> m.Message:
        message: Any = envelope.message
        header = self._header()
        if (message.header.job, message.header.incarnation) != (header.job, header.incarnation):
            detail = f"this is {header.job} incarnation {header.incarnation}"
            return m.Refusal(header=header, code=m.RefusalCode.FENCED, detail=detail)
        handler = _COMMANDS.get(type(message))
        if handler is None:
            detail = f"an instance takes no {type(message).__name__}"
            return m.Refusal(header=header, code=m.RefusalCode.FOREIGN, detail=detail)
        try:
            return handler(self, message)
        except RhinoError as fault:
            detail = f"{fault.message} ({fault.code})"
            code = m.RefusalCode.FAULT
            if isinstance(message, m.ApplyBatch):
                code, detail = m.RefusalCode.POISON, f"batch {message.time}: {detail}"
            return m.Refusal(header=header, code=code, detail=detail)
        except Exception as fault:
            log.exception("command-failed command=%s", type(message).__name__)
            code = m.RefusalCode.FAULT
            if isinstance(message, m.ApplyBatch):
                code = m.RefusalCode.POISON
            return m.Refusal(header=header, code=code, detail=f"{type(fault).__name__}: {fault}")

    def _header(self) -> m.Header:
        settings = self._settings
        return m.Header(
            cluster=settings.cluster, job=settings.job.uid, incarnation=settings.incarnation
        )

    def _status(self, message: m.InstanceStatus) -> m.Message:
        return m.InstanceState(
            header=self._header(),
            instance=self._settings.instance,
            vnodes=dict(self._applied),
            rss_bytes=_rss_bytes(),
        )

    def _open_vnode(self, message: m.OpenVnode) -> m.Message:
        if message.vnode not in self._open:
            live = f"{self._settings.live}/{message.vnode}"
            self._open[message.vnode] = self._stores.open(live, message.base or None)
            self._applied[message.vnode] = message.covers
        return m.Done(header=self._header())

    def _close_vnode(self, message: m.CloseVnode) -> m.Message:
        store = self._open.pop(message.vnode, None)
        if store is not None:
            store.close()
            shutil.rmtree(store.directory, ignore_errors=True)
            del self._applied[message.vnode]
        return m.Done(header=self._header())

    def _apply_batch(self, message: m.ApplyBatch) -> m.Message:
        slices = [
            piece
            for part in message.parts
            for piece in _read_slices(part, self._operator.wire_schema)
        ]
        stores = {vnode: self._open[vnode] for vnode in message.vnodes}
        applied = self._operator.apply(slices, stores)
        stamp = f"{message.time.generation}/{message.time.batch}".encode()
        for vnode, writes in applied.writes.items():
            batch = WriteBatch(
                [*writes.keys, LAST_BATCH],
                [*writes.values, stamp],
                writes.deletes,
                writes.delete_ranges,
            )
            stores[vnode].write(batch)
        rows, size = 0, 0
        if message.output:
            rows, size = _write_output(message, applied, self._operator.result_schema)
        for vnode in message.vnodes:
            self._applied[vnode] = message.time
        return m.BatchApplied(
            header=self._header(),
            time=message.time,
            rows=rows,
            size=size,
            applied_at=self._clock.wall(),
            rss_bytes=_rss_bytes(),
            state_bytes={v: self._open[v].state_bytes for v in message.vnodes},
        )

    def _checkpoint(self, message: m.CheckpointVnode) -> m.Message:
        store = self._open[message.vnode]
        (stamp,) = store.get_many([LAST_BATCH])
        last = BatchTime(0, -1)
        if stamp is not None:
            last = BatchTime(*(int(part) for part in stamp.decode().split("/")))
        store.checkpoint(message.directory)
        return m.Checkpointed(
            header=self._header(),
            vnode=message.vnode,
            last_batch=last,
            covers=self._applied[message.vnode],
        )

    def _stop(self, message: m.StopInstance) -> m.Message:
        self.stopping = True
        return m.Done(header=self._header())

    def close(self) -> None:
        """Close every database."""
        for vnode in sorted(self._open):
            self._open.pop(vnode).close()


_COMMANDS: Mapping[type, Callable[[Instance, Any], m.Message]] = {
    m.InstanceStatus: Instance._status,
    m.OpenVnode: Instance._open_vnode,
    m.CloseVnode: Instance._close_vnode,
    m.ApplyBatch: Instance._apply_batch,
    m.CheckpointVnode: Instance._checkpoint,
    m.StopInstance: Instance._stop,
}


def _read_slices(part: m.SegmentPart, schema: pa.Schema) -> list[Slice]:
    """The record batches of a segment's slices, mapped into memory and checked."""
    found: list[Slice] = []
    with pa.memory_map(part.path) as source:
        for place in part.places:
            body = source.read_at(place.size, place.offset)
            buffer = pa.py_buffer(body)
            check_slice(memoryview(buffer), place, part.path)
            found.append((place.vnode, pa.ipc.read_record_batch(buffer, schema)))
    return found


def _write_output(message: m.ApplyBatch, applied: Applied, schema: pa.Schema) -> tuple[int, int]:
    """Write the owned vnodes' rows under a temporary name, then under the one that counts.

    Not made durable: until it is released it can be made again from checkpoint and log.
    """
    owned = set(message.owned)
    pieces, start = [], 0
    for vnode in sorted(applied.output_vnodes):
        count = applied.output_vnodes[vnode]
        if vnode in owned:
            pieces.append(applied.output.slice(start, count))
        start += count
    table = pa.concat_tables(pieces) if pieces else schema.empty_table()
    path = f"{message.output}.{table.num_rows}.arrow"
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    with pa.OSFile(f"{path}.tmp", "wb") as sink, pa.ipc.new_stream(sink, schema) as writer:
        writer.write_table(table)
    os.replace(f"{path}.tmp", path)
    return table.num_rows, os.path.getsize(path)


def _rss_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def main(argv: list[str]) -> int:
    """Run until told to stop, or until the agent's own parent is gone."""
    logging.basicConfig(format="%(asctime)s %(message)s", level=logging.INFO)
    settings = read_settings(InstanceSettings, argv[0])
    pa.set_cpu_count(1)
    pa.set_io_thread_count(1)
    token = Secret(Path(settings.token_file).read_text().strip())
    wire = FlightWire(listen=Address(settings.listen), token=token)
    instance = Instance(
        settings,
        wire=wire,
        clock=SystemClock(),
        stores=RocksStores(
            StoreBudget(cache_bytes=settings.cache_bytes, dirty_bytes_max=settings.buffer_bytes)
        ),
        operator=bound_from_json(json.loads(settings.job.operator.spec)),
    )
    try:
        while not instance.stopping and _wanted(settings):
            instance.step(limits.LOOP_WAIT_S)
    finally:
        instance.close()
        wire.close()
    return 0


def _wanted(settings: InstanceSettings) -> bool:
    """Whether the cluster that this instance belongs to still has a reason to run it."""
    parent = settings.agent_parent
    return parent == 0 or os.path.exists(f"/proc/{parent}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
