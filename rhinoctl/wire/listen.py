"""Claiming an address to listen on, so that nobody else's is taken over.

gRPC would unlink a Unix socket's file and bind it anew even while another process listens there,
and says of a TCP port in use only that the server did not start.
"""

import errno
import fcntl
import os
import socket
import stat
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from urllib.parse import urlsplit

from rhinoctl.errors import PortInUse, UnwritableDirectory, UsageError
from rhinoctl.protocol.ports import Address

UNIX_PATH_BYTES_MAX = 107
"""Linux keeps the path in 108 bytes, with a zero at the end."""


@dataclass(frozen=True, slots=True)
class UnixPlace:
    """A socket file."""

    path: str

    def address(self) -> Address:
        return Address(f"grpc+unix://{self.path}")


@dataclass(frozen=True, slots=True)
class TcpPlace:
    """A host and a port; port 0 lets the system choose."""

    host: str
    port: int
    tls: bool = False

    def address(self) -> Address:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return Address(f"grpc+{'tls' if self.tls else 'tcp'}://{host}:{self.port}")


def place_of(address: Address) -> UnixPlace | TcpPlace:
    """What an address names; raises UsageError if a process cannot listen there."""
    parts = urlsplit(address)
    if parts.scheme == "grpc+unix" and parts.path.startswith("/"):
        size = len(os.fsencode(parts.path))
        if size > UNIX_PATH_BYTES_MAX:
            raise UsageError(
                f"the socket path {parts.path} has {size} bytes; "
                f"the system allows {UNIX_PATH_BYTES_MAX}",
                remedy="Use a run directory with a shorter path, such as one below /run or /tmp.",
            )
        return UnixPlace(parts.path)
    with suppress(ValueError):
        tls = parts.scheme == "grpc+tls"
        if (tls or parts.scheme == "grpc+tcp") and parts.hostname and parts.port is not None:
            return TcpPlace(parts.hostname, parts.port, tls)
    raise UsageError(
        f"{address} is not an address to listen on",
        remedy="Write grpc+unix:///path/to/x.sock, grpc+tcp://127.0.0.1:PORT or, with"
        " certificates, grpc+tls://HOST:PORT.",
    )


@contextmanager
def claimed(place: UnixPlace | TcpPlace) -> Iterator[None]:
    """Bind `place` within this: nobody else listens there, and no other start comes between.

    Raises PortInUse. A socket file that nobody listens on any more is removed.
    """
    if isinstance(place, TcpPlace):
        _expect_free_port(place)
        yield
        return
    try:
        directory = os.open(os.path.dirname(place.path), os.O_RDONLY | os.O_DIRECTORY)
    except OSError as fault:
        raise UnwritableDirectory(
            f"cannot listen on {place.path}: {fault.strerror}",
            remedy="Create the directory, and let this user write to it.",
        ) from fault
    try:
        fcntl.flock(directory, fcntl.LOCK_EX)  # held for the milliseconds of a bind
        _expect_free_path(place.path)
        yield
    finally:
        os.close(directory)


def _expect_free_port(place: TcpPlace) -> None:
    family = socket.AF_INET6 if ":" in place.host else socket.AF_INET
    with closing(socket.socket(family, socket.SOCK_STREAM)) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((place.host, place.port))
        except OSError as fault:
            if fault.errno == errno.EADDRINUSE:
                raise port_in_use(place) from fault
            raise UsageError(
                f"cannot listen on {place.host}:{place.port}: {fault.strerror}",
                remedy="Choose an address of this machine and a port above 1023.",
            ) from fault


def _expect_free_path(path: str) -> None:
    if os.path.lexists(path) and not stat.S_ISSOCK(os.lstat(path).st_mode):
        raise PortInUse(
            f"{path} is there and is no socket",
            remedy="Move that file away, or give this process another run directory.",
        )
    with closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as probe:
        probe.setblocking(False)
        try:
            probe.connect(path)
        except FileNotFoundError:
            return
        except ConnectionRefusedError:
            os.unlink(path)
            return
        except BlockingIOError:
            pass  # its backlog is full: somebody is there
        raise port_in_use(UnixPlace(path))


def port_in_use(place: UnixPlace | TcpPlace) -> PortInUse:
    """The error that names the place and what to do."""
    if isinstance(place, UnixPlace):
        return PortInUse(
            f"another process listens on {place.path}",
            remedy="Stop that process, or give this one another run directory.",
        )
    return PortInUse(
        f"another process listens on {place.host}:{place.port}",
        remedy="Stop that process, or choose another port (0 takes a free one).",
    )
