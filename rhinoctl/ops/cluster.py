"""The cluster that a command talks to, and its state on one page."""

import platform
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from rhinoctl import __version__
from rhinoctl.control.client import ControlClient, local_directory, locate_controller
from rhinoctl.errors import Exit
from rhinoctl.protocol.versions import FORMAT, PROTOCOL
from rhinoctl.protocol.views import Health, StatusView


def connect(cluster: str | None) -> ControlClient:
    """A client of the cluster that is meant (`control.client.locate_controller`)."""
    located = locate_controller(cluster)
    return ControlClient(located.address, located.token_file, located.tls)


def read_status(cluster: str | None) -> StatusView:
    """Workers, jobs, running operations and findings. Raises NotRunning."""
    with connect(cluster) as client:
        return client.status()


def exit_of_status(status: StatusView) -> Exit:
    """Degraded unless all is well."""
    return Exit.DONE if status.health is Health.OK else Exit.DEGRADED


def error_log() -> Path:
    """Where the traceback of an unexpected error goes."""
    return local_directory().parent / "errors.log"


@dataclass(frozen=True, slots=True, kw_only=True)
class Versions:
    """What is installed here; `pyspark` None without it. `protocol` and `format` are the versions
    of messages and of what lies on disks."""

    rhinoctl: str
    protocol: int
    format: int
    python: str
    pyspark: str | None


def read_versions() -> Versions:
    """The versions of this installation."""
    try:
        pyspark = metadata.version("pyspark")
    except metadata.PackageNotFoundError:
        pyspark = None
    return Versions(
        rhinoctl=__version__,
        protocol=PROTOCOL,
        format=FORMAT,
        python=platform.python_version(),
        pyspark=pyspark,
    )
