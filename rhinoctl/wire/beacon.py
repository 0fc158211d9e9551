"""Whether a process lives, told by a socket of its that listens (docs/protocol/failover.md).

The kernel takes connections to it for as long as the process has it open, however busy or stopped
it is. Nothing is said over the connection, so it needs no TLS and gives nothing away.

An instance of an agent on a Unix socket has its own as its beacon. Where the agent listens on TCP,
the controller is on another host, and each of its instances opens a port for it.
"""

import socket
import threading
from collections.abc import Callable
from time import monotonic, sleep
from urllib.parse import urlsplit

from rhinoctl.limits import BEACON_PORTS

CONNECT_S = 0.3
"""A host that is there answers a connection within milliseconds; one that is not says nothing."""

SILENT_S = 1.0
"""A host that said nothing is not asked again for so long: whoever asks has other things to do."""

BACKLOG = 128
"""Questions that wait while the process is stopped."""

PORTS = 65_536
"""Those of a host end before this one."""

PAUSE_S = 1.0
"""After a connection that could not be taken, for want of file descriptors, say."""


def ports_after(listen: str) -> tuple[str, int] | None:
    """The host and the first port for beacons of an agent that listens there; None on a Unix
    socket. After port 0, which is any, comes any."""
    parts = urlsplit(listen)
    if parts.scheme not in ("grpc+tcp", "grpc+tls") or parts.hostname is None:
        return None
    return parts.hostname, parts.port + 1 if parts.port else 0


def light(host: str, first: int) -> str:
    """Listen, for as long as this process lives, on the first free one of `BEACON_PORTS` ports.

    Returns the beacon without its host, ``tcp://:port``: others know that by a name of their own.
    Empty if none is free.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for port in range(first, min(first + BEACON_PORTS, PORTS)):
        listening = socket.socket(family, socket.SOCK_STREAM)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((host, port))
            listening.listen(BACKLOG)
        except OSError:
            listening.close()
            continue
        threading.Thread(target=_take, args=(listening,), name="beacon", daemon=True).start()
        return f"tcp://:{listening.getsockname()[1]}"
    return ""


def _take(listening: socket.socket) -> None:
    """Hang up on whoever has connected, so that the queue does not fill up."""
    while True:
        try:
            listening.accept()[0].close()
        except OSError:
            sleep(PAUSE_S)


def reached(beacon: str, agent: str) -> str:
    """A beacon as the controller reaches it, by the host of its agent's address."""
    if not beacon.startswith("tcp://:"):
        return beacon
    host = urlsplit(agent).hostname or ""
    host = f"[{host}]" if ":" in host else host
    return f"tcp://{host}:{beacon.removeprefix('tcp://:')}"


class Looking:
    """Asks beacons, for one loop: `ask` is `listening`."""

    def __init__(
        self,
        ask: Callable[[str], bool | None] | None = None,
        now: Callable[[], float] = monotonic,
    ) -> None:
        self._ask = ask or listening
        self._now = now
        self._silent: dict[str, float] = {}

    def __call__(self, address: str) -> bool | None:
        """As `listening`; a host that said nothing is taken to say nothing for `SILENT_S` more."""
        host = urlsplit(address).hostname or address
        if self._now() - self._silent.get(host, float("-inf")) < SILENT_S:
            return None
        answer = self._ask(address)
        self._silent.pop(host, None)
        if answer is None:
            self._silent[host] = self._now()
        return answer


def listening(address: str) -> bool | None:
    """Whether somebody listens at ``grpc+unix:///path``, ``unix:///path`` or ``tcp://host:port``.

    None if nothing comes from there, not even that nobody does: the host is off, cut off, behind a
    firewall, or has no address. On a Unix socket a full queue of connections counts as somebody,
    since it takes a living process to have one.
    """
    kind, _, place = address.partition("://")
    if kind.endswith("unix"):
        return _on_unix(place)
    try:
        parts = urlsplit(address)
        socket.create_connection((parts.hostname or "", parts.port or 0), CONNECT_S).close()
    except (ConnectionRefusedError, ConnectionResetError):
        return False
    except (OSError, ValueError):
        return None
    return True


def _on_unix(path: str) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(CONNECT_S)
        try:
            probe.connect(path)
        except (BlockingIOError, TimeoutError):
            return True
        except OSError:
            return False
    return True
