"""Hosts for tests: network namespaces at a bridge, whose links can be cut and mended.

They need root and `ip` (Debian: iproute2). Only processes are on them: the disk is this machine's.
"""

import os
import subprocess
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from rhinoctl.config import cluster as config
from rhinoctl.ids import WorkerId
from rhinoctl.ops import local
from rhinoctl.remote.local import Processes, ProcessName, module_argv

PORT = 7421


class Hosts:
    """So many hosts with an address each, in a network of their own."""

    def __init__(self, count: int) -> None:
        self._tag = f"rh{os.getpid() % 100_000}"
        self._net = f"10.231.{os.getpid() % 250}"
        self._bridge = f"{self._tag}b"
        self.names = tuple(f"{self._tag}h{number}" for number in range(1, count + 1))
        # Without an address of its own a bridge takes that of a port, which would then get what a
        # host sends to the bridge although it was cut off.
        _ip("link", "add", self._bridge, "address", "02:00:00:00:00:fe", "type", "bridge")
        try:
            _ip("addr", "add", f"{self._net}.1/24", "dev", self._bridge)
            _ip("link", "set", self._bridge, "up")
            for name in self.names:
                self._add(name)
        except BaseException:
            self.close()
            raise

    def _add(self, name: str) -> None:
        _ip("netns", "add", name)
        _ip("link", "add", _near(name), "type", "veth", "peer", "name", "eth0", "netns", name)
        _ip("-n", name, "addr", "add", f"{self.address(name)}/24", "dev", "eth0")
        for link in ("lo", "eth0"):
            _ip("-n", name, "link", "set", link, "up")
        _ip("link", "set", _near(name), "up")
        self.mend(name)

    @property
    def gateway(self) -> str:
        """This machine's address at the bridge."""
        return f"{self._net}.1"

    def address(self, name: str) -> str:
        """The host's IPv4 address."""
        return f"{self._net}.{10 + self.names.index(name)}"

    def cut(self, name: str) -> None:
        """From now on what is sent to the host or by it vanishes, without a word to anybody."""
        _ip("link", "set", _near(name), "nomaster")

    def mend(self, name: str) -> None:
        """Connect the host (again)."""
        _ip("link", "set", _near(name), "master", self._bridge)

    def slow(self, name: str, mbit: int) -> None:
        """From now on so many megabits a second get to the host, and as many away from it, as over
        a link that is no faster; what comes faster is dropped. 0: as fast as this machine can."""
        for netns, link in ((), _near(name)), (("-n", name), "eth0"):
            _tc(*netns, "qdisc", "del", "dev", link, "root", check=False)
            if mbit:
                shape = ("rate", f"{mbit}mbit", "burst", "64kb", "latency", "100ms")
                _tc(*netns, "qdisc", "add", "dev", link, "root", "tbf", *shape)

    def close(self) -> None:
        """Remove the hosts; what runs on them has to be ended before."""
        for name in self.names:
            _ip("netns", "del", name, check=False)
            _ip("link", "del", _near(name), check=False)
        _ip("link", "del", self._bridge, check=False)


class HostProcesses(Processes):
    """Starts each worker's agent, and so its instances, on the worker's host."""

    def __init__(self, hosts: Mapping[WorkerId, str]) -> None:
        super().__init__()
        self._hosts = hosts

    def start_module(self, module: str, settings: str, *, log: Path) -> ProcessName:
        host = self._hosts.get(WorkerId(Path(settings).stem))
        on = ("ip", "netns", "exec", host) if host else ()
        return self.start((*on, *module_argv(module, settings)), log=log)


def hosts_of_cluster(directory: Path, hosts: Hosts) -> Mapping[WorkerId, str]:
    """Write the file of a cluster that is not up yet, with a worker on each host; who is where."""
    directory.mkdir(parents=True)
    cluster = config.new_cluster(directory, cache_mb=local.CACHE_MB, buffer_mb=local.BUFFER_MB)
    cluster = config.with_workers(cluster, directory, len(hosts.names))
    placed = dict(zip(cluster.workers, hosts.names, strict=True))
    workers = {
        worker: replace(entry, address=f"grpc+tcp://{hosts.address(placed[worker])}:{PORT}")
        for worker, entry in cluster.workers.items()
    }
    config.write_cluster(directory, replace(cluster, workers=workers))
    return placed


def _near(name: str) -> str:
    """This machine's end of a host's link."""
    return f"{name}v"


def _tc(*arguments: str, check: bool = True) -> None:
    subprocess.run(["tc", *arguments], check=check, capture_output=True, timeout=10)


def _ip(*arguments: str, check: bool = True) -> None:
    ended = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
    if check and ended.returncode:
        raise RuntimeError(f"ip {' '.join(arguments)}: {ended.stderr.strip()}")
