"""What is seen of a deployment while it is on its way, and once it has ended."""

from dataclasses import dataclass
from typing import Protocol

from rhinoctl.config.runs import HostState


@dataclass(frozen=True, slots=True, kw_only=True)
class HostView:
    """A host of a deployment: its steps, and one reason with its remedy if it was not done.
    `restarts`: a process that runs is, or was, ended and started; `seconds`: when it was done."""

    host: str
    roles: tuple[str, ...]
    state: HostState
    steps: tuple[str, ...] = ()
    restarts: bool = False
    code: str = ""
    reason: str = ""
    remedy: str = ""
    seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DeployView:
    """A deployment, planned or done. `run` names its account, empty if nothing had to be done;
    `unwell` says what is not well though every host was done: what an upgrade left that was well
    before, or that workers refuse the controller."""

    file: str
    cluster: str
    identity: str
    controller: str
    hosts: tuple[HostView, ...]
    run: str = ""
    dry_run: bool = False
    seconds: float = 0.0
    unwell: tuple[str, ...] = ()

    def of(self, *states: HostState) -> list[HostView]:
        """The hosts in some states."""
        return [host for host in self.hosts if host.state in states]


class Progress(Protocol):
    """Who hears how far it is; called from several threads."""

    def say(self, text: str) -> None:
        """Something about all of it."""

    def began(self, run: str) -> None:
        """It is being carried out, under this name."""

    def at(self, host: str, what: str) -> None:
        """A step on a host has begun."""

    def ended(self, host: HostView) -> None:
        """A host has come to its end."""
