"""What lets people and Spark drivers in: directories that are made with a deployment."""

from pathlib import Path
from typing import Final

from rhinoctl.config.access import write_access
from rhinoctl.config.authority import Issued
from rhinoctl.config.deployment import WIRE, controller_url
from rhinoctl.ops.deployed import Deployed
from rhinoctl.wire.secret import Secret

OPERATOR: Final = "operator"
DRIVER: Final = "driver"
VIEWER: Final = "viewer"


def write_accesses(cluster: Deployed) -> None:
    """Make, or renew, the access of each role: that of the operator is the cluster's own directory,
    the others are below it and are to be copied to where they are needed. Raises
    UnwritableDirectory."""
    top = cluster.home.directory
    _write(cluster, top, OPERATOR)
    _write(cluster, top / DRIVER, DRIVER)
    _write(cluster, top / VIEWER, VIEWER)


def _write(cluster: Deployed, directory: Path, role: str) -> None:
    papers = cluster.home.papers_of(role, role, (), (role, WIRE))
    wire = Secret(papers.tokens[WIRE].decode().strip())
    write_access(
        directory,
        controller=controller_url(cluster.inventory),
        ca=papers.ca,
        issued=Issued(papers.certificate, Secret(papers.key.decode())),
        token=Secret(papers.tokens[role].decode().strip()),
        wire_token=None if role == VIEWER else wire,
    )
