"""Where the controller looks for workers, from one deployment to the next.

It has their addresses in its settings, agents listen where theirs say. Only a deployment of both
may change one: whoever is left as it is has to be found where it is.
"""

from collections.abc import Collection, Mapping
from pathlib import PurePosixPath

from rhinoctl.config.deployment import Role, agent_url, settings_path
from rhinoctl.config.inventory import Inventory
from rhinoctl.errors import CommandFailed, NotTried, RhinoError
from rhinoctl.ops.deployed import Deployed
from rhinoctl.protocol import codec
from rhinoctl.remote.fleet import Fleet
from rhinoctl.remote.host import Host, read_file


def deployed_addresses(cluster: Deployed, fleet: Fleet[Host]) -> dict[str, str]:
    """By which addresses the controller was deployed to find workers; none if it cannot be asked,
    or before anything was deployed."""
    if not cluster.home.members():
        return {}
    name = cluster.controller_s_host
    path = PurePosixPath(settings_path(cluster.inventory, Role.CONTROLLER))

    def ask(host: Host) -> dict[str, str]:
        try:
            workers = codec.loads_image(read_file(host, path)).get("workers")
        except (CommandFailed, codec.CodecError):
            return {}
        return dict(workers) if isinstance(workers, dict) else {}

    answer = fleet.each(ask, [name])[name]
    return {} if isinstance(answer, RhinoError) else answer


def changed(inventory: Inventory, known: Mapping[str, str]) -> dict[str, str]:
    """The workers that are known by another address than the inventory's, each with it."""
    new = {worker.id: agent_url(inventory, worker) for worker in inventory.workers}
    return {name: there for name, there in known.items() if there and new.get(name, there) != there}


def not_without_controller(host: str, there: str, others: Collection[str]) -> NotTried:
    """The error about an agent that its controller would look for elsewhere."""
    return NotTried(
        f"{host}: its address changes, and the controller, which looks for it at {there}, is not"
        " deployed to",
        remedy=f"`rhinoctl deploy --limit {','.join(others)}`, once the controller's host is fit",
    )
