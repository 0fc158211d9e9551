"""What each host of a cluster is to have, and the steps that are missing to it.

Nothing is asked or changed here: `HostTarget` is what an inventory and the cluster's secrets make
of a host, `Found` what the host said that it has, and `plan_host` the difference as data.

Invariants:

1. A host that is as it is to be has no steps; a step that was done is not planned again. So nothing
   has to be remembered about a deployment that broke off.
2. A process that runs is started anew only if what it was started with is not what it is to have.
3. A directory for state that was there once is never made again: its disk may not be mounted.
4. A host that another cluster has is refused, by that cluster's name.
"""

import hashlib
import posixpath
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from rhinoctl.config.backup import STORE
from rhinoctl.config.inventory import CONTROLLER, Controller, Inventory, Limits, Worker
from rhinoctl.errors import DiskNotMounted, ForeignManifest
from rhinoctl.protocol import codec
from rhinoctl.protocol.placement import Capacity

IDENTITY: Final = "cluster"
"""The file of the installation that says which cluster has it."""

PRIVATE: Final = 0o600
DIRECTORY_MODE: Final = 0o700
INSTALL_MODE: Final = 0o755

WIRE: Final = "wire"
"""The token between controller, agents and drivers; others are of roles on the API."""


class Role(Enum):
    """What a process is to the cluster."""

    CONTROLLER = "controller"
    AGENT = "agent"


MODULES: Final = {Role.CONTROLLER: "rhinoctl.control", Role.AGENT: "rhino_agent"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Directory:
    """A directory of the account that the processes run as; `state`: for what cannot be lost."""

    path: str
    mode: int = DIRECTORY_MODE
    state: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ManagedFile:
    """A file that is wholly ours. What is in it is never shown."""

    path: str
    content: bytes = field(repr=False)
    mode: int = PRIVATE

    @property
    def digest(self) -> str:
        """SHA-256 of what is in it."""
        return hashlib.sha256(self.content).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceTarget:
    """A process that is to run, and what it may take of its host; None: no limit."""

    role: Role
    name: str
    settings: str
    files: tuple[ManagedFile, ...]
    memory_mb: int | None = None
    cpus: float | None = None

    def started_with(self, environment: str) -> str:
        """A digest of all that it depends on: another one needs another start."""
        parts = [environment, self.name, str(self.memory_mb), str(self.cpus)]
        parts += [f"{file.path} {file.digest}" for file in self.files]
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class HostTarget:
    """All that a host is to have. `host` is its name for SSH, `environment` that of the release."""

    host: str
    identity: str
    environment: str
    install_dir: str
    directories: tuple[Directory, ...]
    services: tuple[ServiceTarget, ...]

    def files(self) -> Iterator[ManagedFile]:
        """All files, that with the cluster's identity first."""
        content = f"{self.identity}\n".encode()
        yield ManagedFile(path=posixpath.join(self.install_dir, IDENTITY), content=content)
        for service in self.services:
            yield from service.files

    def service(self, role: Role) -> ServiceTarget | None:
        """The process of a role, if the host has it."""
        return next((each for each in self.services if each.role is role), None)


# --- what a host has -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectoryFound:
    """A directory that is there."""

    owner: str
    mode: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FileFound:
    """A file that is there and can be read."""

    digest: str
    mode: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceFound:
    """A process as it is; `kept`: it would be started again; `started_with` is empty if that is not
    known."""

    running: bool
    kept: bool = True
    started_with: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What is on a host of all that we put there. `user` is the account, `known` are directories
    that a deployment has made or taken, `state` those of state by its record, `current` and
    `environments` are releases."""

    user: str
    identity: str = ""
    current: str = ""
    environments: frozenset[str] = frozenset()
    known: frozenset[str] = frozenset()
    state: frozenset[str] = frozenset()
    directories: Mapping[str, DirectoryFound] = field(default_factory=dict)
    files: Mapping[str, FileFound] = field(default_factory=dict)
    services: Mapping[Role, ServiceFound] = field(default_factory=dict)


# --- steps ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class MakeDirectories:
    """Make them for the account, or take those that are there."""

    directories: tuple[Directory, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class InstallEnvironment:
    """Upload a release and unpack it beside the others."""

    environment: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteFiles:
    """Write settings, certificates and tokens."""

    files: tuple[ManagedFile, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchEnvironment:
    """Let the installation's link name another release; what runs is not touched by it."""

    environment: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StartService:
    """Define a process and start it; `anew`: it runs, and is ended first. `started_with` is kept
    once that is done."""

    service: ServiceTarget
    started_with: str
    anew: bool


Step = MakeDirectories | InstallEnvironment | WriteFiles | SwitchEnvironment | StartService


@dataclass(frozen=True, slots=True, kw_only=True)
class HostPlan:
    """What is missing on a host, in the order in which it is done."""

    target: HostTarget
    steps: tuple[Step, ...]

    @property
    def host(self) -> str:
        return self.target.host

    @property
    def restarts(self) -> bool:
        """Whether something is ended that runs."""
        return any(isinstance(step, StartService) and step.anew for step in self.steps)


def plan_host(target: HostTarget, found: Found) -> HostPlan:
    """The steps from what there is to what is to be. Raises ForeignManifest for a host of another
    cluster, and DiskNotMounted."""
    check_identity(target.host, target.install_dir, target.identity, found.identity)
    return HostPlan(target=target, steps=tuple(_steps(target, found)))


def check_identity(host: str, install_dir: str, identity: str, found: str) -> None:
    """Raise ForeignManifest if what is installed is another cluster's."""
    if found not in ("", identity):
        raise ForeignManifest(
            f"{host}: {install_dir} is of cluster {found}, and this one is {identity}",
            remedy="name another `install_dir`, or take the host out of one of the two inventories;"
            " or remove the other one with its state, `rhinoctl undeploy --wipe-data`, where it was"
            " deployed; see docs/operations/install.md",
        )


def started_from(target: HostTarget, found: Found, role: Role) -> str:
    """The release that a process was started from, if all else that it was started with is what it
    is to have; empty if not."""
    service, there = target.service(role), found.services.get(role)
    if service is None or there is None:
        return ""
    releases = (target.environment, *sorted(found.environments))
    return next((r for r in releases if service.started_with(r) == there.started_with), "")


def differs_besides(plan: HostPlan, found: Found) -> Iterator[str]:
    """What a host lacks besides a release, for people; nothing if a release is all."""
    for step in plan.steps:
        if isinstance(step, MakeDirectories | WriteFiles):
            yield words(step)
        if isinstance(step, StartService) and not started_from(
            plan.target, found, step.service.role
        ):
            yield f"{words(step)} with other settings"


def _steps(target: HostTarget, found: Found) -> Iterator[Step]:
    missing = tuple(_directories(target, found))
    if missing:
        yield MakeDirectories(directories=missing)
    if target.environment not in found.environments:
        yield InstallEnvironment(environment=target.environment)
    files = tuple(
        file
        for file in target.files()
        if found.files.get(file.path) != FileFound(digest=file.digest, mode=file.mode)
    )
    if files:
        yield WriteFiles(files=files)
    if found.current != target.environment:
        yield SwitchEnvironment(environment=target.environment)
    for service in target.services:
        started_with = service.started_with(target.environment)
        there = found.services.get(service.role, ServiceFound(running=False))
        other = there.started_with != started_with
        if other or not (there.running and there.kept):
            anew = other and there.running
            yield StartService(service=service, started_with=started_with, anew=anew)


def _directories(target: HostTarget, found: Found) -> Iterator[Directory]:
    """Those that are not there, or are another's. What a disk's directory is to others is left to
    whoever made it, as long as it is the account's."""
    for each in target.directories:
        there = found.directories.get(each.path)
        if there is None and each.state and each.path in found.known:
            raise DiskNotMounted(
                f"{target.host}: {each.path} was there and is gone",
                remedy="mount its disk; if its state is lost for good, make the directory by hand:"
                " the copies of other workers take over what was on it",
            )
        if there is None or there.owner != found.user or _other(each, there, found):
            yield each


def _other(wanted: Directory, there: DirectoryFound, found: Found) -> bool:
    """Whether the account's own directory is not as it is to be, or not known as one of ours."""
    return wanted.path not in found.state if wanted.state else there.mode != wanted.mode


def words(step: Step) -> str:
    """A step, for people."""
    match step:
        case MakeDirectories(directories=directories):
            return f"prepare {', '.join(each.path for each in directories)}"
        case InstallEnvironment(environment=environment):
            return f"install release {environment}"
        case WriteFiles(files=files):
            return f"write {', '.join(_short(files))}"
        case SwitchEnvironment(environment=environment):
            return f"switch to release {environment}"
        case StartService(service=service, anew=anew):
            return f"{'restart' if anew else 'start'} {service.role.value}"


def _short(files: Sequence[ManagedFile]) -> Iterator[str]:
    """Names of files, by the directory that they are in."""
    below: dict[str, list[str]] = {}
    for file in files:
        directory, name = posixpath.split(file.path)
        below.setdefault(posixpath.basename(directory), []).append(name)
    for directory, names in below.items():
        yield f"{directory}/{names[0]}" if len(names) == 1 else f"{directory}/{{{','.join(names)}}}"


# --- what an inventory makes of a host -----------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Papers:
    """What one process shows to others: certificates as PEM, tokens by role (`WIRE` for all)."""

    ca: bytes
    certificate: bytes
    key: bytes = field(repr=False)
    tokens: Mapping[str, bytes] = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A host, by the name that it is reached by: with the controller, an agent, or both."""

    host: str
    controller: Controller | None = None
    worker: Worker | None = None

    @property
    def sudo(self) -> bool:
        """Whether directories and services are made by root."""
        has = self.worker or self.controller
        return has is not None and has.ssh.sudo

    @property
    def roles(self) -> tuple[Role, ...]:
        """The controller first, which the agents report to."""
        has = ((Role.CONTROLLER, self.controller), (Role.AGENT, self.worker))
        return tuple(role for role, there in has if there is not None)

    def state(self) -> tuple[str, ...]:
        """Its directories for state."""
        store = () if self.controller is None else (self.controller.data_dir,)
        return (*store, *(() if self.worker is None else self.worker.disks))


def places(inventory: Inventory) -> dict[str, Place]:
    """All hosts by name, the controller's first; it may be a worker's, too."""
    controller = inventory.controller
    at = (controller.host.lower(), controller.ssh.port)
    found: dict[str, Place] = {}
    for worker in inventory.workers:
        both = (worker.host.lower(), worker.ssh.port) == at
        place = Place(host=worker.id, worker=worker, controller=controller if both else None)
        found = {worker.id: place, **found} if both else {**found, worker.id: place}
    if all(place.controller is None for place in found.values()):
        found = {CONTROLLER: Place(host=CONTROLLER, controller=controller), **found}
    return found


def names_of(place: Place, role: Role) -> tuple[str, ...]:
    """All names and addresses that others may know a process by, for its certificate."""
    has: Controller | Worker | None = place.controller if role is Role.CONTROLLER else place.worker
    if has is None:
        return ()
    return tuple(dict.fromkeys([has.peer_address, has.host]))


def holder(place: Place, role: Role) -> str:
    """The name in a process's certificate."""
    return place.worker.id if role is Role.AGENT and place.worker else CONTROLLER


def url(kind: str, host: str, port: int) -> str:
    """An address as URL; IPv6 in brackets."""
    return f"{kind}://[{host}]:{port}" if ":" in host else f"{kind}://{host}:{port}"


def everywhere(kind: str, address: str, port: int) -> str:
    """Where a process listens that others reach by `address`: on all interfaces."""
    return url(kind, "::" if ":" in address else "0.0.0.0", port)


def controller_url(inventory: Inventory) -> str:
    """How the controller is reached."""
    controller = inventory.controller
    return url("https", controller.peer_address, inventory.ports.controller)


def agent_url(inventory: Inventory, worker: Worker) -> str:
    """How an agent is reached."""
    return url("grpc+tls", worker.peer_address, agent_port(inventory, worker))


def agent_port(inventory: Inventory, worker: Worker) -> int:
    """Where an agent listens."""
    return worker.port or inventory.ports.agent


def target_of(
    inventory: Inventory,
    place: Place,
    *,
    identity: str,
    environment: str,
    papers: Mapping[Role, Papers],
    bandwidths: Mapping[str, float] | None = None,
    addresses: Mapping[str, str] | None = None,
) -> HostTarget:
    """All that a host is to have; `bandwidths` are bytes a second by worker, where known, and
    `addresses` those of workers that stay where they are, whatever the inventory says."""
    return HostTarget(
        host=place.host,
        identity=identity,
        environment=environment,
        install_dir=inventory.install_dir,
        directories=directories_of(inventory, place),
        services=tuple(
            _service(
                *(inventory, place, role, identity, papers[role]),
                (bandwidths or {}, addresses or {}),
            )
            for role in place.roles
        ),
    )


def directories_of(inventory: Inventory, place: Place) -> tuple[Directory, ...]:
    """The directories of a host, that of the installation first."""
    top = inventory.install_dir
    directories = [Directory(path=top, mode=INSTALL_MODE), Directory(path=run_directory(inventory))]
    directories += [Directory(path=posixpath.join(top, role.value)) for role in place.roles]
    directories += [Directory(path=path, state=True) for path in place.state()]
    return tuple(directories)


def _service(
    inventory: Inventory,
    place: Place,
    role: Role,
    identity: str,
    papers: Papers,
    known: tuple[Mapping[str, float], Mapping[str, str]],
) -> ServiceTarget:
    home = posixpath.join(inventory.install_dir, role.value)
    paths = {name: posixpath.join(home, name) for name in ("ca.crt", "tls.crt", "tls.key")}
    tokens = {role: posixpath.join(home, f"{role}.token") for role in papers.tokens}
    tls = {"ca": paths["ca.crt"], "certificate": paths["tls.crt"], "key": paths["tls.key"]}
    shared = {"cluster": identity, "token_file": tokens[WIRE], "tls": tls}
    if role is Role.CONTROLLER and place.controller is not None:
        roles = {role: path for role, path in tokens.items() if role != WIRE}
        own = _controller_settings(inventory, place.controller, roles, *known)
    else:
        assert place.worker is not None
        own = _agent_settings(inventory, place.worker)
    settings = settings_path(inventory, role)
    contents = {
        settings: codec.dumps({**shared, **own}),
        paths["ca.crt"]: papers.ca,
        paths["tls.crt"]: papers.certificate,
        paths["tls.key"]: papers.key,
        **{tokens[role]: content for role, content in papers.tokens.items()},
    }
    bounds = bounds_of(place, role)
    return ServiceTarget(
        role=role,
        name=service_name(inventory, role),
        settings=settings,
        files=tuple(ManagedFile(path=path, content=data) for path, data in contents.items()),
        memory_mb=bounds.memory_mb,
        cpus=bounds.cpus,
    )


def service_name(inventory: Inventory, role: Role) -> str:
    """What a process is called among the services of its host."""
    return f"rhinoctl-{inventory.cluster}-{role.value}"


def settings_path(inventory: Inventory, role: Role) -> str:
    """The file that a process is started with."""
    return posixpath.join(inventory.install_dir, role.value, "settings.json")


def run_directory(inventory: Inventory) -> str:
    """Sockets, and what is known of processes and their logs; it outlives a restart of the host."""
    return posixpath.join(inventory.install_dir, "run")


def bounds_of(place: Place, role: Role) -> Limits:
    """What a process may take of its host."""
    return place.worker.limits if role is Role.AGENT and place.worker is not None else Limits()


def _controller_settings(
    inventory: Inventory,
    controller: Controller,
    tokens: Mapping[str, str],
    bandwidths: Mapping[str, float],
    addresses: Mapping[str, str],
) -> Mapping[str, object]:
    """The fields of `rhinoctl.control.settings.ControllerSettings` that only it has."""
    address = controller.peer_address
    return {
        "store": posixpath.join(controller.data_dir, STORE),
        "listen": everywhere("https", address, inventory.ports.controller),
        "tokens": tokens,
        "workers": {
            worker.id: addresses.get(worker.id) or agent_url(inventory, worker)
            for worker in inventory.workers
        },
        "capacities": {
            worker.id: Capacity(
                instances=worker.slots, rack=worker.rack, bandwidth=bandwidths.get(worker.id)
            )
            for worker in inventory.workers
        },
        "lease_s": controller.lease_s,
        "auto_failover": controller.auto_failover,
    }


def _agent_settings(inventory: Inventory, worker: Worker) -> Mapping[str, object]:
    """The fields of `rhino_agent.settings.AgentSettings` that only it has."""
    agent = inventory.agent
    first, *others = worker.disks
    return {
        "worker": worker.id,
        "disk": first,
        "disks": others,
        "run": run_directory(inventory),
        "listen": everywhere("grpc+tls", worker.peer_address, agent_port(inventory, worker)),
        "cache_bytes": agent.cache_mb << 20,
        "buffer_bytes": agent.buffer_mb << 20,
        "replay_target_s": agent.replay_target_s,
        "replication_bytes_s": agent.replication_mb_s << 20,
        "require_hardlink": agent.require_hardlink,
    }
