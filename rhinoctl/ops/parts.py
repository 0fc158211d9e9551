"""What each host of an inventory is to be, as its checks know it."""

from typing import Final

from rhinoctl.config.deployment import agent_port
from rhinoctl.config.inventory import CONTROLLER, Inventory
from rhinoctl.ops.host_checks import Part

MB: Final = 1 << 20


def parts_of(inventory: Inventory) -> dict[str, Part]:
    """What each host is to be; a controller on a worker's host is a part of that one."""
    controller = inventory.controller
    port, data = inventory.ports.controller, controller.data_dir
    instance = (inventory.agent.cache_mb + inventory.agent.buffer_mb) * MB
    parts: dict[str, Part] = {}
    at, shared = (controller.host.lower(), controller.ssh.port), False
    for worker in inventory.workers:
        both = (worker.host.lower(), worker.ssh.port) == at
        shared |= both
        parts[worker.id] = Part(
            name=worker.id,
            disks=(*worker.disks, *((data,) if both else ())),
            install_dir=inventory.install_dir,
            ports=(agent_port(inventory, worker), *((port,) if both else ())),
            sudo=worker.ssh.sudo,
            is_worker=True,
            memory_bytes=(worker.limits.memory_mb or 0) * MB,
            cpus=worker.limits.cpus or 0.0,
            instance_bytes=instance,
            slots=worker.slots or 1,
            require_hardlink=inventory.agent.require_hardlink,
        )
    if shared:
        return parts
    alone = Part(
        name=CONTROLLER,
        disks=(data,),
        install_dir=inventory.install_dir,
        ports=(port,),
        sudo=controller.ssh.sudo,
        is_worker=False,
    )
    return {CONTROLLER: alone, **parts}
