"""What of a deployment is on a host, and the few commands that change it besides a release and a
service. All can be repeated."""

import importlib.resources
import posixpath
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from rhinoctl.errors import CommandFailed, HostUnfit
from rhinoctl.remote.host import Command, Host, checked, succeeded
from rhinoctl.remote.spoken import Spoken, spoken_by

LOOK_S: Final = 25.0
REMOVE_S: Final = 300.0
"""Removing the state of a worker may mean removing many files."""

SOMEBODY_S: Final = 9
"""How `make_directories.sh` ends at a directory that is somebody else's."""

STARTED: Final = "started"
"""The file beside a process's settings with the digest of what it was started with."""


STRANGE: Final = (
    "name an empty or a new directory, such as one below it; if it is state of this very cluster,"
    " whose host was installed anew: docs/operations/install.md"
)
"""What to do about a directory for state that is somebody else's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeployedFacts:
    """What a host said. `installed`: there is more than what says whose state it has. `releases`
    are those that are whole, with what each speaks. `directories` and `files` have mode and owner,
    and mode and SHA-256, by path; `made` are directories that a deployment made, `had` those that
    it found, `state` those of state, by the record; `holds` are some that are not empty, `gone`
    some that are not there, `disks` those that an agent of the cluster has marked; `started` are
    digests by role."""

    user: str
    identity: str
    installed: bool
    current: str
    releases: Mapping[str, Spoken]
    made: frozenset[str]
    had: frozenset[str]
    state: frozenset[str]
    holds: frozenset[str]
    gone: frozenset[str]
    disks: frozenset[str]
    started: Mapping[str, str]
    directories: Mapping[str, tuple[int, str]]
    files: Mapping[str, tuple[int, str]]

    @property
    def recorded(self) -> bool:
        """Whether there is a record of directories."""
        return bool(self.made | self.had | self.state)

    def own_state(self, named: Iterable[str]) -> tuple[str, ...]:
        """The directories of state that are this installation's, whatever an inventory says now. A
        record that does not mark them has those of it that are `named`, too."""
        return tuple(sorted(self.state or (self.made | self.had) & {*named}))

    def strange(self, named: Iterable[str]) -> tuple[str, ...]:
        """Those of the `named` directories for state that hold something that is not of this
        installation; to one that was only prepared, nothing belongs yet."""
        own = {*self.own_state(named), *self.disks} if self.identity else set()
        return tuple(path for path in named if path in self.holds and path not in own)


def ask_deployed(
    host: Host, install_dir: str, directories: Sequence[str], files: Sequence[str]
) -> DeployedFacts:
    """Ask a host. Raises what `Host.run` does, and CommandFailed if it does not answer in full."""
    counted = [str(len(directories)), *directories, str(len(files)), *files]
    done = checked(
        host,
        Command(
            argv=("sh", "-s", install_dir, *counted),
            what="look at what is deployed",
            input=_script("deployed_facts.sh"),
            timeout_s=LOOK_S,
        ),
    )
    said: dict[str, list[str]] = {}
    for line in done.text.splitlines():
        key, _, value = line.partition("\t")
        said.setdefault(key, []).append(value)
    if said.get("end") != ["yes"]:
        raise CommandFailed(
            f"{host.name}: its answer about what is deployed is not whole",
            remedy="see that `sh`, `stat` and `sha256sum` work there; it said:"
            f" {done.stderr.decode('utf-8', 'replace').strip()[-200:] or 'nothing'}",
        )
    made = [line.split(" ", 1) for line in said.get("made", ()) if " " in line]
    return DeployedFacts(
        user=said.get("user", [""])[0],
        identity=said.get("identity", [""])[0].strip(),
        installed="installed" in said,
        current=said.get("current", [""])[0],
        releases={
            name: spoken_by(name, said.get(f"release.{name}", ()))
            for name in said.get("release", ())
        },
        made=frozenset(path for kind, path in made if kind == "new"),
        had=frozenset(path for kind, path in made if kind == "had"),
        state=frozenset(path for kind, path in made if kind == "state"),
        holds=frozenset(said.get("holds", ())),
        gone=frozenset(said.get("gone", ())),
        disks=frozenset(said.get("disk", ())),
        started={
            key.removeprefix("started."): values[0]
            for key, values in said.items()
            if key.startswith("started.")
        },
        directories=_pairs(said, "dir", directories),
        files=_pairs(said, "file", files),
    )


def _pairs(
    said: Mapping[str, Sequence[str]], kind: str, paths: Sequence[str]
) -> dict[str, tuple[int, str]]:
    found = {}
    for number, path in enumerate(paths):
        mode, _, rest = said.get(f"{kind}.{number}", [""])[0].partition(" ")
        if mode:
            found[path] = (int(mode, 8), rest)
    return found


def make_directories(
    host: Host,
    install_dir: str,
    user: str,
    directories: Sequence[tuple[str, int, bool]],
    *,
    root: bool,
) -> None:
    """Make directories (path, mode, whether for state) for an account, those above them, too.
    Raises HostUnfit for one that is somebody else's, which stays as it is, and CommandFailed."""
    arguments = [
        each
        for path, mode, state in directories
        for each in (path, f"{mode:o}", "yes" if state else "no")
    ]
    record = posixpath.join(install_dir, "made")
    command = Command(
        argv=("sh", "-s", user, record, *arguments),
        what="make directories",
        input=_script("make_directories.sh"),
        changes=True,
        root=root,
    )
    done = host.run(command)
    if done.exit_code == SOMEBODY_S:
        raise HostUnfit(
            f"{host.name}: {done.stderr.decode('utf-8', 'replace').strip()}",
            remedy=STRANGE,
        )
    succeeded(host, command, done)


def remove_deployed(
    host: Host, install_dir: str, state: Sequence[str], *, wipe: bool, root: bool
) -> tuple[str, ...]:
    """Remove the installation, and what is in its directories of state if they are to be wiped;
    those of them that still have any."""
    done = checked(
        host,
        Command(
            argv=("sh", "-s", install_dir, "yes" if wipe else "no", *state),
            what="remove what was deployed",
            input=_script("remove_deployed.sh"),
            timeout_s=REMOVE_S,
            changes=True,
            root=root,
        ),
    )
    kept = (line.partition(" ") for line in done.text.splitlines())
    return tuple(path for word, _, path in kept if word == "kept")


def _script(name: str) -> bytes:
    return importlib.resources.files("rhinoctl_data.templates").joinpath(name).read_bytes()
