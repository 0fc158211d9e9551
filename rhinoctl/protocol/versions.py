"""Which versions understand each other: of messages, and of what lies on disks.

The rules for changing either are in docs/protocol/versions.md. Invariants:

1. A process reads what is written in any version of its span, and can write all of them.
2. What is written for a version has the fields, kinds and values of that version and no others.
3. Between neighbours there is always a version that both speak, and both find the same one.
"""

from collections.abc import Mapping
from dataclasses import Field, dataclass
from enum import Enum
from typing import Any, TypeVar

from rhinoctl.errors import IncompatibleVersion

PROTOCOL = 1
"""Of messages between processes. Raised by whoever changes one."""

OLDEST_PROTOCOL = 1
"""The oldest that is still spoken: the one before `PROTOCOL`. There is none before 1."""

FORMAT = 1
"""Of what lies on disks, as it is written. Raised when an older program would misread it."""

OLDEST_FORMAT = 1
"""The oldest that is still read: the one before `FORMAT`."""

WRITTEN_HEADER = "Rhino-Protocol"
"""Of HTTP: the version in which the body is written."""

NEWEST_HEADER = "Rhino-Protocol-Newest"
"""Of HTTP: the newest version that the sender speaks."""

OTHER_VERSION = 426
"""The HTTP status of a request that was refused unread, for its version."""

_E = TypeVar("_E", bound=Enum)


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """The versions that a process reads, all from `oldest` to `newest`. Raises ValueError for
    none."""

    newest: int
    oldest: int

    def __post_init__(self) -> None:
        if not 0 < self.oldest <= self.newest:
            raise ValueError(f"no versions from {self.oldest} to {self.newest}")

    def __contains__(self, version: object) -> bool:
        return type(version) is int and self.oldest <= version <= self.newest

    def __str__(self) -> str:
        return str(self.newest) if self.oldest == self.newest else f"{self.oldest}–{self.newest}"

    def shared(self, newest: int) -> int | None:
        """The version in which to speak to a peer that speaks up to `newest`; None if there is
        none. It may be one that such a peer speaks no more: then it refuses it."""
        version = min(self.newest, newest)
        return version if version in self else None


PROTOCOLS = Span(newest=PROTOCOL, oldest=OLDEST_PROTOCOL)
FORMATS = Span(newest=FORMAT, oldest=OLDEST_FORMAT)


def version_in(text: str) -> int | None:
    """The version that is written in a header; None if it is none."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 6 else None


def too_far_apart(peer: str, theirs: int, ours: Span) -> IncompatibleVersion:
    """What to say of a peer with which no version is shared: it was asked, and has refused."""
    if theirs > ours.newest:
        remedy = (
            "this side is too old: install the newer rhinoctl here; hosts of a cluster get it by"
            " `rhinoctl upgrade`, one version after the other"
        )
    else:
        remedy = (
            "the other side is too old: bring it up with `rhinoctl upgrade`, one version after"
            " the other"
        )
    return IncompatibleVersion(
        f"{peer} speaks version {theirs} of the protocol, this process {ours}", remedy=remedy
    )


# --- marks on what changed -----------------------------------------------------------------------


def since(version: int) -> dict[str, int]:
    """Metadata of a field that came with a version: ``field(default=0, metadata=since(2))``."""
    return {"since": version}


def until(version: int) -> dict[str, int]:
    """Metadata of a field that was in a version for the last time: it is read for one version more,
    and written for no later one."""
    return {"until": version}


def is_read(field: "Field[Any]", version: int | None) -> bool:
    """Whether a value written in a version has the field; None: in any that is still read."""
    if version is None:
        return True
    first: int = field.metadata.get("since", version)
    last: int = field.metadata.get("until", version)
    return first <= version <= last


def is_written(field: "Field[Any]", version: int | None) -> bool:
    """Whether a field is written for a version; None: for our own."""
    return "until" not in field.metadata if version is None else is_read(field, version)


def newer_values(kind: type[Enum]) -> Mapping[str, tuple[int, str]]:
    """The members of an enum that came after version 1: since when, and what is said to a peer that
    does not know them. The class has them as ``__newer__: ClassVar = {"PINK": (2, "RED")}``."""
    found: Mapping[str, tuple[int, str]] = kind.__dict__.get("__newer__", {})
    return found


def value_for(member: _E, version: int | None) -> _E:
    """The member that is said in a version in the place of one that may be newer."""
    since_version, older = newer_values(type(member)).get(member.name, (0, ""))
    if version is None or since_version <= version:
        return member
    return value_for(type(member)[older], version)
