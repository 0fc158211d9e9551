"""What a worker gives to others: outputs to the driver, checkpoints and log to its peers."""

from collections.abc import Callable
from typing import Any

from rhino_agent.job import Job
from rhino_agent.upkeep import Upkeep
from rhinoctl import limits
from rhinoctl.ids import Vnode
from rhinoctl.protocol import messages as m
from rhinoctl.protocol.ports import Envelope
from rhinoctl.state.manifests import MANIFEST


class Serving:
    """Answers to requests that change nothing here."""

    def __init__(self, job: Job, upkeep: Upkeep) -> None:
        self._job = job
        self._upkeep = upkeep

    def handle(self, envelope: Envelope) -> None:
        """Answer one request."""
        _SERVED[type(envelope.message)](self, envelope.message, envelope)

    def _refuse(self, envelope: Envelope, detail: str) -> None:
        refusal = m.Refusal(
            header=self._job.ports.header(self._job.spec.uid),
            code=m.RefusalCode.NOT_FOUND,
            detail=detail,
        )
        self._job.ports.wire.reply(envelope, refusal)

    def _done(self, envelope: Envelope, data: memoryview) -> None:
        done = m.Done(header=self._job.ports.header(self._job.spec.uid))
        self._job.ports.wire.reply(envelope, done, [data])

    def _output(self, request: m.FetchOutput, envelope: Envelope) -> None:
        job = self._job
        name = job.outputs.get(request.time, {}).get(request.instance)
        if name is None:
            self._refuse(envelope, f"no output of batch {request.time} by {request.instance}")
            return
        self._done(envelope, job.ports.disk.read(job.output_path(name)))

    def _manifest(self, request: m.FetchManifest, envelope: Envelope) -> None:
        """The newest checkpoint that the log here goes on from."""
        vnode = request.vnode
        if self._upkeep.base(vnode) is None:
            self._refuse(envelope, f"no whole copy of vnode {vnode} here")
            return
        manifest = self._upkeep.newest(vnode)
        header = self._job.ports.header(self._job.spec.uid)
        answer = m.ManifestOf(header=header, covers=self._upkeep.reach(vnode))
        payload = []
        if manifest is not None:
            self._lease(vnode, manifest.checkpoint_id, request)
            payload.append(manifest.encode())
        self._job.ports.wire.reply(envelope, answer, payload)

    def _lease(self, vnode: Vnode, checkpoint_id: str, request: m.Message) -> None:
        until = self._job.ports.clock.monotonic() + limits.LEASE_S
        self._upkeep.leases.take(vnode, checkpoint_id, "peer", until=until)

    def _chunk(self, request: m.FetchChunk, envelope: Envelope) -> None:
        kept = self._upkeep.of(request.vnode)
        names = {each.checkpoint_id: each for each in kept.complete()}
        manifest = names.get(request.checkpoint)
        known = manifest is not None and any(f.name == request.file for f in manifest.files)
        if not known or request.file == MANIFEST:
            detail = f"no file {request.file} in checkpoint {request.checkpoint}"
            self._refuse(envelope, detail)
            return
        self._lease(request.vnode, request.checkpoint, request)
        path = f"{kept.path_of(request.checkpoint)}/{request.file}"
        length = min(request.length, limits.CHUNK_BYTES)
        self._done(envelope, self._job.ports.disk.read(path, request.offset, length))

    def _log(self, request: m.FetchLog, envelope: Envelope) -> None:
        """The next decided batch after `since`, or nothing if there is none yet."""
        job = self._job
        header = job.ports.header(job.spec.uid)
        following = job.log.batches(request.since, job.decided_time)
        if not following:
            job.ports.wire.reply(envelope, m.LogPiece(header=header, record=None))
            return
        time = following[0]
        record = job.log.record(time)
        lacking = [v for v in request.vnodes if not job.log.has(time, v)]
        if record is None or not request.since.precedes(time) or lacking:
            self._refuse(envelope, f"the log here begins after batch {request.since}")
            return
        vnodes = frozenset(request.vnodes)
        puts, bodies = [], []
        for path, winner, places in job.log.places(time, vnodes):
            there = {place.vnode for place in places}
            names = tuple(name for name in winner.slices if name.vnode in there)
            by_vnode = {place.vnode: place for place in places}
            puts.append((winner.channel, winner.task_attempt, names))
            bodies += [job.log.read(path, by_vnode[name.vnode]) for name in names]
        piece = m.LogPiece(header=header, record=job.log.record_for(time, vnodes), puts=tuple(puts))
        job.ports.wire.reply(envelope, piece, bodies)


_SERVED: dict[type, Callable[[Serving, Any, Envelope], None]] = {
    m.FetchOutput: Serving._output,
    m.FetchManifest: Serving._manifest,
    m.FetchChunk: Serving._chunk,
    m.FetchLog: Serving._log,
}
SERVED = tuple(_SERVED)
"""The requests that `Serving` answers."""
