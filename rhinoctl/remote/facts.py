"""What a host is like, asked in one command that changes nothing (`templates/host_facts.sh`).

Whatever a host does not say is not known, and is not taken for zero.
"""

import importlib.resources
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from rhinoctl.errors import CommandFailed
from rhinoctl.remote.host import Command, Host, checked

FACTS_S = 25.0
"""A host that looks at its disks for so long is not well."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """How much there is of something, and how much of it is free."""

    whole: int
    free: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectoryFacts:
    """A directory, or the nearest that exists above it (`there`); what was tried was tried there.
    `is_file`: it, or what is to be above it, is something else, such as a link to nothing. `space`
    is in bytes. `read_only`: its file system is, and no account may write there. None: not known,
    or could not be tried."""

    path: str
    there: str
    is_file: bool
    mount: str
    type: str
    space: Room | None
    inodes: Room | None
    writable: bool
    links: bool
    reflinks: bool
    executes: bool
    sync_s: float | None
    read_only: bool = False

    @property
    def missing(self) -> bool:
        """Whether nothing is there."""
        return self.there != self.path and not self.is_file


@dataclass(frozen=True, slots=True, kw_only=True)
class HostFacts:
    """What a host says of itself. `clock_ahead_s` is of its clock before ours, give or take
    `clock_error_s`; `pythons` are versions and paths; `spark` are the versions of Spark's workers
    that run there, empty for one that does not say; `temp`: whether there is a directory for
    temporary files: yes, no, or noexec if nothing can be executed in /tmp. `user_manager`: systemd
    looks after services of the account; `linger`: also while it is not logged in."""

    user: str
    uid: int
    host: str
    system: str
    machine: str
    libc: str
    machine_id: str
    clock_ahead_s: float
    clock_error_s: float
    cpus: int
    memory_bytes: int
    memory_free_bytes: int
    open_files: int | None
    systemd: bool
    sudo: bool
    temp: str
    pythons: tuple[tuple[tuple[int, int], str], ...]
    spark: tuple[str, ...]
    directories: tuple[DirectoryFacts, ...]
    ports_taken: frozenset[int]
    home: str = ""
    user_manager: bool = False
    linger: bool = False


def ask_facts(
    host: Host,
    directories: Sequence[str],
    ports: Sequence[int],
    now: Callable[[], float] = time.time,
) -> HostFacts:
    """Ask a host. Raises what `Host.run` does, and CommandFailed if it does not answer in full."""
    script = importlib.resources.files("rhinoctl_data.templates").joinpath("host_facts.sh")
    numbers = [str(len(directories)), *directories, *map(str, ports)]
    asked_at = now()
    done = checked(
        host,
        Command(
            argv=("sh", "-s", *numbers),
            what="look at the host",
            input=script.read_bytes(),
            timeout_s=FACTS_S,
        ),
    )
    answered_at = now()
    said = _said(done.text)
    if said.get("end") != ["yes"]:
        raise CommandFailed(
            f"{host.name}: its answer about itself is not whole",
            remedy="see that `sh`, `df`, `dd` and `awk` work there; it said:"
            f" {done.stderr.decode('utf-8', 'replace').strip()[-200:] or 'nothing'}",
        )
    return _facts(said, directories, ports, asked_at, answered_at)


def _said(text: str) -> Mapping[str, list[str]]:
    said: dict[str, list[str]] = {}
    for line in text.splitlines():
        key, tab, value = line.partition("\t")
        if tab:
            said.setdefault(key, []).append(value.strip())
    return said


def _facts(
    said: Mapping[str, list[str]],
    directories: Sequence[str],
    ports: Sequence[int],
    asked_at: float,
    answered_at: float,
) -> HostFacts:
    one = {key: values[0] for key, values in said.items()}
    clock = float(one.get("clock") or asked_at)
    return HostFacts(
        user=one.get("user", ""),
        uid=_number(one.get("uid")) or 0,
        host=one.get("host", ""),
        system=one.get("system", ""),
        machine=one.get("machine", ""),
        libc=one.get("libc", ""),
        machine_id=one.get("machine_id", ""),
        clock_ahead_s=clock - (asked_at + answered_at) / 2,
        clock_error_s=(answered_at - asked_at) / 2,
        cpus=_number(one.get("cpus")) or 0,
        memory_bytes=1024 * (_number(one.get("memory_kb")) or 0),
        memory_free_bytes=1024 * (_number(one.get("memory_free_kb")) or 0),
        open_files=_number(one.get("open_files")),
        systemd=one.get("systemd") == "yes",
        sudo=one.get("sudo") == "yes",
        temp=one.get("temp", "no"),
        pythons=tuple(filter(None, map(_python, said.get("python", ())))),
        spark=tuple(value.removesuffix(".jar") for value in said.get("spark", ())),
        directories=tuple(_directory(one, n, path) for n, path in enumerate(directories)),
        ports_taken=frozenset(port for port in ports if one.get(f"port.{port}") == "taken"),
        home=one.get("home", ""),
        user_manager=one.get("user_manager") == "yes",
        linger=one.get("linger") == "yes",
    )


def _directory(one: Mapping[str, str], number: int, path: str) -> DirectoryFacts:
    def get(key: str) -> str:
        return one.get(f"dir.{number}.{key}", "")

    sync = _number(get("sync_ns"))
    return DirectoryFacts(
        path=path,
        there=get("there"),
        is_file=get("file") == "yes",
        mount=get("mount"),
        type=get("type"),
        space=_room(get("space_kb"), 1024),
        inodes=_room(get("inodes"), 1),
        writable=get("writable") == "yes",
        links=get("links") == "yes",
        reflinks=get("reflinks") == "yes",
        executes=get("exec") == "yes",
        sync_s=None if sync is None else sync / 1e9,
        read_only=get("read_only") == "yes",
    )


def _room(text: str, unit: int) -> Room | None:
    """Some file systems have no fixed number of inodes, and say 0."""
    numbers = [int(part) for part in text.split() if part.isdigit()]
    if len(numbers) != 2 or numbers[0] == 0:
        return None
    return Room(whole=unit * numbers[0], free=unit * numbers[1])


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdigit() else None


def _python(text: str) -> tuple[tuple[int, int], str] | None:
    found = re.fullmatch(r"(\d+)\.(\d+) (.+)", text)
    return None if found is None else ((int(found[1]), int(found[2])), found[3])
