"""Whether a host is who it says: its key against those that are known, and nothing on trust."""

import base64
import fcntl
import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import paramiko

from rhinoctl.errors import HostKeyUnknown


def fingerprint(key: paramiko.PKey) -> str:
    """As `ssh-keygen -l` shows it."""
    digest = hashlib.sha256(key.asbytes()).digest()
    return f"SHA256:{base64.b64encode(digest).decode().rstrip('=')}"


class Refuse(paramiko.MissingHostKeyPolicy):
    """A host whose key is not known is refused."""

    def __init__(self, name: str, file: Path) -> None:
        self._name = name
        self._file = file

    def missing_host_key(
        self, client: paramiko.SSHClient, hostname: str, key: paramiko.PKey
    ) -> None:
        raise HostKeyUnknown(
            f"{self._name}: its host key is not in {self._file}: {key.get_name()}"
            f" {fingerprint(key)}",
            remedy="compare it with the host's own, `ssh-keygen -lf /etc/ssh/ssh_host_…_key.pub`"
            " there; then connect with `ssh` once, or repeat the command with --accept-new",
        )


class Accept(paramiko.MissingHostKeyPolicy):
    """A host that was never met is taken for who it says, from now on; a person has asked for it.

    One whose key has changed is refused all the same: for that there is no policy.
    """

    def __init__(self, name: str, file: Path, tell: Callable[[str], object]) -> None:
        self._name = name
        self._file = file
        self._tell = tell

    def missing_host_key(
        self, client: paramiko.SSHClient, hostname: str, key: paramiko.PKey
    ) -> None:
        line = f"{hostname} {key.get_name()} {key.get_base64()}\n"
        self._file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with open(self._file, "a+", encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            size = file.seek(0, os.SEEK_END)
            if size:
                file.seek(size - 1)
                line = line if file.read(1) == "\n" else f"\n{line}"
            file.write(line)
            file.flush()
            os.fsync(file.fileno())
        self._tell(f"{self._name}: accepted its host key {key.get_name()} {fingerprint(key)}")
