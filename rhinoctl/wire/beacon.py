"""Whether a process lives, told by a socket of its that listens (docs/protocol/failover.md).

The kernel takes connections to it for as long as the process has it open, however busy or stopped
it is. Nothing is said over the connection.
"""

import socket

CONNECT_S = 0.3
"""A host that is there answers a connection within milliseconds; one that is not says nothing."""


def listening(address: str) -> bool:
    """Whether somebody listens at ``grpc+unix:///path``, ``unix:///path`` or ``tcp://host:port``.

    A full queue of connections counts: it takes a living process to have one.
    """
    kind, _, place = address.partition("://")
    if kind.endswith("unix"):
        family, target = socket.AF_UNIX, place
    else:
        host, _, port = place.rpartition(":")
        family, target = socket.AF_INET, (host, int(port))  # type: ignore[assignment]
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.settimeout(CONNECT_S)
        try:
            probe.connect(target)
        except (BlockingIOError, TimeoutError):
            return kind.endswith("unix")
        except OSError:
            return False
    return True
