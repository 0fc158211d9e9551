"""Hosts with an sshd of their own: mount and UTS namespaces on this machine, and a network
namespace where a test needs one. They need root and `sshd` (Debian: openssh-server).

What is private to each: root's home, /opt, /var/lib, /tmp, /mnt (where its files are), the machine
id and the host's name.
"""

import os
import shutil
import signal
import socket
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

SSHD = "/usr/sbin/sshd"

PLAIN_UID = 4242
"""Of an account that a host has and this machine has not."""

_START = """\
set -e
mount --make-rprivate /
mount --bind "$1" /mnt
for private in root opt tmp; do mount --bind "/mnt/$private" "/$private"; done
mount --bind /mnt/varlib /var/lib
mount --bind /mnt/machine-id /etc/machine-id
if [ -e /mnt/passwd ]; then mount --bind /mnt/passwd /etc/passwd; fi
if [ "$4" = noexec ]; then
    mount -o remount,bind,noexec /tmp
    for private in /var/tmp /dev/shm; do mount -t tmpfs -o noexec tmpfs "$private"; done
fi
hostname "$2"
mkdir -p /run/sshd
exec "$3" -D -e -f /mnt/sshd_config
"""

_CONFIG = """\
ListenAddress {address}
Port {port}
HostKey /mnt/host_key
AuthorizedKeysFile /mnt/authorized_keys
PidFile none
StrictModes no
UsePAM no
PasswordAuthentication no
PermitRootLogin yes
{more}
"""


@dataclass
class RealHost:
    """An sshd in namespaces of its own; `enter` comes before its command: `ip netns exec`.
    `noexec`: nothing may be executed where temporary files are."""

    directory: Path
    address: str = "127.0.0.1"
    enter: tuple[str, ...] = ()
    more: str = ""
    port: int = 0
    noexec: bool = False
    _process: "subprocess.Popen[bytes] | None" = field(default=None, repr=False)

    def __post_init__(self) -> None:
        for name in ("root", "opt", "tmp", "varlib"):
            (self.directory / name).mkdir(parents=True)
        (self.directory / "tmp").chmod(0o1777)
        (self.directory / "machine-id").write_text(f"{os.urandom(16).hex()}\n")
        make_key(self.directory / "host_key")
        self.port = self.port or free_port(self.address if not self.enter else "127.0.0.1")

    @property
    def name(self) -> str:
        return self.directory.name

    @property
    def home(self) -> Path:
        """Root's home on the host."""
        return self.directory / "root"

    def admit(self, public_key: Path) -> None:
        """Let a key in."""
        with open(self.directory / "authorized_keys", "a", encoding="utf-8") as file:
            file.write(public_key.read_text())

    def add_account(self, name: str) -> None:
        """An account without any power, with a directory of its own: /var/lib/NAME."""
        line = f"{name}:x:{PLAIN_UID}:{PLAIN_UID}::/var/lib/{name}:/bin/sh\n"
        (self.directory / "passwd").write_text(Path("/etc/passwd").read_text() + line)
        home = self.directory / "varlib" / name
        home.mkdir()
        os.chown(home, PLAIN_UID, PLAIN_UID)

    def known(self) -> str:
        """Its line for a file of known hosts."""
        kind, key, *_ = (self.directory / "host_key.pub").read_text().split()
        where = self.address if self.port == 22 else f"[{self.address}]:{self.port}"
        return f"{where} {kind} {key}\n"

    def start(self) -> None:
        """Start its sshd; it listens on return."""
        settings = {"address": self.address, "port": self.port}
        (self.directory / "sshd_config").write_text(_CONFIG.format(more=self.more, **settings))
        argv = [*self.enter, "unshare", "--mount", "--uts", "sh", "-c", _START, "sh"]
        argv += [str(self.directory), self.name, SSHD, "noexec" if self.noexec else ""]
        with open(self.directory / "sshd.log", "wb") as log:
            self._process = subprocess.Popen(
                argv, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True
            )
        deadline = time.monotonic() + 20
        while "Server listening" not in (self.directory / "sshd.log").read_text():
            assert self._process.poll() is None, (self.directory / "sshd.log").read_text()
            assert time.monotonic() < deadline, "sshd does not listen"
            time.sleep(0.02)

    def stop(self) -> None:
        """End its sshd and every session of it: what was started on it, too, if it stayed there."""
        if self._process is not None:
            for pid in self.pids():
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self._process.wait()
            self._process = None

    def pids(self) -> list[int]:
        """All processes in its mount namespace."""
        assert self._process is not None
        mine = os.readlink(f"/proc/{self._process.pid}/ns/mnt")
        found = []
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                if os.readlink(f"/proc/{pid}/ns/mnt") == mine:
                    found.append(int(pid))
            except OSError:
                continue
        return found


def make_key(path: Path) -> Path:
    """A key without a passphrase; its public half is beside it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    argv = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", path.name, "-f", str(path)]
    subprocess.run(argv, check=True)
    return path


def free_port(address: str) -> int:
    with socket.socket() as probe:
        probe.bind((address, 0))
        port: int = probe.getsockname()[1]
        return port


def needed() -> None:
    """Fail where hosts cannot be made."""
    for tool in (SSHD, "ssh-keygen", "unshare"):
        assert shutil.which(tool), f"needs {tool} (Debian: openssh-server, util-linux)"
