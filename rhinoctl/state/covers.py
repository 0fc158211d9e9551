"""How far checkpoints reach: the `covers` of an untouched vnode moves on without a new image.

Invariant: the log is trimmed by what is durable here, never by what is only in memory. Otherwise a
crash would bring back an older `covers` whose following batches are gone.
"""

from collections.abc import Iterable, Sequence

from rhinoctl.errors import CorruptFile
from rhinoctl.ids import BASE, BatchTime, Vnode
from rhinoctl.protocol.ports import Disk
from rhinoctl.state.manifests import Manifest, decode_checked, encode_checked

BASE_ID = ""
"""Stands for the empty checkpoint that every vnode has from the start."""

_Table = dict[tuple[Vnode, str], BatchTime]


class Covers:
    """An overlay over the manifests of one operator's vnodes on one worker.

    `advance` is free; `persist` is one atomic write for all vnodes, to be called before a trim.
    Raises CorruptFile if the file cannot be believed: then how far the checkpoints reach is not
    known, and the worker's copies have to be made anew.
    """

    def __init__(self, disk: Disk, path: str) -> None:
        self._disk = disk
        self._path = path
        self._table: _Table = {}
        if disk.size(path) is not None:
            self._table = _decoded(decode_checked(disk.read(path), path=path), path)
        self._durable = dict(self._table)

    def advance(self, vnode: Vnode, checkpoint_id: str, covers: BatchTime) -> None:
        """The vnode was not touched after this checkpoint up to `covers`. Never goes back."""
        key = (vnode, checkpoint_id)
        self._table[key] = max(covers, self._table.get(key, BASE))

    def of(self, manifest: Manifest) -> BatchTime:
        """How far the checkpoint reaches now; to replay from it, not to trim by."""
        return _reach(self._table, manifest)

    def of_base(self, vnode: Vnode) -> BatchTime:
        """How far the empty checkpoint reaches now."""
        return self._table.get((vnode, BASE_ID), BASE)

    def newest(self) -> BatchTime:
        """The newest batch that any checkpoint reaches by what is known here."""
        return max(self._table.values(), default=BASE)

    def floor(self, vnode: Vnode, newest_first: Sequence[Manifest], *, keep: int = 2) -> BatchTime:
        """The last batch that may leave the log as far as this vnode goes.

        The oldest of the newest `keep` checkpoints decides, so that it can serve when a newer one
        is bad; with fewer, the empty one is the oldest. A copy that joined later has no empty one
        to go back to: ask with ``keep=1`` until it has more.
        """
        if len(newest_first) < keep:
            return self._durable.get((vnode, BASE_ID), BASE)
        return min(_reach(self._durable, manifest) for manifest in newest_first[:keep])

    def persist(self) -> None:
        """Make what `advance` said durable; no I/O if nothing moved."""
        if self._table == self._durable:
            return
        body = [[vnode, name, *covers] for (vnode, name), covers in sorted(self._table.items())]
        self._disk.write_atomic(self._path, encode_checked({"covers": body}))
        self._durable = dict(self._table)

    def forget(self, vnode: Vnode, kept: Iterable[str]) -> None:
        """Drop what is known of the vnode's checkpoints other than `kept` and the empty one."""
        names = {*kept, BASE_ID}
        self._table = {
            (owner, name): covers
            for (owner, name), covers in self._table.items()
            if owner != vnode or name in names
        }


def _reach(table: _Table, manifest: Manifest) -> BatchTime:
    key = (manifest.identity.vnode, manifest.checkpoint_id)
    return max(manifest.covers, table.get(key, BASE))


def _decoded(body: dict[str, object], path: str) -> _Table:
    table: _Table = {}
    rows = body.get("covers")
    for row in rows if isinstance(rows, list) else [None]:
        match row:
            case [int(vnode), str(name), int(generation), int(batch)]:
                table[Vnode(vnode), name] = BatchTime(generation, batch)
            case _:
                raise CorruptFile(
                    f"{path}: not what this version writes",
                    remedy="remove the worker's copies of this job; they are made anew from others",
                )
    return table
