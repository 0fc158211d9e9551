"""`rhinoctl check`: every host of an inventory is looked at, and nothing on it is changed."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rhinoctl import limits
from rhinoctl.config.inventory import CONTROLLER, Inventory, read_inventory
from rhinoctl.errors import Exit, RhinoError
from rhinoctl.ops.host_checks import (
    PYTHON,
    HostFinding,
    Part,
    Verdict,
    judge_fleet,
    judge_host,
    judge_network,
)
from rhinoctl.ops.hosts import fleet_of
from rhinoctl.remote.facts import HostFacts, ask_facts
from rhinoctl.remote.host import Host
from rhinoctl.remote.network import Stop, measure
from rhinoctl.remote.ssh import Login

MB = 1 << 20

PROBE_AFTER = limits.BEACON_PORTS
"""The port on which the network is measured, after the agent's: the last that has to be open
between workers, and free unless a host runs as many instances."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckView:
    """What was found: for each host its checks in order, or one that says why there are none.
    `looked_at` are the hosts that answered."""

    file: str
    cluster: str
    hosts: tuple[str, ...]
    looked_at: tuple[str, ...]
    findings: tuple[HostFinding, ...]

    def count(self, verdict: Verdict) -> int:
        """How many findings are of a kind."""
        return sum(finding.verdict is verdict for finding in self.findings)


def check(file: Path, login: Login) -> CheckView:
    """Look at all hosts at once. Raises NoInventory and InvalidInventory."""
    inventory = read_inventory(file)
    parts = parts_of(inventory)

    def look(host: Host) -> HostFacts:
        part = parts[host.name]
        return ask_facts(host, (part.install_dir, *part.disks), part.ports)

    with fleet_of(inventory, login) as fleet:
        answers = fleet.each(look, parts)
        facts = {name: each for name, each in answers.items() if isinstance(each, HostFacts)}
        stretches = measure(fleet, stops_of(inventory, facts))
    return CheckView(
        file=str(file),
        cluster=inventory.cluster,
        hosts=tuple(parts),
        looked_at=tuple(facts),
        findings=(*_judged(parts, answers), *judge_fleet(facts), *judge_network(stretches)),
    )


def stops_of(inventory: Inventory, facts: Mapping[str, HostFacts]) -> tuple[Stop, ...]:
    """The workers between which the network is measured: those that can run what measures it."""
    stops = []
    for worker in inventory.workers:
        known = facts.get(worker.id)
        newest = max(known.pythons, default=None) if known is not None else None
        if newest is not None and newest[0] >= PYTHON:
            port = min((worker.port or inventory.ports.agent) + PROBE_AFTER, 65535)
            address = worker.address or worker.host
            stops.append(Stop(name=worker.id, python=newest[1], address=address, port=port))
    return tuple(stops)


def _judged(
    parts: Mapping[str, Part], answers: Mapping[str, HostFacts | RhinoError]
) -> tuple[HostFinding, ...]:
    found: list[HostFinding] = []
    for name, answer in answers.items():
        if isinstance(answer, RhinoError):
            found.append(
                HostFinding(
                    host=name,
                    check="ssh",
                    verdict=Verdict.FAIL,
                    seen=f"{answer.message.removeprefix(f'{name}: ')} ({answer.code})",
                    remedy=answer.remedy,
                )
            )
        else:
            found += judge_host(parts[name], answer)
    return tuple(found)


def exit_of(view: CheckView) -> Exit:
    """Hosts that could not be looked at are a partial failure; a check that failed is unhealthy."""
    if len(view.looked_at) < len(view.hosts):
        return Exit.PARTIAL
    return Exit.DEGRADED if view.count(Verdict.FAIL) else Exit.DONE


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
            ports=(worker.port or inventory.ports.agent, *((port,) if both else ())),
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
