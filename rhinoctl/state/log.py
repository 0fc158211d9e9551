"""The worker log: slices and decision records of one job on one worker (design, section 4).

One segment file per attempt, `segment_name`. Puts are
appended while Spark stages; the record is appended at the seal and the file made durable, once. So
dropping an attempt, and trimming a batch, is the removal of a file. Slices that a joining member
fetches later lie in segments of their own beside them, ``…+<n>.seg``.

Entry: ``RLOG`` · kind (1 byte) · meta length (u32) · body length (u64) · xxh3-64 of what precedes
and of the meta · meta (JSON) · body. Slices have checksums of their own, checked where they are
read. A segment without a readable record was never sealed, and promised nothing.
"""

import json
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import xxhash

from rhinoctl.errors import CorruptFile
from rhinoctl.ids import Attempt, BatchTime, Vnode
from rhinoctl.protocol import codec
from rhinoctl.protocol.messages import SlicePlace
from rhinoctl.protocol.ports import Buffer, Disk
from rhinoctl.protocol.records import DecisionRecord, Position, SliceName, Winner

_HEAD = struct.Struct("<4sBIQQ")
_MAGIC = b"RLOG"
_PUT, _RECORD = 1, 2

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

    def close(self, record: DecisionRecord) -> None:
        """The record is here: from now on the segment says which vnodes it has everything of."""
        self.record = record
        expected: dict[Vnode, bool] = {}
        for winner in record.winners:
            held = self.puts.get((winner.channel, winner.task_attempt), {})
            for name in winner.slices:
                expected[name.vnode] = expected.get(name.vnode, True) and name.vnode in held
        self.whole = frozenset(vnode for vnode, complete in expected.items() if complete)


def segment_name(position: Position, attempt: Attempt, piece: int = 0) -> str:
    """The file name of a segment; `piece` numbers those that were fetched later."""
    extra = f"+{piece}" if piece else ""
    return f"{position.generation}-{position.batch}-{position.step}-{attempt}{extra}.seg"


def parse_segment_name(name: str) -> tuple[Position, Attempt]:
    """The inverse of `segment_name`; raises ValueError for another file's name."""
    body = name.removesuffix(".seg").split("+")[0]
    negative = "--" in body
    generation, batch, step, attempt = body.replace("--", "-", 1).split("-")
    session, counter = attempt.split(".")
    number = -int(batch) if negative else int(batch)
    return Position(int(generation), number, int(step)), Attempt(int(session), int(counter))


class WorkerLog:
    """The segments of one job on one worker, indexed in memory, on a `Disk`."""

    def __init__(self, disk: Disk, root: str) -> None:
        self._disk = disk
        self._root = root
        self._segments: dict[tuple[Position, Attempt, int], Segment] = {}
        self._by_time: dict[BatchTime, list[Segment]] = {}

    def load(self) -> tuple[DecisionRecord, ...]:
        """Read every segment; those never sealed are removed. Returns the sealed records.

        Raises CorruptFile if a segment before the newest cannot be read: it had been decided.
        """
        names = [name for name in self._disk.list(self._root) if name.endswith(".seg")]
        positions = [parse_segment_name(name)[0] for name in names]
        newest = max(positions, default=None)
        for name, position in zip(names, positions, strict=True):
            segment = self._read_segment(name)
            if segment.record is not None:
                self._index(segment, int(name.partition("+")[2].removesuffix(".seg") or 0))
            elif position == newest or "+" in name:
                self._disk.remove(segment.path)
            else:
                raise CorruptFile(
                    f"segment {segment.path} of the worker log has no readable record",
                    remedy="restore this worker's copies from another: take it out of the chains",
                )
        return self.records()

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
            self._remove(key)

    def trim(self, before: BatchTime, keep: Position) -> int:
        """Remove batches before a time, but never the record at `keep`; returns bytes freed."""
        gone = [key for key in self._segments if key[0].time < before and key[0] < keep]
        freed = sum(self._segments[key].size for key in gone)
        for key in gone:
            self._remove(key)
        return freed

    def size(self) -> int:
        """Bytes in all segments."""
        return sum(segment.size for segment in self._segments.values())

    def batches(self, after: BatchTime, through: BatchTime) -> list[BatchTime]:
        """The times of the sealed batches in (after, through], in order."""
        return sorted(t for t in self._by_time if after < t <= through and self.record(t))

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

    def _segment(self, position: Position, attempt: Attempt, piece: int) -> Segment:
        key = (position, attempt, piece)
        if key not in self._segments:
            path = f"{self._root}/{segment_name(position, attempt, piece)}"
            self._disk.remove(path)
            self._index(Segment(path=path, position=position, attempt=attempt), piece)
        return self._segments[key]

    def _index(self, segment: Segment, piece: int) -> None:
        self._segments[(segment.position, segment.attempt, piece)] = segment
        if segment.position.step == 0:
            self._by_time.setdefault(segment.position.time, []).append(segment)

    def _remove(self, key: tuple[Position, Attempt, int]) -> None:
        segment = self._segments.pop(key)
        self._disk.remove(segment.path)
        siblings = self._by_time.get(segment.position.time)
        if siblings and segment in siblings:
            siblings.remove(segment)
            if not siblings:
                del self._by_time[segment.position.time]

    def _append(self, segment: Segment, kind: int, meta: bytes, bodies: Sequence[Buffer]) -> int:
        length = sum(len(body) for body in bodies)
        head = _HEAD.pack(_MAGIC, kind, len(meta), length, _meta_sum(kind, length, meta))
        offset = self._disk.append(segment.path, [head, meta, *bodies])
        segment.size = offset + len(head) + len(meta) + length
        return offset + len(head) + len(meta)

    def _read_segment(self, name: str) -> Segment:
        position, attempt = parse_segment_name(name)
        segment = Segment(path=f"{self._root}/{name}", position=position, attempt=attempt)
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
        return segment


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
