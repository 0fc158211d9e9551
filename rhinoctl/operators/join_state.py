"""The state of a join by key and window in an instance: rows of two sides, appended and read.

A vnode's store has two kinds of entries, both with the start of the window first::

    header  time:8 group:u2          column*                    →  numbers of chunks: left, right
    chunk   time:8 (0x8000|group):u2 column* side:u1 number:u4  →  rows (see chunks)

A *chunk* is what one batch brought for one side (0 left, 1 right) of one key and window; chunks are
numbered from 0, big-endian, and the header says how many there are. So a batch only appends, and
what it must read is known from the headers: no scan, and no rows are written twice.

Groups are below 0x8000, so the headers of a window come before its chunks and a reader tells them
apart by one bit; and both lie in the range of the window's time, which goes as a whole when the
watermark has passed it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
import pyarrow as pa

from rhinoctl.ids import Vnode
from rhinoctl.operators.arrow_types import offsets_and_data, values_of
from rhinoctl.operators.base import CACHE_BYTES, OperatorState
from rhinoctl.operators.byte_rows import joined
from rhinoctl.operators.cached import CachedTable
from rhinoctl.operators.chunks import ChunkCodec
from rhinoctl.operators.direct import entry_bytes
from rhinoctl.operators.keys import RESERVED, KeyCodec, time_bound
from rhinoctl.operators.table import SCAN_ROWS, Held, KeyRows, runs_of
from rhinoctl.operators.values import ValueCodec
from rhinoctl.protocol.ports import Store, WriteBatch

SIDES = (0, 1)
"""Left and right."""

_KIND_AT = 8
_CHUNK = 0x80
"""The bit of a key's ninth byte that chunks have and headers have not."""
_SUFFIX = np.dtype([("side", "u1"), ("number", ">u4")])


class HeldBack:
    """A vnode's store, written to only when the vnode is spilled: whoever writes here before, for
    whatever reason, the store never has the headers of a batch without its chunks. As much of a
    Store as a StateTable needs to find and put rows."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._puts: dict[bytes, bytes] = {}
        self._added: list[tuple[list[bytes], list[bytes]]] = []
        self._removed_below = b""
        self.size = 0

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """The values as they will be after the spill."""
        self._settle()
        below = self._removed_below
        if not self._puts and not below:
            return self._store.get_many(keys)
        found = list(map(self._puts.get, keys))
        missing = [at for at, value in enumerate(found) if value is None]
        if below:
            missing = [at for at in missing if keys[at] >= below]
        stored = self._store.get_many([keys[at] for at in missing])
        for at, value in zip(missing, stored, strict=True):
            found[at] = value
        return found

    def scan(self, lo: bytes = b"", hi: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        """What the store has, while nothing is held back."""
        return self._store.scan(lo, hi)

    def write(self, batch: WriteBatch) -> None:
        """Keep a batch for the spill. Ranges begin at the first key; single keys stay."""
        if batch.deletes or any(lo for lo, _ in batch.delete_ranges):
            raise ValueError("only all that is below a bound can be removed")
        for _, bound in batch.delete_ranges:
            self._remove_below(bound)
        self._puts.update(zip(batch.keys, batch.values, strict=True))
        self.size += entry_bytes(batch.keys, batch.values)

    def add(self, keys: list[bytes], values: list[bytes]) -> None:
        """Keep entries of keys that are nowhere yet. They cost nothing until they are looked up."""
        self._added.append((keys, values))
        self.size += entry_bytes(keys, values)

    def taken(self, last: WriteBatch) -> WriteBatch:
        """All that was kept, and then a last batch; nothing is kept any longer."""
        if self._puts or last.delete_ranges:
            self.write(last)
            last = WriteBatch(keys=list(self._puts), values=list(self._puts.values()))
        keys, values = [*last.keys], [*last.values]
        for more_keys, more_values in self._added:
            keys += more_keys
            values += more_values
        below = self._removed_below
        self._puts, self._added, self._removed_below, self.size = {}, [], b"", 0
        ranges = ((b"", below),) if below else ()
        return WriteBatch(keys=keys, values=values, delete_ranges=ranges)

    def _settle(self) -> None:
        for keys, values in self._added:
            self._puts.update(zip(keys, values, strict=True))
        self._added.clear()

    def _remove_below(self, bound: bytes) -> None:
        self._settle()
        self._removed_below = max(self._removed_below, bound)
        self._puts = {key: value for key, value in self._puts.items() if key >= bound}
        self.size = entry_bytes(self._puts.keys(), self._puts.values())


@dataclass(frozen=True, slots=True)
class Headers:
    """What the state has for some keys: `chunks[side]` is the number of chunks of each."""

    held: Held
    chunks: tuple[np.ndarray, np.ndarray]
    codes: pa.Array
    """The keys in bytes."""


@dataclass(frozen=True, slots=True)
class SideRows:
    """Rows of one side; `of[i]`, which ascends, is the key of row i, a position in the headers."""

    of: np.ndarray
    columns: Sequence[pa.Array]

    def __len__(self) -> int:
        return len(self.of)


class JoinState(OperatorState):
    """Rows of two sides by `keys`, which are timed; `sides` are the types of the rows' columns."""

    def __init__(
        self, keys: KeyCodec, sides: Sequence[ChunkCodec], cache_bytes: int = CACHE_BYTES
    ) -> None:
        self._keys = keys
        self._sides = sides
        self._headers = CachedTable(keys, ValueCodec([pa.int64(), pa.int64()]), cache_bytes)
        self._held_back: dict[Vnode, HeldBack] = {}

    @property
    def vnodes(self) -> frozenset[Vnode]:
        return frozenset(self._held_back)

    def attach(self, vnode: Vnode, store: Store) -> None:
        self._held_back[vnode] = HeldBack(store)
        self._headers.attach(vnode, self._held_back[vnode])

    def detach(self, vnode: Vnode) -> None:
        self._headers.detach(vnode)
        del self._held_back[vnode]

    def find(self, keys: KeyRows) -> Headers:
        """The headers of some keys. Raises UnknownVnode for one of a vnode that is not attached."""
        held = self._headers.find(keys)
        left, right = map(values_of, held.slots)
        codes = self._keys.encode_rows(keys.groups, keys.columns, keys.times)
        return Headers(held, (left, right), codes)

    def rows(self, headers: Headers, side: int, of: np.ndarray) -> SideRows:
        """All rows of one side of some keys, given as ascending positions in the headers: keys in
        that order, and the rows of one in the order in which they came."""
        if not len(of):
            return SideRows(of, self._sides[side].nothing())
        counts = headers.chunks[side][of]
        each = np.repeat(of, counts)
        numbers = np.arange(len(each)) - np.repeat(np.cumsum(counts) - counts, counts)
        codes = _chunk_keys(headers, side, each, numbers)
        chunks: list[bytes | None] = []
        for vnode, start, end in runs_of(headers.held.keys.vnodes[each]):
            chunks += self._held_back[vnode].get_many(codes[start:end])
        rows, columns = self._sides[side].unpack(chunks)
        return SideRows(np.repeat(each, rows), columns)

    def append(self, headers: Headers, added: Sequence[SideRows]) -> None:
        """Add rows to both sides of the keys that were found. Raises before anything changes."""
        slots, puts = [], []
        for side, rows in zip(SIDES, added, strict=True):
            counts = np.bincount(rows.of, minlength=len(headers.codes))
            of = np.flatnonzero(counts)
            had = headers.chunks[side]
            codes = _chunk_keys(headers, side, of, had[of])
            chunks = self._sides[side].pack(rows.columns, counts[of])
            puts += [
                (vnode, codes[start:end], chunks[start:end])
                for vnode, start, end in runs_of(headers.held.keys.vnodes[of])
            ]
            slots.append(pa.array(had + (counts > 0), pa.int64()))
        self._headers.put(headers.held, slots)
        for vnode, codes, chunks in puts:
            self._held_back[vnode].add(codes, chunks)

    def expire(self, vnode: Vnode, before_us: int) -> None:
        """Remove every window of a vnode with an earlier start."""
        self._headers.expire(vnode, before_us)
        self._held_back[vnode].write(WriteBatch(delete_ranges=((b"", time_bound(before_us)),)))

    def spill(self, vnode: Vnode) -> WriteBatch:
        return self._held_back[vnode].taken(self._headers.spill(vnode))

    def dirty_bytes(self, vnode: Vnode) -> int:
        return self._headers.dirty_bytes(vnode) + self._held_back[vnode].size


def _chunk_keys(headers: Headers, side: int, of: np.ndarray, numbers: np.ndarray) -> list[bytes]:
    """The keys of chunks, of which `of` and `numbers` give position of the key and number."""
    codes = headers.codes.take(pa.array(of))
    offsets, data = offsets_and_data(codes)
    marked = np.frombuffer(data, np.uint8).copy()
    marked[offsets[:-1] + _KIND_AT] |= _CHUNK
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(marked)]
    suffixes = np.zeros(len(of), _SUFFIX)
    suffixes["side"] = side
    suffixes["number"] = numbers
    return joined([pa.Array.from_buffers(pa.large_binary(), len(of), buffers), suffixes])


def stored(
    store: Store, keys: KeyCodec, sides: Sequence[ChunkCodec]
) -> Iterator[tuple[KeyRows, int, list[pa.Array]]]:
    """All rows of a store in the order of their chunks, some at a time: the key of each row (the
    vnode is 0), the side that they are all of, and their columns. To look at, not fast."""
    chunks = (entry for entry in store.scan(hi=RESERVED) if entry[0][_KIND_AT] & _CHUNK)
    while part := list(islice(chunks, SCAN_ROWS)):
        of_side = np.array([key[-_SUFFIX.itemsize] for key, _ in part], np.int64)
        for side, start, end in runs_of(of_side):
            codes = [_header_key(key) for key, _ in part[start:end]]
            groups, columns, times = keys.decode(codes)
            counts, rows = sides[side].unpack([value for _, value in part[start:end]])
            each = np.repeat(np.arange(end - start), counts)
            columns = [column.take(pa.array(each)) for column in columns]
            yield KeyRows(np.zeros(len(each)), groups[each], columns, times[each]), side, rows


def _header_key(chunk_key: bytes) -> bytes:
    """The key of the header that a chunk belongs to."""
    kind = bytes([chunk_key[_KIND_AT] & ~_CHUNK])
    return chunk_key[:_KIND_AT] + kind + chunk_key[_KIND_AT + 1 : -_SUFFIX.itemsize]
