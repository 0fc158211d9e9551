"""Releases on a host: put there whole or not at all, one of them the current one.

    INSTALL_DIR/versions/RELEASE/{site,run}    INSTALL_DIR/current -> versions/RELEASE

Invariants:

1. A directory below `versions` whose name has no dot in front is whole, and is never changed.
2. `current` is switched in one step; what runs goes on with the release that it was started from.
3. All of it can be repeated: what is there is left alone.
"""

import importlib.resources
import posixpath
from dataclasses import dataclass
from typing import Final

from rhinoctl.errors import CommandFailed
from rhinoctl.remote.environment import Environment
from rhinoctl.remote.host import SHOWN, Command, Host, checked

CURRENT: Final = "current"
VERSIONS: Final = "versions"

UPLOAD_BYTES_S: Final = 1 << 20
"""A way that is slower than this is not one to install over."""

UNPACK_S: Final = 120.0
"""On top of that, for a host that unpacks 270 MB, compiles them and makes them durable."""

SILENT_S: Final = 20.0
"""An upload of which nothing comes for so long is over on the host, as by then it is here."""

WAIT_S: Final = 30.0
"""For an installation that is under way already, and may be one whose sender is gone."""

UNDER_WAY: Final = 75
"""What `unpack.py` exits with when that one goes on."""

KEEP: Final = 2
"""Releases that are kept: the current one, and the one before to go back to."""

_LIST = (
    'cd "$1" 2>/dev/null || exit 0; echo "current $(readlink current)";'
    " ls -1t versions 2>/dev/null | sed 's/^/release /'"
)
_SWITCH = (
    'cd "$1" && test -d "versions/$2" && ln -sfn "versions/$2" .current.new'
    " && mv -T .current.new current && sync ."
)
_REMOVE = """\
cd "$1/versions" || exit 1
shift
for name in "$@"; do
    # Its libraries are mapped by whatever still runs from it.
    if grep -qsF "/versions/$name/" /proc/[0-9]*/maps; then continue; fi
    mv -T "$name" ".old-$name" && rm -rf ".old-$name" && echo "$name" || exit 1
done
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Installed:
    """The whole releases of a host, newest first, and the one that `current` points to."""

    releases: tuple[str, ...]
    current: str | None


def installed(host: Host, install_dir: str, *, root: bool) -> Installed:
    """What a host has. Raises CommandFailed and what `Host.run` does."""
    done = checked(
        host,
        Command(
            argv=("sh", "-c", _LIST, "sh", install_dir),
            what=f"look at the releases in {install_dir}",
            root=root,
        ),
    )
    said = [line.split(" ", 1) for line in done.text.splitlines() if " " in line]
    releases = tuple(name for key, name in said if key == "release" and not name.startswith("."))
    current = posixpath.basename(next((name for key, name in said if key == "current"), ""))
    return Installed(releases=releases, current=current if current in releases else None)


def install_environment(
    host: Host, environment: Environment, install_dir: str, *, python: str, root: bool
) -> bool:
    """Put a release on a host, unless it is there; whether it was put there. `current` stays as it
    is. `python` is the host's interpreter (`packages.python_of`).

    Raises CommandFailed and what `Host.run` does. Whatever ends it, nothing is left that counts.
    """
    if environment.name in installed(host, install_dir, root=root).releases:
        return False
    script = importlib.resources.files("rhinoctl_data.templates").joinpath("unpack.py")
    versions = f"{install_dir}/{VERSIONS}"
    done = host.run(
        Command(
            argv=(
                *(python, "-I", "-c", script.read_text("utf-8")),
                *(versions, environment.name, environment.sha256),
                *(f"{SILENT_S:g}", f"{WAIT_S:g}"),
            ),
            what=f"install {environment.name} in {install_dir}",
            input_file=environment.archive,
            timeout_s=environment.size / UPLOAD_BYTES_S + UNPACK_S,
            changes=True,
            root=root,
        )
    )
    if done.exit_code == UNDER_WAY:
        raise CommandFailed(
            f"{host.name}: {environment.name} was not installed: another installation is under way"
            f" in {versions}, and is being sent",
            remedy="see who else deploys there; once that has ended, repeat the command",
        )
    if done.exit_code:
        said = done.stderr.decode("utf-8", "replace").strip()[-SHOWN:]
        raise CommandFailed(
            f"{host.name}: {environment.name} was not installed in {install_dir}:"
            f" {said or 'it said nothing'} (exit code {done.exit_code})",
            remedy=f"see that {install_dir} may be written to and has room for"
            f" {5 * environment.size >> 20} MB (`rhinoctl check`), then repeat the command",
        )
    return True


def switch(host: Host, release: str, install_dir: str, *, root: bool) -> bool:
    """Make a release that is installed the current one; whether another one was. What runs is not
    touched. Raises CommandFailed and what `Host.run` does."""
    if installed(host, install_dir, root=root).current == release:
        return False
    checked(
        host,
        Command(
            argv=("sh", "-c", _SWITCH, "sh", install_dir, release),
            what=f"switch to {release} in {install_dir}",
            changes=True,
            root=root,
        ),
    )
    return True


def remove_old(host: Host, install_dir: str, *, root: bool, keep: int = KEEP) -> tuple[str, ...]:
    """Remove releases but for the current one and the newest others, `keep` in all; those that
    something still runs from stay, too. Returns the names of those that were removed. Raises
    CommandFailed and what `Host.run` does."""
    there = installed(host, install_dir, root=root)
    others = [name for name in there.releases if name != there.current]
    old = others[max(keep - (there.current is not None), 0) :]
    if not old:
        return ()
    done = checked(
        host,
        Command(
            argv=("sh", "-c", _REMOVE, "sh", install_dir, *old),
            what=f"remove old releases from {install_dir}",
            changes=True,
            root=root,
        ),
    )
    return tuple(done.text.split())
