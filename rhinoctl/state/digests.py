"""The logical digest of a vnode's state: equal for equal entries, whatever files they are in."""

import struct
from collections.abc import Iterable
from itertools import chain, islice
from typing import NamedTuple

from rhinoctl.state.hashing import Hasher

CHUNK = 4096
"""Entries that are hashed at a time."""


class Digest(NamedTuple):
    """The digest, 64 hex digits, and over how many entries it is."""

    digest: str
    entries: int


def logical_digest(entries: Iterable[tuple[bytes, bytes]]) -> Digest:
    """The digest over keys and values in the order of the keys. The sizes are hashed, too, so that
    no byte could be of a key as well as of a value."""
    hasher, count, source = Hasher(), 0, iter(entries)
    while chunk := list(islice(source, CHUNK)):
        count += len(chunk)
        parts = list(chain.from_iterable(chunk))
        hasher.update(struct.pack(f"<{len(parts)}Q", *map(len, parts)))
        hasher.update(b"".join(parts))
    return Digest(hasher.hexdigest(), count)
