"""What a worker gives to others: outputs to the driver, checkpoints and log to its peers."""

from collections.abc import Callable
from typing import Any

from rhino_agent.job import Job
from rhino_agent.ports import event
from rhino_agent.upkeep import Upkeep
from rhinoctl import limits
from rhinoctl.errors import CorruptFile
from rhinoctl.protocol import messages as m
from rhinoctl.protocol.ports import Envelope


class Serving:
    """Answers to requests that change nothing here."""

    def __init__(self, job: Job, upkeep: Upkeep) -> None:
        self._job = job
        self._upkeep = upkeep
        self._holdings = upkeep.holdings

    def handle(self, envelope: Envelope) -> None:
        """Answer one request. What cannot be read is refused, and looked at."""
        message: Any = envelope.message
        try:
            _SERVED[type(message)](self, message, envelope)
        except (OSError, CorruptFile) as fault:
            event("serving-failed", what=type(message).__name__, fault=fault)
            if isinstance(message, m.FetchChunk):
                self._upkeep.suspect(message.vnode, message.checkpoint)
            self._refuse(envelope, f"it cannot be read: {fault}")

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
        name = job.outputs.of(request.time).get((request.instance, request.part))
        if name is None:
            self._refuse(envelope, f"no output of batch {request.time} by {request.instance}")
            return
        self._done(envelope, job.ports.disk.read(job.outputs.path(name)))

    def _manifest(self, request: m.FetchManifest, envelope: Envelope) -> None:
        """The newest base that the log here goes on from, besides those that the peer found bad."""
        vnode = request.vnode
        for checkpoint_id in request.bad:
            self._upkeep.suspect(vnode, checkpoint_id)
        base = self._holdings.base(vnode, besides=request.bad)
        if base is None:
            self._refuse(envelope, f"no other whole copy of vnode {vnode} here")
            return
        self._holdings.lend(vnode, base)
        header = self._job.ports.header(self._job.spec.uid)
        payload = [] if base.manifest is None else [base.manifest.encode()]
        self._job.ports.wire.reply(
            envelope, m.ManifestOf(header=header, covers=base.reach), payload
        )

    def _chunk(self, request: m.FetchChunk, envelope: Envelope) -> None:
        kept = self._holdings.of(request.vnode)
        names = {each.checkpoint_id: each for each in kept.complete()}
        manifest = names.get(request.checkpoint)
        if manifest is None or all(entry.name != request.file for entry in manifest.files):
            detail = f"no file {request.file} in checkpoint {request.checkpoint}"
            self._refuse(envelope, detail)
            return
        self._holdings.prolong(request.vnode, request.checkpoint)
        path = f"{kept.path_of(request.checkpoint)}/{request.file}"
        length = min(request.length, limits.CHUNK_BYTES)
        self._done(envelope, self._job.ports.disk.read(path, request.offset, length))

    def _log(self, request: m.FetchLog, envelope: Envelope) -> None:
        """The next decided batch after `since`, or nothing if there is none yet."""
        job = self._job
        header = job.ports.header(job.spec.uid)
        for vnode in request.vnodes:
            self._holdings.prolong(vnode)
        following = job.log.links(request.since, job.decided_time)
        if not following:
            job.ports.wire.reply(envelope, m.LogPiece(header=header, record=None))
            return
        time, after = following[0]
        lacking = [v for v in request.vnodes if not job.log.has(time, v)]
        if request.since != after or lacking:
            self._refuse(envelope, f"the log here begins after batch {request.since}")
            return
        vnodes = frozenset(request.vnodes)
        puts, bodies = [], []
        for path, winner, places in job.log.places(time, vnodes):
            by_vnode = {place.vnode: place for place in places}
            names = tuple(name for name in winner.slices if name.vnode in by_vnode)
            puts.append((winner.channel, winner.task_attempt, names))
            try:
                bodies += [job.log.read(path, by_vnode[name.vnode]) for name in names]
            except (OSError, CorruptFile):
                self._upkeep.doubt_log(time, vnodes)
                raise
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
