"""The inventory: the hosts of a cluster as a person wrote them down, checked before anything is
touched. docs/operations/inventory.md says it for people.

Invariants:

1. What is read is whole and consistent, or refused with every mistake there is and its line.
2. A value that is not written is decided here, in the model's defaults, and nowhere else.
3. No secret is in it: keys are files, and passwords are asked for or come from the environment.
"""

import difflib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError
from pydantic import model_validator as validator

from rhinoctl import limits
from rhinoctl.config.contradictions import CONTROLLER, NAME, PORT_MAX, contradictions, without
from rhinoctl.config.yaml_tree import Mistake, Tree, Where, read_tree, spelled
from rhinoctl.errors import InvalidInventory, NoInventory

FILE: Final = "inventory.yml"
"""Its usual name, in the directory where a command is typed."""

FORMAT: Final = 1
"""Of the inventory; another one is refused, not guessed at."""

MEMORY_MB_MIN: Final = 256
"""An agent takes 100 MB at rest, and an instance as much before it holds a row."""

CPUS_MIN: Final = 0.1
"""With less, an agent is not through with its start before it is given up."""

HOST: Final = r"^[A-Za-z0-9_.:%-]{1,253}$"
LABEL: Final = r"^[A-Za-z0-9_.-]{1,63}$"
LOGIN: Final = r"^[A-Za-z_][A-Za-z0-9_.-]{0,31}$"

ALLOWED: Final = {
    NAME: "1 to 63 lower-case letters, digits, dots and hyphens, none of the latter at an end",
    HOST: "a host's name or address: 1 to 253 letters, digits and _ . : % -",
    LABEL: "1 to 63 letters, digits and _ . -",
    LOGIN: "an account: 1 to 32 letters, digits and _ . -, the first a letter or _",
}
"""What a value of each pattern is, for people."""

Name = Annotated[str, StringConstraints(pattern=NAME)]
"""Of a cluster or a worker: it becomes a part of paths, units and certificates."""

Host = Annotated[str, StringConstraints(pattern=HOST)]
"""A host's name, or its address by IPv4 or IPv6."""

Label = Annotated[str, StringConstraints(pattern=LABEL)]
Login = Annotated[str, StringConstraints(pattern=LOGIN)]
Port = Annotated[int, Field(ge=1, le=PORT_MAX)]
Megabytes = Annotated[int, Field(ge=1, le=1 << 24)]

M = TypeVar("M", bound="Part")


class Part(BaseModel):
    """A mapping of the inventory: no other keys than these, and no value taken for another type."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    @validator(mode="before")
    @classmethod
    def _nothing_said(cls, value: Any) -> Any:
        """A heading with nothing but comments below it is as good as none."""
        if not isinstance(value, dict):
            return value
        fields = cls.model_fields
        return {
            key: below
            for key, below in value.items()
            if below is not None or key not in fields or not any(_parts(fields[key].annotation))
        }

    def under(self: M, special: M) -> M:
        """These values, where `special` does not say otherwise."""
        said = {name: getattr(special, name) for name in special.model_fields_set}
        return self.model_copy(update=said)


class Ssh(Part):
    """How a host is reached. `identity` and `known_hosts` are files of the machine where the
    commands are typed; without an identity the SSH agent and the usual keys are asked."""

    user: Login | None = None
    port: Port = 22
    identity: str | None = None
    jump: Host | None = None
    jump_user: Login | None = None
    jump_port: Port = 22
    known_hosts: str = "~/.ssh/known_hosts"
    sudo: bool = False
    connect_s: Annotated[float, Field(gt=0, le=300)] = 10.0
    command_s: Annotated[float, Field(gt=0, le=3600)] = 60.0
    sessions: Annotated[int, Field(ge=1, le=64)] = 8


class Ports(Part):
    """Where processes listen; see the firewall table of docs/operations/inventory.md."""

    controller: Port = 7470
    agent: Port = 7471


class Limits(Part):
    """What an agent with its instances may take of a host; null: no limit."""

    memory_mb: Annotated[int, Field(ge=MEMORY_MB_MIN, le=1 << 24)] | None = None
    cpus: Annotated[float, Field(ge=CPUS_MIN, le=4096)] | None = None


class Agent(Part):
    """Settings of all agents and their instances."""

    cache_mb: Megabytes = 64
    buffer_mb: Megabytes = 64
    replay_target_s: Annotated[float, Field(ge=0.1, le=3600)] = limits.REPLAY_TARGET_S
    replication_mb_s: Annotated[int, Field(ge=0, le=1 << 20)] = 0
    require_hardlink: bool = False


class Reachable(Part):
    """A host: `host` is where SSH reaches it, `address` how the others do, if in another way."""

    host: Host
    address: Host | None = None

    @property
    def peer_address(self) -> str:
        """By which the others of the cluster reach it."""
        return self.address or self.host


class Controller(Reachable):
    """The host of the controller, and how it decides that a worker is lost."""

    data_dir: str = "/var/lib/rhinoctl/controller"
    lease_s: Annotated[float, Field(ge=0.5, le=3600)] = limits.LEASE_OF_WORKER_S
    auto_failover: bool = True
    ssh: Ssh = Field(default_factory=Ssh)


class Worker(Reachable):
    """A host with an agent. `disks` are directories, the first with the log; `slots` bound the
    instances that it runs; `port` is its agent's, if not the one of all; `bandwidth_mb_s` is of its
    network, if not as measured."""

    name: Name | None = None
    rack: Label | None = None
    slots: Annotated[int, Field(ge=1, le=1024)] | None = None
    disks: Annotated[list[str], Field(min_length=1, max_length=64)] = ["/var/lib/rhinoctl/worker"]
    port: Port | None = None
    bandwidth_mb_s: Annotated[int, Field(ge=1, le=1 << 20)] | None = None
    limits: Limits = Field(default_factory=Limits)
    ssh: Ssh = Field(default_factory=Ssh)

    @property
    def id(self) -> str:
        """The worker's name in the cluster."""
        return self.name or self.host.lower()


class Inventory(Part):
    """A cluster's hosts. Workers, and the controller, have what `ssh`, `ports` and `limits` say at
    the top, but for what they say themselves; so it is once this has been read."""

    format: Literal[1] = FORMAT
    cluster: Name
    install_dir: str = "/opt/rhinoctl"
    ssh: Ssh = Field(default_factory=Ssh)
    ports: Ports = Field(default_factory=Ports)
    limits: Limits = Field(default_factory=Limits)
    agent: Agent = Field(default_factory=Agent)
    controller: Controller
    workers: Annotated[list[Worker], Field(min_length=1, max_length=4096)]

    @validator(mode="after")
    def _inherit(self) -> Self:
        """Hand down what is said at the top."""
        workers = [
            worker.model_copy(
                update={
                    "ssh": self.ssh.under(worker.ssh),
                    "port": self.ports.agent if worker.port is None else worker.port,
                    "limits": self.limits.under(worker.limits),
                }
            )
            for worker in self.workers
        ]
        controller = self.controller.model_copy(update={"ssh": self.ssh.under(self.controller.ssh)})
        # Frozen for all but this: what was read becomes what is meant, once.
        object.__setattr__(self, "workers", workers)
        object.__setattr__(self, "controller", controller)
        return self

    def reached(self) -> list[tuple[str, str, Ssh]]:
        """Every host that is reached by SSH, the controller's first: name, address, how."""
        controller = (CONTROLLER, self.controller.host, self.controller.ssh)
        return [controller, *((worker.id, worker.host, worker.ssh) for worker in self.workers)]


# --- reading -------------------------------------------------------------------------------------


def read_inventory(path: Path) -> Inventory:
    """The inventory of a file. Raises NoInventory, and InvalidInventory with every mistake."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise NoInventory(
            f"there is no inventory {path}",
            remedy="`rhinoctl init` writes one to fill in; or name yours: --inventory FILE",
        ) from None
    except UnicodeDecodeError as fault:
        raise invalid(path, [Mistake(0, f"it is not UTF-8, from byte {fault.start} on")]) from None
    except OSError as fault:
        raise NoInventory(
            f"the inventory {path} cannot be read: {fault.strerror}",
            remedy="make it readable for you, or name another one: --inventory FILE",
        ) from None
    inventory, mistakes = parse_inventory(text)
    if inventory is None:
        raise invalid(path, mistakes)
    return inventory


def invalid(path: Path, mistakes: list[Mistake]) -> InvalidInventory:
    """The error with every mistake of an inventory, by line."""
    shown = [f"line {m.line}: {m.what}" if m.line else m.what for m in mistakes]
    there = f" {shown[0]}" if len(shown) == 1 else "".join(f"\n  {line}" for line in shown)
    fault = InvalidInventory(
        f"{path}:{there}",
        remedy="mend it, then `rhinoctl config validate`; docs/operations/inventory.md has every"
        " key",
    )
    fault.details = {"mistakes": [{"line": m.line, "what": m.what} for m in mistakes]}
    return fault


def parse_inventory(text: str) -> tuple[Inventory | None, list[Mistake]]:
    """The inventory that a text is, or every mistake in it, by line. What is no value of its type
    is left out of the search for contradictions."""
    tree = read_tree(text)
    if tree.mistakes:
        return None, sorted(tree.mistakes)
    if not isinstance(tree.value, dict):
        return None, [
            Mistake(0, "an inventory is a mapping: `cluster:`, `controller:`, `workers:`")
        ]
    mistakes: set[Mistake] = set()
    try:
        inventory: Inventory | None = Inventory.model_validate(tree.value)
    except ValidationError as fault:
        faults: list[dict[str, Any]] = [dict(each) for each in fault.errors()]
        mistakes |= {_mistake(tree, each) for each in faults}
        known = {_where(each): each["type"] != "extra_forbidden" for each in faults}
        inventory = _besides(tree.value, known)
    if inventory is not None:
        mistakes |= set(contradictions(inventory, tree))
    return (None, sorted(mistakes)) if mistakes else (inventory, [])


def _besides(value: dict[str, Any], faulty: Mapping[Where, bool]) -> Inventory | None:
    """An inventory with all but the faulty values; None if there is none without them."""
    try:
        return Inventory.model_validate(without(value, faulty))
    except ValidationError:
        return None


# --- what a mistake is called --------------------------------------------------------------------


def _where(fault: Mapping[str, Any]) -> Where:
    return tuple(fault["loc"])


def _mistake(tree: Tree, fault: Mapping[str, Any]) -> Mistake:
    where = _where(fault)
    name = spelled(where)
    match fault["type"]:
        case "extra_forbidden":
            return Mistake(tree.line(where), f"`{name}` is not known{_nearest(where)}")
        case "missing":
            return Mistake(tree.line(where), f"`{name}` is missing")
        case "string_pattern_mismatch":
            allowed = ALLOWED[fault["ctx"]["pattern"]]
            return Mistake(
                tree.line(where), f"`{name}`: {fault['input']!r} cannot be; it takes {allowed}"
            )
        case "too_short":
            return Mistake(tree.line(where), f"`{name}` is empty: it takes at least one entry")
        case "too_long":
            what = (
                f"has {len(fault['input'])} entries: it takes {fault['ctx']['max_length']} at most"
            )
            return Mistake(tree.line(where), f"`{name}` {what}")
    said = str(fault["msg"]).removeprefix("Input ")
    if fault["type"] == "model_type":
        key = next(iter(_part_at(where).model_fields))
        said = f"should be a mapping, such as {{{key}: …}}"
    return Mistake(tree.line(where), f"`{name}` {said}, not {_found(fault['input'], tree, where)}")


def _found(value: object, tree: Tree, where: Where) -> str:
    """The value in question, as it was written."""
    match value:
        case None:
            return "nothing"
        case dict():
            return "a mapping"
        case list():
            return f"a list of {len(value)}"
    return f"{value!r}" if isinstance(value, str) else tree.texts.get(where, repr(value))


def _nearest(where: Where) -> str:
    """The key that was meant, as far as it can be guessed."""
    known = list(_part_at(where[:-1]).model_fields)
    close = difflib.get_close_matches(str(where[-1]), known, n=1, cutoff=0.5)
    if close:
        return f"; did you mean `{close[0]}`?"
    return f"; there are {', '.join(known)}"


def _part_at(where: Iterable[str | int]) -> type[Part]:
    part: type[Part] = Inventory
    for step in where:
        if isinstance(step, str):
            part = next(_parts(part.model_fields[step].annotation))
    return part


def _parts(annotation: Any) -> Iterator[type[Part]]:
    if isinstance(annotation, type) and issubclass(annotation, Part):
        yield annotation
    for argument in get_args(annotation):
        yield from _parts(argument)
