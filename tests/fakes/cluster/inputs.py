"""What a job reads: rows that a test can tell apart, cut into channels anew at every attempt."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple
from zlib import crc32

from rhinoctl.ids import Attempt, Vnode
from rhinoctl.protocol.records import SliceName

Row = tuple[int, int]
"""(batch, number of the row in it)."""


class Body(NamedTuple):
    """The bytes of a slice: its rows, and the attempt that encoded them."""

    attempt: Attempt
    rows: tuple[Row, ...]


@cache
def name_of(vnode: Vnode, body: Body) -> SliceName:
    """The name of a slice; another attempt's encoding of the same rows has another checksum."""
    return SliceName(
        vnode=vnode,
        rows=len(body.rows),
        size=8 * len(body.rows),
        checksum=crc32(repr(body).encode()),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """`sizes[b]` rows in batch b, and `size` in each batch after those, over some vnodes."""

    vnodes: int
    channels: int = 2
    sizes: tuple[int, ...] = ()
    size: int = 3

    def rows(self, batch: int) -> tuple[Row, ...]:
        """The input of a batch: the same whenever it is asked for."""
        count = self.sizes[batch] if batch < len(self.sizes) else self.size
        return tuple((batch, n) for n in range(count))

    def vnode_of(self, row: Row) -> Vnode:
        """Where a row belongs."""
        batch, n = row
        return Vnode((batch + n) % self.vnodes)

    def of_vnode(self, batch: int, vnode: Vnode) -> tuple[Row, ...]:
        """A batch's rows of one vnode."""
        return tuple(row for row in self.rows(batch) if self.vnode_of(row) == vnode)

    def split(self, batch: int, attempt: Attempt) -> Mapping[int, Mapping[Vnode, Body]]:
        """The rows by channel and vnode. Which channel a row is in depends on the attempt, as a
        replay may be split otherwise; an empty batch has no channels."""
        return _split(self, batch, attempt)


@cache
def _split(load: Workload, batch: int, attempt: Attempt) -> Mapping[int, Mapping[Vnode, Body]]:
    cut: dict[int, dict[Vnode, list[Row]]] = {}
    for row in load.rows(batch):
        channel = crc32(repr((*attempt, row)).encode()) % load.channels
        cut.setdefault(channel, {}).setdefault(load.vnode_of(row), []).append(row)
    return {
        channel: {vnode: Body(attempt, tuple(rows)) for vnode, rows in sorted(parts.items())}
        for channel, parts in sorted(cut.items())
    }
