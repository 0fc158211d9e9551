"""The hosts of an inventory, ready to be connected to."""

import getpass
import os
import sys
from collections.abc import Callable
from typing import Final

from rhinoctl.config.inventory import Inventory, Ssh
from rhinoctl.errors import UsageError
from rhinoctl.remote.fleet import Fleet, Gate
from rhinoctl.remote.host import Host
from rhinoctl.remote.refusals import PASSPHRASE
from rhinoctl.remote.ssh import SshHost
from rhinoctl.remote.way import Login as Login
from rhinoctl.remote.way import Way
from rhinoctl.wire.secret import Secret


def fleet_of(inventory: Inventory, login: Login) -> Fleet[Host]:
    """The hosts of an inventory, none of them connected yet; the controller's is
    `CONTROLLER`.
    Those with one jump host share the connection to it."""
    jumps: dict[Way, SshHost] = {}
    gates: dict[Way, Gate] = {}
    hosts: dict[str, Host] = {}
    gate_of: dict[str, Gate] = {}
    for name, address, ssh in inventory.reached():
        jump = None
        if ssh.jump is not None:
            way = way_to_jump(ssh.jump, ssh)
            jump = jumps.setdefault(way, SshHost(ssh.jump, way, login))
            gate_of[name] = gates.setdefault(way, Gate(ssh.sessions))
        hosts[name] = SshHost(name, way_to(address, ssh), login, jump)
    return Fleet(hosts, gate_of)


PASSWORD: Final = "RHINO_SSH_PASSWORD"
"""The environment's password, for where nobody can be asked."""


def login_of(*, accept_new: bool, ask_password: bool, tell: Callable[[str], object]) -> Login:
    """How to be let in: with the keys there are, and with a password that is asked for or in the
    environment. Raises UsageError where there is nobody to ask."""
    password = os.environ.get(PASSWORD)
    if ask_password:
        if not sys.stdin.isatty():
            raise UsageError(
                "there is no terminal to ask for a password on", remedy=f"set {PASSWORD} instead"
            )
        password = getpass.getpass("SSH password: ")
    passphrase = os.environ.get(PASSPHRASE)
    return Login(
        password=Secret(password) if password else None,
        passphrase=Secret(passphrase) if passphrase else None,
        accept_new=accept_new,
        tell=tell,
    )


def way_to(address: str, ssh: Ssh) -> Way:
    """How a host is reached, once its jump host is."""
    return Way(
        address=address,
        user=ssh.user,
        port=ssh.port,
        identity=ssh.identity,
        known_hosts=ssh.known_hosts,
        sudo=ssh.sudo,
        connect_s=ssh.connect_s,
        command_s=ssh.command_s,
    )


def way_to_jump(address: str, ssh: Ssh) -> Way:
    """How a jump host is reached: as the host behind it, but for its own port and user."""
    user = ssh.jump_user or ssh.user
    return way_to(address, ssh.model_copy(update={"user": user, "port": ssh.jump_port}))
