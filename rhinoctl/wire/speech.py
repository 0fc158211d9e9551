"""In which version of the protocol a peer is spoken to (docs/protocol/versions.md).

A peer is taken to speak what we speak until it says otherwise: it says with everything up to which
version it speaks, and refuses a newer one. So only the first request after it has changed is said
twice; an older version that was in use goes on to be understood.
"""

from dataclasses import dataclass

from rhinoctl.protocol.messages import Message, Refusal, RefusalCode, encode
from rhinoctl.protocol.ports import Address
from rhinoctl.protocol.versions import Span, too_far_apart


class Speech:
    """What is known of the versions of one peer; shared by all connections to it.

    `version` is the one in which to speak to it. Each use is one read or one write of it, so that
    threads need no lock: the worst is a request that is said twice.
    """

    def __init__(self, ours: Span) -> None:
        self.ours = ours
        self.version = ours.newest

    def heard(self, newest: int) -> int | None:
        """The peer speaks up to `newest`. Returns the version to be used now, None without one."""
        version = self.ours.shared(newest)
        self.version = self.ours.newest if version is None else version
        return version


@dataclass(frozen=True, slots=True)
class Words:
    """A message on its way, and its bytes in one version."""

    message: Message
    version: int
    data: bytes

    @property
    def since(self) -> int:
        """The version that its kind came with."""
        return type(self.message).SINCE

    def written_in(self, version: int) -> bytes:
        """Its bytes in a version that has the kind; raises CodecError."""
        return self.data if version == self.version else encode(self.message, version)


def words_of(message: Message, version: int) -> Words:
    """The message, written in a version if that has its kind. Raises CodecError, TypeError and
    ValueError for what cannot be encoded."""
    version = max(version, type(message).SINCE)
    return Words(message, version, encode(message, version))


def unspeakable(address: Address, words: Words, newest: int, ours: Span) -> Refusal:
    """What is answered for a peer that cannot be told: it is there, but of another version. It
    speaks up to `newest`."""
    fault = too_far_apart(address, newest, ours)
    what = f"{fault.message}; {fault.remedy}"
    if newest in ours:
        kind = type(words.message).__name__
        what = f"{address} speaks version {newest} of the protocol, which has no {kind}"
    return Refusal(header=words.message.header, code=RefusalCode.VERSION, detail=what)
