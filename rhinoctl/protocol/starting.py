"""What to type to have a process of a cluster back, deployed or local."""

from collections.abc import Iterable
from typing import Final

CONTROLLER: Final = "controller"
"""The controller's name among processes and hosts; an agent's is its worker's."""

LOCAL: Final = "`rhinoctl local up`"
"""It starts whatever is missing."""

ENCRYPTED: Final = frozenset({"https", "grpc+tls"})
"""How processes are reached that were deployed; those of a local cluster have no certificates."""


def is_deployed(address: str) -> bool:
    """Whether the process at an address was put there by a deployment."""
    return address.partition("://")[0] in ENCRYPTED


def start_again(names: Iterable[str], address: str = "") -> str:
    """The command for processes of one cluster; the address of any tells of which kind that is.
    Without one, the commands for both."""
    deployed = f"`rhinoctl start {' '.join(names)}`"
    if not address:
        return f"{deployed} (local cluster: {LOCAL})"
    return deployed if is_deployed(address) else LOCAL


def start_silent(name: str, address: str = "") -> str:
    """The same for one that does not answer: it may run and hang, which a start leaves as it is."""
    started = start_again([name], address)
    hung = "one that runs and hangs:"
    if not address:
        local = "`rhinoctl local down`, then `local up`"
        return f"{started}; {hung} `rhinoctl restart {name}` (local cluster: {local})"
    if is_deployed(address):
        return f"{started}; {hung} `rhinoctl restart {name}`"
    return f"{started}; {hung} `rhinoctl local down` before it"
