"""What a host's interpreter needs: its platform, the packages, and their files as they are here."""

import importlib.util
import os
import platform as this
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path, PurePosixPath
from typing import Final

from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from rhinoctl.errors import EnvironmentNotBuilt, UnsupportedHost
from rhinoctl.remote.facts import HostFacts

DISTRIBUTION: Final = "rhinoctl"
OURS: Final = ("rhinoctl", "rhino_agent", "rhinoctl_data.playbooks", "rhinoctl_data.templates")
"""The distribution's packages; see setup.py."""

PYTHON_MIN: Final = (3, 11)
GLIBC_MIN: Final = (2, 28)
"""Of the wheels that we depend on (manylinux_2_28)."""

KEPT: Final = frozenset({"METADATA", "entry_points.txt"})
"""Of our own metadata: the rest says where the installation was made from."""

DROPPED: Final = frozenset({"direct_url.json", "INSTALLER", "REQUESTED", "RECORD"})
"""Of others' metadata: what tells how they came here, and not what they are."""

BULKY: Final = frozenset({"numpy", "pyarrow"})
NOT_RUN: Final = frozenset({"tests", "include"})
"""Directories of the bulky ones that only their own developers need: 40 MB."""


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Platform:
    """What the packages of a host depend on: `linux`, `x86_64`, `glibc` with its version, and the
    minor version of the interpreter."""

    system: str
    machine: str
    libc: str
    libc_version: tuple[int, int]
    python: tuple[int, int]

    def __str__(self) -> str:
        libc, python = _dotted(self.libc_version), _dotted(self.python)
        return f"{self.system}-{self.machine}-{self.libc}{libc}-python{python}"


@dataclass(frozen=True, slots=True, order=True)
class Entry:
    """A file of an archive: its path there, where its bytes are, whether it is to be executed."""

    path: str
    source: Path | bytes = field(compare=False)
    executable: bool = field(default=False, compare=False)

    def read(self) -> bytes:
        return self.source if isinstance(self.source, bytes) else self.source.read_bytes()


def this_platform() -> Platform:
    """The platform that this process runs on."""
    libc, version = this.libc_ver()
    return Platform(
        system=this.system().lower(),
        machine=this.machine(),
        libc=libc or "unknown",
        libc_version=_version(version),
        python=(sys.version_info[0], sys.version_info[1]),
    )


def fit_python(facts: HostFacts) -> tuple[tuple[int, int], str] | None:
    """The newest interpreter of a host, version and path, if it is one that we run with."""
    newest = max(facts.pythons, default=None)
    return newest if newest is not None and newest[0] >= PYTHON_MIN else None


def python_of(facts: HostFacts) -> tuple[tuple[int, int], str]:
    """The interpreter that a host's processes run with, the newest that there is: version and
    path. Raises UnsupportedHost if there is none of 3.11 or later."""
    found = fit_python(facts)
    if found is None:
        raise UnsupportedHost(
            f"{facts.host}: there is no Python {_dotted(PYTHON_MIN)} or later",
            remedy="install one; no package of it is needed. `rhinoctl check` says what else is not"
            " fit",
        )
    return found


def platform_of(facts: HostFacts) -> Platform:
    """The platform of a host. Raises UnsupportedHost for one that no wheels are made for."""
    name, _, version = facts.libc.partition(" ")
    libc = _version(version)
    if facts.system != "Linux" or name != "glibc" or libc < GLIBC_MIN:
        raise UnsupportedHost(
            f"{facts.host}: it is {facts.system or 'unknown'} with {facts.libc or 'no glibc'}",
            remedy=f"use a Linux host with glibc {_dotted(GLIBC_MIN)} or later, as RHEL 8,"
            " Debian 10, Ubuntu 20.04 and later ones have",
        )
    return Platform(
        system="linux",
        machine=facts.machine,
        libc="glibc",
        libc_version=libc,
        python=python_of(facts)[0],
    )


# --- what is needed ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Closure:
    """Everything that a distribution needs on a platform: what is installed here, and what is
    needed there only, as it is asked for."""

    found: tuple[Distribution, ...]
    absent: tuple[Requirement, ...]


def closure(
    root: str, platform: Platform, find: Callable[[str], Distribution] = distribution
) -> Closure:
    """The requirements of a distribution, without its extras, and theirs in turn."""
    marks = _marks(platform)
    found: dict[str, Distribution] = {}
    absent: dict[str, Requirement] = {}
    todo, seen = [Requirement(root)], set()
    while todo:
        wanted = todo.pop()
        name, extras = canonicalize_name(wanted.name), frozenset(wanted.extras)
        if (name, extras) in seen:
            continue
        seen.add((name, extras))
        try:
            found[name] = find(name)
        except PackageNotFoundError:
            absent[name] = wanted
            continue
        for text in found[name].requires or ():
            needed = Requirement(text)
            marker = needed.marker
            if marker is None or any(
                marker.evaluate({**marks, "extra": extra}) for extra in ("", *extras)
            ):
                needed.marker = None  # it has been judged
                todo.append(needed)
    return Closure(
        tuple(found[name] for name in sorted(found)),
        tuple(absent[name] for name in sorted(absent)),
    )


def _marks(platform: Platform) -> dict[str, str]:
    marks = {name: str(value) for name, value in default_environment().items()}
    return marks | {
        "os_name": "posix",
        "sys_platform": platform.system,
        "platform_system": platform.system.capitalize(),
        "platform_machine": platform.machine,
        "python_version": _dotted(platform.python),
        "python_full_version": f"{_dotted(platform.python)}.0",
    }


def glibc_needed(dist: Distribution) -> tuple[int, int] | None:
    """The oldest glibc that an installed distribution runs with, (0, 0) for one without machine
    code; None if it was built on this machine, for this machine."""
    tags = re.findall(r"^Tag: \S+-\S+-(\S+)$", dist.read_text("WHEEL") or "", re.MULTILINE)
    needs = [need for tag in tags if (need := _glibc_of(tag)) is not None]
    return min(needs, default=None)


def _glibc_of(tag: str) -> tuple[int, int] | None:
    old = {"any": (0, 0), "manylinux1": (2, 5), "manylinux2010": (2, 12), "manylinux2014": (2, 17)}
    for name, need in old.items():
        if tag == name or tag.startswith(f"{name}_"):
            return need
    found = re.match(r"manylinux_(\d+)_(\d+)_", tag)
    return None if found is None else (int(found[1]), int(found[2]))


# --- the files -----------------------------------------------------------------------------------


def our_files(packages: Iterable[str] = OURS) -> Iterator[Entry]:
    """The files of our own packages, and of our metadata, for `site/`. Raises EnvironmentNotBuilt
    if a package is not installed."""
    for package in packages:
        spec = importlib.util.find_spec(package)
        for place in _places(spec.submodule_search_locations if spec else None, package):
            for file in sorted(place.rglob("*")):
                inside = file.relative_to(place)
                if file.is_file() and not left_out(inside.parts):
                    path = PurePosixPath("site", *package.split("."), *inside.parts)
                    yield Entry(str(path), file)


def _places(locations: Sequence[str] | None, package: str) -> Iterator[Path]:
    found = [Path(place) for place in locations or () if os.path.isdir(place)]
    if not found:
        raise EnvironmentNotBuilt(
            f"this installation has no package {package}",
            remedy="install rhinoctl anew, as a whole",
        )
    yield found[0]


def files_of(dist: Distribution) -> Iterator[Entry]:
    """The files that a distribution has installed, for `site/`; scripts are left out. Raises
    EnvironmentNotBuilt if some are gone."""
    ours = canonicalize_name(dist.name) == DISTRIBUTION
    if dist.files is None:
        raise _incomplete(dist, "it has no list of its files")
    for file in dist.files:
        metadata = file.parent.name.endswith(".dist-info")
        if left_out(file.parts) or (ours and not (metadata and file.name in KEPT)):
            continue
        source = Path(str(file.locate()))
        if not source.is_file():
            raise _incomplete(dist, f"{source} is gone")
        yield Entry(f"site/{PurePosixPath(*file.parts)}", source)


def left_out(parts: Sequence[str]) -> bool:
    """Whether a file of `site/` is of no use on a host."""
    if ".." in parts or "__pycache__" in parts or parts[-1] in DROPPED:
        return True
    return parts[0] in BULKY and not NOT_RUN.isdisjoint(parts[:-1])


def _incomplete(dist: Distribution, why: str) -> EnvironmentNotBuilt:
    return EnvironmentNotBuilt(
        f"the installation of {dist.name} {dist.version} is not whole: {why}",
        remedy=f"install it anew: {sys.executable} -m pip install --force-reinstall {dist.name}",
    )


def _version(text: str) -> tuple[int, int]:
    found = re.match(r"(\d+)\.(\d+)", text)
    return (0, 0) if found is None else (int(found[1]), int(found[2]))


def _dotted(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))
