"""The processes of a cluster as services of their hosts."""

from dataclasses import dataclass
from typing import Final

from rhinoctl.config.deployment import (
    MODULES,
    Place,
    Role,
    bounds_of,
    run_directory,
    service_name,
    settings_path,
)
from rhinoctl.config.inventory import Inventory
from rhinoctl.errors import ServiceFailed
from rhinoctl.ops.endings import problem_in
from rhinoctl.remote.facts import HostFacts
from rhinoctl.remote.host import Host
from rhinoctl.remote.packages import python_of
from rhinoctl.remote.services import Keeper, Service, choose_kind, keeper_of
from rhinoctl.remote.supervised import Log, ServiceState

PATIENCE_S: Final = 15.0
"""An agent's farewell takes seconds, and its instances end with it; what does not is killed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """A process that is, or is to be, kept running on a host; all that is asked of it can be
    repeated, and raises HostError's leaves."""

    host: str
    role: Role
    service: Service
    facts: HostFacts
    sudo: bool

    @property
    def kind(self) -> str:
        """Who keeps it running."""
        return choose_kind(self.facts, sudo=self.sudo).value

    def keeper(self, host: Host) -> Keeper:
        """Who keeps the services of its host."""
        return keeper_of(host, self.facts, sudo=self.sudo)

    def state(self, host: Host) -> ServiceState:
        """How it is."""
        return self.keeper(host).state(self.service)

    def start(self, host: Host) -> None:
        """Start it, as it is to be from now on."""
        keeper = self.keeper(host)
        keeper.define(self.service)
        keeper.start(self.service)

    def stop(self, host: Host) -> None:
        """End it with whatever it has started."""
        self.keeper(host).stop(self.service, PATIENCE_S)

    def remove(self, host: Host) -> None:
        """End it, and remove what was written to keep it running."""
        self.keeper(host).remove(self.service, PATIENCE_S)

    def logs(self, host: Host, lines: int, after: str = "") -> Log:
        """The last lines of its log; after a cursor, those that came since."""
        return self.keeper(host).logs(self.service, lines, after)

    def ended(self, state: ServiceState) -> ServiceFailed:
        """The error about one that does not stay, with what it has told itself."""
        how = "" if state.exit_code is None else f" (exit code {state.exit_code})"
        told, logs = problem_in(state.last_line), f"`rhinoctl logs {self.host}`"
        said = f"{told.message} ({told.code})" if told else state.last_line or "it said nothing"
        return ServiceFailed(
            f"{self.host}: the {self.role.value} does not stay{how}: {said}",
            remedy=f"{told.remedy}; see {logs}"
            if told
            else f"see {logs}, mend the cause, and repeat the command",
        )


def process_of(inventory: Inventory, place: Place, role: Role, facts: HostFacts) -> Process:
    """The process of a role on a host. Raises UnsupportedHost if there is no Python for it."""
    bounds = bounds_of(place, role)
    return Process(
        host=place.host,
        role=role,
        facts=facts,
        sudo=place.sudo,
        service=Service(
            name=service_name(inventory, role),
            module=MODULES[role],
            settings=settings_path(inventory, role),
            install_dir=inventory.install_dir,
            run_dir=run_directory(inventory),
            python=python_of(facts)[1],
            user=facts.user,
            memory_mb=bounds.memory_mb,
            cpus=bounds.cpus,
        ),
    )
