"""What a controller is started with: one JSON file."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from rhinoctl import limits
from rhinoctl.control.roles import Role
from rhinoctl.errors import NotRunning
from rhinoctl.ids import WorkerId
from rhinoctl.protocol import codec
from rhinoctl.protocol.placement import Capacity
from rhinoctl.wire.credentials import TlsFiles


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerSettings:
    """A controller: its cluster, its store, where it listens, and the inventory of workers.

    `listen` is ``unix:///path``, ``http://127.0.0.1:port`` or, with `tls`, ``https://host:port``,
    where the addresses of workers are ``grpc+tls://host:port``. `token_file` has the token of the
    wire, which the agents know. `tokens` has the file of the API's token of each role; without any,
    the wire's token is the operator's. `lease_s` and `agent_restart_s` are
    those of `rhinoctl.protocol.liveness`, `auto_failover` says whether to act on its verdicts
    without being asked; `capacities` are what workers can take, where it is known; `parent` is the
    process id with which the controller shall end, 0 if it stands alone.
    """

    cluster: str
    store: str
    listen: str
    token_file: str
    workers: Mapping[WorkerId, str]
    lease_s: float = limits.LEASE_OF_WORKER_S
    agent_restart_s: float = limits.AGENT_RESTART_S
    auto_failover: bool = True
    capacities: Mapping[WorkerId, Capacity] = field(default_factory=dict)
    parent: int = 0
    tls: TlsFiles | None = None
    tokens: Mapping[Role, str] = field(default_factory=dict)

    @property
    def makes_directories(self) -> bool:
        """Whether it makes its store's directory, as a local cluster's controller does. On hosts,
        where it has `tls`, a deployment has made it: one that is missing is not mounted."""
        return self.tls is None


def read_settings(path: str) -> ControllerSettings:
    """Read a settings file. Raises NotRunning, naming the file, if it is not one."""
    try:
        settings: ControllerSettings = codec.loads(ControllerSettings, Path(path).read_bytes())
    except (OSError, codec.CodecError) as fault:
        raise NotRunning(
            f"cannot read the settings {path}: {fault}", remedy="start it through rhinoctl"
        ) from fault
    return settings
