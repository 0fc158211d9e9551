"""The agent as a process: `python -m rhino_agent SETTINGS`."""

import errno
import logging
import os
import resource
import signal
import sys
import time
from dataclasses import replace
from functools import partial
from types import FrameType
from typing import NoReturn

import pyarrow as pa

from rhino_agent.agent import Agent, HostLimits, next_incarnation
from rhino_agent.launcher import ProcessLauncher
from rhino_agent.ports import Ports, event
from rhino_agent.settings import AgentSettings, read_settings
from rhinoctl import limits
from rhinoctl.errors import LinksRefused, RhinoError
from rhinoctl.protocol import codec, views
from rhinoctl.protocol.ports import Address
from rhinoctl.state.disk import LinkFunction, LocalDisk, check_mounted
from rhinoctl.state.disks import Disks, Owner
from rhinoctl.state.links import link_refusal
from rhinoctl.state.locks import AgentLock
from rhinoctl.state.spread import SpreadDisk
from rhinoctl.wire.certificates import read_credentials
from rhinoctl.wire.clock import SystemClock
from rhinoctl.wire.flight import FlightWire
from rhinoctl.wire.points import DISK_POINTS, WIRE_POINTS, with_points


def open_disk(settings: AgentSettings, path: str, number: int, *, fresh: bool) -> LocalDisk:
    """A further disk in a directory (`rhinoctl.state.disks.Opener`): where nothing is mounted
    nothing is made. Raises LinksRefused for a fresh one as `look_at_links` does, and
    DiskNotMounted for one that a deployment has made."""
    if not fresh and not os.path.isdir(path):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
    if not settings.makes_directories and path in map(os.path.realpath, settings.disks):
        check_mounted(path, settings.worker)
    disk = LocalDisk(path, number=number)
    refusal = look_at_links(replace(settings, disk=path)) if fresh else link_refusal(path)
    if refusal is not None:
        disk.announce(refusal)
    return disk


class Stop:
    """Set by SIGTERM, which ends this worker, and by SIGINT, which ends the whole cluster: then
    there is nobody to be told."""

    def __init__(self) -> None:
        self.asked = self.at_once = False
        signal.signal(signal.SIGTERM, self._ask)
        signal.signal(signal.SIGINT, self._ask)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        self.asked = True
        self.at_once |= number == signal.SIGINT


def look_at_links(settings: AgentSettings, *, link: LinkFunction = os.link) -> OSError | None:
    """How hard links are refused on the replica disk, None if they are made. Raises LinksRefused if
    the worker is not to do without them."""
    refusal = link_refusal(settings.disk, link=link)
    if refusal is not None and settings.require_hardlink:
        raise LinksRefused(
            f"the file system of {settings.disk} makes no hard links: {refusal.strerror}",
            remedy="name a directory on another file system, or accept that checkpoints are copies:"
            + (
                " `rhinoctl local up --no-require-hardlink`"
                if settings.makes_directories
                else " `agent.require_hardlink: false` in the inventory, then `rhinoctl deploy`"
            ),
        )
    return refusal


def host_limits(*, links_refused: str = "") -> HostLimits:
    """What this host allows, after the limit of open files was raised as far as it goes: for the
    agent, and for the instances that it starts."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    files = 0 if hard == resource.RLIM_INFINITY else hard
    return HostLimits(open_files=files, memory_bytes=pages, links_refused=links_refused)


def serve(settings: AgentSettings) -> None:
    """Run until told to stop, or until the parent is gone; either ends the instances too.

    An agent that is killed leaves them running, and its successor adopts them. Raises
    DiskNotMounted where a directory is missing that it does not make.
    """
    if not settings.makes_directories:
        check_mounted(settings.disk, settings.worker)
    lock = AgentLock(f"{settings.disk}/agent.lock")
    lock.acquire()
    stop = Stop()
    first = LocalDisk(settings.disk)
    refusal = look_at_links(settings)
    if refusal is not None:
        first.announce(refusal)
    disk = SpreadDisk(first, settings.disk)
    disk = with_points(disk, settings.worker, DISK_POINTS)
    incarnation = next_incarnation(disk)
    owner = Owner(cluster=settings.cluster, worker=settings.worker, incarnation=incarnation)
    disks = Disks(disk, partial(open_disk, settings), owner, settings.disks)
    for lost in disks.lost():
        event("disk-lost", disk=lost.name, path=lost.path, fault=lost.fault)
    credentials = read_credentials(settings.token_file, settings.tls)
    wire = FlightWire(Address(settings.listen), credentials)
    wire = with_points(wire, settings.worker, WIRE_POINTS)
    ports = Ports(
        settings=settings,
        clock=SystemClock(),
        wire=wire,
        disk=disk,
        launcher=ProcessLauncher(),
        incarnation=incarnation,
    )
    host = host_limits(links_refused=errno.errorcode[refusal.errno or 0] if refusal else "")
    agent = Agent(ports, disks, pid=os.getpid(), host=host)
    event("agent-started", worker=settings.worker, pid=os.getpid(), incarnation=incarnation)
    try:
        while not stop.at_once and not agent.left and _wanted(settings.parent):
            if stop.asked:
                agent.leave()
            _turn(agent)
        agent.stop_instances()
    finally:
        wire.close()
        disk.close()
        lock.release()


def _turn(agent: Agent) -> None:
    """One turn of the loop. A fault in it is told and the loop goes on: whoever asked gets no
    answer, which every sender bears, and what the worker has promised is on its disk."""
    try:
        agent.step(limits.AGENT_WAIT_S)
    except Exception:
        logging.exception("agent-turn-failed")
        time.sleep(limits.AGENT_WAIT_S)


def _wanted(parent: int) -> bool:
    return parent == 0 or os.path.exists(f"/proc/{parent}")


def main(argv: list[str]) -> int:
    logging.basicConfig(format="%(asctime)s %(message)s", level=logging.INFO)
    pa.set_cpu_count(1)
    try:
        serve(read_settings(AgentSettings, argv[0]))
    except RhinoError as fault:
        logging.error("refused problem=%s", codec.dumps(views.problem_of(fault)).decode())
        return int(fault.exit_code)
    return 0


def leave(code: int) -> NoReturn:
    """End the process now. An interpreter that ends has pyarrow wait for all requests that are
    served, and one of a peer that has no network any more ends with its deadline only."""
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    leave(main(sys.argv[1:]))
