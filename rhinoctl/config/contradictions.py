"""What is wrong with an inventory whose every value is right by itself: what is there twice, what
is in another's way on a host, and what no host could do.

Invariants:

1. Every mistake is told, each with the line of the value that is to be changed.
2. A value that is no value of its type is not taken for one: nothing is said on its account.
"""

import copy
import ipaddress
import itertools
import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from rhinoctl import limits
from rhinoctl.config.yaml_tree import Mistake, Tree, Where, spelled
from rhinoctl.protocol.starting import CONTROLLER as CONTROLLER

if TYPE_CHECKING:
    from rhinoctl.config.inventory import Controller, Inventory, Worker

NAME: Final = r"^[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?$"
PORT_MAX: Final = 65535
PATH: Final = r"/[A-Za-z0-9_./+@-]*"

SHARED: Final = frozenset({"/", "/home", "/opt", "/root", "/srv", "/var", "/var/lib"})
"""Directories that are everybody's; one below them may be ours."""

SYSTEM: Final = frozenset(
    {"bin", "boot", "dev", "etc", "lib", "lib32", "lib64", "libx32"}
    | {"proc", "run", "sbin", "sys", "tmp", "usr"}
)
"""Directories of the system, with what is below them."""

NOT_THE_SYSTEM_S: Final = "/usr/local/"
"""What is below it is the administrator's."""

UNKNOWN: Final = ".invalid"
"""How a host's name ends that stands for one that could not be read: none has such a name."""

UNKNOWN_PORT: Final = 30_000
"""From there on, ports stand for those that could not be read."""


def contradictions(inventory: "Inventory", tree: Tree) -> Iterator[Mistake]:
    """Every mistake of this kind; in any order, some more than once."""
    yield from _twice(inventory, tree)
    yield from _impossible(inventory, tree)
    yield from _paths(inventory, tree)
    yield from _ports(inventory, tree)
    yield from _listeners(inventory, tree)
    yield from _loopback(inventory, tree)
    for number, (_, host, ssh) in enumerate(inventory.reached()):
        if ssh.jump is not None and ssh.jump == host:
            where: Where = ("controller",) if number == 0 else ("workers", number - 1)
            said = f"{host} is its own jump host: `jump: null` there if it is reached without one"
            yield Mistake(tree.line((*where, "ssh", "jump")), said)


# --- hosts ---------------------------------------------------------------------------------------


def _impossible(inventory: "Inventory", tree: Tree) -> Iterator[Mistake]:
    """What has only digits and dots is an address or nothing: no name ends with a number."""
    for where, _, has, _ in _processes(inventory):
        for key, value in (("host", has.host), ("address", has.address), ("jump", has.ssh.jump)):
            if value is not None and re.fullmatch(r"[0-9.]+", value) and not _is_address(value):
                line = tree.line((*where, "ssh", key) if key == "jump" else (*where, key))
                yield Mistake(line, f"`{key}`: {value} is no address, and cannot be a host's name")


def _is_address(value: str) -> bool:
    try:
        ipaddress.ip_address(value)
    except ValueError:
        return False
    return True


def _twice(inventory: "Inventory", tree: Tree) -> Iterator[Mistake]:
    """Hosts and names that are there more than once; a host under two names is found by
    `rhinoctl check`, which sees its machine id."""
    hosts: dict[tuple[str, int], int] = {}
    names: dict[str, int] = {}
    for number, worker in enumerate(inventory.workers):
        line = tree.line(("workers", number, "host"))
        place = (worker.host.lower(), worker.ssh.port)
        if place in hosts:
            yield Mistake(line, f"host {worker.host} is there twice, first in line {hosts[place]}")
        elif worker.id == CONTROLLER:
            said = (
                f"`{CONTROLLER}` is the controller's name in every table: give this worker another"
            )
            yield Mistake(line, f"{said} `name`")
        elif not re.fullmatch(NAME, worker.id):
            yield Mistake(line, f"host {worker.host} cannot be a worker's name: give it a `name`")
        elif worker.id in names:
            line = tree.line(("workers", number, "name"))
            said = f"two workers are called {worker.id}, the first in line {names[worker.id]}"
            yield Mistake(line, said)
        hosts.setdefault(place, line)
        names.setdefault(worker.id, line)


class _Process(NamedTuple):
    """A process: where its host is in the file, what to call it, what is said of it, its port."""

    where: Where
    who: str
    has: "Controller | Worker"
    port: int

    @property
    def machine(self) -> tuple[str, int]:
        """Machines behind one address have sshds on several ports of it."""
        return self.has.host.lower(), self.has.ssh.port


def _processes(inventory: "Inventory") -> Iterator[_Process]:
    """All processes, the controller first."""
    port = inventory.ports.controller
    yield _Process(("controller",), "the controller", inventory.controller, port)
    for number, worker in enumerate(inventory.workers):
        port = worker.port or inventory.ports.agent
        yield _Process(("workers", number), f"the agent of {worker.id}", worker, port)


def _loopback(inventory: "Inventory", tree: Tree) -> Iterator[Mistake]:
    """An address that means another machine on each host."""
    known = [p for p in _processes(inventory) if not p.has.peer_address.endswith(UNKNOWN)]
    if all(_is_loopback(process.has.peer_address) for process in known):
        return  # all on one machine
    for where, who, has, _ in known:
        if _is_loopback(has.peer_address):
            key = "host" if has.address is None else "address"
            said = f"{who} would be reached at {has.peer_address}, where each host finds itself"
            line = tree.line((*where, key))
            yield Mistake(line, f"{said}: give an `address` by which the others reach it")


def _is_loopback(address: str) -> bool:
    name = address.lower().rstrip(".")
    if not _is_address(name):
        return name.split(".")[0] in ("localhost", "ip6-localhost", "ip6-loopback")
    parsed = ipaddress.ip_address(name)
    return parsed.is_loopback or parsed.is_unspecified


# --- directories ---------------------------------------------------------------------------------


def _paths(inventory: "Inventory", tree: Tree) -> Iterator[Mistake]:
    """Directories on hosts are absolute, ours alone, and none is within another of its host."""
    controller = inventory.controller
    top: tuple[Where, str] = ("install_dir",), inventory.install_dir
    data: tuple[Where, str] = ("controller", "data_dir"), controller.data_dir
    disks: list[list[tuple[Where, str]]] = [
        [(("workers", number, "disks", n), path) for n, path in enumerate(worker.disks)]
        for number, worker in enumerate(inventory.workers)
    ]
    for where, path in itertools.chain([top, data], *disks):
        yield from _ours(tree, where, path)
    yield from _apart(tree, [top, data])
    first, *others = _processes(inventory)
    for process, own in zip(others, disks, strict=True):
        store = [data] if process.machine == first.machine else []
        yield from _apart(tree, [top, *store, *own])


def _ours(tree: Tree, where: Where, path: str) -> Iterator[Mistake]:
    name, line = spelled(where), tree.line(where)
    if not _is_path(path):
        said = f"`{name}`: {path!r} is not an absolute path in its shortest form"
        yield Mistake(line, f"{said}, of letters, digits and _ . + @ -")
    elif path in SHARED or _is_the_system_s(path):
        said = f"`{name}`: {path} is not rhinoctl's alone: name a directory of its own"
        yield Mistake(line, f"{said}, such as /var/lib/rhinoctl or /data1/rhino")


def _apart(tree: Tree, named: Sequence[tuple[Where, str]]) -> Iterator[Mistake]:
    for number, (where, path) in enumerate(named):
        for before, other in named[:number]:
            if _is_path(path) and _is_path(other) and _overlap(path, other):
                said = f"`{spelled(where)}`: {path} and {other} are not apart"
                own = before[:2] == where[:2]
                yield Mistake(tree.line(where), said if own else f"{said} (`{spelled(before)}`)")


def _is_the_system_s(path: str) -> bool:
    return path.split("/")[1] in SYSTEM and not path.startswith(NOT_THE_SYSTEM_S)


def _is_path(path: str) -> bool:
    return bool(re.fullmatch(PATH, path)) and posixpath.normpath(path) == path


def _overlap(path: str, other: str) -> bool:
    return f"{path}/".startswith(f"{other}/") or f"{other}/".startswith(f"{path}/")


# --- ports ---------------------------------------------------------------------------------------


def _ports(inventory: "Inventory", tree: Tree) -> Iterator[Mistake]:
    """No port is the host's sshd's, and an agent's has room for its instances' after it."""
    port, ssh = inventory.ports.controller, inventory.controller.ssh
    if port == ssh.port:
        yield _sshd(tree.line(("ports", "controller")), CONTROLLER, port)
    for number, worker in enumerate(inventory.workers):
        line, port = tree.line(_said_at(tree, number)), worker.port or inventory.ports.agent
        if port == worker.ssh.port:
            yield _sshd(line, worker.id, port)
        if port + limits.BEACON_PORTS > PORT_MAX:
            said = f"port {port} of an agent has not {limits.BEACON_PORTS} ports after it, which"
            most = PORT_MAX - limits.BEACON_PORTS
            yield Mistake(line, f"{said} are its instances': take {most} at most")


def _sshd(line: int, who: str, port: int) -> Mistake:
    return Mistake(line, f"port {port} of {who} is the one where its host's sshd listens")


def _said_at(tree: Tree, number: int) -> Where:
    """Where the port of a worker's agent is written."""
    own: Where = ("workers", number, "port")
    top: Where = ("ports", "agent")
    return own if own in tree.lines or top not in tree.lines else top


def _listeners(inventory: "Inventory", tree: Tree) -> Iterator[Mistake]:
    """No two processes listen on one port of a host, or are reached at one address and port."""
    first, *_ = processes = list(_processes(inventory))
    taken: dict[tuple[str, int], _Process] = {}
    for process in processes:
        where, who, has, port = process
        other = taken.setdefault((_normal(has.peer_address), port), process)
        if process.machine == first.machine and port == first.port:
            other = first
        elif process.machine == other.machine:
            continue  # itself, or a host that is there twice, which is said already
        if other is not process:
            said = f"{who} and {other.who} would both listen on port {port} of {has.peer_address}"
            yield Mistake(tree.line((*where, "port")), f"{said}: change a `port` or an `address`")


def _normal(address: str) -> str:
    return str(ipaddress.ip_address(address)) if _is_address(address) else address.lower()


# --- what is left of a faulty one ----------------------------------------------------------------


def without(value: Mapping[str, Any], faulty: Mapping[Where, bool]) -> dict[str, Any]:
    """What was written, without the values that are none of their type. `faulty` has the way to
    each, and whether its key is known: where there has to be a value, then, it is one that nothing
    else is."""
    left: dict[str, Any] = copy.deepcopy(dict(value))
    for number, (where, known) in enumerate(faulty.items()):
        there: Any = left
        try:
            for step in where[:-1]:
                there = there[step]
            instead = _placeholder(where, number) if known else None
            if instead is None:
                there.pop(where[-1], None)
            else:
                there[where[-1]] = instead
        except (KeyError, IndexError, TypeError, AttributeError):
            continue  # what it was in was faulty, too
    return left


def _placeholder(where: Where, number: int) -> object:
    """What stands for a faulty value; None where none has to."""
    host, path = f"unknown{number}{UNKNOWN}", f"/unknown/{number}"
    match where:
        case ("cluster",):
            return "unknown"
        case ("controller",) | ("workers", int()):
            return {"host": host}
        case ("workers",):
            return [{"host": host}]
        case ("controller" | "workers", *_, "host" | "address"):
            return host
        case ("workers", int(), "name"):
            return f"unknown{number}"
        case ("install_dir",) | ("controller", "data_dir") | ("workers", int(), "disks", int()):
            return path
        case ("workers", int(), "disks"):
            return [path]
        case ("ports", _) | (*_, "port"):
            return UNKNOWN_PORT + number
    return None
