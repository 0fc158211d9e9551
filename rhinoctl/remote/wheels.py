"""Packages for hosts that are not like this machine: wheels, fetched by pip, never built."""

import hashlib
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from rhinoctl.errors import EnvironmentNotBuilt, MissingWheel
from rhinoctl.remote.packages import DISTRIBUTION, Closure, Entry, Platform, files_of, left_out

FETCH_S: Final = 1800.0
"""All wheels are 100 MB or so: over this, nothing is coming."""

MANYLINUX_OLDEST: Final = 5
"""Of glibc 2.5. Each version has a tag of its own, and is asked for by it; some wheels have older
names, of which pip knows the others by manylinux2014."""

Say = Callable[[str], object]


def fetched(needed: Closure, platform: Platform, cache: Path, say: Say) -> Iterator[Entry]:
    """The files of all packages that are needed, in the versions that are installed here. Raises
    MissingWheel, and EnvironmentNotBuilt if pip fails otherwise."""
    for dist in needed.found:
        if dist.name == DISTRIBUTION:
            yield from files_of(dist)
    place = _place(needed, platform, cache, say)
    for file in sorted(place.rglob("*")):
        parts = file.relative_to(place).parts
        if file.is_file() and parts[0] != "bin" and not left_out(parts):
            yield Entry("/".join(("site", *parts)), file)


def _place(needed: Closure, platform: Platform, cache: Path, say: Say) -> Path:
    """A directory of the cache with the packages in it; it is renamed once all are there."""
    pins = [f"{d.name}=={d.version}" for d in needed.found if d.name != DISTRIBUTION]
    wanted = [*pins, *(f"{each.name}{each.specifier}" for each in needed.absent)]
    key = hashlib.sha256("\n".join([str(platform), *sorted(wanted)]).encode()).hexdigest()
    place = cache / f"wheels-{platform}-{key[:12]}"
    if place.is_dir():
        return place
    cache.mkdir(parents=True, exist_ok=True)
    say(f"fetching {len(wanted)} packages for {platform}")
    with TemporaryDirectory(dir=cache, prefix=".new-") as scratch:
        pinned = Path(scratch, "constraints.txt")
        pinned.write_text("".join(f"{pin}\n" for pin in pins))
        site = Path(scratch, "site")
        site.mkdir()
        _fetch(pip_argv(platform, site, pinned, wanted), platform)
        os.replace(site, place)
    return place


def pip_argv(platform: Platform, site: Path, pinned: Path, wanted: list[str]) -> list[str]:
    """How pip is asked. All packages are named: it would judge by this interpreter which ones are
    needed, not by the one of the platform."""
    argv = [sys.executable, "-m", "pip", "install", "--no-input", "--disable-pip-version-check"]
    argv += ["--quiet", "--no-compile", "--only-binary=:all:", "--target", str(site)]
    argv += ["--constraint", str(pinned), "--implementation", "cp"]
    argv += ["--python-version", ".".join(map(str, platform.python))]
    _, newest = platform.libc_version
    tags = [f"manylinux_2_{minor}" for minor in range(newest, MANYLINUX_OLDEST - 1, -1)]
    for tag in (*tags, "manylinux2014"):
        argv += ["--platform", f"{tag}_{platform.machine}"]
    return [*argv, *wanted]


def _fetch(argv: list[str], platform: Platform) -> None:
    try:
        done = subprocess.run(
            argv, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=FETCH_S
        )
    except subprocess.TimeoutExpired:
        raise _not_fetched(platform, f"not within {FETCH_S:g} s") from None
    if done.returncode:
        raise fault_of(done.stderr or done.stdout, platform)


def fault_of(said: str, platform: Platform) -> EnvironmentNotBuilt:
    """What pip's complaint means."""
    unreached = re.search(r"NewConnectionError|Temporary failure|Max retries|Read timed out", said)
    missing = re.search(r"No matching distribution found for (\S+)", said)
    if missing is not None and unreached is None:
        return MissingWheel(
            f"there is no wheel of {missing[1]} for {platform}",
            remedy="give the hosts a Python for which there is one, such as"
            f" {'.'.join(map(str, sys.version_info[:2]))}, or put a wheel of it where pip looks"
            " (PIP_FIND_LINKS)",
        )
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR:")] or lines
    return _not_fetched(platform, errors[-1] if errors else "pip said nothing")


def _not_fetched(platform: Platform, why: str) -> EnvironmentNotBuilt:
    return EnvironmentNotBuilt(
        f"the packages for {platform} were not fetched: {why}",
        remedy="see that `python -m pip download` works on this machine; or give the hosts the"
        " interpreter and the architecture of this one: then nothing is fetched",
    )
