"""A deployed controller's store and the cluster's keys, backed up into a file here, and brought
back.

The store is on the controller's host and the keys are here (`rhinoctl.config.clusters`). The image
of the store is made there, of one moment, by the release that the controller runs from.
"""

import posixpath
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final, TypeVar

from rhinoctl.config import backup as files
from rhinoctl.config.backup import STORE, STORE_IMAGE, BackupHeader
from rhinoctl.config.cluster import replace_file
from rhinoctl.config.clusters import AUTHORITY, MEMBERS, NETWORK, SEAT
from rhinoctl.config.deployment import Role
from rhinoctl.control.client import error_from
from rhinoctl.errors import AlreadyRunning, ForeignManifest
from rhinoctl.ops.deployed import Deployed, read_deployed
from rhinoctl.ops.endings import problem_in
from rhinoctl.ops.hosts import fleet_of
from rhinoctl.ops.processes import Process
from rhinoctl.ops.running import OpenFleet, check_deployed, of_one, process_at
from rhinoctl.remote.host import Command, Host, succeeded
from rhinoctl.remote.ssh import Login

T = TypeVar("T")

KEYS: Final = (AUTHORITY, MEMBERS, SEAT, NETWORK)
"""What is kept here of a cluster and cannot be made anew."""

MODULE: Final = "rhinoctl.config.store_image"


def backup(
    inventory: Path, file: Path, login: Login, open_fleet: OpenFleet = fleet_of
) -> BackupHeader:
    """Write store and keys into a new file, whether the controller runs or not.

    Raises NoInventory, InvalidInventory, NotRunning for a cluster that was not deployed from here,
    Busy, Refused if the file is there already, CorruptFile if the store is damaged, and HostError's
    leaves.
    """
    cluster = read_deployed(inventory)
    check_deployed(cluster)
    files.check_new(file)

    def image(host: Host, process: Process) -> bytes:
        return _run(host, process, cluster, "image")

    with cluster.home.claimed():
        contents = {STORE_IMAGE: _at_controller(cluster, login, image, open_fleet)}
        for name in KEYS:
            if (cluster.home.directory / name).exists():
                contents[name] = (cluster.home.directory / name).read_bytes()
        return files.keep(
            file,
            cluster.home.make().identity,
            contents,
            now=time.time(),
            store=_store_of(cluster),
        )


def restore(
    inventory: Path, file: Path, login: Login, open_fleet: OpenFleet = fleet_of
) -> BackupHeader:
    """Put the store of a backup in the place of the one on the controller's host. Keys come back
    where they are missing here; those that are here are not older, and stay.

    Raises NoInventory, InvalidInventory, ForeignManifest for a file of another cluster,
    CorruptFile, AlreadyRunning while the controller runs, Busy, and HostError's leaves.
    """
    cluster = read_deployed(inventory)
    header, contents = files.read_backup(file, store=_store_of(cluster))
    with cluster.home.claimed():
        known = cluster.home.read()
        if AUTHORITY not in contents or (known and known.identity != header.cluster):
            there = known.identity if known else cluster.inventory.cluster
            raise ForeignManifest(
                f"{file} is a backup of cluster {header.cluster}, and {inventory} is of {there}",
                remedy="name the backup of this cluster, or the inventory of that one",
            )

        def put(host: Host, process: Process) -> None:
            if process.state(host).running:
                raise AlreadyRunning(
                    f"{host.name}: the controller runs over the store",
                    remedy="end it first: `rhinoctl stop controller`",
                )
            _run(host, process, cluster, "put", contents[STORE_IMAGE])

        for name in KEYS if known is None else ():
            if name in contents:
                replace_file(cluster.home.directory / name, contents[name])
        _at_controller(cluster, login, put, open_fleet)
    return header


def _at_controller(
    cluster: Deployed,
    login: Login,
    do: Callable[[Host, Process], T],
    open_fleet: OpenFleet,
) -> T:
    def on(host: Host) -> T:
        process, _ = process_at(host, cluster, Role.CONTROLLER)
        return do(host, process)

    with open_fleet(cluster.inventory, login) as fleet:
        return of_one(fleet.each(on, [cluster.controller_s_host]))


def _store_of(cluster: Deployed) -> str:
    """Where the store is on the controller's host."""
    return posixpath.join(cluster.inventory.controller.data_dir, STORE)


def _run(host: Host, process: Process, cluster: Deployed, verb: str, image: bytes = b"") -> bytes:
    """Raises what the release there has ended with."""
    store, service = _store_of(cluster), process.service
    run = posixpath.join(service.install_dir, "current", "run")
    command = Command(
        argv=("env", f"RHINO_PYTHON={service.python}", "sh", run, MODULE, verb, store),
        what=f"{verb} the controller's store",
        input=image,
        changes=verb == "put",
    )
    done = host.run(command)
    problem = problem_in(done.stderr.decode("utf-8", "replace").rstrip().rpartition("\n")[2])
    if done.exit_code and problem is not None:
        raise error_from(replace(problem, message=f"{host.name}: {problem.message}"))
    return succeeded(host, command, done).stdout
