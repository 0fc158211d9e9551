"""The worker log: slices and decision records of one job on one worker (design, section 4).

One segment file per attempt, `segment_name`. Puts are appended while Spark stages; the record is
appended at the seal and the file made durable, once. So dropping an attempt, and trimming a batch,
is the removal of a file. Slices that a joining member fetches later lie in segments of their own
beside them, the pieces, ``…+<n>.seg``. The name ends with the format in which a segment is written,
``…~2.seg``; without one it is 1. So files of a format that is not read here are found before any is
read or removed, and what was written before there was a format stays as it is.

Entry: ``RLOG`` · kind (1 byte) · meta length (u32) · body length (u64) · xxh3-64 of what precedes
and of the meta · meta (JSON) · body. Slices have checksums of their own, checked where they are
read.

Invariants (numbers of the design, section 10):

4.  What `seal` and `add_piece` return from is there after a power loss, with every slice; and so is
    what `load` returns.
9.  A segment that cannot be read is an error if a later record follows it, since it was decided
    then. Otherwise its seal never ended: it promised nothing, and is removed.
13. Dropping an attempt leaves no trace of it, also after a power loss.
14. Trimming leaves the newest decided record and the one before it, which it shows to be decided.
"""

import errno
import json
import struct
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter

import xxhash

from rhinoctl.errors import CorruptFile, ForeignManifest
from rhinoctl.ids import Attempt, BatchTime, Vnode
from rhinoctl.protocol import codec
from rhinoctl.protocol.messages import SlicePlace
from rhinoctl.protocol.ports import Buffer, Disk
from rhinoctl.protocol.records import DecisionRecord, Link, Position, RecordId, SliceName, Winner
from rhinoctl.protocol.versions import FORMAT, FORMATS, Span

_HEAD = struct.Struct("<4sBIQQ")
_MAGIC = b"RLOG"
_PUT, _RECORD = 1, 2
_LOST = (errno.EIO, errno.ENOENT)
"""What a disk says of a file that it has lost, in part or in whole."""

PutKey = tuple[int, int]


@dataclass(slots=True)
class Segment:
    """One file of the log: where its slices lie, and its record once it is sealed."""

    path: str
    position: Position
    attempt: Attempt
    size: int = 0
    puts: dict[PutKey, dict[Vnode, SlicePlace]] = field(default_factory=dict)
    record: DecisionRecord | None = None
    whole: frozenset[Vnode] = frozenset()

    @property
    def id(self) -> RecordId:
        """The identity of the record that it is for."""
        return RecordId(self.position, self.attempt)

    def close(self, record: DecisionRecord) -> None:
        """The record is here: from now on the segment says which vnodes it has everything of."""
        self.record = record
        expected: dict[Vnode, bool] = {}
        for winner in record.winners:
            held = self.puts.get((winner.channel, winner.task_attempt), {})
            for name in winner.slices:
                expected[name.vnode] = expected.get(name.vnode, True) and name.vnode in held
        self.whole = frozenset(vnode for vnode, complete in expected.items() if complete)


def segment_name(
    position: Position, attempt: Attempt, piece: int = 0, version: int = FORMAT
) -> str:
    """The file name of a segment; `piece` numbers those that were fetched later, `version` is the
    format of disks in which it is written."""
    extra = f"+{piece}" if piece else ""
    written = f"~{version}" if version > 1 else ""
    return f"{position.generation}-{position.batch}-{position.step}-{attempt}{extra}{written}.seg"


def format_of(name: str) -> int:
    """The format of disks in which a segment is written; raises ValueError for another file's
    name."""
    return int(name.removesuffix(".seg").partition("~")[2] or 1)


def parse_segment_name(name: str) -> tuple[Position, Attempt]:
    """The inverse of `segment_name`; raises ValueError for another file's name."""
    body = name.removesuffix(".seg").partition("~")[0].split("+")[0]
    negative = "--" in body
    generation, batch, step, attempt = body.replace("--", "-", 1).split("-")
    session, counter = attempt.split(".")
    number = -int(batch) if negative else int(batch)
    return Position(int(generation), number, int(step)), Attempt(int(session), int(counter))


class WorkerLog:
    """The segments of one job on one worker, indexed in memory, on a `Disk`."""

    def __init__(self, disk: Disk, root: str, formats: Span = FORMATS) -> None:
        self._disk = disk
        self._root = root
        self._formats = formats
        self._segments: dict[tuple[Position, Attempt, int], Segment] = {}
        self._by_time: dict[BatchTime, list[Segment]] = {}
        self._links: list[Link] | None = None

    def load(self) -> tuple[DecisionRecord, ...]:
        """Read every segment; those never sealed are removed. Returns the sealed records.

        What was read may have been in memory only, left by a process that was killed before its
        fsync: it is made durable before anybody hears of it.

        Raises CorruptFile, naming the file, for a segment that was decided and cannot be read, and
        ForeignManifest for a file that is no segment, or of a format that is not read here.
        """
        names = [name for name in self._disk.list(self._root) if name.endswith(".seg")]
        for name in names:
            self._expect_readable(name)
        found = [self._read_segment(name) for name in names]
        sealed = {segment.id for segment, _ in found if segment.record is not None}
        followed = {segment.record.after for segment, _ in found if segment.record is not None}
        for segment, piece in found:
            # A piece that is torn is fetched again, and so is what else its batch lacks.
            if segment.id in followed - sealed and not piece:
                raise CorruptFile(
                    f"segment {segment.path} of the worker log was decided and cannot be read",
                    remedy="see `rhinoctl doctor`: copies of it come from other workers",
                )
        for segment, piece in found:
            kept = segment.record is not None
            if kept and segment.id not in followed:
                kept = self._is_intact(segment)
            if kept:
                self._index(segment, piece)
            else:
                self._discard(segment)
        self._disk.sync([segment.path for segment in self._segments.values()])
        return self.records()

    def _is_intact(self, segment: Segment) -> bool:
        """Whether the seal of the newest segment ended: nothing says in which order its pages have
        reached the disk, so that a record which can be read does not tell."""
        places = [place for held in segment.puts.values() for place in held.values()]
        try:
            for place in places:
                self.read(segment.path, place)
        except CorruptFile:
            return False
        return True

    def _discard(self, segment: Segment) -> None:
        """Remove a segment so that no power loss brings it back."""
        self._disk.remove(segment.path)
        self._disk.sync([self._root])

    def records(self) -> tuple[DecisionRecord, ...]:
        """The sealed records, in order."""
        found = {s.record.id: s.record for s in self._segments.values() if s.record is not None}
        return tuple(found[key] for key in sorted(found))

    def append_put(
        self,
        position: Position,
        attempt: Attempt,
        key: PutKey,
        slices: Sequence[SliceName],
        bodies: Sequence[Buffer],
    ) -> None:
        """Append one put's slices to the attempt's segment; not durable before `seal`."""
        segment = self._segment(position, attempt, 0)
        self._append_put(segment, key, slices, bodies)

    def _append_put(
        self,
        segment: Segment,
        key: PutKey,
        slices: Sequence[SliceName],
        bodies: Sequence[Buffer],
    ) -> None:
        meta = {"channel": key[0], "task": key[1], "slices": codec.to_json(tuple(slices))}
        start = self._append(segment, _PUT, json.dumps(meta).encode(), bodies)
        held = segment.puts.setdefault(key, {})
        for name in slices:
            held[name.vnode] = SlicePlace(
                vnode=name.vnode, offset=start, size=name.size, checksum=name.checksum
            )
            start += name.size

    def seal(self, record: DecisionRecord) -> None:
        """Append the record to its segment and make both durable."""
        self._seal(self._segment(record.position, record.attempt, 0), record)

    def _seal(self, segment: Segment, record: DecisionRecord) -> None:
        self._append(segment, _RECORD, codec.dumps(record), ())
        self._disk.sync([segment.path])
        segment.close(record)
        self._links = None

    def add_piece(
        self,
        record: DecisionRecord,
        puts: Iterable[tuple[int, int, tuple[SliceName, ...]]],
        bodies: Sequence[Buffer],
    ) -> None:
        """Store slices of an older decided batch that came from another holder, durably."""
        taken = [n for (at, _, n) in self._segments if at == record.position]
        segment = self._segment(record.position, record.attempt, max(taken, default=0) + 1)
        rest = list(bodies)
        for channel, task_attempt, slices in puts:
            mine, rest = rest[: len(slices)], rest[len(slices) :]
            self._append_put(segment, (channel, task_attempt), slices, mine)
        self._seal(segment, record)

    def drop(self, position: Position, attempt: Attempt) -> None:
        """Remove what there is of an attempt that was not decided."""
        for key in [k for k in self._segments if k[:2] == (position, attempt)]:
            self._discard(self._forget(key))

    def trim(self, before: BatchTime, keep: Position) -> int:
        """Remove batches before a time, but never the newest decided record, at `keep`, nor the one
        that it follows; returns bytes freed."""
        last = max((at for at, _, _ in self._segments if at < keep), default=keep)
        gone = [key for key in self._segments if key[0].time < before and key[0] < last]
        freed = sum(self._segments[key].size for key in gone)
        for key in gone:
            self._disk.remove(self._forget(key).path)
        return freed

    def size(self) -> int:
        """Bytes in all segments."""
        return sum(segment.size for segment in self._segments.values())

    def links(self, after: BatchTime, through: BatchTime) -> list[Link]:
        """The sealed batches in (after, through], in order."""
        if self._links is None:
            records = (self.record(time) for time in self._by_time)
            self._links = sorted(record.link for record in records if record is not None)
        first = bisect_right(self._links, after, key=attrgetter("time"))
        return self._links[first : bisect_right(self._links, through, key=attrgetter("time"))]

    def record(self, time: BatchTime) -> DecisionRecord | None:
        """The sealed record of a batch (not of an epoch record after it), if it is here."""
        for segment in self._by_time.get(time, ()):
            if segment.record is not None:
                return segment.record
        return None

    def record_for(self, time: BatchTime, vnodes: frozenset[Vnode]) -> DecisionRecord:
        """The record with the winners of some vnodes, from whichever segments have them."""
        segments = [s for s in self._by_time[time] if s.record is not None]
        winners: dict[PutKey, dict[Vnode, SliceName]] = {}
        for segment in segments:
            for winner in segment.record.winners if segment.record is not None else ():
                held = winners.setdefault((winner.channel, winner.task_attempt), {})
                held.update({n.vnode: n for n in winner.slices if n.vnode in vnodes})
        assert segments[0].record is not None
        return replace(
            segments[0].record,
            winners=tuple(
                Winner(channel=c, task_attempt=t, slices=tuple(held[v] for v in sorted(held)))
                for (c, t), held in sorted(winners.items())
            ),
        )

    def places(
        self, time: BatchTime, vnodes: frozenset[Vnode]
    ) -> list[tuple[str, Winner, tuple[SlicePlace, ...]]]:
        """Where the winning slices of some vnodes lie: (segment path, winner, places), by channel.

        A winner may come in several pieces, each with the slices that its segment has.
        """
        found: dict[tuple[int, Vnode], tuple[str, Winner, SlicePlace]] = {}
        for segment in self._by_time.get(time, ()):
            for winner in segment.record.winners if segment.record is not None else ():
                held = segment.puts.get((winner.channel, winner.task_attempt), {})
                for name in winner.slices:
                    place = held.get(name.vnode)
                    if name.vnode in vnodes and place is not None:
                        slot = (winner.channel, name.vnode)
                        found.setdefault(slot, (segment.path, winner, place))
        grouped: dict[tuple[int, str], tuple[Winner, list[SlicePlace]]] = {}
        for (channel, _), (path, winner, place) in sorted(found.items(), key=lambda item: item[0]):
            grouped.setdefault((channel, path), (winner, []))[1].append(place)
        return [(path, winner, tuple(ps)) for (_, path), (winner, ps) in grouped.items()]

    def has(self, time: BatchTime, vnode: Vnode) -> bool:
        """Whether the log has all that a batch did to a vnode."""
        record = self.record(time)
        if record is None:
            return False
        if not record.rows.get(vnode, 0):
            return True
        return any(vnode in segment.whole for segment in self._by_time[time])

    def reach(self, vnode: Vnode, since: BatchTime, through: BatchTime) -> BatchTime:
        """Up to which batch, at most `through`, the log has all of a vnode, without a gap from the
        batch after `since` on; `since` itself if it lacks that one."""
        at = since
        for time, after in self.links(since, through):
            if at != after or not self.has(time, vnode):
                break
            at = time
        return at

    def open_bytes(
        self, position: Position, attempt: Attempt, key: PutKey, vnode: Vnode
    ) -> memoryview:
        """The bytes of a slice of an attempt that is not sealed yet."""
        segment = self._segments[(position, attempt, 0)]
        place = segment.puts[key][vnode]
        return self._disk.read(segment.path, place.offset, place.size)

    def read(self, path: str, place: SlicePlace) -> memoryview:
        """A slice's bytes, checked. Raises CorruptFile naming segment and vnode."""
        body = self._disk.read(path, place.offset, place.size)
        check_slice(body, place, path)
        return body

    def reread(self, time: BatchTime, vnodes: frozenset[Vnode]) -> dict[Vnode, str]:
        """Read what a decided batch has of some vnodes, and why a slice is not what was written, by
        vnode. Such a slice is not in the log any more: a piece may come in its place."""
        found: dict[Vnode, str] = {}
        for segment in self._by_time.get(time, ()):
            if segment.record is None:
                continue
            for held in segment.puts.values():
                for vnode in sorted(vnodes & held.keys()):
                    fault = self._fault_of(segment.path, held[vnode])
                    if fault:
                        found[vnode] = fault
                        del held[vnode]
            segment.close(segment.record)
        return found

    def _fault_of(self, path: str, place: SlicePlace) -> str:
        try:
            self.read(path, place)
        except CorruptFile as fault:
            return fault.message
        except OSError as fault:
            if fault.errno in _LOST:
                return f"{path} cannot be read: {fault.strerror}"
        return ""

    def _segment(self, position: Position, attempt: Attempt, piece: int) -> Segment:
        key = (position, attempt, piece)
        if key not in self._segments:
            name = segment_name(position, attempt, piece, self._formats.newest)
            path = f"{self._root}/{name}"
            self._disk.remove(path)
            self._index(Segment(path=path, position=position, attempt=attempt), piece)
        return self._segments[key]

    def _index(self, segment: Segment, piece: int) -> None:
        self._segments[(segment.position, segment.attempt, piece)] = segment
        if segment.position.step == 0:
            self._by_time.setdefault(segment.position.time, []).append(segment)
            self._links = None

    def _forget(self, key: tuple[Position, Attempt, int]) -> Segment:
        segment = self._segments.pop(key)
        self._links = None
        siblings = self._by_time.get(segment.position.time)
        if siblings and segment in siblings:
            siblings.remove(segment)
            if not siblings:
                del self._by_time[segment.position.time]
        return segment

    def _append(self, segment: Segment, kind: int, meta: bytes, bodies: Sequence[Buffer]) -> int:
        length = sum(len(body) for body in bodies)
        head = _HEAD.pack(_MAGIC, kind, len(meta), length, _meta_sum(kind, length, meta))
        offset = self._disk.append(segment.path, [head, meta, *bodies])
        segment.size = offset + len(head) + len(meta) + length
        return offset + len(head) + len(meta)

    def _expect_readable(self, name: str) -> None:
        """Raise ForeignManifest for what is no segment of a format that is read here."""
        path = f"{self._root}/{name}"
        try:
            parse_segment_name(name)
            version = format_of(name)
        except ValueError as fault:
            raise ForeignManifest(
                f"{path} is no segment of a worker log", remedy="move it out of the log's directory"
            ) from fault
        if version not in self._formats:
            raise ForeignManifest(
                f"{path} has format {version}, this version reads {self._formats}",
                remedy="use the version of rhinoctl that wrote it, or the one after that",
            )

    def _read_segment(self, name: str) -> tuple[Segment, int]:
        """A segment as far as it can be read, and the number of its piece."""
        path = f"{self._root}/{name}"
        position, attempt = parse_segment_name(name)
        piece = int(name.removesuffix(".seg").partition("~")[0].partition("+")[2] or 0)
        segment = Segment(path=path, position=position, attempt=attempt)
        try:
            self._read_entries(segment)
        except codec.CodecError as fault:
            raise CorruptFile(
                f"segment {path} of the worker log is not understood: {fault}",
                remedy="use the version of rhinoctl that wrote it",
            ) from fault
        return segment, piece

    def _read_entries(self, segment: Segment) -> None:
        size = self._disk.size(segment.path) or 0
        at = 0
        while at + _HEAD.size <= size and segment.record is None:
            head = self._disk.read(segment.path, at, _HEAD.size)
            magic, kind, meta_length, length, checksum = _HEAD.unpack(head)
            body = at + _HEAD.size + meta_length
            if magic != _MAGIC or body + length > size:
                break
            meta = bytes(self._disk.read(segment.path, at + _HEAD.size, meta_length))
            if _meta_sum(kind, length, meta) != checksum:
                break
            _take_entry(segment, kind, meta, body)
            at = body + length
        segment.size = at


def _take_entry(segment: Segment, kind: int, meta: bytes, body: int) -> None:
    if kind == _RECORD:
        segment.close(codec.loads(DecisionRecord, meta))
        return
    image = json.loads(meta)
    held = segment.puts.setdefault((image["channel"], image["task"]), {})
    for name in codec.from_json(tuple[SliceName, ...], image["slices"]):
        held[name.vnode] = SlicePlace(
            vnode=name.vnode, offset=body, size=name.size, checksum=name.checksum
        )
        body += name.size


def _meta_sum(kind: int, length: int, meta: bytes) -> int:
    return int(xxhash.xxh3_64_intdigest(meta, seed=(length * 8 + kind) & 0xFFFFFFFFFFFFFFFF))


def check_slice(body: Buffer, place: SlicePlace, path: str) -> None:
    """Raise CorruptFile, naming segment and vnode, unless the bytes have their checksum."""
    if len(body) != place.size or xxhash.xxh3_64_intdigest(body) != place.checksum:
        raise CorruptFile(
            f"slice of vnode {place.vnode} at {place.offset} of {path} does not match its checksum",
            remedy="take this worker out of the chains; another holder has the slice",
        )
