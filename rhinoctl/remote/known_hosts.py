"""Whether a host is who it says: its key against those that are known, and nothing on trust."""

import base64
import fcntl
import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import paramiko
from paramiko.hostkeys import HostKeyEntry, InvalidHostKey

from rhinoctl.errors import HostKeyUnknown, KnownHostsUnusable


def fingerprint(key: paramiko.PKey) -> str:
    """As `ssh-keygen -l` shows it."""
    digest = hashlib.sha256(key.asbytes()).digest()
    return f"SHA256:{base64.b64encode(digest).decode().rstrip('=')}"


def load(keys: paramiko.HostKeys, name: str, file: Path) -> None:
    """Take the keys of a file for the only ones that are known; none if it is not there. Lines with
    a marker (`@cert-authority`) are passed over. Raises KnownHostsUnusable: a line that is damaged
    may be the one of a host whose key has changed."""
    keys.clear()
    try:
        lines = file.read_bytes().splitlines()
    except FileNotFoundError:
        return
    except OSError as fault:
        raise _unusable(name, file, fault) from fault
    for number, line in enumerate(lines, 1):
        fields = line.split(maxsplit=3)[:3]  # what comes after them is a comment, in any encoding
        if not fields or fields[0].startswith((b"#", b"@")):
            continue
        try:
            entry = HostKeyEntry.from_line(b" ".join(fields).decode("utf-8"), number)
        except (UnicodeDecodeError, InvalidHostKey, paramiko.SSHException, ValueError) as fault:
            raise KnownHostsUnusable(
                f"{name}: line {number} of {file} is no host's key",
                remedy=f"mend that line, or remove it: `sed -i {number}d {file}`",
            ) from fault
        for host in [] if entry is None else entry.hostnames:
            kind = entry.key.get_name()
            if kind not in (keys.lookup(host) or ()):
                keys.add(host, kind, entry.key)


def _unusable(name: str, file: Path, fault: OSError) -> KnownHostsUnusable:
    return KnownHostsUnusable(
        f"{name}: {file} cannot be used: {fault.strerror or fault}",
        remedy="let this account read and write it, or name another file: `ssh.known_hosts`",
    )


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
        try:
            self._keep(f"{hostname} {key.get_name()} {key.get_base64()}\n")
        except OSError as fault:
            raise _unusable(self._name, self._file, fault) from fault
        self._tell(f"{self._name}: accepted its host key {key.get_name()} {fingerprint(key)}")

    def _keep(self, line: str) -> None:
        self._file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with open(self._file, "a+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            size = file.seek(0, os.SEEK_END)
            if size:
                file.seek(size - 1)
                line = line if file.read(1) == b"\n" else f"\n{line}"
            file.write(line.encode())
            file.flush()
            os.fsync(file.fileno())
