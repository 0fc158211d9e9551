"""What a release speaks and writes, as it says itself, and which may take another's place.

A release has a file `release` with a key and a value on each line; one without it is of the first
protocol and the first format. Keys that are not known are passed over: a later release may say
more.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from rhinoctl import __version__
from rhinoctl.protocol.versions import FORMAT, OLDEST_FORMAT, OLDEST_PROTOCOL, PROTOCOL

FILE: Final = "release"


@dataclass(frozen=True, slots=True, kw_only=True)
class Spoken:
    """A release's version; the protocol and format that it speaks and writes, and the oldest of
    each that it understands."""

    version: str
    protocol: int = 1
    oldest_protocol: int = 1
    format: int = 1
    oldest_format: int = 1

    def text(self) -> str:
        """The file that says it."""
        said = {"version": self.version, **self.numbers()}
        return "".join(f"{key} {value}\n" for key, value in said.items())

    def numbers(self) -> Mapping[str, int]:
        """All but the version, by name."""
        return {
            "protocol": self.protocol,
            "oldest_protocol": self.oldest_protocol,
            "format": self.format,
            "oldest_format": self.oldest_format,
        }


OURS: Final = Spoken(
    version=__version__,
    protocol=PROTOCOL,
    oldest_protocol=OLDEST_PROTOCOL,
    format=FORMAT,
    oldest_format=OLDEST_FORMAT,
)
"""What this installation speaks, and every release that is made from it."""


def spoken_by(release: str, lines: Iterable[str] = ()) -> Spoken:
    """What a release says, by its name and the lines of its file."""
    said = dict(line.split(" ", 1) for line in lines if " " in line)
    version = said.get("version") or release.rpartition("-")[0]
    first = Spoken(version=version)
    numbers = {
        key: int(said[key]) if said.get(key, "").isdigit() else usual
        for key, usual in first.numbers().items()
    }
    return Spoken(version=version, **numbers)


def is_older(version: str, than: str) -> bool:
    """Whether a version comes before another."""
    return _numbers(version) < _numbers(than)


def _numbers(version: str) -> list[int]:
    return [int(part) for part in version.split(".") if part.isdigit()]


@dataclass(frozen=True, slots=True, kw_only=True)
class Obstacle:
    """Why a release may not take another's place, and what to do instead."""

    why: str
    remedy: str


def obstacle(there: Spoken, ours: Spoken, *, back: bool = False) -> Obstacle | None:
    """Why `ours` may not take the place of what is `there`, host by host while jobs run; None if it
    may. `back`: an older version may, if it understands what the newer one has written."""
    if is_older(ours.version, there.version) and not back:
        return Obstacle(
            why=f"it has rhinoctl {there.version}, and this is {ours.version}",
            remedy="use that version, or a later one; `rhinoctl upgrade --back` goes back to an"
            " older one where that can be",
        )
    if there.format > ours.format:
        return Obstacle(
            why=f"rhinoctl {there.version} writes format {there.format} to its disks, and"
            f" {ours.version} reads none after {ours.format}",
            remedy="stay with that version, or take a later one: this one cannot read its state",
        )
    if there.format < ours.oldest_format:
        return Obstacle(
            why=f"rhinoctl {there.version} writes format {there.format} to its disks, and"
            f" {ours.version} reads none before {ours.oldest_format}",
            remedy=f"upgrade to a version between {there.version} and {ours.version} first",
        )
    if there.protocol < ours.oldest_protocol or ours.protocol < there.oldest_protocol:
        return Obstacle(
            why=f"rhinoctl {there.version} speaks protocol {there.protocol}, {ours.version} speaks"
            f" {ours.protocol}, and they do not understand each other",
            remedy=f"take a version between {there.version} and {ours.version} first: hosts of both"
            " work together until the last one is done",
        )
    return None
