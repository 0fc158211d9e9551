"""An instance process: the vnodes' databases, and the operator that works on them.

It takes one command at a time from its agent, over the same ports as everything else, and keeps no
opinion of its own about what is decided. `python -m rhino_agent.instance SETTINGS`.

Invariants:

1. A vnode takes a batch once: a command for a batch that a vnode has, or is past, changes nothing.
2. Batches change the state in memory. A vnode's changes go to its database all at once, with the
   last batch that touched it: before its checkpoint, and when unwritten bytes exceed their budget.
   What a death loses is made again from checkpoint and log (docs/adr/0007-write-behind-cache.md).
3. A command that comes after a later one changes nothing: a dead agent's may arrive after its
   successor, which adopts the process, has asked what it has.
4. What could not be written ends the process: what is half done is thrown away with the live
   databases.
"""

import json
import logging
import os
import resource
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa

from rhino_agent.lean import without_pandas
from rhino_agent.settings import InstanceSettings, read_settings
from rhino_agent.stores import Files, HostFiles, RocksVnodes, Stores, VnodeStore
from rhinoctl import limits
from rhinoctl.errors import CorruptFile, DeadlineExceeded, RhinoError
from rhinoctl.ids import BASE, BatchTime, Vnode
from rhinoctl.operators import bound_from_json
from rhinoctl.operators.base import Applied, BatchContext, BoundOperator, Slice
from rhinoctl.protocol import messages as m
from rhinoctl.protocol.ports import Address, Clock, Envelope, Wire
from rhinoctl.state.log import check_slice
from rhinoctl.state.rocks import StoreBudget
from rhinoctl.wire.beacon import light
from rhinoctl.wire.clock import SystemClock
from rhinoctl.wire.credentials import Credentials
from rhinoctl.wire.flight import FlightWire
from rhinoctl.wire.points import WIRE_POINTS, with_points
from rhinoctl.wire.secret import read_token

log = logging.getLogger("rhino.instance")

LAST_BATCH = b"\xff\xffrhino:last_batch"
"""The runtime's own entry in each store; operators' keys sort below (operators.keys)."""

_STORE_FAULTS = (CorruptFile, DeadlineExceeded, OSError)
"""What a database raises that is damaged, full or stuck; an operator raises none of them."""


class Instance:
    """The loop over Wire, Stores and Files; `rss_bytes` measures the process, which `beacon` tells
    to live."""

    def __init__(
        self,
        settings: InstanceSettings,
        *,
        wire: Wire,
        clock: Clock,
        stores: Stores,
        files: Files,
        operator: BoundOperator,
        rss_bytes: Callable[[], int],
        beacon: str = "",
    ) -> None:
        self._settings = settings
        self._wire = wire
        self._clock = clock
        self._stores = stores
        self._files = files
        self._operator = operator
        self._state = operator.state(columns_bytes(settings))
        self._rss_bytes = rss_bytes
        self._beacon = beacon
        self._open: dict[Vnode, VnodeStore] = {}
        self._lives: dict[Vnode, str] = {}
        self._applied: dict[Vnode, BatchTime] = {}
        self._touched: dict[Vnode, BatchTime] = {}
        self._turn = m.Turn()
        self._last: tuple[m.ApplyBatch, m.BatchApplied] | None = None
        self.stopping = False

    @property
    def open_stores(self) -> Mapping[Vnode, VnodeStore]:
        """The databases that are open."""
        return self._open

    @property
    def positions(self) -> Mapping[Vnode, BatchTime]:
        """The last batch that each open vnode has taken."""
        return self._applied

    def step(self, timeout_s: float) -> None:
        """Take one command, answer it, and use the time after it to bound unwritten bytes."""
        envelope = self._wire.receive(timeout_s)
        if envelope is None or envelope.message is None:
            return
        self._wire.reply(envelope, self._answer(envelope))
        if not self.stopping:
            self._relieve()

    def _relieve(self) -> None:
        """Spill and flush the largest vnodes until all unwritten bytes are within their budget.

        RocksDB's own bound over many databases (a write-buffer manager) does not hold.
        """
        unwritten = {
            vnode: self._state.dirty_bytes(vnode) + store.dirty_bytes
            for vnode, store in self._open.items()
        }
        excess = sum(unwritten.values()) - self._settings.buffer_bytes
        try:
            for vnode in sorted(unwritten, key=unwritten.__getitem__, reverse=True):
                if excess <= 0:
                    break
                self.spill(vnode)
                self._open[vnode].flush()
                excess -= unwritten[vnode]
        except _STORE_FAULTS as fault:
            self._give_up(fault)

    def _give_up(self, fault: BaseException) -> None:
        """A database is not as it should be: the next incarnation begins from the checkpoints."""
        log.error("instance-gives-up instance=%s fault=%s", self._settings.instance, fault)
        self.stopping = True

    def _answer(self, envelope: Envelope) -> m.Message:
        message: Any = envelope.message
        header = self._header()
        if (message.header.job, message.header.incarnation) != (header.job, header.incarnation):
            detail = f"this is {header.job} incarnation {header.incarnation}"
            return self._refusal(m.RefusalCode.FENCED, detail)
        handler = _COMMANDS.get(type(message))
        if handler is None:
            detail = f"an instance takes no {type(message).__name__}"
            return self._refusal(m.RefusalCode.FOREIGN, detail)
        if message.turn < self._turn:
            detail = f"command {message.turn} comes after {self._turn}"
            return self._refusal(m.RefusalCode.FENCED, detail)
        self._turn = message.turn
        try:
            return handler(self, message)
        except RhinoError as fault:
            return self._refusal(m.RefusalCode.FAULT, f"{fault.message} ({fault.code})")
        except OSError as fault:
            return self._refusal(m.RefusalCode.FAULT, f"{type(fault).__name__}: {fault}")

    def _refusal(self, code: m.RefusalCode, detail: str) -> m.Refusal:
        return m.Refusal(header=self._header(), code=code, detail=detail)

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
            rss_bytes=self._rss_bytes(),
            beacon=self._beacon,
        )

    def _live(self, vnode: Vnode) -> str:
        return self._lives.get(vnode) or f"{self._settings.live}/{vnode}"

    def _open_vnode(self, message: m.OpenVnode) -> m.Message:
        vnode = message.vnode
        if vnode not in self._open:
            self._lives[vnode] = message.live
            self._stores.discard(self._live(vnode))
            store = self._stores.open(self._live(vnode), message.base or None)
            try:
                self._state.attach(vnode, store)
            except BaseException:
                store.close()
                self._stores.discard(self._live(vnode))
                raise
            self._open[vnode] = store
            self._applied[vnode] = message.covers
        if self._applied[vnode] != message.covers:
            detail = f"vnode {vnode} is open at {self._applied[vnode]}, not at {message.covers}"
            return self._refusal(m.RefusalCode.STALE_ATTEMPT, detail)
        return m.Done(header=self._header())

    def _close_vnode(self, message: m.CloseVnode) -> m.Message:
        store = self._open.pop(message.vnode, None)
        if store is not None:
            del self._applied[message.vnode]
            self._touched.pop(message.vnode, None)
            self._state.detach(message.vnode)
            store.close()
        self._stores.discard(self._live(message.vnode))
        self._lives.pop(message.vnode, None)
        return m.Done(header=self._header())

    # --- a batch ---------------------------------------------------------------------------------

    def _apply_batch(self, message: m.ApplyBatch) -> m.Message:
        if self._last is not None and self._last[0] == message and self._have(message):
            return self._last[1]
        ahead = [v for v in message.vnodes if self._applied.get(v, message.time) >= message.time]
        if ahead:
            where = self._applied.get(ahead[0], "closed")
            detail = f"batch {message.time}: vnode {ahead[0]} is {where}"
            return self._refusal(m.RefusalCode.STALE_ATTEMPT, detail)
        slices = list(self._slices(message))
        context = BatchContext(
            time=message.time,
            vnodes=frozenset(message.vnodes),
            batch_time_ms=message.batch_time_ms,
            watermarks=message.watermarks,
        )
        try:
            applied = self._operator.apply(slices, self._state, context)
        except _STORE_FAULTS as fault:
            self._give_up(fault)
            raise
        except Exception as fault:
            log.exception("batch-poison batch=%s", message.time)
            detail = f"batch {message.time}: {type(fault).__name__}: {fault}"
            return self._refusal(m.RefusalCode.POISON, detail)
        try:
            answer = self._written(message, applied)
        except BaseException as fault:
            self._give_up(fault)
            raise
        self._last = (message, answer)
        return answer

    def _have(self, message: m.ApplyBatch) -> bool:
        """Whether the batch is in the databases that are open now, and not in former ones."""
        return all(self._applied.get(vnode) == message.time for vnode in message.vnodes)

    def _slices(self, message: m.ApplyBatch) -> Iterator[Slice]:
        """The record batches of the slices, checked, in their order."""
        schema = self._operator.wire_schema
        for part in message.parts:
            bodies = self._files.read(part.path, [(p.offset, p.size) for p in part.places])
            for place, body in zip(part.places, bodies, strict=True):
                check_slice(body, place, part.path)
                yield place.vnode, pa.ipc.read_record_batch(pa.py_buffer(body), schema)

    def _written(self, message: m.ApplyBatch, applied: Applied) -> m.BatchApplied:
        """Write the output: the state has the batch, so an output file tells of one that is
        applied."""
        touched = message.vnodes if message.watermarks.rose else applied.touched
        self._touched.update(dict.fromkeys(touched, message.time))
        rows, size = 0, 0
        if message.output:
            rows, size = self._write_output(message, applied)
        for vnode in message.vnodes:
            self._applied[vnode] = message.time
        return m.BatchApplied(
            header=self._header(),
            time=message.time,
            rows=rows,
            size=size,
            applied_at=self._clock.wall(),
            rss_bytes=self._rss_bytes(),
            state_bytes={
                vnode: self._open[vnode].state_bytes + self._state.dirty_bytes(vnode)
                for vnode in message.vnodes
            },
        )

    def spill(self, vnode: Vnode) -> None:
        """Bring a vnode's database up to date, with the last batch that touched it."""
        last = self._touched.pop(vnode, None)
        if last is None:
            return
        writes = self._state.spill(vnode)
        stamp = f"{last.generation}/{last.batch}".encode()
        keys, values = [*writes.keys, LAST_BATCH], [*writes.values, stamp]
        self._open[vnode].write(replace(writes, keys=keys, values=values))

    def _write_output(self, message: m.ApplyBatch, applied: Applied) -> tuple[int, int]:
        """Write the owned vnodes' rows; returns their number and the file's bytes."""
        owned = set(message.owned)
        pieces, start = [], 0
        for vnode in sorted(applied.output_vnodes):
            count = applied.output_vnodes[vnode]
            if vnode in owned:
                pieces.append(applied.output.slice(start, count))
            start += count
        schema = self._operator.result_schema
        table = pa.concat_tables(pieces) if pieces else schema.empty_table()

        def fill(sink: BinaryIO) -> None:
            with pa.ipc.new_stream(sink, schema) as writer:
                writer.write_table(table)

        rows: int = table.num_rows
        return rows, self._files.write(f"{message.output}.{rows}.arrow", fill)

    # --- checkpoints, and the end ----------------------------------------------------------------

    def _checkpoint(self, message: m.CheckpointVnode) -> m.Message:
        vnode = message.vnode
        store = self._open.get(vnode)
        if store is None:
            return self._refusal(m.RefusalCode.NOT_FOUND, f"vnode {vnode} is not open")
        try:
            self.spill(vnode)
            (stamp,) = store.get_many([LAST_BATCH])
            last = BASE
            if stamp is not None:
                last = BatchTime(*(int(part) for part in stamp.decode().split("/")))
            store.checkpoint(message.directory)
        except FileExistsError:
            raise
        except _STORE_FAULTS as fault:
            self._give_up(fault)
            raise
        return m.Checkpointed(
            header=self._header(), vnode=vnode, last_batch=last, covers=self._applied[vnode]
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


def columns_bytes(settings: InstanceSettings) -> int:
    """The part of an instance's cache that is the operator's; the rest is RocksDB's blocks."""
    return settings.cache_bytes // 2


def _rss_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def main(argv: list[str]) -> int:
    """Run until told to stop, or until the agent's own parent is gone."""
    logging.basicConfig(format="%(asctime)s %(message)s", level=logging.INFO)
    without_pandas()
    settings = read_settings(InstanceSettings, argv[0])
    pa.set_cpu_count(1)
    pa.set_io_thread_count(1)
    credentials = Credentials(read_token(settings.token_file))
    wire = FlightWire(Address(settings.listen), credentials)
    wire = with_points(wire, settings.instance, WIRE_POINTS)
    instance = Instance(
        settings,
        wire=wire,
        clock=SystemClock(),
        stores=RocksVnodes(StoreBudget(cache_bytes=settings.cache_bytes - columns_bytes(settings))),
        files=HostFiles(),
        operator=bound_from_json(json.loads(settings.job.operator.spec)),
        rss_bytes=_rss_bytes,
        beacon="" if settings.beacons is None else light(*settings.beacons),
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
