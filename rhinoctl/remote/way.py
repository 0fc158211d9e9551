"""The way to a host over SSH, and how to be let in there."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from rhinoctl.remote.host import joined
from rhinoctl.wire.secret import Secret

SSH_PORT: Final = 22


@dataclass(frozen=True, slots=True, kw_only=True)
class Login:
    """How to be let in where the SSH agent and the keys are not enough; `accept_new` takes hosts
    that were never met for who they say, and `tell` hears of each."""

    password: Secret | None = None
    passphrase: Secret | None = None
    accept_new: bool = False
    tell: Callable[[str], object] = print


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """How a host is reached: what `ssh` of the inventory says of it, with defaults filled in."""

    address: str
    user: str | None
    port: int
    identity: str | None
    known_hosts: str
    sudo: bool
    connect_s: float
    command_s: float

    @property
    def identity_file(self) -> str | None:
        return None if self.identity is None else os.path.expanduser(self.identity)

    @property
    def known_hosts_file(self) -> str:
        return os.path.expanduser(self.known_hosts)

    @property
    def known_as(self) -> str:
        """The name that known hosts have it by."""
        return self.address if self.port == SSH_PORT else f"[{self.address}]:{self.port}"

    def by_hand(self, jump: "Way | None", *command: str) -> str:
        """What a person types to go the same way with OpenSSH."""
        words = ["ssh"]
        if self.port != SSH_PORT:
            words += ["-p", str(self.port)]
        if self.identity_file is not None:
            words += ["-i", self.identity_file]
        if jump is not None:
            words += ["-J", f"{jump._account}:{jump.port}"]
        return joined((*words, self._account, *command))

    def forget_by_hand(self) -> str:
        """What a person types to have its key forgotten."""
        return joined(("ssh-keygen", "-R", self.known_as, "-f", self.known_hosts_file))

    @property
    def _account(self) -> str:
        return self.address if self.user is None else f"{self.user}@{self.address}"
