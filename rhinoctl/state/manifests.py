"""The manifest of a checkpoint: what it holds, of whom, up to when; and checked JSON files.

A manifest is only believed if its checksum is right and it is of this cluster, job, operator and
vnode. File names in it come from peers, so they are checked like any input.
"""

import json
import re
from dataclasses import dataclass
from typing import Any, Self

from rhinoctl.errors import CorruptFile, ForeignManifest
from rhinoctl.ids import KEY_GROUPS, BatchTime, JobUid, Vnode
from rhinoctl.protocol import codec
from rhinoctl.protocol.ports import Buffer
from rhinoctl.protocol.versions import FORMAT, FORMATS, Span
from rhinoctl.state.hashing import content_hash

MANIFEST = "manifest.json"
STAMPS = "stamps.json"

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}")
_FILE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,199}")
_HASH = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Whose state it is. Two manifests with different identities have nothing to do with each
    other, whatever their files."""

    cluster: str
    job: JobUid
    operator: str
    vnode: Vnode

    def __str__(self) -> str:
        return (
            f"cluster {self.cluster}, job {self.job}, operator {self.operator}, vnode {self.vnode}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class FileEntry:
    """One file of a checkpoint. `size` in bytes; `blake3` is its identity, 64 hex digits.

    Raises ValueError for a name that is not plain or is one of our own.
    """

    name: str
    size: int
    blake3: str

    def __post_init__(self) -> None:
        if not _FILE.fullmatch(self.name) or self.name in (MANIFEST, STAMPS):
            raise ValueError(f"not the name of a file of a checkpoint: {self.name!r:.100}")
        if not _HASH.fullmatch(self.blake3) or self.size < 0:
            raise ValueError(f"{self.name}: no hash or no size")


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """A checkpoint of one vnode.

    `last_batch` is the last that touched the vnode, `covers` the last applied when the image was
    taken; `epoch` the one that held then. `vnodes` is their total, `ranges` are the vnode's key
    groups as [lo, hi), `parallelism` the number of instances of the operator. `format_version` is
    the format of disks in which it is written, by which fields are marked. Raises ValueError for
    contradictions.
    """

    identity: Identity
    operator_version: str
    vnodes: int
    checkpoint_id: str
    last_batch: BatchTime
    covers: BatchTime
    epoch: int
    files: tuple[FileEntry, ...] = ()
    watermark_ms: int | None = None
    parallelism: int = 1
    ranges: tuple[tuple[int, int], ...] = ()
    format_version: int = FORMAT

    def __post_init__(self) -> None:
        checked_id(self.checkpoint_id)
        if not 0 <= self.identity.vnode < self.vnodes:
            raise ValueError(f"vnode {self.identity.vnode} of {self.vnodes}")
        if self.last_batch > self.covers:
            raise ValueError(f"last batch {self.last_batch} is beyond {self.covers}")
        if len({entry.name for entry in self.files}) != len(self.files):
            raise ValueError("a file is named twice")
        if any(not 0 <= low < high <= KEY_GROUPS for low, high in self.ranges):
            raise ValueError(f"ranges of key groups {self.ranges}")

    @property
    def total_bytes(self) -> int:
        return sum(entry.size for entry in self.files)

    def encode(self) -> bytes:
        """The manifest as the bytes of a checked JSON file, in its own format."""
        return encode_checked(codec.to_json(self, version=self.format_version))

    @classmethod
    def decode(
        cls, data: Buffer, *, path: str, expected: Identity, formats: Span = FORMATS
    ) -> Self:
        """The manifest in `data`, which was read from `path`.

        Raises CorruptFile for bytes that are not what was written, ForeignManifest for another
        cluster, job, operator or vnode, or a format that this version does not know.
        """
        body = decode_checked(data, path=path)
        version = body.get("format_version")
        if version not in formats:
            raise ForeignManifest(
                f"{path} has format {version}, this version reads {formats}",
                remedy="use the version of rhinoctl that wrote it, or the one after that",
            )
        try:
            manifest: Self = codec.from_json(cls, body, version=version)
        except codec.CodecError as error:
            raise _corrupt(path, f"it is not a manifest: {error}") from error
        if manifest.identity != expected:
            raise ForeignManifest(
                f"{path} is of {manifest.identity}; expected was {expected}",
                remedy="point this cluster at its own directory; nothing was changed in this one",
            )
        return manifest


def is_id(text: str) -> bool:
    """Whether a text can be the id of a checkpoint, which names a directory."""
    return _ID.fullmatch(text) is not None


def checked_id(checkpoint_id: str) -> str:
    """The id itself; raises ValueError if it is none."""
    if not is_id(checkpoint_id):
        raise ValueError(f"not an id of a checkpoint: {checkpoint_id!r:.100}")
    return checkpoint_id


def encode_checked(body: dict[str, Any]) -> bytes:
    """JSON with a checksum of its body beside it."""
    return _canonical({"blake3": content_hash(_canonical(body)), "body": body}) + b"\n"


def decode_checked(data: Buffer, *, path: str) -> dict[str, Any]:
    """The body of a checked JSON file; raises CorruptFile, which names `path`, if it is not."""
    try:
        whole = codec.loads_image(data)
        body: dict[str, Any] = whole["body"]
        sound = isinstance(body, dict) and whole["blake3"] == content_hash(_canonical(body))
    except (codec.CodecError, KeyError, RecursionError) as error:
        raise _corrupt(path, "it is not a checked JSON file") from error
    if not sound:
        raise _corrupt(path, "its checksum does not match")
    return body


def _canonical(value: dict[str, Any]) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def _corrupt(path: str, why: str) -> CorruptFile:
    return CorruptFile(
        f"{path}: {why}",
        remedy="the copy is set aside; another copy of the vnode or an older checkpoint serves",
    )
