"""What is put on hosts: one archive a platform, made from this very installation.

Hosts need no internet and no package of their own but the interpreter. An archive has `site/`, with
rhinoctl and everything that it depends on, `run`, which starts a module of it, and `release`, which
says what it speaks (`rhinoctl.remote.spoken`).

Invariants:

1. The same content is the same digest, whatever machine, time or account it was made on.
2. An archive under its name in the cache is whole: it is renamed after its last byte, and one whose
   bytes are not those that were written is made anew.
"""

import gzip
import hashlib
import importlib.resources
import os
import sys
import tarfile
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Final

from rhinoctl.errors import EnvironmentNotBuilt
from rhinoctl.remote.packages import (
    DISTRIBUTION,
    Closure,
    Entry,
    Platform,
    closure,
    files_of,
    glibc_needed,
    our_files,
    this_platform,
)
from rhinoctl.remote.spoken import FILE, OURS, Spoken
from rhinoctl.remote.wheels import Say, fetched

UNUSED_S: Final = 30 * 86_400.0
"""An archive unused for so long goes; what it is made of is installed, or is fetched again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """An archive: what it `speaks`, `digest` of its contents, `sha256` of the file itself, `size`
    in bytes."""

    platform: Platform
    speaks: Spoken
    digest: str
    archive: Path
    sha256: str
    size: int

    @property
    def name(self) -> str:
        """What it is called on hosts, too: version and digest."""
        return release_name(self.speaks.version, self.digest)


def release_name(version: str, digest: str) -> str:
    """The name of a release on hosts."""
    return f"{version}-{digest[:12]}"


def build_environment(platform: Platform, cache: Path, say: Say) -> Environment:
    """The archive of this installation for a platform, from the cache if it is there.

    Raises MissingWheel, EnvironmentNotBuilt; nothing is asked of the network for a platform that
    what is installed here fits.
    """
    needed = closure(DISTRIBUTION, platform)
    entries = [*our_files(), _launcher(), Entry(FILE, OURS.text().encode())]
    if _fits(needed, platform):
        for dist in needed.found:
            entries += files_of(dist)
    else:
        entries += fetched(needed, platform, cache, say)
    return write_archive(entries, platform, cache, say)


def _launcher() -> Entry:
    script = importlib.resources.files("rhinoctl_data.templates").joinpath("run.sh")
    return Entry("run", script.read_bytes(), executable=True)


def _fits(needed: Closure, platform: Platform) -> bool:
    """Whether what is installed here runs there. Raises EnvironmentNotBuilt if it is this platform,
    and something is not installed."""
    here = this_platform()
    if (here.system, here.machine, here.libc, here.python) != (
        platform.system,
        platform.machine,
        platform.libc,
        platform.python,
    ):
        return False
    if needed.absent:
        raise EnvironmentNotBuilt(
            f"not installed here: {', '.join(map(str, needed.absent))}",
            remedy=f"install what is missing: {sys.executable} -m pip install {DISTRIBUTION}",
        )
    if here.libc_version == platform.libc_version:
        return True
    needs = [glibc_needed(dist) for dist in needed.found if dist.name != DISTRIBUTION]
    return all(need is not None and need <= platform.libc_version for need in needs)


def write_archive(
    entries: Iterable[Entry], platform: Platform, cache: Path, say: Say
) -> Environment:
    """An archive of files in the cache; of two files of one path the first is taken."""
    files: dict[str, Entry] = {}
    for entry in entries:
        files.setdefault(entry.path, entry)
    ordered = sorted(files.values())
    digest = content_digest(ordered)
    cache.mkdir(parents=True, exist_ok=True)
    _remove_unused(cache)
    archive = cache / f"{release_name(OURS.version, digest)}.tar.gz"
    sha256 = _known(archive)
    if sha256 is None:
        say(f"packing {len(ordered)} files for {platform}")
        sha256 = _pack(ordered, archive)
    os.utime(archive)  # it was used now
    return Environment(
        platform=platform,
        speaks=OURS,
        digest=digest,
        archive=archive,
        sha256=sha256,
        size=archive.stat().st_size,
    )


def _remove_unused(cache: Path) -> None:
    """Remove archives that nobody has used for long, and what a kill has left half written."""
    for archive in (*cache.glob("*.tar.gz"), *cache.glob(".new-*")):
        with suppress(FileNotFoundError):  # somebody else does the same
            if time.time() - archive.stat().st_mtime > UNUSED_S:
                _beside(archive).unlink(missing_ok=True)
                archive.unlink()


def content_digest(entries: Iterable[Entry]) -> str:
    """One digest of paths, modes and contents, in the order of the paths."""
    total = hashlib.sha256()
    for entry in entries:
        content = hashlib.sha256(entry.read()).hexdigest()
        total.update(f"{content} {entry.executable:d} {entry.path}\n".encode())
    return total.hexdigest()


def _known(archive: Path) -> str | None:
    """What the archive's file was when it was written, if it still is."""
    try:
        said = _beside(archive).read_text().split()[0]
        with open(archive, "rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
    except (OSError, IndexError):
        return None
    return said if said == found else None


def _pack(entries: Iterable[Entry], archive: Path) -> str:
    """Nothing in it tells when, where or by whom it was made. Level 1: five times as fast as the
    usual one, and a tenth larger."""
    with NamedTemporaryFile(dir=archive.parent, prefix=".new-", delete=False) as raw:
        try:
            with (
                gzip.GzipFile(filename="", mode="wb", compresslevel=1, fileobj=raw, mtime=0) as zip,
                tarfile.open(fileobj=zip, mode="w", format=tarfile.GNU_FORMAT) as tar,
            ):
                for entry in entries:
                    content = entry.read()
                    info = tarfile.TarInfo(entry.path)
                    info.size = len(content)
                    info.mode = 0o755 if entry.executable else 0o644
                    info.mtime = 1_000_000_000
                    tar.addfile(info, BytesIO(content))
            raw.seek(0)
            sha256 = hashlib.file_digest(raw, "sha256").hexdigest()
            os.replace(raw.name, archive)
        except BaseException:
            os.unlink(raw.name)
            raise
    _beside(archive).write_text(f"{sha256}  {archive.name}\n")
    return sha256


def _beside(archive: Path) -> Path:
    """As sha256sum writes and checks it."""
    return archive.with_name(f"{archive.name}.sha256")
