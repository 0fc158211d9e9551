"""What an agent and an instance are started with: one JSON file each, no environment."""

from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from rhinoctl import limits
from rhinoctl.errors import NotRunning
from rhinoctl.ids import InstanceId, WorkerId
from rhinoctl.protocol import codec
from rhinoctl.protocol.jobs import JobSpec
from rhinoctl.wire.credentials import TlsFiles

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSettings:
    """An agent: its cluster and worker, its replica disk, where it listens, and its limits.

    `disks` are directories of further disks that it is to have from the start; those that were
    added while it ran are listed on the first.
    `replay_target_s` is how long an instance that starts anew may apply from the log;
    `replication_bytes_s` how fast checkpoints may be fetched, 0 for no bound, and `scrub_bytes_s`
    how fast the scrub of a job may read, 0 for no scrub. `run` is a short directory for Unix
    sockets; `ballast_bytes` of the disk are kept for an agent's start on a full one; with
    `require_hardlink` it does not start where links are refused; `parent` is the process id with
    which the agent shall end, 0 if it stands alone. `listen` is ``grpc+unix:///path``,
    ``grpc+tcp://127.0.0.1:port`` or, with `tls`, ``grpc+tls://host:port``; over TCP, its instances
    have beacons on the ports after that one (`rhinoctl.wire.beacon`).
    """

    cluster: str
    worker: WorkerId
    disk: str
    run: str
    listen: str
    token_file: str
    cache_bytes: int
    buffer_bytes: int
    replay_target_s: float = limits.REPLAY_TARGET_S
    replication_bytes_s: int = 0
    ballast_bytes: int = limits.BALLAST_BYTES
    scrub_bytes_s: int = limits.SCRUB_BYTES_S
    require_hardlink: bool = False
    parent: int = 0
    disks: tuple[str, ...] = ()
    tls: TlsFiles | None = None

    @property
    def makes_directories(self) -> bool:
        """Whether it makes its directories for state, as a local cluster's agent does. On hosts,
        where it has `tls`, a deployment has made them: one that is missing is not mounted."""
        return self.tls is None


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceSettings:
    """One incarnation of an instance: whom it serves, where it keeps live databases.

    `beacons` is where its beacon may be, a host and the first of the ports to try; without it,
    `listen` is its beacon.
    """

    cluster: str
    job: JobSpec
    instance: InstanceId
    incarnation: int
    worker: WorkerId
    disk: str
    live: str
    listen: str
    token_file: str
    cache_bytes: int
    buffer_bytes: int
    agent_parent: int
    beacons: tuple[str, int] | None = None


def read_settings(kind: type[T], path: str) -> T:
    """Read a settings file. Raises NotRunning, naming the file, if it is not one."""
    try:
        settings: T = codec.loads(kind, Path(path).read_bytes())
    except (OSError, codec.CodecError) as fault:
        raise NotRunning(
            f"cannot read the settings {path}: {fault}", remedy="start it through rhinoctl"
        ) from fault
    return settings


def settings_bytes(settings: AgentSettings | InstanceSettings) -> bytes:
    """The file that `read_settings` reads."""
    return codec.dumps(settings)
