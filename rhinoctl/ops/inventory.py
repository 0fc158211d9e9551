"""The inventory by hand: written to be filled in, and checked."""

import importlib.resources
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import jinja2

from rhinoctl.config.inventory import (
    CONTROLLER,
    FILE,
    Inventory,
    invalid,
    parse_inventory,
    read_inventory,
)
from rhinoctl.errors import InventoryExists, UnwritableDirectory
from rhinoctl.protocol.phrases import workers as named

USUAL_FILE = Path(FILE)
"""Of the commands that are given no other one."""

TEMPLATE = "inventory.yml.j2"


@dataclass(frozen=True, slots=True, kw_only=True)
class InitRequest:
    """What `init` writes: the names that only a person knows."""

    file: Path
    cluster: str
    controller: str
    workers: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class HostView:
    """A host as the inventory means it, defaults and all. `address` is host and port; `slots` and
    `memory_mb` are 0 where there is no bound, `bandwidth_mb_s` where it is as measured."""

    name: str
    host: str
    user: str
    address: str
    rack: str = ""
    slots: int = 0
    memory_mb: int = 0
    cpus: float = 0.0
    bandwidth_mb_s: int = 0
    directories: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class InventoryView:
    """An inventory that is valid, and what is worth a thought about it all the same."""

    file: str
    cluster: str
    controller: HostView
    workers: tuple[HostView, ...]
    remarks: tuple[str, ...]


def init(request: InitRequest) -> InventoryView:
    """Write an inventory with every key explained. Raises InventoryExists and UnwritableDirectory;
    InvalidInventory if a name cannot be one, and then nothing is written."""
    text = _template().render(
        cluster=request.cluster, controller=request.controller, workers=request.workers
    )
    inventory, mistakes = parse_inventory(text)
    if inventory is None:
        raise invalid(request.file, mistakes)
    try:
        with open(request.file, "x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise InventoryExists(
            f"{request.file} is there already, and was not touched",
            remedy="name another file, or check that one: `rhinoctl config validate`",
        ) from None
    except OSError as fault:
        raise UnwritableDirectory(
            f"{request.file} cannot be written: {fault.strerror}",
            remedy="name a file in a directory that you may write to",
        ) from None
    return view_of(request.file, inventory)


def _template() -> jinja2.Template:
    source = importlib.resources.files("rhinoctl_data.templates").joinpath(TEMPLATE)
    environment = jinja2.Environment(
        undefined=jinja2.StrictUndefined, keep_trailing_newline=True, autoescape=False
    )
    return environment.from_string(source.read_text(encoding="utf-8"))


def validate(file: Path) -> InventoryView:
    """Read an inventory. Raises NoInventory and InvalidInventory."""
    return view_of(file, read_inventory(file))


def view_of(file: Path, inventory: Inventory) -> InventoryView:
    """What an inventory means."""
    controller = inventory.controller
    return InventoryView(
        file=str(file),
        cluster=inventory.cluster,
        controller=HostView(
            name=CONTROLLER,
            host=controller.host,
            user=controller.ssh.user or "",
            address=_listening(controller.peer_address, inventory.ports.controller),
            directories=(controller.data_dir,),
        ),
        workers=tuple(
            HostView(
                name=worker.id,
                host=worker.host,
                user=worker.ssh.user or "",
                address=_listening(worker.peer_address, worker.port or 0),
                rack=worker.rack or "",
                slots=worker.slots or 0,
                memory_mb=worker.limits.memory_mb or 0,
                cpus=worker.limits.cpus or 0.0,
                bandwidth_mb_s=worker.bandwidth_mb_s or 0,
                directories=tuple(worker.disks),
            )
            for worker in inventory.workers
        ),
        remarks=tuple(_remarks(inventory)),
    )


def _listening(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _remarks(inventory: Inventory) -> Sequence[str]:
    found = []
    workers = inventory.workers
    if len(workers) == 1:
        found.append("with one worker there is nowhere to keep copies: its loss is the state's")
    racks = {worker.rack for worker in workers}
    if None in racks and len(racks) > 1:
        lone = [worker.id for worker in workers if worker.rack is None]
        found.append(f"{named(lone, 'has', 'have')} no rack: each such counts as a rack of its own")
    for what, file in sorted(_local_files(inventory)):
        if not os.path.exists(os.path.expanduser(file)):
            found.append(f"{what} {file} is not there on this machine")
    return found


def _local_files(inventory: Inventory) -> set[tuple[str, str]]:
    options = [ssh for _, _, ssh in inventory.reached()]
    files = {("the known hosts file", ssh.known_hosts) for ssh in options}
    return files | {("the identity", ssh.identity) for ssh in options if ssh.identity is not None}
